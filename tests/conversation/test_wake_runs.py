"""Runs of several wakes: their steps keep their results until the run ends. And steps that go on by a token."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from affinity import RetryPolicy, Wake
from affinity.conversation import (
    AgentMessage,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    RequestEvent,
    RequestExpired,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
    current_wake,
)
from affinity.errors import StepInterrupted, TokenUnknown, WakeFailed
from tests.conversation.application import Chat
from tests.conversation.stepping import Failing, talk_to, texts

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.nightly_cases(r"^(?!test_a_run_goes_on_over_several_wakes|test_a_run_over_crashes).*\[postgres"),
]


class Effects:
    """Counts what ran, by name."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    async def __call__(self, name: str) -> str:
        self.runs[name] += 1
        return f"{name} {self.runs[name]}"


async def refund(wake: Wake, effects: Effects) -> None:
    """A run that asks twice, each time after a step."""
    async with wake.run("refund") as run:
        done = [await run.step("plan", effects, "plan")]
        answer = await run.require(ToolConfirmation("refund", {"cents": 4200}))
        done.append(f"{answer.allowed}" if isinstance(answer, ConfirmationAnswer) else "?")
        done.append(await run.step("pay", effects, "pay"))
        found = await run.require(CustomToolUse("lookup", {"of": done[2]}))
        done.append(str(found.result) if isinstance(found, CustomToolResult) else "?")
        first = run.events[0]
        wake.append(AgentMessage(" ".join([first.text if isinstance(first, UserMessage) else "?", *done])))
    if run.is_paused:
        wake.append(AgentMessage("waits"))


async def test_a_run_goes_on_over_several_wakes(server: str | None) -> None:
    """Each step runs once. What the run has asked is answered, and the next run begins anew."""
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        await refund(wake, effects)

    async with talk_to(server, handler) as (_, talk):
        for word, number in (("first", 1), ("second", 2)):
            assert (await talk.ask(UserMessage(word))).text == "waits"
            [request] = await talk.requests()
            assert (await talk.reply(await talk.answer(request.request_id, allowed=number == 1))).text == "waits"
            [request] = await talk.requests()
            reply = await talk.reply(await talk.answer(request.request_id, result=number))
            assert reply.text == f"{word} plan {number} {number == 1} pay {number} {number}"
            assert not await talk.requests()
    assert effects.runs == {"plan": 2, "pay": 2}


@pytest.mark.parametrize("place", range(4))
async def test_a_run_over_crashes(server: str | None, place: int) -> None:
    """The process ends in a wake of the run: at its begin, before its end, or in between."""
    effects, is_there = Effects(), anyio.Event()
    crashed: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        chat.wakes += 1
        if place == 0 and not crashed and chat.wakes == 2:
            is_there.set()
            await anyio.sleep_forever()
        await refund(wake, effects)
        if not crashed and place == chat.wakes:
            is_there.set()
            await anyio.sleep_forever()

    async with talk_to(server, handler) as (env, talk):

        async def reply(seq: int) -> str:
            async with anyio.create_task_group() as tasks:

                async def crash() -> None:
                    await is_there.wait()
                    crashed.append(place)
                    await env.crash()

                if not crashed:
                    tasks.start_soon(crash)
                text = (await talk.reply(seq)).text
                tasks.cancel_scope.cancel()
            return text

        assert await reply(await talk.send(UserMessage("x"))) == "waits"
        [request] = await talk.requests()
        assert await reply(await talk.answer(request.request_id, allowed=True)) == "waits"
        [request] = await talk.requests()
        assert await reply(await talk.answer(request.request_id, result="r")) == "x plan 1 True pay 1 r"
    assert effects.runs == {"plan": 1, "pay": 1}
    assert crashed == [place]


