"""Reading entries of a journal: before and after a number, around an anchor, by kind, by wake, and the last entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

from affinity.conversation.events import (
    DefineOutcome,
    EventTypes,
    JournalEntry,
    JournalEvent,
    OutcomeUpdated,
    check_kind,
    kind_of,
)
from affinity.conversation.journal import Entry, JournalLineage, JournalPage, JournalQuery, JournalWake
from affinity.errors import InvalidInput, UnknownConversation, UnknownEntry
from affinity.limits import MAX_PAGE, check_id, check_limit

Read: TypeAlias = Callable[[JournalQuery], Awaitable[JournalPage | None]]
ReadWakes: TypeAlias = Callable[[str, int], Awaitable[Sequence[JournalWake]]]


class LineageReads(Protocol):
    """Reads of journals."""

    def read(self, query: JournalQuery, /) -> Awaitable[JournalPage | None]:
        """Return a page of a journal."""
        ...

    def held_epochs(self, session_ids: Collection[str], /) -> Awaitable[Mapping[str, int]]:
        """Return the epochs of the sessions, among these, that a worker holds."""
        ...

    def lineage(self, session_id: str, /) -> Awaitable[Sequence[JournalLineage]]:
        """Return a journal and its ancestors."""
        ...

    def wakes(
        self, session_id: str, /, after: int = 0, *, newest_first: bool = False, limit: int = MAX_PAGE
    ) -> Awaitable[Sequence[JournalWake]]:
        """Return the ended attempts of wakes of a journal."""
        ...


DEFAULT_ENTRIES: Final = 100

_LAST_SEQ: Final = 2**63 - 2


Kinds: TypeAlias = str | type[JournalEvent] | Collection[str | type[JournalEvent]]
"""A kind or a class of events, or several; empty: all."""


def kinds_of(kinds: Kinds) -> Collection[str]:
    """Return the kinds that these kinds and classes of events stand for.

    Raises:
        InvalidInput: a value is neither.
    """
    several = [kinds] if isinstance(kinds, str | type) else kinds
    return [check_kind(kind) if isinstance(kind, str) else kind_of(kind) for kind in several]


def check_seq(value: object) -> int:
    """Return ``value`` if it may be the number of an entry, or 0.

    Raises:
        InvalidInput: it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LAST_SEQ:
        raise InvalidInput(f"the number of an entry is an integer from 0 to {_LAST_SEQ}, not {value!r:.80}")
    return value


async def all_entries(read: Read, query: JournalQuery) -> AsyncIterator[Entry]:
    """Yield all entries that a query asks for, read page by page; nothing without a journal."""
    more = True
    while more:
        page = await read(query)
        if page is None:
            return
        for entry in page.entries:
            yield entry
            query = replace(query, before=entry.seq) if query.newest_first else replace(query, after=entry.seq)
        more = page.more


async def all_wakes(read: ReadWakes, session_id: str, after: int = 0) -> AsyncIterator[JournalWake]:
    """Yield all ended attempts of wakes whose last entry is behind ``after``, read page by page."""
    while page := await read(session_id, after):
        for wake in page:
            yield wake
        after = page[-1].seq


