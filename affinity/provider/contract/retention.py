"""Records of sweeps and of pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Final

from affinity.records import frozen


@frozen(kw_only=True)
class Retention:
    """Seconds for which data is kept that a sweep removes; None: forever."""

    instances: float | None = None  # completed and cancelled instances, each with its tree
    histories: float | None = None  # of executions that a later execution of the same instance follows
    moves: float | None = None  # rows of ``session_moves``
    failures: float | None = None  # rows of ``failures`` without a stack
    records: float | None = None  # records of session state that no guest needs, since their last write
    guests: Mapping[str, Any] = field(default_factory=dict)
    """By guest: seconds, or several bounds. Without it, the guest's tables keep all rows."""


NO_RETENTION: Final = Retention()


@frozen(kw_only=True)
class Sweep:
    """Result of one call of `Provider.sweep`."""

    swept: bool  # False: another worker has swept within the interval
    rerouted: int = 0  # stale routes repaired
    sessions_removed: int = 0
    workers_removed: int = 0
    instances_removed: int = 0  # ended instances, with their children
    executions_removed: int = 0  # whose histories were removed
    moves_removed: int = 0
    failures_removed: int = 0
    records_removed: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)
    """The rows that guests have removed, if any, by guest, or by its name for them."""
    limit_reached: bool = False  # there may be more stale routes: call again without waiting
    backlog: bool = False  # there is more to remove: call again after a pause, which leaves the database to others
    due: Mapping[str, float | None] = field(default_factory=dict)
    """By guest, the seconds until its loop has something to do; 0 or less: it has something now; None: never."""


@frozen(kw_only=True)
class InstancePruning:
    """The result of one step of `Provider.prune_instances`: rows that it removed, or would remove."""

    roots: int  # instances without a parent
    instances: int  # the roots and the trees below them
    after: datetime | None  # where the next step begins; None: this was the last


@frozen(kw_only=True)
class HistoryPruning:
    """The result of one step of `Provider.prune_histories`: rows that it removed, or all that it would remove."""

    executions: int
    limit_reached: bool  # a bound was reached: call again
