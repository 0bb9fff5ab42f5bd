"""How often, and after which pauses, a failed activity is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from affinity.errors import InvalidOptions
from affinity.limits import MAX_TIMER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed activity is tried again; exponential backoff, no jitter, so that delays can be reasoned about.

    Raises:
        InvalidOptions: a value out of range; the message carries it.
    """

    max_attempts: int = 3
    """Runs in all, the first one included; at least 1."""

    initial_interval: float = 1.0
    """Seconds before the second attempt; 0 or more."""

    backoff: float = 2.0
    """Factor from one pause to the next; at least 1."""

    max_interval: float = 60.0
    """Seconds that no pause exceeds; at least ``initial_interval``. Nor does one exceed ten years."""

    non_retryable: tuple[str | type[BaseException], ...] = ()
    """Errors that end the activity at once: exception classes or their names. A base class covers its subclasses."""

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

    def delay(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failed attempt (1-based)."""
        try:
            pause = self.initial_interval * self.backoff ** (failures - 1)
        except OverflowError:
            pause = self.max_interval
        return min(pause, self.max_interval, MAX_TIMER_SECONDS)

    def retries(self, error: BaseException, failures: int) -> bool:
        """Whether to try again after ``failures`` failed attempts, the last of which raised ``error``."""
        return failures < self.max_attempts and not any(c.__name__ in self.non_retryable for c in type(error).__mro__)


def _check_at_least(name: str, value: object, least: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < least:  # type: ignore[arg-type,operator]
        raise InvalidOptions(f"{name} must be a finite number of at least {least:g}, not {value!r}")


def _names(errors: object) -> tuple[str, ...]:
    if isinstance(errors, (str, type)):
        raise InvalidOptions(f"non_retryable must be a tuple of exception classes or names, not {errors!r}")
    return tuple(_name(error) for error in errors)  # type: ignore[attr-defined]


def _name(error: object) -> str:
    if isinstance(error, str) and error:
        return error
    if isinstance(error, type) and issubclass(error, BaseException):
        return error.__name__
    raise InvalidOptions(f"non_retryable takes exception classes or their names, not {error!r}")
