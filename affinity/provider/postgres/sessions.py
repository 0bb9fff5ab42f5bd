"""Session leases, as listings show them, and the records of session state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import SessionInfo
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.rows import to_session
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "sessions.sql")
_PAGE_OF: Final = with_parts(_SQL["list_sessions"], frozenset({"page", "of"}))
_PAGE: Final = with_parts(_SQL["list_sessions"], frozenset({"page"}))
_SOME: Final = with_parts(_SQL["list_sessions"], frozenset({"some"}))


async def list_sessions(
    db: Database,
    session_ids: Collection[str] | None = None,
    *,
    worker_id: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Sequence[SessionInfo]:
    page = {"after": after, "limit": Int8(limit)}
    if session_ids is None and worker_id is None:
        rows = await db.connections.misc.run(_PAGE, page)
    elif session_ids is None:
        rows = await db.connections.misc.run(_PAGE_OF, page | {"worker": worker_id})
    else:
        rows = await db.connections.quick.run(_SOME, {"session": Texts(session_ids)})
    return [to_session(row) for row in rows]
