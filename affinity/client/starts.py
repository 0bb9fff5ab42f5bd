"""Starts whose outcome is not known yet: what becomes of one whose id is in use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from affinity.client.requests import Start, StartOutcome, next_cancellation
from affinity.errors import ClientError, InstanceExists, InstanceFinished, InstanceRunning
from affinity.limits import seconds_of
from affinity.orchestration.overlap import on_overlap
from affinity.provider.contract import FINISHED, Generation, InstanceInfo, NewInstance, Restart


@dataclass(slots=True, eq=False)
class PendingStart:
    """A start, until its outcome is known."""

    new: NewInstance
    start: Start
    outcome: StartOutcome | None = None
    refused_by: InstanceInfo | None = None
    is_free: bool = True
    """Nothing has its id, as far as is known."""
    restart: Restart | None = None
    """What is tried next, of an id that is in use."""
    begun: Generation | None = None
    """Generation of an instance whose start could not be replaced: a worker has taken it."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do."""
        return self.outcome is not None or self.refused_by is not None

    def tried(self, *, is_done: bool) -> None:
        """Note the answer to `restart`."""
        assert self.restart is not None
        if is_done:
            self.outcome = _OUTCOMES[self.restart.when]
        elif self.restart.when == "waiting":
            self.begun = self.restart.ended

    def look_at(self, info: InstanceInfo | None) -> None:
        """Decide by the instance that has the id."""
        self.is_free = info is None
        before, self.restart = self.restart, None
        if info is None:
            return
        if info.generation == self.new.generation:  # by an earlier attempt, whose reply was lost
            self.outcome = "created" if before is None else "restarted"
        elif info.next == self.new.generation:
            self.outcome = "queued"
        elif info.name != self.new.name:
            self.refused_by = info
        elif info.status in FINISHED:
            self._follow(info)
        else:
            self._overlap(info)

    def _follow(self, info: InstanceInfo) -> None:
        """Decide by an instance that has ended."""
        if self.start.after_end == "fail":
            self.refused_by = info
        elif self.start.after_end == "return":
            self.outcome = "ended"
        else:
            self.restart = Restart(new=self.new, ended=info.generation)

    def _overlap(self, info: InstanceInfo) -> None:
        """Decide by an instance that has not ended."""
        is_waiting = info.status == "pending" and info.starts_at is not None and info.generation != self.begun
        if self.start.debounce is not None and is_waiting:
            within = None if self.start.max_wait is None else seconds_of("max_wait", self.start.max_wait)
            self.restart = Restart(new=self.new, ended=info.generation, when="waiting", within=within)
            return
        match on_overlap(self.start.while_running, is_running=True):
            case "refuse":
                self.refused_by = info
            case "queue":
                cancel = None if self.start.while_running != "cancel" else next_cancellation(info.instance_id).payload
                self.restart = Restart(new=self.new, ended=info.generation, when="next", cancel=cancel)
            case _:
                self.outcome = "running"


_OUTCOMES: Final[dict[str, StartOutcome]] = {"ended": "restarted", "waiting": "replaced", "next": "queued"}


def refusal_of(starts: Iterable[PendingStart]) -> ClientError | None:
    """The error for the starts that are refused, if there are any."""
    refused = [(start.new, start.refused_by) for start in starts if start.refused_by is not None]
    others = [info for new, info in refused if new.name != info.name]
    if others:
        ids = ", ".join(f"{info.instance_id!r} (of {info.name!r})" for info in others)
        return InstanceExists(f"the id belongs to an instance of another orchestration: {ids}")
    if running := [info for _, info in refused if info.status not in FINISHED]:
        ids = ", ".join(f"{info.instance_id!r} ({info.status})" for info in running)
        return InstanceRunning(f'the instance has not ended, and if_running is "fail": {ids}')
    if refused:
        ids = ", ".join(f"{info.instance_id!r} ({info.status})" for _, info in refused)
        return InstanceFinished(f'the instance has ended: {ids}; start it with if_ended="restart", or under another id')
    return None
