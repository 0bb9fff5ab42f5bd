"""Reads for operators: origins of events, work items, executions and trees of an instance, queue statistics, counts."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Any, Final, get_args

from affinity.provider.contract import (
    EVENT_HEAD,
    EventOrigin,
    ExecutionInfo,
    InstanceCounts,
    InstanceSize,
    MessageState,
    QueuePart,
    QueueStatistics,
    StatusCounts,
    TreeMember,
    WaitingWork,
    WorkItemInfo,
    WorkItemState,
)
from affinity.provider.rows import (
    to_execution,
    to_instance_counts,
    to_origins,
    to_record,
    to_status_counts,
    to_tree_member,
    to_work_item_info,
)
from affinity.provider.sqlite import messages, work_items
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import ask
from affinity.provider.sqlite.sessions import BLOCKED, FREE, GATE, GATED, NEW, SUSPENDED
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "management.sql")
_OF_ROUTE: Final = with_parts(SQL["route_items"], frozenset())
_LATER: Final = with_parts(SQL["route_items"], frozenset({"later"}))

_AT_GATES: Final = frozenset({GATE, GATED})


def read_origins(tx: Tx, instance_id: str, execution_id: int) -> list[EventOrigin]:
    rows = tx.rows(SQL["origins"], {"instance_id": instance_id, "execution_id": execution_id})
    return to_origins(rows, instant)


def list_work_items(tx: Tx, instance_id: str, limit: int) -> list[WorkItemInfo]:
    rows = tx.rows(SQL["work_items"], {"instance_id": instance_id, "limit": limit, "now": tx.now})
    return [to_work_item_info(row, instant) for row in rows]


def list_queue(tx: Tx, part: QueuePart, limit: int) -> list[WorkItemInfo]:
    at: dict[str, Any] = {"now": tx.now, "limit": limit}
    if part == "retried":
        rows = tx.rows(SQL["retried_items"], at)
    else:
        statement = _LATER if part == "delayed" else _OF_ROUTE
        at["limit"] = 10 * limit if part == "delayed" else limit
        routes = [route for route in work_items.find_routes(tx) if _part_of(route) == part]
        rows = [row for route in routes for row in tx.rows(statement, {**at, "route": route})]
    found = [to_work_item_info(row, instant) for row in rows]
    return sorted(found, key=attrgetter("visible_at"))[:limit]


def _part_of(route: str) -> QueuePart:
    """Return the part of the queue whose items a route may have."""
    return "limited" if route in _AT_GATES else "blocked" if route == BLOCKED else "delayed"


def measure_instance(tx: Tx, instance_id: str) -> InstanceSize | None:
    row = tx.row(SQL["size"], {"instance_id": instance_id})
    return None if row is None else to_record(InstanceSize, row)


def list_executions(tx: Tx, instance_id: str, limit: int, *, before: int | None = None) -> list[ExecutionInfo]:
    arguments = {"instance_id": instance_id, "limit": limit, "before": before, "head": EVENT_HEAD}
    return [to_execution(row, instant) for row in tx.rows(SQL["executions"], arguments)]


def list_tree(tx: Tx, instance_id: str, limit: int) -> list[TreeMember]:
    rows = tx.rows(SQL["tree"], {"instance_id": instance_id, "limit": limit})
    return [to_tree_member(row, instant) for row in rows]


def measure_queues(tx: Tx, limit: int) -> QueueStatistics:
    at: dict[str, Any] = {"now": tx.now, "limit": limit}
    items, oldest_item, oldest_session = _measure_items(tx, at)
    messages, oldest_message = _measure_messages(tx, at)
    return QueueStatistics(
        work_items={one: min(limit, items[one]) for one in get_args(WorkItemState) if one != "limited"},
        messages={one: min(limit, messages[one]) for one in get_args(MessageState)},
        oldest_work_item=oldest_item,
        oldest_message=oldest_message,
        suspended=tx.value(SQL["count_suspended"], {"limit": limit}),
        waiting_sessions=_count_waiting_sessions(tx, at),
        oldest_waiting_session=oldest_session,
        parked=tx.value(SQL["count_parked"], {"limit": limit}),
        late=ask(tx, "late"),
    )


def sample_waiting_work(tx: Tx, limit: int) -> list[WaitingWork]:
    at: dict[str, Any] = {"now": tx.now, "limit": limit}
    rows = tx.rows(SQL["waiting_messages"], {**at, "route": NEW})
    for route in work_items.find_routes(tx):
        kind, _, tag = route.partition("#")
        if kind in {FREE, NEW}:
            rows += tx.rows(SQL["waiting_items"], {**at, "route": route, "tag": tag or None})
    return [to_record(WaitingWork, row, instant) for row in rows]


def count_instances(tx: Tx, limit: int, *, after: str | None = None) -> InstanceCounts:
    rows = tx.rows(SQL["count_instances"], {"after": after or "", "limit": limit})
    return to_instance_counts(rows, limit)


def count_statuses(tx: Tx, limit: int) -> StatusCounts:
    row = tx.row(SQL["count_statuses"], {"limit": limit})
    assert row is not None
    return to_status_counts(row, limit)


def _measure_items(tx: Tx, at: dict[str, Any]) -> tuple[Counter[WorkItemState], float | None, float | None]:
    """How many, and the ages of the oldest one, and of the oldest one of a session without a holder."""
    counts: Counter[WorkItemState] = Counter()
    ages: dict[str, float] = {}
    for route in work_items.find_routes(tx):
        if route in _AT_GATES:
            continue
        row = tx.row(SQL["visible_items"], {**at, "route": route})
        assert row is not None
        running, waiting, oldest = row
        later = tx.value(SQL["later_items"], {**at, "route": route})
        if route == BLOCKED:
            counts.update(blocked=waiting + later)
            continue
        counts.update(running=running, waiting=waiting, delayed=later)
        if oldest is not None:
            ages[route] = tx.now - oldest
    of_sessions = (age for route, age in ages.items() if route.startswith(NEW))
    return counts, max(ages.values(), default=None), max(of_sessions, default=None)


def _count_waiting_sessions(tx: Tx, at: dict[str, Any]) -> int:
    routes = [route for route in work_items.find_routes(tx) if route.startswith(NEW)]
    return len({name for route in routes for name in tx.gather(SQL["waiting_sessions"], {**at, "route": route})})


def _measure_messages(tx: Tx, at: dict[str, Any]) -> tuple[Counter[MessageState], float | None]:
    counts: Counter[MessageState] = Counter()
    ages: list[float] = []
    for route in messages.find_routes(tx):
        if route in _AT_GATES:
            continue
        row = tx.row(SQL["visible_messages"], {**at, "route": route})
        assert row is not None
        visible, oldest = row
        later = tx.value(SQL["later_messages"], {**at, "route": route})
        if route == SUSPENDED:
            counts.update(suspended=visible + later)
        else:
            counts.update(waiting=visible, delayed=later)
            ages += [] if oldest is None else [tx.now - oldest]
    return counts, max(ages, default=None)
