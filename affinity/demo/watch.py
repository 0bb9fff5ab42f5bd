"""Observes a run from outside, through the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from affinity.demo.app import transcript_kind
from affinity.demo.display import WorkerView
from affinity.demo.fleet import Fleet, WorkerProcess
from affinity.demo.plan import Plan
from affinity.demo.verify import Holders
from affinity.limits import MAX_PAGE
from affinity.provider.contract import Provider, SessionInfo
from affinity.records import SessionFilter, SessionSummary
from affinity.session import SessionManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The run at one moment."""

    sessions: Sequence[SessionInfo]
    registered: AbstractSet[str]  # workers whose lease is alive
    turns: int  # whose message is in the state of its session
    turns_by_worker: Mapping[str, int]  # of these, as far as their worker is known

    def held_by(self, worker: str) -> Sequence[SessionInfo]:
        """Sessions that this worker holds."""
        return [session for session in self.sessions if session.held and session.worker_id == worker]


class Watch:
    """Takes snapshots, and records all holders that it ever saw."""

    def __init__(self, plan: Plan, provider: Provider, fleet: Fleet) -> None:
        self._plan = plan
        self._provider = provider
        self._states = SessionManager(provider.states)
        self._fleet = fleet
        self._holders: dict[str, dict[int, str]] = {}
        self._turns = Counter[str]()  # by session
        self._turns_by_worker = Counter[str]()

    @property
    def holders(self) -> Holders:
        """The holders that the ``sessions`` table named."""
        return self._holders

    @property
    def migrated(self) -> int:
        """Sessions that were seen on more than one worker of this run."""
        ours = set(self._plan.worker_names)
        return sum(len(ours.intersection(epochs.values())) > 1 for epochs in self._holders.values())

    async def snapshot(self) -> Snapshot:
        """Read the database."""
        registered = {worker.worker_id for worker in await self._provider.list_workers() if worker.alive}
        states = [state async for state in self._states.list(SessionFilter(kind=transcript_kind(self._plan.run)))]
        sessions = await self.sessions()
        for state in states:
            self._count(state)
        return Snapshot(
            sessions=sessions,
            registered=registered,
            turns=self._turns.total(),
            turns_by_worker=self._turns_by_worker,
        )

    def _count(self, state: SessionSummary) -> None:
        """Count the turns of a session since the last snapshot, as those of the worker that wrote last."""
        new = (state.metadata.message_count or 0) - self._turns[state.session_id]
        writer = self._holders.get(state.session_id, {}).get(state.epoch or 0)
        self._turns[state.session_id] += new
        if writer is not None:
            self._turns_by_worker[writer] += new

    async def sessions(self) -> Sequence[SessionInfo]:
        """The sessions of this run."""
        after = prefix = self._plan.session_prefix
        found: list[SessionInfo] = []
        while page := await self._provider.list_sessions(after=after, limit=MAX_PAGE):
            found += [session for session in page if session.session_id.startswith(prefix)]
            after = page[-1].session_id
            if not after.startswith(prefix):
                break
        for session in found:
            # The first one stays: should an epoch ever change hands, the turns of the second are off their holder.
            self._holders.setdefault(session.session_id, {}).setdefault(session.epoch, session.worker_id)
        return found

    def views(self, snapshot: Snapshot) -> Sequence[WorkerView]:
        """The workers, for people."""
        return [
            WorkerView(
                name=worker.title,
                pid=worker.pid,
                state=_state(worker, snapshot),
                sessions=len(snapshot.held_by(worker.name)),
                turns=snapshot.turns_by_worker.get(worker.name, 0),
            )
            for worker in self._fleet.workers
        ]


def _state(worker: WorkerProcess, snapshot: Snapshot) -> str:
    if worker.killed:
        return "killed"
    if not worker.alive:
        return "gone"
    return "alive" if worker.name in snapshot.registered else "no lease"
