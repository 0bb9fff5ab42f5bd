"""Families of sessions: a record, its children, and theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from affinity.records import SessionSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFamily:
    """A record that has no parent, or whose parent has no record, with all its descendants."""

    members: Sequence[SessionSummary]  # the head first, then by their creation

    @property
    def head(self) -> SessionSummary:
        """The record whose descendants the others are."""
        return self.members[0]

    @property
    def message_count(self) -> int | None:
        """Of all members together; None when none of them has one."""
        counts = [count for member in self.members if (count := member.metadata.message_count) is not None]
        return sum(counts) if counts else None

    @property
    def participants(self) -> Sequence[str]:
        """Of all members, each once, in their order."""
        return list(dict.fromkeys(name for member in self.members for name in member.metadata.participants))

    @property
    def updated_at(self) -> datetime:
        """The last write of any member."""
        return max(member.updated_at for member in self.members)

    @property
    def idle(self) -> float:
        """Seconds since that write, by the store's clock."""
        return min(member.idle for member in self.members)

    @property
    def size(self) -> int:
        """Bytes of all states as stored."""
        return sum(member.size for member in self.members)
