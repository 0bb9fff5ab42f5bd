"""The conversations, one conversation, one wake, and the requests that wait for an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, get_args

from affinity.console.gantt import GanttLine, gantt_of
from affinity.console.links import span_of
from affinity.console.pages.base import ROWS, Query, Waiting, given, number, required, time_of
from affinity.console.payloads import Payload, Payloads
from affinity.console.rendering import counted
from affinity.conversation import (
    ConversationHandle,
    ConversationLimits,
    CustomToolUse,
    JournalEntry,
    SpanCompleted,
    SpanStarted,
    Streamed,
    ToolConfirmation,
    ToolEnded,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from affinity.conversation.client import ConversationCalls, ConversationInfo, info_of
from affinity.conversation.events import EventTypes, JournalEvent
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.journal import (
    ConversationStatus,
    JournalFilter,
    JournalPage,
    JournalQuery,
    StreamCursor,
)
from affinity.conversation.kinds import ConversationKind
from affinity.conversation.lineage import Ancestor
from affinity.conversation.shown import ShownEventTypes, shown_revisit, shown_wake
from affinity.conversation.stream import StreamItem, read_part
from affinity.conversation.views import request_of
from affinity.errors import PayloadUnreadable, UnknownEntry, UnknownInstance

ENTRIES: Final = 50
"""Entries on a page."""

MAX_TRACE: Final = 500
"""Entries of a wake that are read."""

LOOKED_AT: Final = 2_000
"""Conversations that are looked at for a condition that no index has."""

MAX_COUNTED: Final = 500
"""Entries of a conversation whose usage is summed: all of them are read for it."""

FORKS: Final = 20
"""Forks of each conversation in the tree."""

GENERATIONS: Final = 5
"""Ancestors whose other forks are shown."""

MAX_WAITING: Final = 100
"""Requests that the menu counts."""

MESSAGES: Final = 5
"""Messages of a user among which the last one before a request is looked for."""

_MESSAGES: Final = frozenset({"user.message", "agent.message"})
_ANSWERS: Final = {"agent.tool_confirmation": "permission", "agent.custom_tool_use": "result"}
TYPES: Final = ShownEventTypes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request, as all pages show it."""

    conversation_id: str
    request_id: str
    kind: str
    answer: str  # type of its answer: "permission", "result", or "application" if only the application knows its kind
    value: Payload
    created_at: datetime
    expires_at: datetime | None
    owner: str | None = None
    conversation_title: str | None = None
    conversation_kind: str
    title: str  # of the tool, or the kind
    summary: str  # empty: there is no sentence about it
    is_dangerous: bool
    said: str = ""  # the last message of the user before it


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """An entry of a transcript."""

    entry: JournalEntry
    role: str  # "user", "agent", "conversation", …: the class of its style
    about: str  # beside its kind: the tool that is called, or has the result
    value: Payload
    results: Sequence[EntryRow] = ()  # of a call: its results, provisional ones first

    @property
    def is_message(self) -> bool:
        """Whether somebody says it to the other."""
        return self.entry.kind in _MESSAGES

    @property
    def has_failed(self) -> bool:
        """Whether its last result is an error."""
        return bool(self.results) and getattr(self.results[-1].entry.event, "is_error", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRow:
    """A conversation in the tree of forks."""

    depth: int
    conversation_id: str | None  # None: it is deleted
    made: str  # "fork up to 17", or the like
    info: ConversationInfo | None = None  # of conversations that are not ancestors


def handle_of(
    client: ConversationCalls, conversation_id: str, kind: str, *, types: EventTypes = TYPES
) -> ConversationHandle:
    """Return the handle of a conversation without the code of its kind."""
    spec = ConversationKind(name=kind, types=types, limits=ConversationLimits())
    return ConversationHandle(client, spec, conversation_id)


async def conversations(client: ConversationCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return a page of the conversations that match, newest first."""
    where: dict[str, Any] = given(query, "kind", "prefix", "owner", "parent", "status")
    where |= {f"updated_{name}": time_of(query, name) for name in ("since", "before") if query.get(name)}
    looks = where.keys() & {"status", "updated_since", "updated_before"}
    most = LOOKED_AT if looks else None
    page = await client.list_conversations(**where, most=most).page(query.get("after") or None, limit=ROWS)
    return {
        "page": page,
        "looked_at": LOOKED_AT if looks and len(page.items) < ROWS else None,
        "statuses": get_args(ConversationStatus),
        "usage": await _last_usage(client, [item.conversation_id for item in page.items]),
    }


async def _last_usage(client: ConversationCalls, ids: Iterable[str]) -> Mapping[str, Mapping[str, int]]:
    """Return the usage of the last model call of each of these conversations, in one read."""
    about: dict[str, Any] = {"kinds": TYPES.kinds_with_usage, "newest_first": True, "limit": 1}
    reads = {name: client.journals.read(JournalQuery(session_id=name, **about)) for name in ids}
    return {name: usage for name, read in reads.items() if (usage := _usage_of(await read))}


def _usage_of(page: JournalPage | None) -> Mapping[str, int]:
    entries = [] if page is None else [TYPES.read(entry) for entry in page.entries]
    return next((getattr(entry.event, "usage", {}) for entry in entries), {})


async def conversation(client: ConversationCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return one conversation: its waits, transcript, running text, requests, wakes and relatives."""
    found = await client.get_conversation(required(query, "id"))
    talk = handle_of(client, found.conversation_id, found.kind)
    before = number(query, "before")
    page: Mapping[str, Any] = {"last": ENTRIES} if before is None else {"before": before, "limit": ENTRIES}
    entries = _entries(await talk.history(**page), payloads)
    rows = _with_results(row for row in entries if row.role != "span" or query.get("spans"))
    work = await client.journals.pending(found.conversation_id)
    own, *ancestors = await talk.ancestors()
    counted = found.last_seq - found.first_seq < MAX_COUNTED
    return {
        "found": found,
        "sentence": await _sentence(talk, payloads),
        "entries": rows,
        "hides_spans": not query.get("spans") and any(row.role == "span" for row in entries),
        "earlier": entries[0].entry.seq if entries and entries[0].entry.seq > found.first_seq else None,
        "is_last": before is None,
        "fork_at": number(query, "at") or found.last_seq,
        "streamed": await _streamed(client, found.conversation_id, payloads) if before is None else None,
        "requests": [
            _pending(request_of(request, TYPES, found.conversation_id, found.kind), payloads)
            for request in work.open_requests
        ]
        if work
        else [],
        "revisits": [
            (
                revisit,
                payloads.text("revisit", found.kind, revisit.reason) if revisit.reason else "",
                payloads.show(f"revisit-{revisit.key}", "revisit", found.kind, revisit.note),
            )
            for revisit in map(shown_revisit, work.revisits if work else ())
        ],
        "usage": await _usage(client, found) if counted else None,
        "wakes": [
            (ended, "" if ended.error is None else payloads.text("error", ended.error.type, ended.error.message))
            for ended in map(
                shown_wake, await client.journals.wakes(found.conversation_id, newest_first=True, limit=10)
            )
        ],
        "children": (await client.list_conversations(parent=found.conversation_id).page(limit=ROWS)).items,
        "forks": await _forks(client, [own, *ancestors]),
    }


async def _usage(client: ConversationCalls, found: ConversationInfo) -> Mapping[str, int] | None:
    """Return the usage of a conversation; None: an entry that may have one cannot be decoded."""
    with suppress(PayloadUnreadable):
        return await handle_of(client, found.conversation_id, found.kind, types=EventTypes()).usage()
    return None


async def _sentence(talk: ConversationHandle, payloads: Payloads) -> str:
    with suppress(UnknownInstance):  # an operator has deleted it; the next event creates it again
        found = await talk.explain()
        return "" if found is None else payloads.text("sentence", found.code, found.sentence)
    return ""


def _entries(entries: Sequence[JournalEntry], payloads: Payloads) -> Sequence[EntryRow]:
    """Return the rows of entries. A result of a tool has the tool's name if its call is among them."""
    events = [entry.event for entry in entries]
    calls = [event for event in events if isinstance(event, (ToolUse, CustomToolUse, ToolConfirmation))]
    tools = {name: call.tool for call in calls for name in (call.tool_use_id, call.call_key)}
    return [_entry(entry, tools, payloads) for entry in entries]


def _with_results(rows: Iterable[EntryRow]) -> Sequence[EntryRow]:
    """Return the rows, with each result of a tool in the row of its call if that is among them."""
    calls: dict[str, int] = {}
    found: list[EntryRow] = []
    for row in rows:
        event = row.entry.event
        place = calls.get(event.call_key or event.tool_use_id) if isinstance(event, ToolResult) else None
        if place is not None:
            found[place] = replace(found[place], results=(*found[place].results, row))
            continue
        if isinstance(event, (ToolUse, CustomToolUse)):
            calls |= dict.fromkeys(filter(None, (event.call_key, event.tool_use_id)), len(found))
        found.append(row)
    return found


def _entry(entry: JournalEntry, tools: Mapping[str, str], payloads: Payloads) -> EntryRow:
    event, about = entry.event, ""
    value: Any
    match event:
        case ToolUse():
            about, value = event.tool, event.arguments if event.raw_arguments is None else event.raw_arguments
        case ToolResult():
            marks = ["failed"] * event.is_error + ["provisional"] * event.provisional
            tool = tools.get(event.call_key or event.tool_use_id, event.tool_use_id)
            about, value = " ".join([tool, *marks]), event.result
        case _:
            try:
                value = _said(json.loads(entry.to_json())["event"])
            except (ValueError, RecursionError):  # a stored value may be anything
                value = entry.payload
    shown = payloads.show(f"entry-{entry.seq}", "entry", entry.kind, value)
    return EntryRow(entry=entry, role=entry.kind.partition(".")[0], about=about, value=shown)


def _said(event: dict[str, Any]) -> Any:
    """Return the text of a message without other fields than its usage; else the event."""
    meta = ("kind", "usage", "message_id", "call_key")
    fields = {
        name: value for name, value in event.items() if name not in meta and value not in ({}, [], "", None, False)
    }
    return fields["content"] if fields.keys() == {"content"} and isinstance(fields["content"], str) else event


async def _streamed(client: ConversationCalls, conversation_id: str, payloads: Payloads) -> Payload | None:
    """Return the text that the running wake has streamed so far; provisional."""
    query = JournalQuery(session_id=conversation_id, newest_first=True, limit=1, stream=StreamCursor())
    page = await client.journals.read(query)
    if page is None or not page.stream:
        return None
    try:
        text = "".join([part_text(read_part(part)) for part in page.stream])
    except PayloadUnreadable as error:
        text = f"({error})"
    return payloads.show("stream", "stream", page.kind, text)


def part_text(item: StreamItem) -> str:
    """Return a part of a stream as text."""
    match item:
        case Streamed():
            return item.text or json.dumps(item.value, ensure_ascii=False)
        case ToolStarted():
            return f"\n> {item.tool} {json.dumps(dict(item.arguments), ensure_ascii=False)}\n"
        case ToolEnded():
            return f"\n< {item.tool_use_id or item.call_key}{' failed' if item.is_error else ''}\n"


# -- forks


async def _forks(client: ConversationCalls, line: Sequence[Ancestor]) -> Sequence[ForkRow]:
    """Return the tree of forks around a conversation: its ancestors, the other forks of the nearest, and its own.

    Args:
        client: reads them.
        line: the conversation, then its ancestors, nearest first.
    """
    made = {ancestor.journal_id: ancestor for ancestor in line}
    children: dict[int, list[ConversationInfo]] = {}
    for ancestor in line[:GENERATIONS]:
        rows = await client.journals.list(JournalFilter(made_from=ancestor.journal_id), FORKS)
        children[ancestor.journal_id] = [info_of(row) for row in rows]
    if len(line) == 1 and not children[line[0].journal_id]:
        return []
    names = {ancestor.conversation_id for ancestor in line}
    roots = [ancestor for ancestor in reversed(line) if not made.keys() & {*ancestor.parents}]
    found: list[ForkRow] = []
    seen: set[int] = set()

    def add(at: Ancestor, depth: int) -> None:
        if at.journal_id in seen:  # a merge has several parents
            return
        seen.add(at.journal_id)
        upto = "" if at.at is None else f" up to {at.at}"
        found.append(ForkRow(depth=depth, conversation_id=at.conversation_id, made=f"{at.lineage or ''}{upto}"))
        for below in reversed(line):
            if at.journal_id in below.parents:
                add(below, depth + 1)
        others = [fork for fork in children.get(at.journal_id, ()) if fork.conversation_id not in names]
        found.extend(
            ForkRow(depth=depth + 1, conversation_id=fork.conversation_id, made="", info=fork) for fork in others
        )

    for root in roots:
        add(root, 0)
    return found


# -- wakes


async def wake(client: ConversationCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return one wake: its attempts, its spans on a time axis, and its entries."""
    found = await client.get_conversation(required(query, "conversation"))
    wake_id = required(query, "id")
    talk = handle_of(client, found.conversation_id, found.kind)
    entries = await talk.history(wake=wake_id, limit=MAX_TRACE)
    if not entries:
        raise UnknownEntry(found.conversation_id, f"it has no wake {wake_id!r:.80}")
    wakes = await client.journals.wakes(found.conversation_id, entries[0].seq - 1, limit=ROWS)
    ends = [ended for ended in map(shown_wake, wakes) if ended.wake_id == wake_id]
    lines = _spans(entries)
    instants = [entry.recorded_at for entry in entries]
    return {
        "found": found,
        "wake_id": wake_id,
        "attempts": [
            (
                ended,
                None if ended.error is None else payloads.error(f"error-{n}", ended.error.type, _stack(ended)),
            )
            for n, ended in enumerate(ends)
        ],
        "gantt": gantt_of(lines, instants, ended=max(instants) if ends and ends[-1].outcome != "retried" else None),
        "entries": [row for row in _entries(entries, payloads) if row.role != "span"],
        "is_cut": len(entries) == MAX_TRACE,
        "about": {
            "wake_id": wake_id,
            **dict.fromkeys(("conversation_id", "instance_id", "session_id"), found.conversation_id),
            "name": found.kind,
            **span_of(min(instants), max(instants) if ends and ends[-1].outcome != "retried" else None),
        },
    }


def _stack(wake: Any) -> dict[str, str]:
    return {"type": wake.error.type, "message": wake.error.message, "stack": wake.error.stack}


def _spans(entries: Sequence[JournalEntry]) -> list[GanttLine]:
    """Return the spans of all attempts, in the order in which they began."""
    found: dict[tuple[int, str], GanttLine] = {}
    for entry in entries:
        if isinstance(event := entry.event, (SpanStarted, SpanCompleted)):
            found[event.attempt, event.span] = _span(entry.seq, event, entry.recorded_at)
    return sorted(found.values(), key=lambda line: line.begin)


def _span(seq: int, event: SpanStarted | SpanCompleted, recorded_at: datetime) -> GanttLine:
    begin = event.started_at or recorded_at
    over = event if isinstance(event, SpanCompleted) else None
    return GanttLine(
        kind="span",
        name=f"{'· ' * event.span.count('.')}{event.name}",
        event_id=seq,
        begin=begin,
        end=begin + timedelta(seconds=over.seconds) if over else None,
        status={"ok": "completed", "error": "failed", "cancelled": "cancelled"}[over.result] if over else "running",
        attempt=event.attempt,
        worker_id=event.worker or None,
    )


# -- requests


async def open_requests(client: ConversationCalls) -> Waiting:
    """Count the requests that wait for an answer, for the menu."""
    number = len((await client.requests().page(limit=MAX_WAITING)).items)
    title = counted(number, "request waits for an answer", "requests wait for an answer", MAX_WAITING)
    return Waiting(number, title, MAX_WAITING)


async def approvals(client: ConversationCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return a page of the requests that wait for an answer, by expiry."""
    where: dict[str, Any] = given(query, "owner", "prefix")
    where["kinds"] = list(given(query, "kind").values())
    page = await client.requests(**where, by_expiry=True).page(query.get("after") or None, limit=ROWS)
    rows = [_row(item, item.event, payloads) for item in page.items]
    return {"requests": await _with_messages(client, rows, payloads), "more": page.next}


async def approval(client: ConversationCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return one request, unless it has been answered."""
    conversation_id, request_id = required(query, "conversation"), required(query, "request")
    found = await client.get_conversation(conversation_id)
    pending = await handle_of(client, conversation_id, found.kind).requests()
    rows: Sequence[RequestRow] = [
        _pending(request, payloads) for request in pending if request.request_id == request_id
    ]
    rows = [replace(row, owner=found.owner, conversation_title=found.title) for row in rows]
    rows = await _with_messages(client, rows, payloads)
    return {"found": found, "request_id": request_id, "requests": rows}


async def _with_messages(
    client: ConversationCalls, rows: Sequence[RequestRow], payloads: Payloads
) -> Sequence[RequestRow]:
    """Add what the user said last before each request."""
    about: dict[str, Any] = {"kinds": ["user.message"], "newest_first": True, "limit": MESSAGES}
    ids = {row.conversation_id for row in rows}
    reads = {name: client.journals.read(JournalQuery(session_id=name, **about)) for name in ids}
    pages = {name: await read for name, read in reads.items()}
    return [replace(row, said=_said_before(row, pages[row.conversation_id], payloads)) for row in rows]


def _said_before(row: RequestRow, page: JournalPage | None, payloads: Payloads) -> str:
    for entry in map(TYPES.read, () if page is None else page.entries):
        if entry.recorded_at <= row.created_at:
            text = getattr(entry.event, "text", "")
            return payloads.text("entry", entry.kind, text) if text else ""
    return ""


def _pending(found: PendingRequest[JournalEvent], payloads: Payloads) -> RequestRow:
    return _row(found, found.event.model_dump(mode="json"), payloads)


def _row(found: PendingRequest[Any], event: Mapping[str, Any], payloads: Payloads) -> RequestRow:
    kind = str(event["kind"])
    title, summary = (
        payloads.text("request", kind, text) if isinstance(text, str) and text else ""
        for text in (event.get("title") or event.get("tool"), event.get("summary"))
    )
    return RequestRow(
        conversation_id=found.conversation_id,
        request_id=found.request_id,
        kind=kind,
        answer=_ANSWERS.get(kind, "application"),
        value=payloads.show(f"request-{found.conversation_id}-{found.request_id}", "request", kind, dict(event)),
        created_at=found.created_at,
        expires_at=found.expires_at,
        owner=found.owner,
        conversation_title=found.title,
        conversation_kind=found.conversation_kind,
        title=title or kind,
        summary=summary,
        is_dangerous=event.get("dangerous") is True,
    )
