"""The scope of a wake that runs on the lease of another session, its home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from affinity.orchestration import ActivityContext


@dataclass(frozen=True, slots=True)
class HomedScope:
    """An activity's scope, for the state of another session than the one it runs on; the rest is the activity's.

    ``session_epoch`` is the greater of two epochs: the lease's epoch, and the epoch of the session's own row, which
    changes when its record is written without a lease. All epochs come from one sequence. So it changes with either,
    and a state of an earlier epoch is hydrated again. The commit compares both: the row's epoch with the state, and the
    lease's epoch with the journal (`affinity.conversation.journal.HomeLease`).
    """

    ctx: ActivityContext
    session_id: str
    session_epoch: int

    @property
    def home(self) -> tuple[str, int]:
        """The session on whose lease the conversation runs, with the epoch of that lease."""
        return self.ctx.session_id or "", self.ctx.session_epoch or 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)
