"""Messages that a model reads between two rounds of one wake."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop
from affinity.conversation import (
    AgentMessage,
    InputsRead,
    JournalEvent,
    ToolResult,
    ToolUse,
    UserMessage,
)
from affinity.testing import Env, crash_matrix
from tests.conversation.application import Chat, make, stage

pytestmark = pytest.mark.anyio

PATIENCE = 60.0
RETRY = RetryPolicy(max_attempts=6, initial_interval=0.01, jitter=0.0)


def said(events: Any) -> list[str]:
    """What a model reads, in order."""
    found = []
    for each in events:
        match each:
            case UserMessage() | AgentMessage():
                found.append(each.text)
            case ToolUse():
                found.append(f"call {each.tool_use_id}")
            case ToolResult():
                found.append(f"result {each.tool_use_id}")
            case _:
                pass
    return found


class Answering:
    """Calls `look` in each of two rounds, and answers."""

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds
        self.read: list[list[str]] = []

    async def __call__(self, request: ModelRequest) -> ModelReply:
        self.read.append(said(request.events))
        done = sum(isinstance(each, ToolUse) for each in request.events)
        if done < self.rounds:
            return ModelReply(calls=[ToolCall(str(done + 1), "look", {})])
        return ModelReply(content="done")


async def test_the_model_reads_a_message_between_two_rounds_and_the_wake_answers_it(url: str) -> None:
    model, wakes = Answering(), list[list[JournalEvent]]()
    may_end = anyio.Event()

    async def look() -> str:
        await may_end.wait()
        return "found"

    async def handler(wake: Wake, chat: Chat) -> None:
        result = await run_loop(wake, model=model, tools=[look], steer=True)
        assert result.stop == "answer"
        wakes.append([*wake.events])

    async with stage(url, handler) as on:
        talk = on.talk()
        with anyio.fail_after(PATIENCE):
            first = await talk.send(UserMessage("go"))
            while not any([*await talk.history(kinds=[ToolUse])]):
                await anyio.sleep(0.01)
            second = await talk.send(UserMessage("rather there"))
            may_end.set()
            assert [(await talk.reply(seq)).text for seq in (first, second)] == ["done", "done"]
            assert (await talk.reply(first)).wake_id == (await talk.reply(second)).wake_id
            marks = [each.event for each in await talk.history(kinds=[InputsRead])]
        assert model.read == [
            ["go"],
            ["go", "call 1", "result 1", "rather there"],
            ["go", "call 1", "result 1", "rather there", "call 2", "result 2"],
        ]
        assert [said(each) for each in wakes] == [["go", "rather there"]]
        assert marks == [InputsRead(1, 1)]
        # A later wake reads it at the same place.
        with anyio.fail_after(PATIENCE):
            await talk.ask(UserMessage("thanks"))
        assert model.read[-1] == [*model.read[2], "done", "thanks"]


async def test_without_it_a_later_wake_reads_the_message(url: str) -> None:
    model, may_end = Answering(), anyio.Event()

    async def look() -> str:
        await may_end.wait()
        return "found"

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[look])

    async with stage(url, handler) as on:
        talk = on.talk()
        with anyio.fail_after(PATIENCE):
            first = await talk.send(UserMessage("go"))
            while not any([*await talk.history(kinds=[ToolUse])]):
                await anyio.sleep(0.01)
            second = await talk.send(UserMessage("rather there"))
            may_end.set()
            replies = [await talk.reply(seq) for seq in (first, second)]
        assert replies[0].wake_id != replies[1].wake_id
        assert model.read[2] == ["go", "call 1", "result 1", "call 2", "result 2"]
        assert model.read[3] == [*model.read[2], "done", "rather there"]


async def test_what_is_no_message_stays_for_a_later_wake_with_all_behind_it(url: str) -> None:
    """An interrupt, and a message behind it. The one before it is read."""
    model, may_end = Answering(rounds=1), anyio.Event()
    wakes: list[list[str]] = []

    async def look() -> str:
        await may_end.wait()
        return "found"

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[look], steer=True)
        wakes.append([type(each).__name__ for each in wake.events])

    async with stage(url, handler) as on:
        talk = on.talk()
        with anyio.fail_after(PATIENCE):
            await talk.send(UserMessage("go"))
            while not any([*await talk.history(kinds=[ToolUse])]):
                await anyio.sleep(0.01)
            await talk.send(UserMessage("one"))
            await talk.send(affinity.conversation.DefineOutcome("a goal"))
            last = await talk.send(UserMessage("two"))
            may_end.set()
            await talk.reply(last)
        assert wakes == [["UserMessage", "UserMessage"], ["DefineOutcome", "UserMessage"]]
        assert model.read[1] == ["go", "call 1", "result 1", "one"]


async def test_an_input_that_is_tried_alone_stays_alone(url: str) -> None:
    """A wake has failed with two: each is tried by itself, and a loop does not read the other one."""
    has_begun, together = anyio.Event(), anyio.Event()
    wakes: list[list[str]] = []

    def look() -> str:
        return "found"

    async def model(request: ModelRequest) -> ModelReply:
        is_first = not isinstance(request.events[-1], ToolResult)
        return ModelReply(calls=[ToolCall("1", "look", {})]) if is_first else ModelReply(content="done")

    async def handler(wake: Wake, chat: Chat) -> None:
        texts = said(wake.events)
        if texts == ["begin"]:  # so that the next wake has all that was sent meanwhile
            has_begun.set()
            await together.wait()
            return
        if len(texts) > 1 or "bad" in texts:
            raise ValueError("no")
        await run_loop(wake, model=model, tools=[look], steer=True)
        wakes.append(said(wake.events))

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        with anyio.fail_after(PATIENCE):
            await talk.send(UserMessage("begin"))
            await has_begun.wait()
            for text in ("good", "bad", "better"):
                last = await talk.send(UserMessage(text))
            together.set()
            await talk.reply(last)
        assert ["good"] in wakes
        assert ["better"] in wakes
        assert all(len(each) == 1 for each in wakes)


@pytest.fixture
def matrix_url(any_url: str) -> str | None:
    """Of a PostgreSQL server; None: an SQLite file."""
    return None if any_url.startswith("sqlite") else any_url


class Steered:
    """An app whose tool sends messages to its own conversation, so that each attempt finds them."""

    def __init__(self) -> None:
        self.read: dict[int, list[str]] = {}
        self.misread: list[Any] = []
        self.answers: defaultdict[int, int] = defaultdict(int)
        self.wakes: list[list[str]] = []

    def make_app(self) -> affinity.App:
        read, misread, answers, wakes = self.read, self.misread, self.answers, self.wakes
        for each in (read, misread, answers, wakes):
            each.clear()
        failures: defaultdict[int, int] = defaultdict(int)

        async def look(ctx: affinity.agent.ToolContext, n: int) -> str:
            talk = ctx.wake.context.client.conversation(make(kind="agent"), "c")
            await talk.send(UserMessage(f"news {n}"), event_id=f"news {n}")
            return "found"

        async def model(request: ModelRequest) -> ModelReply:
            done = sum(isinstance(each, ToolUse) for each in request.events)
            texts = said(request.events)
            if read.setdefault(done, texts) != texts:
                misread.append((read[done], texts))
            failures[done] += 1
            if failures[done] == 1:
                raise ConnectionError("429")
            answers[done] += 1
            if done == 3:
                return ModelReply(content="done")
            return ModelReply(calls=[ToolCall(str(done + 1), "look", {"n": done + 1})])

        async def handler(wake: Wake, chat: Chat) -> None:
            await run_loop(wake, model=model, tools=[look], steer=True)
            wakes.append(said(wake.events))

        app = affinity.App("agents")
        app.include(make(handler, retry=RETRY, kind="agent"))
        return app


@pytest.mark.slow
@pytest.mark.slow_cases(r"\[(new|postgres)")
async def test_each_message_is_read_once_whatever_is_lost(matrix_url: str | None) -> None:
    """The model reads the same in each attempt, but for a message that came before the first attempt of a round."""
    agents = Steered()

    async def work(env: Env) -> list[str]:
        talk = env.client.conversation(make(kind="agent"), "c")
        seq = await talk.send(UserMessage("go"), event_id="go")
        assert (await talk.reply(seq)).text == "done"
        return said(each.event for each in await talk.history(kinds=[AgentMessage, ToolUse, ToolResult]))

    async def check(env: Env, entries: list[str]) -> None:
        assert entries == ["call 1", "result 1", "call 2", "result 2", "call 3", "result 3", "done"]
        last = agents.read[3]
        assert [each for each in last if each.startswith("news")] == ["news 1", "news 2", "news 3"], agents.read
        assert len(agents.wakes[-1]) == 4, agents.wakes
        for before, after in agents.misread:
            assert sorted(before) == sorted(after), (before, after)

    matrix = await crash_matrix(agents.make_app, work, check, url=matrix_url, workers=2, kills=0)
    assert matrix.commits >= 8