async def test_an_attempt_that_fails_keeps_the_results_of_its_run(server: str | None) -> None:
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        await refund(wake, effects)
        Failing()(wake)

    async with talk_to(server, handler) as (_, talk):
        assert (await talk.ask(UserMessage("x"))).text == "waits"
        [request] = await talk.requests()
        assert (await talk.reply(await talk.answer(request.request_id, allowed=True))).text == "waits"
        [request] = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, result=1))
        assert reply.text == "x plan 1 True pay 1 1"
    assert effects.runs == {"plan": 1, "pay": 1}


@pytest.mark.parametrize("at", ["end", "earlier"])
async def test_a_fork_of_a_conversation_whose_run_waits(at: str) -> None:
    """At the end it goes on in the run, beside its source. At an earlier entry the run begins anew."""
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        async with wake.run("refund") as run:
            plan = await run.step("plan", effects, "plan")
            answer = await run.require(ToolConfirmation("refund", {"cents": 4200}))
            is_allowed = isinstance(answer, ConfirmationAnswer) and answer.allowed
            wake.append(AgentMessage(f"{plan} {is_allowed}"))

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("go"))
        asked = (await talk.history())[-1].seq
        fork = await talk.fork("fork") if at == "end" else talk
        [request] = await talk.requests()
        assert (await talk.reply(await talk.answer(request.request_id, allowed=True))).text == "plan 1 True"
        if at == "earlier":
            fork = await talk.fork("fork", at=asked)
        [request] = await fork.requests()
        reply = await fork.reply(await fork.answer(request.request_id, allowed=False))
        if at == "end":
            assert (reply.text, effects.runs) == ("plan 1 False", {"plan": 1})
        else:
            assert (reply.stop_reason, effects.runs) == ("requires_action", {"plan": 2})


async def test_calls_at_the_same_time_wait_together() -> None:
    """One waits for a person, another one too, a third one runs: its result is kept, and both requests are made."""
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        results: dict[int, Any] = {}

        async def call(number: int) -> None:
            if number < 2:
                results[number] = (await run.require(CustomToolUse("lookup", {"n": number}))).result
            else:
                results[number] = await run.step("slow", slow)

        async def slow() -> str:
            await anyio.sleep(0.05)
            return await effects("slow")

        async with wake.run("calls") as run:
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(call, number)
            wake.append(AgentMessage(str([results[number] for number in range(3)])))

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
        assert effects.runs == {"slow": 1}
        first, second = await talk.requests()
        await talk.reply(await talk.answer(second.request_id, result="b"))
        assert [request.request_id for request in await talk.requests()] == [first.request_id]
        assert (await talk.reply(await talk.answer(first.request_id, result="a"))).text == "['a', 'b', 'slow 1']"
    assert effects.runs == {"slow": 1}


async def test_a_wake_that_leaves_the_run_out_keeps_its_answer() -> None:
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        if any(isinstance(event, ConfirmationAnswer) for event in wake.events):
            wake.append(AgentMessage("later"))
        else:
            await refund(wake, effects)

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
        [request] = await talk.requests()
        assert (await talk.reply(await talk.answer(request.request_id, allowed=True))).text == "later"
        assert (await talk.ask(UserMessage("again"))).text == "waits"
        [request] = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, result=1))
        assert reply.text == "x plan 1 True pay 1 1"


async def test_an_interrupt_ends_a_run() -> None:
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        await refund(wake, effects)

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
        seq = await talk.interrupt()
        assert (await talk.reply(seq)).text == "waits"
        assert effects.runs == {"plan": 2}
        [request] = await talk.requests()
        await talk.reply(await talk.answer(request.request_id, allowed=True))
        assert effects.runs == {"plan": 2, "pay": 1}


async def test_an_interrupt_that_is_set_aside_ends_a_run() -> None:
    """The wake that read it has failed for good, and the next one begins behind it."""
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.interrupt is not None:
            raise ConnectionError("the model is busy")
        await refund(wake, effects)

    async with talk_to(None, handler, retry=RetryPolicy(max_attempts=1)) as (_, talk):
        await talk.ask(UserMessage("x"))
        seq = await talk.interrupt()
        with pytest.raises(WakeFailed):
            await talk.reply(seq)
        assert (await talk.ask(UserMessage("y"))).text == "waits"
        assert effects.runs == {"plan": 2}


