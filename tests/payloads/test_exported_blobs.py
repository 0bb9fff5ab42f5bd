"""Exports keep the blobs that they name, also when no row names them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import affinity
from affinity import ActivityContext, App, Blob, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.blobs import Blobs, DirectoryStore
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import PayloadUnreadable
from affinity.session import SessionState
from affinity.testing import replay
from tests.payloads.collecting import age_orphans, collect

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Chat:
    notes: list[str] = dataclasses.field(default_factory=list)


app = App("exports")
chats = affinity.Conversations(Chat, kind="exported")


@chats.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    chat.notes += [event.text for event in wake.events if isinstance(event, UserMessage)]
    wake.append(AgentMessage("noted"))


app.include(chats)


@app.activity
async def copy(ctx: ActivityContext, document: Blob) -> Blob:
    return await ctx.put_blob(ctx.open_blob(document))


@app.orchestration
async def convert(ctx: OrchestrationContext, document: Blob) -> Blob:
    return await ctx.schedule_activity(copy, document)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    root = tmp_path / "blobs"
    root.mkdir()
    return Blobs(DirectoryStore(root))


async def test_exports_keep_their_blobs(any_url: str, tmp_path: Path, blobs: Blobs) -> None:
    """Of an instance, a record of state, and a conversation; they can be replayed and imported after all rows are gone,
    and open their blobs. What no export names is deleted, and what is forgotten is, too.
    """
    worker = Worker(app, any_url, RuntimeOptions(worker_node_id="w", poll_interval=0.1), blobs=blobs)
    async with worker, Client(any_url, blobs=blobs) as client:
        names = ("input", "json", "bytes", "said", "lost")
        put = {name: await client.put_blob(name.encode()) for name in names}
        result = await (await client.start(convert, put["input"], instance_id="i")).wait(timeout=30)
        await (await client.start(convert, put["lost"], instance_id="j")).wait(timeout=30)
        for name, state in {
            "json": f'["{put["json"]}"]'.encode(),
            "bytes": b"\xff %b" % str(put["bytes"]).encode(),
        }.items():
            await client.session_store.save(SessionState(session_id=name, state=state))
        await client.conversation(chats, "c").ask(UserMessage(f"see {put['said']}"), timeout=30)
        history = await client.export_history("i")
        records = [line async for line in client.session_manager.export(["json", "bytes"])]
        lines = [line async for line in client.conversation(chats, "c").export()]
        await client.delete("i")
        await client.delete("j")
        for name in ("json", "bytes"):
            await client.session_manager.delete(name)
        await client.conversation(chats, "c").delete()
        await collect(client, any_url)
        age_orphans(any_url)
        await collect(client, any_url)
        assert replay(app, history) > 0
        with pytest.raises(PayloadUnreadable, match="lost"):
            await _read(client, put.pop("lost"))
        await client.session_manager.import_(records)
        imported = client.conversation(chats, "d")
        await imported.import_(lines)
        for name, blob in put.items():
            assert await _read(client, blob) == name.encode()
        assert await _read(client, result) == b"input"
        await imported.ask(UserMessage("go on"), timeout=30)
        assert await client.forget_kept_blobs(older_than=0) == 5
        await collect(client, any_url)
        age_orphans(any_url)
        await collect(client, any_url)
        with pytest.raises(PayloadUnreadable, match="lost"):
            await _read(client, put["input"])
        assert await _read(client, put["said"]) == b"said"


async def test_another_database_does_not_have_the_blobs(
    tmp_path: Path, blobs: Blobs, caplog: pytest.LogCaptureFixture
) -> None:
    """An import there is logged, and whoever opens a blob gets an error."""
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    for url in urls:
        await affinity.migrate(url)
    async with Client(urls[0], blobs=blobs) as one, Client(urls[1], blobs=blobs) as other:
        await other.put_blob(b"there")
        blob = await one.put_blob(b"here")
        state = f'["{blob}"]'.encode()
        await one.session_store.save(SessionState(session_id="s", state=state))
        await other.session_manager.import_([line async for line in one.session_manager.export()])
        assert f"names blob {blob.digest}, which is not in the store" in caplog.text
        with pytest.raises(PayloadUnreadable, match="lost"):
            await _read(other, blob)


async def test_an_export_without_the_right_to_keep_is_logged(
    tmp_path: Path, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/affinity.db"
    await affinity.migrate(url)
    async with Client(url, blobs=blobs) as client:
        state = f'["{await client.put_blob(b"here")}"]'.encode()
        await client.session_store.save(SessionState(session_id="s", state=state))

        async def refuse(digests: Any) -> None:
            raise affinity.errors.AccessDenied("no right")

        monkeypatch.setattr(client._provider, "keep_exported_blobs", refuse, raising=False)
        assert len([line async for line in client.session_manager.export()]) == 1
    assert "names 1 blobs, and this user may not keep them" in caplog.text


async def test_exports_without_a_store_keep_blobs_too(tmp_path: Path, blobs: Blobs) -> None:
    url = f"sqlite:///{tmp_path}/affinity.db"
    await affinity.migrate(url)
    async with Client(url, blobs=blobs) as client:
        state = f'["{await client.put_blob(b"here")}"]'.encode()
        await client.session_store.save(SessionState(session_id="s", state=state))
    async with affinity.open_store(url) as store:
        assert len([line async for line in affinity.session.SessionManager(store).export()]) == 1
    async with Client(url) as client:
        assert await client.forget_kept_blobs(older_than=0) == 1


async def _read(client: Client, blob: Blob) -> bytes:
    return b"".join([part async for part in client.open_blob(blob)])
