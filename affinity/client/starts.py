"""Starts whose outcome is not known yet: what becomes of one whose id is in use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from affinity.client.requests import IfEnded, StartOutcome
from affinity.errors import ClientError, InstanceExists, InstanceFinished
from affinity.provider.contract import FINISHED, Generation, InstanceInfo, NewInstance


@dataclass(slots=True, eq=False)
class PendingStart:
    """A start, until its outcome is known."""

    new: NewInstance
    if_ended: IfEnded
    outcome: StartOutcome | None = None
    refused_by: InstanceInfo | None = None
    is_free: bool = True
    """Nothing has its id, as far as is known."""
    ended: Generation | None = None
    """Generation of the ended instance that it restarts."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do."""
        return self.outcome is not None or self.refused_by is not None

    def look_at(self, info: InstanceInfo | None) -> None:
        """Decide by the instance that has the id."""
        self.is_free = info is None
        before, self.ended = self.ended, None
        if info is None:
            return
        has_ended = info.status in FINISHED
        if info.generation == self.new.generation:  # by an earlier attempt, whose reply was lost
            self.outcome = "created" if before is None else "restarted"
        elif info.name != self.new.name or (has_ended and self.if_ended == "fail"):
            self.refused_by = info
        elif not has_ended:
            self.outcome = "running"
        elif self.if_ended == "return":
            self.outcome = "ended"
        else:
            self.ended = info.generation


def refusal_of(starts: Iterable[PendingStart]) -> ClientError | None:
    """The error for the starts that are refused, if there are any."""
    refused = [(start.new, start.refused_by) for start in starts if start.refused_by is not None]
    others = [info for new, info in refused if new.name != info.name]
    if others:
        ids = ", ".join(f"{info.instance_id!r} (of {info.name!r})" for info in others)
        return InstanceExists(f"the id belongs to an instance of another orchestration: {ids}")
    if refused:
        ids = ", ".join(f"{info.instance_id!r} ({info.status})" for _, info in refused)
        return InstanceFinished(f'the instance has ended: {ids}; start it with if_ended="restart", or under another id')
    return None
