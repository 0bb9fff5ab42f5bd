"""The client's calls on trends: counts over time, and by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from math import ceil
from typing import Any, Final

from affinity.client.calls import retry
from affinity.client.registered import RegisteredCalls
from affinity.errors import InvalidInput
from affinity.limits import MAX_TREND_MINUTES, MAX_TREND_NAMES, check_choice, check_id, check_integer, is_number
from affinity.records import frozen
from affinity.trends.durations import Durations, added, percentile
from affinity.trends.store.contract import TrendCounts, TrendKind, trends_of

_MINUTE: Final = 60
_DAY: Final = 86_400
_SUMMED: Final = ("started", "completed", "failed", "cancelled", "retries")


@frozen(kw_only=True)
class TrendPoint:
    """The counts of one step of time."""

    at: datetime  # its beginning
    started: int  # instances
    completed: int
    failed: int
    cancelled: int
    retries: int  # attempts of activities that failed, and are repeated
    queue_age: float | None  # seconds for which the oldest work or message had waited; None: not measured
    p50: float | None  # seconds from start to end, of half of the instances that ended at most; None: none ended
    p95: float | None  # the same, of 95 of 100


@frozen(kw_only=True)
class TrendTotal:
    """The counts of one name."""

    kind: TrendKind
    name: str
    started: int
    completed: int
    failed: int
    cancelled: int
    retries: int
    queue_age: float | None  # the highest
    p50: float | None
    p95: float | None


@frozen(kw_only=True)
class Trends:
    """Counts over time: of one name, or of all names of a kind."""

    kind: TrendKind
    name: str | None
    now: datetime  # by the clock of the database
    counted_to: datetime | None  # what was written later is not in it yet; None: no worker has counted
    step: float  # seconds of a point
    points: Sequence[TrendPoint]  # in order; the last may not be over
    total: TrendPoint  # of all points together


class TrendCalls(RegisteredCalls):
    """The client's calls on trends."""

    async def trends(
        self,
        name: str | None = None,
        *,
        kind: TrendKind = "orchestration",
        seconds: float = 3600.0,
        points: int = 60,
    ) -> Trends:
        """Return how many instances started and ended, retries, the age of the queues, and durations, over time.

        Workers count every ten seconds what is some seconds old; what a transaction of more than five seconds has
        written may be missing. Percentiles are within a fifth of the true value.

        Args:
            name: of an orchestration or an activity; None: all of the kind.
            kind: "activity" has retries and ages of the queue alone.
            seconds: how far back: a minute to a day.
            points: at most so many; a point is a whole number of minutes.

        Raises:
            InvalidInput: an argument is outside its bounds.
            InvalidOptions: the provider of this database keeps no trends.
        """
        check_choice("kind", kind, TrendKind)
        minutes = _minutes(seconds)
        check_integer(points, "points", 1, MAX_TREND_MINUTES)
        wanted = "" if name is None else check_id(name, "name")
        step = ceil(minutes / points)
        read = partial(trends_of(self._provider).read_trends, kind, wanted, minutes + step)
        found = await retry(read)
        last = int(found.now.timestamp()) // _MINUTE // step  # steps are multiples, so that points stay in their places
        first = last - ceil(minutes / step) + 1
        rows = [row for row in found.rows if row.minute // step >= first]
        counts: defaultdict[int, list[TrendCounts]] = defaultdict(list)
        for row in rows:
            counts[row.minute // step].append(row.counts)
        return Trends(
            kind=kind,
            name=name,
            now=found.now,
            counted_to=found.counted_to,
            step=float(step * _MINUTE),
            points=[_point(place * step, counts[place]) for place in range(first, last + 1)],
            total=_point(first * step, [row.counts for row in rows]),
        )

    async def trends_by_name(self, *, seconds: float = 3600.0, limit: int = 50) -> Sequence[TrendTotal]:
        """Return the counts of each name: those with the most failures and retries first, then the most starts.

        Args:
            seconds: how far back: a minute to a day.
            limit: names, at most `limits.MAX_TREND_NAMES`.

        Raises:
            InvalidInput: an argument is outside its bounds.
            InvalidOptions: the provider of this database keeps no trends.
        """
        minutes = _minutes(seconds)
        check_integer(limit, "limit", 1, MAX_TREND_NAMES)
        found = await retry(partial(trends_of(self._provider).sum_trends, minutes, limit))
        return [TrendTotal(kind=each.kind, name=each.name, **_figures([each.counts])) for each in found]


def _minutes(seconds: float) -> int:
    if not is_number(seconds) or not _MINUTE <= seconds <= _DAY:
        raise InvalidInput(f"seconds = {seconds!r:.80}: must be a number from {_MINUTE} to {_DAY}")
    return ceil(seconds / _MINUTE)


def _point(minute: int, counts: Sequence[TrendCounts]) -> TrendPoint:
    return TrendPoint(at=datetime.fromtimestamp(minute * _MINUTE, UTC), **_figures(counts))


def _figures(counts: Sequence[TrendCounts]) -> dict[str, Any]:
    """Return the sums of counts as the fields that `TrendPoint` and `TrendTotal` share."""
    nothing: Durations = {}
    durations = reduce(added, (each.durations for each in counts), nothing)
    return {
        **{name: sum(getattr(each, name) for each in counts) for name in _SUMMED},
        "queue_age": max((each.queue_age for each in counts if each.queue_age is not None), default=None),
        "p50": percentile(durations, 0.5),
        "p95": percentile(durations, 0.95),
    }
