"""Journals: appending inputs, finding the pending work of wakes, and reading entries."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from affinity.conversation import journal as j
from affinity.conversation.store.sqlite import streams
from affinity.conversation.store.sqlite.rows import (
    EntryWriter,
    Head,
    Numbers,
    Segment,
    read_heads,
    read_numbers,
    read_segments,
)
from affinity.limits import MAX_BATCH_BYTES, MAX_DELEGATIONS_READ
from affinity.provider.contract import FINISHED, Generation, NewInstance, NewMessage
from affinity.provider.sqlite import instances, messages, parking, quotas, sessions
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import PORTION, Tx, to_json
from affinity.provider.sqlite.payloads import portions
from affinity.provider.sqlite.sessions import FREE, NEW
from affinity.provider.statements import load_statements

T = TypeVar("T")

SQL: Final = load_statements(__package__, "journals.sql")

_NEWEST_FIRST: Final = {
    name: sql.replace("ORDER BY seq", "ORDER BY seq DESC").replace("BY processed, seq", "BY processed DESC, seq DESC")
    for name, sql in SQL.items()
}

_NO_BOUND: Final = 2**63 - 1


# -- appending


def append(tx: Tx, appends: Sequence[j.JournalAppend]) -> list[j.Appended]:
    batch = _AppendBatch(tx, appends)
    outcomes = [batch.append(append) for append in appends]
    batch.write()
    return outcomes


def append_of_wakes(tx: Tx, appends: Sequence[j.JournalAppend]) -> None:
    """Append the entries that wakes send, then the fallback entries of refused ones."""
    outcomes = append(tx, appends)
    refused = [
        _bounce(other, other.entry, found.outcome)
        for one, found in zip(appends, outcomes, strict=True)
        if found.outcome not in {"appended", "repeated"}
        and (other := one.if_refused) is not None
        and other.entry is not None
    ]
    if refused:
        append(tx, refused)


def _bounce(append: j.JournalAppend, entry: j.NewEntry, outcome: j.AppendOutcome) -> j.JournalAppend:
    """Return the fallback of an append that was refused with this outcome."""
    return replace(append, entry=replace(entry, payload=entry.payload.replace(j.REFUSAL_MARK, f'"{outcome}"')))


def _parent_of(one: j.JournalAppend, head: Head | None) -> str | None:
    """Return the parent of the journal, as it is or will be."""
    if head is not None:
        return head.parent
    return None if one.start is None else one.start.parent


def instance_of(session_id: str, start: j.JournalStart) -> NewInstance:
    """Return the instance that belongs to a journal."""
    return NewInstance(
        instance_id=session_id,
        name=start.name,
        version=start.version,
        start=start.start,
        session_id=session_id,
        generation=Generation(start.generation),
    )


class _InstanceRow(NamedTuple):
    name: str
    status: str
    is_parked: int = 0  # a work item of it
    item_session: str | None = None
    is_limited: int = 0  # the item waits at its limits

    @property
    def has_ended(self) -> bool:
        return self.status in FINISHED


class _Asked(NamedTuple):
    """A pending request."""

    kind: str
    wake_id: str | None
    seq: int


class _AppendBatch:
    """Inputs of one transaction: checked one after the other, then written together."""

    def __init__(self, tx: Tx, appends: Sequence[j.JournalAppend]) -> None:
        self._tx = tx
        session_ids = {append.session_id for append in appends}
        self._heads = read_heads(tx, session_ids)
        self._writer = EntryWriter(tx, self._read_numbers(appends))
        rows = tx.gather(SQL["instances"], {"session_ids": to_json(list(session_ids))})
        self._instances = {instance_id: _InstanceRow(*row) for instance_id, *row in rows}
        self._parked = {name: row.item_session for name, row in self._instances.items() if row.is_parked}
        self._leases = sessions.read_leases(tx, {name for name in self._parked.values() if name is not None})
        self._requests = self._read_requests(appends)
        self._room = _Room(tx, appends)
        self._resolved: list[tuple[int, str]] = []
        self._dropped: list[int] = []
        self._new_instances: list[NewInstance] = []
        self._unparked: dict[str, str] = {}  # routes of their items
        self._messages: list[NewMessage] = []

    def append(self, one: j.JournalAppend) -> j.Appended:
        """Check one append, and keep its rows."""
        head = self._heads.get(one.session_id)
        if one.journal_id not in {None, None if head is None else head.journal_id}:
            return j.Appended("unknown", journal_id=head.journal_id if head else 0)
        if head is not None and head.kind != one.kind:
            return j.Appended("other_kind", journal_id=head.journal_id)
        seq = None if head is None or one.entry is None else self._writer.find(head, one.entry)
        if seq is not None:
            return j.Appended("repeated", seq, head.journal_id if head else 0)
        refusal = self._find_refusal(one, head)
        if refusal is not None:
            return j.Appended(refusal, journal_id=head.journal_id if head else 0)
        return self._accept(one, head)

    def write(self) -> None:
        """Write the rows of accepted appends."""
        self._writer.write()
        self._tx.many(SQL["resolve"], self._resolved)
        self._tx.many(SQL["drop_requests"], self._dropped)
        self._tx.many(SQL["drop_revisits"], self._dropped)
        parking.unpark(self._tx, self._unparked)
        _, outbox = messages.insert_new(self._tx, self._new_instances) if self._new_instances else ([], [])
        messages.send(self._tx, [*outbox, *self._messages])

    def _find_refusal(self, one: j.JournalAppend, head: Head | None) -> j.AppendOutcome | None:
        if head is None and (one.start is None or one.entry is None):
            return "unknown"
        instance = self._instances.get(one.session_id)
        is_taken = instance is not None and one.start is not None and instance.name != one.start.name
        if (head is not None and head.closed) or (instance is not None and instance.has_ended and not is_taken):
            return "closed"
        if one.sender not in {None, _parent_of(one, head)}:
            return "not_parent"
        if one.answers is not None and not self._is_pending(head, one.answers):
            return "not_pending"
        return "taken" if is_taken else self._find_instance_refusal(one, is_missing=instance is None)

    def _find_instance_refusal(self, one: j.JournalAppend, *, is_missing: bool) -> j.AppendOutcome | None:
        if is_missing and one.start is None and one.message is not None:
            return "unknown"
        if one.sender is not None:  # a wake
            return None
        return self._room.find_refusal(
            one, is_new=is_missing and one.start is not None, is_sent=one.message is not None and not self._unparks(one)
        )

    def _accept(self, one: j.JournalAppend, head: Head | None) -> j.Appended:
        created = head is None
        if head is None:
            assert one.start is not None
            self._delete_instance(one.session_id)
            head = Head(one.start.journal_id, one.session_id, one.kind, one.start.parent)
            self._heads[one.session_id] = head
            self._writer.create(head, one.start.about or {})
        if one.start is not None and one.session_id not in self._instances:
            self._create_instance(one.session_id, one.start)
        if one.entry is not None:
            asked = None if one.answers is None else self._requests[head.journal_id, one.answers.request_id]
            self._writer.add(head, one.entry, request_seq=None if asked is None else asked.seq)
        self._settle(one, head)
        outcome = j.Appended("appended", head.last_seq if one.entry is not None else 0, head.journal_id, created)
        if self._unparks(one):
            is_gated = bool(self._instances[one.session_id].is_limited)
            return outcome._replace(unparked=True, holder=self._unpark(one.session_id), is_gated=is_gated)
        if one.message is not None:
            text = one.message.replace(j.SEQ_MARK, str(head.last_seq))
            text = text.replace(j.PARKED_MARK, "true" if one.session_id in self._parked else "false")
            self._messages.append(NewMessage(instance_id=one.session_id, payload=text))
        return outcome

    def _unparks(self, one: j.JournalAppend) -> bool:
        """Return whether an append has to queue a parked work item."""
        is_input = one.entry is not None and one.entry.is_input
        return is_input and one.message is not None and one.session_id in self._parked

    def _unpark(self, session_id: str) -> str | None:
        """Queue the item of an instance; return the worker that is to fetch it: see `Appended.holder`."""
        item_session = self._parked.pop(session_id)
        is_limited = self._instances[session_id].is_limited
        lease = None if item_session is None else self._leases.get(item_session)
        self._unparked[session_id] = FREE if item_session is None else NEW if lease is None else lease.route
        return lease.serving if lease is not None and lease.held and not is_limited else None

    def _create_instance(self, session_id: str, start: j.JournalStart) -> None:
        self._instances[session_id] = _InstanceRow(start.name, "pending")
        self._new_instances.append(instance_of(session_id, start))

    def _delete_instance(self, session_id: str) -> None:
        """Delete an instance that is left of a deleted journal: it may end before it reads the new one."""
        if self._instances.pop(session_id, None) is not None:
            instances.delete_instances(self._tx, [session_id], force=True, tree=False)
            self._parked.pop(session_id, None)

    def _settle(self, one: j.JournalAppend, head: Head) -> None:
        """Requests and revisits, and whether the journal takes further inputs."""
        if one.answers is not None:
            key = (head.journal_id, one.answers.request_id)
            del self._requests[key]
            self._resolved.append(key)
        if one.drops:
            self._dropped.append(head.journal_id)
            self._requests = {key: row for key, row in self._requests.items() if key[0] != head.journal_id}
            head.dropped = head.last_seq
        if one.closes:
            head.closed = 1
        if one.drops or one.closes:
            self._writer.change(head)

    def _is_pending(self, head: Head | None, answer: j.Answer) -> bool:
        found = None if head is None else self._requests.get((head.journal_id, answer.request_id))
        return found is not None and found.kind == answer.kind and answer.wake_id in {None, found.wake_id}

    def _read_numbers(self, appends: Sequence[j.JournalAppend]) -> Numbers:
        there = [(self._heads.get(append.session_id), append.entry) for append in appends]
        return read_numbers(self._tx, [(head, entry) for head, entry in there if head and entry])

    def _read_requests(self, appends: Sequence[j.JournalAppend]) -> dict[tuple[int, str], _Asked]:
        """Return the answered requests that are pending."""
        answers = [(self._heads.get(append.session_id), append.answers) for append in appends]
        rows = [(head.journal_id, answer.request_id) for head, answer in answers if head and answer]
        if not rows:
            return {}
        found = self._tx.gather(SQL["pending_requests"], {"rows": to_json(rows), "now": self._tx.now})
        return {(journal_id, request_id): _Asked(*row) for journal_id, request_id, *row in found}


class _Room:
    """Decides, in one transaction, whether the quotas and the limits of messages leave room for an append."""

    def __init__(self, tx: Tx, appends: Sequence[j.JournalAppend]) -> None:
        self._limits = {
            append.session_id: append.unread_limit
            for append in appends
            if append.unread_limit is not None and append.message is not None
        }
        self._most = quotas.get(tx)
        self._unread: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._instances = 0.0
        if self._limits:
            values = {"instance_ids": to_json(list(self._limits)), "most": max(self._limits.values())}
            self._unread = dict(tx.gather(messages.SQL["unread"], values))
        if self._limits and self._most.instance_bytes is not None:
            self._sizes = quotas.measure(tx, self._limits)
        if self._most.instances is not None:
            self._instances = tx.value(quotas.SQL["counted"])

    def find_refusal(self, one: j.JournalAppend, *, is_new: bool, is_sent: bool) -> j.AppendOutcome | None:
        """Return why an append has no room; None: it has, and is counted. ``is_sent``: its message is sent."""
        unread = self._unread.get(one.session_id, 0)
        size = self._sizes.get(one.session_id, 0)
        start = one.start.start if one.start is not None and is_new else None
        most_bytes, most = self._most.instance_bytes, self._most.instances
        if start is not None:
            unread, size = unread + 1, size + len(start.encode())
            if (most is not None and self._instances + 1 > most) or (most_bytes is not None and size > most_bytes):
                return "over_quota"
        if is_sent and one.message is not None and one.unread_limit is not None:
            quota = self._most.unread_events
            if unread >= (one.unread_limit if quota is None else min(one.unread_limit, quota)):
                return "full"
            size += len(one.message.encode())
            if most_bytes is not None and size > most_bytes:
                return "over_quota"
        self._instances += start is not None
        self._unread[one.session_id] = unread + is_sent
        self._sizes[one.session_id] = size
        return None


# -- pending work of wakes


def get_pending(
    tx: Tx, session_ids: Sequence[str], *, limit: int, max_bytes: int = MAX_BATCH_BYTES
) -> list[j.PendingWork | None]:
    heads = read_heads(tx, session_ids)
    found: dict[str, j.PendingWork] = {}
    names = list(heads)
    for start in range(0, len(names), PORTION):
        portion = [heads[name] for name in names[start : start + PORTION]]
        inputs, size = _read_inputs(tx, portion, limit, max_bytes)
        max_bytes = max(max_bytes - size, 0)
        requests = _read_requests(tx, portion)
        revisits = _read_revisits(tx, portion)
        steps = _by_place(tx, "steps", portion, j.Step)
        delegations = _by_place(tx, "delegations", portion, j.OpenDelegation, limit=MAX_DELEGATIONS_READ)
        for place, head in enumerate(portion):
            work = _pending(tx, head, inputs[place], requests[place], revisits[place])
            found[head.session_id] = replace(work, steps=steps[place], delegations=delegations[place])
    return [found.get(session_id) for session_id in session_ids]


class _Inputs(NamedTuple):
    entries: list[j.Entry]
    more: bool


def _pending(
    tx: Tx, head: Head, inputs: _Inputs, requests: list[j.Request], revisits: list[j.Revisit]
) -> j.PendingWork:
    now = instant(tx.now)
    due = [revisit for revisit in revisits if revisit.due_at <= now]
    times = [revisit.due_at for revisit in revisits if revisit.due_at > now]
    times += [request.expires_at for request in requests if request.expires_at is not None and not request.expired]
    return j.PendingWork(
        journal_id=head.journal_id,
        kind=head.kind,
        processed=head.processed,
        last_seq=head.last_seq,
        closed=bool(head.closed),
        parent=head.parent,
        inputs=inputs.entries,
        more=inputs.more,
        due=sorted(due, key=lambda each: -each.priority),
        requests=requests,
        revisits=revisits,
        next_due=max((min(times) - now).total_seconds(), 0.0) if times else None,
        home=head.home,
        epoch=head.epoch,
    )


def _read_inputs(tx: Tx, heads: Sequence[Head], limit: int, max_bytes: int) -> tuple[list[_Inputs], int]:
    """Inputs behind the watermarks, and their bytes."""
    rows = [(head.journal_id, max(head.processed, head.base_seq or 0)) for head in heads]
    values = {"rows": to_json(rows), "limit": limit, "max_bytes": max_bytes}
    inputs: list[list[j.Entry]] = [[] for _ in heads]
    cut: set[int] = set()
    size = 0
    for place, seq, total, kind, *entry in tx.gather(SQL["unprocessed"], values):
        if kind is None:
            cut.add(place)
        else:
            inputs[place].append(_to_entry((seq, kind, *entry)))
            size = total
    found = [_Inputs(entries, place in cut) for place, entries in enumerate(inputs)]
    for place, head in enumerate(heads):
        if head.base_seq is not None and head.processed < head.base_seq:
            found[place], read = _read_inherited(tx, head, limit, max(max_bytes - size, 0))
            size += read
    return found, size


def _read_inherited(tx: Tx, head: Head, limit: int, max_bytes: int) -> tuple[_Inputs, int]:
    """Pending inputs of a journal, some of which are in journals that it continues; and their bytes."""
    query = j.JournalQuery(session_id=head.session_id, pending=True, limit=limit)
    places = _find(tx, head, query)
    entries, size = _read_entries(tx, places[:limit], max(max_bytes, 1))
    return _Inputs(entries, len(entries) < len(places)), size


def _read_requests(tx: Tx, heads: Sequence[Head]) -> list[list[j.Request]]:
    """Return the requests of each journal, oldest first."""
    found: list[list[j.Request]] = [[] for _ in heads]
    rows = tx.gather(SQL["requests"], {"journal_ids": to_json([head.journal_id for head in heads]), "now": tx.now})
    for place, request_id, kind, payload, wake_id, created_at, expires_at, expired in rows:
        ends = None if expires_at is None else _instant(expires_at)
        found[place].append(j.Request(request_id, kind, payload, wake_id, _instant(created_at), ends, bool(expired)))
    return found


def _read_revisits(tx: Tx, heads: Sequence[Head]) -> list[list[j.Revisit]]:
    """Return the revisits of each journal, in the order in which they are due."""
    found: list[list[j.Revisit]] = [[] for _ in heads]
    values = {"journal_ids": to_json([head.journal_id for head in heads])}
    for place, key, due_at, *rest in tx.gather(SQL["revisits"], values):
        found[place].append(j.Revisit(key, _instant(due_at), *rest))
    return found


def _by_place(tx: Tx, statement: str, heads: Sequence[Head], make: Callable[..., T], **bounds: int) -> list[list[T]]:
    """Return the rows of each journal; a row begins with the place of its journal."""
    found: list[list[T]] = [[] for _ in heads]
    values = {"journal_ids": to_json([head.journal_id for head in heads]), **bounds}
    for place, *row in tx.gather(SQL[statement], values):
        found[place].append(make(*row))
    return found


# -- reading


def read(tx: Tx, queries: Sequence[j.JournalQuery], *, max_bytes: int = MAX_BATCH_BYTES) -> list[j.JournalPage | None]:
    heads = read_heads(tx, {query.session_id for query in queries}, with_status=True)
    pages: list[j.JournalPage | None] = []
    for query in queries:
        head = heads.get(query.session_id)
        if head is None:
            pages.append(None)
            continue
        page, size = _read_page(tx, head, query, max_bytes)
        pages.append(page)
        max_bytes -= size
    return pages


def _read_page(tx: Tx, head: Head, query: j.JournalQuery, max_bytes: int) -> tuple[j.JournalPage, int]:
    """Return a page, and the bytes of its entries."""
    wake = None if query.reply_to is None else _find_wake(tx, head, query.reply_to)
    is_input = query.reply_to is None or _is_input(tx, head, query.reply_to)
    places = _find(tx, head, query if query.reply_to is None else _reply_query(query, query.reply_to, wake))
    entries, size = _read_entries(tx, places[: query.limit], max_bytes)
    stream, streaming = ([], None) if query.stream is None else streams.read(tx, head, query.stream)
    page = j.JournalPage(
        journal_id=head.journal_id,
        kind=head.kind,
        processed=head.processed,
        first_seq=head.first_seq,
        last_seq=head.last_seq,
        closed=bool(head.closed),
        parent=head.parent,
        parent_journal=head.parent_journal,
        instance_status=head.instance_status,
        entries=entries,
        more=len(entries) < len(places),
        wake=wake,
        is_input=is_input,
        stream=stream,
        streaming=streaming,
    )
    return page, size


def _find(tx: Tx, head: Head, query: j.JournalQuery) -> list[tuple[int, int]]:
    """Return the places of the entries of a query, in its order: one more than its limit, if there are so many."""
    after = max(query.after, head.first_seq - 1, head.processed if query.pending else 0)
    before = head.last_seq + 1 if query.before is None else min(query.before, head.last_seq + 1)
    if before - after <= 1 or query.limit < 1:
        return []
    found: list[tuple[int, int]] = []
    for segment in _segments(tx, head, after, before, newest_first=query.newest_first):
        rest = query.limit + 1 - len(found)
        found += [(segment.journal_id, seq) for seq in islice(_find_in(tx, segment, query, rest), rest)]
        if len(found) > query.limit:
            break
    return found


def _segments(tx: Tx, head: Head, after: int, before: int, *, newest_first: bool = False) -> list[Segment]:
    """Return a range of a journal's numbers, in parts that are in one row of ``journals`` each."""
    segments = read_segments(tx, head) if (head.base_seq or 0) > after else [Segment(head.journal_id, 0, head.last_seq)]
    parts = [
        Segment(segment.journal_id, max(after, segment.after), min(before - 1, segment.upto)) for segment in segments
    ]
    found = [part for part in parts if part.after < part.upto]
    return found if newest_first else found[::-1]