async def test_a_run_that_begins_with_an_interrupt_keeps_its_steps_in_the_next_attempt() -> None:
    """The interrupt ends the runs of earlier wakes, and not the one that its own wake has begun."""
    effects = Effects()
    attempts: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if any(isinstance(event, UserInterrupt) for event in wake.events):
            attempts.append(wake.attempt)
            async with wake.run("refund") as run:
                await run.step("pay", effects, "again")
                if len(attempts) < 3:
                    raise ConnectionError("the last answer was lost")
                await run.pause()
        else:
            await refund(wake, effects)

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
        await talk.reply(await talk.interrupt())
    assert attempts == [1, 2, 3]
    assert effects.runs == {"plan": 1, "again": 1}


class Question(RequestEvent):
    """A request of the application."""

    text: str
    request_id: str = ""
    kind: Any = "app.question"


@pytest.mark.parametrize("built_in", [True, False])
async def test_a_request_of_a_run_expires(built_in: bool) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        asked = ToolConfirmation("refund") if built_in else Question(text="?")
        async with wake.run("ask") as run:
            answer = await run.require(asked, expires_in=5.0)
            assert answer.expired if isinstance(answer, ConfirmationAnswer) else isinstance(answer, RequestExpired)
            wake.append(AgentMessage("expired"))

    async with talk_to(None, handler, events=[Question]) as (env, talk):
        await talk.ask(UserMessage("x"))
        await env.advance(6.0)
        assert "expired" in await texts(talk)


async def test_a_run_pauses_until_a_revisit() -> None:
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        async with wake.run("poll") as run:
            begun = await run.step("begin", effects, "begin")
            if not wake.due:
                wake.revisit(60)
                await run.pause()
            wake.append(AgentMessage(begun))

    async with talk_to(None, handler) as (env, talk):
        await talk.ask(UserMessage("x"))
        await env.advance(61.0)
        assert (await texts(talk))[-1] == "begin 1"
    assert effects.runs == {"begin": 1}


@pytest.mark.parametrize("waits", ["outer", "inner"])
async def test_a_run_within_another_one(waits: str) -> None:
    """The block is left of the run that waits, with those within it; both go on."""
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        left: list[str] = []
        async with wake.run("outer") as outer:
            async with wake.run("inner") as inner:
                left.append(await inner.step("inner", effects, "inner"))
                await (outer if waits == "outer" else inner).require(ToolConfirmation("refund"))
                left.append("answered")
            left.append(await outer.step("behind", effects, "behind"))
        wake.append(AgentMessage(" ".join([*left, f"{inner.is_paused} {outer.is_paused}"])))

    async with talk_to(None, handler) as (_, talk):
        first = "inner 1 True True" if waits == "outer" else "inner 1 behind 1 True False"
        assert (await talk.ask(UserMessage("x"))).text == first
        [request] = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=True))
        number = 1 if waits == "outer" else 2  # the outer one has ended before
        assert reply.text == f"inner 1 answered behind {number} False False"


async def test_an_error_that_the_handler_catches_ends_the_run() -> None:
    effects = Effects()

    async def handler(wake: Wake, chat: Chat) -> None:
        try:
            async with wake.run("work") as run:
                await run.step("work", effects, "work")
                Failing()(wake)
        except ConnectionError:
            wake.append(AgentMessage("caught"))

    async with talk_to(None, handler) as (_, talk):
        for _ in range(2):
            assert (await talk.ask(UserMessage("x"))).text == "caught"
    assert effects.runs == {"work": 2}


MISUSES: Any = {
    "again while it waits": "waits in this wake",
    "within itself": "goes on in this wake",
    "a step behind the block": "was left",
    "a request in a step": "not in the function of a step",
    "a token outside of a step": "for the function of a step",
}


