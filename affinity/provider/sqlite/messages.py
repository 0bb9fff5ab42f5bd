"""Messages to instances, and the instances that a start message creates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import FINISHED, Delivery, NewInstance, NewMessage
from affinity.provider.sqlite.database import Tx
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "messages.sql")


def send(tx: Tx, message: NewMessage) -> bool:
    """Queue a message on its owner's route; False when the instance is missing or finished."""
    timer_execution, timer_id = message.timer or (None, None)
    sent = tx.run(
        SQL["send"],
        {
            "now": tx.now,
            "instance_id": message.instance_id,
            "payload": message.payload,
            "delay": message.delay,
            "timer_execution": timer_execution,
            "timer_id": timer_id,
        },
    )
    return bool(sent)


def create(tx: Tx, instance: NewInstance) -> bool:
    """Create an instance with its start message; False when the id is taken, of which the parent is told if it
    asked.
    """
    row = {
        "now": tx.now,
        "instance_id": instance.instance_id,
        "name": instance.name,
        "version": instance.version,
        "parent_id": instance.parent_id,
    }
    if tx.run(SQL["create"], row):
        return send(tx, NewMessage(instance_id=instance.instance_id, payload=instance.start, delay=instance.delay))
    if instance.on_exists is not None and instance.parent_id is not None:
        send(tx, NewMessage(instance_id=instance.parent_id, payload=instance.on_exists))
    return False


def create_all(tx: Tx, instances: Sequence[NewInstance]) -> list[bool]:
    """See `Provider.create_instance`."""
    return [create(tx, instance) for instance in instances]


def send_all(tx: Tx, messages: Sequence[NewMessage]) -> list[Delivery]:
    """See `Provider.send_message`."""
    return ["delivered" if send(tx, message) else _refusal(tx, message.instance_id) for message in messages]


def reroute_instance(tx: Tx, instance_id: str, route: str) -> None:
    """Mark the messages of an instance for its owner, up to `MAX_REROUTE` of them; fetches repair the rest as they
    meet it.
    """
    tx.run(SQL["reroute_instance"], {"instance_id": instance_id, "route": route, "limit": MAX_REROUTE})


def reroute_messages(tx: Tx, route: str, limit: int) -> int:
    """Re-mark messages under ``route`` whose instance is owned by somebody else or by nobody; their number."""
    return tx.run(SQL["reroute_messages"], {"route": route, "limit": limit, "now": tx.now})


def _refusal(tx: Tx, instance_id: str) -> Delivery:
    row = tx.row(SQL["status"], {"instance_id": instance_id})
    assert row is None or row[0] in FINISHED, "a message to a running instance is always queued"
    return "unknown" if row is None else "finished"
