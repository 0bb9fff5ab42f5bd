"""Trends on SQLite: counting in one transaction, and reading."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, TypeAlias

from affinity.limits import SWEEP_ROWS
from affinity.provider.contract import Retention
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Row, Tx, to_json
from affinity.provider.sqlite.parts import SqlitePart
from affinity.provider.sqlite.verbs import reads, writes
from affinity.provider.statements import load_statements
from affinity.trends.durations import Durations, added, bucket_of
from affinity.trends.store.contract import (
    LAG,
    MAX_WAITING_ROWS,
    STEP_ROWS,
    WAITING_ROWS,
    TrendKind,
    TrendRows,
    TrendSum,
)
from affinity.trends.store.rows import read_durations, to_trend_row, to_trend_sum

SQL: Final = load_statements(__package__, "sqlite.sql")

_MICROSECOND: Final = 1e-6
_NOT_WAITING: Final = frozenset({"blocked", "gate", "gated", "suspended"})
_Key: TypeAlias = tuple[str, str, int]
"""Kind, name, minute."""


@dataclass
class _Counts:
    """The counts of one name in one minute."""

    events: Counter[str] = field(default_factory=Counter)
    durations: Counter[int] = field(default_factory=Counter)
    queue_age: float | None = None


class _Step:
    """The counts of a step, by name and of all names."""

    def __init__(self) -> None:
        self._counts: defaultdict[_Key, _Counts] = defaultdict(_Counts)

    def count(self, kind: TrendKind, name: str, minute: int, event: str, number: int = 1) -> None:
        for counts in self._of(kind, name, minute):
            counts.events[event] += number

    def end(self, name: str, minute: int, status: str, seconds: float) -> None:
        for counts in self._of("orchestration", name, minute):
            counts.events[status] += 1
            counts.durations[bucket_of(seconds)] += 1

    def wait(self, kind: TrendKind, name: str, minute: int, seconds: float) -> None:
        for counts in self._of(kind, name, minute):
            counts.queue_age = max(seconds, counts.queue_age or 0.0)

    def _of(self, kind: TrendKind, name: str, minute: int) -> list[_Counts]:
        return [self._counts[kind, each, minute] for each in {name, ""}]

    def write(self, tx: Tx) -> None:
        """Add the counts to the rows."""
        keys = [key for key, counts in self._counts.items() if counts.durations]
        found = tx.rows(SQL["durations"], {"keys": to_json(keys)}) if keys else []
        for kind, name, minute, durations in found:
            self._counts[kind, name, minute].durations.update(read_durations(durations))
        tx.many(SQL["add"], [_row(key, counts) for key, counts in self._counts.items()])


def _row(key: _Key, counts: _Counts) -> list[object]:
    events = [counts.events[event] for event in ("started", "completed", "failed", "cancelled", "retried")]
    return [*key, *events, counts.queue_age, to_json(dict(counts.durations))]


def count(tx: Tx, *, pause: float, keep: float) -> float:
    counted_to, due_at = tx.row(SQL["round"]) or (0.0, 0.0)
    if due_at > tx.now:
        return float(due_at - tx.now)
    latest = tx.now - LAG
    # A clock that was set back is followed, and what it has passed before is not counted again.
    since = tx.now if counted_to > tx.now else max(counted_to, tx.now - keep)
    until = max(since, min(latest, _bound(tx, since)))
    step = _Step()
    _count_rows(tx, step, since, until)
    _measure_queues(tx, step)
    step.write(tx)
    left = 0.0 if until < latest else pause
    tx.run(SQL["set_round"], {"counted_to": until, "due_at": tx.now + left})
    return left


def _bound(tx: Tx, since: float) -> float:
    """Return the end of a step: it is behind its beginning, also where too many rows have one time."""
    found: float | None = tx.value(SQL["bound"], {"since": since, "rows": STEP_ROWS})
    return float("inf") if found is None else max(found, since + _MICROSECOND)


def _count_rows(tx: Tx, step: _Step, since: float, until: float) -> None:
    within = {"since": since, "until": until}
    for name, minute, number in tx.rows(SQL["begun"], within):
        step.count("orchestration", name, minute, "started", number)
    for name, minute, status, seconds in tx.rows(SQL["ended"], within):
        step.end(name, minute, status, seconds)
    for name, orchestration, minute, number in tx.rows(SQL["attempts"], within):
        step.count("activity", name, minute, "retried", number)
        if orchestration is not None:
            step.count("orchestration", orchestration, minute, "retried", number)


def _measure_queues(tx: Tx, step: _Step) -> None:
    minute = int(tx.now / 60)
    step.wait("orchestration", "", minute, 0.0)  # the queues were looked at
    for name, orchestration, age in _waiting(tx, "item_routes", "items"):
        step.wait("activity", name, minute, age)
        if orchestration is not None:
            step.wait("orchestration", orchestration, minute, age)
    for orchestration, age in _waiting(tx, "message_routes", "messages"):
        step.wait("orchestration", orchestration, minute, age)


def _waiting(tx: Tx, routes: str, of_route: str) -> list[Row]:
    """Return the rows of a queue that wait longest."""
    found: list[Row] = []
    for (route,) in tx.rows(SQL[routes]):
        if route not in _NOT_WAITING and len(found) < MAX_WAITING_ROWS:
            found += tx.rows(SQL[of_route], {"route": route, "now": tx.now, "limit": WAITING_ROWS})
    return found


def read(tx: Tx, kind: TrendKind, name: str, minutes: int) -> TrendRows:
    counted_to, _ = tx.row(SQL["round"]) or (0.0, 0.0)
    rows = tx.rows(SQL["read"], {"kind": kind, "name": name, "since": int(tx.now / 60) - minutes})
    return TrendRows(instant(tx.now), instant(counted_to) if counted_to else None, [to_trend_row(row) for row in rows])


def sum_by_name(tx: Tx, minutes: int, limit: int) -> list[TrendSum]:
    since = int(tx.now / 60) - minutes
    rows = tx.rows(SQL["sum"], {"since": since, "limit": limit})
    return [to_trend_sum([*row, to_json(_histogram(tx, row[0], row[1], since))]) for row in rows]


def _histogram(tx: Tx, kind: str, name: str, since: int) -> Durations:
    rows = tx.rows(SQL["histograms"], {"kind": kind, "name": name, "since": since})
    nothing: Durations = {}
    return reduce(added, (read_durations(durations) for (durations,) in rows), nothing)


def remove_old(tx: Tx, keep: Retention) -> tuple[int, bool]:
    """Remove minutes that are old enough, at most `SWEEP_ROWS`."""
    older_than = keep.guests.get("trends")
    if older_than is None:
        return 0, False
    minutes = tx.run(SQL["remove"], {"before": int((tx.now - older_than) / 60), "limit": SWEEP_ROWS})
    return minutes, minutes >= SWEEP_ROWS


def seconds_until_due(tx: Tx) -> float:
    """Return the seconds until the next count."""
    _, due_at = tx.row(SQL["round"]) or (0.0, 0.0)
    return float(due_at - tx.now)


PART: Final = SqlitePart(
    verbs={"count_trends": writes(count), "read_trends": reads(read), "sum_trends": reads(sum_by_name)},
    due=seconds_until_due,
    remove_old=remove_old,
)
