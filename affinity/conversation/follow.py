"""The events of a conversation as they come: entries of its journal, and streamed parts until the entries are there.

A feed reads pages from its position on. It waits for changes with all other feeds of the client
(`affinity.client.changes`), and shares its reads with them. Numbers of entries have no gaps and follow the order of
commit, so that a feed which has read up to a number misses nothing by reading on from it. Of a stream it remembers the
attempt and the number of the last part. A page shows entries and parts in one snapshot: parts that are gone were
replaced by entries that the page shows, or retracted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, Final, TypeAlias

from affinity import errors
from affinity.async_block import ClosedBlock
from affinity.client.changes import ChangeScope
from affinity.conversation.events import (
    ConversationIdle,
    ConversationStatusChanged,
    EventTypes,
    JournalEntry,
    SpanCompleted,
    SpanStarted,
    kind_of,
)
from affinity.conversation.journal import Entry, JournalPage, JournalQuery, StreamCursor
from affinity.conversation.journals import Journals
from affinity.conversation.stream import Retracted, Streamed, ToolEnded, ToolStarted, read_part
from affinity.errors import EntriesRemoved, NotSerializable, UnknownConversation
from affinity.limits import MAX_PAGE, check_id
from affinity.paging import read_with_async_for
from affinity.provider.contract import FINISHED
from affinity.records import frozen, parse_stored

ATTEMPT_ENDS: Final = frozenset({kind_of(ConversationIdle), kind_of(ConversationStatusChanged)})
"""Kinds of the last entry of an attempt of a wake."""

_SPANS: Final = frozenset({kind_of(SpanStarted), kind_of(SpanCompleted)})

FeedItem: TypeAlias = JournalEntry | Streamed | ToolStarted | ToolEnded | Retracted
"""An item of a feed: an entry, or provisional output, or the notice that such output is void."""

NO_STREAM: Final = StreamCursor()


@frozen()
class JournalIdentity:
    """The journal that numbers of entries belong to: as text, ``<journal id>-<timeline>``."""

    journal_id: int
    timeline: str  # see `ProviderConnection.timeline`

    def __str__(self) -> str:
        return f"{self.journal_id:x}-{self.timeline}"


@frozen()
class FeedPosition:
    """The position up to which a feed has read: as text, ``17@<journal>``, or within a stream
    ``17@<journal>.<attempt>.<number>.<wake>``. Without the journal it is a plain number.
    """

    seq: int = 0
    stream: StreamCursor = NO_STREAM
    journal: JournalIdentity | None = None

    def __str__(self) -> str:
        at = self.stream
        text = str(self.seq) if self.journal is None else f"{self.seq}@{self.journal}"
        return f"{text}.{at.attempt}.{at.number}.{at.wake_id}" if at.wake_id else text


class EntryNumber(int):
    """The number of an entry that was sent, with the journal that it belongs to.

    Another conversation, or another timeline of the database, can have another entry under this number:
    `ConversationHandle.reply` compares the journal.
    """

    journal: JournalIdentity | None = None

    @classmethod
    def of(cls, seq: int, journal: JournalIdentity) -> EntryNumber:
        """Return the number of an entry of that journal."""
        number = cls(seq)
        number.journal = journal
        return number


def read_position(value: int | str) -> FeedPosition:
    """Return a position from a number, or from its text.

    Raises:
        InvalidInput: it is neither.
    """
    number, *rest = str(value).split(".", 3)
    seq, _, identity = number.partition("@")
    try:
        journal = getattr(value, "journal", None) if not identity else _identity(identity)
        if not rest:
            return FeedPosition(_natural(seq), journal=journal)
        attempt, part, wake_id = rest
        at = StreamCursor(wake_id=check_id(wake_id, "wake"), attempt=_natural(attempt), number=_natural(part))
        return FeedPosition(_natural(seq), at, journal)
    except (ValueError, errors.InvalidId):
        raise errors.InvalidInput(
            f"{value!r:.80} is no position of a feed: give a number, or `EventFeed.position`"
        ) from None


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise ValueError(text)
    return int(text)


def _identity(text: str) -> JournalIdentity:
    journal_id, _, timeline = text.partition("-")
    if not timeline:
        raise ValueError(text)
    return JournalIdentity(int(journal_id, 16), timeline)


def fields_of(entry: Entry) -> dict[str, Any]:
    """Return the fields of its event; empty if it is no JSON.

    Raises:
        NotSerializable: it is a `PayloadUnreadable`.
    """
    try:
        found = parse_stored(entry.payload)
    except NotSerializable:
        raise
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class PageReader:
    """Turns pages into items.

    Args:
        types: of the events.
        position: from which on.
        kinds: of the entries that are wanted; empty: all.
        stream: whether provisional output is wanted.
    """

    def __init__(self, types: EventTypes, position: FeedPosition, kinds: Collection[str], *, stream: bool) -> None:
        self.position: FeedPosition = position if stream else FeedPosition(position.seq)
        """After the item that was given last."""
        self._types = types
        self._kinds = frozenset(kinds)
        self._stream = stream

    def query(self, session_id: str) -> JournalQuery:
        """Return the query for the next page. It reads the ends of wakes always: they show if parts were replaced."""
        return JournalQuery(
            session_id=session_id,
            after=self.position.seq,
            kinds=self._kinds | ATTEMPT_ENDS if self._kinds and self._stream else self._kinds,
            limit=MAX_PAGE,
            stream=self.position.stream if self._stream else None,
        )

    async def prepare(self, page: JournalPage, journals: Journals) -> None:
        """Read the data that the items of the page need besides it."""

    def is_last(self, page: JournalPage) -> bool:
        """Return whether the page has the last entries of the journal, for now."""
        return has_ended(page)

    def read(self, page: JournalPage) -> Iterator[FeedItem]:
        """Yield the items of a page; `position` is after each of them while it is handled."""
        for entry in page.entries:
            at = self.position.stream
            if at.wake_id and at.wake_id == entry.wake_id:
                self.position = FeedPosition(self.position.seq)
                yield Retracted(wake_id=at.wake_id, attempt=at.attempt, replaced=_is_replaced(page, at.wake_id))
            is_wanted = not self._kinds or entry.kind in self._kinds
            item = self._types.read(entry) if is_wanted else None  # if this raises, the position is before it
            self.position = FeedPosition(entry.seq, self.position.stream)
            if item is not None:
                yield item
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
            item = read_part(part)
            self.position = FeedPosition(seq, at)
            yield item


def _is_replaced(page: JournalPage, wake_id: str) -> bool:
    """Return whether the entries of a wake are its result, not the trace of a failed or cancelled attempt."""
    own = [entry for entry in page.entries if entry.wake_id == wake_id]
    if ends := [entry for entry in own if entry.kind in ATTEMPT_ENDS]:
        return bool(fields_of(ends[-1]).get("stop_reason", "failed") != "failed")
    return page.more or any(entry.kind not in _SPANS for entry in own)


@read_with_async_for
class EventFeed(ClosedBlock, AsyncIterator[FeedItem]):
    """Events of one conversation, in order: see `ConversationHandle.events`. Only one task at a time may use it.

    It can be left at any time; another feed can go on from its `position`.

    ::

        async for item in (feed := talk.events(after=last_event_id, follow=True)):
            yield {"id": feed.position, "event": item.kind, "data": item.to_json()}

    The wait for an item may be cancelled, as by a timeout, and begun again: no item is lost or given twice.

    ::

        async with talk.events(follow=True) as feed:
            while True:
                try:
                    with anyio.fail_after(15):
                        item = await anext(feed)
                except TimeoutError:
                    yield HEARTBEAT
    """

    def __init__(
        self,
        journals: Journals,
        conversation_id: str,
        reader: PageReader,
        *,
        follow: bool,
        journal: JournalIdentity | None = None,
        timeline: str = "",
    ) -> None:
        """Called by `ConversationHandle.events`. ``journal``, ``timeline``: of the reader's position, if known."""
        self._journals = journals
        self._conversation_id = conversation_id
        self._reader = reader
        self._follow = follow
        self._position = reader.position
        self._items: Iterator[FeedItem] = iter(())
        self._page: JournalPage | None = None  # of the items
        self._journal_id: int | None = None
        self._changes: ChangeScope | None = None  # None: it does not follow, or does not wait
        self._is_reading = False
        self._has_ended = False
        self._journal = journal
        self._timeline = journal.timeline if journal is not None else timeline

    @property
    def position(self) -> str:
        """The position up to which events were taken: ``after`` of a later feed, and the id of a server-sent event."""
        return str(FeedPosition(self._position.seq, self._position.stream, self._journal))

    @property
    def journal_id(self) -> int | None:
        """The journal that is read; None: it is not known yet."""
        return self._journal_id or (None if self._journal is None else self._journal.journal_id)

    async def __anext__(self) -> FeedItem:
        """Return the next item; wait for it if the feed follows. After a cancelled wait or an error, the feed reads on
        from `position`.

        Raises:
            UnknownConversation: no conversation has this id, or it was deleted. A feed from 0 that follows waits for
                the first event of a conversation instead.
            TimelineChanged: the database may have lost the entry of `position`: read on from 0.
            UnknownEntry: the position is of a conversation that was deleted, and begun again.
            EntriesRemoved: retention has removed entries behind `position`. A feed from 0 goes on with the first that
                is kept; it never raises this before it has given an entry.
            ProviderError: the database has failed for `affinity.client.calls.RETRY_SECONDS`.
            ClientError: another task waits for an item of this feed.
        """
        if self._is_reading:
            raise errors.ClientError("another task waits for an item of this feed: use a feed for each task")
        self._is_reading = True
        try:
            item = next(self._items, None)
            while item is None and not self._has_ended:
                self._has_ended = not await self._read_on()
                item = next(self._items, None)
        except Exception:
            self._leave()  # the rest of the page is read again
            raise
        finally:
            self._is_reading = False
        if item is None:
            self._leave()
            raise StopAsyncIteration
        self._position = self._reader.position
        return item

    async def aclose(self) -> None:
        """Close the feed, if it is left before its end."""
        self._has_ended = True
        self._leave()

    def _leave(self) -> None:
        self._page, self._items = None, iter(())
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.leave()

    def __del__(self) -> None:
        if self._changes is not None:  # it was left without `aclose`, as by a ``break``
            self._changes.leave_soon()

    async def _read_on(self) -> bool:
        """Read the next page, and wait for it if need be; False at the end. A cancelled wait changes nothing."""
        if self._follow and self._changes is None:
            changes = self._journals.changes(self._conversation_id)
            await changes.__aenter__()
            self._changes = changes
        last = self._page
        if last is not None and not last.more:
            if self._changes is None or self._reader.is_last(last):
                return False
            await self._changes.change.wait()
        self._page = None
        try:
            page = await self._read_page()
        except UnknownConversation:
            if self._changes is None or self._journal_id is not None or self._position.seq:
                raise
            await self._changes.change.wait()  # for its first event
            return True
        if self._journal_id is None:
            await self._check_first(page)
        elif page.journal_id != self._journal_id:
            raise unknown_conversation(self._conversation_id)
        await self._reader.prepare(page, self._journals)
        self._journal_id = page.journal_id
        self._page, self._items = page, self._reader.read(page)
        return True

    async def _check_first(self, page: JournalPage) -> None:
        """Raise `UnknownEntry` if the position is of another conversation, or of a deleted one: numbers of one journal
        only grow.
        """
        seq, given = self._position.seq, self._journal
        if given is not None and given.journal_id != page.journal_id:
            source = await source_of(self._journals, self._conversation_id, given.journal_id)
            whose = source or "another conversation: perhaps of one that had this id, and was deleted"
            raise errors.UnknownEntry(self._conversation_id, f"position {seq} is of {whose}")
        if page.last_seq < seq:
            message = f"its journal ends with entry {page.last_seq}, before position {seq}, which is of a deleted one"
            raise errors.UnknownEntry(self._conversation_id, message)
        self._journal = JournalIdentity(page.journal_id, self._timeline)

    async def _read_page(self) -> JournalPage:
        self._timeline = self._timeline or self._journals.timeline
        page = await self._journals.read(self._reader.query(self._conversation_id))
        check_timeline(self._journals, self._conversation_id, self._timeline)
        if page is None:
            raise unknown_conversation(self._conversation_id)
        after = self._reader.position.seq
        if after and page.first_seq > after + 1:
            raise entries_removed(self._conversation_id, after, page.first_seq)
        return page


