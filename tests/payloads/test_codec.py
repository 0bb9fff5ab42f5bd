"""A codec at the edge of the database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, OrchestrationContext, PayloadContext, Sessions, Worker, migrate
from affinity.errors import CodecFailed, InvalidOptions, NotSerializable, PayloadUnreadable
from affinity.orchestration.wire import decode_event
from affinity.payloads import pipeline
from affinity.payloads.contract import label_of
from affinity.payloads.frames import Frame
from affinity.worker import activities
from tests.payloads.coded_app import app, greet, greeting
from tests.payloads.xor import FormerKeyLost, XorCodec


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/coded.db"


async def test_what_is_stored_is_unreadable(url: str, tmp_path: Path) -> None:
    async with Worker(app, url, codec=XorCodec()), Client(url, codec=XorCodec()) as client:
        handle = await client.start(greeting, "secret name")
        await handle.raise_event("more", "secret event")
        assert await handle.wait(timeout=20) == ["secret for secret name", "secret event"]
        for path in tmp_path.iterdir():
            assert b"secret" not in path.read_bytes(), path
    async with Client(url) as client:
        with pytest.raises(InvalidOptions, match="payloads of this database are encoded"):
            await client.start("greeting", "secret name")
    with pytest.raises(InvalidOptions, match="give codec="):
        async with Worker(app, url):
            raise AssertionError


async def test_a_codec_is_checked(url: str) -> None:
    with pytest.raises(InvalidOptions, match="label, reads_plain"):
        Client(url, codec="module:codec")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match="label, reads_plain"):
        Worker(app, url, codec=XorCodec)  # type: ignore[arg-type]


async def test_another_key_suspends_and_the_right_one_resumes(url: str) -> None:
    await migrate(url)
    async with Client(url, codec=XorCodec()) as client:
        handle = await client.start(greeting, "secret name", instance_id="i1")
        await handle.raise_event("more", "secret event")
    async with Worker(app, url, codec=FormerKeyLost()), Client(url, codec=FormerKeyLost()) as client:
        handle = client.handle("i1", greeting)
        with anyio.fail_after(20):
            while (found := await handle.status()).status != "suspended":
                await anyio.sleep(0.05)
        assert found.suspension is not None
        other = await client.start(greeting, "other", instance_id="i2")  # is not in its way
        await other.raise_event("more", "event")
        assert await other.wait(timeout=20) == ["secret for other", "event"]
    async with Worker(app, url, codec=XorCodec()), Client(url, codec=XorCodec()) as client:
        await client.resume("i1")
        handle = client.handle("i1", greeting)
        assert await handle.wait(timeout=20) == ["secret for secret name", "secret event"]


async def test_a_payload_of_another_row_is_refused(url: str, tmp_path: Path) -> None:
    async with Worker(app, url, codec=XorCodec()), Client(url, codec=XorCodec()) as client:
        for name in ("i1", "i2"):
            handle = await client.start(greeting, name, instance_id=name)
            await handle.raise_event("more", "secret event")
            await handle.wait(timeout=20)
        with closing(sqlite3.connect(tmp_path / "coded.db")) as connection, connection:
            connection.execute(
                "UPDATE instances SET output = (SELECT output FROM instances WHERE instance_id = 'i1')"
                " WHERE instance_id = 'i2'"
            )
        with pytest.raises(PayloadUnreadable, match="written for 'i1', and found at 'i2'"):
            await client.handle("i2", greeting).wait(timeout=20)


async def test_without_a_codec_the_label_is_shown(url: str) -> None:
    async with Worker(app, url, codec=XorCodec()), Client(url, codec=XorCodec()) as client:
        handle = await client.start(greeting, "name", instance_id="i1")
        await handle.raise_event("more", "event")
        await handle.wait(timeout=20)
    async with Client(url) as client:
        shown = await client.handle("i1").status()
        assert "encrypted, xor 90" in repr(shown)
        with pytest.raises(PayloadUnreadable, match=r"^encrypted, xor 90$"):
            await client.handle("i1").wait(timeout=20)


async def test_an_activity_of_another_key_waits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fail: the right key runs it."""
    monkeypatch.setattr(activities, "UNREADABLE_PAUSE", 0.5)
    starts = App("coded")

    @starts.orchestration
    async def greeting(ctx: OrchestrationContext, name: str) -> str:
        result: str = await ctx.schedule_activity("greet", name)
        return result

    runs = App("coded")
    runs.activity(greet)
    await migrate(url)
    async with Worker(starts, url, codec=XorCodec()), Client(url, codec=XorCodec()) as client:
        await client.start(greeting, "name", instance_id="i1")
        await anyio.sleep(1.0)
    async with Worker(runs, url, codec=FormerKeyLost()):
        await anyio.sleep(2.0)
    codec = XorCodec()
    async with Worker(starts, url, codec=codec), Worker(runs, url, codec=codec), Client(url, codec=codec) as client:
        assert await client.handle("i1", greeting).wait(timeout=20) == "secret for name"


