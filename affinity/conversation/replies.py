"""The calls with which clients wait for the events of a conversation, and for its replies."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final, Generic, Literal, TypeVar, Unpack

import anyio

from affinity import errors
from affinity.actions import action
from affinity.client.calls import check_timeout
from affinity.client.changes import Change
from affinity.client.waits import NotedWait
from affinity.conversation.events import JournalEvent
from affinity.conversation.follow import (
    EntryNumber,
    EventFeed,
    FeedPosition,
    PageReader,
    check_timeline,
    read_position,
    source_of,
)
from affinity.conversation.journal import Appended, Description, Entry, JournalQuery
from affinity.conversation.reading import Kinds, check_seq, kinds_of
from affinity.conversation.reply import Reply, check_awaited
from affinity.conversation.reply_stream import ReplyPageReader, ReplyStream
from affinity.conversation.sending import SendingCalls
from affinity.conversation.settling import settled_reply
from affinity.conversation.wake_parts import blocked_journals, waiting_for
from affinity.errors import WaitTimeout

M = TypeVar("M")

_REMEDY: Final = (
    "Use wake.revisit() to run again, send() without waiting, or wake.delegate() to give the work to another "
    "conversation"
)

REPLY_PAGE: Final = 100
"""Entries in one page that is read for a reply."""


class ReplyCalls(SendingCalls[M], Generic[M]):
    """Follows a conversation, and waits for replies."""

    def events(
        self,
        *,
        after: int | str = 0,
        follow: bool = False,
        kinds: Kinds = (),
        stream: bool = True,
    ) -> EventFeed:
        """Return a feed of the entries of the journal in order, with the streamed output of running wakes.

        Provisional output comes as `Streamed`, and calls of tools as `ToolStarted` and `ToolEnded`: each part once, in
        order, without gaps within an attempt. A `Retracted` follows: before the entries that replace it, or when the
        attempt has failed.

        Retention may remove entries that a slow reader, or one that comes back, has not read: the feed raises
        `EntriesRemoved` then. Entries that it had removed before the reader began (``after=0``) are left out.

        Args:
            after: 0, the beginning; or `EventFeed.position` of an earlier feed, which is exact within a stream; or a
                number of an entry. A position, and a number from `send`, know their journal.
            follow: wait for new entries, also for the first event of a conversation that does not exist yet. The feed
                ends with the conversation, also when an operator has cancelled its instance. False: it ends with the
                last entry.
            kinds: only entries of these kinds, or classes; empty: all.
            stream: include provisional output.

        Raises:
            InvalidInput: ``after`` is not a position.
        """
        position = read_position(after)
        reader = PageReader(self._kind.types, position, kinds_of(kinds), stream=stream)
        return self._feed(reader, position, follow=follow)

    def _feed(self, reader: PageReader, position: FeedPosition, *, follow: bool) -> EventFeed:
        return EventFeed(
            self._client.journals,
            self.conversation_id,
            reader,
            follow=follow,
            journal=position.journal,
            timeline=self._timeline if position.seq else "",
        )

    @action("ask", "conversation", "conversation_id", "event")
    async def ask(
        self,
        event: JournalEvent,
        *,
        event_id: str | None = None,
        timeout: float | None = None,
        until: Literal["wake", "settled"] = "wake",
        **about: Unpack[Description],
    ) -> Reply:
        """Send an event, and wait for the wake that processes it. The same event id again gives the same
        reply. After a failover the event is sent again, under its id: the database may have lost it.

        Args:
            event: see `send`.
            event_id: see `send`.
            timeout: seconds; None: forever.
            until: "settled": wait on until the conversation has nothing left to do, and return the reply of its last
                wake: no input, no request that waits for an answer, no revisit, and no child that works for it.
            about: see `send`.

        Raises:
            WakeFailed: the wake has failed for good. `resume` tries again, and from then on `ask` waits for the reply
                of the new attempt. With the next event this one becomes a dead letter: see `retry`.
            WaitTimeout: the reply has not come, or the conversation has not settled; ``waits_for`` says why. The event,
                if it was sent, is processed: ask again with the same id, or wait for the `reply`.
            ConversationTerminated: before the event was processed; or an operator has ended the instance.
            UnknownConversation: it was deleted before the event was processed.
            UnknownEntry: the event was sent before, and its reply is not there; see `reply`.
            EntriesRemoved: retention has removed the reply before it was read.
            WakeMisuse: the wait would be a deadlock. The caller is the handler of this conversation's wake, or a task
                that it started; or that handler waits for a reply of the caller's conversation, directly or through
                others. Within one process nothing is sent then, unless two handlers begin to wait for each other at the
                same moment. A circle through several processes, or through instances whose activities wait, is found
                within seconds: the wait that began last is refused.
            ClientError, InvalidInput: see `send`; or the timeout is negative, or not a number; or ``until`` is another
                word.
        """
        check_timeout(timeout)
        if until not in {"wake", "settled"}:
            raise errors.InvalidInput(f"until must be 'wake' (the default) or 'settled', not {until!r:.80}")
        ask = partial(self._ask, event, event_id, timeout, until, about)
        return await self._client._run_call("ask", [self._kind.name], [self.conversation_id], ask)

    async def _ask(
        self, event: JournalEvent, event_id: str | None, timeout: float | None, until: str, about: Description
    ) -> Reply:
        with self._traced("ask"), anyio.move_on_after(timeout):
            await self._check_not_blocked()
            async with self._client.journals.changes(self.conversation_id, only_major=True) as change:
                event_id = event_id or self._client.journals.new_event_id()
                while True:
                    seq, appended = await self._send(event, event_id, about)
                    with suppress(errors.TimelineChanged):
                        reply = await self._reply(change, seq, appended)
                        return reply if until == "wake" else await self._settle(change, reply, seq)
        raise await self._no_reply(timeout, "settled" if until == "settled" else "replied")

    async def _settle(self, change: Change, reply: Reply, seq: EntryNumber) -> Reply:
        assert seq.journal is not None
        while (settled := await settled_reply(self._client.journals, reply, seq.journal)) is None:
            with self._waiting(sys.maxsize):
                await self._check_not_blocked()
                await change.wait()
        return settled

    def stream_reply(
        self,
        event: JournalEvent | None = None,
        *,
        event_id: str | None = None,
        after: int | str = 0,
        heartbeat: float | None = None,
        **about: Unpack[Description],
    ) -> ReplyStream:
        """Send an event, and follow what belongs to it: parts that are streamed, calls of tools, retractions, and
        entries of the wakes that have read the event, in the order of `events`. The `Reply` comes last.

        ::

            async for item in (stream := talk.stream_reply(UserMessage("hello"), event_id="m-18", heartbeat=15)):
                await send(id=stream.position, event=item.kind, data=item.to_json())  # a server-sent event

        The first wait for an item sends the event. With the same event id and ``after`` another call goes on, in any
        process.

        Args:
            event: see `send`. None: it was sent before, under the event id.
            event_id: see `send`.
            after: 0; or `ReplyStream.position` of an earlier call with this event id.
            heartbeat: seconds after which a wait for an item gives a `Heartbeat`; None: it waits for an item.
            about: see `send`.

        Raises:
            InvalidInput: neither an event nor an event id is given, ``after`` is not a position, or ``heartbeat`` is
                not a positive number. It comes from this call; the other errors come from the wait for an item.
            WakeFailed, ConversationTerminated, UnknownConversation, EntriesRemoved, WakeMisuse: see `ask`.
            UnknownEntry: see `ask`; or no event of the conversation has this event id.
            TimelineChanged: after a failover: call it again with the event and its id, without ``after``.
            ClientError, InvalidInput: see `send`.
        """
        if event is None and event_id is None:
            raise errors.InvalidInput("give the event to send; or event_id= alone, of an event that was sent before")
        if heartbeat is not None and not heartbeat > 0:
            raise errors.InvalidInput(f"heartbeat = {heartbeat!r}: must be a positive number of seconds, or None")
        position = read_position(after)
        sent_as = event_id or self._client.journals.new_event_id()
        return ReplyStream(
            self._waiting,
            lambda: self._open_reply(event, sent_as, position, about),
            self.reply,
            self._check_not_blocked,
            self._noted,
            position=str(position),
            heartbeat=heartbeat,
        )

    async def _open_reply(
        self, event: JournalEvent | None, event_id: str, after: FeedPosition, about: Description
    ) -> tuple[int, EventFeed]:
        seq = await (self._anchor(event_id) if event is None else self.send(event, event_id=event_id, **about))
        position = after if after.seq >= seq else read_position(seq)
        last = None
        if position.seq > seq:
            last = (await self._page(JournalQuery(session_id=self.conversation_id, reply_to=seq, limit=1))).wake
        has_failed = last is not None and last.outcome == "failed"
        pages = ReplyPageReader(self._kind.types, position, self.conversation_id, seq, has_failed=has_failed)
        return seq, self._feed(pages, position, follow=True)

    async def reply(self, seq: int, *, timeout: float | None = None) -> Reply:
        """Wait for the wake that processes an input. ``seq``: from `send` or `answer`.

        Raises:
            TimelineChanged: the database may have lost the entry since `send`: repeat the event under its id, with
                `ask`. (For a plain number: since this handle was made; take a new handle.)
            UnknownConversation: no conversation has this id; or it was deleted, and another one has its id; or the
                number is of another conversation.
            UnknownEntry: the journal has no entry of that number, or not its reply: the entry is not an input, or it is
                in a conversation that this one was forked or merged from.
            EntriesRemoved: retention has removed the reply.
            InvalidInput: ``seq`` is not a number of an entry, or `ask` would refuse the timeout.
            WakeMisuse: see `ask`; not if the reply is there.
            WakeFailed, WaitTimeout, ConversationTerminated: see `ask`.
        """
        check_timeout(timeout)
        with self._traced("wait"), anyio.move_on_after(timeout):
            async with self._client.journals.changes(self.conversation_id, only_major=True) as change:
                check_seq(seq)
                return await self._reply(change, seq)
        raise await self._no_reply(timeout, "replied")

    async def _no_reply(self, timeout: float | None, what: str) -> WaitTimeout:
        message = f"conversation {self.conversation_id!r} has not {what} within {timeout:g} s"
        return await self._client._wait_timeout(self.conversation_id, message)

    def _waiting(self, seq: int) -> AbstractContextManager[None]:
        """Note that a handler, if the caller is one, waits for the reply to this input."""
        return waiting_for(self._client.journals.database, self.conversation_id, seq)

    def _noted(self, seq: int, journal_id: int) -> NotedWait:
        """Note the same wait so that other processes find it too."""
        return NotedWait(self._client.journals.database, self.conversation_id, journal_id, int(seq), remedy=_REMEDY)

    async def _check_not_blocked(self) -> None:
        """Refuse to wait in a handler for a wake that cannot begin before that handler has ended."""
        blocked = blocked_journals(self._client.journals.database, self.conversation_id)
        if not blocked:
            return
        page = await self._find(self.conversation_id)
        if page is not None and page.journal_id in blocked:  # not a conversation that was created under this id since
            raise errors.WakeMisuse(
                f"this handler waits for a reply of conversation {self.conversation_id!r}, whose next wake begins when "
                "this handler has ended: it is its own conversation, or one whose handler waits for this one. "
                f"{_REMEDY}"
            )

    async def _reply(self, change: Change, seq: int, appended: Appended | None = None) -> Reply:
        look = appended is None or appended.outcome != "appended"  # sent before: it may be processed already
        journal = seq.journal if isinstance(seq, EntryNumber) else None
        journal_id = 0 if journal is None else journal.journal_id
        timeline = self._timeline if journal is None else journal.timeline
        entries: list[Entry] = []
        async with self._noted(seq, journal_id) as noted:
            while True:
                if not look:
                    with self._waiting(seq):
                        await self._check_not_blocked()
                        await noted.over(change.wait)
                after = entries[-1].seq if entries else 0
                query = JournalQuery(session_id=self.conversation_id, reply_to=seq, after=after, limit=REPLY_PAGE)
                try:
                    page = await self._page(query)
                except errors.UnknownConversation:
                    check_timeline(self._client.journals, self.conversation_id, timeline)
                    raise
                check_timeline(self._client.journals, self.conversation_id, timeline)
                journal_id = journal_id or page.journal_id
                if page.journal_id != journal_id:
                    source = await source_of(self._client.journals, self.conversation_id, journal_id)
                    if source is not None:
                        raise errors.UnknownEntry(self.conversation_id, f"entry {int(seq)} is of {source}")
                    text = "it was deleted, and another one has its id; or the number is of another conversation"
                    raise errors.UnknownConversation(self.conversation_id, text)
                noted.target_id = journal_id
                check_awaited(self.conversation_id, seq, page, after)
                look = page.more
                entries += page.entries
                if not page.more and page.wake is not None and page.processed >= seq:
                    about = (page.wake.wake_id, page.wake.processed, page.wake.reason)
                    return Reply(self.conversation_id, int(seq), *about, entries, self._kind.types)
