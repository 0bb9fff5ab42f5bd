"""Journals: appending inputs, what a wake has to do, and reading entries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.errors import Contention
from affinity.journal import (
    Appended,
    Entry,
    JournalAppend,
    JournalPage,
    JournalQuery,
    PendingWork,
    Request,
    Revisit,
    StreamCursor,
    StreamPart,
)
from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import Hint
from affinity.provider.postgres.driver.arrays import Bools, Int, Ints, Text, Texts
from affinity.provider.postgres.driver.errors import BATCH_REFUSED
from affinity.provider.postgres.driver.wire import Params, Row, Statement
from affinity.provider.postgres.hints import hint_statement
from affinity.provider.postgres.operations import Operations
from affinity.provider.repeats import refuse_other_events
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "journals.sql")

_NO_BOUND: Final = 2**63 - 1

_MAX_ROUNDS: Final = 5
"""Times that a batch is sent whose journals, or instances, are deleted while it is applied."""


class JournalOperations(Operations):
    """`append_journal`, `get_pending` and `read_journal`."""

    async def append_journal(
        self, appends: Sequence[JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
    ) -> Sequence[Appended]:
        if not appends:
            return []
        behind = hint_statement(self._connections.target, notify or {})
        if len(appends) == 1 and (params := _input_params(appends[0])):
            (row,) = await self._run_append(_SQL["append_input"], params, behind)
            return await refuse_other_events(self.read_journal, appends, [_appended(appends[0], row)])
        params = append_params(appends)
        statement = f"{_SQL['append']} FROM {append_call(tuple(params))}"
        ((*columns,),) = await self._run_append(statement, params, behind)
        holders = columns.pop() or [None] * len(appends)
        outcomes = {place: _appended(appends[place - 1], row) for place, *row in zip(*columns, holders, strict=True)}
        done = [outcomes[place] for place in range(1, len(appends) + 1)]
        return await refuse_other_events(self.read_journal, appends, done)

    async def _run_append(self, statement: LiteralString, params: Params, behind: Statement | None) -> list[Row]:
        for _ in range(1, _MAX_ROUNDS):
            try:
                return await self._connections.quick.run(statement, params, behind=behind)
            except Contention as error:
                if error.code != BATCH_REFUSED:
                    raise
        return await self._connections.quick.run(statement, params, behind=behind)

    async def get_pending(
        self, session_ids: Sequence[str], *, limit: int, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[PendingWork | None]:
        params = {"session": Texts(session_ids), "limit": Int8(limit), "max_bytes": Int8(max_bytes)}
        found: dict[int, PendingWork] = {}
        for n, rows in groupby(await self._connections.quick.run(_SQL["pending"], params), itemgetter(0)):
            found[n] = _to_pending(list(rows), limit)
        return [found.get(n) for n in range(1, len(session_ids) + 1)]

    async def read_journal(
        self, queries: Sequence[JournalQuery], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[JournalPage | None]:
        if not queries:
            return []
        found = await self._read_plain(queries, max_bytes) if all(map(_is_plain, queries)) else None
        if found is None:
            found = await self._read_any(queries, max_bytes)
        return [found.get(n) for n in range(1, len(queries) + 1)]

    async def _read_plain(self, queries: Sequence[JournalQuery], max_bytes: int) -> dict[int, JournalPage] | None:
        """Pages by the number of their query; None: one of them needs entries that its journal inherits."""
        params = {
            "session": Texts(query.session_id for query in queries),
            "after": Ints(query.after for query in queries),
            "before": Ints(_NO_BOUND if query.before is None else query.before for query in queries),
            "limit": Ints(query.limit for query in queries),
            "max_bytes": Int8(max_bytes),
        }
        found: dict[int, JournalPage] = {}
        for n, group in groupby(await self._connections.quick.run(_SQL["read_plain"], params), itemgetter(0)):
            rows = list(group)
            if rows[0][1]:
                return None
            found[n] = _to_plain_page(rows, queries[n - 1].limit)
        return found

    async def _read_any(self, queries: Sequence[JournalQuery], max_bytes: int) -> dict[int, JournalPage]:
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
        found: dict[int, JournalPage] = {}
        for n, rows in groupby(await self._connections.quick.run(_SQL["read"], params), itemgetter(0)):
            found[n] = _to_page(queries[n - 1].session_id, list(rows))
        return found


def _appended(append: JournalAppend, row: Iterable[Any]) -> Appended:
    outcome, seq, journal_id, created, unparked, holder = row
    has_number = outcome == "repeated" or (outcome is None and append.entry is not None)
    return Appended(outcome or "appended", seq if has_number else 0, journal_id or 0, created, unparked, holder)


def _input_params(append: JournalAppend) -> Params | None:
    """The parameters of ``append_input``; None for an append of another kind."""
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


def append_params(appends: Sequence[JournalAppend]) -> Params:
    """The parameters of ``append_journals``, without the groups that this batch has no use for."""
    entries = [one.entry for one in appends]
    params: dict[str, Any] = {
        "session": Texts(one.session_id for one in appends),
        "kind": Texts(one.kind for one in appends),
        "entry_kind": Texts(entry.kind if entry else None for entry in entries),
        "entry": Texts(entry.payload if entry else None for entry in entries),
        "event": Texts(entry.event_id if entry else None for entry in entries),
        "wake": Texts(entry.wake_id if entry else None for entry in entries),
        "input": Bools(entry.is_input if entry else None for entry in entries),
        "message": Texts(one.message for one in appends),
        "unread_limit": Ints(one.unread_limit for one in appends),
    }
    if any(one.start is not None for one in appends):
        params |= _start_params(appends)
    if any(one.answers or one.drops or one.closes or one.sender is not None for one in appends):
        params |= _rare_params(appends)
    if any(one.journal_id is not None for one in appends):
        params["journal"] = Ints(one.journal_id for one in appends)
    rounds = _rounds([one.session_id for one in appends])
    if (last := max(rounds)) > 1:
        params |= {"round": Ints(rounds), "rounds": Int8(last)}
    return params


def append_call(names: tuple[LiteralString, ...]) -> LiteralString:
    """The call of ``append_journals`` with these arguments; the others are NULL."""
    return call_of("append_journals", names)


@cache
def call_of(
    function: LiteralString, names: tuple[LiteralString, ...], prefix: LiteralString = "", also: LiteralString = ""
) -> LiteralString:
    """A call with named arguments, whose parameters have the same names behind the prefix, and other arguments."""
    arguments: LiteralString = ", ".join([f"_{name} => %({prefix}{name})s" for name in names])
    return f"{function}({arguments}{also})"


def _start_params(appends: Sequence[JournalAppend]) -> Params:
    starts = [one.start for one in appends]
    return {
        "start_name": Texts(start.name if start else None for start in starts),
        "start": Texts(start.start if start else None for start in starts),
        "start_generation": Texts(start.generation if start else None for start in starts),
        "start_version": Texts(start.version if start else None for start in starts),
        "start_journal": Ints(start.journal_id if start else None for start in starts),
        "start_parent": Texts(start.parent if start else None for start in starts),
    }


def _rare_params(appends: Sequence[JournalAppend]) -> Params:
    answers = [one.answers for one in appends]
    return {
        "answer": Texts(answer.request_id if answer else None for answer in answers),
        "answer_kind": Texts(answer.kind if answer else None for answer in answers),
        "answer_wake": Texts(answer.wake_id if answer else None for answer in answers),
        "drops": Bools(one.drops for one in appends),
        "closes": Bools(one.closes for one in appends),
        "sender": Texts(one.sender for one in appends),
    }


def _rounds(session_ids: Sequence[str]) -> list[int]:
    """The round of each element, so that no round names a session twice."""
    seen: Counter[str] = Counter()
    rounds: list[int] = []
    for session_id in session_ids:
        seen[session_id] += 1
        rounds.append(seen[session_id])
    return rounds


def _to_pending(rows: Sequence[Row], limit: int) -> PendingWork:
    _, journal_id, kind, processed, last_seq, closed, parent, found = rows[0][:8]
    requests, revisits, home, epoch, has_record = rows[0][16:]
    inputs = [Entry._make(row[8:16]) for row in rows if row[8] is not None]
    pending = json.loads(requests) if requests else []
    later = json.loads(revisits) if revisits else []
    waits = [row[-1] for row in (*pending, *later) if row[-1] is not None and row[-1] > 0]
    due = sorted([to_revisit(row) for row in later if row[-1] <= 0], key=lambda one: (-one.priority, one.due_at))
    return PendingWork(
        journal_id=journal_id,
        kind=kind,
        processed=processed,
        last_seq=last_seq,
        closed=closed,
        parent=parent,
        inputs=inputs[:limit],
        more=found > len(inputs[:limit]),
        due=due,
        requests=[to_request(row) for row in pending],
        revisits=[to_revisit(row) for row in later],
        next_due=min(waits, default=None),
        home=home,
        epoch=epoch or 0,
        has_record=has_record,
    )


def _is_plain(query: JournalQuery) -> bool:
    """By number, oldest first, and without provisional output: what a client reads for a reply."""
    return not (
        query.kinds
        or query.pending
        or query.newest_first
        or query.wake_id is not None
        or query.event_id is not None
        or query.stream is not None
    )


def _page(head: Sequence[Any], **more: Any) -> JournalPage:
    """A page of the journal whose own columns are ``head``."""
    journal_id, kind, processed, first_seq, last_seq, closed, parent, parent_journal = head
    return JournalPage(
        journal_id=journal_id,
        kind=kind,
        processed=processed,
        first_seq=first_seq,
        last_seq=last_seq,
        closed=closed,
        parent=parent,
        parent_journal=parent_journal,
        **more,
    )


def _to_plain_page(rows: Sequence[Row], limit: int) -> JournalPage:
    _, has_next, fits, seq, *_ = rows[-1][10:]
    entries = [Entry._make(row[13:]) for row in rows if row[12] and row[13] is not None]
    return _page(
        rows[0][2:10],
        instance_status=rows[0][10],
        entries=entries[:limit],
        more=has_next or len(entries) > limit or (seq is not None and not fits),
        stream=[],
    )


def _to_page(session_id: str, rows: Sequence[Row]) -> JournalPage:
    journal_id, found = rows[0][1], rows[0][9]
    wake_id, attempt, number, numbers, payloads, status = rows[0][18:]
    entries = [Entry._make(row[10:18]) for row in rows if row[10] is not None]
    return _page(
        rows[0][1:9],
        instance_status=status,
        entries=entries,
        more=found > len(entries),
        stream=[
            StreamPart(
                session_id=session_id,
                journal_id=journal_id,
                wake_id=wake_id,
                attempt=attempt,
                number=of_part,
                payload=payload,
            )
            for of_part, payload in zip(numbers or (), payloads or (), strict=True)
        ],
        streaming=None if wake_id is None else StreamCursor(wake_id=wake_id, attempt=attempt, number=number),
    )


def to_request(row: Iterable[Any]) -> Request:
    """A request, from the array of its columns."""
    request_id, kind, payload, wake_id, created_at, expires_at, expired, *_ = row
    expires = None if expires_at is None else datetime.fromisoformat(expires_at)
    return Request(request_id, kind, payload, wake_id, datetime.fromisoformat(created_at), expires, expired)


def to_revisit(row: Iterable[Any]) -> Revisit:
    """A revisit, from the array of its columns."""
    key, due_at, priority, reason, note, wake_id, *_ = row
    return Revisit(key, datetime.fromisoformat(due_at), priority, reason, note, wake_id)
