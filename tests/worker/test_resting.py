"""Workers remove records and conversations that sleep, when their options say so."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

import affinity
from affinity import Client
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import UnknownConversation
from affinity.worker import maintenance
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = affinity.App("resting")
chats = affinity.Conversations(dict, kind="chat")
memories = affinity.Sessions(dict, kind="memory")


@chats.on_wake
async def answer(wake: affinity.Wake, state: dict[str, Any]) -> None:
    state["count"] = state.get("count", 0) + 1
    wake.append(AgentMessage(str(state["count"])))


app.include(chats)


def options(**given: Any) -> affinity.RuntimeOptions:
    brief: dict[str, Any] = {"poll_interval": 0.2, "session_lock_timeout": 0.5, "work_item_lock_timeout": 0.5}
    return affinity.RuntimeOptions.make(**brief, **given)


async def test_workers_remove_what_sleeps(
    kept_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A conversation that waits for a message goes, and another one begins under its id; the record of a session goes;
    a conversation that was asked lately stays. Without the options nothing goes. A line of the log says what went.
    """
    caplog.set_level(logging.INFO, "affinity.worker")
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.1)
    async with Client(kept_url) as client, affinity.open_store(kept_url) as store:
        handle = client.conversation(chats, "c")

        async def asked() -> str:
            reply = await handle.ask(UserMessage("hello"), timeout=30)
            return str(reply.text)

        async with memories.open("m", store=store) as state:
            state["n"] = 1
        async with affinity.Worker(app, kept_url, options()):
            assert await asked() == "1"
            await anyio.sleep(1.5)
            assert await asked() == "2"
        async with affinity.Worker(app, kept_url, options(conversation_retention=1.0, record_retention=1.0)):

            async def gone() -> bool:
                try:
                    await client.get_conversation("c")
                except UnknownConversation:
                    return await store.load("m") is None
                return False

            await until(gone)
            assert [row.instance_id async for row in client.list_instances()] == []
            assert await asked() == "1"
    assert any("retention has removed" in record.message for record in caplog.records)
