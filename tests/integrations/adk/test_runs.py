"""Agents of ADK in conversations: what they have done is not done again, and they wait for people."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from difflib import unified_diff
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth import AuthConfig
from google.adk.auth.auth_schemes import CustomAuthScheme
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

import affinity
from affinity import Client
from affinity.conversation import (
    AgentMessage,
    CustomToolUse,
    ReplyItem,
    Retracted,
    Streamed,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserMessage,
)
from affinity.errors import WakeFailed
from affinity.integrations.adk import ADKState, adk_conversations, adk_run, adk_service
from affinity.integrations.agent_runs import StepOptions
from affinity.testing import Env
from tests.integrations.adk.shop import ORDER, REFUND, RETRY, Scripted, Shop, app_of, conversations
from tests.support.activity_calls import ActivityCalls
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

pytestmark = [pytest.mark.anyio, pytest.mark.nightly_cases(r"^(?!test_a_confirmation_is).*\[postgres")]

PATIENCE = 60.0


@asynccontextmanager
async def talk_to(
    server: str | None, kind: affinity.Conversations[Any]
) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
    """A conversation of this kind."""
    async with Env(app_of(kind), url=server) as env:
        yield env, env.client.conversation(kind, "c")


async def transcript(talk: affinity.ConversationHandle) -> list[str]:
    """The entries of the agent, in short; a call by the name of its tool."""
    forms, names = [], {}
    for entry in await talk.history(kinds=[AgentMessage, ToolUse, ToolResult, ToolConfirmation, CustomToolUse]):
        match entry.event:
            case AgentMessage():
                forms.append(entry.event.text)
            case ToolUse():
                names[entry.event.tool_use_id] = entry.event.tool
                forms.append(f"use {entry.event.tool}")
            case ToolConfirmation() | CustomToolUse():
                forms.append(f"ask {names[entry.event.tool_use_id]}")
            case ToolResult():
                forms.append(f"{'error' if entry.event.is_error else 'result'} {names[entry.event.tool_use_id]}")
    return forms


async def state_of(env: Env) -> ADKState:
    """The state that is stored."""
    return ADKState.model_validate_json((await env.client.session_manager.show("c")).state)


# -- a process that ends


@pytest.mark.slow
@on_all_databases
async def test_a_worker_killed_in_the_second_tool(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """The first tool runs once, and what the model has said is not asked again."""
    first = workers.start("first", "tests.integrations.adk.shop:app")
    talk = client.conversation(conversations, "c")
    seq = await talk.send(UserMessage("go"))
    charge = await calls.next()
    assert charge["runs"] == "charge"
    await charge.answer()
    assert (await calls.next())["runs"] == "ship"
    first.send(signal.SIGKILL)
    workers.start("second", "tests.integrations.adk.shop:app")
    ship = await calls.next()
    assert ship["runs"] == "ship"
    await ship.answer()
    assert (await talk.reply(seq, timeout=PATIENCE)).text == "charge 5 done, ship 5 done"
    expected = ["0 ", "use charge", "result charge", "1 ", "use ship", "result ship", "charge 5 done, ship 5 done"]
    assert await transcript(talk) == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_an_attempt_goes_on_where_the_last_one_ended(server: str | None, stream: bool) -> None:
    """What an attempt has streamed that failed is retracted, and said again."""
    shop = Shop(ORDER)
    shop.model.failures[2] = 2
    async with talk_to(server, shop.conversations(stream=stream)) as (env, talk):
        items: list[ReplyItem] = [item async for item in talk.stream_reply(UserMessage("go"))]
        expected = ["0 ", "use charge", "result charge", "1 ", "use ship", "result ship", "charge 5 done, ship 5 done"]
        assert await transcript(talk) == expected
        state = await state_of(env)
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert shop.model.calls == {0: 1, 1: 1, 2: 3}
    assert state.values == {"charge": 5, "ship": 5}
    assert [event["author"] for event in state.events] == ["user", *["clerk"] * 5]
    said = ""
    for item in items:
        said = f"{said}{item.text}" if isinstance(item, Streamed) else "" if isinstance(item, Retracted) else said
        assert "0 1 charge 5 done, ship 5 done ".startswith(said), said
    assert any(isinstance(item, Streamed) for item in items) is stream


async def test_a_tool_that_must_not_run_again(server: str | None) -> None:
    """The model is told that the outcome is not known, and the journal has it as an error."""
    shop, runs = Shop(ORDER), anyio.Event()

    async def hold(tool: str) -> None:
        if tool == "ship":
            runs.set()
            await anyio.sleep_forever()

    shop.interrupt = hold
    kind = shop.conversations(steps={"ship": {"repeat": "never"}})
    async with talk_to(server, kind) as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await runs.wait()
        await env.crash()
        text = (await talk.reply(seq)).text
        assert await transcript(talk) == [
            *("0 ", "use charge", "result charge", "1 ", "use ship", "error ship"),
            text,
        ]
    assert "The process ended while 'ship' ran" in text
    assert shop.effects == {"charge 5": 1, "ship 5": 1}


@pytest.mark.parametrize(
    ("result", "error"),
    [(object(), "NotSerializable"), ("x" * 2 * 1024 * 1024, "PayloadTooLarge")],
    ids=["odd", "long"],
)
async def test_a_result_that_cannot_be_recorded_is_an_error_that_names_the_tool(result: object, error: str) -> None:
    shop = Shop([["odd"], "{0}"])

    async def odd(cents: int) -> object:
        """Be odd."""
        return result

    shop.agent.tools = [odd]
    async with talk_to(None, shop.conversations()) as (_, talk):
        with pytest.raises(WakeFailed, match=f"{error}: the result of tool 'odd' cannot be recorded"):
            await talk.ask(UserMessage("go"))
    assert shop.model.calls == {0: 1}


async def test_the_step_of_a_tool_has_its_options() -> None:
    """It is repeated within its wake, which has one attempt."""
    shop, begun = Shop([["late"], "{0}"]), list[int]()

    async def late(cents: int) -> str:
        """Be late."""
        begun.append(cents)
        await anyio.sleep(3600 if len(begun) < 3 else 0)
        return "there"

    shop.agent.tools = [late]
    steps: dict[str, StepOptions] = {"late": {"timeout": 0.05, "retry": RETRY}}
    kind = adk_conversations(shop.agent, steps=steps, retry=affinity.RetryPolicy(max_attempts=1))
    async with talk_to(None, kind) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "there"
    assert len(begun) == 3


# -- people


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_confirmation_is_a_request(server: str | None, allowed: bool) -> None:
    """No worker runs while it waits, and nothing is done twice. What is refused does not run."""
    shop = Shop(REFUND)
    kind = shop.conversations()
    async with talk_to(server, kind) as (env, talk):
        assert (await talk.ask(UserMessage("go"))).stop_reason == "requires_action"
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        assert (request.event.tool, request.event.arguments, request.event.summary) == ("refund", {"cents": 5}, "")
        assert (await state_of(env)).events == []
        await env.crash()
        seq = await talk.answer(request.request_id, allowed=allowed, reason="" if allowed else "too much")
        reply = await talk.reply(seq)
        end = "result refund" if allowed else "error refund"
        done = "refund 5 done" if allowed else "{'error': 'This tool call is rejected.'}"
        assert reply.text == f"charge 5 done, {done}"
        asked = ["0 ", "use charge", "result charge", "1 ", "use refund", "ask refund"]
        assert await transcript(talk) == [*asked, end, reply.text]
        assert "ask" not in (await state_of(env)).calls
    assert shop.effects == {"charge 5": 1, **({"refund 5": 1} if allowed else {})}
    assert shop.model.calls == {0: 1, 1: 1, 2: 1}


async def test_a_confirmation_that_nobody_gives_counts_as_refused() -> None:
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations(expires_in=3600)) as (env, talk):
        await talk.ask(UserMessage("go"))
        await env.advance(3601)
        await env.run_until_idle()
        assert (await transcript(talk))[-2:] == [
            "error refund",
            "charge 5 done, {'error': 'This tool call is rejected.'}",
        ]
    assert shop.effects == {"charge 5": 1}


async def test_a_tool_asks_by_itself(server: str | None) -> None:
    """As ADK's ``request_confirmation`` has it: it runs again with the answer. Its hint is for the person."""
    shop, seen = Shop([["pay"], "{0}"]), list[bool]()

    async def pay(cents: int, tool_context: ToolContext) -> dict[str, Any]:
        """Pay."""
        confirmation = tool_context.tool_confirmation
        seen.append(confirmation is not None and confirmation.confirmed)
        if confirmation is None:
            tool_context.request_confirmation(hint="5 cents are a lot")
            return {"status": "asked"}
        return {"result": "paid" if confirmation.confirmed else "not paid"}

    shop.agent.tools = [pay]
    async with talk_to(server, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        assert request.event.summary == "5 cents are a lot"
        await env.crash()
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq)).text.endswith("paid")
        assert (await transcript(talk))[:-1] == ["0 ", "use pay", "{'status': 'asked'}", "ask pay", "result pay"]
    assert seen == [False, True]


