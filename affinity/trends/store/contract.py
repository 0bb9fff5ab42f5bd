"""The verbs on trends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from affinity.provider.contract import ProviderConnection
from affinity.provider.parts import check_part, missing_verbs
from affinity.records import frozen
from affinity.trends.durations import Durations

TrendKind: TypeAlias = Literal["orchestration", "activity"]
"""What a name belongs to."""

LAG: Final = 5.0
"""Seconds behind the clock at which counting stops. A row has the time at which it was written, and is seen when its
transaction has ended: one that takes longer is not counted.
"""

STEP_ROWS: Final = 5_000
"""Rows of each kind that one step counts: some tens of milliseconds. More only if they have the same time."""

WAITING_ROWS: Final = 50
"""Of the longest waiting rows of each route of a queue that are looked at for the age of the queue …"""

MAX_WAITING_ROWS: Final = 5_000
"""… and of all routes together."""


@frozen(kw_only=True)
class TrendCounts:
    """The counts of one minute, or of more."""

    started: int = 0  # instances
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retries: int = 0  # attempts of activities that failed, and are repeated
    queue_age: float | None = None  # of the longest waiting row, in seconds; None: not measured, or none was seen
    durations: Durations  # of instances that ended, from their start, by bucket


@frozen(kw_only=True)
class TrendRow:
    """The counts of one name in one minute."""

    minute: int  # since 1970
    counts: TrendCounts


class TrendRows(NamedTuple):
    """Answer to `TrendProvider.read_trends`."""

    now: datetime
    counted_to: datetime | None
    """Up to when all is counted; None: nothing was counted yet."""
    rows: Sequence[TrendRow]


@frozen(kw_only=True)
class TrendSum:
    """The counts of one name in several minutes."""

    kind: TrendKind
    name: str
    counts: TrendCounts


class TrendProvider(ProviderConnection, Protocol):
    """The verbs on trends.

    For each minute there is a row of each name that has counts in it, and one of all names of a kind. An instance
    counts for its orchestration. A failed attempt, and the age of a waiting work item, count for the activity and for
    the orchestration of the instance; a waiting message counts for the orchestration.

    `WorkerProvider.sweep` reports in ``Sweep.due["trends"]`` when the next count is due, and removes rows older than
    ``trends`` in `Retention.guests`.
    """

    async def count_trends(self, *, pause: float, keep: float) -> float:
        """Count what was written since the last call, at most `STEP_ROWS` rows of each kind, up to `LAG` seconds ago;
        and measure the ages of the queues. Return the seconds until the next call has something to do: 0 if this one
        has left something, otherwise ``pause``, or the rest of it if another call was first.

        Each row is counted once, whatever fails. What is older than ``keep`` seconds is not counted.
        """
        ...

    async def read_trends(self, kind: TrendKind, name: str, minutes: int) -> TrendRows:
        """Return the last minutes, the present one included, that have counts of this name, in order. An empty name: of
        all names together.
        """
        ...

    async def sum_trends(self, minutes: int, limit: int) -> Sequence[TrendSum]:
        """Return the sums over the last minutes, by kind and name, of at most ``limit`` names: those with the most
        failures and retries, then those with the most starts.
        """
        ...


def trends_of(provider: ProviderConnection) -> TrendProvider:
    """Return the provider as one that keeps trends.

    Raises:
        InvalidOptions: it keeps none.
    """
    check_part(provider, TrendProvider)
    return cast(TrendProvider, provider)


def keeps_trends(provider: ProviderConnection) -> bool:
    """Return whether the provider keeps trends."""
    return not missing_verbs(provider, TrendProvider)
