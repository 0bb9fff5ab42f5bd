"""Opening an instance again at an earlier point of its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from affinity.provider.contract import NewMessage, NewWorkItem, Reset
from affinity.provider.sqlite import holds, instances, suspension, turns, values, work_items
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.messages import reroute_all_messages, send
from affinity.provider.sqlite.placing import OrderPlacer, more_columns, waiting_row
from affinity.provider.sqlite.sessions import FREE, NEW, Lease, read_leases
from affinity.provider.statements import load_statements
from affinity.records import labels_text

SQL: Final = load_statements(__package__, "reset.sql")


def reset(tx: Tx, reset: Reset) -> bool:
    at: dict[str, Any] = {"instance_id": reset.instance_id, "execution_id": reset.execution_id, "now": tx.now}
    fence = {"generation": reset.generation, "seen": reset.event_count}
    count = {
        "event_count": reset.keep + len(reset.history),
        "custom_status": reset.custom_status,
        "labels": labels_text(reset.labels),
    }
    if not tx.run(SQL["begin"], {**at, **fence, **count}):
        return False
    tx.run(SQL["copy"], {**at, "keep": reset.keep})
    added = turns.event_rows(reset.instance_id, reset.execution_id + 1, reset.keep, reset.history)
    tx.many(turns.SQL["append"], added, {"now": tx.now, "worker_id": None})
    tx.many(instances.SQL["clear_items"], [reset.instance_id])
    holds.end(tx, [reset.instance_id])
    if reset.values:
        values.write(tx, [(reset.instance_id, reset.values)])
    holds.watch(tx, reset.instance_id, reset.watches)
    _queue(tx, reset, at)
    tx.run(suspension.SQL["close"], {**at, "forget": True})
    return True


def _queue(tx: Tx, reset: Reset, at: Mapping[str, Any]) -> None:
    due: dict[int, float] = dict(tx.rows(SQL["timers"], at))
    tx.run(SQL["drop_timers"], at)
    last = tx.value(SQL["last_message"])
    send(tx, [message for message in reset.messages if not _waits(message, due)])
    tx.run(SQL["go_ahead"], {**at, "after": last})
    send(tx, [_kept(message, due, tx.now) for message in reset.messages if _waits(message, due)])
    reroute_all_messages(tx, [reset.instance_id], NEW)
    leases = read_leases(tx, {item.session_id for item in reset.work_items if item.session_id is not None})
    orders = OrderPlacer(tx)
    rows = [_row(item, leases, orders) for item in reset.work_items]
    tx.many(
        work_items.SQL["insert"], rows, {"worker_id": None, "incarnation": None, "locked_until": None, "now": tx.now}
    )


def _waits(message: NewMessage, due: Mapping[int, float]) -> bool:
    """Whether it is a timer that has a delay, or that waited before the reset."""
    return message.delay > 0 or (message.timer is not None and message.timer[1] in due)


def _kept(message: NewMessage, due: Mapping[int, float], now: float) -> NewMessage:
    """A timer that waited before the reset keeps its time."""
    if message.timer is None or message.timer[1] not in due:
        return message
    return replace(message, delay=due[message.timer[1]] - now)


def _row(item: NewWorkItem, leases: Mapping[str, Lease], orders: OrderPlacer) -> tuple[Any, ...]:
    place = None if item.order is None else orders.next_place(item.order)
    if (waiting := waiting_row(item, place)) is not None:
        return waiting
    lease = None if item.session_id is None else leases.get(item.session_id)
    route = FREE if item.session_id is None else NEW if lease is None else lease.route
    return (
        item.key,
        item.name,
        item.session_id,
        route,
        item.delay,
        None,
        item.payload,
        item.order,
        place,
        *more_columns(item),
    )
