"""The judge of session leases: it foretells nothing, and compares what there was with what there is. What it has seen
once it does not forget, whatever the database loses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from affinity.provider.contract import SessionInfo


class Violation(AssertionError):
    """The provider has broken a promise."""


@dataclass
class Leases:
    """All rows of sessions as they were last seen, and what can never be again."""

    rows: dict[str, SessionInfo] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # epoch of each session, though its row be gone
    holders: dict[tuple[str, int], str] = field(default_factory=dict)  # incarnations

    def see(
        self,
        found: Mapping[str, SessionInfo],
        *,
        started: str | None = None,
        freed_by: str | None = None,
        released: Collection[str] = (),
        time_passed: bool = False,
        swept: bool = False,
    ) -> list[str]:
        """Judge what one verb has done.

        Args:
            found: the rows after it.
            started: name of the worker that was registered anew by it.
            freed_by: name of the worker that gave sessions up by it.
            released: sessions that may have been given up by it.
            time_passed: leases may have ended.
            swept: rows may be gone.

        Returns:
            Sessions that have another holder than before.
        """
        moved = []
        for name, new in found.items():
            old = self.rows.get(name)
            if old is None:
                self._begin(new)
            else:
                may_end = time_passed or name in released or freed_by == old.worker_id
                moved += [name] * self._go_on(old, new, started, may_end=may_end)
            if new.held and self.holders.setdefault((name, new.epoch), new.incarnation) != new.incarnation:
                raise Violation(f"two processes have held {name} at epoch {new.epoch}")
            self.newest[name] = new.epoch
        if gone := self.rows.keys() - found.keys():
            if not swept:
                raise Violation(f"rows of sessions vanished without a sweep: {sorted(gone)}")
            if held := [name for name in gone if self.rows[name].held]:
                raise Violation(f"held sessions were removed: {held}")
        self.rows = dict(found)
        return moved

    def _begin(self, new: SessionInfo) -> None:
        if new.epoch <= self.newest.get(new.session_id, 0):
            raise Violation(f"{new.session_id} begins again with epoch {new.epoch}, which it has had")

    def _go_on(self, old: SessionInfo, new: SessionInfo, started: str | None, *, may_end: bool) -> bool:
        name = new.session_id
        changed = (old.worker_id, old.incarnation) != (new.worker_id, new.incarnation)
        if new.epoch < old.epoch:
            raise Violation(f"the epoch of {name} went back from {old.epoch} to {new.epoch}")
        if old.epoch < new.epoch <= self.newest[name]:
            raise Violation(f"{name} has epoch {new.epoch}, which it has had")
        if changed and new.epoch == old.epoch:
            raise Violation(f"{name} went from {old.incarnation} to {new.incarnation} at epoch {new.epoch}")
        if old.held and changed and not old.worker_id == new.worker_id == started:
            raise Violation(f"{name} was taken from {old.incarnation} while it was held")
        if old.held and not new.held and not may_end:
            raise Violation(f"{name} is not held any more, though no worker gave it up")
        return changed and old.worker_id != ""  # else a write without a lease had made the row
