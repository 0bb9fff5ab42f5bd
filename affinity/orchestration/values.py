"""The values of an instance, as one execution knows them.

What this execution has set or read is in its history. What former executions have left is given when the execution is
taken up, and is read through the history too (`affinity.orchestration.events.ValueRead`): so a replay needs nothing
but the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from affinity.errors import ExecutionLimitReached
from affinity.limits import MAX_VALUES

_NONE: Final[Mapping[str, str]] = {}


class Values:
    """The values of an instance by key, as JSON texts."""

    __slots__ = ("_known", "clearings", "former")

    def __init__(self) -> None:
        self.former: Mapping[str, str] = _NONE
        """Left by former executions, without those that this one has cleared."""
        self.clearings: int = 0
        """Times that this execution has cleared all values."""
        self._known: dict[str, str | None] = {}  # set, cleared or read by this execution

    def knows(self, key: str) -> bool:
        """Whether this execution has set, cleared or read this value."""
        return key in self._known

    def get(self, key: str) -> str | None:
        """Return a value that is known, or is left by a former execution; None: there is none."""
        return self._known[key] if key in self._known else self.former.get(key)

    def note(self, key: str, value: str | None) -> None:
        """Note a value that was set or cleared."""
        self._known[key] = value

    def note_read(self, key: str, value: str | None, clearings: int) -> None:
        """Note a value that was read when there had been so many ``clearings``, unless it was changed since."""
        if clearings == self.clearings:
            self._known.setdefault(key, value)

    def check_number(self) -> None:
        """Check that there are not too many; not in a replay, which does not have all values.

        Raises:
            ExecutionLimitReached: there are more than ``MAX_VALUES``.
        """
        if len(self) > MAX_VALUES:
            raise ExecutionLimitReached(
                f"more than {MAX_VALUES} values of one instance: clear some (ctx.values.clear), or keep several in one"
            )

    def clear(self) -> None:
        """Clear all values."""
        self.former = _NONE
        self.clearings += 1
        self._known = dict.fromkeys(self._known)

    def __len__(self) -> int:
        known = sum(value is not None for value in self._known.values())
        return known + sum(key not in self._known for key in self.former)
