"""Messages to instances, and the instances that a start message creates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from affinity.errors import QuotaExceeded
from affinity.provider.contract import Delivery, NewInstance, NewMessage, Restart
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Bools, Floats, Ints, Packed, Texts
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.operations import Database, flags
from affinity.provider.statements import load_statements
from affinity.records import labels_text

_SQL: Final = load_statements(__package__, "messages.sql")


async def create_instance(db: Database, instances: Sequence[NewInstance]) -> Sequence[bool]:
    if not instances:
        return []
    has_parents = any(new.parent_id is not None for new in instances)
    statement = "client_create" if db.as_client and not has_parents else "create"
    return await _started(
        db, statement, instance_columns(instances) | gate_columns(instances) | label_columns(instances), len(instances)
    )


async def restart_instance(db: Database, restarts: Sequence[Restart]) -> Sequence[bool]:
    if not restarts:
        return []
    ended = Texts(restart.ended for restart in restarts)
    news = [restart.new for restart in restarts]
    params = instance_columns(news) | gate_columns(news) | label_columns(news) | {"ended": ended}
    params |= {
        "when": Texts([restart.when for restart in restarts]),
        "within": Floats([restart.within for restart in restarts]),
        "cancel": Texts([restart.cancel for restart in restarts]),
    }
    return await _started(db, "client_restart" if db.as_client else "restart", params, len(restarts))


def instance_columns(instances: Sequence[NewInstance], prefix: LiteralString = "") -> dict[LiteralString, Packed]:
    """Return new instances as columns."""
    return {
        prefix + "instance": Texts([new.instance_id for new in instances]),
        prefix + "generation": Texts([new.generation for new in instances]),
        prefix + "name": Texts([new.name for new in instances]),
        prefix + "version": Texts([new.version for new in instances]),
        prefix + "start": Texts([new.start for new in instances]),
        prefix + "parent": Texts([new.parent_id for new in instances]),
        prefix + "delay": Floats([new.delay for new in instances]),
        prefix + "on_exists": Texts([new.on_exists for new in instances]),
        prefix + "parent_generation": Texts([new.parent_generation for new in instances]),
        prefix + "on_deleted": Texts([new.on_deleted for new in instances]),
        prefix + "session": Texts([new.session_id for new in instances]),
    }


def gate_columns(instances: Sequence[NewInstance]) -> dict[LiteralString, Packed]:
    """Return the gates of new instances, and the times before which they do not start."""
    gates = [new.gate for new in instances]
    return {
        "gate": Texts([gate and gate.text for gate in gates]),
        "limited": Bools([gate and gate.limited for gate in gates]),
        "head_start": Floats([gate and gate.head_start for gate in gates]),
        "not_before": Floats([new.not_before for new in instances]),
    }


def label_columns(instances: Sequence[NewInstance]) -> dict[LiteralString, Packed]:
    """Return the labels of new instances, as JSON; no element if none of them has any."""
    has_labels = any(new.labels for new in instances)
    return {"labels": Texts([labels_text(new.labels) for new in instances] if has_labels else [])}


STARTED: Final = _SQL["started"]
"""The effects of a statement that starts instances, for `with_shares`."""


async def _started(db: Database, statement: str, params: Params, count: int) -> Sequence[bool]:
    rows = await db.connections.quick.run(*with_shares(db.shares, _SQL[statement], STARTED, params))
    return created_of(rows, count)


def created_of(rows: Sequence[Row], count: int) -> Sequence[bool]:
    """Return for each of ``count`` rows whether a function has written it.

    Args:
        rows: the function's answer: each row has the position of a written row, or the quota that refuses all.
        count: of the rows that the function was to write.

    Raises:
        QuotaExceeded: a quota refuses all.
    """
    for n, quota, allowed in rows:
        if n is None:
            raise QuotaExceeded(quota, allowed)
    return flags(count, (n for n, *_ in rows))


async def send_message(db: Database, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
    if not messages:
        return []
    params = message_columns(messages) | {
        "unread_limit": Ints([message.unread_limit for message in messages]),
        "ends_wait": Bools([message.ends_wait for message in messages]),
    }
    has_keys = any(message.key is not None for message in messages)
    is_plain = not any(message.delay or message.timer for message in messages)
    statement = _SQL["client_send" if db.as_client and is_plain else "send_keyed" if has_keys else "send"]
    if has_keys or db.as_client:
        params["key"] = Texts([message.key for message in messages])
    deliveries: list[Delivery] = ["unknown"] * len(messages)
    for n, delivery in await db.connections.quick.run(*with_shares(db.shares, statement, _SQL["sent"], params)):
        deliveries[n - 1] = delivery
    return deliveries


def message_columns(messages: Sequence[NewMessage]) -> dict[LiteralString, Packed]:
    """Messages as columns."""
    return {
        "message_instance": Texts([message.instance_id for message in messages]),
        "message_generation": Texts([message.generation for message in messages]),
        "message": Texts([message.payload for message in messages]),
        "message_delay": Floats([message.delay for message in messages]),
        "message_execution": Ints([message.timer and message.timer[0] for message in messages]),
        "message_timer": Ints([message.timer and message.timer[1] for message in messages]),
    }