@pytest.mark.parametrize("what", MISUSES)
async def test_misuses_are_refused(what: str) -> None:
    async def work() -> None:
        pass

    async def handler(wake: Wake, chat: Chat) -> None:
        async def ask() -> None:
            await run.require(ToolConfirmation("refund"))

        async with wake.run("r") as run:
            match what:
                case "again while it waits":
                    await run.pause()
                case "within itself":
                    async with wake.run("r"):
                        pass
                case "a request in a step":
                    await run.step("ask", ask)
                case "a token outside of a step":
                    await wake.keep_token("t")
        if what == "again while it waits":
            wake.run("r")
        await run.step("late", work)

    async with talk_to(None, handler) as (_, talk):
        with pytest.raises(WakeFailed, match=MISUSES[what]):
            await talk.ask(UserMessage("x"))


# -- steps that go on by a token


@pytest.mark.parametrize("repeat", ["always", "never"])
@pytest.mark.parametrize("in_run", [False, True])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_step_goes_on_by_its_token(server: str | None, repeat: Any, in_run: bool, is_known: bool) -> None:
    """After a crash the call that has begun is found again, and is not begun a second time."""
    effects, has_begun = Effects(), anyio.Event()

    async def ask(question: str) -> str:
        begun = await effects("begin")
        wake = current_wake()
        assert wake is not None
        await wake.keep_token("early")
        await wake.keep_token(f"token of {begun}")
        has_begun.set()
        await anyio.sleep_forever() if effects.runs["begin"] == 1 else None
        return f"answer of {begun}"

    def find(token: str) -> str:  # in a thread
        assert current_wake() is not None
        if not is_known:
            raise TokenUnknown("gone")
        return f"found by {token}"

    async def handler(wake: Wake, chat: Chat) -> None:
        try:
            async with wake.run("r") as run:
                found = await (run if in_run else wake).step("ask", ask, "?", repeat=repeat, resume=find)
        except StepInterrupted:
            found = "interrupted"
        Failing(2)(wake)
        wake.append(AgentMessage(found))

    async with talk_to(server, handler) as (env, talk):
        seq = await talk.send(UserMessage("x"))
        with anyio.fail_after(30):
            await has_begun.wait()
        await env.crash()
        text = (await talk.reply(seq)).text
    expected = "found by token of begin 1" if is_known else "interrupted" if repeat == "never" else "answer of begin 2"
    assert text == expected
    assert effects.runs["begin"] == (2 if expected == "answer of begin 2" else 1)


async def test_a_wake_sees_what_has_arrived_and_the_next_one_reads_it(server: str | None) -> None:
    begun = anyio.Event()
    seen: list[tuple[str, int]] = []

    async def look() -> None:
        wake = current_wake()
        assert wake is not None
        wake.stream("looks")  # also from within a step
        while len(found := await wake.arrived()) < 2:
            await anyio.sleep(0.01)
        seen.extend((entry.event.text, entry.seq) for entry in found if isinstance(entry.event, UserMessage))

    async def handler(wake: Wake, chat: Chat) -> None:
        if not seen:
            assert not await wake.arrived()
            begun.set()
            await wake.step("look", look)
        wake.append(AgentMessage(" ".join(event.text for event in wake.events if isinstance(event, UserMessage))))

    async with talk_to(server, handler) as (_, talk):
        first = await talk.send(UserMessage("a"))
        await begun.wait()
        numbers = [await talk.send(UserMessage(text)) for text in ("b", "c")]
        assert ((await talk.reply(first)).text, (await talk.reply(numbers[1])).text) == ("a", "b c")
    assert seen == [("b", numbers[0]), ("c", numbers[1])]


async def test_no_wake_is_current_outside_of_a_handler() -> None:
    found: list[Any] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, lambda: found.append(current_wake() is wake))

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert (found, current_wake()) == ([True], None)
