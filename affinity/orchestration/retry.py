"""Retry policies of activities."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, TypeAlias

from affinity.errors import AffinityError, InvalidOptions, errors_in
from affinity.limits import MAX_TIMER_SECONDS, check_choice, is_number

RetryStrategy: TypeAlias = Literal["fixed", "linear", "exponential"]
"""How the pause grows from one attempt to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed activity is retried.

    Pauses are ``"exponential"`` by default: ``initial_interval``, multiplied by ``backoff`` after each failure.
    ``"linear"`` pauses grow by ``initial_interval`` each time, ``"fixed"`` ones do not grow.

    Raises:
        InvalidOptions: a value out of range; the message carries it.
    """

    max_attempts: int = 3
    """Number of attempts, the first one included; at least 1."""

    initial_interval: float = 1.0
    """Seconds before the second attempt; 0 or more."""

    backoff: float = 2.0
    """Factor from one exponential pause to the next; at least 1."""

    max_interval: float = 60.0
    """Longest pause in seconds; at least ``initial_interval``. No pause exceeds ten years."""

    non_retryable: tuple[str | type[BaseException], ...] = ()
    """Errors that are not retried: exception classes or their names. A base class covers its subclasses."""

    strategy: RetryStrategy = "exponential"
    """How pauses grow."""

    jitter: float = 0.0
    """Random share of each pause, from 0 to 1: at 0.5 a pause has between half and all of its length. It is derived
    from the activity and the number of failures, so that every worker computes the same pause.
    """

    total_timeout: float | None = None
    """Seconds for all attempts, with the pauses and the time in the queue, from the scheduling on; more than 0. A
    running attempt is cancelled at the limit, as by its ``timeout``, and none begins later. None: no limit.
    """

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise InvalidOptions(f"max_attempts must be an integer of at least 1, not {self.max_attempts!r}")
        _check_at_least("initial_interval", self.initial_interval, 0.0)
        _check_at_least("backoff", self.backoff, 1.0)
        _check_at_least("max_interval", self.max_interval, 0.0)
        if self.max_interval < self.initial_interval:
            raise InvalidOptions(
                f"max_interval {self.max_interval!r} is shorter than initial_interval {self.initial_interval!r}"
            )
        object.__setattr__(self, "non_retryable", _names(self.non_retryable))
        check_choice("strategy", self.strategy, RetryStrategy, InvalidOptions)
        _check_at_least("jitter", self.jitter, 0.0)
        if self.jitter > 1:
            raise InvalidOptions(f"jitter must be a share from 0 to 1, not {self.jitter!r}")
        if self.total_timeout is not None:
            _check_at_least("total_timeout", self.total_timeout, 0.0)
            if not self.total_timeout:
                raise InvalidOptions("total_timeout must be more than 0")

    def delay(self, failures: int, key: str = "") -> float:
        """Seconds to wait after the ``failures``-th failed attempt (1-based) of the activity that ``key`` names."""
        pause = min(self._pause(failures), self.max_interval, MAX_TIMER_SECONDS)
        return pause * (1 - self.jitter * _chance(key, failures)) if self.jitter else pause

    def retries(self, error: BaseException, failures: int, elapsed: float = 0.0) -> bool:
        """Whether to retry after ``failures`` failed attempts.

        Args:
            error: what the last attempt raised. A group is retried if each of its errors is.
            failures: the number of failed attempts.
            elapsed: seconds from the scheduling to the beginning of the next attempt.
        """
        if failures >= self.max_attempts or (self.total_timeout is not None and elapsed >= self.total_timeout):
            return False
        return not any(map(self._is_final, errors_in(error)))

    def _is_final(self, error: BaseException) -> bool:
        if isinstance(error, AffinityError) and error.permanent:
            return True
        return any(c.__name__ in self.non_retryable for c in type(error).__mro__)

    def _pause(self, failures: int) -> float:
        if self.strategy == "fixed":
            return self.initial_interval
        if self.strategy == "linear":
            return self.initial_interval * failures
        try:
            return self.initial_interval * self.backoff ** (failures - 1)
        except OverflowError:
            return self.max_interval


def _chance(key: str, failures: int) -> float:
    """A number from 0 to 1, derived from the arguments."""
    digest = blake2b(f"{key}:{failures}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _check_at_least(name: str, value: object, least: float) -> None:
    if not is_number(value) or not math.isfinite(value) or value < least:
        raise InvalidOptions(f"{name} must be a finite number of at least {least:g}, not {value!r}")


def _names(errors: object) -> tuple[str, ...]:
    if isinstance(errors, str | type) or not isinstance(errors, Iterable):
        raise InvalidOptions(f"non_retryable must be a tuple of exception classes or names, not {errors!r}")
    return tuple(_name(error) for error in errors)


def _name(error: object) -> str:
    if isinstance(error, str) and error:
        return error
    if isinstance(error, type) and issubclass(error, BaseException):
        return error.__name__
    raise InvalidOptions(f"non_retryable takes exception classes or their names, not {error!r}")
