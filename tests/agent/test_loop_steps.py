"""A loop whose wake fails, or whose worker ends: what the model has said and the tools have done is not done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ModelReply, ModelRequest, Tool, ToolCall, ToolContext, run_loop, tool
from affinity.conversation import AgentMessage, ToolResult, ToolUse, UserInterrupt, UserMessage
from affinity.testing import Env
from tests.conversation.application import Chat, make

pytestmark = pytest.mark.anyio

RETRY = RetryPolicy(max_attempts=5, initial_interval=1.0)


class Model:
    """Calls the tools of one round after the other, then answers; fails ``failures`` times before each answer.

    It follows the transcript, as a real one does: what it has been answered is not asked for again.
    """

    def __init__(self, *rounds: list[ToolCall], failures: int = 0) -> None:
        self.rounds, self.failures = rounds, failures
        self.asked = 0
        self.seen: list[list[Any]] = []

    async def __call__(self, request: ModelRequest) -> ModelReply:
        messages = request.openai_messages()
        self.seen.append([m.get("content") for m in messages])
        self.asked += 1
        if self.asked % (self.failures + 1):
            raise ConnectionError("429")
        last_user = max(n for n, m in enumerate(messages) if m["role"] == "user")
        done = sum(1 for m in messages[last_user:] if m.get("tool_calls"))
        if done < len(self.rounds):
            return ModelReply(calls=self.rounds[done])
        return ModelReply(content="done")


@asynccontextmanager
async def agent(
    server: str | None, model: Any, *tools: Tool | Callable[..., Any], before: str = ""
) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
    """A conversation whose handler is a loop."""

    async def handler(wake: Wake, chat: Chat) -> None:
        if before:
            wake.append(AgentMessage(before))
        await run_loop(wake, model=model, tools=tools)

    chats, app = make(handler, retry=RETRY), affinity.App("agents")
    app.include(chats)
    async with Env(app, url=server) as env:
        yield env, env.client.conversation(chats, "c")


async def results(talk: affinity.ConversationHandle) -> list[Any]:
    """Of the tools, in the order of the journal."""
    return [entry.event.result for entry in await talk.history(kinds=[ToolResult])]  # type: ignore[attr-defined]


async def test_a_model_that_fails_repeats_no_tool_and_no_answer_of_its_own(server: str | None) -> None:
    """In each round. Nor is what the handler has appended before the loop there twice."""
    runs: list[int] = []

    async def charge(cents: int) -> str:
        runs.append(cents)
        return f"charged {cents}"

    model = Model([ToolCall("1", "charge", {"cents": 1})], [ToolCall("1", "charge", {"cents": 2})], failures=1)
    async with agent(server, model, charge, before="I begin") as (_, talk):
        reply = await talk.ask(UserMessage("pay"))
        assert (reply.text, runs) == ("done", [1, 2])
        assert await results(talk) == ["charged 1", "charged 2"]
        said = [entry.event.text for entry in await talk.history(kinds=[AgentMessage])]  # type: ignore[attr-defined]
        assert said == ["I begin", "done"]
        assert model.asked == 6  # each of three answers is given once


async def test_what_a_person_has_allowed_once_runs_once(server: str | None) -> None:
    paid: list[int] = []

    @tool(confirm=True)
    async def refund(cents: int) -> str:
        """Pay money back."""
        paid.append(cents)
        return "paid"

    model = Model([ToolCall("1", "refund", {"cents": 5000})], failures=2)
    async with agent(server, model, refund) as (_, talk):
        await talk.ask(UserMessage("give it back"))
        (request,) = await talk.requests()
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq)).text == "done"
        assert paid == [5000]
        assert await results(talk) == ["paid"]


@pytest.mark.parametrize(
    ("repeat", "confirm", "runs_again"),
    [("always", False, True), ("never", False, False), ("always", True, False), ("approved", True, True)],
)
async def test_a_call_that_runs_when_its_process_ends(
    server: str | None, repeat: Any, confirm: bool, runs_again: bool
) -> None:
    """Runs again, or the model reads that its outcome is not known. The idempotency key stays the same."""
    keys: list[str] = []
    is_running = anyio.Event()

    @tool(repeat=repeat, confirm=confirm)
    async def pay(ctx: ToolContext, cents: int) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            is_running.set()
            await anyio.sleep_forever()
        return f"paid {cents}"

    async with agent(server, Model([ToolCall("1", "pay", {"cents": 1})]), pay) as (env, talk):
        seq = await talk.send(UserMessage("pay"))
        if confirm:
            await talk.reply(seq)
            (request,) = await talk.requests()
            seq = await talk.answer(request.request_id, allowed=True)
        with anyio.fail_after(30):
            await is_running.wait()
        await env.crash()
        assert (await talk.reply(seq)).text == "done"
        (result,) = await results(talk)
    assert len(set(keys)) == 1
    if runs_again:
        assert (result, len(keys)) == ("paid 1", 2)
    else:
        assert (result["error"]["kind"], len(keys)) == ("outcome_unknown", 1)


async def test_each_result_is_there_before_the_others_end(server: str | None) -> None:
    """A call of the same round that runs when the process ends runs again alone."""
    runs: Counter[str] = Counter()
    is_running = anyio.Event()

    async def work(name: str) -> str:
        runs[name] += 1
        if name == "slow" and runs[name] == 1:
            is_running.set()
            await anyio.sleep_forever()
        return name

    calls = [ToolCall("1", "work", {"name": "slow"}), ToolCall("2", "work", {"name": "quick"})]
    model = Model(calls)
    async with agent(server, model, work) as (env, talk):
        seq = await talk.send(UserMessage("go"))

        with anyio.fail_after(30):
            await is_running.wait()
            async for item in talk.events(follow=True):
                if getattr(item, "kind", "") == "agent.tool_result":
                    break
        await env.crash()
        assert (await talk.reply(seq)).text == "done"
    assert runs == {"slow": 2, "quick": 1}
    assert model.seen[-1][-2:] == ["slow", "quick"]  # in the order of the calls


@pytest.mark.usefixtures("maybe_traced")
async def test_an_interrupt_of_a_call_that_runs_says_that_its_outcome_is_not_known(server: str | None) -> None:
    is_running = anyio.Event()
    runs: list[int] = []

    async def work() -> str:
        runs.append(1)
        is_running.set()
        await anyio.sleep_forever()
        return "never"

    async def model(request: ModelRequest) -> ModelReply:
        is_first = request.openai_messages()[-1]["content"] == "go"
        return ModelReply(calls=[ToolCall("1", "work", {})]) if is_first else ModelReply(content="stopped")

    async with agent(server, model, work) as (_, talk):
        await talk.send(UserMessage("go"))
        with anyio.fail_after(30):
            await is_running.wait()
        await talk.interrupt(cancel_running=True)
        assert (await talk.ask(UserMessage("what now?"))).text == "stopped"
        (result,) = await results(talk)
    assert (result["error"]["kind"], len(runs)) == ("outcome_unknown", 1)


@pytest.mark.usefixtures("maybe_traced")
async def test_an_input_that_comes_while_a_tool_runs_stands_behind_what_did_not_know_it(server: str | None) -> None:
    """In the next attempt of the wake, and in the next wake."""
    is_running, go_on = anyio.Event(), anyio.Event()

    async def work() -> str:
        is_running.set()
        await go_on.wait()
        return "worked"

    model = Model([ToolCall("1", "work", {})])
    async with agent(server, model, work) as (_, talk):
        first = await talk.send(UserMessage("go"))
        with anyio.fail_after(30):
            await is_running.wait()
        second = await talk.send(UserMessage("and hurry"))
        go_on.set()
        assert (await talk.reply(first)).text == "done"
        await talk.reply(second)
        await talk.ask(UserMessage("again"))
    assert model.seen[1] == ["go", None, "worked"]
    assert model.seen[2] == ["go", None, "worked", "done", "and hurry"]
    assert model.seen[-1][:5] == ["go", None, "worked", "done", "and hurry"]


async def test_a_call_of_another_conversation_has_another_idempotency_key(server: str | None) -> None:
    """Whatever ids the two have: a journal may have calls whose replies have no id."""
    keys: list[str] = []

    async def pay(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    async def model(request: ModelRequest) -> ModelReply:
        return ModelReply(content="done")

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[pay], transcript=[UserMessage("go"), ToolUse("pay", {}, "1")])

    chats, app = make(handler), affinity.App("agents")
    app.include(chats)
    async with Env(app, url=server) as env:
        for name in ("a", "b"):
            await env.client.conversation(chats, name).ask(UserMessage("go"))
    assert len(set(keys)) == 2


async def test_the_model_does_not_see_the_context_of_a_call() -> None:
    """Its parameter is no argument."""

    @tool
    async def look(ctx: ToolContext, name: str) -> str:
        return name

    assert list(look.parameters["properties"]) == ["name"]
    assert UserInterrupt().kind == "user.interrupt"


async def test_the_model_reads_why_it_is_woken(server: str | None) -> None:
    """By a revisit: once, though the wake is repeated; and in later wakes too."""
    seen: list[list[Any]] = []

    async def model(request: ModelRequest) -> ModelReply:
        seen.append([m["content"] for m in request.openai_messages()])
        if len(seen) == 2:
            raise ConnectionError("429")
        return ModelReply(content=f"answer {len(seen)}")

    async def handler(wake: Wake, chat: Chat) -> None:
        result = await run_loop(wake, model=model)
        if not wake.due and result.text == "answer 1":
            wake.revisit(60, reason="look again")

    chats, app = make(handler, retry=RETRY), affinity.App("agents")
    app.include(chats)
    async with Env(app, url=server) as env:
        talk = env.client.conversation(chats, "c")
        await talk.ask(UserMessage("go"))
        await env.run_until_idle()
        await talk.ask(UserMessage("and?"))
    told = "[you asked to come back now] look again"
    assert seen == [
        ["go"],
        ["go", "answer 1", told],
        ["go", "answer 1", told],
        ["go", "answer 1", told, "answer 3", "and?"],
    ]


async def test_an_answer_that_is_committed_is_given_again_and_a_message_of_the_handler_is_none(
    server: str | None,
) -> None:
    results: list[str] = []

    async def model(request: ModelRequest) -> ModelReply:
        return ModelReply(content=f"answer {len(results) + 1}")

    async def handler(wake: Wake, chat: Chat) -> None:
        wake.append(AgentMessage("I begin"))
        await wake.commit()
        if wake.attempt == 1:
            raise ConnectionError("before the loop")
        results.append((await run_loop(wake, model=model)).text)
        await wake.commit()
        if wake.attempt == 2:
            raise ConnectionError("behind the loop")

    chats, app = make(handler, retry=RETRY), affinity.App("agents")
    app.include(chats)
    async with Env(app, url=server) as env:
        reply = await env.client.conversation(chats, "c").ask(UserMessage("go"))
        assert [event.text for event in reply.events if isinstance(event, AgentMessage)] == ["I begin", "answer 1"]
    assert results == ["answer 1", "answer 1"]
