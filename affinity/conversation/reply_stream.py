"""The reply to an input as it comes: the output that the wakes which have read the input stream and commit, then the
reply.

An attempt of a wake says up to which number it has read the inputs: in the first part of its stream, in a step with its
first commit, and when it has ended (`JournalWake`). So a reader knows what belongs to its input.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import anyio

from affinity.async_block import ClosedBlock
from affinity.client.waits import NotedWait
from affinity.conversation.events import ConversationIdle, EventTypes, JournalEntry
from affinity.conversation.follow import EventFeed, FeedItem, FeedPosition, PageReader
from affinity.conversation.journal import Entry, JournalPage, JournalWake, StreamPart
from affinity.conversation.journals import Journals
from affinity.conversation.reply import Reply
from affinity.conversation.steps import PART
from affinity.conversation.stream import Retracted, inputs_read
from affinity.paging import read_with_async_for


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing has come for as long as ``heartbeat`` of `ConversationHandle.stream_reply`: the wait goes on."""

    kind: ClassVar[str] = "heartbeat"

    def to_json(self) -> str:
        """Return the item as one JSON object, on one line."""
        return f'{{"kind":"{self.kind}"}}'


ReplyItem: TypeAlias = FeedItem | Heartbeat | Reply
"""An item of a `ReplyStream`. The `Reply` is the last one."""


class ReplyPageReader(PageReader):
    """Turns pages into the items of the wakes that have read one input, up to the wake that has processed it.

    Args:
        types: of the events.
        position: where to begin. If it is within a stream, that is the stream of such a wake.
        conversation_id: of the conversation.
        seq: number of the input.
        has_failed: the last entry so far says that such a wake has failed for good.
    """

    def __init__(
        self, types: EventTypes, position: FeedPosition, conversation_id: str, seq: int, *, has_failed: bool
    ) -> None:
        super().__init__(types, position, (), stream=True)
        self._conversation_id, self._seq = conversation_id, seq
        self._ends: dict[int, JournalWake] = {}  # attempts of wakes, by their last entry
        self._running: set[str] = {position.stream.wake_id} - {""}  # running wakes that have read the input
        self._others: set[tuple[str, int]] = set()  # attempts that stream and have not read the input
        self._has_failed = has_failed
        self._is_streaming = bool(self._running)  # given parts that are not void yet

    def is_last(self, page: JournalPage) -> bool:
        """Return whether the reply is there, or no wake is to try again."""
        return page.processed >= self._seq or self._has_failed or super().is_last(page)

    async def prepare(self, page: JournalPage, journals: Journals) -> None:
        """Find out which wakes have read the input, where streams have not said it: by the ends of wakes, and by the
        steps that a running wake has committed.
        """
        if unknown := self._unknown(page):
            await self._read_ends(unknown, journals)
        running = {entry.wake_id for entry in self._unknown(page)}
        running |= {part.wake_id for part in page.stream if not self._is_known(part)}
        if running and page.processed < self._seq:
            work = await journals.pending(self._conversation_id)
            parts = [step for step in (work.steps if work else ()) if step.key == PART and step.wake_id in running]
            self._running |= {step.wake_id for step in parts if int(step.result or 0) >= self._seq}
            if unknown := self._unknown(page):  # it may have ended since
                await self._read_ends(unknown, journals)

    async def _read_ends(self, entries: Sequence[Entry], journals: Journals) -> None:
        self._ends |= {wake.seq: wake for wake in await journals.wakes(self._conversation_id, entries[0].seq - 1)}

    def _unknown(self, page: JournalPage) -> Sequence[Entry]:
        return [entry for entry in page.entries if entry.wake_id and self._has_read(entry.wake_id, entry.seq) is None]

    def _is_known(self, part: StreamPart) -> bool:
        known = part.wake_id in self._running or (part.wake_id, part.attempt) in self._others
        return known or inputs_read(part) is not None

    def read(self, page: JournalPage) -> Iterator[FeedItem]:
        """Yield the items of a page that belong to the input."""
        for item in super().read(page):
            match item:
                case JournalEntry():
                    is_given = item.wake_id is not None and bool(self._has_read(item.wake_id, item.seq))
                    event = item.event
                    self._has_failed = (
                        is_given and isinstance(event, ConversationIdle) and event.stop_reason == "failed"
                    )
                case Retracted():
                    is_given, self._is_streaming = self._is_streaming, False
                case _:
                    is_given = item.wake_id in self._running
                    self._is_streaming |= is_given
            if is_given:
                yield item

    def _has_read(self, wake_id: str, seq: int) -> bool | None:
        """Return whether an entry belongs to the input: its attempt of the wake had read the input, and no earlier wake
        had processed it. None: not known.
        """
        for end in self._ends.values():
            if end.wake_id == wake_id and end.seq >= seq:
                return end.base < self._seq <= end.read
        return True if wake_id in self._running else None

    def _read_stream(self, page: JournalPage) -> Iterator[FeedItem]:
        for part in page.stream:
            if (read := inputs_read(part)) is not None:
                self._running.discard(part.wake_id)
                if page.processed < self._seq <= read:
                    self._running.add(part.wake_id)
            if part.wake_id not in self._running:
                self._others.add((part.wake_id, part.attempt))
        yield from super()._read_stream(page)


