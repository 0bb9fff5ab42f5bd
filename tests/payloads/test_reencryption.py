"""Payloads that are encoded again with another key."""

from __future__ import annotations

import json
import re
import sqlite3
from base64 import b64decode, b64encode
from contextlib import closing
from typing import Any

import anyio
import psycopg
import pytest

import affinity
from affinity import App, Client, Worker
from affinity.blobs.reencryption import Pass
from affinity.blobs.store.contract import PayloadChange, StoredPayload, blobs_of
from affinity.blobs.store.tables import ENCODED
from affinity.conversation import UserMessage
from affinity.encryption import Encryption
from affinity.errors import InvalidInput, InvalidOptions
from affinity.payloads import open_coded
from affinity.payloads.frames import Frame
from affinity.payloads.recoding import find_payloads, replace_payloads
from affinity.records import FRAME
from tests.payloads.coded_app import app, greeting
from tests.payloads.marked_app import app as marked
from tests.payloads.marked_app import chats, child, use_everything
from tests.payloads.xor import XorCodec
from tests.support.extras import needs

pytestmark = [pytest.mark.anyio, needs("cryptography")]

OLD = {"1": b"1" * 32}
NEW = {"22": b"2" * 32}
BOTH = {**OLD, **NEW}


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


async def stored_labels(url: str) -> dict[str, int]:
    """The labels of all frames in all columns, by a plain search."""
    found: dict[str, int] = {}
    for value in await all_values(url):
        text = value if isinstance(value, str) else value.decode("latin-1")
        for head in re.findall(re.escape(FRAME) + r"([A-Za-z0-9+/=]+)\.", text):
            label = label_in(head)
            found[label] = found.get(label, 0) + 1
    return found


def label_in(head: str) -> str:
    return str(json.loads(b64decode(head))[1])


async def all_values(url: str) -> list[Any]:
    names = {table.name: ", ".join(table.columns) for table in ENCODED}
    queries = [f"SELECT {columns} FROM {name}" for name, columns in names.items()]
    rows: list[Any] = []
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            for query in queries:
                rows += connection.execute(query).fetchall()
    else:
        with psycopg.connect(url, options="-c search_path=affinity") as server:
            for query in queries:
                rows += server.execute(query.encode()).fetchall()
    return [value for row in rows for value in row if value is not None]


async def begin(url: str, codec: Any) -> None:
    """A history that goes on, one that has ended, and a conversation."""
    async with Worker(app, url, codec=codec), Client(url, codec=codec) as client:
        for name in ("goes on", "ended"):
            handle = await client.start(greeting, name, instance_id=name)
            with anyio.fail_after(20):
                while (await handle.status()).custom_status is None:
                    await anyio.sleep(0.02)
        await handle.raise_event("more", "event")
        await handle.wait(timeout=20)
    async with Worker(marked, url, codec=codec), Client(url, codec=codec) as client:
        await client.conversation(chats, "chat").ask(UserMessage("hello"), timeout=30, title="a title")
        await client.schedules.create("nightly", child, input="tick", cron="0 3 * * *")


async def go_on(url: str, codec: Any) -> None:
    async with Worker(app, url, codec=codec), Client(url, codec=codec) as client:
        assert await client.handle("ended", greeting).wait(timeout=20) == ["secret for ended", "event"]
        handle = client.handle("goes on", greeting)
        await handle.raise_event("more", "late")
        assert await handle.wait(timeout=20) == ["secret for goes on", "late"]
    async with Worker(marked, url, codec=codec), Client(url, codec=codec) as client:
        talk = client.conversation(chats, "chat")
        assert "again" in (await talk.ask(UserMessage("again"), timeout=30)).text
        assert len([entry async for entry in talk.events(follow=False)]) >= 4
        (schedule,) = await client.schedules.list()
        assert "tick" in repr(schedule)


async def test_the_new_key_alone_reads_everything(url: str) -> None:
    await begin(url, Encryption(OLD))
    before = await stored_labels(url)
    assert set(before) == {"key 1"}
    async with Client(url, codec=Encryption(BOTH)) as client:
        counted = await client.reencrypt(dry_run=True)
        assert await stored_labels(url) == before
        assert (dict(counted.found), counted.reencrypted) == (before, before["key 1"])
        seen = list[int]()
        with client.acting_as("ann"):
            done = await client.reencrypt(batch=3, progress=seen.append)
        assert (done.reencrypted, done.unreadable, done.busy, done.in_the_clear) == (before["key 1"], 0, 0, 0)
        assert seen[-1] == done.reencrypted
        assert [(entry.user, entry.action, entry.details) async for entry in client.audit()] == [
            ("ann", "reencrypt", {"key": "key 22"})
        ]
        assert set(await stored_labels(url)) == {"key 22"}
        again = await client.reencrypt()
        assert (again.reencrypted, set(again.found)) == (0, {"key 22"})
    await go_on(url, Encryption(NEW))


async def test_every_column_is_found(url: str) -> None:
    """All features: what a plain search finds, the pass finds."""
    await use_everything(url)
    before = await stored_labels(url)
    async with Client(url, codec=Changing(7)) as client:
        done = await client.reencrypt()
    assert dict(done.found) == before
    assert (done.reencrypted, done.unreadable, done.in_the_clear) == (sum(before.values()), 0, 0)
    assert set(await stored_labels(url)) == {"xor 7"}


