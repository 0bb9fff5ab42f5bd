"""Messages to instances, and the instances that a start message creates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import FINISHED, Delivery, MessageKey, NewInstance, NewMessage
from affinity.provider.sqlite import quotas, replies
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements
from affinity.records import labels_text

SQL: Final = load_statements(__package__, "messages.sql")


def send(tx: Tx, messages: Sequence[NewMessage]) -> None:
    """Queue messages in order. Messages to instances that are missing or finished are dropped."""
    for message in messages:
        if message.ends_wait:
            _end_start_wait(tx, message)
    rows = [
        (
            *(message.instance_id, message.delay, *(message.timer or (None, None)), message.payload),
            *(message.generation, isinstance(message, _StartMessage)),
        )
        for message in messages
    ]
    tx.many(SQL["send"], rows, {"now": tx.now})


def insert_new(tx: Tx, instances: Sequence[NewInstance]) -> tuple[list[bool], list[NewMessage]]:
    """Insert the instances whose ids are free.

    Returns:
        Their ids, and the messages to send now: start messages, and messages to parents whose child's id was taken.
    """
    return _insert(tx, instances, set(read_statuses(tx, [instance.instance_id for instance in instances])))


def _insert(tx: Tx, instances: Sequence[NewInstance], taken: set[str]) -> tuple[list[bool], list[NewMessage]]:
    created: list[bool] = []
    outbox: list[NewMessage] = []
    rows: list[tuple[object, ...]] = []
    for new in instances:
        created.append(new.instance_id not in taken)
        taken.add(new.instance_id)
        if created[-1]:
            starts_at = start_time(tx, new)
            outbox.append(start_message(new, starts_at))
            rows.append(
                (
                    *(new.instance_id, new.generation, new.name, new.version),
                    *(new.parent_id, new.parent_generation, new.on_deleted, new.session_id),
                    *(*gate_columns(new, starts_at), starts_at, labels_text(new.labels)),
                )
            )
        elif new.on_exists is not None and new.parent_id is not None:
            outbox.append(NewMessage(instance_id=new.parent_id, payload=new.on_exists))
    tx.many(SQL["create"], rows, {"now": tx.now})
    return created, outbox


def create_all(tx: Tx, instances: Sequence[NewInstance]) -> list[bool]:
    taken = set(read_statuses(tx, [instance.instance_id for instance in instances]))
    quotas.check_new(tx, instances, len({instance.instance_id for instance in instances} - taken))
    created, outbox = _insert(tx, instances, taken)
    send(tx, outbox)
    return created


def send_all(tx: Tx, messages: Sequence[NewMessage]) -> list[Delivery]:
    if any(message.key is not None for message in messages):
        return _send_keyed(tx, messages)
    return _send_all(tx, messages)


def _send_keyed(tx: Tx, messages: Sequence[NewMessage]) -> list[Delivery]:
    """As `_send_all`, where some messages have a key: of each key the first one is sent."""
    keys = [None if message.key is None else MessageKey(message.instance_id, message.key) for message in messages]
    known = replies.find_known(tx, [key for key in keys if key is not None])
    generations = {
        name: row.generation for name, row in read_statuses(tx, [each.instance_id for each in messages]).items()
    }
    first: dict[MessageKey, int] = {}
    places: list[int] = []  # of the message that is sent for each one; -1: one was sent before
    for n, (message, key) in enumerate(zip(messages, keys, strict=True)):
        if key is None or message.generation not in {None, generations.get(key.instance_id)}:
            places.append(n)
        else:
            places.append(-1 if key in known else first.setdefault(key, n))
    sent = [n for n, place in enumerate(places) if place == n]
    outcomes = dict(zip(sent, _send_all(tx, [messages[n] for n in sent]), strict=True))
    new = [(key, n) for key, n in first.items() if outcomes[n] == "delivered"]
    replies.add(tx, [(key, generations[key.instance_id]) for key, _ in new])
    return [_delivery_of_copy(n, place, outcomes) for n, place in enumerate(places)]


def _delivery_of_copy(n: int, place: int, outcomes: Mapping[int, Delivery]) -> Delivery:
    outcome = outcomes.get(place, "delivered")
    return "repeated" if place != n and outcome == "delivered" else outcome


def _send_all(tx: Tx, messages: Sequence[NewMessage]) -> list[Delivery]:
    statuses = read_statuses(tx, [message.instance_id for message in messages])
    most = quotas.get(tx)
    full = _over_limit(tx, messages, most.unread_events)
    over = set() if most.instance_bytes is None else quotas.find_too_large(tx, messages, most.instance_bytes)
    send(tx, [message for n, message in enumerate(messages) if n not in full | over])
    deliveries: list[Delivery] = []
    for n, message in enumerate(messages):
        delivery = _delivery(statuses.get(message.instance_id), message.generation)
        if delivery == "delivered" and n in full | over:
            delivery = "full" if n in full else "over_quota"
        deliveries.append(delivery)
    return deliveries


def _over_limit(tx: Tx, messages: Sequence[NewMessage], quota: int | None) -> set[int]:
    """Which of the messages find their instance with as many unread ones as they or the quota allow."""
    limited = {m.instance_id: _least(m.unread_limit, quota) for m in messages if m.unread_limit is not None}
    if not limited:
        return set()
    arguments = {"instance_ids": to_json(list(limited)), "most": max(limited.values())}
    unread: dict[str, int] = dict(tx.gather(SQL["unread"], arguments))
    over: set[int] = set()
    for n, message in enumerate(messages):
        if message.unread_limit is None or message.instance_id not in unread:
            continue
        if unread[message.instance_id] >= _least(message.unread_limit, quota):
            over.add(n)
        else:
            unread[message.instance_id] += 1
    return over


def _least(limit: int, quota: int | None) -> int:
    return limit if quota is None else min(limit, quota)


def _end_start_wait(tx: Tx, message: NewMessage) -> None:
    """End the wait of an instance that waits to start, or at its gate: what it has got follows this message."""
    place = {"instance_id": message.instance_id, "generation": message.generation, "now": tx.now}
    if tx.run(SQL["end_start_waits"], place):
        tx.run(SQL["release_messages"], place)


class _StartMessage(NewMessage):
    """The message that starts an instance. It waits at the instance's gate, and all others behind it."""


