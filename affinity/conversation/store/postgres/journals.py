"""Journals: appending inputs, finding the pending work of wakes, and reading entries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, LiteralString, NamedTuple

from psycopg.types.numeric import Int8

from affinity.conversation import journal as j
from affinity.conversation.store.repeats import refuse_other_events
from affinity.errors import Contention
from affinity.limits import MAX_BATCH_BYTES, MAX_DELEGATIONS_READ
from affinity.provider.contract import Hint
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Bools, Int, Ints, Text, Texts
from affinity.provider.postgres.driver.errors import BATCH_REFUSED
from affinity.provider.postgres.driver.wire import Params, Row, Statement
from affinity.provider.postgres.hints import hint_statement
from affinity.provider.postgres.operations import Database, call_of, columns, present
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "journals.sql")

_NO_BOUND: Final = 2**63 - 1

_MAX_ROUNDS: Final = 5
"""Times that a batch is sent whose journals, or instances, are deleted while it is applied."""


class _PendingRow(NamedTuple):
    """The first columns of a session's first row in ``pending``."""

    n: int
    journal_id: int
    kind: str
    processed: int
    last_seq: int
    closed: bool
    parent: str | None
    found: int
    requests: str | None  # JSON, as the revisits
    revisits: str | None
    home: str | None
    epoch: int | None
    has_record: bool
    steps: str | None  # JSON
    delegations: str | None  # JSON


class _ReplyRow(NamedTuple):
    """The first columns of a row of ``read_replies``."""

    n: int
    has_more: bool  # entries behind this one
    is_input: bool | None


class _ReadRow(NamedTuple):
    """The first columns of a row of ``read``; without a stream, its columns are NULL."""

    n: int
    found: int
    wake_id: str | None  # of the stream
    attempt: int
    number: int
    numbers: list[int] | None
    payloads: list[str] | None


class _JournalRow(NamedTuple):
    """The fields of a `JournalPage` that are of its journal."""

    journal_id: int
    kind: str
    processed: int
    first_seq: int
    last_seq: int
    closed: bool
    parent: str | None
    parent_journal: int | None
    instance_status: str | None


_PENDING, _INPUT = columns(_PendingRow, j.Entry)
_REPLY, _REPLY_JOURNAL, _REPLY_WAKE, _REPLY_ENTRY = columns(_ReplyRow, _JournalRow, j.JournalWake, j.Entry)
_READ, _READ_JOURNAL, _READ_ENTRY = columns(_ReadRow, _JournalRow, j.Entry)


