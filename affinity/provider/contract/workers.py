"""Records of workers: who asks, its lease, and what listings show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Final, NewType, TypeAlias

from affinity.limits import ANY_TAG
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


def has_tag(tags: Collection[str], tag: str) -> bool:
    """Return whether a worker with these tags takes work with this one."""
    return tag in tags or ANY_TAG in tags


@frozen(kw_only=True)
class WorkerTags:
    """Which work a worker takes, beside the work of the sessions that it holds."""

    tags: Sequence[str] = ()  # work with one of these; `ANY_TAG` stands for all
    only: bool = False  # no work without a tag

    def routes(self, untagged: str) -> list[str]:
        """The routes that it reads in place of one that any worker reads: that one, and one for each tag. `ANY_TAG` is
        none: a worker fetches with the tags that `list_waiting_tags` returns.
        """
        return [*([] if self.only else [untagged]), *(f"{untagged}#{tag}" for tag in self.tags if tag != ANY_TAG)]

    def takes(self, tag: str | None) -> bool:
        """Return whether it takes work with this tag, or without one."""
        return not self.only if tag is None else has_tag(self.tags, tag)


NO_TAGS: Final = WorkerTags()


RegisteredNames: TypeAlias = Mapping[str, Mapping[str, str]]
"""The code that a worker has: by kind ("orchestrations", "activities", kinds of layers above) a digest for each name,
which tells different functions apart. An orchestration has its version: ``name@version``.
"""


Interfaces: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What the code of a worker takes: by kind and name, as in `RegisteredNames`, an object that is opaque to the provider.
Names may be left out.
"""


@frozen(kw_only=True)
class WorkerProfile:
    """What a worker reports when it registers, beside its labels."""

    capacity: int  # sessions that it may hold; 0: it takes none
    app: str  # name of its app: versions of one app are compared
    code_version: str  # of its code
    registered: RegisteredNames
    tags: WorkerTags = NO_TAGS
    interfaces: Interfaces = field(default_factory=dict)
    named: bool = True  # it may return under its name, which is not a random one


@frozen(kw_only=True)
class RegisteredCode:
    """What one or more workers have code for, as they registered it."""

    alive: bool  # one of them is
    registered: RegisteredNames
    interfaces: Interfaces


@frozen(kw_only=True)
class WorkerLease:
    """Result of a registration or renewal."""

    expires_in: float  # seconds from the moment at which the request was *sent*
    database_time: datetime  # the database's clock when it answered
    draining: bool = False


SLOTS: Final = "slots"
"""The label of a worker that says how many activities it runs beside each other (``worker_concurrency``)."""

LEFT_BEHIND: Final = "left_behind"
"""The label of a worker that says how many of its slots code has that ignores its cancellation; without it: none."""


@frozen(kw_only=True)
class WorkerInfo:
    """One row of ``workers``, for people."""

    worker_id: str
    incarnation: Incarnation
    alive: bool
    draining: bool
    expires_in: float  # negative when the lease has ended
    started_at: datetime
    sessions: int  # held now; see `Client.workers`
    capacity: int  # sessions that it may hold, as it registered them
    code_version: str  # as it registered it
    code_since: datetime  # since when workers run this version
    drain_wanted: bool = False  # an operator drains it: `Client.drain_worker`
    only_tagged: bool = False  # it takes no work but with one of its tags
    connections: int | None = None  # of its processes, as a server shows them by name; None: unknown
    labels: Mapping[str, str]  # host, pid, version, as the worker registered them
    registered: RegisteredNames  # as it registered them
    tags: Sequence[str] = ()  # it takes work with one of these
    restarting: bool = False  # it has left for a restart, and its sessions wait for its next start


@frozen(kw_only=True)
class WorkerLoad:
    """How full a worker is that is alive."""

    worker_id: str
    sessions: int | None  # held, as it said last; None: not yet
    capacity: int  # sessions that it may hold, as it registered them
    draining: bool
    age: float  # seconds since it has started
    app: str  # as it registered it
    code_version: str  # of that app


@frozen(kw_only=True)
class FleetLoad:
    """How full all workers are, for rebalancing."""

    workers: Sequence[WorkerLoad]  # live workers, by id
    suspended: bool  # no worker may offer sessions: `Client.suspend_rebalancing`

    def of_app(self, worker_id: str) -> FleetLoad:
        """Only the workers of the same app as this one: sessions do not move between apps."""
        apps = {worker.worker_id: worker.app for worker in self.workers}
        workers = [worker for worker in self.workers if worker.app == apps.get(worker_id)]
        return FleetLoad(workers=workers, suspended=self.suspended)

    def shares(self) -> dict[str, float]:
        """How many sessions each would hold if all were filled alike, by capacity; empty while one has not said how
        many it holds.
        """
        held = [worker.sessions for worker in self.workers if worker.sessions is not None]
        room = {worker.worker_id: worker.capacity for worker in self.workers}
        if len(held) < len(room) or not sum(room.values()):
            return {}
        return {name: sum(held) * capacity / sum(room.values()) for name, capacity in room.items()}


@frozen(kw_only=True)
class WorkerDemand:
    """How many workers the sessions need."""

    held: int  # sessions that a worker holds
    waiting: int  # sessions that have work and no holder
    capacity: float  # sessions that one worker may hold: the mean of live workers that do not drain
    desired: int  # (held + waiting) / capacity, rounded up
