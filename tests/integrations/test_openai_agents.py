"""Agents of the OpenAI Agents SDK in conversations: what they have done is not done again, and they wait for people."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from difflib import unified_diff
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelResponse,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolOutputText,
    Usage,
    default_tool_error_function,
    function_tool,
    handoff,
)
from agents.exceptions import InputGuardrailTripwireTriggered
from agents.memory import OpenAIResponsesCompactionSession, SessionSettings
from openai.types.responses import ResponseOutputMessage
from pydantic import BaseModel

import affinity
from affinity import Client, Wake
from affinity.conversation import (
    AgentMessage,
    DefineOutcome,
    JournalEntry,
    Reply,
    ReplyItem,
    Retracted,
    Streamed,
    ToolConfirmation,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from affinity.errors import NotSerializable, WakeFailed
from affinity.integrations.agent_runs import StepOptions
from affinity.integrations.openai_agents import (
    DurableModel,
    OpenAIState,
    StateSession,
    openai_conversations,
    openai_run,
    openai_service,
)
from affinity.testing import Env
from tests.integrations.openai_agents_app import ORDER, REFUND, RETRY, Scripted, Shop, call, conversations, message
from tests.support.activity_calls import ActivityCalls
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.nightly_cases(r"^(?!test_an_approval|test_text_is_shown|test_the_items).*\[postgres"),
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
    for entry in await talk.history(kinds=[AgentMessage, ToolUse, ToolResult, ToolConfirmation]):
        match entry.event:
            case AgentMessage():
                forms.append(entry.event.text)
            case ToolUse() | ToolConfirmation():
                forms.append(f"{type(entry.event).__name__} {entry.event.tool_use_id}")
            case ToolResult():
                forms.append(f"ToolResult {entry.event.tool_use_id}")
    return forms


async def state_of(env: Env) -> OpenAIState:
    """The state that is stored."""
    return OpenAIState.model_validate_json((await env.client.session_manager.show("c")).state)


# -- a process that ends


@pytest.mark.slow
@on_all_databases
async def test_a_worker_killed_in_the_second_tool(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """The first tool runs once, and what the model has said is not asked again."""
    first = workers.start("first", "tests.integrations.openai_agents_app:app")
    talk = client.conversation(conversations, "c")
    seq = await talk.send(UserMessage("go"))
    charge = await calls.next()
    assert charge["runs"] == "charge"
    await charge.answer()
    assert (await calls.next())["runs"] == "ship"
    first.send(signal.SIGKILL)
    workers.start("second", "tests.integrations.openai_agents_app:app")
    ship = await calls.next()
    assert ship["runs"] == "ship"
    await ship.answer()
    assert (await talk.reply(seq, timeout=PATIENCE)).text == "charge 5 done, ship 5 done"
    assert await transcript(talk) == [
        "0 ",
        "ToolUse charge",
        "ToolResult charge",
        "1 ",
        "ToolUse ship",
        "ToolResult ship",
        "charge 5 done, ship 5 done",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_attempt_goes_on_where_the_last_one_ended(server: str | None, stream: bool) -> None:
    shop, is_there = Shop(ORDER), anyio.Event()

    async def hold(tool: str) -> None:
        if tool == "ship" and not is_there.is_set():
            is_there.set()
            await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations(stream=stream)) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await is_there.wait()
        await env.crash()
        assert (await talk.reply(seq)).text == "charge 5 done, ship 5 done"
        assert shop.effects == {"charge 5": 1, "ship 5": 2}
        assert shop.model.calls == {0: 1, 1: 1, 2: 1}


async def test_errors_of_the_model_do_not_repeat_tools() -> None:
    shop = Shop(ORDER)
    shop.model.failures.update({0: 1, 1: 1, 2: 1})
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, ship 5 done"
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert shop.model.calls == {0: 2, 1: 2, 2: 2}


# -- sessions


async def test_the_items_of_a_conversation_are_kept(server: str | None) -> None:
    """Those of a run that waits are not, until it has ended: its next wake makes them again."""
    shop = Shop(REFUND)
    async with talk_to(server, shop.conversations()) as (env, talk):
        for number in range(2):
            await talk.ask(UserMessage(f"question {number}"))
            assert len((await state_of(env)).items) == 8 * number
            await env.crash()
            (request,) = await talk.requests()
            await talk.reply(await talk.answer(request.request_id, allowed=True))
        items = (await state_of(env)).items
    kinds = [str(item.get("role") or item.get("type")) for item in items]
    turn = ["assistant", "function_call", "function_call_output"]
    assert kinds == ["user", *turn, *turn, "assistant"] * 2
    assert [item["content"] for item in items if item.get("role") == "user"] == ["question 0", "question 1"]


async def test_a_session_is_a_list_of_items() -> None:
    state = OpenAIState()
    session = StateSession("s", state)
    added: Any = [{"role": "user", "content": str(number)} for number in range(4)]
    await session.add_items(added)
    assert await session.get_items() == added
    assert await session.get_items(2) == added[2:]
    assert await session.get_items(0) == []
    (await session.get_items())[0].clear()  # type: ignore[union-attr]
    assert state.items == added
    assert await session.pop_item() == added[3]
    for settings in (SessionSettings(limit=1), {"limit": 1}):
        few = StateSession("s", state, session_settings=settings)
        assert await few.get_items() == added[2:3]
        assert await few.get_items(2) == added[1:3]
    assert session.session_settings == SessionSettings()
    with pytest.raises(TypeError, match="limits"):
        StateSession("s", state, session_settings={"limits": 1})
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item(), state.items) == ([], None, [])
    with pytest.raises(NotSerializable, match="session 's'"):
        await session.add_items([object()])  # type: ignore[list-item]


async def test_the_sdk_compacts_a_session(server: str | None) -> None:
    """What the compaction leaves is what commits."""
    shop = Shop(["hello"])
    kind = affinity.Conversations(OpenAIState, kind="compacted")
    short: Any = {"role": "user", "content": "in short"}

    class Responses:
        async def compact(self, **given: Any) -> Any:
            return SimpleNamespace(output=[short], usage=None)

    client: Any = SimpleNamespace(responses=Responses())

    @kind.on_wake
    async def respond(wake: Wake, state: OpenAIState) -> None:
        inner = StateSession(wake.conversation_id, state)
        session = OpenAIResponsesCompactionSession("s", inner, client=client)
        async with openai_run(wake) as run:
            result = await run.run(shop.agent, run.prompt, session=session)
            await session.run_compaction({"force": True, "compaction_mode": "input"})
            wake.append(AgentMessage(str(result.final_output)))

    async with talk_to(server, kind) as (env, talk):
        assert (await talk.ask(UserMessage("go"))).text == "hello"
        assert (await state_of(env)).items == [short]


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
        assert (await talk.ask(UserMessage("go"))).requires_action
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
            "0 ",
            "ToolUse charge",
            "ToolResult charge",
            "1 ",
            "ToolUse refund",
            "ToolConfirmation refund",
            "ToolResult refund",
            "charge 5 done, refund 5 done",
        ]


async def test_a_rule_for_approvals_is_asked_as_the_sdk_asks_it() -> None:
    """The rule sees what the model has written, which is not what the tool gets: then the newest SDK asks a person."""
    shop, paid = Shop([[call("pay", '{"cents": "500"}')], "{0}"]), list[int]()

    async def is_large(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["cents"] == 500)

    @function_tool(needs_approval=is_large)
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    shop.agent.tools.append(pay)
    plain = await Runner.run(shop.agent, "go")
    paid.clear()
    async with talk_to(None, shop.conversations()) as (_, talk):
        reply = await talk.ask(UserMessage("go"))
        assert reply.requires_action == bool(plain.interruptions) == (not paid)
        for request in await talk.requests():
            reply = await talk.reply(await talk.answer(request.request_id, allowed=True))
        assert (reply.text, paid) == ("paid", [500])


async def test_a_refusal_is_read_by_the_model() -> None:
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=False, reason="too much"))
        assert reply.text == "charge 5 done, too much"
        assert shop.effects == {"charge 5": 1}


async def test_a_request_expires() -> None:
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations(expires_in=60)) as (env, talk):
        await talk.ask(UserMessage("go"))
        await env.advance(61.0)
        assert (await transcript(talk))[-1] == "charge 5 done, no answer came in time"


async def test_two_approvals_wait_together(server: str | None) -> None:
    calls = [call("refund", f'{{"cents": {number}}}', f"r{number}") for number in (1, 2)]
    shop = Shop([calls, "{0}, {1}"])
    async with talk_to(server, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        first, second = await talk.requests()
        assert (await talk.reply(await talk.answer(second.request_id, allowed=False, reason="no"))).requires_action
        await env.crash()
        reply = await talk.reply(await talk.answer(first.request_id, allowed=True))
        assert sorted(reply.text.split(", ")) == ["no", "refund 1 done"]
        assert shop.effects == {"refund 1": 1}


async def test_messages_that_come_while_it_waits_are_read_next(server: str | None) -> None:
    shop = Shop(REFUND)
    async with talk_to(server, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("first"))
        for text in ("second", "third"):
            assert (await talk.ask(UserMessage(text))).text == ""
        for _ in range(2):
            (request,) = await talk.requests()
            await talk.reply(await talk.answer(request.request_id, allowed=True))
        state = await state_of(env)
        prompts = [item["content"] for item in state.items if item.get("role") == "user"]
        assert prompts == ["first", "second\nthird"]
        assert (state.waiting, state.is_paused) == ([], False)


async def test_of_a_run_that_an_interrupt_ends_no_item_stays() -> None:
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("first"))
        await talk.interrupt()
        await env.run_until_idle()
        assert await talk.requests() == []
        assert (await transcript(talk))[-1] == "ToolResult refund"
        state = await state_of(env)
        assert (state.items, state.calls, state.is_paused) == ([], [], False)
        assert (await talk.ask(UserMessage("second"))).requires_action
    assert shop.effects == {"charge 5": 2}


async def test_an_interrupt_stops_the_answer(server: str | None) -> None:
    """Of a run that is under way. Its message is not answered anew, and a message behind the interrupt is."""
    shop, runs = Shop(ORDER), anyio.Event()

    async def hold(tool: str) -> None:
        if tool == "ship":
            runs.set()
            await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations()) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await runs.wait()
        await talk.interrupt(cancel_running=True)
        assert (await talk.reply(seq)).text == ""
        await env.run_until_idle()
        assert shop.effects == {"charge 5": 1, "ship 5": 1}
        shop.model.script = ["hello again"]
        assert (await talk.ask(UserMessage("again"))).text == "hello again"
        state = await state_of(env)
        assert [item["content"] for item in state.items if item.get("role") == "user"] == ["again"]


@pytest.mark.parametrize("asks", [False, True])
async def test_messages_of_a_wake_that_fails_for_good_are_answered_once(url: str, asks: bool) -> None:
    """They are tried one by one: the first of these wakes goes on in the run, which has them all."""
    shop = Shop(REFUND if asks else ORDER)
    shop.model.failures[1] = 2
    kind = openai_conversations(shop.agent, retry=affinity.RetryPolicy(max_attempts=2, initial_interval=0.01))
    app = affinity.App("agents")
    app.include(kind)
    async with Client(url) as client:
        talk = client.conversation(kind, "c")
        first, second = [await talk.send(UserMessage(text)) for text in ("a", "b")]
        with anyio.fail_after(PATIENCE):
            async with affinity.Worker(app, url):
                reply = await talk.reply(first)
                assert (await talk.reply(second)).text == ""
                if asks:
                    (request,) = await talk.requests()
                    reply = await talk.reply(await talk.answer(request.request_id, allowed=True))
                assert reply.text == f"charge 5 done, {'refund' if asks else 'ship'} 5 done"
                state = OpenAIState.model_validate_json((await client.session_manager.show("c")).state)
                assert (await talk.ask(UserMessage("c"))).requires_action is asks
    assert [item["content"] for item in state.items if item.get("role") == "user"] == ["a\nb"]
    assert (state.waiting, state.taken, state.is_paused) == ([], [], False)
    assert shop.effects["charge 5"] == 2


async def test_the_journal_has_what_a_wake_did_that_failed_for_good() -> None:
    """Once, when a later wake goes on in its run, also if that one waits for a person."""
    shop = Shop([[call("charge")], [call("refund")], [call("ship")], "{2}"])
    shop.model.failures[1] = 1
    kind = openai_conversations(shop.agent, retry=affinity.RetryPolicy(max_attempts=1))
    async with talk_to(None, kind) as (env, talk):
        with pytest.raises(WakeFailed, match="429"):
            await talk.ask(UserMessage("go"))
        assert await transcript(talk) == []
        assert await talk.resume()
        await env.run_until_idle()
        asked = ["0 ", "ToolUse charge", "ToolResult charge", "1 ", "ToolUse refund", "ToolConfirmation refund"]
        assert await transcript(talk) == asked
        shop.model.failures[3] = 1
        (request,) = await talk.requests()
        await talk.answer(request.request_id, allowed=True)
        await env.run_until_idle()
        assert await talk.resume()
        await env.run_until_idle()
        shipped = ["ToolResult refund", "2 ", "ToolUse ship", "ToolResult ship", "ship 5 done"]
        assert await transcript(talk) == [*asked, *shipped]
    assert shop.effects == {"charge 5": 1, "refund 5": 1, "ship 5": 1}


async def test_a_fork_answers_a_request_by_itself() -> None:
    """What the agent did before is not done again. A fork at an earlier entry knows what ``rebuild`` makes of it."""

    def rebuild(entries: Sequence[JournalEntry]) -> OpenAIState:
        said = [entry.event.text for entry in entries if isinstance(entry.event, UserMessage)]
        return OpenAIState(items=[{"role": "user", "content": text} for text in said])

    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations(rebuild=rebuild)) as (env, talk):
        await talk.ask(UserMessage("go"))
        asked = (await talk.history())[-1].seq
        fork = await talk.fork("fork")
        for each, allowed, text in ((talk, True, "refund 5 done"), (fork, False, "no")):
            (request,) = await each.requests()
            seq = await each.answer(request.request_id, allowed=allowed, reason="" if allowed else "no")
            assert (await each.reply(seq)).text == f"charge 5 done, {text}"
        assert (shop.effects, shop.model.calls) == ({"charge 5": 1, "refund 5": 1}, {0: 1, 1: 1, 2: 2})
        earlier = await talk.fork("earlier", at=asked)
        (request,) = await earlier.requests()
        assert (await earlier.reply(await earlier.answer(request.request_id, allowed=True))).text == ""
        assert shop.effects == {"charge 5": 1, "refund 5": 1}
        shop.model.script = ["new"]
        assert (await earlier.ask(UserMessage("again"))).text == "new"
        state = OpenAIState.model_validate_json((await env.client.session_manager.show("earlier")).state)
        assert [item["content"] for item in state.items if item.get("role") == "user"] == ["go", "again"]


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
    shop, seen = Shop(ORDER), list[ReplyItem]()
    is_shown = anyio.Event()
    shop.model.failures[2] = 1

    async def hold(tool: str) -> None:
        if tool == "ship":
            await is_shown.wait()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations(stream=True)) as (_, talk):
        with anyio.fail_after(PATIENCE):
            async for item in talk.stream_reply(UserMessage("go")):
                seen.append(item)
                if isinstance(item, ToolStarted) and item.tool == "ship":
                    is_shown.set()
    assert isinstance(seen[-1], Reply)
    whole = "0 1 charge 5 done, ship 5 done "
    assert all(whole.startswith(text) for text in spoken(seen)), spoken(seen)
    assert spoken(seen)[0].startswith("0 1 ")
    assert shop.effects == {"charge 5": 1, "ship 5": 1}


async def test_the_sdk_s_own_stream_has_the_recorded_responses() -> None:
    shop, kinds = Shop(ORDER), list[list[str]]()
    kind = affinity.Conversations(OpenAIState, kind="streamed")
    failures: list[int] = []

    @kind.on_wake(retry=RETRY)
    async def respond(wake: Wake, state: OpenAIState) -> None:
        found: list[str] = []
        async with openai_run(wake) as run:
            agent = shop.agent.clone(model=DurableModel(shop.model), model_settings=shop.agent.model_settings, tools=[])
            shop.model.script = ["hello"]
            result = Runner.run_streamed(agent, run.prompt)
            async for event in result.stream_events():
                found.append(event.type)
            kinds.append(found)
            if not failures:
                failures.append(1)
                raise ConnectionError
            wake.append(AgentMessage(str(result.final_output)))

    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "hello"
    assert kinds[0] == kinds[1]
    assert "run_item_stream_event" in kinds[0]
    assert shop.model.calls == {0: 1}


# -- what is recorded


async def test_the_names_of_steps_are_pinned() -> None:
    """A run that waits for a person is found by these names in the next release: a change strands it."""
    shop, found = Shop([[call("charge")], "done"]), list[str]()

    async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    shop.agent.input_guardrails = [InputGuardrail(check, name="polite", run_in_parallel=False)]
    shop.agent.output_guardrails = [OutputGuardrail(check, name="short")]
    app = affinity.App("names")
    app.include(kind := shop.conversations())

    @app.middleware
    async def note(step: affinity.MiddlewareCall, next: affinity.Next) -> Any:
        if step.kind == "step":
            found.append(step.name)
        return await next()

    async with Env(app) as env:
        await env.client.conversation(kind, "c").ask(UserMessage("go"))
    assert found == ["prompt", "guardrail:polite", "model", "tool:charge", "model", "guardrail:short"]


@pytest.mark.parametrize("what", ["no JSON form", "too large"])
async def test_a_result_that_cannot_be_recorded_names_its_tool(what: str) -> None:
    """It is not retried, and the model is not told: it would fail again."""
    shop, runs = Shop([[call("look", "{}")], "done"]), list[int]()

    @function_tool
    async def look() -> Any:
        runs.append(1)
        return [object()] if what == "no JSON form" else "x" * 3_000_000

    shop.agent.tools.append(look)
    async with talk_to(None, shop.conversations()) as (_, talk):
        with pytest.raises(WakeFailed, match="the result of tool 'look' cannot be recorded"):
            await talk.ask(UserMessage("go"))
    assert (len(runs), shop.model.calls) == (1, {0: 1})


class Parcel(BaseModel):
    """What a tool may return."""

    weight: int


PART = ToolOutputText(text="part")


@pytest.mark.parametrize("result", ["text", 7, {"a": [1]}, None, Parcel(weight=3), PART, [PART, PART], (PART, PART)])
async def test_the_model_reads_a_recorded_result_as_it_reads_another_one(result: Any) -> None:
    shop, outputs = Shop([[call("look", "{}")], "{0}"]), list[str]()

    @function_tool
    async def look() -> Any:
        return result

    shop.agent.tools.append(look)
    outputs.append(str((await Runner.run(shop.agent, "go")).final_output))
    shop.model.failures[1] = 1
    async with talk_to(None, shop.conversations()) as (_, talk):
        outputs.append((await talk.ask(UserMessage("go"))).text)
    assert outputs[0] == outputs[1]


async def test_the_model_reads_a_recorded_result_by_its_schema() -> None:
    shop, outputs = Shop([[call("look", "{}")], "{0}"]), list[str]()

    @function_tool(output_type=Parcel)
    async def look() -> Parcel:
        return Parcel(weight=3)

    shop.agent.tools.append(look)
    outputs.append(str((await Runner.run(shop.agent, "go")).final_output))
    async with talk_to(None, shop.conversations()) as (_, talk):
        outputs.append((await talk.ask(UserMessage("go"))).text)
    assert outputs == ['{"weight":3}', '{"weight":3}']


@pytest.mark.parametrize("end", ["timeout", "failure"])
async def test_an_error_of_a_tool_with_a_schema_needs_no_schema(end: str) -> None:
    shop = Shop([[call("look", "{}")], [call("refund")], "{0}"])

    @function_tool(output_type=Parcel, timeout=0.01 if end == "timeout" else None)
    async def look() -> Parcel:
        if end == "timeout":
            await anyio.sleep_forever()
        raise ConnectionError

    shop.agent.tools.append(look)
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=True))
    said = {"timeout": "Tool 'look' timed out after 0.01 seconds.", "failure": "An error occurred while running"}
    assert reply.text.startswith(said[end])


@pytest.mark.parametrize("end", ["timeout", "cancelled"])
async def test_a_tool_that_has_no_result_in_time_or_was_cancelled_is_not_called_again(end: str) -> None:
    """The model reads what the SDK says of it, in each wake the same."""
    shop, calls = Shop([[call("look", "{}")], [call("refund")], "{0}, {1}"]), list[str]()

    @function_tool(timeout=0.01 if end == "timeout" else None)
    async def look() -> str:
        calls.append(end)
        if end == "timeout":
            await anyio.sleep_forever()
        raise asyncio.CancelledError

    shop.agent.tools.append(look)
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=True))
    said = {"timeout": "Tool 'look' timed out after 0.01 seconds.", "cancelled": "An error occurred while running"}
    assert reply.text.startswith(said[end])
    assert (calls, shop.model.calls) == ([end], {0: 1, 1: 1, 2: 1})


@pytest.mark.parametrize("end", ["its error is a result", "its error is raised", "late"])
async def test_a_step_of_a_tool_is_repeated_by_its_options(end: str) -> None:
    """But not if the SDK makes of an error a text for the model, as it does without ``failure_error_function``."""
    calls: list[str] = []

    @function_tool(failure_error_function=None if end == "its error is raised" else default_tool_error_function)
    async def look() -> str:
        calls.append(end)
        if len(calls) < 3:
            if end == "late":
                await anyio.sleep_forever()
            raise ConnectionError("429")
        return "seen"

    shop = Shop([[call("look", "{}")], "{0}"])
    shop.agent.tools = [look]
    steps: dict[str, StepOptions] = {"look": {"retry": RETRY, "timeout": 0.2}}
    kind = openai_conversations(shop.agent, steps=steps, retry=affinity.RetryPolicy(max_attempts=1))
    async with talk_to(None, kind) as (_, talk):
        text = (await talk.ask(UserMessage("go"))).text
    assert len(calls) == (1 if end == "its error is a result" else 3)
    assert text.startswith("An error occurred" if end == "its error is a result" else "seen")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_arguments_that_json_does_not_have_are_shown_as_text(number: str) -> None:
    shop = Shop([[call("refund", f'{{"cents": {number}}}')], "{0}"])
    async with talk_to(None, shop.conversations()) as (_, talk):
        await talk.ask(UserMessage("go"))
        (use,) = await talk.history(kinds=[ToolUse])
        assert isinstance(use.event, ToolUse)
        assert use.event.arguments == {"cents": "Infinity" if number == "1e999" else number}


async def test_a_response_that_the_library_does_not_know_yet_is_kept_as_it_is() -> None:
    """The library does not check what the API answers. The recorded answer is not checked either."""
    newer: Any = ResponseOutputMessage.construct(type="message", role="assistant", content=[], status="new")
    shop, found, failures = Shop(["hello"]), list[Any](), list[int]()
    kind = affinity.Conversations(OpenAIState, kind="newer")

    @kind.on_wake(retry=RETRY)
    async def respond(wake: Wake, state: OpenAIState) -> None:
        async with openai_run(wake) as run:
            result = await run.run(shop.agent, run.prompt)
            found.append(result.raw_responses[0].output[0])
            if not failures:
                failures.append(1)
                raise ConnectionError

    async def answer(*given: Any, **options: Any) -> ModelResponse:
        return ModelResponse(output=[newer], usage=Usage(), response_id=None)

    shop.model.get_response = answer  # type: ignore[method-assign]
    async with talk_to(None, kind) as (_, talk):
        await talk.ask(UserMessage("go"))
    assert found == [newer, newer]


async def test_a_tool_that_runs_once_tells_the_model_that_its_outcome_is_not_known(server: str | None) -> None:
    shop, is_there = Shop([[call("charge")], "{0}"]), anyio.Event()

    async def hold(tool: str) -> None:
        is_there.set()
        await anyio.sleep_forever()

    shop.interrupt = hold
    async with talk_to(server, shop.conversations(steps={"charge": {"repeat": "never"}})) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await is_there.wait()
        await env.crash()
        assert "it may have had its effect or not" in (await talk.reply(seq)).text
    assert shop.effects == {"charge 5": 1}


# -- guardrails, handoffs, other agents


@pytest.mark.parametrize(("info", "recorded"), [("rude", "rude"), (Parcel(weight=3), "{'weight': 3}")])
async def test_a_guardrail_runs_once_and_its_tripwire_is_recorded(info: Any, recorded: str) -> None:
    shop, runs, failures = Shop(["hello"]), list[str](), list[int]()

    async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        runs.append(agent.name)
        return GuardrailFunctionOutput(output_info=info, tripwire_triggered=True)

    shop.agent.input_guardrails = [InputGuardrail(check, run_in_parallel=False)]
    kind = affinity.Conversations(OpenAIState, kind="guarded")

    @kind.on_wake(retry=RETRY)
    async def respond(wake: Wake, state: OpenAIState) -> None:
        async with openai_run(wake) as run:
            try:
                await run.run(shop.agent, run.prompt)
            except InputGuardrailTripwireTriggered as error:
                wake.append(AgentMessage(str(error.guardrail_result.output.output_info)))
            if not failures:
                failures.append(1)
                raise ConnectionError

    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == recorded
    assert (runs, shop.model.calls) == (["clerk"], {})


@pytest.mark.parametrize("form", ["agent", "handoff"])
async def test_an_agent_that_takes_over_is_durable_too(form: str) -> None:
    """Also one that hands back to the first."""
    other = Shop([])
    other.agent.name = "cashier"
    name = "transfer_to_cashier"
    shop = Shop([[call(name, "{}")], "unused"])
    shop.agent.handoffs = [other.agent if form == "agent" else handoff(other.agent)]
    other.agent.handoffs = [shop.agent]
    other.model.script = [[call("before")], [call("refund")], "{1}"]
    async with talk_to(None, shop.conversations()) as (env, talk):
        assert (await talk.ask(UserMessage("go"))).requires_action
        await env.crash()
        (request,) = await talk.requests()
        assert (await talk.reply(await talk.answer(request.request_id, allowed=True))).text == "refund 5 done"
        calls = ["ToolUse refund", "ToolConfirmation refund", "ToolResult refund"]
        assert await transcript(talk) == ["0 ", "1 ", *calls, "refund 5 done"]
    assert (shop.model.calls, other.model.calls, other.effects) == ({0: 1}, {1: 1, 2: 1}, {"refund 5": 1})


async def test_a_result_names_the_agents_themselves() -> None:
    """So the application may compare them, and run the last one next, as without a conversation."""
    other = Shop([])
    shop, found = Shop([[call("transfer_to_cashier", "{}")], "unused"]), list[Any]()
    other.agent.name = "cashier"
    shop.agent.handoffs = [other.agent]
    kind, nested = affinity.Conversations(OpenAIState, kind="compared"), RunConfig(nest_handoff_history=True)

    def let_it_charge(cents: int) -> None:
        outputs: Any = iter([[call("charge", f'{{"cents": {cents}}}')], [message(f"charged {cents}")]])

        async def answer(*given: Any, **options: Any) -> ModelResponse:
            return ModelResponse(output=next(outputs), usage=Usage(), response_id=None)

        other.model.get_response = answer  # type: ignore[method-assign]

    @kind.on_wake(retry=RETRY)
    async def respond(wake: Wake, state: OpenAIState) -> None:
        async with openai_run(wake) as run:
            let_it_charge(5)
            first = await run.run(shop.agent, "first", run_config=nested)
            let_it_charge(6)
            second = await run.run(first.last_agent, "second")
            found.extend([first, second])
            wake.append(AgentMessage(str(second.final_output)))

    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charged 6"
    first, second = found
    let_it_charge(5)
    plain = await Runner.run(shop.agent, "first", run_config=nested)
    assert len(first.to_input_list()) == len(plain.to_input_list())
    first.release_agents()
    assert first.last_agent is second.last_agent is other.agent
    items = {item.type: item for item in first.new_items}
    assert items["handoff_call_item"].agent is shop.agent
    handed = items["handoff_output_item"]
    assert handed.source_agent is shop.agent
    assert handed.target_agent is items["message_output_item"].agent is other.agent
    assert other.effects == {"charge 5": 2, "charge 6": 1}


async def test_an_agent_that_is_a_tool_is_one_step() -> None:
    inner, shop = Shop([[call("charge")], "{0}"]), Shop([[call("research", '{"input": "x"}')], "{0}"])
    shop.agent.tools.append(inner.agent.as_tool("research", "Finds it."))
    shop.model.failures[1] = 1
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done"
    assert (inner.model.calls, inner.effects) == ({0: 1, 1: 1}, {"charge 5": 1})


async def test_an_agent_that_is_a_tool_cannot_ask_for_an_approval() -> None:
    inner, shop = Shop([[call("refund")], "{0}"]), Shop([[call("research", '{"input": "x"}')], "{0}"])
    shop.agent.tools.append(inner.agent.as_tool("research", "Finds it."))
    async with talk_to(None, shop.conversations()) as (_, talk):
        with pytest.raises(WakeFailed, match="make it a handoff"):
            await talk.ask(UserMessage("go"))


async def test_models_of_a_provider_are_durable() -> None:
    shop = Shop(ORDER)

    class Provider:
        def get_model(self, name: str | None) -> Scripted:
            assert name == "scripted"
            return shop.model

        async def aclose(self) -> None:
            pass

    agent = Agent(name="clerk", model="scripted", tools=shop.agent.tools)
    shop.model.failures[2] = 1
    config = RunConfig(model_provider=Provider())  # type: ignore[arg-type]
    async with talk_to(None, openai_conversations(agent, run_config=config, retry=RETRY)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, ship 5 done"
    assert shop.model.calls == {0: 1, 1: 1, 2: 2}


async def test_the_context_is_made_for_each_wake() -> None:
    shop = Shop([[call("who", "{}")], "{0}"])

    async def context(wake: Wake) -> str:
        return f"of {wake.conversation_id}"

    async def name(wrapper: RunContextWrapper[str]) -> str:
        return wrapper.context

    shop.agent.tools = [function_tool(name, name_override="who")]
    async with talk_to(None, shop.conversations(context=context)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "of c"


async def test_an_output_that_is_no_text_is_json() -> None:
    shop = Shop(['{{"weight": 3}}'])
    shop.agent.output_type = Parcel
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == '{"weight":3}'


async def test_a_service_runs_the_agent_in_this_process(url: str) -> None:
    """A question that is repeated has one answer. Outside of a conversation, the agent is as it was."""
    shop = Shop(ORDER)
    async with openai_service(shop.agent, url) as clerk:
        for _ in range(2):
            reply = await clerk.ask("c", "go", event_id="m-1")
            assert reply.text == "charge 5 done, ship 5 done"
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert (await Runner.run(shop.agent, "go")).final_output == "charge 5 done, ship 5 done"


def test_a_missing_extra_is_one_sentence() -> None:
    code = "import sys; sys.modules['agents'] = None; import affinity.integrations.openai_agents"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert re.search(r"needs openai-agents .* pip install 'affinity-workflows\[openai-agents\]'", done.stderr)


def test_a_plain_agent_becomes_durable_by_five_lines() -> None:
    """The example that the page shows, beside the plain one; each has a line of its own that describes it."""
    folder = Path(__file__).parents[2] / "examples" / "integrations"
    plain, durable = ((folder / f"agents_{name}.py").read_text().splitlines()[1:] for name in ("plain", "durable"))
    added = [line for line in unified_diff(plain, durable) if re.match(r"\+(?!\+\+)\s*\S", line)]
    assert len(added) == 5
