"""Replies to messages with a key: what clients read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import KeyState, MessageKey
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.rows import to_key_state
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "replies.sql")


async def get_replies(
    db: Database, keys: Sequence[MessageKey], *, max_bytes: int = MAX_BATCH_BYTES
) -> Sequence[KeyState | None]:
    if not keys:
        return []
    params = {
        "instance": Texts(key.instance_id for key in keys),
        "key": Texts(key.key for key in keys),
        "max_bytes": Int8(max_bytes),
    }
    found: list[KeyState | None] = [None] * len(keys)
    for n, *row in await db.connections.quick.run(_SQL["replies"], params):
        found[n - 1] = to_key_state(row)
    return found
