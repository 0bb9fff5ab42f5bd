"""Session leases: checking and listing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import SessionInfo, WorkerIdentity
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.operations import Operations, caller_params
from affinity.provider.postgres.session_store import PostgresSessionStore
from affinity.provider.rows import to_session
from affinity.provider.statements import load_statements, without
from affinity.records import SessionStore

_SQL: Final = load_statements(__package__, "sessions.sql")
_PAGE: Final = without(_SQL["list_sessions"], "some")
_SOME: Final = without(_SQL["list_sessions"], "page")


class SessionOperations(Operations):
    """`states`, `check_session`, `get_session` and `list_sessions`."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._states = PostgresSessionStore(connections)

    @property
    def states(self) -> SessionStore:
        return self._states

    async def check_session(self, identity: WorkerIdentity, session_ids: Sequence[str]) -> Sequence[float | None]:
        if not session_ids:
            return []
        rows = await self._connections.quick.run(
            _SQL["check"], {**caller_params(identity), "session": Texts(session_ids)}
        )
        found: dict[int, float] = dict(rows)
        return [found.get(n) for n in range(1, len(session_ids) + 1)]

    async def list_sessions(self, *, after: str | None = None, limit: int = 100) -> Sequence[SessionInfo]:
        rows = await self._connections.misc.run(_PAGE, {"after": after, "limit": Int8(limit)})
        return [to_session(row) for row in rows]

    async def get_session(self, session_ids: Sequence[str]) -> Sequence[SessionInfo | None]:
        rows = await self._connections.rows.run(_SOME, {"session": Texts(session_ids)})
        found = {each.session_id: each for each in map(to_session, rows)}
        return [found.get(session_id) for session_id in session_ids]
