"""Rows of limits of either engine as records, and records as the values that the engines store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from affinity.flow.store.contract import (
    UNCHANGED,
    LimitChange,
    LimitKeyRow,
    LimitRow,
    LimitSpec,
    LimitWait,
    RateBound,
    Unchanged,
)
from affinity.provider.contract import WorkKey

Columns: TypeAlias = Sequence[Any]
Time: TypeAlias = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


def to_rate(value: Sequence[Any] | None) -> RateBound | None:
    """Return the rate of ``[count, per, burst]``."""
    return None if value is None else RateBound(count=int(value[0]), per=float(value[1]), burst=value[2])


def from_rate(rate: RateBound | None) -> list[Any] | None:
    """Return a rate as `to_rate` reads it."""
    return None if rate is None else [rate.count, rate.per, rate.burst]


def _changed_concurrency(changes: Mapping[str, Any]) -> int | Unchanged | None:
    changed: int | Unchanged | None = changes.get("concurrency", UNCHANGED)
    return changed


def _changed_rate(changes: Mapping[str, Any]) -> RateBound | Unchanged | None:
    return to_rate(changes["rate"]) if "rate" in changes else UNCHANGED


def to_limit(row: Columns, time: Time = _as_it_is) -> LimitRow:
    """Return a limit. Its JSON columns are parsed."""
    name, keyed, concurrency, rate, aging, app, code, declared, changes, paused, ramp, *rest = row
    resumed_at, closed_until, closed_for, changed_by, changed_at, in_use, waiting, oldest, admitted, waited, keys = rest
    spec = LimitSpec(name=name, keyed=bool(keyed), concurrency=concurrency, rate=to_rate(rate), aging=aging)
    return LimitRow(
        spec=spec,
        app=app,
        code=code,
        declared=bool(declared),
        concurrency=_changed_concurrency(changes),
        rate=_changed_rate(changes),
        paused=bool(paused),
        ramp=ramp,
        resumed_at=_time(resumed_at, time),
        closed_until=_time(closed_until, time),
        closed_for=closed_for,
        changed_by=changed_by,
        changed_at=_time(changed_at, time),
        in_use=in_use,
        waiting=waiting,
        oldest=_time(oldest, time),
        admitted=admitted,
        waited=waited,
        keys=keys,
    )


def to_limit_key(row: Columns, time: Time = _as_it_is) -> LimitKeyRow:
    """Return a key of a limit. Its JSON columns are parsed."""
    limit, key, changes, paused, closed_until, in_use, used, waiting, oldest, admitted = row
    return LimitKeyRow(
        limit=limit,
        key=key,
        concurrency=_changed_concurrency(changes),
        rate=_changed_rate(changes),
        paused=bool(paused),
        closed_until=_time(closed_until, time),
        in_use=in_use,
        used=used,
        waiting=waiting,
        oldest=_time(oldest, time),
        admitted=admitted,
    )


def to_wait(row: Columns, time: Time = _as_it_is) -> LimitWait:
    """Return why work waits. Its JSON columns are parsed."""
    instance_id, execution_id, activity_id, limit, key, cause, priority, since, *rest = row
    in_use, concurrency, used, rate, before, seconds = rest
    return LimitWait(
        key=WorkKey(instance_id, execution_id, activity_id),
        limit=limit,
        limit_key=key,
        cause=cause,
        priority=priority,
        since=time(since),
        in_use=in_use,
        concurrency=concurrency,
        used=used,
        rate=to_rate(rate),
        before=before,
        seconds=None if seconds is None else max(0.0, seconds),
    )


def _time(value: Any, time: Time) -> Any:
    return None if value is None else time(value)


def specs_as_json(specs: Sequence[LimitSpec]) -> str:
    """Return declared limits as the engines read them."""
    return json.dumps(
        [
            {
                "name": spec.name,
                "keyed": spec.keyed,
                "concurrency": spec.concurrency,
                "rate": from_rate(spec.rate),
                "aging": spec.aging,
            }
            for spec in specs
        ]
    )


def changes_as_json(changes: Sequence[LimitChange]) -> str:
    """Return changes as the engines read them: a bound that stays as it is, is left out."""
    return json.dumps([_change(change) for change in changes])


def _change(change: LimitChange) -> dict[str, Any]:
    value: dict[str, Any] = {
        "limit": change.limit,
        "key": change.key,
        "paused": change.paused,
        "ramp": change.ramp,
        "reset": change.reset,
        "by": change.by,
    }
    if not isinstance(change.concurrency, Unchanged):
        value["concurrency"] = change.concurrency
    if not isinstance(change.rate, Unchanged):
        value["rate"] = from_rate(change.rate)
    return value
