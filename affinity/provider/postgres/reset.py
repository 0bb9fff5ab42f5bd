"""Opening an instance again at an earlier point of its history."""

from __future__ import annotations

from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import Reset
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Ints, Texts
from affinity.provider.postgres.messages import message_columns
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.turn_columns import (
    RESTRICT,
    gate_columns,
    restriction_params,
    write_values_params,
)
from affinity.provider.statements import load_statements
from affinity.records import labels_text

_SQL: Final = load_statements(__package__, "reset.sql")


async def reset_instance(db: Database, reset: Reset) -> bool:
    items = reset.work_items
    watches = dict(reset.watches)  # the last one of a session replaces earlier ones
    params = {
        "instance": reset.instance_id,
        "generation": reset.generation,
        "execution": Int8(reset.execution_id),
        "events": Int8(reset.event_count),
        "keep": Int8(reset.keep),
        "event": Texts(reset.history),
        "custom_status": reset.custom_status,
        **message_columns(reset.messages),
        "item_activity": Ints(item.key.activity_id for item in items),
        "item_name": Texts(item.name for item in items),
        "item_session": Texts(item.session_id for item in items),
        "item_payload": Texts(item.payload for item in items),
        "watch_session": Texts(watches),
        "watch": Texts(watches.values()),
        "item_order": Texts(item.order for item in items),
        **gate_columns(items),
        **write_values_params([(reset.instance_id, reset.values)] if reset.values else []),
        "labels": labels_text(reset.labels),
    }
    statement = _SQL["reset"]
    if restricted := [item for item in items if item.is_restricted]:
        statement += ", " + RESTRICT
        params.update(restriction_params(restricted))
    ((done, *_),) = await db.connections.quick.run(*with_shares(db.shares, statement, _SQL["was_reset"], params))
    return bool(done)
