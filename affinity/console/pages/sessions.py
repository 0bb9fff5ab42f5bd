"""The sessions, their records, and one session with the strip of its life."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pydantic_core import to_json

from affinity.client import Instance, SessionLife
from affinity.composed.client import Client
from affinity.console.pages.base import ROWS, Query, given, label_of, number, required, time_of
from affinity.console.payloads import Payload, Payloads
from affinity.console.strip import strip_of
from affinity.conversation import ConversationInfo
from affinity.errors import (
    InvalidOptions,
    PayloadUnreadable,
    SessionLoadFailed,
    SessionNotFound,
    UnknownConversation,
    UnknownInstance,
)
from affinity.provider.contract import SessionInfo
from affinity.records import SessionFilter, SessionRecord, SessionSummary
from affinity.session import RESOURCE_LABEL, readable

EXPORT: Final = "session.jsonl"
"""The part of a session's page that `affinity sessions import` reads, and the name of its file."""


async def sessions(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the leases, by id, as a map and as rows; and how many each worker holds."""
    worker = query.get("worker") or None
    page = await client.sessions(worker_id=worker).page(query.get("after"), limit=ROWS)
    rows = page.items
    workers = [one for one in await client.workers() if one.alive]
    return {
        "sessions": rows,
        "map": {one.worker_id: [row for row in rows if _holds(one.worker_id, row)] for one in workers},
        "free": [row for row in rows if not row.held],
        "more": page.next,
        "workers": workers,
        "takers": [one for one in workers if not one.draining],
    }


def _holds(worker_id: str, session: SessionInfo) -> bool:
    return session.held and session.worker_id == worker_id


async def records(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the records of sessions that fit, the last written ones first."""
    where: dict[str, Any] = given(query, "prefix", "kind", "name", "parent", "participant", "holder")
    if label := query.get("label"):
        where["labels"] = dict([label_of(label)])
    where |= {name: True for name in ("orphaned", "heads") if query.get(name)}
    where |= {name: time_of(query, name) for name in given(query, "updated_after", "created_after")}
    where |= {name: number(query, name) for name in given(query, "schema_version", "idle_for")}
    found = await client.session_manager.list(SessionFilter(**where)).page(query.get("after") or None, limit=ROWS)
    return {"records": found.items, "more": found.next}


async def session(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """One session: its life, its lease, its record, its family, what uses it, and the instances that were started for
    it, which need not use it.
    """
    session_id = required(query, "id")
    life: SessionLife | None = None
    own: Instance | None = None
    conversation: ConversationInfo | None = None
    with suppress(SessionNotFound):
        life = await client.session_life(session_id)
    with suppress(UnknownInstance):
        own = await client.status(session_id)
    with suppress(UnknownConversation, InvalidOptions):  # the provider of this database may keep none
        conversation = await client.get_conversation(session_id)
    record, unreadable = await _load(client, session_id)
    uses = await client.session_uses(session_id, limit=ROWS)
    started = (await client.list_instances(session_id=session_id).page(limit=ROWS)).items
    is_session = bool(life or record or own or conversation or uses)
    if not is_session and not started:
        raise SessionNotFound(f"there is no session {session_id!r}")
    return {
        "session_id": session_id,
        "life": life,
        "own": own,
        "conversation": conversation,
        "strip": None if life is None else strip_of(life),
        "record": record,
        "size": 0 if record is None else _size(record),
        "state": _state(record, payloads) if isinstance(record, SessionRecord) else None,
        "unreadable": unreadable,
        "exported": payloads.has(EXPORT),
        "label": RESOURCE_LABEL,
        "resources": {} if record is None else _resources(record),
        "children": (await client.session_manager.list(SessionFilter(parent=session_id)).page(limit=ROWS)).items,
        "uses": uses,
        "most_uses": ROWS,
        "instances": started,
        "is_only_named": not is_session,
        "workers": [one for one in (await client.load()).workers if not one.draining],
    }


async def _load(client: Client, session_id: str) -> tuple[SessionRecord | SessionSummary | None, str]:
    """The record; without its state if that cannot be decoded, and why."""
    try:
        return await client.session_store.load(session_id), ""
    except PayloadUnreadable as error:
        rows = await client.session_store.ancestors(session_id, 1)
        return next((row for row in rows if row.session_id == session_id), None), str(error)


def _size(record: SessionRecord | SessionSummary) -> int:
    return record.size if isinstance(record, SessionSummary) else len(record.state)


def _state(record: SessionRecord, payloads: Payloads) -> Payload | None:
    with suppress(SessionLoadFailed):  # damaged: its metadata is shown
        document = readable(record)
        value = document.get("state", document.get("state_base64"))
        shown = payloads.show("state", "state", record.metadata.kind, value)
        if payloads.shows_all("state", value):
            payloads.offer(EXPORT, lambda: to_json(readable(record)).decode())
        return shown
    return None


def _resources(record: SessionRecord | SessionSummary) -> dict[str, str]:
    """The labels that name what it uses and that outlives a process, with the ids."""
    return {label: value for label, value in record.metadata.labels.items() if label.startswith(RESOURCE_LABEL)}
