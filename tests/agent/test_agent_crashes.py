"""An agent with five tools in three rounds, with a crash at each commit, while its model fails in each round once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import affinity
from affinity import Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, to_openai, tool
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    JournalEntry,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserMessage,
)
from affinity.testing import Env, crash_matrix
from tests.conversation.application import Chat, make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("any_url", ["sqlite", "new"], indirect=True),
]

RETRY = affinity.RetryPolicy(max_attempts=12, initial_interval=1.0)

ROUNDS = (("look", "count"), ("refund", "send"), ("close",))
ONCE = {"refund", "send"}
"""A call of these that runs when its process ends is not run again."""


@pytest.fixture
def url(any_url: str) -> str | None:
    """Of a PostgreSQL server; None: an SQLite file."""
    return None if any_url.startswith("sqlite") else any_url


class World:
    """What one run has done outside of affinity."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.failures: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.misread: list[list[str]] = []
        """What the model was given, where it is not what it was given in the undisturbed run."""


class Agents:
    """Makes the app of a run, and keeps what its tools have done."""

    def __init__(self) -> None:
        self.world = World()
        self.read: dict[int, list[str]] = {}
        """What the model was given in each round of the undisturbed run."""

    def make_app(self) -> affinity.App:
        self.world = world = World()

        def effect(name: str) -> str:
            world.effects[name] += 1
            if name != "count":  # it runs in a thread, beside another one
                chats[-1].received.append(name)
            return f"{name}: done"

        chats: list[Chat] = []

        @tool
        async def look() -> str:
            return effect("look")

        @tool
        def count() -> str:
            return effect("count")

        @tool(confirm=True)
        async def refund() -> str:
            return effect("refund")

        @tool(repeat="never")
        async def send() -> str:
            return effect("send")

        @tool
        async def close() -> str:
            return effect("close")

        async def model(request: ModelRequest) -> ModelReply:
            done = len({each.message_id for each in request.events if isinstance(each, ToolUse)})
            kinds = [each.kind for each in request.events]
            if self.read.setdefault(done, kinds) != kinds:
                world.misread.append(kinds)
            world.failures[done] += 1
            if world.failures[done] == 1:
                raise ConnectionError("429")
            world.answers[done] += 1
            if done == len(ROUNDS):
                return ModelReply(content="all done")
            return ModelReply(calls=[ToolCall(name, name, {}) for name in ROUNDS[done]])

        async def handler(wake: Wake, chat: Chat) -> None:
            chats.append(chat)
            chat.wakes += 1
            await run_loop(wake, model=model, tools=[look, count, refund, send, close])

        app = affinity.App("agents")
        app.include(make(handler, retry=RETRY, kind="agent"))
        return app


async def work(env: Env) -> list[JournalEntry]:
    """Ask for it, and allow what has to be allowed."""
    talk = env.client.conversation(make(kind="agent"), "c")
    seq = await talk.send(UserMessage("give it back"), event_id="ask")
    await talk.reply(seq)
    (request,) = await talk.requests()
    seq = await talk.answer(request.request_id, allowed=True)
    assert (await talk.reply(seq)).text == "all done"
    return list(await talk.history(kinds=[AgentMessage, ToolUse, ToolConfirmation, ToolResult]))


async def test_each_effect_is_there_once(url: str | None) -> None:
    """But of a call that ran when its process ended, which runs again, or is said to have no known outcome. The model
    gives each answer once, or once more if its process ended before the answer was committed. It reads the same in each
    attempt, and the state has each change once.
    """
    agents = Agents()

    async def check(env: Env, entries: list[JournalEntry]) -> None:
        effects, answers = agents.world.effects, agents.world.answers
        names = [name for names in ROUNDS for name in names]
        assert all(effects[name] in ({0, 1} if name in ONCE else {1, 2}) for name in names), effects
        assert sum(effects.values()) <= len(names) + 2, effects  # of one round that was cut off
        assert all(answers[each] in {1, 2} for each in range(len(ROUNDS) + 1)), answers
        assert sum(answers.values()) <= len(ROUNDS) + 2, answers
        uses = [each.event.tool for each in entries if isinstance(each.event, ToolUse)]
        assert uses == names
        results = {each.event.tool_use_id: each.event for each in entries if isinstance(each.event, ToolResult)}
        assert len([each for each in entries if isinstance(each.event, ToolResult)]) == len(results) == 5
        for name, result in results.items():
            assert result.result == f"{name}: done" or (name in ONCE and _is_unknown(result)), (name, result)
            assert effects[name] or _is_unknown(result)
        assert agents.world.misread == []
        record = await env.client.session_manager.show("c")
        state = Chat.model_validate_json(record.state)
        known = [name for name, result in results.items() if not _is_unknown(result) and name != "count"]
        assert (sorted(state.received), state.wakes) == (sorted(known), 2)

    matrix = await crash_matrix(agents.make_app, work, check, url=url, workers=2, kills=0)
    assert matrix.commits >= 12


def _is_unknown(result: ToolResult) -> bool:
    value: Any = result.result
    return bool(result.is_error and value["error"]["kind"] == "outcome_unknown")


# -- steps, and delegation three deep


