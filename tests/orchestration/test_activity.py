"""The context of an activity, and its retries."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import threading
from typing import Any

import pytest

from affinity import ActivityCancelledSignal, ActivityContext, RetryPolicy
from affinity.errors import (
    ActivityMisuse,
    AffinityError,
    InvalidOptions,
    NotSerializable,
    PayloadTooLarge,
    SessionSelfConflict,
)
from affinity.orchestration.definitions import ActivityDefinition


def context(**fields: Any) -> ActivityContext:
    of: dict[str, Any] = {"instance_id": "i", "execution_id": 1, "activity_id": 3, "name": "work", "worker_id": "w-0"}
    return ActivityContext(**of | {"orchestration_name": "chat", "orchestration_version": "1.0.0"} | fields)


def test_attributes_are_fixed() -> None:
    ctx = context(session_id="s", session_epoch=4, attempt=2)
    assert (ctx.session_id, ctx.session_epoch, ctx.attempt, ctx.worker_id) == ("s", 4, 2, "w-0")
    with pytest.raises(dataclasses.FrozenInstanceError):
        ctx.attempt = 3  # type: ignore[misc]


async def do_nothing(ctx: ActivityContext) -> None:
    """An activity."""


async def commit_nothing(*_: object) -> None:
    """See `ActivityContext._commit_now`."""


def test_a_context_of_a_worker_is_as_the_constructor_makes_it() -> None:
    ctx = ActivityContext._of(
        "i",
        1,
        3,
        name="work",
        orchestration_name="chat",
        orchestration_version="1.0.0",
        instance_generation="b",
        session_id="s",
        session_epoch=4,
        attempt=2,
        headers=None,
        worker_id="w-0",
        session_store=None,  # type: ignore[arg-type]
        session_listeners=(),
        guests={},
        waits=None,  # type: ignore[arg-type]
        commit_part=commit_nothing,
        input="7",
        definition=ActivityDefinition("work", do_nothing),
    )
    assert type(ctx) is ActivityContext
    assert ctx == context(
        orchestration_name="chat",
        orchestration_version="1.0.0",
        instance_generation="b",
        session_id="s",
        session_epoch=4,
        attempt=2,
        session_listeners=(),
    )
    assert not ctx.ended
    with pytest.raises(dataclasses.FrozenInstanceError):
        ctx.attempt = 3  # type: ignore[misc]


def test_the_idempotency_key_is_of_one_activity() -> None:
    """The same in each attempt, and however its input is written."""
    ctx = context(instance_generation="b", _input='{"a": 1.50, "b": "\\u00e9"}')
    same = context(instance_generation="b", attempt=2, worker_id="w-1", session_id="s", _input='{"a":1.5,"b":"é"}')
    assert ctx.idempotency_key == same.idempotency_key
    assert re.fullmatch("[0-9a-f]{64}", ctx.idempotency_key)
    others: list[dict[str, Any]] = [
        {"instance_generation": "c"},
        {"instance_id": "j"},
        {"execution_id": 2},
        {"activity_id": 4},
        {"name": "other"},
        {"_input": '{"a":1.5}'},
    ]
    base = {"instance_generation": "b", "_input": '{"a":1.5,"b":"é"}'}
    keys = {context(**base | other).idempotency_key for other in others}
    assert len(keys | {ctx.idempotency_key}) == len(others) + 1


def test_cancellation_is_seen_by_polling() -> None:
    ctx = context()
    assert (ctx.cancelled, ctx.cancel_reason) == (False, None)
    assert not ctx.wait_cancelled(0)
    ctx.raise_if_cancelled()
    ctx._cancel("timeout")
    ctx._cancel("another reason")
    assert (ctx.cancelled, ctx.cancel_reason) == (True, "timeout")
    assert ctx.wait_cancelled()
    with pytest.raises(ActivityCancelledSignal) as caught:
        ctx.raise_if_cancelled()
    assert caught.value.reason == "timeout"
    assert not isinstance(caught.value, Exception)


def test_cancellation_wakes_a_blocked_thread() -> None:
    ctx, seen = context(), []
    thread = threading.Thread(target=lambda: seen.append(ctx.wait_cancelled(60)))
    thread.start()
    ctx._cancel("drain")
    thread.join(60)
    assert seen == [True]


def test_logger_carries_the_ids(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        context(session_id="s").logger.info("hello")
    (record,) = caplog.records
    assert record.name == "affinity.activity"
    assert vars(record)["instance_id"] == "i"
    assert vars(record)["session_id"] == "s"


def test_delays_grow_up_to_a_bound() -> None:
    policy = RetryPolicy(max_attempts=9, initial_interval=1, backoff=3, max_interval=10)
    assert [policy.delay(n) for n in (1, 2, 3, 4, 10_000)] == [1, 3, 9, 10, 10]
    assert RetryPolicy(initial_interval=0).delay(5) == 0


def test_pauses_can_be_fixed_or_grow_in_steps() -> None:
    fixed = RetryPolicy(strategy="fixed", initial_interval=5)
    linear = RetryPolicy(strategy="linear", initial_interval=2, max_interval=7)
    assert [fixed.delay(n) for n in (1, 2, 10_000)] == [5, 5, 5]
    assert [linear.delay(n) for n in (1, 2, 3, 4, 10_000)] == [2, 4, 6, 7, 7]


def test_jitter_is_the_same_for_the_same_failure_and_another_for_others() -> None:
    policy = RetryPolicy(initial_interval=8, max_interval=8, jitter=0.25)
    pauses = [policy.delay(n, f"i/1/{m}") for n in range(1, 11) for m in range(1, 11)]
    assert pauses == [policy.delay(n, f"i/1/{m}") for n in range(1, 11) for m in range(1, 11)]
    assert len(set(pauses)) == 100
    assert all(6 < pause <= 8 for pause in pauses)
    assert max(pauses) - min(pauses) > 1.5
    assert policy.delay(1, "i/1/1") == pytest.approx(7.91522, abs=1e-5)  # in each process, on each machine


def test_no_attempt_begins_behind_the_limit_over_all() -> None:
    policy = RetryPolicy(max_attempts=9, total_timeout=10)
    assert policy.retries(ValueError(), 1, 9.9)
    assert not policy.retries(ValueError(), 1, 10)


def test_retries_until_attempts_or_a_non_retryable_error() -> None:
    policy = RetryPolicy(max_attempts=3, non_retryable=(LookupError, "Fatal"))
    assert policy.non_retryable == ("LookupError", "Fatal")
    assert policy.retries(ValueError(), 2)
    assert not policy.retries(ValueError(), 3)
    assert not policy.retries(KeyError(), 1)
    assert not policy.retries(type("Fatal", (Exception,), {})(), 1)


@pytest.mark.parametrize(
    "error", [NotSerializable("no"), PayloadTooLarge("no"), ActivityMisuse("no"), SessionSelfConflict("s")]
)
def test_no_policy_retries_what_the_same_code_would_raise_again(error: AffinityError) -> None:
    assert error.permanent
    assert not RetryPolicy(max_attempts=3).retries(error, 1)


class Noted:
    """A participant that notes how it was settled, and may raise then."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.outcomes: list[bool] = []

    async def prepare(self) -> None:
        """Writes nothing."""

    def settled(self, applied: bool) -> None:
        self.outcomes.append(applied)
        if self.error is not None:
            raise self.error


