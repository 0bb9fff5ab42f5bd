"""Records of sweeps and of the removal of what has ended."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from affinity.records import frozen


@frozen(kw_only=True)
class Retention:
    """For how many seconds after its end something is kept; None: for ever."""

    instances: float | None = None  # completed and cancelled ones, each with its tree
    histories: float | None = None  # of executions after which their instance began another one


NO_RETENTION: Final = Retention()


@frozen(kw_only=True)
class Sweep:
    """What one call of `Provider.sweep` did."""

    swept: bool  # False: another worker has swept within the interval
    rerouted: int = 0  # stale marks repaired
    sessions_removed: int = 0
    workers_removed: int = 0
    instances_removed: int = 0  # those that had ended, with their children
    executions_removed: int = 0  # whose histories went
    limit_reached: bool = False  # a bound was reached: call again without waiting


@frozen(kw_only=True)
class InstancePruning:
    """What one step of `Provider.prune_instances` removed, or would remove."""

    roots: int  # instances without a parent
    instances: int  # they, and the trees below them
    after: datetime | None  # where the next step begins; None: there is none


@frozen(kw_only=True)
class HistoryPruning:
    """What one step of `Provider.prune_histories` removed, or all that it would remove."""

    executions: int
    limit_reached: bool  # a bound was reached: call again
