"""Limits of one database."""

from __future__ import annotations

from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import Quotas
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "quotas.sql")
_QUOTAS: Final = ("instances", "unread_events", "instance_bytes")


async def get_quotas(db: Database) -> Quotas:
    rows = await db.connections.rows.run(_SQL["get_quotas"])
    return Quotas(**dict(zip(_QUOTAS, rows[0], strict=True))) if rows else Quotas()


async def set_quotas(db: Database, limits: Quotas) -> None:
    """Needs the rights of the role that migrated."""
    params = {name: None if (most := getattr(limits, name)) is None else Int8(most) for name in _QUOTAS}
    await db.connections.rows.run(*with_shares(db.shares, _SQL["set_quotas"], _SQL["quotas_set"], params))
