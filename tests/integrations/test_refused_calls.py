"""Calls of tools in the journals of agents of each kind: each has one result behind it, also if no tool has run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

import affinity
from affinity import Conversations, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import ToolResult, ToolUse, UserMessage
from affinity.integrations.pydantic_ai import AffinityDurability, agent_conversations
from affinity.testing import Env
from tests.integrations import openai_agents_app, pydantic_ai_app

pytestmark = pytest.mark.anyio

EXPIRY: Final = 60.0


class Nothing(BaseModel):
    """The state of a conversation with a loop."""


def of_openai() -> Conversations[Any]:
    """An agent of the OpenAI Agents SDK."""
    calls = [openai_agents_app.call("refund", f'{{"cents": {cents}}}', f"r{cents}") for cents in (1, 2)]
    shop = openai_agents_app.Shop([[openai_agents_app.call("charge"), *calls], "done"])
    return shop.conversations(expires_in=EXPIRY)


def of_pydantic_ai() -> Conversations[Any]:
    """An agent of pydantic-ai."""
    calls = [pydantic_ai_app.call("refund", cents=cents) for cents in (1, 2)]
    shop = pydantic_ai_app.Shop([[pydantic_ai_app.call("charge", cents=5), *calls], "done"], expires_in=EXPIRY)
    return shop.conversations()


def of_run_loop() -> Conversations[Any]:
    """An agent of `run_loop`."""
    kind = Conversations(Nothing, kind="loop")

    @tool
    async def charge(cents: int) -> str:
        return f"charge {cents} done"

    @tool(confirm=True, confirm_within=EXPIRY)
    async def refund(cents: int) -> str:
        return f"refund {cents} done"

    async def model(request: ModelRequest) -> ModelReply:
        if any(isinstance(event, ToolResult) for event in request.events):
            return ModelReply(content="done")
        refunds = [ToolCall(f"r{cents}", "refund", {"cents": cents}) for cents in (1, 2)]
        return ModelReply(calls=[ToolCall("c", "charge", {"cents": 5}), *refunds])

    @kind.on_wake
    async def respond(wake: Wake, state: Nothing) -> None:
        await run_loop(wake, model=model, tools=[charge, refund], while_waiting="queue")

    return kind


ALLOWED: Final = {"allowed": True}
REFUSED: Final = {"allowed": False}
TOO_MUCH: Final = {"allowed": False, "reason": "too much"}


def cents_of(event: Any) -> int:
    """The argument of a call."""
    return int(event.arguments["cents"])


@pytest.mark.slow_cases(r"\[(allowed|one refused|expired|interrupted)-")
@pytest.mark.parametrize("make", [of_openai, of_pydantic_ai, of_run_loop])
@pytest.mark.parametrize(
    ("answers", "end", "results"),
    [
        pytest.param([ALLOWED, ALLOWED], "", ["refund 1 done", "refund 2 done"], id="allowed"),
        pytest.param([REFUSED, TOO_MUCH], "", ["refused", "too much"], id="refused"),
        pytest.param([TOO_MUCH, ALLOWED], "", ["too much", "refund 2 done"], id="one refused"),
        pytest.param([REFUSED], "expiry", ["refused", "refused"], id="expired"),
        pytest.param([], "interrupt", ["error", "error"], id="interrupted"),
        # a loop runs what is allowed before all is answered
        pytest.param([ALLOWED], "interrupt", [None, "error"], id="one interrupted"),
    ],
)
async def test_each_call_has_one_result(
    make: Callable[[], Conversations[Any]], answers: Sequence[Any], end: str, results: Sequence[str | None]
) -> None:
    app = affinity.App("agents")
    app.include(kind := make())
    async with Env(app) as env:
        talk = env.client.conversation(kind, "c")
        await talk.ask(UserMessage("go"))
        requests = sorted(await talk.requests(), key=lambda request: cents_of(request.event))
        for request, answer in zip(requests, answers, strict=False):
            await talk.reply(await talk.answer(request.request_id, **answer))
            await env.crash()
        if end == "expiry":
            await env.advance(EXPIRY + 1)
        elif end == "interrupt":
            await talk.reply(await talk.interrupt())
        await env.run_until_idle()
        assert not await talk.requests()
        entries = [entry.event for entry in await talk.history(kinds=[ToolUse, ToolResult])]
    calls = {event.tool_use_id: event for event in entries if isinstance(event, ToolUse)}
    found = {event.tool_use_id: event for event in entries if isinstance(event, ToolResult)}
    assert len(entries) == 6, entries
    assert calls.keys() == found.keys()
    assert max(map(entries.index, calls.values())) < min(map(entries.index, found.values()))
    refunds = sorted((use for use in calls.values() if use.tool == "refund"), key=cents_of)
    for use, expected in zip(refunds, results, strict=True):
        result = found[use.tool_use_id]
        assert expected is None or result.is_error == (" done" not in expected)
        match result.result:
            case {"error": {"kind": "refused", "message": str(message)}} if expected not in (None, "error"):
                assert expected in (message, "refused")
            case {"error": {"kind": "refused" | "outcome_unknown"}}:
                assert expected in (None, "error")
            case _:
                assert expected in (None, result.result)


async def test_a_tool_that_is_no_step_has_a_result_too() -> None:
    """And a call whose arguments do not fit: the model reads why, and calls again."""
    script: pydantic_ai_app.Script = [[pydantic_ai_app.call("charge", cents="many")]]
    script += [[pydantic_ai_app.call("charge", cents=5)], "done"]
    agent = Agent(pydantic_ai_app.Scripted(script).model(), name="clerk", capabilities=[AffinityDurability()])

    @agent.tool_plain(metadata={"affinity": False})
    async def charge(cents: int) -> str:
        return f"charge {cents} done"

    app = affinity.App("agents")
    app.include(kind := agent_conversations(agent))
    async with Env(app) as env:
        talk = env.client.conversation(kind, "c")
        assert (await talk.ask(UserMessage("go"))).text == "done"
        entries = [entry.event for entry in await talk.history(kinds=[ToolUse, ToolResult])]
    assert [(type(each), getattr(each, "tool_use_id", "")) for each in entries] == [
        (ToolUse, "charge:many"),
        (ToolResult, "charge:many"),
        (ToolUse, "charge:5"),
        (ToolResult, "charge:5"),
    ]
    assert [each.is_error for each in entries if isinstance(each, ToolResult)] == [True, False]