async def test_a_tool_that_runs_long_gets_its_result_from_the_client() -> None:
    shop, begun = Shop([["ticket"], "{0}"]), list[int]()

    async def ticket(cents: int) -> None:
        """Open a ticket."""
        begun.append(cents)

    shop.agent.tools = [LongRunningFunctionTool(ticket)]
    async with talk_to(None, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        assert isinstance(request.event, CustomToolUse)
        assert (request.event.tool, request.event.arguments) == ("ticket", {"cents": 5})
        await env.crash()
        seq = await talk.answer(request.request_id, result="closed")
        assert (await talk.reply(seq)).text == "closed"
    assert begun == [5]


async def test_what_the_model_says_while_a_tool_runs_long_is_in_the_journal() -> None:
    """A tool that returns something at its beginning lets the model speak before the client has the result."""
    shop = Shop([["ticket"], "{0}"])

    async def ticket(cents: int) -> str:
        """Open a ticket."""
        return "opened"

    shop.agent.tools = [LongRunningFunctionTool(ticket)]
    async with talk_to(None, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        await env.crash()
        seq = await talk.answer(request.request_id, result="closed")
        assert (await talk.reply(seq)).text == "closed"
        assert await transcript(talk) == ["0 ", "use ticket", "result ticket", "opened", "ask ticket", "closed"]


async def test_a_message_that_comes_while_the_agent_waits_is_read_next() -> None:
    """And an interrupt ends a run, of which no event stays."""
    shop = Shop(REFUND)
    async with talk_to(None, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        await talk.send(UserMessage("and hurry"))
        await env.run_until_idle()
        assert shop.model.calls == {0: 1, 1: 1}
        await talk.answer(request.request_id, allowed=True)
        await env.run_until_idle()
        (request,) = await talk.requests()
        assert shop.model.read[-1][-2:] == ["and hurry", "0 "]
        before = await state_of(env)
        await talk.interrupt()
        await env.run_until_idle()
        assert await talk.requests() == []
        assert (await transcript(talk))[-1] == "error refund"
        after = await state_of(env)
    assert (after.events, after.values, after.calls) == (before.events, before.values, [])
    assert "and hurry" not in str(after.events)
    assert shop.effects == {"charge 5": 2, "refund 5": 1}


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
        assert shop.effects == {"charge 5": 1, "ship 5": 1}
        assert (await state_of(env)).events == []
        shop.model.script = ["hello again"]
        assert (await talk.ask(UserMessage("again"))).text == "hello again"
        assert shop.model.read[-1] == ["again"]


async def test_an_agent_that_asks_for_a_credential_ends_the_wake() -> None:
    """No request stands for it."""
    shop = Shop([["log_in"], "{0}"])

    async def log_in(cents: int, tool_context: ToolContext) -> None:
        """Log in."""
        scheme = CustomAuthScheme.model_validate({"type": "http"})
        tool_context.request_credential(AuthConfig(auth_scheme=scheme, credential_key="shop"))

    shop.agent.tools = [log_in]
    async with talk_to(None, shop.conversations()) as (_, talk):
        with pytest.raises(WakeFailed, match="adk_request_credential"):
            await talk.ask(UserMessage("go"))


# -- what agents have


async def test_calls_of_one_response_are_made_once_each(server: str | None) -> None:
    shop = Shop([["charge", "ship", "charge"], "{0}, {1}, {2}"])
    shop.model.failures[1] = 2
    async with talk_to(server, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, ship 5 done, charge 5 done"
        calls = (await transcript(talk))[1:4]
    assert calls == ["use charge", "use ship", "use charge"]
    assert shop.effects == {"charge 5": 2, "ship 5": 1}


async def test_what_a_tool_has_changed_is_there_in_each_attempt(server: str | None) -> None:
    """Also within a value of the state."""
    shop = Shop([["note"], "{0}"])
    shop.model.failures[1] = 2

    async def note(cents: int, tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state.setdefault("notes", []).append(cents)
        tool_context.state["seen"] = tool_context.state.get("seen", 0) + 1
        tool_context.actions.escalate = True
        return "noted"

    shop.agent.tools = [note]
    async with talk_to(server, shop.conversations()) as (env, talk):
        await talk.ask(UserMessage("one"))
        state = await state_of(env)
    assert state.values == {"notes": [5], "seen": 1}
    assert [event for event in state.events if event["actions"].get("escalate")]  # type: ignore[union-attr]


async def test_the_session_stays_with_the_conversation(server: str | None) -> None:
    """The model reads what was said before, and tools read the state."""
    shop, seen = Shop([["look"], "seen {0}"]), list[Any]()

    async def look(cents: int, tool_context: ToolContext) -> str:
        """Look."""
        seen.append(tool_context.state.get("last"))
        tool_context.state["last"] = len(seen)
        tool_context.state["temp:x"] = 1
        return str(len(seen))

    shop.agent.tools = [look]
    async with talk_to(server, shop.conversations()) as (env, talk):
        assert (await talk.ask(UserMessage("one"))).text == "seen 1"
        await env.crash()
        assert (await talk.ask(UserMessage("two"))).text == "seen 2"
        assert (await state_of(env)).values == {"last": 2}
    assert seen == [None, 1]
    assert shop.model.read[-1] == ["one", "0 ", "seen 1", "two", "0 "]


async def test_an_agent_that_hands_over(server: str | None) -> None:
    """To another one, which is asked by the next message too."""
    clerk, packer = Shop([["charge"], ["transfer_to_agent:packer"]]), Shop([["ship"], "packed: {0}"])
    packer.model.failures[1] = 1
    packer.agent.name = "packer"
    clerk.agent.sub_agents = [packer.agent]
    packer.agent.parent_agent = clerk.agent
    async with talk_to(server, clerk.conversations()) as (env, talk):
        for _ in range(2):
            assert (await talk.ask(UserMessage("go"))).text == "packed: ship 5 done"
            await env.crash()
        packed = ["0 ", "use ship", "result ship", "packed: ship 5 done"]
        assert await transcript(talk) == ["0 ", "use charge", "result charge", "1 ", *packed, *packed]
    assert clerk.effects | packer.effects == {"charge 5": 1, "ship 5": 2}
    assert clerk.model.calls == {0: 1, 1: 1}


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated:DeprecationWarning")
async def test_agents_below_an_agent_are_durable_too(server: str | None) -> None:
    """They run one after another, and the state that a tool has changed is there in each attempt."""
    first, last = Shop([["charge"], "first {0}"]), Shop([["ship"], "last {0}"])
    last.model.failures[1] = 2
    first.agent.output_key = "of_first"
    last.agent.name = "packer"
    both = SequentialAgent(name="both", sub_agents=[first.agent, last.agent])
    async with talk_to(server, adk_conversations(both, retry=RETRY)) as (env, talk):
        assert (await talk.ask(UserMessage("go"))).text == "last ship 5 done"
        assert await transcript(talk) == [
            *("0 ", "use charge", "result charge", "first charge 5 done"),
            *("0 ", "use ship", "result ship", "last ship 5 done"),
        ]
        state = await state_of(env)
    assert state.values == {"charge": 5, "of_first": "0 first charge 5 done", "ship": 5}
    assert first.effects | last.effects == {"charge 5": 1, "ship 5": 1}
    assert first.model.calls == {0: 1, 1: 1}


def two_agents(first: Shop, second: Shop, kind: type[BaseAgent]) -> BaseAgent:
    """Two agents below one."""
    second.agent.name = "packer"
    return kind(name="both", sub_agents=[first.agent, second.agent])


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated:DeprecationWarning")
async def test_agents_beside_each_other_have_their_own_answers(server: str | None) -> None:
    """Also in an attempt in which the other one asks its model first, with the same contents."""
    first, second, begun = Shop([["charge"], "first {0}"]), Shop([["ship"], "second {0}"]), list[int]()
    second.model.failures[1] = 2

    async def late_in_the_second_attempt(callback_context: Any) -> None:
        begun.append(len(begun) + 1)
        if begun[-1] == 2:
            await anyio.sleep(0.1)

    first.agent.before_agent_callback = late_in_the_second_attempt
    both = two_agents(first, second, ParallelAgent)
    async with talk_to(server, adk_conversations(both, retry=RETRY)) as (_, talk):
        await talk.ask(UserMessage("go"))
        texts = [entry.event.text for entry in await talk.history(kinds=[AgentMessage])]  # type: ignore[attr-defined]
    assert sorted(texts) == ["0 ", "0 ", "first charge 5 done", "second ship 5 done"]
    assert (first.effects, second.effects) == ({"charge 5": 1}, {"ship 5": 1})
    assert (first.model.calls, second.model.calls) == ({0: 1, 1: 1}, {0: 1, 1: 3})


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated:DeprecationWarning")
async def test_each_agent_has_the_confirmation_that_it_has_asked_for() -> None:
    first, second = Shop([["refund"], "first {0}"]), Shop([["refund"], "second {0}"])
    async with talk_to(None, adk_conversations(two_agents(first, second, ParallelAgent), retry=RETRY)) as (env, talk):
        await talk.ask(UserMessage("go"))
        for request in await talk.requests():
            seq = await talk.answer(request.request_id, allowed=True)
            await env.crash()
        assert (await talk.reply(seq)).text == "second refund 5 done"
        found = await transcript(talk)
        assert found.count("result refund") == 2
        assert found[-2:] == ["first refund 5 done", "second refund 5 done"]
    assert (first.effects, second.effects) == ({"refund 5": 1}, {"refund 5": 1})


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")
async def test_a_resumable_app_goes_on_behind_the_agent_that_has_asked() -> None:
    """In another one, releases of ADK differ."""
    first, second = Shop([["refund"], "first {0}"]), Shop([["charge"], "second {0}"])
    both = two_agents(first, second, SequentialAgent)
    app = App(name="both", root_agent=both, resumability_config=ResumabilityConfig(is_resumable=True))
    async with talk_to(None, adk_conversations(app, retry=RETRY)) as (env, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        await env.crash()
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq)).text == "second charge 5 done"
        assert (await transcript(talk))[-6:] == [
            *("result refund", "first refund 5 done"),
            *("0 ", "use charge", "result charge", "second charge 5 done"),
        ]
    assert (first.effects, second.effects) == ({"refund 5": 1}, {"charge 5": 1})


async def test_a_toolset_is_durable(server: str | None) -> None:
    """Its tools are listed by each attempt, and called once."""
    shop = Shop(ORDER)
    shop.model.failures[2] = 1

    class Tools(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
            return [shop.tool("charge"), shop.tool("ship")]

    shop.agent.tools = [Tools()]
    async with talk_to(server, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, ship 5 done"
    assert shop.effects == {"charge 5": 1, "ship 5": 1}


async def test_tools_that_cannot_be_listed_are_an_error_of_the_wake() -> None:
    """ADK runs an agent without them. A recorded call would then be answered as one of an unknown tool."""
    shop, listings = Shop(ORDER), list[int]()
    shop.model.failures[2] = 1  # the second attempt begins with the second listing

    class Tools(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
            listings.append(len(listings) + 1)
            if listings[-1] == 2:
                raise ConnectionError("the server is away")
            return [shop.tool("charge"), shop.tool("ship")]

    shop.agent.tools = [Tools()]
    async with talk_to(None, shop.conversations()) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, ship 5 done"
    assert listings == [1, 2, 3]
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert shop.model.calls == {0: 1, 1: 1, 2: 2}


async def test_callbacks_and_plugins_of_an_app_run() -> None:
    """A callback that answers for a tool keeps the tool from running; a plugin sees each event."""
    shop, events = Shop(ORDER), list[str]()

    def answer(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
        return {"result": "not today"} if tool.name == "ship" else None

    class Watch(BasePlugin):
        async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
            events.append(event.author)

    shop.agent.before_tool_callback = answer
    app = App(name="shop", root_agent=shop.agent, plugins=[Watch(name="watch")])
    async with talk_to(None, adk_conversations(app)) as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "charge 5 done, not today"
        assert (await transcript(talk))[-3:] == ["use ship", "result ship", "charge 5 done, not today"]
    assert shop.effects == {"charge 5": 1}
    assert events == ["clerk"] * 5


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")
@pytest.mark.parametrize("own", [False, True], ids=["of the root", "own"])
async def test_a_summary_of_earlier_events_is_a_step(own: bool) -> None:
    """Of an app with compaction. Each summary is another one: made again, the run would not find its steps."""
    shop, summaries, seen = Shop(ORDER), list[str](), list[list[str]]()

    class Summarising(BaseLlm):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            texts = [part.text for content in llm_request.contents for part in content.parts or [] if part.text]
            if "conversation history" in texts[0]:
                summaries.append(f"summary {len(summaries) + 1}")
                content = types.ModelContent(summaries[-1])
            else:
                seen.append(texts)
                results = sum(bool(part.function_response) for c in llm_request.contents for part in c.parts or [])
                tool = ["refund", "ship"][results] if results < 2 else None
                if results == 1 and len(seen) < 4:
                    raise ConnectionError("429")  # behind the answer of the person
                part = types.Part.from_function_call(name=tool, args={"cents": 5}) if tool else types.Part(text="done")
                content = types.ModelContent([part])
            if stream:
                yield LlmResponse(content=content, partial=True)
            yield LlmResponse(content=content)

    shop.agent.model = model = Summarising(model="summarising")
    summarizer = LlmEventSummarizer(llm=model) if own else None
    config = EventsCompactionConfig(compaction_interval=1, overlap_size=0, summarizer=summarizer)
    app = App(name="shop", root_agent=shop.agent, events_compaction_config=config)
    async with talk_to(None, adk_conversations(app, retry=RETRY, stream=True)) as (env, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        await env.crash()
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq)).text == "done"
        assert not [text for text in await transcript(talk) if "summary" in text]
    assert shop.effects == {"refund 5": 1, "ship 5": 1}
    assert len(summaries) == len(set(summaries)) <= 2
    assert {text for texts in seen for text in texts if "summary" in text} <= {"summary 1"}
    if own:
        assert config.summarizer is summarizer


async def test_what_callbacks_change_is_what_the_agent_reads_and_answers() -> None:
    """The stream and the entries before the answer have what the model and the tool gave."""
    shop = Shop([["charge"], "secret {0}"])

    def hide(callback_context: Any, llm_response: Any) -> Any:
        changed = llm_response.model_copy(deep=True)
        for part in changed.content.parts:
            part.text = part.text and "hidden"
        return changed

    def hide_result(tool: BaseTool, args: Any, tool_context: ToolContext, tool_response: Any) -> dict[str, Any]:
        return {"result": "no result"}

    shop.agent.after_model_callback = hide
    shop.agent.after_tool_callback = hide_result
    async with talk_to(None, shop.conversations(stream=True)) as (_, talk):
        items: list[ReplyItem] = [item async for item in talk.stream_reply(UserMessage("go"))]
        entries = await talk.history(kinds=[AgentMessage, ToolResult])
    first, result, answer = (entry.event for entry in entries)
    assert isinstance(first, AgentMessage)
    assert isinstance(result, ToolResult)
    assert isinstance(answer, AgentMessage)
    assert (first.text, result.result, answer.text) == ("0 ", "charge 5 done", "hidden")
    assert "0 " in [item.text for item in items if isinstance(item, Streamed)]
    assert shop.model.read[-1] == ["go", "hidden"]


async def test_state_of_a_user_or_an_app_belongs_to_the_conversation() -> None:
    """An artifact, which is of ADK's own service, too: its user and its session are the conversation."""
    shop, artifacts, seen = Shop([["save"], "{0}"]), InMemoryArtifactService(), list[Any]()
    shop.model.failures[1] = 1

    async def save(cents: int, tool_context: ToolContext) -> str:
        """Save."""
        seen.append([tool_context.state.get("user:n"), tool_context.state.get("app:n")])
        tool_context.state["user:n"] = tool_context.state["app:n"] = cents
        return f"version {await tool_context.save_artifact('file', types.Part(text='text'))}"

    shop.agent.tools = [save]
    kind = shop.conversations(services={"artifact_service": artifacts})
    async with Env(app_of(kind)) as env:
        for name in ("c", "c", "d"):
            await env.client.conversation(kind, name).ask(UserMessage("go"))
        texts = [(await env.client.conversation(kind, name).ask(UserMessage("go"))).text for name in ("c", "d")]
    assert texts == ["version 2", "version 1"]
    assert seen == [[None, None], [5, 5], [None, None], [5, 5], [5, 5]]


async def test_a_handler_of_your_own() -> None:
    shop = Shop(ORDER)
    chats = affinity.Conversations(ADKState, kind="chats")

    @chats.on_wake
    async def respond(wake: affinity.Wake, state: ADKState) -> None:
        async with adk_run(wake, transcript=False) as run:
            result = await run.run(shop.agent, run.prompt, state=state)
            wake.append(AgentMessage(f"{len(result.events)} events: {result.text}"))

    async with talk_to(None, chats) as (_, talk):
        await talk.ask(UserMessage("go"))
        assert await transcript(talk) == ["6 events: charge 5 done, ship 5 done"]


@pytest.mark.parametrize("how", ["one after another", "together", "together, with one state"])
async def test_agents_of_one_block(how: str) -> None:
    """One after another they share a state, also over a wake that waits. Together each needs its own."""
    first, second = Shop([["ship"], "first {0}"]), Shop([["charge"], ["refund"], "second {0}, {1}"])
    second.agent.name = "packer"
    second.model.failures[1] = 1
    chats = affinity.Conversations(ADKState, kind="chats")

    @chats.on_wake(retry=RETRY)
    async def respond(wake: affinity.Wake, state: ADKState) -> None:
        texts: dict[str, str] = {}
        async with adk_run(wake) as run:

            async def answer(agent: LlmAgent, state: ADKState | None) -> None:
                texts[agent.name] = (await run.run(agent, run.prompt, state=state)).text

            if how == "one after another":
                await answer(first.agent, state)
                await answer(second.agent, state)
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(answer, first.agent, state if how == "together, with one state" else None)
                    tasks.start_soon(answer, second.agent, state)
            wake.append(AgentMessage(f"{texts['clerk']}; {texts['packer']}"))

    async with talk_to(None, chats) as (env, talk):
        if how == "together, with one state":
            with pytest.raises(WakeFailed, match="an agent runs with this state"):
                await talk.ask(UserMessage("go"))
            return
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        await env.crash()
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq)).text == "first ship 5 done; second charge 5 done, refund 5 done"
        found = await transcript(talk)
        state = await state_of(env)
    assert sorted(text for text in found if text.startswith("result")) == [
        *("result charge", "result refund", "result ship")
    ]
    authors = [str(event["author"]) for event in state.events]
    if how == "one after another":
        assert set(authors[: authors.index("packer")]) == {"user", "clerk"}
        assert state.values == {"ship": 5, "charge": 5, "refund": 5}
    else:
        assert set(authors) == {"user", "packer"}
        assert state.values == {"charge": 5, "refund": 5}
    assert first.effects | second.effects == {"ship 5": 1, "charge 5": 1, "refund 5": 1}


async def test_a_service_runs_the_agent_in_this_process(url: str) -> None:
    """A question that is repeated has one answer. Outside of a conversation, the agent is as it was."""
    shop = Shop(ORDER)
    async with adk_service(shop.agent, url) as clerk:
        for _ in range(2):
            reply = await clerk.ask("c", "go", event_id="m-1")
            assert reply.text == "charge 5 done, ship 5 done"
    assert shop.effects == {"charge 5": 1, "ship 5": 1}
    assert isinstance(shop.agent, LlmAgent)
    assert shop.agent.model is shop.model
    assert isinstance(shop.model, Scripted)
    assert isinstance(shop.agent.tools[0], FunctionTool)
    events = await InMemoryRunner(shop.agent).run_debug("go", quiet=True)
    assert SimpleNamespace(content=events[-1].content).content.parts[0].text == "charge 5 done, ship 5 done"


# -- what the page says


def test_a_missing_extra_is_one_sentence() -> None:
    code = "import sys; sys.modules['google.adk'] = None; import affinity.integrations.adk"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert re.search(r"needs google-adk .* pip install 'affinity-workflows\[adk\]'", done.stderr)


FOLDER = Path(__file__).parents[3] / "examples" / "integrations"


def test_a_plain_agent_becomes_durable_by_four_lines() -> None:
    """The example that the page shows, beside the plain one; each has a line of its own that describes it."""
    plain, durable = ((FOLDER / f"adk_{name}.py").read_text().splitlines()[1:] for name in ("plain", "durable"))
    added = [line for line in unified_diff(plain, durable) if re.match(r"\+(?!\+\+)\s*\S", line)]
    assert len(added) == 4


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("plain", "I have looked at it: 42.00 € for order 7 are on their way.\n"),
        ("durable", "I have looked at it: 42.00 € for order 7 are on their way.\n"),
        ("confirmed", "waits for agent.tool_confirmation\nI have looked at it: 42.00 € are on their way.\n"),
    ],
)
def test_an_example_is_as_shown_and_prints(name: str, printed: str, tmp_path: Path) -> None:
    page = (FOLDER.parents[1] / "docs" / "learn" / "integrations" / "adk.md").read_text()
    file = FOLDER / f"adk_{name}.py"
    for shown in re.findall(rf"<!-- from examples/integrations/{file.name} -->\n```python\n(.+?)```", page, re.DOTALL):
        assert shown in file.read_text()
    done = subprocess.run([sys.executable, file], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout.endswith(printed)) == (0, True), done.stdout + done.stderr
