"""Records of workers: who asks, its lease, and what listings show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Final, NewType, TypeAlias

from affinity.records import frozen

Incarnation = NewType("Incarnation", str)
"""A random name that one start of a worker process gave itself."""


LEFT: Final = "left."
"""Begins the incarnation that has the name of a worker which left for a restart. No process has it: it only keeps the
sessions until the next start of the worker.
"""


@frozen(kw_only=True)
class WorkerIdentity:
    """The caller: the stable name of a worker, and the incarnation of this process."""

    worker_id: str
    incarnation: Incarnation

    @property
    def left(self) -> Incarnation:
        """The incarnation that keeps the sessions when this one leaves for a restart."""
        return Incarnation(f"{LEFT}{self.incarnation}")


@frozen(kw_only=True)
class WorkerTags:
    """Which work a worker takes, beside the work of the sessions that it holds."""

    tags: Sequence[str] = ()  # work with one of these
    only: bool = False  # no work without a tag

    def routes(self, untagged: str) -> list[str]:
        """The routes that it reads in place of one that any worker reads: that one, and one for each tag."""
        return [*([] if self.only else [untagged]), *(f"{untagged}#{tag}" for tag in self.tags)]


NO_TAGS: Final = WorkerTags()


RegisteredNames: TypeAlias = Mapping[str, Mapping[str, str]]
"""What a worker has code for: by kind ("orchestrations", "activities", "conversations") a digest of each name, which
tells different functions apart. An orchestration has its version: ``name@version``. Empty: the worker has not told.
"""


@frozen(kw_only=True)
class WorkerProfile:
    """Facts about a worker that it registers, beside its labels."""

    capacity: int | None = None  # sessions that it may hold; 0: it takes none; None: not told
    app: str | None = None  # name of its app: versions of one app are compared
    code_version: str | None = None  # of its code; None: not told
    tags: WorkerTags = NO_TAGS
    registered: RegisteredNames = field(default_factory=dict[str, Mapping[str, str]])


NO_PROFILE: Final = WorkerProfile()


@frozen(kw_only=True)
class WorkerLease:
    """Result of a registration or renewal."""

    expires_in: float  # seconds from the moment at which the request was *sent*
    database_time: datetime  # the database's clock when it answered
    draining: bool = False


@frozen(kw_only=True)
class WorkerInfo:
    """One row of ``workers``, for people."""

    worker_id: str
    incarnation: Incarnation
    alive: bool
    draining: bool
    expires_in: float  # negative when the lease has ended
    started_at: datetime
    sessions: int  # held now
    labels: Mapping[str, str]  # host, pid, version, as the worker registered them
    capacity: int | None = None  # sessions that it may hold, as it registered them
    drain_wanted: bool = False  # an operator drains it: `set_drain_wanted`
    code_version: str | None = None  # as it registered it
    code_since: datetime | None = None  # since when workers run this version
    restarting: bool = False  # it has left for a restart, and its sessions wait for its next start
    tags: Sequence[str] = ()  # it takes work with one of these
    only_tagged: bool = False  # and no other
    registered: RegisteredNames = field(default_factory=dict[str, Mapping[str, str]])  # as it registered them


@frozen(kw_only=True)
class WorkerLoad:
    """How full a worker is that is alive."""

    worker_id: str
    sessions: int | None  # held, as it said last (`WorkerProvider.exchange_load`); None: not yet
    capacity: int | None  # sessions that it may hold, as it registered them; None: not told
    draining: bool
    age: float  # seconds since it has started
    app: str | None = None  # as it registered it
    code_version: str | None = None  # of that app


@frozen(kw_only=True)
class FleetLoad:
    """How full all workers are, for rebalancing."""

    workers: Sequence[WorkerLoad]  # live workers, by id
    suspended: bool  # no worker may offer sessions: `AdministrationProvider.suspend_rebalancing`

    def of_app(self, worker_id: str) -> FleetLoad:
        """Only the workers of the same app as this one: sessions do not move between apps. A worker that has not said
        its app, of the release before, may be of any.
        """
        apps = {worker.worker_id: worker.app for worker in self.workers}
        workers = [worker for worker in self.workers if worker.app in (None, apps.get(worker_id))]
        return FleetLoad(workers=workers, suspended=self.suspended)

    def shares(self) -> dict[str, float]:
        """How many sessions each would hold if all were filled alike, by capacity; empty while one does not say how
        many it holds or may hold.
        """
        held = [worker.sessions for worker in self.workers if worker.sessions is not None]
        room = {worker.worker_id: worker.capacity for worker in self.workers if worker.capacity is not None}
        if not len(held) == len(room) == len(self.workers) or not sum(room.values()):
            return {}
        return {name: sum(held) * capacity / sum(room.values()) for name, capacity in room.items()}


@frozen(kw_only=True)
class WorkerDemand:
    """How many workers the sessions need."""

    held: int  # sessions that a worker holds
    waiting: int  # sessions that have work and no holder
    capacity: float  # sessions that one worker may hold: the mean of live workers that do not drain
    desired: int  # (held + waiting) / capacity, rounded up
