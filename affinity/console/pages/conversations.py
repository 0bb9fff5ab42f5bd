"""The conversations, one conversation, and the requests that wait for an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from affinity.client import Client
from affinity.console.pages.base import ROWS, Query, given, number, required
from affinity.console.payloads import Payload, Payloads
from affinity.conversation import (
    ConversationHandle,
    ConversationLimits,
    JournalEntry,
    PendingRequest,
    Streamed,
    ToolEnded,
    ToolStarted,
)
from affinity.conversation.events import EventTypes
from affinity.conversation.kinds import ConversationKind
from affinity.conversation.stream import read_part
from affinity.errors import UnknownInstance
from affinity.journal import JournalQuery, StreamCursor
from affinity.records import frozen

ENTRIES: Final = 50
"""Entries on a page."""

_ANSWERS: Final = {"agent.tool_confirmation": "permission", "agent.custom_tool_use": "result"}
TYPES: Final = EventTypes()


@frozen(kw_only=True)
class RequestRow:
    """A request, on all pages."""

    conversation_id: str
    request_id: str
    kind: str
    answer: str  # what it takes: "permission", "result", or "application", which alone knows its kind
    value: Payload
    created_at: datetime
    expires_at: datetime | None
    owner: str | None = None
    title: str | None = None


@frozen(kw_only=True)
class EntryRow:
    """An entry of a transcript."""

    entry: JournalEntry
    role: str  # "user", "agent", "conversation", …: the class of its style
    value: Payload


def handle_of(client: Client, conversation_id: str, kind: str) -> ConversationHandle:
    """The handle of a conversation without the code of its kind."""
    spec = ConversationKind(name=kind, types=TYPES, limits=ConversationLimits())
    return ConversationHandle(client, spec, conversation_id)


async def conversations(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the conversations that fit, newest first."""
    where: dict[str, Any] = given(query, "kind", "prefix", "owner", "parent")
    return {
        "page": await client.list_conversations_page(**where, after=query.get("after") or None, limit=ROWS),
    }


async def conversation(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """One conversation: what it waits for, its transcript, what is said now, its requests, wakes and relatives."""
    found = await client.get_conversation(required(query, "id"))
    talk = handle_of(client, found.conversation_id, found.kind)
    before = number(query, "before")
    page: Mapping[str, Any] = {"last": ENTRIES} if before is None else {"before": before, "limit": ENTRIES}
    entries = [_entry(each, payloads) for each in await talk.history(**page)]
    own, *ancestors = await talk.ancestors()
    return {
        "found": found,
        "sentence": await _sentence(talk, payloads),
        "entries": entries,
        "earlier": entries[0].entry.seq if entries and entries[0].entry.seq > found.first_seq else None,
        "is_last": before is None,
        "streamed": await _streamed(client, found.conversation_id, payloads) if before is None else None,
        "requests": [_pending(each, payloads) for each in await talk.requests()],
        "wakes": [
            (each, "" if each.error is None else payloads.text("error", each.error.type, each.error.message))
            for each in await talk.wakes(newest_first=True, limit=10)
        ],
        "children": (await client.list_conversations_page(parent=found.conversation_id, limit=ROWS)).items,
        "lineage": own.lineage,
        "ancestors": ancestors,
    }


async def _sentence(talk: ConversationHandle, payloads: Payloads) -> str:
    with suppress(UnknownInstance):  # an operator has deleted it; the next event creates it again
        found = await talk.explain()
        return "" if found is None else payloads.text("sentence", found.code, found.sentence)
    return ""


def _entry(entry: JournalEntry, payloads: Payloads) -> EntryRow:
    try:
        value = _said(json.loads(entry.to_json())["event"])
    except (ValueError, RecursionError):  # a stored value may be anything
        value = entry.payload
    shown = payloads.show(f"entry-{entry.seq}", "entry", entry.kind, value)
    return EntryRow(entry=entry, role=entry.kind.partition(".")[0], value=shown)


def _said(event: dict[str, Any]) -> Any:
    """The text of a message that has no other field; else the event."""
    fields = {name: value for name, value in event.items() if name != "kind" and value not in ({}, [], "", None, False)}
    return fields["content"] if fields.keys() == {"content"} and isinstance(fields["content"], str) else event


async def _streamed(client: Client, conversation_id: str, payloads: Payloads) -> Payload | None:
    """What a wake that runs has said so far; provisional."""
    query = JournalQuery(session_id=conversation_id, newest_first=True, limit=1, stream=StreamCursor())
    page = await client.journals.read(query)
    if page is None or not page.stream:
        return None
    items = [read_part(part) for part in page.stream]
    text = "".join([_part_text(item) for item in items])
    return payloads.show("stream", "stream", page.kind, text)


def _part_text(item: Streamed | ToolStarted | ToolEnded) -> str:
    match item:
        case Streamed():
            return item.text or json.dumps(item.value, ensure_ascii=False)
        case ToolStarted():
            return f"\n> {item.tool} {json.dumps(dict(item.arguments), ensure_ascii=False)}\n"
    return f"\n< {item.tool_use_id}{' failed' if item.is_error else ''}\n"


# -- requests


async def approvals(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the requests that wait for an answer, oldest first."""
    where: dict[str, Any] = given(query, "owner", "prefix")
    page = await client.requests_page(**where, after=query.get("after") or None, limit=ROWS)
    rows = [
        _row(each.conversation_id, each.request_id, each.event, each, payloads, owner=each.owner, title=each.title)
        for each in page.items
    ]
    return {"requests": rows, "more": page.next}


async def approval(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """One request; it may be answered meanwhile."""
    conversation_id, request_id = required(query, "conversation"), required(query, "request")
    found = await client.get_conversation(conversation_id)
    pending = await handle_of(client, conversation_id, found.kind).requests()
    rows: Sequence[RequestRow] = [_pending(each, payloads) for each in pending if each.request_id == request_id]
    return {"found": found, "request_id": request_id, "requests": rows}


def _pending(found: PendingRequest, payloads: Payloads) -> RequestRow:
    event = found.event.model_dump(mode="json")
    return _row(found.conversation_id, found.request_id, event, found, payloads)


def _row(
    conversation_id: str, request_id: str, event: Mapping[str, Any], times: Any, payloads: Payloads, **about: str | None
) -> RequestRow:
    kind = str(event["kind"])
    return RequestRow(
        conversation_id=conversation_id,
        request_id=request_id,
        kind=kind,
        answer=_ANSWERS.get(kind, "application"),
        value=payloads.show(f"request-{conversation_id}-{request_id}", "request", kind, dict(event)),
        created_at=times.created_at,
        expires_at=times.expires_at,
        **about,
    )
