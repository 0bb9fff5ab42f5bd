"""The name of the database in the contexts of payloads, and whether these are encoded."""

from __future__ import annotations

from typing import Final

from affinity.provider.contract import DatabaseIdentity
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "identity.sql")


async def read_identity(db: Database) -> DatabaseIdentity:
    (row,) = await db.connections.rows.run(_SQL["read_identity"])
    return DatabaseIdentity(*row)


async def mark_encoded(db: Database, check_value: str, *, former: str | None) -> bool:
    params = {"check_value": check_value, "former": former}
    return bool(await db.connections.rows.run(_SQL["mark_encoded"], params))


async def mark_offloaded(db: Database) -> None:
    await db.connections.rows.run(_SQL["mark_offloaded"])
