"""Headers of a start or an event: on what the code requests behind it, live and in replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import affinity
from affinity import Event, OrchestrationContext
from affinity.errors import InvalidInput, NotSerializable, OrchestrationMisuse
from affinity.headers import check_headers, sent_headers
from affinity.orchestration import events as ev
from affinity.orchestration.wire import decode_event, decode_task, encode_event, without_trace
from affinity.provider.contract import Generation, Turn
from affinity.worker.turns import build_turn
from tests.support.messages import decode_message

from .harness import Live, define, run

START, ANN, BOB = {"by": "start"}, {"by": "ann"}, {"by": "bob", "x": 'ü"\\'}
Question = Event("question", int, reply=int)


def raised(name: str, headers: Mapping[str, str] | None, key: str | None = None) -> ev.EventRaised:
    return ev.EventRaised(name, "1", key, headers)


def turn_of(live: Live, step: Any) -> Turn:
    return build_turn(
        live.execution, step, generation=Generation("first"), first_version=None, consumed=[], acks=[], lock_here=0
    ).turn


def of_work(turn: Turn) -> list[Any]:
    return [decode_task(item.payload).headers for item in turn.work_items]


async def child(ctx: OrchestrationContext) -> None: ...


async def everything(ctx: OrchestrationContext) -> None:
    await ctx.schedule_wait("go")
    ctx.schedule_activity("a")
    ctx.raise_event("other", "hello")
    await ctx.start_detached("loose")
    await ctx.schedule_sub_orchestration("child")
    ctx.continue_as_new()


@pytest.mark.parametrize("headers", [ANN, None])
def test_all_that_code_requests_has_the_headers_of_the_last_event_and_the_next_execution_those_of_the_start(
    headers: Mapping[str, str] | None,
) -> None:
    live = Live(everything)
    live.start(headers=START)
    turn = turn_of(live, live.feed(raised("go", headers)))
    assert of_work(turn) == [headers or START]
    sent = [decode_message(message.payload)[1] for message in turn.messages]
    assert [event.headers for event in sent if isinstance(event, ev.EventRaised)] == [headers or START]
    started = [decode_message(new.start)[1] for new in turn.instances]
    assert [event.headers for event in started if isinstance(event, ev.OrchestrationStarted)] == 2 * [headers or START]
    children = [i for i, event in enumerate(live.history, 1) if isinstance(event, ev.SubOrchestrationScheduled)]
    turn = turn_of(live, live.feed(ev.SubOrchestrationCompleted(children[0], "null")))
    (again,) = [event for _, event in map(decode_message, [each.payload for each in turn.messages])]
    assert isinstance(again, ev.OrchestrationStarted)
    assert again.headers == START


async def reads_two(ctx: OrchestrationContext) -> list[Any]:
    seen = [dict(ctx.headers)]
    first, second = ctx.schedule_wait("first"), ctx.schedule_wait("second")
    await ctx.schedule_wait("go")
    seen.append(dict(ctx.headers))
    await first
    one = ctx.schedule_activity("of_first")
    seen.append(dict(ctx.headers))
    await second
    two = ctx.schedule_activity("of_second")
    seen.append(dict(ctx.headers))
    await ctx.gather(one, two)
    return [*seen, dict(ctx.headers)]


def test_a_request_has_the_headers_of_its_moment_also_if_two_events_are_read_in_one_step() -> None:
    live = Live(reads_two)
    live.start(headers=START)
    live.feed(raised("first", ANN), raised("second", BOB))
    turn = turn_of(live, live.feed(raised("go", None)))
    assert of_work(turn) == [ANN, BOB]
    scheduled = [i for i, event in enumerate(live.history, 1) if isinstance(event, ev.ActivityScheduled)]
    live.feed(*[ev.ActivityCompleted(each, "null") for each in scheduled])
    assert live.outcome == ev.OrchestrationCompleted(encoded([START, START, ANN, BOB, BOB]))


def encoded(value: object) -> str:
    from pydantic_core import to_json

    return to_json(value).decode()


async def branches(ctx: OrchestrationContext) -> None:
    async def branch(name: str) -> None:
        await ctx.schedule_wait(name)
        await ctx.schedule_activity(name)
        await ctx.schedule_activity(f"{name} again")

    await ctx.gather(branch("x"), branch("y"), branch("z"))


def test_each_branch_has_the_headers_of_its_own_event() -> None:
    """Events of several senders come in one turn."""
    live = Live(branches)
    live.start()
    step = live.feed(raised("x", ANN), raised("y", BOB), raised("z", None))
    assert of_work(turn_of(live, step)) == [ANN, BOB, None]
    scheduled = [i for i, event in enumerate(live.history, 1) if isinstance(event, ev.ActivityScheduled)]
    step = live.feed(*[ev.ActivityCompleted(each, "null") for each in reversed(scheduled)])
    assert of_work(turn_of(live, step)) == [None, BOB, ANN]


async def asked_later(ctx: OrchestrationContext) -> None:
    if not ctx.headers:
        await ctx.schedule_wait("go")
        ctx.continue_as_new()
    question = await ctx.schedule_wait(Question)
    await ctx.schedule_activity("think", question.data)


def test_an_event_that_is_carried_over_keeps_its_headers() -> None:
    live = Live(asked_later)
    live.start()
    step = live.feed(raised("question", ANN, "k"), raised("go", BOB))
    assert isinstance(step.outcome, ev.ContinuedAsNew)
    assert step.outcome.carried == (ev.CarriedEvent("question", "1", "k", ANN),)
    carried = decode_event(encode_event(step.outcome))
    assert carried == step.outcome
    later = Live(asked_later, execution_id=2)
    step = later.start(carried=step.outcome.carried, headers=START)
    assert of_work(turn_of(later, step)) == [ANN]


async def moves(ctx: OrchestrationContext) -> None:
    first = await ctx.schedule_wait("go")
    moved = ctx.schedule_session_moved("s")
    await moved
    await ctx.schedule_activity("a", first)


def test_the_move_of_a_session_changes_no_headers() -> None:
    from .harness import moved

    live = Live(moves)
    live.start()
    live.feed(raised("go", ANN))
    assert of_work(turn_of(live, live.feed(moved("s")))) == [ANN]


def test_without_headers_the_texts_are_as_before() -> None:
    start = ev.OrchestrationStarted("f", "1", "null")
    assert encode_event(start) == '{"type":"orchestration_started","name":"f","version":"1","input":null}'
    live = run(branches, raised("x", None))
    assert not live.execution._scheduler.sent_headers


def test_a_trace_context_is_behind_the_headers_and_is_stripped_alone() -> None:
    event = ev.EventRaised("e", "1", "k", ANN, "00-x", asked=True)
    assert without_trace(encode_event(event)) == encode_event(ev.EventRaised("e", "1", "k", ANN))
    decoded = decode_event(encode_event(event))
    assert isinstance(decoded, ev.EventRaised)
    assert (decoded.headers, decoded.trace, decoded.asked) == (ANN, "00-x", True)


@pytest.mark.parametrize("text", ['["a"]', '{"a":1}', '{"":"a"}', '{"a":"b\\nc"}', '{"a":"' + "x" * 4096 + '"}', "7"])
def test_damaged_headers_are_refused(text: str) -> None:
    with pytest.raises(NotSerializable):
        decode_event('{"type":"event_raised","name":"e","data":1,"headers":' + text + "}")


BAD: list[Any] = [
    {"": "x"}, {"a b": "x"}, {"ü": "x"}, {"a" * 65: "x"}, {"a": 1}, {1: "a"}, {"a": "x\n"}, {"a": "\x85"},
    {"a": "\ud800"}, {"a": "x" * 4096}, {str(n): "" for n in range(33)}, ["a"], None, "a=b",
]  # fmt: skip


@pytest.mark.parametrize("headers", BAD)
def test_headers_out_of_bounds_are_refused_where_they_are_set(headers: Any) -> None:
    with pytest.raises(InvalidInput), affinity.use_headers(headers):
        pass
    assert sent_headers() is None


def test_blocks_add_to_each_other_and_the_inner_one_counts() -> None:
    with affinity.use_headers({"a": "1", "b": "1"}):
        with affinity.use_headers({"b": "2"}):
            assert affinity.current_headers() == {"a": "1", "b": "2"}
            with pytest.raises(InvalidInput), affinity.use_headers({"c": "x" * 4095}):
                pass
        assert affinity.current_headers() == {"a": "1", "b": "1"}
        with pytest.raises(TypeError):
            affinity.current_headers()["a"] = "2"  # type: ignore[index]
    assert affinity.current_headers() == {}
    assert check_headers({}) == {}


async def sets_headers(ctx: OrchestrationContext) -> None:
    with affinity.use_headers({"a": "b"}):
        await ctx.schedule_activity("a")


def test_an_orchestration_sets_none() -> None:
    define(sets_headers)
    live = Live(sets_headers)
    live.start()
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert live.outcome.error_type == OrchestrationMisuse.__name__
