"""The record of an exception: its stack, within bounds, whatever the application's classes do."""

from __future__ import annotations

import json
import math
import traceback
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr

from affinity import OrchestrationContext
from affinity.errors import ActivityFailed, OrchestrationFailed
from affinity.limits import MAX_ERROR_NAMES, MAX_ID_BYTES, MAX_STACK_BYTES, MAX_STACK_FRAMES
from affinity.orchestration import events as ev
from affinity.orchestration import failures
from affinity.orchestration.failures import recorded, stack_of
from affinity.orchestration.wire import decode_event, encode_event

from .harness import Live, through_json


def descend(depth: int) -> None:
    """Raise so many frames further down."""
    if depth:
        descend(depth - 1)
    raise ValueError("boom")


def ascend(depth: int) -> None:
    """The same, by a path of two functions, whose lines differ."""
    descend_by_two(depth - 1)


def descend_by_two(depth: int) -> None:
    if depth <= 0:
        raise ValueError("boom")
    ascend(depth - 1)


def caught(function: Any, *arguments: Any) -> BaseException:
    """The exception of the call."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("it raises")


def test_a_stack_has_the_frames_and_the_error() -> None:
    stack = stack_of(caught(descend, 1))
    assert stack.startswith("Traceback (most recent call last):\n")
    assert f'File "{__file__}", line ' in stack
    assert stack.count("in descend\n") == 2
    assert stack.endswith("ValueError: boom\n")


def test_what_was_never_raised_has_none() -> None:
    assert stack_of(ValueError("boom")) == ""


def test_causes_and_members_of_a_group_are_in_it() -> None:
    def group() -> None:
        try:
            descend(0)
        except ValueError as error:
            raise ExceptionGroup("several", [error, caught(ascend, 2)]) from KeyError("why")  # type: ignore[type-var]

    stack = stack_of(caught(group))
    for part in ("KeyError: 'why'", "in descend\n", "in ascend\n", "ExceptionGroup: several (2 sub-exceptions)"):
        assert part in stack


@pytest.mark.parametrize("function", [descend, ascend])
def test_an_endless_recursion_is_within_bounds(function: Any) -> None:
    error = caught(function, 100_000)
    assert isinstance(error, RecursionError)
    stack = stack_of(error)
    assert len(stack.encode()) <= MAX_STACK_BYTES
    assert stack.count('  File "') <= MAX_STACK_FRAMES
    assert "RecursionError" in stack.splitlines()[-1]


def test_the_first_cause_and_the_error_itself_survive_the_bound() -> None:
    """Of a long chain, the middle is left out; of a long text, the end. Every character is one that all stores keep."""
    error: BaseException = caught(descend, 0)
    for n in range(200):
        later = LookupError(f"é{n}" + "x" * 5000)
        later.__cause__ = error
        later.__traceback__ = error.__traceback__
        error = later
    stack = stack_of(error)
    assert MAX_STACK_BYTES * 0.9 < len(stack.encode()) <= MAX_STACK_BYTES
    assert "ValueError: boom" in stack
    assert "… [truncated] …" in stack
    assert "LookupError: é199" in stack
    assert "\\x00" in stack_of(caught(exec, "raise ValueError('\\x00\\ud800')"))


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class MoreHostile(Hostile):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")


@pytest.mark.parametrize("kind", [Hostile, MoreHostile])
def test_no_class_of_the_application_keeps_a_failure_from_being_recorded(kind: type[Exception]) -> None:
    def fail() -> None:
        raise kind

    failure = recorded(caught(fail))
    assert (failure.error_type, failure.message) == (kind.__name__, "(its text could not be read)")
    assert failure.stack


async def awaits(ctx: OrchestrationContext) -> None:
    await helper(ctx)


async def helper(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("act")


def test_a_failed_orchestration_has_its_own_stack_behind_that_of_its_activity() -> None:
    """Without the frames of the engine that lead to its code; its parent gets the same."""
    live = Live(awaits)
    live.start()
    live.feed(ev.ActivityFailed(2, "failed", "ValueError", "no", stack="  in the activity\n"))
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    first, _, then = live.outcome.stack.partition("is raised again where the result is awaited")
    assert first.startswith("  in the activity\n")
    assert "in step\n" not in then
    assert then.index("in awaits\n") < then.index("in helper\n") < then.index("ActivityFailed: activity 'act'")

    async def parent(ctx: OrchestrationContext) -> str:
        try:
            await ctx.schedule_sub_orchestration("child")
        except OrchestrationFailed as error:
            return error.stack
        return ""

    above = Live(parent)
    above.start()
    above.feed(ev.SubOrchestrationFailed(2, "failed", "E", "m", stack="s"))
    assert above.outcome == ev.OrchestrationCompleted('"s"')


def test_the_error_at_the_await_has_the_stack() -> None:
    async def catches(ctx: OrchestrationContext) -> str:
        try:
            await ctx.schedule_activity("act")
        except ActivityFailed as error:
            return error.stack
        return ""

    live = Live(catches)
    live.start()
    live.feed(ev.ActivityFailed(2, "failed", "ValueError", "no", stack="where\n"))
    assert live.outcome == ev.OrchestrationCompleted(json.dumps("where\n"))


def test_a_stack_is_recorded_and_decides_nothing() -> None:
    """A failure without one is the same failure; and replay takes what was recorded."""
    bare = ev.OrchestrationFailed("E", "m")
    full = ev.OrchestrationFailed("E", "m", stack="where\n")
    assert "stack" not in encode_event(bare)
    decoded = decode_event(encode_event(full))
    assert decoded == bare
    assert isinstance(decoded, ev.OrchestrationFailed)
    assert decoded.stack == "where\n"
    assert ev.payload_size(full) == ev.payload_size(bare) + len("where\n")

    async def fails(ctx: OrchestrationContext) -> None:
        descend(0)

    live = Live(fails)
    live.start()
    recorded_history = through_json(live.history)
    outcome = live.replayed(recorded_history).outcome
    assert isinstance(outcome, ev.OrchestrationFailed)
    assert outcome.stack == recorded_history[-1].stack != ""  # type: ignore[union-attr]
    assert live.execution.error is not None
    assert live.replayed(recorded_history).error is None, "each line is logged once"


def test_the_standard_formatter_agrees() -> None:
    error = caught(descend, 2)
    assert stack_of(error) == "".join(traceback.format_exception(error))


class Currency(Enum):
    EURO = "EUR"


def error_with(recorded_fields: Any, **values: Any) -> Exception:
    """An error of a class of its own, whose fields these are."""
    error: Exception = type("Declined", (Exception,), {"recorded_fields": recorded_fields})("no")
    error.__dict__.update(values)
    return error


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("text", "text"),
        ("x" * 300, "x" * (MAX_ID_BYTES - 16) + " … [truncated]"),
        (7, 7),
        (2**80, str(2**80)),
        (True, True),
        (1.5, 1.5),
        (math.inf, "inf"),
        (None, None),
        (Decimal("12.50"), "12.50"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(hours=1), "PT1H"),
        (UUID(int=1), str(UUID(int=1))),
        (Currency.EURO, "EUR"),
    ],
)
def test_a_field_of_an_error_is_recorded(value: object, kept: object, caplog: pytest.LogCaptureFixture) -> None:
    event = ev.ActivityFailed(3, "failed", *recorded(error_with(("amount",), amount=value)))
    read = decode_event(encode_event(event))
    assert isinstance(read, ev.ActivityFailed)
    assert read.details is not None
    assert dict(read.details.fields) == {"amount": kept}
    assert not caplog.messages


@pytest.mark.parametrize(
    ("names", "value", "left_out"),
    [
        (("amount",), [1], "amount"),
        (("amount",), {"n": 1}, "amount"),
        (("amount",), object(), "amount"),
        (("amount",), SecretStr("s"), "amount"),
        ((1,), "x", "1"),
        (tuple(f"n{n}" for n in range(MAX_ERROR_NAMES + 1)), "x", f"n{MAX_ERROR_NAMES}"),
        ("amount", "x", "recorded_fields"),
    ],
)
def test_a_field_that_is_left_out_is_named_once(
    names: Any, value: object, left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures._warn.cache_clear()
    error = error_with(names, amount=value)
    details = [recorded(error).details, recorded(error).details]
    (line,) = caplog.messages
    assert line.startswith(f"{left_out} of Declined is not recorded: ")
    for each in details:
        assert each is None or left_out not in dict(each.fields)