def test_participants_are_withdrawn_and_the_run_goes_on() -> None:
    ctx, error, first, second, last = context(), ValueError("no"), Noted(OSError("broken")), Noted(), Noted()
    ctx._enlist(first)
    ctx._enlist(second)
    ctx._withdraw(error, retried=True)
    assert (first.outcomes, second.outcomes) == ([False], [False])  # what one raises is not the other's matter
    assert (ctx.error, ctx.ended) == (error, False)
    ctx._enlist(last)
    assert ctx._close() == (last,)
    with pytest.raises(ActivityCancelledSignal):
        ctx._withdraw(error, retried=True)
    assert (last.outcomes, ctx.ended) == ([], True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"initial_interval": -1}, "initial_interval"),
        ({"initial_interval": math.nan}, "initial_interval"),
        ({"initial_interval": "1"}, "initial_interval"),
        ({"backoff": 0.5}, "backoff"),
        ({"max_interval": math.inf}, "max_interval"),
        ({"initial_interval": 5, "max_interval": 2}, "max_interval 2 is shorter than initial_interval 5"),
        ({"strategy": "random"}, "strategy = 'random': must be one of fixed, linear, exponential"),
        ({"jitter": 1.1}, "jitter must be a share"),
        ({"jitter": -0.1}, "jitter"),
        ({"total_timeout": 0}, "total_timeout must be more"),
        ({"total_timeout": math.inf}, "total_timeout"),
        ({"non_retryable": ValueError}, "must be a tuple"),
        ({"non_retryable": "ValueError"}, "must be a tuple"),
        ({"non_retryable": (3,)}, "not 3"),
        ({"non_retryable": (int,)}, "not <class 'int'>"),
    ],
)
def test_policies_are_validated(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptions, match=message):
        RetryPolicy(**options)


@pytest.mark.anyio
async def test_a_part_is_committed_by_a_worker_and_while_the_run_lasts() -> None:
    with pytest.raises(ActivityMisuse, match="committed by a worker"):
        await context()._commit_now()
    ended = context()
    ended._close()
    with pytest.raises(ActivityCancelledSignal):
        await ended._commit_now()