class Chain:
    """The same of a handler with steps, whose work goes to a child, and on to a child of that one."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()

    def make_app(self) -> affinity.App:
        self.effects = effects = Counter[str]()
        failures: Counter[str] = Counter()

        async def do(name: str) -> str:
            effects[name] += 1
            return f"{name}: done"

        def handler_of(name: str, child: affinity.Conversations[Any] | None) -> Any:
            async def handler(wake: Wake, chat: Chat) -> None:
                ended = [each for each in wake.events if isinstance(each, ChildEnded)]
                if child is not None and not ended:
                    wake.append(AgentMessage(await wake.step("do", do, f"{name} before")))
                    chat.received.append("before")
                    await wake.delegate(child, f"{wake.conversation_id}/{name}", UserMessage("go on"))
                    await wake.commit()
                else:
                    text = await wake.step("do", do, f"{name} behind")
                    wake.append(AgentMessage(f"{text} {ended[0].result if ended else ''}".strip()))
                failures[name] += 1
                if failures[name] % 2:
                    raise ConnectionError("once")

            return handler

        kinds: list[affinity.Conversations[Any]] = []
        for name in ("three", "two", "one"):
            handler = handler_of(name, kinds[-1] if kinds else None)
            kinds.append(make(handler, retry=RETRY, kind=name))
        app = affinity.App("chains")
        for each in kinds:
            app.include(each)
        return app


async def delegate(env: Env) -> list[str]:
    """Until the parent has the result of the grandchild."""
    talk = env.client.conversation(make(kind="one"), "c")
    await talk.send(UserMessage("go"), event_id="ask")
    texts: list[str] = []
    async for item in talk.events(follow=True, kinds=[AgentMessage]):
        assert isinstance(item, JournalEntry)
        assert isinstance(item.event, AgentMessage)
        texts.append(item.event.text)
        if len(texts) == 2:
            return texts
    raise AssertionError("the feed has ended")


async def test_steps_of_three_conversations_that_delegate(url: str | None) -> None:
    chain = Chain()

    async def check(env: Env, texts: list[str]) -> None:
        behind = "two behind: done three behind: done"
        assert texts == ["one before: done", f"one behind: done {behind}"]
        names = {"one before", "one behind", "two before", "two behind", "three behind"}
        assert set(chain.effects) == names
        assert sum(chain.effects.values()) <= len(names) + 1, chain.effects  # one ran when its process ended
        for kind, name in (("one", "c"), ("two", "c/one"), ("three", "c/one/two")):
            talk = env.client.conversation(make(kind=kind), name)
            assert await talk.status() == "idle"

    matrix = await crash_matrix(
        chain.make_app, delegate, check, url=url, workers=2, kills=0, max_jump=timedelta(days=1)
    )
    assert matrix.commits >= 15


# -- runs


class Starter:
    """An agent that calls an activity and starts an orchestration, and reads their ends."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()

    def make_app(self) -> affinity.App:
        self.effects = effects = Counter[str]()
        failures: Counter[str] = Counter()
        app = affinity.App("starters")

        @app.activity
        async def pay(ctx: affinity.ActivityContext, name: str) -> str:
            effects[name] += 1
            return f"{name} paid"

        @app.orchestration
        async def order(ctx: affinity.OrchestrationContext, name: str) -> str:
            return await ctx.schedule_activity(pay, name)

        async def model(request: ModelRequest) -> ModelReply:
            texts = [each["content"] for each in to_openai(request.events) if each["role"] == "user"]
            return ModelReply(content=f"read: {texts[-1]}")

        async def handler(wake: Wake, chat: Chat) -> None:
            if any(isinstance(each, UserMessage) for each in wake.events):
                wake.call(pay, "call")
                await wake.commit()
                wake.start(order, "run")
            else:
                await run_loop(wake, model=model)
            failures[wake.id] += 1
            if failures[wake.id] == 1:
                raise ConnectionError("once")

        app.include(make(handler, retry=RETRY, kind="starter"))
        return app


async def start(env: Env) -> list[JournalEntry]:
    """Until both ends are read."""
    talk = env.client.conversation(make(kind="starter"), "c")
    await talk.ask(UserMessage("go"), event_id="ask", until="settled")
    return list(await talk.history())


async def test_what_a_wake_starts_is_started_once_and_ends_once(url: str | None) -> None:
    starter = Starter()

    async def check(env: Env, entries: list[JournalEntry]) -> None:
        kinds = Counter(each.kind for each in entries)
        assert [kinds[each] for each in ("call.started", "run.started", "call.ended", "run.ended")] == [1] * 4
        assert set(starter.effects) == {"call", "run"}
        assert sum(starter.effects.values()) <= 3, starter.effects  # one ran when its process ended
        read = [each.event.text for each in entries if isinstance(each.event, AgentMessage)]
        assert read
        assert all(
            each in {"read: ['pay' has ended: completed] call paid", "read: ['order' has ended: completed] run paid"}
            for each in read
        )
        assert [one.instance_id async for one in env.client.list_instances(status=["suspended", "failed"])] == []

    matrix = await crash_matrix(starter.make_app, start, check, url=url, workers=2, kills=0)
    assert matrix.commits >= 12
