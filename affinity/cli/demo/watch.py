"""Looks at a run from outside, through the database and the store, as anybody could."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from affinity.cli.demo.display import WorkerView
from affinity.cli.demo.fleet import Fleet, WorkerProcess
from affinity.cli.demo.plan import Plan
from affinity.cli.demo.store import TranscriptStore
from affinity.cli.demo.verify import Holders
from affinity.limits import MAX_PAGE
from affinity.provider.contract import Provider, SessionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The run at one moment."""

    sessions: Sequence[SessionInfo]
    registered: AbstractSet[str]  # workers whose lease is alive
    turns_by_worker: Mapping[str, int]

    @property
    def turns(self) -> int:
        """Turns whose message is in the store."""
        return sum(self.turns_by_worker.values())

    def held_by(self, worker: str) -> Sequence[SessionInfo]:
        """Sessions that this worker holds."""
        return [session for session in self.sessions if session.held and session.worker_id == worker]


class Watch:
    """Looks, and remembers who was ever seen to hold what."""

    def __init__(self, plan: Plan, provider: Provider, store: TranscriptStore, fleet: Fleet) -> None:
        self._plan = plan
        self._provider = provider
        self._store = store
        self._fleet = fleet
        self._holders: dict[str, dict[int, str]] = {}

    @property
    def holders(self) -> Holders:
        """What the ``sessions`` table was seen to say."""
        return self._holders

    @property
    def migrated(self) -> int:
        """Sessions that were seen on more than one worker of this run."""
        ours = set(self._plan.worker_names)
        return sum(len(ours.intersection(epochs.values())) > 1 for epochs in self._holders.values())

    async def look(self) -> Sight:
        """See how it is now."""
        registered = {worker.worker_id for worker in await self._provider.list_workers() if worker.alive}
        sessions = await self.sessions()
        return Sight(sessions=sessions, registered=registered, turns_by_worker=self._store.turns())

    async def sessions(self) -> Sequence[SessionInfo]:
        """The sessions of this run, and of no other."""
        prefix = self._plan.session_prefix
        found: list[SessionInfo] = []
        page: Sequence[SessionInfo] = await self._provider.list_sessions(after=prefix, limit=MAX_PAGE)
        while page and page[-1].session_id.startswith(prefix):
            found += page
            page = await self._provider.list_sessions(after=page[-1].session_id, limit=MAX_PAGE)
        found += [session for session in page if session.session_id.startswith(prefix)]
        for session in found:
            # The first one seen stays: should an epoch ever change hands, the turns of the second are off their holder.
            self._holders.setdefault(session.session_id, {}).setdefault(session.epoch, session.worker_id)
        return found

    def workers(self, sight: Sight) -> Sequence[WorkerView]:
        """The workers, for people."""
        return [
            WorkerView(
                name=worker.title,
                pid=worker.pid,
                state=_state(worker, sight),
                sessions=len(sight.held_by(worker.name)),
                turns=sight.turns_by_worker.get(worker.name, 0),
            )
            for worker in self._fleet.workers
        ]


def _state(worker: WorkerProcess, sight: Sight) -> str:
    if worker.killed:
        return "killed"
    if not worker.alive:
        return "gone"
    return "alive" if worker.name in sight.registered else "no lease"
