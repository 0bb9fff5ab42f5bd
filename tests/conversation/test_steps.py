"""Steps of wakes, and parts that are committed while a wake runs: what is done once is not done again."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from affinity import ConversationLimits, RetryPolicy, Wake
from affinity.conversation import AgentMessage, ChildDelegated, ChildEnded, ToolConfirmation, UserMessage
from affinity.errors import (
    NotSerializable,
    SessionWriteConflict,
    StepFailed,
    StepInterrupted,
    StepMismatch,
    WakeFailed,
    WakeMisuse,
    decisive_error,
)
from tests.conversation.application import Chat, make
from tests.conversation.stepping import RETRY, Failing, talk_to, texts

pytestmark = [
    pytest.mark.anyio,
    # The suite has what journals owe it on each database.
    pytest.mark.nightly_cases(r"^(?!test_(what_is_committed_stays_and_counts|a_step_whose_process_ends)).*\[postgres"),
]


class Price(BaseModel):
    """A result with a type."""

    cents: int


# -- steps


async def test_a_step_that_is_done_is_not_done_again(server: str | None) -> None:
    """Its result is that of the first time, with its type; a sync function runs in a thread."""
    runs: list[str] = []

    async def look_up(name: str) -> Price:
        runs.append(name)
        return Price(cents=len(runs))

    def pay(cents: int) -> str:
        runs.append("paid")
        return f"paid {cents}"

    async def handler(wake: Wake, chat: Chat) -> None:
        price = await wake.step("look_up", look_up, "tea")
        again = await wake.step("look_up", look_up, "milk")
        paid = await wake.step("pay", pay, price.cents + again.cents)
        wake.append(AgentMessage(paid))
        Failing(2)(wake)

    async with talk_to(server, handler) as (_, talk):
        assert (await talk.ask(UserMessage("buy"))).text == "paid 3"
        assert runs == ["tea", "milk", "paid"]
        assert (await talk.ask(UserMessage("again"))).text == "paid 9"  # another wake: its steps are its own
        assert await texts(talk) == ["buy", "paid 3", "again", "paid 9"]


async def test_a_step_with_a_key_is_that_key_whatever_its_place(server: str | None) -> None:
    """A handler that goes another way in its next attempt gets it; other arguments are refused."""
    runs: list[str] = []
    refused: list[str] = []

    async def charge(order: str) -> str:
        runs.append(order)
        return f"charged {order}"

    async def handler(wake: Wake, chat: Chat) -> None:
        orders = ["a", "b"] if wake.attempt == 1 else ["b", "a", "c"]
        done = [await wake.step("charge", charge, each, key=each) for each in orders]
        Failing()(wake)
        with pytest.raises(StepMismatch, match="use a key for each set of arguments") as raised:
            await wake.step("charge", charge, "z", key="a")
        refused.append(str(raised.value))
        wake.append(AgentMessage(" ".join(done)))

    async with talk_to(server, handler) as (_, talk):
        assert (await talk.ask(UserMessage("x"))).text == "charged b charged a charged c"
        assert (runs, len(refused)) == (["a", "b", "c"], 1)


async def test_a_step_whose_arguments_have_changed_is_another_step() -> None:
    runs: list[int] = []

    async def count(number: int) -> int:
        runs.append(number)
        return number

    async def handler(wake: Wake, chat: Chat) -> None:
        await wake.step("count", count, 0)
        await wake.step("count", count, wake.attempt)
        Failing()(wake)

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert runs == [0, 1, 2]


async def test_an_argument_without_a_json_form_counts_by_its_type(server: str | None) -> None:
    """One that contains itself too, or half of a character: its step is found again, beside the other arguments."""
    runs: list[int] = []
    items: list[Any] = []
    items.append(items)

    async def count(number: int, *rest: object) -> int:
        runs.append(number)
        return number

    async def handler(wake: Wake, chat: Chat) -> None:
        for rest in ([items], [object()], ["\ud800"]):
            await wake.step("count", count, 1, *rest)
            await wake.step("count", count, 2, *rest)
        Failing()(wake)

    async with talk_to(server, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert runs == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("repeat", ["always", "never"])
async def test_steps_of_one_name_run_at_the_same_time_without_keys(server: str | None, repeat: Any) -> None:
    """Each is known by its arguments, and by its place among its equals, in whatever order the next attempt begins."""
    runs: list[int] = []

    async def work(number: int) -> list[int]:
        await anyio.sleep(0.01 * number)
        runs.append(number)
        return [number, len(runs)]

    async def handler(wake: Wake, chat: Chat) -> None:
        results: list[list[int]] = []

        async def run(number: int) -> None:
            results.append(await wake.step("work", work, number, repeat=repeat))

        async with anyio.create_task_group() as tasks:
            for number in [0, 1, 2, 1] if wake.attempt == 1 else [2, 1, 1, 0]:
                tasks.start_soon(run, number)
        Failing()(wake)
        wake.append(AgentMessage(str(sorted(results))))

    async with talk_to(server, handler) as (_, talk):
        assert (await talk.ask(UserMessage("x"))).text == "[[0, 1], [1, 2], [1, 3], [2, 4]]"
    assert runs == [0, 1, 1, 2]


async def test_a_key_names_one_step_at_a_time() -> None:
    outcomes: list[str] = []

    async def wait(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "done"

    async def handler(wake: Wake, chat: Chat) -> None:
        async def run(key: str) -> None:
            try:
                outcomes.append(await wake.step("wait", wait, 0.01, key=key))
            except WakeMisuse as error:
                outcomes.append(type(error).__name__)

        async with anyio.create_task_group() as tasks:
            for key in ["k", "k", "l"]:
                tasks.start_soon(run, key)

    async with talk_to(None, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert sorted(outcomes) == ["WakeMisuse", "done", "done"]


async def test_a_step_is_tried_again_by_its_policy_within_its_timeout(server: str | None) -> None:
    runs: list[int] = []

    async def flaky() -> str:
        runs.append(1)
        if len(runs) < 3:
            raise ConnectionError("not yet")
        if len(runs) == 3:
            await anyio.sleep_forever()
        return "there"

    async def handler(wake: Wake, chat: Chat) -> None:
        retry = RetryPolicy(max_attempts=4, initial_interval=0.01)
        wake.append(AgentMessage(await wake.step("flaky", flaky, retry=retry, timeout=timedelta(seconds=0.05))))

    async with talk_to(server, handler) as (_, talk):
        assert (await talk.ask(UserMessage("x"))).text == "there"
        assert len(runs) == 4


@pytest.mark.parametrize("repeat", ["always", "never"])
async def test_a_step_whose_process_ends_runs_again_unless_it_must_not(server: str | None, repeat: Any) -> None:
    runs: list[str] = []
    is_running = anyio.Event()

    async def pay() -> str:
        runs.append("paid")
        if len(runs) == 1:
            is_running.set()
            await anyio.sleep_forever()
        return "paid"

    async def handler(wake: Wake, chat: Chat) -> None:
        try:
            found = await wake.step("pay", pay, repeat=repeat)
        except StepInterrupted as error:
            found = f"unknown: {error}"
        wake.append(AgentMessage(found))

    async with talk_to(server, handler) as (env, talk):
        seq = await talk.send(UserMessage("x"))
        with anyio.fail_after(30):
            await is_running.wait()
        await env.crash()
        text = (await talk.reply(seq)).text
    if repeat == "always":
        assert (text, runs) == ("paid", ["paid"] * 2)
    else:
        assert "its outcome is not known" in text
        assert runs == ["paid"]


COLLIDING: Any = [
    [("pay", "order/7"), ("pay/order", "7")],
    [("pay/k", None), ("pay", "k#1")],
    [("pay#1", None), ("pay", None), ("pay", "1"), ("pay", "#1")],
    [('pay","k', None), ("pay", "k"), ("pay", 'k"'), ('pay"', "k")],
    [("step", "a"), ("begun", "a"), ("part", None)],
    [("ä", "b"), ("a\u0308", "b")],
]
"""Names and keys of steps that a text with separators does not tell apart."""


@pytest.mark.parametrize("places", COLLIDING)
@pytest.mark.parametrize("repeat", ["always", "never"])
async def test_steps_are_known_by_pairs(places: Any, repeat: Any, server: str | None) -> None:
    """Each runs once, whatever is in names and keys, also at the same time. So does what `begin_once` records."""
    runs: list[Any] = []

    async def work(place: Any) -> Any:
        runs.append(place)
        await anyio.sleep(0.01)
        return place

    async def handler(wake: Wake, chat: Chat) -> None:
        results = {}

        async def run(name: str, key: str | None) -> None:
            results[name, key] = await wake.step(name, work, [name, key], key=key, repeat=repeat)

        began = [await wake.begin_once(f"step/{name}/{key}") for name, key in places]
        assert began == [wake.attempt == 1] * len(places)
        async with anyio.create_task_group() as tasks:
            for place in places:
                tasks.start_soon(run, *place)
        Failing()(wake)
        assert all(results[place] == [*place] for place in places)

    async with talk_to(server, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert sorted(runs, key=str) == sorted(map(list, places), key=str)


class CardDeclined(Exception):
    """An error whose constructor takes other arguments than its text."""

    recorded_fields = ("cents",)

    def __init__(self, *, cents: int) -> None:
        super().__init__(f"no {cents} cents")
        self.cents = cents


class Sealed(ValueError):
    """An error from which no class can be derived."""

    def __init_subclass__(cls) -> None:
        raise TypeError("sealed")


def _raised(error: Exception) -> Any:
    async def fail() -> None:
        raise error

    return fail


async def _no_json() -> object:
    return object()


@pytest.mark.parametrize(
    ("function", "caught", "text"),
    [
        (_raised(ConnectionError("card declined")), ConnectionError, "card declined"),
        (_raised(CardDeclined(cents=7)), CardDeclined, "no 7 cents"),
        (_raised(Sealed("x")), Exception, "x"),
        (_raised(OSError(2, "gone")), OSError, "[Errno 2] gone"),
        (_raised(ExceptionGroup("all", [ExceptionGroup("some", [KeyError("k")])])), Exception, "'k'"),
        (_raised(ExceptionGroup("all", [KeyError("k"), ValueError("v")])), Exception, "ValueError: v"),
        (_no_json, NotSerializable, "result of step 'charge'"),
        (anyio.sleep_forever, TimeoutError, ""),
    ],
)
async def test_the_error_of_a_step_that_must_not_be_repeated_is_kept(
    function: Any, caught: type[Exception], text: str, server: str | None
) -> None:
    """The next attempt catches the same error; a handler that does not catch it fails with it, and is not retried."""
    seen: list[Exception] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        try:
            await wake.step("charge", function, repeat="never", timeout=0.1)
        except caught as error:
            seen.append(error)
        Failing(1)(wake)
        await wake.step("charge", function, key="again", repeat="never", timeout=0.1)

    async with talk_to(server, handler, retry=RetryPolicy(max_attempts=4, initial_interval=0.01)) as (_, talk):
        with pytest.raises(WakeFailed) as failed:
            await talk.ask(UserMessage("x"))
    name = type(decisive_error(seen[0])).__name__
    assert failed.value.error_type == name
    assert text in failed.value.message
    assert [type(each) for each in seen[1:] if not isinstance(each, StepFailed)] == []
    assert all(each.error_type == name and text in each.message for each in seen[1:] if isinstance(each, StepFailed))
    if caught is CardDeclined:
        assert [getattr(each, "cents", None) for each in seen] == [7] * 3
    assert len(seen) == (2 if function is _no_json else 3)  # which no policy retries


async def test_an_error_of_a_step_is_not_kept(server: str | None) -> None:
    """The next attempt runs it again."""
    runs: list[str] = []

    async def fail(name: str) -> None:
        runs.append(name)
        if runs.count(name) == 1:
            raise ConnectionError("busy")

    async def handler(wake: Wake, chat: Chat) -> None:
        await wake.step("fail", fail, "a", key="a")
        await wake.step("fail" + "l" * 200, fail, "b", key="b" * 200)

    async with talk_to(server, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert runs == ["a", "a", "b", "b"]


async def test_a_result_without_a_json_form_is_refused(server: str | None) -> None:
    async def make_object() -> object:
        return object()

    async def handler(wake: Wake, chat: Chat) -> None:
        await wake.step("make", make_object)

    async with talk_to(server, handler) as (_, talk):
        with pytest.raises(WakeFailed, match="result of step 'make'"):
            await talk.ask(UserMessage("x"))


# -- parts


async def test_what_is_committed_is_seen_while_the_wake_runs(server: str | None) -> None:
    """The entries, the state, and the request, which may be answered; the input waits until the end."""
    seen, answered = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        if not isinstance(wake.events[0], UserMessage):
            return
        chat.received.append("begun")
        wake.append(AgentMessage("I look it up"))
        wake.require(ToolConfirmation("refund"))
        await wake.commit()
        seen.set()
        await answered.wait()
        wake.append(AgentMessage("done"))

    async with talk_to(server, handler) as (env, talk):
        seq = await talk.send(UserMessage("x"))
        with anyio.fail_after(30):
            await seen.wait()
        assert await texts(talk) == ["x", "I look it up"]
        record = await env.client.session_manager.show("c")
        assert Chat.model_validate_json(record.state).received == ["begun"]
        assert [each.seq for each in await talk.history(pending=True)] == [seq]
        (request,) = await talk.requests()
        await talk.answer(request.request_id, allowed=True)
        answered.set()
        reply = await talk.reply(seq)
        assert [each.text for each in reply.events if isinstance(each, AgentMessage)] == ["I look it up", "done"]


async def test_what_is_committed_stays_and_counts_once(server: str | None) -> None:
    """An attempt that adds the same again adds nothing: entries, requests, revisits, delegations."""
    child = make(kind="child")
    states: list[list[str]] = []
    committed: list[list[str]] = []
    ids: list[tuple[str, str]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if not isinstance(wake.events[0], UserMessage):
            return
        committed.append([entry.kind for entry in wake.committed])
        wake.append(AgentMessage("first"))
        wake.append(AgentMessage("first"))
        asked = wake.require(ToolConfirmation("refund"))
        wake.revisit(timedelta(days=1), reason="look again")
        ids.append((asked.request_id, await wake.delegate(child, "c/child", UserMessage("work"))))
        chat.received.append(f"attempt {wake.attempt}")
        await wake.commit()
        states.append(chat.received.copy())
        Failing(2)(wake)
        wake.append(AgentMessage("last"))

    async with talk_to(server, handler, child) as (env, talk):
        await talk.ask(UserMessage("x"))
        assert await texts(talk) == ["x", "first", "first", "last"]
        assert [len(each) for each in committed] == [0, 4, 4]
        assert states == [["attempt 1"]] * 3
        assert ids[0] == ids[1] == ids[2]
        (request,) = await talk.requests()
        assert request.request_id == ids[0][0]
        assert len(await talk.revisits()) == 1
        assert len(await talk.history(kinds=[ChildDelegated])) == 1
        assert await env.client.conversation(child, "c/child").history(kinds=[UserMessage])


async def test_what_counts_as_committed_is_no_new_one(server: str | None) -> None:
    """The request needs no room; and a revisit without a key does not count as one that has a key."""
    ids: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if not isinstance(wake.events[0], UserMessage):
            return
        ids.append(wake.require(ToolConfirmation("refund")).request_id)
        wake.revisit(timedelta(days=1), key="k", reason="look again")
        await wake.commit()
        Failing()(wake)
        wake.revisit(timedelta(days=1), reason="look again")

    async with talk_to(server, handler, limits=ConversationLimits(requests=1)) as (_, talk):
        await talk.ask(UserMessage("x"))
        assert len(ids) == 2
        assert [each.request_id for each in await talk.requests()] == [*set(ids)]
        assert sorted(each.key == "k" for each in await talk.revisits()) == [False, True]


async def test_what_is_committed_counts_for_the_usage_once(server: str | None) -> None:
    used: list[dict[str, int]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        wake.append(AgentMessage("a", usage={"tokens": 3}))
        await wake.commit()
        wake.append(AgentMessage("b", usage={"tokens": 4}))
        used.extend([wake.usage, await wake.total_usage()])
        Failing()(wake)

    async with talk_to(server, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
        assert used == [{"tokens": 7}] * 4
        assert await talk.usage() == {"tokens": 7}


async def test_the_last_message_is_the_result_for_the_parent_if_an_earlier_attempt_has_committed_it(
    server: str | None,
) -> None:
    async def below(wake: Wake, chat: Chat) -> None:
        if not wake.committed:
            wake.append(AgentMessage("found"))
            await wake.commit()
        Failing()(wake)

    child = make(below, kind="child", retry=RETRY)
    results: list[Any] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ChildEnded):
                results.append(event.result)
            else:
                await wake.delegate(child, "c/child", event)

    async with talk_to(server, handler, child) as (env, talk):
        await talk.send(UserMessage("x"))
        await env.run_until_idle()
        assert results == ["found"]


async def test_a_request_of_a_part_expires_when_the_cycles_are_used_up(server: str | None) -> None:
    """It is answered by the conversation, which does not wait for a revisit any more."""

    async def below(wake: Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], UserMessage):
            wake.require(ToolConfirmation("refund"), expires_in=60)
            wake.revisit(5)
            await wake.commit()
        chat.received += [type(event).__name__ for event in wake.events]

    child = make(below, kind="child")

    async def handler(wake: Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], UserMessage):
            await wake.delegate(child, "c/child", wake.events[0], max_cycles=1)

    async with talk_to(server, handler, child) as (env, talk):
        await talk.send(UserMessage("x"))
        await env.run_until_idle()
        assert await env.client.conversation(child, "c/child").requests() == []
        record = await env.client.session_manager.show("c/child")
        assert Chat.model_validate_json(record.state).received == ["UserMessage", "ConfirmationAnswer"]


async def test_a_wake_that_has_made_a_conversation_commits_with_its_end(server: str | None) -> None:
    """The fork begins with what the wake has processed, and nothing is in one of the two alone."""
    seen: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        wake.append(AgentMessage("before"))
        await wake.fork("copy")
        await wake.commit()
        seen.append(len(await wake.history(kinds=[AgentMessage])))
        Failing()(wake)

    async with talk_to(server, handler) as (env, talk):
        await talk.ask(UserMessage("x"))
        copy = env.client.conversation(make(), "copy")
        assert await texts(talk) == await texts(copy) == ["x", "before"]
        assert not await copy.history(pending=True)
        assert seen == [0, 0]


async def test_what_is_committed_stays_when_the_wake_fails_for_good(server: str | None) -> None:
    """A later wake goes on behind it, with the same input, and does not take it for its own."""
    is_good = False
    own: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        own.append(len(wake.committed))
        wake.append(AgentMessage("a"))
        await wake.commit()
        if not is_good:
            raise ConnectionError("busy")

    async with talk_to(server, handler, retry=RetryPolicy(max_attempts=1)) as (_, talk):
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("x"))
        assert await texts(talk) == ["x", "a"]
        is_good = True
        await talk.ask(UserMessage("y"))
        assert await texts(talk) == ["x", "a", "y", "a"]
        assert own == [0, 0]


def lose_parts(wake: Wake) -> None:
    """Commits of parts are refused in this attempt."""

    async def refuse(*_: object) -> None:
        await anyio.sleep(0.01)
        raise SessionWriteConflict("c", None, None, "refused")

    object.__setattr__(wake.context, "_commit_part", refuse)


async def test_a_part_that_may_be_lost_repeats_the_wake_even_if_the_handler_catches_it(server: str | None) -> None:
    attempts: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        attempts.append(len(wake.committed))
        wake.append(AgentMessage("a"))
        if len(attempts) == 1:
            lose_parts(wake)
        try:
            await wake.commit()
        except Exception:
            wake.append(AgentMessage("never seen"))

    async with talk_to(server, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
        assert await texts(talk) == ["x", "a"]
        assert len(attempts) == 2


async def test_nothing_begins_whose_record_went_with_a_lost_part(server: str | None) -> None:
    """Tasks of a wake that commit at the same time share a transaction, and what becomes of it."""
    outcomes: list[Any] = []

    async def note(call: Awaitable[Any]) -> None:
        try:
            outcomes.append(await call)
        except Exception as error:
            outcomes.append(type(error).__name__)

    async def handler(wake: Wake, chat: Chat) -> None:
        if not outcomes:
            lose_parts(wake)
            wake.append(AgentMessage("a"))
            async with anyio.create_task_group() as tasks:
                for call in (wake.commit(), wake.commit(), wake.begin_once("k")):
                    tasks.start_soon(note, call)

    async with talk_to(server, handler) as (_, talk):
        await talk.ask(UserMessage("x"))
    assert outcomes == ["SessionWriteConflict"] * 3


async def test_streamed_parts_of_before_are_replaced(server: str | None) -> None:
    """A feed that sees them learns that they are, and sees what is streamed behind."""
    gone, more = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        wake.stream("I th")
        await gone.wait()
        wake.append(AgentMessage("I thought"))
        await wake.commit()
        wake.stream("and")
        await more.wait()

    async with talk_to(server, handler) as (_, talk):
        await talk.send(UserMessage("x"))
        found: list[str] = []
        async for item in talk.events(follow=True, stream=True):
            name = type(item).__name__ if not hasattr(item, "event") else type(item.event).__name__
            if name == "Streamed":
                found.append(str(getattr(item, "value", "")))
                (more if gone.is_set() else gone).set()
            elif name in {"Retracted", "AgentMessage"}:
                found.append(name)
            elif name == "ConversationIdle":
                break
        assert found[:4] == ["I th", "Retracted", "AgentMessage", "and"]
