"""The limits at which the wakes of a kind of conversations wait, and their priority.

A gate (`affinity.orchestration.gates`) is the same for all conversations of a kind, or it depends on the conversation:
on its owner, its labels or its id. Only a wake can read these. So a wake begins with the gate that the wake before it
had; one that should have waited at another gate changes nothing, and its orchestration schedules it again, there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from affinity.conversation.client import ConversationInfo
from affinity.errors import InvalidInput, InvalidLimit, InvalidOptions
from affinity.flow.limit import Limit, LimitBy, LimitKey
from affinity.limits import MAX_GATE_LIMITS
from affinity.orchestration import ActivityFuture
from affinity.orchestration.gates import LimitUse, check_priority, check_uses, gate_of, read_gate
from affinity.user_code import call_sync, check_function

WakeLimit: TypeAlias = Limit | LimitKey | LimitBy
"""A limit at which wakes wait: the same for all conversations of a kind, or a key of it by conversation."""

WakePriority: TypeAlias = int | Callable[[ConversationInfo], int]
"""The priority of wakes: the same for all conversations of a kind, or by conversation."""

NO_GATE: Final = ""
"""The text of the gate of a wake that waits for nothing."""


@dataclass(frozen=True, slots=True)
class WakeGates:
    """The gates of the wakes of a kind of conversations."""

    limits: tuple[WakeLimit, ...] = ()
    priority: WakePriority = 0

    @property
    def fixed(self) -> str | None:
        """The gate of all conversations; None: it depends on the conversation."""
        if callable(self.priority) or any(isinstance(limit, LimitBy) for limit in self.limits):
            return None
        return _text(self.limits, self.priority)

    def of(self, info: ConversationInfo) -> str:
        """Return the gate of a conversation.

        Raises:
            InvalidLimit: a function has returned no key, or two limits are one.
            InvalidInput: a function has returned no priority.
            Exception: a function has raised it.
        """
        limits = [limit._key_of(info) if isinstance(limit, LimitBy) else limit for limit in self.limits]
        return _text(limits, call_sync(self.priority, info) if callable(self.priority) else self.priority)


def gates_of(limits: Iterable[object], priority: object) -> WakeGates:
    """Return the gates of the wakes of a kind.

    Raises:
        InvalidLimit: one is no limit, or has keys and no key is named, or there are too many.
        InvalidOptions: the priority is neither a priority nor a function.
    """
    given = cast(tuple[WakeLimit, ...], tuple(limits))
    if len(given) > MAX_GATE_LIMITS:
        raise InvalidLimit(f"a wake has at most {MAX_GATE_LIMITS} limits, not {len(given)}")
    check_uses([limit for limit in given if not isinstance(limit, LimitBy)])
    if callable(priority):
        check_function(priority, "priority", "info")
        return WakeGates(given, cast(WakePriority, priority))
    try:
        return WakeGates(given, check_priority(priority))
    except InvalidInput as error:
        raise InvalidOptions(f"{error}, or a function of the conversation that returns one") from None


def wait_at(activity: ActivityFuture[Any], gate: str) -> None:
    """Let the activity of a wake wait at a gate."""
    if gate == NO_GATE:
        return
    priority, uses = read_gate(gate)
    if uses:
        activity.limited(*[_Known(use) for use in uses])
    activity.with_priority(priority)


def waits_at(gate: str, limit: str, key: str) -> bool:
    """Return whether work with this gate waits at a limit, or at this key of it; ``key`` is empty for all keys."""
    uses = [] if gate == NO_GATE else read_gate(gate)[1]
    return any(use.limit == limit and key in {"", use.key} for use in uses)


@dataclass(frozen=True, slots=True)
class _Known:
    """A place of a gate that was checked when the gate was made."""

    _use: LimitUse

    @property
    def _place(self) -> tuple[str, str]:
        return self._use.limit, self._use.key

    @property
    def _is_declared(self) -> bool:
        return True


def _text(limits: Iterable[object], priority: object) -> str:
    gate = gate_of(check_uses([*limits]), check_priority(priority))
    return NO_GATE if gate is None else gate.text