def start_message(new: NewInstance, starts_at: float | None) -> NewMessage:
    """Return the message that starts an instance. A priority alone shows it earlier, unless its time has not come."""
    head_start = 0.0 if new.gate is None or new.gate.limited or starts_at is not None else new.gate.head_start
    return _StartMessage(instance_id=new.instance_id, payload=new.start, delay=-head_start)


def start_time(tx: Tx, new: NewInstance) -> float | None:
    """Return the time at which its start message is visible, if it is not now."""
    due = max(tx.now + new.delay, new.not_before)
    return due if due > tx.now else None


def gate_columns(new: NewInstance, starts_at: float | None) -> tuple[str | None, bool | None]:
    """Return the columns ``gate`` and ``limited`` of a new instance. One with a priority alone passes its gate at its
    time, if that has not come.
    """
    if new.gate is None or (starts_at is None and not new.gate.limited):
        return None, None
    return new.gate.text, True if new.gate.limited else None


class _StatusRow(NamedTuple):
    status: str
    generation: str


def read_statuses(tx: Tx, instance_ids: Collection[str]) -> dict[str, _StatusRow]:
    """Statuses and generations of the instances that there are."""
    if not instance_ids:
        return {}
    rows = tx.gather(SQL["statuses"], {"instance_ids": to_json(list(instance_ids))})
    return {instance_id: _StatusRow(*known) for instance_id, *known in rows}


def reroute_instances(tx: Tx, instance_ids: Collection[str], route: str) -> None:
    """Route the messages of instances to their owner, up to `MAX_REROUTE` in all; fetches repair the rest."""
    arguments = {"instance_ids": to_json(list(instance_ids)), "route": route, "limit": MAX_REROUTE}
    tx.run(SQL["reroute_instances"], arguments)


def reroute_all_messages(tx: Tx, instance_ids: Sequence[str], route: str) -> None:
    """Route all messages of instances; no fetch would repair one that is left under `SUSPENDED`."""
    tx.many(SQL["reroute_all_messages"], instance_ids, {"route": route})


def reroute_messages(tx: Tx, route: str, limit: int) -> int:
    """Repair the routes of messages under ``route`` whose instance has another owner or none; their number."""
    return tx.run(SQL["reroute_messages"], {"route": route, "limit": limit, "now": tx.now})


def find_routes(tx: Tx, first: str = "") -> list[str]:
    """The routes of queued messages behind one, in order."""
    return [route for (route,) in tx.rows(SQL["routes"], {"first": first})]


def _delivery(known: _StatusRow | None, generation: str | None) -> Delivery:
    if known is None or generation not in {None, known.generation}:
        return "unknown"
    return "finished" if known.status in FINISHED else "delivered"
