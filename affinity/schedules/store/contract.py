"""Records and verbs of schedules, which start instances, or send events, at given times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeAlias, cast

from affinity.provider.contract import NewInstance, ProviderConnection
from affinity.provider.parts import check_part, missing_verbs
from affinity.records import frozen

PauseKind: TypeAlias = Literal["operator", "undeclared"]
"""Why a schedule is paused: a client has paused it; the newest version of the code no longer declares it."""


@frozen(kw_only=True)
class ScheduleRow:
    """One row of ``schedules``. ``spec`` is opaque to the provider, which does not compute due times."""

    name: str
    generation: str  # random: a schedule that is created under the same name after a deletion has another
    revision: int = 0  # changes with each write: the fence of the next one. 0: it is to be created
    spec: str
    app: str | None = None  # whose code declares it; None: a client created it
    code: str | None = None  # the version of that code
    paused: PauseKind | None = None
    note: str | None = None  # why it is paused, or what its last tick has met
    next_due: datetime | None = None  # None: paused, or ended
    last_due: datetime | None = None  # the last tick that has started something
    running: str | None = None  # instance that the last tick has started
    queued: datetime | None = None  # a tick that waits for the end of that instance
    queued_until: datetime | None = None  # the ticks behind ``queued`` up to then wait too; None: it waits alone
    retry_at: datetime | None = None  # a due tick could not be fired, and is not due before; None: it was fired
    skipped: int = 0  # ticks that have started nothing
    created_at: datetime | None = None  # set by the provider
    updated_at: datetime | None = None  # set by the provider
    is_running: bool = False  # whether the instance ``running`` has not ended; not stored


@frozen(kw_only=True)
class ScheduleWrite:
    """A new state of a schedule, made from the row that was read at ``row.revision``."""

    row: ScheduleRow
    removed: bool = False  # the schedule is deleted
    starts: Sequence[NewInstance] = ()  # created in the same transaction, as by `create_instance`; none at revision 0


@frozen(kw_only=True)
class DueSchedules:
    """Answer to `ScheduleProvider.get_due_schedules`."""

    now: datetime
    rows: Sequence[ScheduleRow]
    next_due: float | None  # seconds until a schedule is due, 0 or less if one is; None: no schedule is active


class ScheduleProvider(ProviderConnection, Protocol):
    """The verbs on schedules: of workers, which fire them, and of clients.

    `WorkerProvider.sweep` reports in `Sweep.due` when the next schedule is due, as ``schedules``; and removes schedules
    that no app declares when they ended so long ago as instances are kept.
    """

    async def write_schedules(self, writes: Sequence[ScheduleWrite]) -> Sequence[bool]:
        """Write schedules of distinct names in one transaction, each with its starts. False: the row no longer has this
        generation and revision, or the name of a new schedule is taken; nothing of this write was done. An instance
        whose id exists is not started again.

        Raises:
            QuotaExceeded: see `create_instance`; over all starts. Nothing was written.
        """
        ...

    async def get_due_schedules(self, limit: int) -> DueSchedules:
        """Return up to ``limit`` schedules whose ``next_due`` and ``retry_at`` have come, the longest due first; and up
        to ``limit`` that have a tick in ``queued`` whose instance ``running`` has ended, and whose ``retry_at`` has
        come. So a schedule that cannot be fired now does not block others. Reads only.
        """
        ...

    async def list_schedules(
        self,
        names: Collection[str] | None = None,
        *,
        app: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[ScheduleRow]:
        """Return the schedules of these names, or one page by name; with ``app``, only those of this app."""
        ...


def schedules_of(provider: ProviderConnection) -> ScheduleProvider:
    """Return the provider as one that keeps schedules.

    Raises:
        InvalidOptions: it keeps none.
    """
    check_part(provider, ScheduleProvider)
    return cast(ScheduleProvider, provider)


def keeps_schedules(provider: ProviderConnection) -> bool:
    """Return whether the provider keeps schedules."""
    return not missing_verbs(provider, ScheduleProvider)
