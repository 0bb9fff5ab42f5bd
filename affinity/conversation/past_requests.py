"""The requests of a conversation that were pending at an earlier entry, by its entries.

A request is pending from its entry on, until its answer, or until an interrupt. An interrupt also drops the requests of
a wake that runs when it comes: the entries of that wake stand behind the interrupt, which it has not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from affinity.conversation.events import (
    AnswerEvent,
    ConversationIdle,
    ConversationStatusChanged,
    EventTypes,
    RequestEvent,
    RequestExpired,
    UserInterrupt,
    kind_of,
)
from affinity.conversation.journal import Entry, InheritedRequest, JournalLineage, JournalQuery
from affinity.conversation.reading import LineageReads, Read, all_entries

_INTERRUPT: Final = kind_of(UserInterrupt)
_CHANGES: Final = (RequestEvent, AnswerEvent, RequestExpired, ConversationIdle, ConversationStatusChanged)
"""Events that make requests, resolve them, or name the pending requests."""


async def requests_at(
    reads: LineageReads, types: EventTypes, source: str, at: int, lineage: Sequence[JournalLineage]
) -> Sequence[InheritedRequest]:
    """Return the requests that were pending at entry ``at``, oldest first; without requests of kinds that ``types``
    lack.

    It reads back to the oldest of them: the end of a wake names all that are pending. ``lineage`` is of the source,
    nearest first.
    """
    interrupt, merge = 0, _begin_of_merge(lineage, at)
    query = JournalQuery(session_id=source, before=at + 1, kinds=[_INTERRUPT], newest_first=True, limit=1)
    async for last in all_entries(reads.read, query):
        interrupt = 0 if last.is_copied else last.seq  # copied entries stand before all requests of a merge
        break
    found = []
    async for request_id, entry in _unresolved(reads.read, types, source, max(interrupt, merge), at):
        first = await _first_entry(reads, source, entry)
        if not interrupt or await _has_read(reads, source, entry, first, interrupt):
            found.append(
                InheritedRequest(request_id, entry.kind, entry.payload, entry.wake_id, first, entry.recorded_at)
            )
    return found[::-1]


def _begin_of_merge(lineage: Sequence[JournalLineage], at: int) -> int:
    """Return the last entry of the left side of the merge that has entry ``at`` and begins without requests; else 0."""
    for node in lineage:
        end = 0 if node.base is None else node.base.up_to or 0
        if node.lineage == "merge" and end < at:
            return end
        at = min(at, end)
    return 0


async def _unresolved(
    read: Read, types: EventTypes, source: str, after: int, at: int
) -> AsyncIterator[tuple[str, Entry]]:
    """Yield the requests between two entries without an answer, newest first."""
    query = JournalQuery(
        session_id=source, after=after, before=at + 1, kinds=types.kinds_derived_from(*_CHANGES), newest_first=True
    )
    seen: set[str] = set()
    named: set[str] | None = None  # pending requests at the end of the last wake that did not fail
    async for entry in all_entries(read, query):
        if entry.is_copied:
            return  # a merge begins without requests
        match types.decode(entry.kind, entry.payload):
            case AnswerEvent() | RequestExpired() as answer:
                seen.add(answer.request_id)
            case RequestEvent() as request:
                request_id = str(getattr(request, "request_id", ""))
                if request_id not in seen and (named is None or request_id in named):
                    seen.add(request_id)
                    yield request_id, entry
            case ConversationIdle() as end if named is None and end.stop_reason != "failed":
                named = {*end.requests}
            case ConversationStatusChanged(status="terminated"):
                return  # a termination drops all requests
        if named is not None and named <= seen:
            return


async def _first_entry(reads: LineageReads, source: str, entry: Entry) -> int:
    """Return the number of the first entry of the wake that has made a request."""
    page = await reads.read(JournalQuery(session_id=source, before=entry.seq, wake_id=entry.wake_id, limit=1))
    return page.entries[0].seq if page is not None and page.entries else entry.seq


async def _has_read(reads: LineageReads, source: str, entry: Entry, first: int, interrupt: int) -> bool:
    """Return whether the wake that has made a request had read an interrupt.

    Of a wake without an end (running or cancelled), the first entry decides: it has read all inputs before that.
    """
    end = next(iter(await reads.wakes(source, entry.seq - 1, limit=1)), None)
    return (first if end is None or end.wake_id != entry.wake_id else end.read + 1) > interrupt
