"""A run of an agent with two tools of which one is confirmed, with a crash at each commit."""

from __future__ import annotations

import pytest

import affinity
from affinity.conversation import (
    AgentMessage,
    JournalEntry,
    ReplyItem,
    Retracted,
    Streamed,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserMessage,
)
from affinity.testing import Env, crash_matrix
from tests.integrations.adk.shop import REFUND, Shop, app_of, matrix_app, matrix_conversations

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.nightly_cases(r"new"),
    pytest.mark.timeout(600),
    pytest.mark.parametrize("any_url", ["sqlite", "new"], indirect=True),
]

WHOLE = "0 1 "
"""The streamed text of the wake that asks a person."""


@pytest.fixture
def url(any_url: str) -> str | None:
    """Of a PostgreSQL server; None: an SQLite file."""
    return None if any_url.startswith("sqlite") else any_url


async def work(env: Env) -> tuple[list[JournalEntry], list[ReplyItem]]:
    """Ask, read the stream, and allow what has to be allowed."""
    talk = env.client.conversation(matrix_conversations, "c")
    items: list[ReplyItem] = [item async for item in talk.stream_reply(UserMessage("go"), event_id="ask")]
    (request,) = await talk.requests()
    seq = await talk.answer(request.request_id, allowed=True, event_id="answer")
    assert (await talk.reply(seq)).text == "charge 5 done, refund 5 done"
    return list(await talk.history(kinds=[AgentMessage, ToolUse, ToolConfirmation, ToolResult])), items


def check_transcript(entries: list[JournalEntry], items: list[ReplyItem]) -> None:
    """Each entry is there once, in order, and a reader has seen no word twice."""
    assert [entry.kind for entry in entries] == [
        "agent.message",
        "agent.tool_use",
        "agent.tool_result",
        "agent.message",
        "agent.tool_use",
        "agent.tool_confirmation",
        "agent.tool_result",
        "agent.message",
    ]
    said = ""
    for item in items:
        said = f"{said}{item.text}" if isinstance(item, Streamed) else "" if isinstance(item, Retracted) else said
        assert WHOLE.startswith(said), said


async def test_each_effect_is_there_once(url: str | None) -> None:
    """But of a tool that ran when its process ended, before its result was recorded: it runs again."""
    shops: list[Shop] = []

    def make_app() -> affinity.App:
        shops.append(Shop(REFUND))
        return app_of(shops[-1].conversations(stream=True))

    async def check(env: Env, found: tuple[list[JournalEntry], list[ReplyItem]]) -> None:
        check_transcript(*found)
        effects, calls = shops[-1].effects, shops[-1].model.calls
        assert set(effects) == {"charge 5", "refund 5"}
        assert set(calls) == {0, 1, 2}
        assert sum(effects.values()) + sum(calls.values()) <= 6, (effects, calls)  # one was cut off

    matrix = await crash_matrix(make_app, work, check, url=url, workers=2, kills=0)
    assert matrix.commits >= 8


async def test_processes_that_are_killed(url: str | None) -> None:
    async def check(env: Env, found: tuple[list[JournalEntry], list[ReplyItem]]) -> None:
        check_transcript(*found)

    await crash_matrix(matrix_app, work, check, url=url, workers=2, kills=3)
