"""Limits, keys and waiting work, as people see them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from affinity.flow.store.contract import LimitKeyRow, LimitRow, LimitWait
from affinity.flow.store.rows import to_limit, to_limit_key
from affinity.flow.store.sqlite.keys import Lack, LimitKey, read_keys
from affinity.limits import MAX_PAGE
from affinity.provider.contract import WorkKey
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "listing.sql")

COUNTED: Final = 1_000
"""Work before a piece of work that is counted."""


def list_limits(tx: Tx, names: Collection[str] | None = None) -> list[LimitRow]:
    given = {} if names is None else {"names": to_json(list(names))}
    rows = tx.rows(with_parts(SQL["limits"], frozenset(given)), {"now": tx.now, **given})
    return [to_limit(_with_json(row, 3, 8), instant) for row in rows]


def list_keys(
    tx: Tx, limit: str, *, keys: Collection[str] | None = None, after: str | None = None, most: int = 100
) -> list[LimitKeyRow]:
    conditions = {"keys": None if keys is None else to_json(list(keys)), "after": after}
    given = {name: value for name, value in conditions.items() if value is not None}
    arguments = {"limit": limit, "most": min(most, MAX_PAGE), "now": tx.now, **given}
    rows = tx.rows(with_parts(SQL["keys"], frozenset(given)), arguments)
    found = read_keys(tx, [row[0] for row in rows])
    return [_to_key(limit, row, found[row[0]].units_used(tx.now)) for row in rows]


def _to_key(limit: str, row: Sequence[Any], used: int) -> LimitKeyRow:
    own = _with_json(row[1:6], 1)
    return to_limit_key((limit, *own, used, *row[6:]), instant)


def get_waits(tx: Tx, keys: Collection[WorkKey]) -> list[LimitWait]:
    rows = tx.gather(SQL["waits"], {"keys": to_json(list(keys))})
    found = read_keys(tx, {key_id for row in rows for key_id, _ in json.loads(row[-1])})
    return [_to_wait(tx, row, found) for row in rows]


def _to_wait(tx: Tx, row: Sequence[Any], keys: Mapping[int, LimitKey]) -> LimitWait:
    instance_id, execution_id, activity_id, work_id, line_id, since, priority, domain, uses = row
    units: list[tuple[int, int]] = json.loads(uses)
    units.sort(key=lambda use: use[0] != domain)  # stable: the domain first
    lacks = [(keys[key_id], lack) for key_id, count in units if (lack := keys[key_id].find_lack(count, tx.now))]
    key, lack = lacks[0] if lacks else (keys[domain], None)
    at = {"key_id": key.key_id, "work_id": work_id, "line_id": line_id, "since": since, "priority": priority}
    before = tx.value(SQL["before"], {**at, "most": COUNTED})
    return LimitWait(
        key=WorkKey(instance_id, execution_id, activity_id),
        limit=key.limit,
        limit_key=key.key,
        cause="order" if lack is None else lack.cause,
        priority=priority,
        since=instant(since),
        in_use=key.in_use,
        concurrency=key.concurrency,
        used=key.units_used(tx.now),
        rate=key.rate,
        before=before,
        seconds=_seconds(key, lack, before, tx.now),
    )


def _seconds(key: LimitKey, lack: Lack | None, before: int, now: float) -> float | None:
    """Return about how long it takes until work is admitted, from how long it took for others lately."""
    opens = None if lack is None or lack.opens is None else max(0.0, lack.opens - now)
    if (lack is not None and lack.cause in {"paused", "closed"}) or key.pace is None:
        return opens
    return max(opens or 0.0, (before + 1) * key.pace)


def _with_json(row: Sequence[Any], *places: int) -> list[Any]:
    """Return a row with its JSON columns parsed."""
    return [json.loads(value) if place in places and value is not None else value for place, value in enumerate(row)]
