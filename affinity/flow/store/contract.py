"""Records and verbs of limits, which hold work back before a worker may fetch it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias, cast

from affinity.provider.contract import ProviderConnection, WorkKey
from affinity.provider.parts import check_part, missing_verbs
from affinity.records import frozen


class Unchanged:
    """The type of `UNCHANGED`."""


UNCHANGED: Final = Unchanged()
"""In a `LimitChange`: the value stays as it is."""


@frozen(kw_only=True)
class RateBound:
    """At most ``count`` units in any window of ``per`` seconds, of them at most ``burst`` at one moment."""

    count: int
    per: float
    burst: int | None = None  # None: as many as the window allows; 1: evenly spaced


@frozen(kw_only=True)
class LimitSpec:
    """A limit as code declares it. Without bounds it is a switch: it holds work back while it is paused or closed."""

    name: str
    keyed: bool = False  # the bounds count for each key
    concurrency: int | None = None  # slots; 0: as if paused
    rate: RateBound | None = None
    aging: float = 3600.0  # seconds in which waiting work of a lower priority rises by one


@frozen(kw_only=True)
class LimitRow:
    """A limit, as declared and as changed while all runs; the use of all its keys together."""

    spec: LimitSpec  # as the newest code declares it, or has declared it last
    app: str
    code: str
    declared: bool  # False: the newest code no longer declares it, so it holds nothing back
    # Changes while all runs. UNCHANGED: the declared value counts.
    concurrency: int | Unchanged | None
    rate: RateBound | Unchanged | None
    paused: bool
    ramp: float | None  # slots that a second adds since ``resumed_at``; None: all may be used
    resumed_at: datetime | None
    closed_until: datetime | None  # by `LimitClosing`; None: it is open
    closed_for: str | None  # why, for people
    changed_by: str | None  # the actor of the last change; None: it has none
    changed_at: datetime | None
    in_use: int  # slots, of all keys
    waiting: int  # pieces of work that are held back at it, of all keys: they need one of its places
    oldest: datetime | None  # since when the oldest of them waits
    admitted: int  # admissions since the limit exists
    waited: float  # seconds that these have waited, together
    keys: int  # with slots in use, waiting work, a use of the rate, or a change


@frozen(kw_only=True)
class LimitKeyRow:
    """A key of a limit; ``key`` is empty if the limit has no keys."""

    limit: str
    key: str
    concurrency: int | Unchanged | None  # changed for this key alone
    rate: RateBound | Unchanged | None
    paused: bool
    closed_until: datetime | None
    in_use: int
    used: int  # units in the last window of the rate, with all charges so far; 0 without a rate
    waiting: int
    oldest: datetime | None
    admitted: int


@frozen(kw_only=True)
class LimitChange:
    """A change of a limit, or of one of its keys, while all runs."""

    limit: str
    key: str | None = None  # None: of the limit, for all keys
    concurrency: int | Unchanged | None = UNCHANGED  # None: no bound
    rate: RateBound | Unchanged | None = UNCHANGED
    paused: bool | None = None  # None: unchanged
    ramp: float | None = None  # with ``paused=False``: slots that each second adds from now on; None: all at once
    reset: bool = False  # first take back all earlier changes, so that the declared values count
    by: str | None = None  # who changes it


@frozen(kw_only=True)
class LimitClosing:
    """A limit, or one key of it, that admits nothing for some seconds: the service behind it has said so."""

    limit: str
    key: str = ""  # "": the limit, with all its keys
    seconds: float = 0.0
    reason: str = ""


@frozen(kw_only=True)
class LimitCharge:
    """Units that work has used beyond its admission; they count in the rate, also above its bound."""

    limit: str
    key: str = ""
    units: int = 0


@frozen(kw_only=True)
class Admitted:
    """Answer to `LimitProvider.admit`."""

    admitted: int  # pieces of work
    routes: Collection[str]  # that they went to, to notify workers: ``free``, ``new``, ``w:WORKER``, ``messages``
    more: bool  # the call ended at its bound: call again
    next_due: float | None  # seconds until work may be admitted because time passes; None: nothing waits for time
    waits: bool = True  # work waits at limits: a slot that becomes free may be for it


WaitCause: TypeAlias = Literal["concurrency", "rate", "paused", "closed", "order"]
"""What a limit lacks for some work: slots, or units; or it is paused, or closed by `LimitClosing`. ``order``: it lacks
nothing, and other work is before.
"""


@frozen(kw_only=True)
class LimitWait:
    """Why work waits at its gate: the first limit that lacks something for it, or the limit where it waits in turn."""

    key: WorkKey  # of an instance that waits to start: its id, execution 0 and activity -1
    limit: str
    limit_key: str
    cause: WaitCause
    priority: int
    since: datetime
    in_use: int
    concurrency: int | None  # that counts now
    used: int
    rate: RateBound | None  # that counts now
    before: int  # pieces of work that are before it at this limit, about: counted up to 1,000
    seconds: float | None  # until it may be admitted, about; None: unknown


class LimitProvider(ProviderConnection, Protocol):
    """The verbs on limits: of workers, which admit work, and of clients.

    Work with a limited gate (`NewWorkItem.gate`, `NewInstance.gate`) waits until `admit` gives it a slot of each of its
    limits, in one transaction, or none. A slot is free again when the work item is removed or given back, or when the
    lock under which a worker had it has expired; the slot of an instance, when that has ended or is deleted. Which
    slots are in use follows from the rows of the queue, so no crash loses a slot, and none is held twice.

    Order at a limit: by priority, then by virtual start times of keys (fair by weight), then by age. A priority rises
    by one for each ``aging`` seconds that the oldest work of this priority waits.
    """

    async def declare_limits(self, app: str, code: str, specs: Sequence[LimitSpec]) -> None:
        """Write the limits that the newest code of an app declares. Limits of the app that are not among them no longer
        hold work back. Changes made while all runs stay. A limit that another app declares stays as it is.
        """
        ...

    async def admit(self, *, most: int, if_waiting: bool = False) -> Admitted:
        """Admit up to ``most`` pieces of work, in the order of their limits. One call runs at a time in a database;
        another one that comes meanwhile waits for it. ``if_waiting``: while no work waits, only look; a later call
        counts the slots that have become free.
        """
        ...

    async def close_limits(self, closings: Sequence[LimitClosing]) -> None:
        """Let limits admit nothing until their seconds are over. A later end counts, an earlier one changes nothing.
        Limits that no code has declared are left out.
        """
        ...

    async def charge_limits(self, charges: Sequence[LimitCharge]) -> None:
        """Count units in the rates of limits. The next `admit` counts them. Charges of limits that no code has declared
        are left out.
        """
        ...

    async def return_slots(self) -> int:
        """Put back work whose lock has expired, and work that no worker has fetched for `limits.UNTAKEN_SECONDS` while
        other work waits for its slots; return the number. Such work asks for its slots again after a pause, which
        grows up to `limits.UNTAKEN_PAUSE`, and the time since its first admission counts in its waits for a worker
        (`NewWorkItem.fail_after`). In bounded steps: about once a second, by one worker.
        """
        ...

    async def list_limits(self, names: Collection[str] | None = None) -> Sequence[LimitRow]:
        """Return the limits of these names, or all, by name. Their number is that of declarations in code."""
        ...

    async def list_limit_keys(
        self, limit: str, *, keys: Collection[str] | None = None, after: str | None = None, most: int = 100
    ) -> Sequence[LimitKeyRow]:
        """Return a page of keys of a limit, or some. A key without use, waiting work and changes may be absent."""
        ...

    async def change_limits(self, changes: Sequence[LimitChange]) -> Sequence[bool]:
        """Change limits while all runs, in one transaction. False: no code has declared a limit of this name; nothing
        of this change was done. A lower bound cancels nothing: the excess runs out.
        """
        ...

    async def get_limit_waits(self, keys: Collection[WorkKey]) -> Sequence[LimitWait]:
        """Return why work waits at its gate, for as many of these as do wait there. Reads only."""
        ...


START_EXECUTION: Final = 0
START_ACTIVITY: Final = -1
"""Execution and activity of an instance that waits to start, in the keys of `LimitProvider.get_limit_waits`."""


def limits_of(provider: ProviderConnection) -> LimitProvider:
    """Return the provider as one that keeps limits.

    Raises:
        InvalidOptions: it keeps none.
    """
    check_part(provider, LimitProvider)
    return cast(LimitProvider, provider)


def keeps_limits(provider: ProviderConnection) -> bool:
    """Return whether the provider keeps limits."""
    return not missing_verbs(provider, LimitProvider)
