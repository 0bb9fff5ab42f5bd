"""Appends whose event id is in the journal: the same event sent again, or another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from pydantic_core import from_json

from affinity.conversation import journal as j

ReadJournal: TypeAlias = Callable[[Sequence[j.JournalQuery]], Awaitable[Sequence[j.JournalPage | None]]]


async def refuse_other_events(
    read: ReadJournal, appends: Sequence[j.JournalAppend], done: Sequence[j.Appended]
) -> list[j.Appended]:
    """Return the outcomes of appends, where ``repeated`` becomes ``other_event`` if the entry is another event. Reads
    these entries, and nothing without a repeated append.
    """
    found = [*done]
    left = {n for n, appended in enumerate(done) if appended.outcome == "repeated"}
    while left:
        asked = sorted(left)
        queries = [
            j.JournalQuery(session_id=append.session_id, event_id=append.entry.event_id, limit=1)
            for append in (appends[n] for n in asked)
            if append.entry is not None
        ]
        for n, page in zip(asked, await read(queries), strict=True):
            if page is not None and not page.entries and page.more:
                continue  # the pages before it have taken all the bytes of the call
            left.remove(n)
            if page is None or page.journal_id != found[n].journal_id:
                continue  # it has been deleted
            new = appends[n].entry
            if any(new is not None and not _is_same(entry, new) for entry in page.entries):
                found[n] = found[n]._replace(outcome="other_event")
    return found


def _is_same(entry: j.Entry, new: j.NewEntry) -> bool:
    if entry.kind != new.kind:
        return False
    return entry.payload == new.payload or _content(entry.payload) == _content(new.payload)


def _content(payload: str) -> Any:
    found = from_json(payload)
    return {name: value for name, value in found.items() if name != j.META_FIELD} if isinstance(found, dict) else found
