"""Faults at the commits of workers, as a program says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from affinity.errors import ConnectionLost, DatabaseFailure
from affinity.testing.env.traffic import Commit
from tests.programs import rollouts
from tests.programs.play import STALL_TICKS, Play
from tests.programs.program import Fault, Rollout, Size

OUTAGE: Final = 5
"""Commits that the database refuses in an outage."""

MAX_FAULTS: Final = 4
"""Fewer than the attempts of an activity, or of a turn, that make it poison."""

COMMITS: Final[Mapping[Size, int]] = {"small": 15, "any": 60, "large": 2000}
"""Among so many, the first ones of a program, faults are drawn."""


def faults(size: Size) -> SearchStrategy[tuple[Fault, ...]]:
    """Of a program of this size."""
    kinds = st.sampled_from(("refuse", "outage", "lost", "before", "behind", "takeover", "stall"))
    drawn = st.builds(Fault, at=st.integers(1, COMMITS[size]), kind=kinds)
    return st.lists(drawn, max_size=MAX_FAULTS).map(tuple)


class Faults:
    """Carries the faults of one program out, as `Traffic.on_commit`."""

    def __init__(self, play: Play, faults: tuple[Fault, ...], rollout: Rollout | None = None) -> None:
        self._play = play
        self._rollout = rollout
        self._due = sorted(faults, key=lambda fault: fault.at)
        self._behind: Fault | None = None
        self._refusals = 0
        self._number = 0
        self.done = 0
        """Faults so far."""
        self.suspensions = 0
        """Commits so far that have suspended instances."""

    async def on_commit(self, commit: Commit, done: bool) -> None:
        """Called before and behind each commit."""
        if done:
            self.suspensions += commit.verb == "suspend_instance"
            self._play.tick()
            await self._end(commit)
        else:
            self._number += 1
            await self._begin(commit)

    async def _begin(self, commit: Commit) -> None:
        if self._refusals > 0:
            self._refusals -= 1
            raise DatabaseFailure("the program refuses it")
        if self._rollout is not None and self._rollout.at <= self._number:
            self._roll_out(self._rollout)
        if self._due and self._due[0].at <= self._number and self._behind is None:
            fault = self._due.pop(0)
            self.done += 1
            await self._before(fault, commit)

    async def _before(self, fault: Fault, commit: Commit) -> None:
        match fault.kind:
            case "refuse":
                raise DatabaseFailure("the program refuses it")
            case "outage":
                self._refusals = OUTAGE
                raise DatabaseFailure("the program refuses it")
            case "before" | "takeover":
                self._crash(commit, restart=fault.kind == "before")
            case "stall":
                self._play.env.pause(commit.worker_id)
                self._play.later(STALL_TICKS, self._play.env.resume, commit.worker_id)
            case _:
                self._behind = fault

    async def _end(self, commit: Commit) -> None:
        fault, self._behind = self._behind, None
        if fault is None:
            return
        if fault.kind == "behind":
            self._crash(commit, restart=True)
        raise ConnectionLost("the program loses the answer")

    def _roll_out(self, rollout: Rollout) -> None:
        self._rollout = None
        self.done += 1
        rollouts.begin(self._play, rollout)
        if rollout.ticks is not None:
            self._play.later(rollout.ticks, rollouts.end, self._play, rollout)
        raise ConnectionLost("the worker has crashed")

    def _crash(self, commit: Commit, *, restart: bool) -> None:
        self._play.env._crash_in_commit(commit.worker_id, restart=restart)
        raise ConnectionLost("the worker has crashed")

    def end(self) -> None:
        """No more of them."""
        self._due, self._rollout, self._refusals, self._behind = [], None, 0, None
