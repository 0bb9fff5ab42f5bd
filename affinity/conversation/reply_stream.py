"""The reply to an input as it comes: what the wakes that have read the input stream and commit, then the reply.

An attempt of a wake says up to which number it has read the inputs: in its first entry, and in the first part of its
stream, before it has committed anything. So a reader knows which parts belong to its input.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Self, TypeAlias

import anyio

from affinity.async_block import ClosedBlock
from affinity.conversation.events import ConversationIdle, EventTypes, JournalEntry, SpanCompleted, SpanStarted
from affinity.conversation.follow import EventFeed, FeedItem, FeedPosition, PageReader
from affinity.conversation.reply import Reply
from affinity.conversation.stream import Retracted, inputs_read
from affinity.conversation.wake_parts import waiting_for
from affinity.journal import JournalPage

_UNREAD: Final = -1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing has come for as long as ``heartbeat`` of `ConversationHandle.stream_reply`: the wait goes on."""

    kind: ClassVar[str] = "heartbeat"

    def to_json(self) -> str:
        """As one JSON object, on one line."""
        return f'{{"kind":"{self.kind}"}}'


ReplyItem: TypeAlias = FeedItem | Heartbeat | Reply
"""An item of a `ReplyStream`. The `Reply` is the last one."""


class ReplyPageReader(PageReader):
    """Turns pages into the items of the wakes that have read one input, up to the wake that has processed it.

    Args:
        types: of the events.
        position: from which on. A stream that it is within is of such a wake.
        seq: number of the input.
    """

    def __init__(self, types: EventTypes, position: FeedPosition, seq: int) -> None:
        super().__init__(types, position, (), stream=True)
        self._seq = seq
        self._read = dict[str, int]()  # by wake: up to which number its last attempt has read the inputs
        self._processed_by: str | None = None
        self._has_failed = False  # the last entry so far says so
        self._is_streaming = False  # parts were given, and are not void
        if position.stream.wake_id:
            self._read[position.stream.wake_id] = seq
            self._is_streaming = True

    def is_last(self, page: JournalPage) -> bool:
        """Whether the reply is there, or no wake is to try again."""
        return page.processed >= self._seq or self._has_failed or super().is_last(page)

    def read(self, page: JournalPage) -> Iterator[FeedItem]:
        """The items of a page that belong to the input."""
        for item in super().read(page):
            match item:
                case JournalEntry():
                    self.note(item)
                    is_given = self._concerns(item.wake_id)
                case Retracted():
                    is_given, self._is_streaming = self._is_streaming, False
                case _:
                    is_given = self._concerns(item.wake_id)
                    self._is_streaming |= is_given
            if is_given:
                yield item

    def note(self, entry: JournalEntry) -> None:
        """Take what an entry says of its wake."""
        wake_id, event = entry.wake_id, entry.event
        if wake_id is not None and isinstance(event, SpanStarted) and event.read is not None:
            self._read[wake_id] = event.read
        is_ours = self._concerns(wake_id)
        self._has_failed = is_ours and isinstance(event, ConversationIdle) and event.stop_reason == "failed"
        if is_ours and isinstance(event, SpanCompleted) and (event.processed or 0) >= self._seq:
            self._processed_by = wake_id

    def _concerns(self, wake_id: str | None) -> bool:
        if wake_id is None or self._processed_by not in {None, wake_id}:
            return False
        return self._read.get(wake_id, _UNREAD) >= self._seq

    def _read_stream(self, page: JournalPage) -> Iterator[FeedItem]:
        for part in page.stream:
            if (read := inputs_read(part)) is not None:
                self._read[part.wake_id] = read
        yield from super()._read_stream(page)


class ReplyStream(ClosedBlock, AsyncIterator[ReplyItem]):
    """What belongs to one input of a conversation, in order: see `ConversationHandle.stream_reply`. For one task at a
    time.

    The wait for an item may be cancelled, as by a timeout, and begun again: no item is lost or given twice. It can be
    left at any time; another one can go on from its `position`.
    """

    def __init__(
        self,
        conversation_id: str,
        begin: Callable[[], Awaitable[tuple[int, EventFeed]]],
        reply: Callable[[int], Awaitable[Reply]],
        check: Callable[[], Awaitable[None]],
        *,
        position: str,
        heartbeat: float | None,
    ) -> None:
        """Called by `ConversationHandle.stream_reply`.

        Args:
            conversation_id: of the conversation.
            begin: sends the event, and gives its number, and the feed of its items, which ends when the reply can be
                read. It may be repeated.
            reply: waits for the reply to an input.
            check: raises unless the caller may wait for a wake of the conversation.
            position: before the first item.
            heartbeat: seconds.
        """
        self._conversation_id = conversation_id
        self._begin, self._reply, self._check = begin, reply, check
        self._first_position = position
        self._heartbeat = heartbeat
        self._seq = 0
        self._feed: EventFeed | None = None  # None: the event was not sent
        self._has_ended = False

    @property
    def position(self) -> str:
        """Up to where items were taken: ``after`` of a later stream, and the id of a server-sent event."""
        return self._first_position if self._feed is None else self._feed.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReplyItem:
        """The next one; the first call sends the event. After a cancelled wait it goes on where it was.

        Raises:
            ClientError: what `ConversationHandle.stream_reply` names, and what `EventFeed.__anext__` raises.
        """
        with anyio.move_on_after(self._heartbeat):
            return await self._next()
        return Heartbeat()

    async def _next(self) -> ReplyItem:
        if self._has_ended:
            raise StopAsyncIteration
        if self._feed is None:
            await self._check()
            self._seq, self._feed = await self._begin()
        with waiting_for(self._conversation_id, self._seq):
            await self._check()
            async for item in self._feed:
                return item
        reply = await self._reply(self._seq)
        self._has_ended = True
        return reply

    async def aclose(self) -> None:
        """Free what the stream holds, if it is left before its end."""
        self._has_ended = True
        if self._feed is not None:
            await self._feed.aclose()
