"""Journals that are made from others, and where journals came from."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from affinity.conversation.journal import CreationResult, InheritedRequest, JournalCreation, JournalLineage
from affinity.conversation.store.lineage import to_lineage
from affinity.errors import AccessDenied
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements
from affinity.records import RecordTimes, SessionState

_SQL: Final = load_statements(__package__, "lineage.sql")


async def create_journals(db: Database, creations: Sequence[JournalCreation]) -> Sequence[CreationResult]:
    documents = [json.dumps(creation_document(creation), ensure_ascii=False) for creation in creations]
    is_more = any(creation.state is not None or creation.lineage == "import" for creation in creations)
    statement = _SQL["client_create" if db.as_client and not is_more else "create"]
    try:
        params = {"creation": Texts(documents)}
        rows = await db.connections.rows.run(*with_shares(db.shares, statement, _SQL["created"], params))
    except AccessDenied as error:
        if not is_more:
            raise
        raise AccessDenied(
            "PostgreSQL: a client's role may not import, or make a session with a state that is not copied: "
            "use a role with `affinity migrate --grant-worker`",
            error.code,
        ) from error
    return [CreationResult(outcome, journal_id or 0, last_seq or 0) for _, outcome, journal_id, last_seq in rows]


async def get_lineage(db: Database, session_id: str) -> Sequence[JournalLineage]:
    rows = await db.connections.rows.run(_SQL["lineage"], {"session": session_id})
    return to_lineage(rows, session_id, lambda at: at)


def creation_document(creation: JournalCreation) -> Mapping[str, Any]:
    """Return a creation as ``create_journal`` takes it, and, without a state, ``client_create_journal``."""
    start, base, merged = creation.start, creation.base, creation.merged
    return {
        "session_id": creation.session_id,
        "kind": creation.kind,
        "journal_id": start.journal_id,
        "name": start.name,
        "start": start.start,
        "generation": start.generation,
        "version": start.version,
        "parent": start.parent,
        "message": creation.message,
        "lineage": creation.lineage,
        "operator": creation.operator,
        "extras": creation.extras,
        "parents": list(creation.parents),
        "base_id": None if base is None else base.journal_id,
        "base_seq": None if base is None else base.up_to,
        "merged_id": None if merged is None else merged.journal_id,
        "merged_seq": None if merged is None else merged.up_to,
        "entries": [
            (
                *(entry.kind, entry.payload, entry.event_id, entry.wake_id, entry.is_input),
                None if entry.recorded_at is None else entry.recorded_at.isoformat(),
            )
            for entry in creation.entries
        ],
        "requests": None if creation.requests is None else [_request_columns(request) for request in creation.requests],
        "revisits": [(revisit.key, revisit.due_at.isoformat(), *revisit[2:]) for revisit in creation.revisits],
        "processed": creation.processed,
        "wakes": list(creation.wakes),
        "copies_state": creation.copies_state,
        "home": creation.home,
        "about": creation.about,
        **({} if creation.state is None else _state_document(creation.state, creation.state_times)),
    }


def _request_columns(request: InheritedRequest) -> tuple[Any, ...]:
    expires_at = None if request.expires_at is None else request.expires_at.isoformat()
    return (*request[:5], request.created_at.isoformat(), expires_at)


def _state_document(state: SessionState, times: RecordTimes | None) -> Mapping[str, Any]:
    about = state.metadata
    return {
        "created_at": None if times is None else times.created_at.isoformat(),
        "updated_at": None if times is None else times.updated_at.isoformat(),
        "state": base64.b64encode(state.state).decode(),
        "encoding": state.encoding,
        "schema_version": state.schema_version,
        "state_kind": about.kind,
        "state_name": about.name,
        "labels": dict(about.labels),
        "message_count": about.message_count,
        "participants": list(about.participants),
    }