async def append_journal(
    db: Database, appends: Sequence[j.JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
) -> Sequence[j.Appended]:
    if not appends:
        return []
    behind = hint_statement(db.connections.target, notify or {})
    if len(appends) == 1 and (params := _input_params(appends[0])):
        statement = _SQL["client_append_input" if db.as_client else "append_input"]
        (row,) = await _run_append(db, statement, _SQL["input_appended"], params, behind)
        return await refuse_other_events(partial(read_journal, db), appends, [_appended(appends[0], row)])
    params = append_params(appends)
    statement = f"{_SQL['append']} FROM {_append_call(params, as_client=db.as_client and not _has_more(appends))}"
    ((*columns,),) = await _run_append(db, statement, _SQL["appended"], params, behind)
    holders = columns.pop() or [None] * len(appends)
    outcomes = {place: _appended(appends[place - 1], row) for place, *row in zip(*columns, holders, strict=True)}
    done = [outcomes[place] for place in range(1, len(appends) + 1)]
    return await refuse_other_events(partial(read_journal, db), appends, done)


async def _run_append(
    db: Database, statement: LiteralString, effects: LiteralString, params: Params, behind: Statement | None
) -> list[Row]:
    statement, params = with_shares(db.shares, statement, effects, params)
    for _ in range(1, _MAX_ROUNDS):
        try:
            return await db.connections.quick.run(statement, params, behind=behind)
        except Contention as error:
            if error.code != BATCH_REFUSED:
                raise
    return await db.connections.quick.run(statement, params, behind=behind)


async def get_pending(
    db: Database, session_ids: Sequence[str], *, limit: int, max_bytes: int = MAX_BATCH_BYTES
) -> Sequence[j.PendingWork | None]:
    params = {"session": Texts(session_ids), "limit": Int8(limit), "max_bytes": Int8(max_bytes)}
    params["delegations"] = Int8(MAX_DELEGATIONS_READ)
    found: dict[int, j.PendingWork] = {}
    for n, rows in groupby(await db.connections.quick.run(_SQL["pending"], params), itemgetter(0)):
        found[n] = _to_pending(list(rows), limit)
    return [found.get(n) for n in range(1, len(session_ids) + 1)]


async def read_journal(
    db: Database, queries: Sequence[j.JournalQuery], *, max_bytes: int = MAX_BATCH_BYTES
) -> Sequence[j.JournalPage | None]:
    found: dict[int, j.JournalPage] = {}
    for read, numbers in (
        (_read_replies, [n for n, query in enumerate(queries) if query.reply_to is not None]),
        (_read_any, [n for n, query in enumerate(queries) if query.reply_to is None]),
    ):
        if numbers:
            pages = await read(db, [queries[n] for n in numbers], max_bytes)
            found |= {numbers[n - 1]: page for n, page in pages.items()}
            max_bytes = max(
                0, max_bytes - sum([len(entry.payload) for page in pages.values() for entry in page.entries])
            )
    return [found.get(n) for n in range(len(queries))]


async def _read_replies(db: Database, queries: Sequence[j.JournalQuery], max_bytes: int) -> dict[int, j.JournalPage]:
    params = {
        "session": Texts(query.session_id for query in queries),
        "input": Ints(query.reply_to for query in queries),
        "after": Ints(query.after for query in queries),
        "limit": Ints(query.limit for query in queries),
        "max_bytes": Int8(max_bytes),
    }
    found: dict[int, j.JournalPage] = {}
    for n, rows in groupby(await db.connections.quick.run(_SQL["read_replies"], params), itemgetter(0)):
        found[n] = _to_reply(list(rows), queries[n - 1].limit)
    return found


async def get_wakes(
    db: Database, session_id: str, *, after: int = 0, newest_first: bool = False, limit: int
) -> Sequence[j.JournalWake]:
    statement = _SQL["wakes"]
    if newest_first:
        statement = statement.replace("processed, w.seq LIMIT", "processed DESC, w.seq DESC LIMIT")
    params = {"session": session_id, "after": Int8(after), "limit": Int8(limit)}
    return [j.JournalWake._make(row) for row in await db.connections.quick.run(statement, params)]


async def _read_any(db: Database, queries: Sequence[j.JournalQuery], max_bytes: int) -> dict[int, j.JournalPage]:
    streams = [query.stream for query in queries]
    params = {
        "session": Texts(query.session_id for query in queries),
        "after": Ints(query.after for query in queries),
        "before": Ints(_NO_BOUND if query.before is None else query.before for query in queries),
        "kinds": Texts("\n".join(query.kinds) for query in queries),
        "wake": Texts(query.wake_id for query in queries),
        "event": Texts(query.event_id for query in queries),
        "pending": Bools(query.pending for query in queries),
        "newest": Bools(query.newest_first for query in queries),
        "limit": Ints(query.limit for query in queries),
        "stream_wake": Texts(None if cursor is None else cursor.wake_id for cursor in streams),
        "stream_attempt": Ints(None if cursor is None else cursor.attempt for cursor in streams),
        "stream_number": Ints(None if cursor is None else cursor.number for cursor in streams),
        "max_bytes": Int8(max_bytes),
    }
    found: dict[int, j.JournalPage] = {}
    for n, rows in groupby(await db.connections.quick.run(_SQL["read"], params), itemgetter(0)):
        found[n] = _to_page(queries[n - 1].session_id, list(rows))
    return found


def _appended(append: j.JournalAppend, row: Iterable[Any]) -> j.Appended:
    outcome, seq, journal_id, created, unparked, holder = row
    has_number = outcome == "repeated" or (outcome is None and append.entry is not None)
    place = (unparked, holder or None, holder == "")
    return j.Appended(outcome or "appended", seq if has_number else 0, journal_id or 0, created, *place)


def _input_params(append: j.JournalAppend) -> Params | None:
    """Return the parameters of ``append_input``; None for an append of another kind."""
    entry = append.entry
    if entry is None or not entry.is_input or entry.event_id is None or entry.wake_id is not None:
        return None
    if append.message is None or append.start or append.answers or append.drops or append.closes or append.sender:
        return None
    if append.journal_id is not None:
        return None
    return {
        "session": Text(append.session_id),
        "kind": Text(append.kind),
        "entry_kind": Text(entry.kind),
        "entry": Text(entry.payload),
        "event": Text(entry.event_id),
        "message": Text(append.message),
        "unread_limit": Int(append.unread_limit),
    }


def append_params(appends: Sequence[j.JournalAppend]) -> Params:
    """Return the parameters of ``append_journals``, without the groups that this batch has no use for."""
    entries = [append.entry for append in appends]
    params: dict[str, Any] = {
        "session": Texts(append.session_id for append in appends),
        "kind": Texts(append.kind for append in appends),
        "entry_kind": Texts(entry.kind if entry else None for entry in entries),
        "entry": Texts(entry.payload if entry else None for entry in entries),
        "event": Texts(entry.event_id if entry else None for entry in entries),
        "wake": Texts(entry.wake_id if entry else None for entry in entries),
        "input": Bools(entry.is_input if entry else None for entry in entries),
        "message": Texts(append.message for append in appends),
        "unread_limit": Ints(append.unread_limit for append in appends),
    }
    if any(append.start is not None for append in appends):
        params |= _start_params(appends)
    if any(append.answers or append.drops or append.closes or append.sender is not None for append in appends):
        params |= _rare_params(appends)
    if any(append.journal_id is not None for append in appends):
        params["journal"] = Ints(append.journal_id for append in appends)
    rounds = _rounds([append.session_id for append in appends])
    if (last := max(rounds)) > 1:
        params |= {"round": Ints(rounds), "rounds": Int8(last)}
    return params


_OF_WAKES: Final = frozenset({"wake", "answer_wake", "sender", "start_parent"})
"""Arguments that are NULL for clients."""


def _has_more(appends: Sequence[j.JournalAppend]) -> bool:
    """Return whether an append has an argument that is not for clients."""
    wakes = [append.entry.wake_id for append in appends if append.entry is not None]
    wakes += [append.answers.wake_id for append in appends if append.answers is not None]
    wakes += [append.start.parent for append in appends if append.start is not None]
    return any(name is not None for name in (*wakes, *[append.sender for append in appends]))


def _append_call(params: Params, *, as_client: bool) -> LiteralString:
    """Return the call with these arguments; the others are NULL."""
    if not as_client:
        return call_of("append_journals", tuple(params))
    return call_of("client_append_journals", tuple(name for name in params if name not in _OF_WAKES))


def _start_params(appends: Sequence[j.JournalAppend]) -> Params:
    starts = [append.start for append in appends]
    abouts = [None if start is None else start.about for start in starts]
    described = {"start_about": Texts(json.dumps(about) if about else None for about in abouts)} if any(abouts) else {}
    return described | {
        "start_name": Texts(start.name if start else None for start in starts),
        "start": Texts(start.start if start else None for start in starts),
        "start_generation": Texts(start.generation if start else None for start in starts),
        "start_version": Texts(start.version if start else None for start in starts),
        "start_journal": Ints(start.journal_id if start else None for start in starts),
        "start_parent": Texts(start.parent if start else None for start in starts),
    }


def _rare_params(appends: Sequence[j.JournalAppend]) -> Params:
    answers = [append.answers for append in appends]
    return {
        "answer": Texts(answer.request_id if answer else None for answer in answers),
        "answer_kind": Texts(answer.kind if answer else None for answer in answers),
        "answer_wake": Texts(answer.wake_id if answer else None for answer in answers),
        "drops": Bools(append.drops for append in appends),
        "closes": Bools(append.closes for append in appends),
        "sender": Texts(append.sender for append in appends),
    }


def _rounds(session_ids: Sequence[str]) -> list[int]:
    """Return the round of each element, so that no round names a session twice."""
    seen: Counter[str] = Counter()
    rounds: list[int] = []
    for session_id in session_ids:
        seen[session_id] += 1
        rounds.append(seen[session_id])
    return rounds


def _to_pending(rows: Sequence[Row], limit: int) -> j.PendingWork:
    head = _PendingRow._make(rows[0][_PENDING])
    inputs = [j.Entry._make(entry) for entry in present(rows, _INPUT)][:limit]
    requests = json.loads(head.requests) if head.requests else []
    later = json.loads(head.revisits) if head.revisits else []
    revisits = [(to_revisit(row), due_in) for *row, due_in in later]
    waits = [due_in for *_, due_in in (*requests, *revisits) if due_in is not None and due_in > 0]
    due = [revisit for revisit, due_in in revisits if due_in <= 0]
    return j.PendingWork(
        journal_id=head.journal_id,
        kind=head.kind,
        processed=head.processed,
        last_seq=head.last_seq,
        closed=head.closed,
        parent=head.parent,
        inputs=inputs,
        more=head.found > len(inputs),
        due=sorted(due, key=lambda one: (-one.priority, one.due_at)),
        requests=[to_request(row) for row in requests],
        revisits=[revisit for revisit, _ in revisits],
        next_due=min(waits, default=None),
        home=head.home,
        epoch=head.epoch or 0,
        has_record=head.has_record,
        steps=[j.Step(*step) for step in json.loads(head.steps)] if head.steps else [],
        delegations=[j.OpenDelegation(*row) for row in json.loads(head.delegations)] if head.delegations else [],
    )


def _to_reply(rows: Sequence[Row], limit: int) -> j.JournalPage:
    wake = rows[0][_REPLY_WAKE]
    first, last = (_ReplyRow._make(row[_REPLY]) for row in (rows[0], rows[-1]))
    entries = [j.Entry._make(entry) for entry in present(rows, _REPLY_ENTRY)]
    return j.JournalPage(
        **_JournalRow._make(rows[0][_REPLY_JOURNAL])._asdict(),
        entries=entries[:limit],
        more=last.has_more or len(entries) > limit,
        wake=None if wake[0] is None else j.JournalWake._make(wake),
        is_input=first.is_input is not False,
    )


def _to_page(session_id: str, rows: Sequence[Row]) -> j.JournalPage:
    head, journal = _ReadRow._make(rows[0][_READ]), _JournalRow._make(rows[0][_READ_JOURNAL])
    entries = [j.Entry._make(entry) for entry in present(rows, _READ_ENTRY)]
    last = None
    if head.wake_id is not None:
        last = j.StreamCursor(wake_id=head.wake_id, attempt=head.attempt, number=head.number)
    return j.JournalPage(
        **journal._asdict(),
        entries=entries,
        more=head.found > len(entries),
        stream=[
            j.StreamPart(
                session_id=session_id,
                journal_id=journal.journal_id,
                wake_id=last.wake_id,
                attempt=last.attempt,
                number=number,
                payload=payload,
            )
            for number, payload in zip(head.numbers or (), head.payloads or (), strict=True)
            if last
        ],
        streaming=last,
    )


def to_request(row: Iterable[Any]) -> j.Request:
    """Return a request, from the array of its columns."""
    request_id, kind, payload, wake_id, created_at, expires_at, expired, *_ = row
    expires = None if expires_at is None else datetime.fromisoformat(expires_at)
    return j.Request(request_id, kind, payload, wake_id, datetime.fromisoformat(created_at), expires, expired)


def to_revisit(row: Iterable[Any]) -> j.Revisit:
    """Return a revisit, from the array of its columns."""
    key, due_at, priority, reason, note, wake_id, *_ = row
    return j.Revisit(key, datetime.fromisoformat(due_at), priority, reason, note, wake_id)
