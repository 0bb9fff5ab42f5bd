"""The session store of a SQLite file: its operations, each handed to the thread that it runs on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from affinity.provider.sqlite import session_state_list, session_states
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.records import RecordTimes, SessionFilter, SessionRecord, SessionState, SessionSummary


class SqliteSessionStore:
    """The records in table ``session_states``. Implements `affinity.records.SessionStore`.

    Args:
        writer: thread for what writes.
        reader: thread for what only reads.
    """

    def __init__(self, writer: DatabaseThread, reader: DatabaseThread) -> None:
        self._writer = writer
        self._reader = reader

    async def load(self, session_id: str) -> SessionRecord | None:
        return await self._reader.call(Database.read, session_states.load, session_id)

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        birth: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
        times: RecordTimes | None = None,
    ) -> int:
        # Encoded here, so that the caller cannot change it on its way to the writer's thread.
        record = session_states.encode(new, epoch=epoch, birth=birth, idempotency_key=idempotency_key, times=times)
        return await self._writer.call(Database.write, session_states.save, record, expected_version)

    async def delete(
        self,
        session_ids: Collection[str],
        *,
        cascade: bool = False,
        idle_only: bool = False,
        versions: Mapping[str, int] | None = None,
        births: Mapping[str, str] | None = None,
        whole: bool = False,
        dry_run: bool = False,
    ) -> Sequence[str]:
        """A record that is left keeps its children."""
        asked = session_states.RecordDeletion(
            session_ids=list(session_ids),
            cascade=cascade,
            idle_only=idle_only,
            whole=whole,
            versions=dict(versions or {}),
            births=dict(births or {}),
        )
        if dry_run:
            return await self._reader.call(Database.read, session_states.find_doomed, asked)
        return await self._writer.call(Database.write, session_states.delete, asked)

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        return await self._reader.call(Database.read, session_state_list.list_states, where, limit)

    async def count(self, where: SessionFilter) -> int:
        return await self._reader.call(Database.read, session_state_list.count_states, where)

    async def families(self, session_ids: Collection[str]) -> Sequence[Sequence[SessionSummary]]:
        return await self._reader.call(Database.read, session_state_list.find_families, list(session_ids))
