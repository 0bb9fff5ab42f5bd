"""The session store of a PostgreSQL database: records of session state, and their columns in a commit."""

from __future__ import annotations

import builtins
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, LiteralString

from psycopg.errors import UniqueViolation
from psycopg.types.numeric import Int8

from affinity.errors import Contention
from affinity.provider.postgres.driver.arrays import Blob, Blobs, Int, Ints, Packed, Text, Texts
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import same_time
from affinity.provider.rows import to_session_record, to_session_summary, write_conflict
from affinity.provider.statements import load_statements
from affinity.records import (
    SessionFilter,
    SessionRecord,
    SessionState,
    SessionSummary,
    StateWrite,
    in_family_order,
)

_SQL: Final = load_statements(__package__, "session_store.sql")


class PostgresSessionStore:
    """The records in table ``session_states``. Implements `affinity.records.SessionStore`.

    On a connection of its own: a state of many megabytes must not hold up renewals.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def load(self, session_id: str) -> SessionRecord | None:
        rows = await self._connections.states.run(_SQL["load"], {"session": session_id})
        return to_session_record(rows[0], same_time) if rows else None

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        birth: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        fences = {
            "expected": _bigint(expected_version),
            "birth": birth,
            "epoch": _bigint(epoch),
            "turn": idempotency_key,
        }
        version, repeated, same, known, fits = await self._save({**_columns(new), **fences})
        if repeated:
            return int(version)
        if not fits:
            raise write_conflict(new.session_id, expected_version, version, epoch, same_birth=same, known=known)
        return (version or 0) + 1

    async def _save(self, params: Params) -> Sequence[Any]:
        try:
            ((overtaken, *verdict),) = await self._connections.states.run(_SQL["save"], params)
        except Contention as error:
            if error.code != UniqueViolation.sqlstate:
                raise
            overtaken = True  # another writer was first: now there is a record
        return await self._save(params) if overtaken else verdict

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
        if not session_ids:
            return []
        versions, births = versions or {}, births or {}
        params = {
            "session": Texts(session_ids),
            "cascade": cascade,
            "idle_only": idle_only,
            "whole": whole and cascade,
            "version_session": Texts(versions),
            "version": Ints(versions.values()),
            "birth_session": Texts(births),
            "birth": Texts(births.values()),
            "dry_run": dry_run,
        }
        removed: list[str | None] = [None]
        while None in removed:  # a session was overtaken
            removed = [session_id for (session_id,) in await self._connections.deletions.run(_SQL["delete"], params)]
        return [session_id for session_id in removed if session_id is not None]

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        rows = await self._connections.misc.run(_SQL["list"], {**_conditions(where), "limit": Int8(limit)})
        return [to_session_summary(row, same_time) for row in rows]

    async def count(self, where: SessionFilter) -> int:
        ((number,),) = await self._connections.misc.run(_SQL["count"], _conditions(where))
        return int(number)

    async def families(self, session_ids: Collection[str]) -> Sequence[Sequence[SessionSummary]]:
        families: defaultdict[str, builtins.list[SessionSummary]] = defaultdict(builtins.list)
        for start, *row in await self._connections.misc.run(_SQL["families"], {"session": Texts(session_ids)}):
            families[start].append(to_session_summary(row, same_time))
        return [in_family_order(families[session_id]) for session_id in session_ids]


def _conditions(where: SessionFilter) -> Params:
    after_time, after_id = where.after or (None, None)
    return {
        "kind": where.kind,
        "name": where.name,
        "parent": where.parent,
        "schema": _bigint(where.schema_version),
        "labels": json.dumps(dict(where.labels)) if where.labels else None,
        "participant": None if where.participant is None else json.dumps([where.participant]),
        "orphaned": where.orphaned,
        "heads": where.heads,
        "prefix": where.prefix,
        "holder": where.holder,
        "updated_after": where.updated_after,
        "created_after": where.created_after,
        "idle_for": None if where.idle_for is None else float(where.idle_for),
        "after_time": after_time,
        "after_id": after_id,
    }


def state_columns(writes: Sequence[StateWrite]) -> dict[LiteralString, Packed]:
    """Writes that go with results as columns."""
    news = [write.new for write in writes]
    metadata = [new.metadata for new in news]
    return {
        "state_session": Texts(new.session_id for new in news),
        "state_base": Ints(write.base_version for write in writes),
        "state_epoch": Ints(write.epoch for write in writes),
        "state": Blobs(new.state for new in news),
        "state_encoding": Texts(new.encoding for new in news),
        "state_schema": Ints(new.schema_version for new in news),
        "state_kind": Texts(about.kind for about in metadata),
        "state_name": Texts(about.name for about in metadata),
        "state_parent": Texts(about.parent for about in metadata),
        "state_labels": Texts(_labels(about.labels) for about in metadata),
        "state_messages": Ints(about.message_count for about in metadata),
        "state_participants": Texts(_participants(about.participants) for about in metadata),
    }


def state_values(write: StateWrite) -> dict[LiteralString, Packed]:
    """One write that goes with a result, as values of the same names."""
    new, about = write.new, write.new.metadata
    return {
        "state_session": Text(new.session_id),
        "state_base": Int(write.base_version),
        "state_epoch": Int(write.epoch),
        "state": Blob(new.state),
        "state_encoding": Text(new.encoding),
        "state_schema": Int(new.schema_version),
        "state_kind": Text(about.kind),
        "state_name": Text(about.name),
        "state_parent": Text(about.parent),
        "state_labels": Text(_labels(about.labels)),
        "state_messages": Int(about.message_count),
        "state_participants": Text(_participants(about.participants)),
    }


def _columns(new: SessionState) -> Params:
    return {
        "session": new.session_id,
        "state": bytes(new.state),
        "encoding": new.encoding,
        "schema": Int8(new.schema_version),
        "kind": new.metadata.kind,
        "name": new.metadata.name,
        "parent": new.metadata.parent,
        "labels": _labels(new.metadata.labels),
        "messages": _bigint(new.metadata.message_count),
        "participants": _participants(new.metadata.participants),
    }


def _labels(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels)) if labels else "{}"


def _participants(participants: Iterable[str]) -> str:
    return json.dumps(list(participants)) if participants else "[]"


def _bigint(value: int | None) -> Int8 | None:
    """One type, whatever the value: a statement is prepared once."""
    return None if value is None else Int8(value)