def _find_in(tx: Tx, segment: Segment, query: j.JournalQuery, limit: int) -> Iterator[int]:
    """Numbers in one row of ``journals``, by the index of the condition that is met by the fewest entries."""
    statements = _NEWEST_FIRST if query.newest_first else SQL
    values = {
        "journal_id": segment.journal_id,
        "after": segment.after,
        "before": segment.upto + 1,
        "limit": limit,
        "any_kind": not query.kinds,
        "kinds": to_json(list(query.kinds)),
        "wake_id": query.wake_id,
        "event_id": query.event_id,
        "pending": query.pending,
    }
    if query.event_id is not None:
        name = "by_event"
    elif query.wake_id is not None:
        name = "by_wake"
    elif query.pending:
        name = "inputs"
    elif query.kinds:
        found = [tx.gather(statements["by_kind"], {**values, "kind": kind}) for kind in set(query.kinds)]
        return heapq.merge(*found, reverse=query.newest_first)
    else:
        name = "by_number"
    return iter(tx.gather(statements[name], values))


def get_wakes(
    tx: Tx, session_id: str, *, after: int = 0, newest_first: bool = False, limit: int
) -> list[j.JournalWake]:
    statement = (_NEWEST_FIRST if newest_first else SQL)["wakes"]
    found: list[list[Any]] = []
    for head in read_heads(tx, [session_id]).values():
        after = max(after, head.first_seq - 1)
        for segment in _segments(tx, head, after, head.last_seq + 1, newest_first=newest_first):
            found += tx.gather(statement, {**segment._asdict(), "limit": limit - len(found)})
    return [j.JournalWake(*row) for row in found]


