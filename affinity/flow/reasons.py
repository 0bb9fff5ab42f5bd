"""The reasons why work waits at its limits: their part of `affinity.explain`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from affinity.errors import Explanation, ExplanationCode
from affinity.explain import Explainer, Reason, add_gate_reasons, add_reasons, duration, time_text
from affinity.explain.outstanding import Outstanding
from affinity.flow.store.contract import (
    START_ACTIVITY,
    START_EXECUTION,
    LimitKeyRow,
    LimitRow,
    LimitWait,
    WaitCause,
    keeps_limits,
    limits_of,
)
from affinity.flow.words import rate_text
from affinity.provider.contract import InstanceInfo, Provider, WorkKey

COUNTED: Final = 1_000
"""Where `LimitWait.before` stops."""

_CODES: Final[Mapping[WaitCause, ExplanationCode]] = {"paused": "limit_paused", "closed": "limit_closed"}


async def start_reason(explainer: Explainer, info: InstanceInfo, outstanding: Outstanding) -> Explanation | None:
    """Return the reason why the instance waits to begin; None: it waits at no limit."""
    if info.status != "pending" or not keeps_limits(explainer.provider):
        return None
    key = WorkKey(info.instance_id, START_EXECUTION, START_ACTIVITY)
    for code, text, fields in (await _reasons(explainer.provider, [key])).values():
        return explainer.reason(code, f"waits to begin, {text}", {"name": info.name, **fields})
    return None


async def item_reasons(provider: Provider, keys: Collection[WorkKey]) -> Mapping[WorkKey, Reason]:
    """Return the reasons why work items wait at their limits."""
    if not keeps_limits(provider):
        return {}
    found = await _reasons(provider, keys)
    return {key: (code, f"which waits {text}", fields) for key, (code, text, fields) in found.items()}


async def _reasons(provider: Provider, keys: Collection[WorkKey]) -> Mapping[WorkKey, Reason]:
    waits = await limits_of(provider).get_limit_waits(keys)
    stopped = [wait for wait in waits if wait.cause in {"paused", "closed"}]
    limits = await _limits(provider, stopped)
    return {wait.key: _reason(wait, *limits.get((wait.limit, wait.limit_key), (None, None))) for wait in waits}


async def _limits(
    provider: Provider, waits: Sequence[LimitWait]
) -> Mapping[tuple[str, str], tuple[LimitRow, LimitKeyRow | None]]:
    """Return the limits, and the keys, of these waits."""
    store = limits_of(provider)
    names = {wait.limit for wait in waits}
    rows = {row.spec.name: row for row in (await store.list_limits(names) if names else ())}
    keys = {
        (name, row.key): row
        for name in names
        for row in await store.list_limit_keys(name, keys={wait.limit_key for wait in waits if wait.limit == name})
    }
    wanted = {(wait.limit, wait.limit_key) for wait in waits}
    return {(name, key): (rows[name], keys.get((name, key))) for name, key in wanted if name in rows}


def _reason(wait: LimitWait, limit: LimitRow | None, key: LimitKeyRow | None) -> Reason:
    more: dict[str, Any] = {"limit": wait.limit, "limit_key": wait.limit_key or None, "since": wait.since}
    if wait.cause == "closed":
        closed = [row.closed_until for row in (limit, key) if row is not None and row.closed_until is not None]
        more["due_at"] = max(closed, default=None)
    parts = [_cause(wait, limit, key), *_place(wait)]
    text = f"for limit {_named(wait)}: {', '.join(part for part in parts if part)}"
    return _CODES.get(wait.cause, "limited"), text, more


def _named(wait: LimitWait) -> str:
    return f"{wait.limit!r} of {wait.limit_key!r}" if wait.limit_key else repr(wait.limit)


def _cause(wait: LimitWait, limit: LimitRow | None, key: LimitKeyRow | None) -> str:
    """Return what the limit lacks; empty: nothing, and other work goes first."""
    match wait.cause:
        case "concurrency":
            return f"{wait.in_use} of {wait.concurrency} in use"
        case "rate":
            return f"{wait.used} of {rate_text(wait.rate)} used" if wait.rate is not None else "its rate is used up"
        case "paused":
            return _pause(wait, limit, key)
        case "closed":
            return _closing(limit, key)
        case "order":
            return "" if wait.before else "it is admitted next"


def _pause(wait: LimitWait, limit: LimitRow | None, key: LimitKeyRow | None) -> str:
    if limit is not None and not limit.paused and key is not None and key.paused:
        return f"this key is paused, until `affinity limits resume {wait.limit} --key {wait.limit_key}`"
    by = "" if limit is None or limit.changed_by is None else f" by {limit.changed_by!r}"
    at = "" if limit is None or limit.changed_at is None else f" since {time_text(limit.changed_at)}"
    return f"it is paused{by}{at}, until `affinity limits resume {wait.limit}`"


def _closing(limit: LimitRow | None, key: LimitKeyRow | None) -> str:
    closed = [row.closed_until for row in (limit, key) if row is not None and row.closed_until is not None]
    until = f" until {time_text(max(closed))}" if closed else ""
    why = f" ({limit.closed_for})" if limit is not None and limit.closed_for else ""
    return f"it is closed{until}{why}"


def _place(wait: LimitWait) -> Sequence[str]:
    """Return the priority of the work, how much goes before it, and when it is admitted, about."""
    before = f"{COUNTED} or more" if wait.before >= COUNTED else str(wait.before)
    return [
        f"priority {wait.priority}" if wait.priority else "",
        f"{before} before it" if wait.before else "",
        "" if wait.seconds is None else f"about {duration(wait.seconds)}",
    ]


add_reasons(start_reason)
add_gate_reasons(item_reasons)