class PickyCodec(XorCodec):
    """Its key service refuses one payload, with an error of its own."""

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        found = await super().decode(data, context)
        if b"refused" in found:
            raise RuntimeError("invalid ciphertext")
        return found


async def test_a_payload_at_which_the_codec_fails_hurts_its_instance_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SUSPECT_SECONDS", 0.3)
    await migrate(url)
    async with Client(url, codec=XorCodec()) as client:
        await client.start(greeting, "refused", instance_id="i1")
        others = [await client.start(greeting, f"name {n}") for n in range(3)]
        async with Worker(app, url, codec=PickyCodec()):
            for other in others:
                await other.raise_event("more", "event")
                assert (await other.wait(timeout=60))[1] == "event"
            with anyio.fail_after(60):
                while (found := await client.status("i1")).status != "suspended":
                    await anyio.sleep(0.05)
            assert found.suspension is not None
            assert "invalid ciphertext; it decodes others" in found.suspension.message


async def test_a_session_state_of_another_key_waits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The activity does not fail: the right key goes on."""

    class Chat(BaseModel):
        words: list[str] = []

    monkeypatch.setattr(activities, "UNREADABLE_PAUSE", 0.1)
    own = App("chats")
    chats = Sessions(Chat, kind="chat")
    own.include(chats)

    @own.activity
    async def say(ctx: ActivityContext, word: str) -> list[str]:
        async with chats.open(ctx) as chat:
            chat.words.append(word)
            return list(chat.words)

    @own.orchestration
    async def talk(ctx: OrchestrationContext, word: str) -> list[str]:
        return await ctx.schedule_activity(say, word).on_session("s")

    await migrate(url)
    async with Client(url, codec=XorCodec()) as client:
        async with Worker(own, url, codec=XorCodec()):
            assert await (await client.start(talk, "one")).wait(timeout=60) == ["one"]
        async with Client(url, codec=FormerKeyLost()) as other, Worker(own, url, codec=FormerKeyLost()):
            await other.start(talk, "lost", instance_id="i")
            with anyio.fail_after(60):
                while not [one for one in await other.activities("i") if one.last_error is not None]:
                    await anyio.sleep(0.05)
            assert (await other.status("i")).status == "running"
        async with Worker(own, url, codec=XorCodec()):
            assert await (await client.start(talk, "two")).wait(timeout=60) == ["one", "two"]


async def test_a_schedule_of_another_key_waits_and_the_others_are_fired(url: str) -> None:
    """It stays as it is stored, so that the right key fires it."""
    await migrate(url)
    async with Client(url, codec=XorCodec()) as client:
        await client.schedules.create("secret", greeting, every=timedelta(seconds=1), input="name")
    async with Worker(app, url, codec=FormerKeyLost()), Client(url, codec=FormerKeyLost()) as client:
        await client.schedules.create("other", greeting, every=timedelta(seconds=1), input="name")
        with anyio.fail_after(20):
            while (await client.schedules.show("other")).last_tick is None:
                await anyio.sleep(0.05)
            while "cannot be read: it was not encoded" not in ((await client.schedules.show("secret")).note or ""):
                await anyio.sleep(0.05)
    async with Worker(app, url, codec=XorCodec(reads_plain=True)), Client(url, codec=XorCodec()) as client:
        with anyio.fail_after(20):
            while (await client.schedules.show("secret")).last_tick is None:
                await anyio.sleep(0.05)


def test_code_without_a_codec_takes_no_stored_form_for_a_value() -> None:
    frame = Frame("i1", "key 7", b"secret").text
    with pytest.raises(PayloadUnreadable, match="this process has no codec"):
        decode_event(f'{{"type":"activity_completed","schedule_id":1,"result":"{frame}"}}')


@pytest.mark.parametrize("codec", [None, XorCodec()], ids=["plain", "xor"])
async def test_a_text_that_looks_like_a_stored_form_is_refused(url: str, codec: XorCodec | None) -> None:
    """It could not be read: by one such event anyone would suspend an instance."""
    await migrate(url)
    async with Client(url, codec=codec) as client:
        with pytest.raises(NotSerializable, match="would be taken for an encoded payload"):
            await client.start(greeting, "~afp1.x")
        handle = await client.start(greeting, "name")
        with pytest.raises(NotSerializable, match="would be taken for an encoded payload"):
            await handle.raise_event("more", "~afp1.x")


@pytest.mark.parametrize("label", ["", "k" * 65, "key\n1", "key 1.5", None])
def test_a_label_is_checked(label: str | None) -> None:
    class Labelled(XorCodec):
        @property
        def label(self) -> str:
            return label  # type: ignore[return-value]

    with pytest.raises(CodecFailed, match="1 to 64 characters"):
        label_of(Labelled())
    assert label_of(XorCodec()) == "xor 90"