def _find_wake(tx: Tx, head: Head, seq: int) -> j.JournalWake | None:
    """See `JournalPage.wake`."""
    values = {"input": seq, "mark": min(seq, head.processed), "from": 0 if seq <= head.processed else head.last_seq}
    after = max(seq, head.first_seq - 1, head.base_seq or 0 if seq > head.processed else 0)
    segments = _segments(tx, head, after, head.last_seq + 1)
    found = [tx.row(SQL["reply"], {**segment._asdict(), **values}) for segment in segments]
    return next((j.JournalWake(*row) for row in found if row is not None), None)


def _is_input(tx: Tx, head: Head, seq: int) -> bool:
    """Return whether an entry is an input, as far as it is there."""
    places = _find(tx, head, j.JournalQuery(session_id=head.session_id, after=seq - 1, before=seq + 1))
    return all(tx.value(SQL["is_input"], place) for place in places)


def _reply_query(query: j.JournalQuery, seq: int, wake: j.JournalWake | None) -> j.JournalQuery:
    """Return the query for the entries of a wake, if it has processed this input."""
    found = j.JournalQuery(session_id=query.session_id, after=query.after, limit=0)
    if wake is None or wake.processed < seq:
        return found
    return replace(found, before=wake.seq + 1, wake_id=wake.wake_id, limit=query.limit)


def _read_entries(tx: Tx, places: Collection[tuple[int, int]], max_bytes: int) -> tuple[list[j.Entry], int]:
    """Entries in order, until they have ``max_bytes``; and their bytes."""
    rest = list(places)
    entries: list[j.Entry] = []
    size = 0
    for portion in portions():
        if not rest or size >= max_bytes:
            break
        rows = tx.gather(SQL["entries"], {"rows": to_json(rest[:portion]), "max_bytes": max_bytes - size})
        entries += [_to_entry((seq, *entry)) for seq, _, *entry in rows]
        size += max((total for _, total, *_ in rows), default=0)
        if len(rows) < min(portion, len(rest)):
            break
        rest = rest[portion:]
    return entries, size


def _to_entry(row: Sequence[Any]) -> j.Entry:
    seq, kind, payload, event_id, wake_id, is_input, recorded_at, is_copied = row
    return j.Entry(seq, kind, payload, event_id, wake_id, bool(is_input), _instant(recorded_at), bool(is_copied))


def _instant(microseconds: int) -> datetime:
    return instant(microseconds / 1e6)