def has_ended(page: JournalPage) -> bool:
    """Return whether the page is the last: the instance has ended, or was deleted after the conversation had ended.

    An instance that was deleted before is created again by the next event.
    """
    return page.closed if page.instance_status is None else page.instance_status in FINISHED


def check_timeline(journals: Journals, conversation_id: str, timeline: str) -> None:
    """Raise unless the last read was of this timeline.

    Raises:
        TimelineChanged: it was of a later one.
    """
    if journals.timeline != timeline:
        raise errors.TimelineChanged(
            conversation_id,
            "the database is another one than before, or may have lost entries (a failover, a restored backup): "
            "read the conversation from 0, and repeat what was sent under its event id",
        )


def entries_removed(conversation_id: str, after: int, first_seq: int) -> EntriesRemoved:
    """Return the error for a reader that retention has overtaken."""
    gone = f"entry {first_seq - 1}" if first_seq == after + 2 else f"entries {after + 1} to {first_seq - 1}"
    return EntriesRemoved(conversation_id, f"retention has removed {gone}; read the kept entries from 0", first_seq)


async def source_of(journals: Journals, conversation_id: str, journal_id: int) -> str | None:
    """Return words for the conversation with this journal, if the other conversation was made from it."""
    for ancestor in (await journals.lineage(conversation_id))[1:]:
        if ancestor.journal_id == journal_id:
            name = "which was deleted since" if ancestor.session_id is None else f"{ancestor.session_id!r}: ask there"
            return f"the conversation that this one was made from, {name}"
    return None


def unknown_conversation(conversation_id: str) -> UnknownConversation:
    """Return the error for an id that no conversation has."""
    return UnknownConversation(conversation_id, "there is none")
