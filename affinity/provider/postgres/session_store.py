"""The session store of a PostgreSQL database: records of session state, and their columns in a commit."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, LiteralString, TypeVar, cast

from psycopg.errors import UniqueViolation
from psycopg.types.numeric import Int8

from affinity.actions import ActionCall, actors_on
from affinity.errors import Contention
from affinity.limits import DELETE_STEP
from affinity.provider.postgres.actions import note_result, shares_of, with_shares
from affinity.provider.postgres.driver.arrays import Blob, Blobs, Int, Ints, Packed, Text, Texts
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import ActionShare, same_time
from affinity.provider.rows import to_session_record, to_session_summary, write_conflict
from affinity.provider.statements import load_statements, with_parts
from affinity.records import (
    ChildCursor,
    RecordTimes,
    SessionFilter,
    SessionRecord,
    SessionState,
    SessionSummary,
    StateWrite,
)

T = TypeVar("T")

_SQL: Final = load_statements(__package__, "session_store.sql")
_LIST: Final = with_parts(_SQL["list"], frozenset({"rows"}))
_COUNT: Final = with_parts(_SQL["list"], frozenset({"number"}))


class PostgresSessionStore:
    """The records in table ``session_states``. Implements `affinity.SessionStore`.

    On a connection of its own: a state of many megabytes must not hold up renewals.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @property
    def database(self) -> str:
        """See `ProviderConnection.database`."""
        return self._connections.timeline.database

    async def load(self, session_id: str) -> SessionRecord | None:
        rows = await self._connections.states.run(_SQL["load"], {"session": session_id})
        return to_session_record(rows[0], same_time) if rows else None

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
        fences = {
            "expected": _bigint(expected_version),
            "generation": generation,
            "epoch": _bigint(epoch),
            "turn": idempotency_key,
            "created": None if times is None else times.created_at,
            "updated": None if times is None else times.updated_at,
        }
        save = partial(_save, self._connections, {**_columns(new), **fences})
        version, repeated, same, known, fits = await self._act("save_record", [new.session_id], save, _is_saved)
        if repeated:
            return int(version)
        if not fits:
            raise write_conflict(new.session_id, expected_version, version, epoch, same_generation=same, known=known)
        return (version or 0) + 1

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
        named = list(dict.fromkeys(session_ids))
        if not named:
            return []
        versions, generations = versions or {}, generations or {}
        rows = [
            {
                "session_id": name,
                "family": name if families is None else families[name],
                "version": versions.get(name),
                "generation": generations.get(name),
            }
            for name in named
        ]
        parts = {"idle" if idle_only else "forced", "dry" if dry_run else "real"}
        statement = with_parts(_SQL["delete"], frozenset(parts if families is None else {"whole", *parts}))
        step = DELETE_STEP if families is None else len(rows)  # its time grows with the square of their number
        removed = set[str]()
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            delete, targets = partial(_delete_step, self._connections, statement, part), named[first : first + step]
            if dry_run:
                removed |= await delete(())
            else:
                removed |= await self._act("delete_record", targets, delete, partial(_are_in, targets))
        return [session_id for session_id in named if session_id in removed]

    async def _act(
        self,
        name: str,
        targets: Sequence[str],
        work: Callable[[Sequence[ActionShare]], Awaitable[T]],
        judge: Callable[[T], object],
    ) -> T:
        """Call ``work`` with what `with_shares` takes; ``judge`` gives what `note_result` takes of its result."""
        actors = actors_on(self.database)
        if actors is None:
            return await work(())
        shares = shares_of(actors, ActionCall(name, "session", targets))
        result = await work(shares)
        await note_result(shares, judge(result))
        return result

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        rows = await self._connections.misc.run(_LIST, {**_conditions(where), "limit": Int8(limit)})
        return [to_session_summary(row, same_time) for row in rows]

    async def count(self, where: SessionFilter) -> int:
        ((number,),) = await self._connections.misc.run(_COUNT, _conditions(where))
        return int(number)

    async def children(
        self, session_ids: Collection[str], limit: int, *, after: ChildCursor | None = None
    ) -> Sequence[SessionSummary]:
        after_parent, after_time, after_id = after or ("", datetime.min.replace(tzinfo=UTC), "")
        params = {
            "parent": Texts(sorted(name for name in set(session_ids) if name >= after_parent)),
            "after_parent": after_parent,
            "after_time": after_time,
            "after_id": after_id,
            "limit": Int8(limit),
        }
        rows = await self._connections.misc.run(_SQL["children"], params)
        return [to_session_summary(row, same_time) for row in rows]

    async def ancestors(self, session_id: str, limit: int) -> Sequence[SessionSummary]:
        params = {"session": session_id, "limit": Int8(limit)}
        rows = await self._connections.misc.run(_SQL["ancestors"], params)
        return [to_session_summary(row, same_time) for row in rows]


async def _save(connections: Connections, params: Params, shares: Sequence[ActionShare]) -> Sequence[Any]:
    try:
        ((overtaken, *verdict),) = await connections.states.run(
            *with_shares(shares, _SQL["save"], _SQL["saved"], params)
        )
    except Contention as error:
        if error.code != UniqueViolation.sqlstate:
            raise
        overtaken = True  # another writer was first: now there is a record
    return await _save(connections, params, shares) if overtaken else verdict


def _is_saved(verdict: Sequence[Any]) -> bool:
    _, repeated, _, _, fits = verdict
    return bool(fits) and not repeated


async def delete_records(connections: Connections, seen: Mapping[str, tuple[int, str]]) -> set[str]:
    """Remove records, up to `DELETE_STEP`, that are not in use and have these versions and generations; their ids."""
    rows = [
        {"session_id": name, "family": name, "version": version, "generation": generation}
        for name, (version, generation) in seen.items()
    ]
    statement = with_parts(_SQL["delete"], frozenset({"idle", "real"}))
    return await _delete_step(connections, statement, rows, ()) if rows else set()


async def _delete_step(
    connections: Connections, statement: LiteralString, rows: Sequence[Mapping[str, Any]], shares: Sequence[ActionShare]
) -> set[str]:
    params = {"named": json.dumps(rows), "targets": [row["session_id"] for row in rows]}
    asked = with_shares(shares, statement, _SQL["deleted"], params)
    removed: set[str | None] = {None}
    while None in removed:  # a session was overtaken
        # Planned each time: a long deletion makes tables grow for which an older plan would read all rows.
        found = await connections.deletions.run_once(*asked)
        removed = {session_id for (session_id,) in found}
    return cast("set[str]", removed)


def _are_in(names: Sequence[str], removed: set[str]) -> list[bool]:
    return [name in removed for name in names]


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
