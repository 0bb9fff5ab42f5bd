"""Reading entries of a journal: before and after a number, around an anchor, by kind, by wake, the last ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final, TypeAlias

from affinity.conversation.events import EventTypes, JournalEntry
from affinity.errors import InvalidInput, UnknownConversation, UnknownEntry
from affinity.journal import JournalPage, JournalQuery
from affinity.limits import MAX_PAGE

Read: TypeAlias = Callable[[JournalQuery], Awaitable[JournalPage | None]]

DEFAULT_ENTRIES: Final = 100


class EntryReader:
    """Reads the entries of one conversation."""

    def __init__(self, read: Read, types: EventTypes, conversation_id: str) -> None:
        self._read, self._types, self._id = read, types, conversation_id

    async def entries(
        self,
        *,
        after: int | str | None = None,
        before: int | str | None = None,
        around: int | str | None = None,
        kinds: Collection[str] = (),
        wake: str | None = None,
        pending: bool = False,
        last: int | None = None,
        limit: int = DEFAULT_ENTRIES,
    ) -> list[JournalEntry]:
        """Entries, oldest first; all conditions hold.

        Args:
            after: an anchor; those behind it.
            before: an anchor; those before it, and of those the last ``limit``.
            around: an anchor; it, with as many before it as behind it.
            kinds: of their events.
            wake: id of the wake that wrote them.
            pending: inputs that no wake has processed.
            last: so many of the newest ones.
            limit: entries at most, from 1 to `limits.MAX_PAGE`.

        An anchor is the number of an entry, or an event id.

        Raises:
            UnknownConversation: there is none.
            UnknownEntry: an anchor that is not in the journal.
            InvalidInput: contradictory conditions, or a number out of range.
        """
        if sum(each is not None for each in (after, before, around, last)) > 1 and (last or around) is not None:
            raise InvalidInput("around and last exclude each other, after and before")
        most = limit if last is None else last
        if not 1 <= most <= MAX_PAGE:
            raise InvalidInput(f"a page has from 1 to {MAX_PAGE} entries, not {most!r}")
        query = JournalQuery(session_id=self._id, kinds=kinds, wake_id=wake, pending=pending, limit=most)
        if around is not None:
            return await self._around(query, await self._anchor(around))
        low = 0 if after is None else await self._anchor(after, bound=True)
        high = None if before is None else await self._anchor(before, bound=True)
        newest = last is not None or (before is not None and after is None)
        return await self._page(replace(query, after=low, before=high, newest_first=newest))

    async def _around(self, query: JournalQuery, anchor: int) -> list[JournalEntry]:
        half = (query.limit + 1) // 2
        upto = await self._page(replace(query, before=anchor + 1, newest_first=True, limit=half))
        if query.limit == half:
            return upto
        return upto + await self._page(replace(query, after=anchor, limit=query.limit - half))

    async def _anchor(self, anchor: int | str, *, bound: bool = False) -> int:
        """The number of an anchor; as a ``bound`` any number will do."""
        if isinstance(anchor, int) and bound:
            return anchor
        where = JournalQuery(session_id=self._id, limit=1)
        if isinstance(anchor, str):
            where = replace(where, event_id=anchor)
        else:
            where = replace(where, after=anchor - 1, before=anchor + 1)
        found = await self._page(where)
        if not found:
            raise UnknownEntry(self._id, f"its journal has no entry {anchor!r}")
        return found[0].seq

    async def _page(self, query: JournalQuery) -> list[JournalEntry]:
        page = await self._read(query)
        if page is None:
            raise UnknownConversation(self._id, "there is none")
        found = [self._types.read(each) for each in page.entries]
        return found[::-1] if query.newest_first else found