class Changing(XorCodec):
    """Reads what `XorCodec` has written, and writes with another mask."""

    async def decode(self, data: bytes, context: affinity.PayloadContext) -> bytes:
        try:
            return await XorCodec().decode(data, context)
        except affinity.errors.PayloadUnreadable:
            return await super().decode(data, context)


async def test_an_interrupted_pass_is_repeated(url: str) -> None:
    await begin(url, Encryption(OLD))
    total = (await stored_labels(url))["key 1"]

    def stop(done: int) -> None:
        if done > total // 3:
            raise KeyboardInterrupt

    async with Client(url, codec=Encryption(BOTH)) as client:
        with pytest.raises(KeyboardInterrupt):
            await client.reencrypt(batch=1, progress=stop)
        between = await stored_labels(url)
        assert 0 < between["key 1"] < total
        assert (await client.reencrypt()).reencrypted == between["key 1"]
    await go_on(url, Encryption(NEW))


async def test_a_concurrent_write_wins(url: str) -> None:
    """What was written since it was read stays, and the next attempt finds it."""
    await begin(url, Encryption(OLD))
    provider = await open_coded(url, Encryption(BOTH))
    try:
        store = blobs_of(provider)
        reader = store.read_payloads
        written = list[StoredPayload]()

        async def read_and_write(place: str | None, limit: int) -> Any:
            step = await reader(place, limit)
            for one in step.payloads if not written else ():
                if one.column == "instances.custom_status" and "goes on" in one.key:
                    written.append(one)
                    assert isinstance(one.stored, str)
                    other = await provider.encode_text('"other"', form="json", name="custom_status", scope="goes on")  # type: ignore[attr-defined]
                    assert await store.replace_payloads([PayloadChange(one, other)]) == [0]
                    break
            return step

        store.read_payloads = read_and_write  # type: ignore[method-assign]
        done = await Pass(store, dry_run=False, progress=lambda _: None).run(100)
        assert len(written) == 1
        assert (done.busy, done.unreadable) == (0, 0)
    finally:
        await provider.aclose()
    assert set(await stored_labels(url)) == {"key 22"}
    async with Client(url, codec=Encryption(NEW)) as client:
        statuses = {(await client.handle(name).status()).custom_status for name in ("goes on", "ended")}
        assert "other" in statuses


async def test_what_cannot_be_decoded_is_counted_and_left(url: str) -> None:
    await begin(url, Encryption(OLD))
    async with Worker(App("none"), url, codec=Encryption(BOTH)):
        pass  # from now on a codec without the old key may open the database
    before = await all_values(url)
    async with Client(url, codec=Encryption(NEW)) as client:
        done = await client.reencrypt()
    assert (done.reencrypted, done.unreadable) == (0, done.found["key 1"])
    assert sorted(map(repr, await all_values(url))) == sorted(map(repr, before))
    await go_on(url, Encryption(BOTH))


async def test_a_pass_beside_running_work(url: str) -> None:
    await begin(url, Encryption(OLD))
    both = Encryption(BOTH)
    async with Worker(app, url, codec=both), Client(url, codec=both) as client:
        handles = [await client.start(greeting, f"n{n}", instance_id=f"i{n}") for n in range(12)]
        async with anyio.create_task_group() as tasks:
            for handle in handles:
                tasks.start_soon(handle.raise_event, "more", "event")
            for _ in range(3):
                await client.reencrypt(batch=10)
        for n, handle in enumerate(handles):
            assert await handle.wait(timeout=30) == [f"secret for n{n}", "event"]
        assert (await client.reencrypt()).busy == 0
    assert set(await stored_labels(url)) == {"key 22"}


async def test_what_is_in_the_clear_is_counted_and_left(url: str) -> None:
    await affinity.migrate(url)
    async with Client(url) as client:
        await client.start("greeting", "name", instance_id="i")
    before = await all_values(url)
    async with Client(url, codec=Encryption(NEW, allow_plain=True)) as client:
        done = await client.reencrypt()
    assert (done.in_the_clear, done.reencrypted, dict(done.found)) == (1, 0, {})
    assert await all_values(url) == before


async def test_it_needs_a_codec_and_a_batch(url: str) -> None:
    await affinity.migrate(url)
    async with Client(url) as client:
        with pytest.raises(InvalidOptions, match="there is no codec"):
            await client.reencrypt()
    async with Client(url, codec=Encryption(NEW)) as client:
        for batch in (0, 1_001, True, "3"):
            with pytest.raises(InvalidOptions, match="batch is an integer"):
                await client.reencrypt(batch=batch)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="no column of payloads"):
            await blobs_of(client._provider).replace_payloads(
                [PayloadChange(StoredPayload("instances.name", '["i"]', "a"), "b")]
            )


def test_a_frame_that_begins_another_one_is_replaced_alone() -> None:
    """Bodies of a codec without randomness may begin alike."""
    short, long = Frame("i", "a", b"abc").text, Frame("i", "a", b"abcdef").text
    stored = f'{{"type": "x", "one": "{short}", "two": "{long}"}}'
    assert replace_payloads(stored, {short: "new"}) == f'{{"type": "x", "one": "new", "two": "{long}"}}'
    found = find_payloads("history.event", stored)
    assert set(found.frames) == {short, long}
    nested = json.dumps({"start": json.dumps({"event": {"type": "x", "input": short}})})
    assert list(find_payloads("instances.next_start", nested).frames) == [short]
    assert short not in str(replace_payloads(nested, {short: "new"}))
    assert b64encode(b"abc").decode() in short
