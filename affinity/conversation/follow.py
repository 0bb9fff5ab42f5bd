"""The events of a conversation as they come: entries of its journal, and what is streamed until they are there.

A feed reads pages from its position on. It waits for changes with all other feeds of the client
(`affinity.client.changes`), and shares its reads with them. Numbers of entries have no gaps and follow the order of
commit, so that a feed which has read up to a number misses nothing by reading on from it. Of a stream it remembers the
attempt and the number of the last part. A page shows entries and parts in one snapshot: parts that are gone were
replaced by entries that the page shows, or retracted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from pydantic_core import from_json

from affinity.client.journals import Journals
from affinity.conversation.events import EventTypes, JournalEntry
from affinity.conversation.stream import Retracted, Streamed
from affinity.conversation.trace import WAKE_SPAN
from affinity.errors import EntriesRemoved, InvalidId, InvalidInput, UnknownConversation, UnknownEntry
from affinity.journal import Entry, JournalPage, JournalQuery, StreamCursor
from affinity.limits import MAX_PAGE, check_id
from affinity.provider.contract import FINISHED
from affinity.records import frozen

SPAN_COMPLETED: Final = "span.completed"
FeedItem: TypeAlias = JournalEntry | Streamed | Retracted
"""What a feed gives: an entry, or provisional output, or the notice that such output is void."""

NO_STREAM: Final = StreamCursor()


@frozen()
class FeedPosition:
    """Up to where a feed has read: as text, ``17``, or within a stream ``17.<attempt>.<number>.<wake>``."""

    seq: int = 0
    stream: StreamCursor = NO_STREAM

    def __str__(self) -> str:
        at = self.stream
        return f"{self.seq}.{at.attempt}.{at.number}.{at.wake_id}" if at.wake_id else str(self.seq)


def read_position(value: int | str) -> FeedPosition:
    """A position from a number, or from its text.

    Raises:
        InvalidInput: it is neither.
    """
    seq, *rest = str(value).split(".", 3)
    try:
        if not rest:
            return FeedPosition(_natural(seq))
        attempt, number, wake_id = rest
        at = StreamCursor(wake_id=check_id(wake_id, "wake"), attempt=_natural(attempt), number=_natural(number))
        return FeedPosition(_natural(seq), at)
    except (ValueError, InvalidId):
        raise InvalidInput(f"{value!r:.80} is no position of a feed: give a number, or `EventFeed.position`") from None


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise ValueError(text)
    return int(text)


def fields_of(entry: Entry) -> dict[str, Any]:
    """The fields of its event; none if it cannot be read."""
    try:
        found = from_json(entry.payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class PageReader:
    """Turns pages into items. It does no I/O.

    Args:
        types: of the events.
        position: from which on.
        kinds: of the entries that are wanted; empty: all.
        stream: whether provisional output is wanted.
    """

    def __init__(self, types: EventTypes, position: FeedPosition, kinds: Collection[str], *, stream: bool) -> None:
        self.position = position if stream else FeedPosition(position.seq)
        """After the item that was given last."""
        self._types = types
        self._kinds = frozenset(kinds)
        self._stream = stream

    def query(self, session_id: str) -> JournalQuery:
        """For the next page. The ends of wakes are always read: they show whether parts were replaced."""
        return JournalQuery(
            session_id=session_id,
            after=self.position.seq,
            kinds=self._kinds | {SPAN_COMPLETED} if self._kinds and self._stream else self._kinds,
            limit=MAX_PAGE,
            stream=self.position.stream if self._stream else None,
        )

    def read(self, page: JournalPage) -> Iterator[FeedItem]:
        """The items of a page; `position` is after each of them while it is handled."""
        for entry in page.entries:
            at = self.position.stream
            if at.wake_id and at.wake_id == entry.wake_id:
                self.position = FeedPosition(self.position.seq)
                yield Retracted(wake_id=at.wake_id, attempt=at.attempt, replaced=_is_replaced(page, at.wake_id))
            self.position = FeedPosition(entry.seq, self.position.stream)
            if not self._kinds or entry.kind in self._kinds:
                yield self._types.read(entry)
        if not page.more:  # parts belong behind the last entry
            self.position = FeedPosition(max(self.position.seq, page.last_seq), self.position.stream)
            yield from self._read_stream(page)

    def _read_stream(self, page: JournalPage) -> Iterator[FeedItem]:
        seq, at, found = self.position.seq, self.position.stream, page.streaming
        if at.wake_id and (found is None or (found.wake_id, found.attempt) != (at.wake_id, at.attempt)):
            self.position = FeedPosition(seq)
            yield Retracted(wake_id=at.wake_id, attempt=at.attempt, replaced=False)
        for part in page.stream:
            at = StreamCursor(wake_id=part.wake_id, attempt=part.attempt, number=part.number)
            self.position = FeedPosition(seq, at)
            yield Streamed(
                wake_id=part.wake_id, attempt=part.attempt, number=part.number, value=from_json(part.payload)
            )


def _is_replaced(page: JournalPage, wake_id: str) -> bool:
    """Whether the entries of a wake are its result, not the trace of an attempt that has failed or was cancelled."""
    ends = [fields_of(each) for each in page.entries if each.kind == SPAN_COMPLETED and each.wake_id == wake_id]
    results = [span.get("result", "ok") for span in ends if span.get("span") == WAKE_SPAN]
    return results[-1:] in ([], ["ok"])  # none: it is on a later page


class EventFeed(AsyncIterator[FeedItem]):
    """Events of one conversation, in order; made by `Talk.events`. It can be left at any time, and another one goes on
    from its `position`.

    ::

        async for item in (feed := talk.events(after=last_event_id, follow=True)):
            yield {"id": feed.position, "event": item.kind, "data": item.to_json()}
    """

    def __init__(
        self,
        journals: Journals,
        conversation_id: str,
        reader: PageReader,
        *,
        follow: bool,
    ) -> None:
        """Called by `Talk.events`."""
        self._journals = journals
        self._conversation_id = conversation_id
        self._reader = reader
        self._follow = follow
        self._position = reader.position
        self._items = self._read()

    @property
    def position(self) -> str:
        """Up to where events were taken: ``after`` of a later feed, and the id of a server-sent event."""
        return str(self._position)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedItem:
        """The next one; waits for it if the feed follows.

        Raises:
            UnknownConversation: there is none, or it was deleted. A feed from 0 that follows waits for the first event
                of a conversation instead.
            UnknownEntry: the feed began behind the last entry: the conversation was deleted and begun again.
            EntriesRemoved: retention has removed entries behind `position`. A feed from 0 goes on with the first that
                is kept; it never raises this before it has given an entry.
            ProviderError: the database has failed for `calls.RETRY_SECONDS`. Another feed from `position` goes on.
        """
        item = await anext(self._items)
        self._position = self._reader.position
        return item

    async def aclose(self) -> None:
        """Free what the feed holds, if it is left before its end."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _read(self) -> AsyncGenerator[FeedItem, None]:
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                for item in self._reader.read(page):
                    yield item

    async def _pages(self) -> AsyncGenerator[JournalPage, None]:
        if not self._follow:
            page = self._check_first(await self._page())
            while page.more:
                yield page
                page = await self._page()
            yield page
            return
        async with self._journals.changes(self._conversation_id) as change:
            first: JournalPage | None = None
            while True:
                try:
                    page = await self._page()
                except UnknownConversation:
                    if first is not None or self._position.seq:
                        raise
                    await change.wait()  # for its first event
                    continue
                first = first or self._check_first(page)
                if page.journal_id != first.journal_id:
                    raise unknown_conversation(self._conversation_id)
                yield page
                if page.more:
                    continue
                if has_ended(page):
                    return
                await change.wait()

    def _check_first(self, page: JournalPage) -> JournalPage:
        """Numbers only grow while a conversation is there."""
        if page.last_seq < (seq := self._position.seq):
            message = f"its journal ends with entry {page.last_seq}, before position {seq}, which is of a deleted one"
            raise UnknownEntry(self._conversation_id, message)
        return page

    async def _page(self) -> JournalPage:
        page = await self._journals.read(self._reader.query(self._conversation_id))
        if page is None:
            raise unknown_conversation(self._conversation_id)
        after = self._reader.position.seq
        if after and page.first_seq > after + 1:
            raise entries_removed(self._conversation_id, after, page.first_seq)
        return page


def has_ended(page: JournalPage) -> bool:
    """Whether nothing is written behind the page: the instance has ended, or was deleted after the conversation was
    terminated. An instance that was deleted before is created again by the next event.
    """
    return page.closed if page.instance_status is None else page.instance_status in FINISHED


def entries_removed(conversation_id: str, after: int, first_seq: int) -> EntriesRemoved:
    """The error for a reader that retention has overtaken."""
    gone = f"entry {first_seq - 1}" if first_seq == after + 2 else f"entries {after + 1} to {first_seq - 1}"
    return EntriesRemoved(conversation_id, f"retention has removed {gone}; read from 0 what is kept", first_seq)


def unknown_conversation(conversation_id: str) -> UnknownConversation:
    """The error for an id that no conversation has."""
    return UnknownConversation(conversation_id, "there is none")
