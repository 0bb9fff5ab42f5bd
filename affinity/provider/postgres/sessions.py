"""Session leases, as listings show them, and the records of session state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import SessionInfo
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.operations import Operations
from affinity.provider.postgres.session_store import PostgresSessionStore
from affinity.provider.rows import to_session
from affinity.provider.statements import load_statements, without
from affinity.records import SessionStore

_SQL: Final = load_statements(__package__, "sessions.sql")
_PAGE: Final = without(_SQL["list_sessions"], "some")
_SOME: Final = without(_SQL["list_sessions"], "page")


class SessionOperations(Operations):
    """`states` and `list_sessions`."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._states = PostgresSessionStore(connections)

    @property
    def states(self) -> SessionStore:
        return self._states

    async def list_sessions(
        self, session_ids: Collection[str] | None = None, *, after: str | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        if session_ids is None:
            rows = await self._connections.misc.run(_PAGE, {"after": after, "limit": Int8(limit)})
        else:
            rows = await self._connections.quick.run(_SOME, {"session": Texts(session_ids)})
        return [to_session(row) for row in rows]
