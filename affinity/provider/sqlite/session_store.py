"""The session store of a SQLite file: its operations, each handed to the thread that runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from affinity.actions import ActionCall, actors_on
from affinity.provider.sqlite import session_state_list, session_states
from affinity.provider.sqlite.actions import run_action
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.records import ChildCursor, RecordTimes, SessionFilter, SessionRecord, SessionState, SessionSummary

T = TypeVar("T")


class SqliteSessionStore:
    """The records in table ``session_states``. Implements `affinity.SessionStore`.

    Args:
        writer: thread for operations that write.
        reader: thread for operations that only read.
        database: see `ProviderConnection.database`.
    """

    def __init__(self, writer: DatabaseThread, reader: DatabaseThread, database: str) -> None:
        self._writer = writer
        self._reader = reader
        self.database: str = database

    async def load(self, session_id: str) -> SessionRecord | None:
        return await self._reader.call(Database.read, session_states.load, session_id)

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        generation: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
        times: RecordTimes | None = None,
    ) -> int:
        # Encoded here, so that the caller cannot change it on its way to the writer's thread.
        record = session_states.encode(
            new, epoch=epoch, generation=generation, idempotency_key=idempotency_key, times=times
        )
        save = partial(session_states.save, record=record, expected_version=expected_version)
        return await self._act("save_record", [new.session_id], save)

    async def delete(
        self,
        session_ids: Collection[str],
        *,
        idle_only: bool = False,
        versions: Mapping[str, int] | None = None,
        generations: Mapping[str, str] | None = None,
        families: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Sequence[str]:
        asked = session_states.RecordDeletion(
            session_ids=list(dict.fromkeys(session_ids)),
            idle_only=idle_only,
            versions=dict(versions or {}),
            generations=dict(generations or {}),
            families=None if families is None else dict(families),
        )
        if dry_run:
            return await self._reader.call(Database.read, session_states.find_doomed, asked)
        return await self._act(
            "delete_record",
            asked.session_ids,
            lambda tx: session_states.delete(tx, asked),
            lambda removed: [name in removed for name in asked.session_ids],
        )

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        return await self._reader.call(Database.read, session_state_list.list_states, where, limit)

    async def count(self, where: SessionFilter) -> int:
        return await self._reader.call(Database.read, session_state_list.count_states, where)

    async def children(
        self, session_ids: Collection[str], limit: int, *, after: ChildCursor | None = None
    ) -> Sequence[SessionSummary]:
        parents = sorted(set(session_ids))
        return await self._reader.call(Database.read, session_state_list.list_children, parents, limit, after)

    async def ancestors(self, session_id: str, limit: int) -> Sequence[SessionSummary]:
        return await self._reader.call(Database.read, session_state_list.list_ancestors, session_id, limit)

    async def _act(
        self,
        name: str,
        targets: Sequence[str],
        work: Callable[[Tx], T],
        judge: Callable[[T], object] = lambda result: result,
    ) -> T:
        actors = actors_on(self.database)
        if actors is None:
            return await self._writer.call(Database.write, work)
        return await run_action(self._writer, actors, ActionCall(name, "session", targets), work, judge)