@read_with_async_for
class ReplyStream(ClosedBlock, AsyncIterator[ReplyItem]):
    """The entries and streamed parts that belong to one input, in order: see `ConversationHandle.stream_reply`. For one
    task at a time.

    The wait for an item may be cancelled, as by a timeout, and begun again: no item is lost or given twice. It can be
    left at any time; another one can go on from its `position`.
    """

    def __init__(
        self,
        waiting: Callable[[int], AbstractContextManager[None]],
        begin: Callable[[], Awaitable[tuple[int, EventFeed]]],
        reply: Callable[[int], Awaitable[Reply]],
        check: Callable[[], Awaitable[None]],
        noted: Callable[[int, int], NotedWait],
        *,
        position: str,
        heartbeat: float | None,
    ) -> None:
        """Called by `ConversationHandle.stream_reply`.

        Args:
            waiting: notes in a block that the caller waits for the reply to an input.
            begin: sends the event, and gives its number, and the feed of its items, which ends when the reply can be
                read. It may be repeated.
            reply: waits for the reply to an input.
            check: raises unless the caller may wait for a wake of the conversation.
            noted: notes a wait for the reply to an input of a journal.
            position: before the first item.
            heartbeat: seconds.
        """
        self._waiting = waiting
        self._begin, self._reply, self._check, self._new_note = begin, reply, check, noted
        self._noted: NotedWait | None = None
        self._first_position = position
        self._heartbeat = heartbeat
        self._seq = 0
        self._feed: EventFeed | None = None  # None: the event was not sent
        self._has_ended = False

    @property
    def position(self) -> str:
        """The position up to which items were taken: ``after`` of a later stream, and the id of a server-sent event."""
        return self._first_position if self._feed is None else self._feed.position

    async def __anext__(self) -> ReplyItem:
        """Return the next item; the first call sends the event. After a cancelled wait it goes on where it was.

        Raises:
            ClientError: the errors of `ConversationHandle.stream_reply` and of `EventFeed.__anext__`.
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
        with self._waiting(self._seq):
            await self._check()
            feed = self._feed
            noted = self._noted = self._noted or self._new_note(self._seq, 0)
            noted.target_id = feed.journal_id
            item: FeedItem | None = await noted.over(lambda: anext(feed, None))
            if item is not None:
                return item
        await noted.end()
        reply = await self._reply(self._seq)
        self._has_ended = True
        return reply

    async def aclose(self) -> None:
        """Close the stream, if it is left before its end."""
        self._has_ended = True
        if self._noted is not None:
            await self._noted.end()
        if self._feed is not None:
            await self._feed.aclose()
