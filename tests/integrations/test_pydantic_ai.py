"""Agents of pydantic-ai in conversations: what they have done is not done again, and they wait for people."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from difflib import unified_diff
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory, RequestInput
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import CallDeferred, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

import affinity
from affinity import Client, Wake
from affinity.conversation import (
    AgentMessage,
    CustomToolUse,
    DefineOutcome,
    Reply,
    ReplyItem,
    Retracted,
    Streamed,
    ToolConfirmation,
    ToolEnded,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from affinity.errors import InvalidInput, InvalidOptions, RequestNotPending, WakeFailed
from affinity.integrations.pydantic_ai import (
    AffinityDurability,
    AgentState,
    JournalStore,
    StoredConversation,
    StoredMessage,
    agent_conversations,
    agent_run,
    agent_service,
    resolve_token,
)
from affinity.testing import Env
from tests.integrations.pydantic_ai_app import ORDER, REFUND, RETRY, Scripted, Shop, call, conversations
from tests.support.activity_calls import ActivityCalls
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.nightly_cases(
        r"^(?!test_an_approval|test_parallel_tools|test_text_is_shown|test_the_store).*\[postgres"
    ),
]

PATIENCE = 60.0


@asynccontextmanager
async def talk_to(
    server: str | None, kind: affinity.Conversations[Any]
) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
    """A conversation of this kind."""
    app = affinity.App("agents")
    app.include(kind)
    async with Env(app, url=server) as env:
        yield env, env.client.conversation(kind, "c")


async def transcript(talk: affinity.ConversationHandle) -> list[str]:
    """The entries of the agent, in short."""
    forms = []
    for entry in await talk.history(kinds=[AgentMessage, ToolUse, ToolResult, ToolConfirmation, CustomToolUse]):
        match entry.event:
            case AgentMessage():
                forms.append(entry.event.text)
            case ToolUse() | ToolConfirmation() | CustomToolUse():
                forms.append(f"{type(entry.event).__name__} {entry.event.tool_use_id}")
            case ToolResult():
                forms.append(f"ToolResult {entry.event.tool_use_id}{' failed' if entry.event.is_error else ''}")
    return forms


# -- a process that ends


@pytest.mark.slow
@on_all_databases
async def test_a_worker_killed_in_the_second_tool(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """The first tool runs once, and what the model has said is not asked again."""
    first = workers.start("first", "tests.integrations.pydantic_ai_app:app")
    talk = client.conversation(conversations, "c")
    seq = await talk.send(UserMessage("go"))
    charge = await calls.next()
    assert charge["runs"] == "charge"
    await charge.answer()
    assert (await calls.next())["runs"] == "ship"
    first.send(signal.SIGKILL)
    workers.start("second", "tests.integrations.pydantic_ai_app:app")
    ship = await calls.next()
    assert ship["runs"] == "ship"
    await ship.answer()
    assert (await talk.reply(seq, timeout=PATIENCE)).text == "charge 5 done, ship 5 done"
    assert await transcript(talk) == [
        "ToolUse charge:5",
        "ToolResult charge:5",
        "ToolUse ship:5",
        "ToolResult ship:5",
        "charge 5 done, ship 5 done",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_attempt_goes_on_where_the_last_one_ended(server: str | None, stream: bool) -> None:
    shop, is_there = Shop(ORDER, stream=stream), anyio.Event()

    async def hold(tool: str) -> None:
        if tool == "ship" and not is_there.is_set():
            is_there.set()
            await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations()) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await is_there.wait()
        await env.crash()
        reply = await talk.reply(seq)
        assert reply.text.strip() == "charge 5 done, ship 5 done"
        assert shop.effects == {"charge 5": 1, "ship 5": 2}
        assert shop.model.calls == {0: 1, 1: 1, 2: 1}
        said = ["round 0 ", "round 1 "] if stream else []
        texts = [event.text for event in reply.events if isinstance(event, AgentMessage)]
        assert texts[:-1] == said


async def test_errors_of_the_model_do_not_repeat_tools() -> None:
    shop = Shop(ORDER)
    shop.model.failures.update({0: 1, 1: 1, 2: 1})
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, ship 5 done"
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert shop.model.calls == {0: 2, 1: 2, 2: 2}


async def test_the_agent_knows_what_was_said_before(server: str | None) -> None:
    shop = Shop(["first"])
    async with talk_to(server, shop.conversations()) as (env, talk):
        for _ in range(2):
            assert (await talk.ask(UserMessage("go"))).text == "first"
            await env.crash()
        record = await env.client.session_manager.show("c")
        state = AgentState.model_validate_json(record.state)
        assert state.conversation is not None
        assert [message.kind for message in state.conversation.messages] == ["request", "response"] * 2
        assert state.conversation.conversation_id == "c"
        assert state.conversation.usage.requests == 2


# -- tools that run at the same time


async def test_parallel_tools_keep_their_results(server: str | None) -> None:
    """Whichever ends first, and whichever was done when the process ended."""
    amounts = (1, 2, 3)
    shop = Shop([[call("charge", cents=cents) for cents in amounts], "{0}, {1}, {2}"])
    running: list[int] = []
    may_end = anyio.Event()

    async def hold(tool: str) -> None:
        running.append(1)
        if len(running) == 3:
            may_end.set()
        await may_end.wait()
        if len(running) <= 3:
            running.extend([0] * 3)
            return
        if len(running) <= 6:
            await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations()) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await may_end.wait()
            while not await env.client.conversation(shop.conversations(), "c").history(kinds=[UserMessage]):
                await anyio.sleep(0.01)
        await env.crash()
        assert (await talk.reply(seq)).text == "charge 1 done, charge 2 done, charge 3 done"
    assert shop.model.calls == {0: 1, 1: 1}


# -- people


@pytest.mark.parametrize("crash", [None, "before", "behind"])
async def test_an_approval_over_a_crash_runs_its_tool_once(server: str | None, crash: str | None) -> None:
    shop, is_there = Shop(REFUND), anyio.Event()

    async def hold(tool: str) -> None:
        if crash == "behind" and tool == "refund" and not is_there.is_set():
            shop.effects["refund 5"] -= 1  # the process ends before it has an effect
            is_there.set()
            await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations()) as (env, talk):
        reply = await talk.ask(UserMessage("go"))
        assert reply.requires_action
        assert shop.effects == {"charge 5": 1}
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        assert (request.event.tool, request.event.arguments) == ("refund", {"cents": 5})
        if crash == "before":
            await env.crash()
        seq = await talk.answer(request.request_id, allowed=True)
        if crash == "behind":
            with anyio.fail_after(PATIENCE):
                await is_there.wait()
            await env.crash()
        assert (await talk.reply(seq)).text == "charge 5 done, refund 5 done"
        assert shop.effects == {"charge 5": 1, "refund 5": 1}
        assert shop.model.calls == {0: 1, 1: 1, 2: 1}
        assert await transcript(talk) == [
            "ToolUse charge:5",
            "ToolResult charge:5",
            "ToolUse refund:5",
            "ToolConfirmation refund:5",
            "ToolResult refund:5",
            "charge 5 done, refund 5 done",
        ]


async def test_a_refusal_is_read_by_the_model() -> None:
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=False, reason="too much"))
        assert reply.text == "charge 5 done, too much"
        assert shop.effects == {"charge 5": 1}


async def test_a_request_expires() -> None:
    shop = Shop(REFUND, expires_in=60)
    async with talk_to(None, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        await env.advance(61.0)
        assert (await transcript(talk))[-1] == "charge 5 done, no answer came in time"


async def test_arguments_that_json_does_not_have_are_shown_as_text() -> None:
    shop = Shop([[ToolCallPart("weigh", '{"grams": NaN}', tool_call_id="w")], "{0}"])

    @shop.agent.tool_plain(requires_approval=True)
    async def weigh(grams: float) -> str:
        return f"weighed {grams}"

    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        assert request.event.arguments == {"grams": "NaN"}
        assert (await talk.reply(await talk.answer(request.request_id, allowed=True))).text == "weighed nan"


async def test_two_approvals_wait_together(server: str | None) -> None:
    shop = Shop([[call("refund", cents=1), call("refund", cents=2)], "{0}, {1}"])
    async with talk_to(server, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        first, second = await talk.requests()
        assert (await talk.reply(await talk.answer(second.request_id, allowed=False))).requires_action
        await env.crash()
        reply = await talk.reply(await talk.answer(first.request_id, allowed=True))
        assert reply.text.startswith("refund 1 done, ")
        assert shop.effects == {"refund 1": 1}


async def test_messages_that_come_while_it_waits_are_read_next(server: str | None) -> None:
    shop = Shop(REFUND)
    async with talk_to(server, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("first"))
        for text in ("second", "third"):
            assert (await talk.ask(UserMessage(text))).text == ""
        await env.crash()
        (request,) = await talk.requests()
        await talk.reply(await talk.answer(request.request_id, allowed=True))
        (request,) = await talk.requests()
        await talk.reply(await talk.answer(request.request_id, allowed=True))
        record = await env.client.session_manager.show("c")
        state = AgentState.model_validate_json(record.state)
        assert state.conversation is not None
        prompts = [
            part.content
            for message in state.conversation.messages
            for part in message.parts
            if part.part_kind == "user-prompt"
        ]
        assert prompts == ["first", "second\nthird"]
        assert (state.waiting, state.is_paused) == ([], False)
        assert shop.effects == {"charge 5": 2, "refund 5": 2}


async def test_an_interrupt_ends_the_run() -> None:
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("first"))
        await talk.reply(await talk.interrupt())
        assert not await talk.requests()
        assert (await talk.ask(UserMessage("second"))).requires_action
        assert shop.model.calls == {0: 2, 1: 2}


async def test_an_interrupt_stops_the_answer() -> None:
    """Of a run that is under way. Its message is not answered anew, and a message behind the interrupt is."""
    shop, runs = Shop(ORDER), anyio.Event()

    async def hold(tool: str) -> None:
        if tool == "ship":
            runs.set()
            await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(None, shop.conversations()) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await runs.wait()
        await talk.interrupt(cancel_running=True)
        assert (await talk.reply(seq)).text == ""
        await env.run_until_idle()
        assert set(shop.effects.values()) == {1}
        shop.model.script = ["hello again"]
        assert (await talk.ask(UserMessage("again"))).text == "hello again"


async def test_the_client_runs_a_deferred_tool() -> None:
    model = Scripted([[call("look", at="x")], "{0}"])
    agent = Agent(model.model(), name="clerk", capabilities=[AffinityDurability()])

    @agent.tool_plain
    async def look(at: str) -> str:
        raise CallDeferred

    async with talk_to(None, agent_conversations(agent)) as (_, talk):
        for is_error in (False, True):
            await talk.ask(UserMessage("go"))
            (request,) = await talk.requests()
            assert isinstance(request.event, CustomToolUse)
            reply = await talk.reply(await talk.answer(request.request_id, result="seen", is_error=is_error))
            assert reply.text == "seen"


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("outcome", ["answer", "error", "timeout"])
async def test_a_wait_for_an_external_event(server: str | None, crash: bool, outcome: str) -> None:
    """`ask` runs once; its token is answered in another wake."""
    asked: list[str] = []

    async def ask(ctx: RunContext[Any], requests: Any, token: str) -> None:
        asked.append(token)

    shop = Shop(REFUND, requests=False)
    agent = Agent(
        shop.model.model(),
        name="clerk",
        capabilities=[RequestInput(ask=ask, timeout=timedelta(days=1)), AffinityDurability(requests=False)],
    )
    shop.add(agent, "charge")
    shop.add(agent, "refund", requires_approval=True)
    kind = agent_conversations(agent)
    async with talk_to(server, kind) as (env, talk):
        assert (await talk.ask(UserMessage("go"))).requires_action
        if crash:
            await env.crash()
        (token,) = asked
        if outcome == "timeout":
            await env.advance(timedelta(days=1, seconds=1).total_seconds())
        else:
            payload: Any = {"approvals": {"refund:5": True}} if outcome == "answer" else "it is closed"
            await talk.reply(await resolve_token(env.client, kind, token, payload, is_error=outcome == "error"))
        answer = (await transcript(talk))[-1]
        expected = {"answer": "refund 5 done", "error": "it is closed", "timeout": "no answer came in time"}
        assert expected[outcome] in answer
        assert asked == [token]
        assert shop.effects == {"charge 5": 1} | ({"refund 5": 1} if outcome == "answer" else {})
        with pytest.raises(RequestNotPending):
            await resolve_token(env.client, kind, token, {})
        with pytest.raises(InvalidInput):
            await resolve_token(env.client, kind, "nothing", {})


async def test_a_run_that_is_gone_does_not_begin_anew_without_a_message() -> None:
    shop = Shop(REFUND)
    kind = shop.conversations()
    async with talk_to(None, kind) as (env, talk):
        async with kind.open("c", store=env.client.session_store) as state:
            state.is_paused = True
        assert (await talk.ask(DefineOutcome("all is paid back"))).text == ""
        assert shop.model.calls == {}
        assert (await talk.ask(UserMessage("go"))).requires_action


# -- streams


def spoken(items: list[ReplyItem]) -> list[str]:
    """The texts that a reader has seen, each up to where it was retracted."""
    texts, now = [], ""
    for item in items:
        match item:
            case Streamed():
                now += item.text
            case Retracted():
                texts.append(now)
                now = ""
            case _:
                pass
    return [text for text in [*texts, now] if text]


async def test_text_is_shown_as_it_comes_and_no_word_twice(server: str | None) -> None:
    """The model fails in the middle of its text; the next attempt shows what was said before, and all of the text."""
    shop, seen = Shop(ORDER, stream=True), list[ReplyItem]()
    is_shown = anyio.Event()
    shop.model.failures[2] = 1

    async def hold(tool: str) -> None:
        if tool == "ship":
            await is_shown.wait()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations()) as (_, talk):
        with anyio.fail_after(PATIENCE):
            async for item in talk.stream_reply(UserMessage("go")):
                seen.append(item)
                if isinstance(item, ToolStarted) and item.tool == "ship":
                    is_shown.set()
    assert isinstance(seen[-1], Reply)
    whole = "round 0 round 1 charge 5 done, ship 5 done "
    assert all(whole.startswith(text) for text in spoken(seen)), spoken(seen)
    assert spoken(seen)[0].startswith("round 0 round 1 ")
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert [item.tool for item in seen if isinstance(item, ToolStarted)][:2] == ["charge", "ship"]
    assert any(isinstance(item, ToolEnded) for item in seen)


async def test_the_application_s_handler_is_given_the_events() -> None:
    found: list[str] = []

    async def handle(ctx: RunContext[Any], events: Any) -> None:
        async for event in events:
            found.append(event.event_kind)

    shop = Shop(ORDER, stream=True, event_stream_handler=handle)
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
    assert found.count("function_tool_result") == 2
    assert found.count("part_delta") >= 2


# -- what is recorded


async def test_the_names_of_steps_are_pinned() -> None:
    """A run that waits for a person is found by these names in the next release: a change strands it."""
    tools = FunctionToolset[None](id="desk")

    @tools.tool_plain
    async def charge(cents: int) -> str:
        return "charged"

    names = {}
    for stream in (False, True):
        found: list[str] = []
        model = Scripted([[call("charge", cents=1)], "done"])
        capability: AffinityDurability[None] = AffinityDurability(stream=stream)
        agent = Agent(model.model(), name="clerk", toolsets=[tools], capabilities=[capability])
        app = affinity.App("names")
        app.include(kind := agent_conversations(agent))

        @app.middleware
        async def note(step: affinity.MiddlewareCall, next: affinity.Next, found: list[str] = found) -> Any:
            if step.kind == "step":
                found.append(step.name)
            return await next()

        async with Env(app) as env:
            await env.client.conversation(kind, "c").ask(UserMessage("go"))
        names[stream] = found
    assert names[False] == [
        "prompt",
        "clerk__model.request",
        "clerk__function_toolset__desk.call_tool:charge",
        "clerk__model.request",
    ]
    assert names[True] == [name.replace("request", "request_stream") for name in names[False]]


@pytest.mark.parametrize("what", ["no JSON form", "too large"])
async def test_a_result_that_cannot_be_recorded_names_its_tool(what: str) -> None:
    """It is not retried: it would fail again."""
    model, runs = Scripted([[call("look")], "done"]), []
    agent = Agent(model.model(), name="clerk", capabilities=[AffinityDurability()])

    @agent.tool_plain
    async def look() -> Any:
        runs.append(1)
        return object() if what == "no JSON form" else "x" * 3_000_000

    async with talk_to(None, agent_conversations(agent, retry=RETRY)) as (_, talk):
        with pytest.raises(WakeFailed, match="tool 'look' of agent 'clerk' cannot be recorded"):
            await talk.ask(UserMessage("go"))
    assert len(runs) == 1


async def test_a_long_result_is_shortened_in_the_journal_alone() -> None:
    model = Scripted([[call("look")], "done"])
    agent = Agent(model.model(), name="clerk", capabilities=[AffinityDurability()])

    @agent.tool_plain
    async def look() -> str:
        return "x" * 1_500_000

    async with talk_to(None, agent_conversations(agent)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "done"
        (entry,) = await talk.history(kinds=[ToolResult])
        assert isinstance(entry.event, ToolResult)
        assert len(str(entry.event.result)) < 100_000


# -- options of tools


async def test_a_tool_that_runs_once_tells_the_model_that_its_outcome_is_not_known(server: str | None) -> None:
    model, runs, is_there = Scripted([[call("pay")], "{0}"]), list[int](), anyio.Event()
    agent = Agent(model.model(), name="clerk", capabilities=[AffinityDurability()])

    @agent.tool_plain(metadata={"affinity": {"repeat": "never"}})
    async def pay() -> str:
        runs.append(1)
        is_there.set()
        await anyio.sleep_forever()
        return ""

    async with talk_to(server, agent_conversations(agent, retry=RETRY)) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await is_there.wait()
        await env.crash()
        assert "it may have had its effect or not" in (await talk.reply(seq)).text
    assert len(runs) == 1


@pytest.mark.parametrize("end", ["raised", "late"])
async def test_a_step_of_a_tool_is_repeated_by_its_options(end: str) -> None:
    """Within its wake, which has one attempt."""
    shop, runs = Shop([[call("look")], "{0}"]), list[str]()
    options = {"retry": RETRY, "timeout": 0.2}

    @shop.agent.tool_plain(metadata={"affinity": options})
    async def look() -> str:
        runs.append(end)
        if len(runs) < 3:
            if end == "late":
                await anyio.sleep_forever()
            raise ConnectionError("429")
        return "seen"

    kind = agent_conversations(shop.agent, retry=affinity.RetryPolicy(max_attempts=1))
    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "seen"
    assert (len(runs), shop.model.calls) == (3, {0: 1, 1: 1})


async def test_a_tool_may_be_no_step() -> None:
    shop, runs = Shop([[call("now")], "{0}"]), list[int]()

    @shop.agent.tool_plain(metadata={"affinity": False})
    async def now() -> str:
        runs.append(1)
        return "now"

    shop.model.failures[1] = 1
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "now"
    assert len(runs) == 2


async def test_a_tool_with_wrong_options_is_refused() -> None:
    shop = Shop([[call("now")], "{0}"])

    @shop.agent.tool_plain(metadata={"affinity": {"repeats": "never"}})
    async def now() -> str:
        return "now"

    async with talk_to(None, shop.conversations()) as (_, talk):
        with pytest.raises(WakeFailed, match="tool 'now': metadata"):
            await talk.ask(UserMessage("go"))


async def test_tools_that_are_found_at_run_time_are_steps() -> None:
    shop = Scripted([[call("look")], "{0}"])
    runs: list[int] = []

    def look() -> str:
        runs.append(1)
        return "seen"

    toolset = DynamicToolset[None](lambda ctx: FunctionToolset[None]([look]), id="found")
    agent = Agent(shop.model(), name="clerk", toolsets=[toolset], capabilities=[AffinityDurability()])
    shop.failures[1] = 1
    async with talk_to(None, agent_conversations(agent, retry=RETRY)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "seen"
    assert runs == [1]


# -- other agents


class Parcel(BaseModel):
    """A structured output."""

    weight: int


async def test_an_output_that_is_no_text_is_json_and_the_result_for_a_parent() -> None:
    model = Scripted([[ToolCallPart("final_result", {"weight": 3}, tool_call_id="f")]])
    agent = Agent(model.model(), name="clerk", output_type=Parcel, capabilities=[AffinityDurability()])
    async with talk_to(None, agent_conversations(agent)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == '{"weight":3}'
        assert await transcript(talk) == ['{"weight":3}']


async def test_an_agent_that_a_tool_runs_is_part_of_the_tool_s_step() -> None:
    inner = Scripted(["found"])
    helper = Agent(inner.model(), name="helper", capabilities=[AffinityDurability(stream=True)])
    shop = Shop([[call("research")], "{0}"], stream=True)

    @shop.agent.tool_plain
    async def research() -> str:
        return (await helper.run("look")).output

    shop.model.failures[1] = 1
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "found "
    assert inner.calls == {0: 1}


async def test_an_output_function_runs_in_each_attempt_and_usage_within_a_tool_is_of_one() -> None:
    """As does a function for the history."""
    helper = Agent(Scripted(["found"]).model(), name="helper")
    model = Scripted([[call("research")], [ToolCallPart("final_result", {"weight": 3}, tool_call_id="f")]])
    runs, requests, histories = list[int](), list[int](), list[int]()

    def look_at(messages: list[ModelMessage]) -> list[ModelMessage]:
        histories.append(len(messages))
        return messages

    def weigh(weight: int) -> str:
        runs.append(weight)
        return "weighed"

    capabilities: list[Any] = [AffinityDurability(), ProcessHistory(look_at)]
    agent = Agent(model.model(), name="clerk", output_type=weigh, capabilities=capabilities)

    @agent.tool
    async def research(ctx: RunContext[object]) -> str:
        return (await helper.run("look", usage=ctx.usage)).output

    kind = affinity.Conversations(AgentState, kind="weighed")

    @kind.on_wake(retry=RETRY)
    async def respond(wake: Wake, state: AgentState) -> None:
        async with agent_run(wake) as run:
            requests.append((await agent.run(run.prompt)).usage.requests)
        if len(runs) == 1:
            raise ConnectionError

    async with talk_to(None, kind) as (_, talk):
        await talk.ask(UserMessage("go"))
    assert (runs, requests, model.calls) == ([3, 3], [3, 2], {0: 1, 1: 1})
    assert histories == [1, 3, 1, 3]


async def test_dependencies_are_made_for_each_wake() -> None:
    model = Scripted([[call("who")], "{0}"])
    agent = Agent(model.model(), name="clerk", deps_type=str, capabilities=[AffinityDurability()])

    @agent.tool
    async def who(ctx: RunContext[str]) -> str:
        return ctx.deps

    async def deps(wake: Wake) -> str:
        return f"of {wake.conversation_id}"

    async with talk_to(None, agent_conversations(agent, deps=deps)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "of c"


async def test_two_runs_at_the_same_time_do_not_mix_up() -> None:
    """In a handler of the application. The second attempt finds each answer where it belongs."""
    seen: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = next(str(part.content) for part in messages[-1].parts if part.part_kind == "user-prompt")
        seen.append(prompt)
        return ModelResponse(parts=[TextPart(f"re: {prompt}")])

    agent = Agent(FunctionModel(answer), name="clerk", capabilities=[AffinityDurability()])
    kind = affinity.Conversations(AgentState, kind="two")
    failures: list[int] = []

    @kind.on_wake(retry=RETRY)
    async def respond(wake: Wake, state: AgentState) -> None:
        found = ["", ""]

        async def ask(place: int) -> None:
            found[place] = (await agent.run(f"question {place}")).output

        async with agent_run(wake) as run:
            assert run.prompt == "go"
            async with anyio.create_task_group() as tasks:
                for place in range(2):
                    tasks.start_soon(ask, place)
            if not failures:
                failures.append(1)
                raise ConnectionError
            wake.append(AgentMessage(", ".join(found)))

    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "re: question 0, re: question 1"
    assert sorted(seen) == ["question 0", "question 1"]


async def test_a_service_runs_the_agent_in_this_process(url: str) -> None:
    """A question that is repeated has one answer."""
    shop = Shop(ORDER)
    async with agent_service(shop.agent, url) as clerk:
        for _ in range(2):
            reply = await clerk.ask("c", "go", event_id="m-1")
            assert reply.text == "charge 5 done, ship 5 done"
        assert await clerk.talk("c").status() == "idle"
    assert shop.effects == {"charge 5": 1, "ship 5": 1}


async def test_outside_of_a_conversation_the_agent_is_as_it_was() -> None:
    shop = Shop(ORDER)
    assert (await shop.agent.run("go")).output == "charge 5 done, ship 5 done"


# -- the store


async def test_the_store_of_conversations_is_the_journal(server: str | None) -> None:
    """A fork from an earlier entry has the messages up to there."""
    shop = Shop(["hello"])
    kind = affinity.Conversations(AgentState, kind="stored", events=[StoredMessage, StoredConversation])
    counts: list[int] = []

    @kind.on_wake
    async def respond(wake: Wake, state: AgentState) -> None:
        store = JournalStore(wake)
        async with agent_run(wake) as run:
            before = await store.load("x", scope="ann") or Conversation(conversation_id="x")
            counts.append(len(before.messages))
            result = await shop.agent.run(run.prompt, conversation=before)
            entries = await store.save(result, scope="ann")
            assert len(entries) == 2
            assert await store.load("x", scope="bob") is None
            (again,) = await JournalStore(wake).list_conversations(scope="ann")
            assert again.head_id == entries[-1].id
            wake.append(AgentMessage(result.output))

    async with talk_to(server, kind) as (env, talk):
        seq = (await talk.ask(UserMessage("go"))).processed
        await talk.ask(UserMessage("go"))
        await env.crash()
        (last,) = await talk.history(last=1)
        middle = next(entry.seq for entry in await talk.history() if entry.seq > seq and entry.kind == "user.message")
        fork = await talk.fork("f", at=middle - 1)
        await fork.ask(UserMessage("go"))
        await talk.ask(UserMessage("go"))
        assert last.seq > middle
    assert counts == [0, 2, 2, 4]


async def test_a_save_over_another_revision_conflicts() -> None:
    kind = affinity.Conversations(AgentState, kind="stored", events=[StoredMessage, StoredConversation])
    conflicts: list[str] = []

    @kind.on_wake
    async def respond(wake: Wake, state: AgentState) -> None:
        store, other = JournalStore(wake), JournalStore(wake)
        await store.save(Conversation(conversation_id="x"))
        first, second = await store.load("x"), await other.load("x")
        assert first is not None
        assert second is not None
        await store.save(first)
        for conversation in (second, Conversation(conversation_id="x")):
            try:
                await other.save(conversation)
            except ConversationConflict as error:
                conflicts.append(error.conversation_id)
        await other.delete("x")
        assert await store.load("x") is None
        wake.append(AgentMessage("done"))

    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "done"
    assert conflicts == ["x", "x"]


# -- mistakes


def test_an_agent_without_the_capability_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="AffinityDurability"):
        agent_conversations(Agent("test", name="plain"))


def test_an_agent_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="name"):
        Agent("test", capabilities=[AffinityDurability()])


def test_a_missing_extra_is_one_sentence() -> None:
    code = "import sys; sys.modules['pydantic_ai'] = None; import affinity.integrations.pydantic_ai"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert re.search(r"needs pydantic-ai-slim .* pip install 'affinity-workflows\[pydantic-ai\]'", done.stderr)


def test_a_plain_agent_becomes_durable_by_five_lines() -> None:
    """The example that the page shows, beside the plain one; each has a line of its own that describes it."""
    folder = Path(__file__).parents[2] / "examples" / "integrations"
    plain, durable = ((folder / f"clerk_{name}.py").read_text().splitlines()[1:] for name in ("plain", "durable"))
    added = [line for line in unified_diff(plain, durable) if re.match(r"\+(?!\+\+)\s*\S", line)]
    assert len(added) == 5