class EntryReader:
    """Reads the entries of one conversation: a base of its handle and of its wakes."""

    def __init__(self, read: Read, types: EventTypes, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self._read_journal, self._types = read, types

    async def history(
        self,
        *,
        after: int | str | None = None,
        before: int | str | None = None,
        around: int | str | None = None,
        kinds: Kinds = (),
        wake: str | None = None,
        pending: bool = False,
        last: int | None = None,
        limit: int = DEFAULT_ENTRIES,
    ) -> Sequence[JournalEntry]:
        """Return entries as committed, oldest first; all conditions hold. The number of the last one, as ``after``,
        gives the next page.

        An anchor (``after``, ``before``, ``around``) is the number of an entry, or an event id.

        Args:
            after: entries behind this anchor.
            before: entries before this anchor; without ``after`` the last ``limit`` of them.
            around: this entry, with as many entries before it as behind it.
            kinds: of these kinds, or classes of events; empty: all.
            wake: id of the wake that wrote them.
            pending: inputs that no wake has processed.
            last: this number of the newest entries.
            limit: entries at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownConversation: no conversation has this id.
            UnknownEntry: an anchor that is not in the journal.
            InvalidInput: contradictory conditions, a number out of range, or a malformed id or kind.
        """
        if sum(value is not None for value in (after, before, around, last)) > 1 and (last or around) is not None:
            raise InvalidInput("around and last exclude each other, after and before")
        most, name = (limit, "limit") if last is None else (last, "last")
        check_limit(most, name=name)
        query = JournalQuery(
            session_id=self.conversation_id,
            kinds=kinds_of(kinds),
            wake_id=None if wake is None else check_id(wake, "wake"),
            pending=pending,
            limit=most,
        )
        if around is not None:
            return await self._around(query, await self._anchor(around))
        low = 0 if after is None else await self._anchor(after, bound=True)
        high = None if before is None else await self._anchor(before, bound=True)
        newest = last is not None or (before is not None and after is None)
        return await self._entries(replace(query, after=low, before=high, newest_first=newest))

    async def outcome(self) -> OutcomeUpdated | None:
        """Return the goal of the conversation, as `DefineOutcome` or the agent has defined it last; None: it has none.

        Raises:
            UnknownConversation: no conversation has this id.
        """
        for entry in await self.history(kinds=[DefineOutcome, OutcomeUpdated], last=1):
            if isinstance(entry.event, DefineOutcome):
                return OutcomeUpdated(entry.event.outcome, entry.event.criteria)
            if isinstance(entry.event, OutcomeUpdated):
                return entry.event
        return None

    async def trace(self, wake_id: str) -> Sequence[JournalEntry]:
        """Return all entries of a wake, with its failed attempts: spans with their times, and the entries that it
        appended.

        Raises:
            UnknownConversation: no conversation has this id.
            UnknownEntry: the conversation does not have this wake.
        """
        query = JournalQuery(session_id=self.conversation_id, wake_id=check_id(wake_id, "wake"), limit=MAX_PAGE)
        entries = [self._types.read(entry) async for entry in all_entries(self._page, query)]
        if not entries:
            raise UnknownEntry(self.conversation_id, f"it has no wake {wake_id!r}")
        return entries

    async def _around(self, query: JournalQuery, anchor: int) -> list[JournalEntry]:
        half = (query.limit + 1) // 2
        upto = await self._entries(replace(query, before=anchor + 1, newest_first=True, limit=half))
        if query.limit == half:
            return upto
        return upto + await self._entries(replace(query, after=anchor, limit=query.limit - half))

    async def _anchor(self, anchor: int | str, *, bound: bool = False) -> int:
        """Return the number of an anchor; a ``bound`` may be any number."""
        where = JournalQuery(session_id=self.conversation_id, limit=1)
        if isinstance(anchor, str):
            where = replace(where, event_id=check_id(anchor, "event id"))
        elif bound:
            return check_seq(anchor)
        else:
            where = replace(where, after=check_seq(anchor) - 1, before=anchor + 1)
        found = await self._entries(where)
        if not found:
            raise UnknownEntry(self.conversation_id, f"its journal has no entry {anchor!r}")
        return found[0].seq

    async def _entries(self, query: JournalQuery) -> list[JournalEntry]:
        page = await self._page(query)
        found = [self._types.read(entry) for entry in page.entries]
        return found[::-1] if query.newest_first else found

    async def _page(self, query: JournalQuery) -> JournalPage:
        while True:
            page = await self._read_journal(query)
            if page is None:
                raise UnknownConversation(self.conversation_id, "there is none")
            if page.entries or not page.more:
                return page
            # Pages that were read with it have taken all the bytes of the call.
