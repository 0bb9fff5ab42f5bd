"""The handle of a conversation, for clients: `affinity.Client.conversation`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, Unpack

import anyio

from affinity import errors
from affinity.client.calls import check_delivery, check_timeout
from affinity.client.changes import Change
from affinity.conversation.creating import CreationCalls
from affinity.conversation.dead_letters import dead_letters, retry_id
from affinity.conversation.events import (
    NO_META,
    AnswerEvent,
    ConfirmationAnswer,
    ConversationStatusChanged,
    CustomToolResult,
    EventMeta,
    EventTypes,
    JournalEvent,
    UserInterrupt,
    check_input,
)
from affinity.conversation.follow import (
    EntryNumber,
    EventFeed,
    FeedPosition,
    JournalIdentity,
    PageReader,
    check_timeline,
    has_ended,
    read_position,
    unknown_conversation,
)
from affinity.conversation.kinds import (
    RESUME_MESSAGE,
    WAKE_MESSAGE,
    ConversationKind,
    interrupt_message,
    terminate_message,
)
from affinity.conversation.reading import check_seq, kinds_of
from affinity.conversation.reply import Reply, check_awaited
from affinity.conversation.reply_stream import ReplyPageReader, ReplyStream
from affinity.conversation.settling import settled_reply
from affinity.conversation.trace import traceparent
from affinity.conversation.views import (
    DeadLetter,
    PendingRequest,
    PendingRevisit,
    request_of,
    revisit_of,
)
from affinity.conversation.wake_parts import blocked_journals, waiting_for
from affinity.conversation.writing import ENDS
from affinity.errors import Explanation, WaitTimeout
from affinity.journal import (
    Answer,
    Appended,
    ConversationStatus,
    Description,
    Entry,
    JournalAppend,
    JournalFilter,
    JournalPage,
    JournalQuery,
    NewEntry,
    RequestFilter,
    check_description,
)
from affinity.limits import MAX_PAGE, MAX_UNREAD_EVENTS, check_id
from affinity.orchestration.definitions import MISSING
from affinity.provider.contract import FINISHED

REPLY_PAGE: Final = 100
"""Entries in one page that is read for a reply."""

DELETE_SECONDS: Final = 30.0
"""Default of the time that a child may take to end before it is removed."""


class ConversationHandle(CreationCalls["ConversationHandle"]):
    """A conversation, as its clients see it.

    ::

        talk = client.conversation(support, "chat-7")
        reply = await talk.ask(UserMessage("hello"), event_id="m-18", timeout=60)
        print(reply.text)

    Every call that sends an event may be repeated with the same event id: it is one event. Without an event id the call
    has a random one, so that it is sent once although the database may lose replies. All calls raise a `ProviderError`
    when the database refuses, or fails for `calls.RETRY_SECONDS`.
    """

    # -- sending

    async def send(self, event: JournalEvent, *, event_id: str | None = None, **about: Unpack[Description]) -> int:
        """Append an event, and wake the conversation, which begins with its first event.

        Args:
            event: of kind ``user.*``, or of a kind of the application. An answer must fit a pending request; an
                interrupt drops pending requests and revisits.
            event_id: under which it is one event, however often it is sent.
            about: ``title``, ``owner`` and ``labels`` of a conversation that begins with this event; see `create`. One
                that is there keeps its own: `describe` changes them.

        Returns:
            The number of its entry, an integer that knows its journal: for `reply`, and for `events`.

        Raises:
            EventIdConflict: another event of the conversation has this event id: other content, or another kind.
            ConversationTerminated: it takes no more events.
            ConversationKindMismatch: it is of another kind, or its id belongs to an instance of something else.
            RequestNotPending: an answer, to a request that does not wait for it.
            UnknownConversation: an answer or an interrupt, and there is no conversation.
            TooManyUnreadEvents, QuotaExceeded: it was refused; send it again later.
            InvalidInput: the event or its id is refused; the subclass is the reason.
        """
        return (await self._send(event, event_id, about))[0]

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
            event: as for `send`.
            event_id: as for `send`.
            timeout: seconds; None: forever.
            until: "settled": wait on until the conversation has nothing left to do, and return the reply of its last
                wake: no input, no request that waits for an answer, no revisit, and no child that works for it.
            about: as for `send`.

        Raises:
            WakeFailed: the wake has failed for good. `resume` tries again, and from then on `ask` waits for the reply
                of the new attempt. With the next event this one becomes a dead letter: see `retry`.
            WaitTimeout: there is no reply yet, or the conversation has not settled; ``waits_for`` says why. The event,
                if it was sent, is processed: ask again with the same id, or wait for the `reply`.
            ConversationTerminated: before the event was processed; or an operator has ended the instance.
            UnknownConversation: it was deleted before the event was processed.
            UnknownEntry: the event was sent before, and its reply is not there; see `reply`.
            EntriesRemoved: retention has removed the reply before it was read.
            WakeMisuse: the wait would be a deadlock. The caller is the handler of this conversation's wake, or a task
                that it started; or that handler waits for a reply of the caller's conversation, directly or through
                others. Only waits in this process are detected. Nothing is sent, unless two handlers begin to wait for
                each other at the same moment.
            ClientError, InvalidInput: as for `send`; or the timeout is negative, or not a number; or ``until`` is
                another word.
        """
        check_timeout(timeout)
        if until not in {"wake", "settled"}:
            raise errors.InvalidInput(f"until must be 'wake' (the default) or 'settled', not {until!r:.80}")
        with anyio.move_on_after(timeout):
            await self._check_not_blocked()
            async with self._client.journals.changes(self.conversation_id, only_wakes=True) as change:
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
            with waiting_for(self.conversation_id, sys.maxsize):
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
            event: as for `send`. None: it was sent before, under the event id.
            event_id: as for `send`.
            after: 0; or `ReplyStream.position` of an earlier call with this event id.
            heartbeat: seconds after which a wait for an item gives a `Heartbeat`; None: it waits for an item.
            about: as for `send`.

        Raises:
            InvalidInput: neither an event nor an event id is given, ``after`` is no position, or ``heartbeat`` is not a
                positive number. Here; the others come from the wait for an item.
            WakeFailed, ConversationTerminated, UnknownConversation, EntriesRemoved, WakeMisuse: as for `ask`.
            UnknownEntry: as for `ask`; or no event of the conversation has this event id.
            TimelineChanged: after a failover: call it again with the event and its id, without ``after``.
            ClientError, InvalidInput: as for `send`.
        """
        if event is None and event_id is None:
            raise errors.InvalidInput("give the event to send; or event_id= alone, of an event that was sent before")
        if heartbeat is not None and not heartbeat > 0:
            raise errors.InvalidInput(f"heartbeat = {heartbeat!r}: must be a positive number of seconds, or None")
        position = read_position(after)
        sent_as = event_id or self._client.journals.new_event_id()
        return ReplyStream(
            self.conversation_id,
            lambda: self._open_reply(event, sent_as, position, about),
            self.reply,
            self._check_not_blocked,
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
            UnknownConversation: there is none; or it was deleted, and another one has its id.
            UnknownEntry: the journal has no entry of that number, or not its reply: the entry is no input, or it is in
                a conversation that this one was forked or merged from.
            EntriesRemoved: retention has removed the reply.
            InvalidInput: ``seq`` is no number of an entry, or the timeout as for `ask`.
            WakeMisuse: as for `ask`, unless the reply is there.
            WakeFailed, WaitTimeout, ConversationTerminated: as for `ask`.
        """
        check_timeout(timeout)
        with anyio.move_on_after(timeout):
            async with self._client.journals.changes(self.conversation_id, only_wakes=True) as change:
                check_seq(seq)
                return await self._reply(change, seq)
        raise await self._no_reply(timeout, "replied")

    async def _no_reply(self, timeout: float | None, what: str) -> WaitTimeout:
        message = f"conversation {self.conversation_id!r} has not {what} within {timeout:g} s"
        return await self._client.wait_timeout(self.conversation_id, message)

    async def answer(
        self,
        request_id: str,
        *,
        allowed: bool | None = None,
        result: Any = MISSING,
        is_error: bool = False,
        reason: str = "",
        event_id: str | None = None,
        conversation_id: str | None = None,
    ) -> int:
        """Answer a request: with ``allowed`` whether a tool may be used, or with the ``result`` of a tool that the
        client has run. An answer of a kind of the application is sent by `send`.

        Args:
            request_id: of a pending request; see `requests`.
            allowed: of a `ToolConfirmation`.
            result: of a `CustomToolUse`; any JSON value.
            is_error: the tool has failed; ``result`` is the error.
            reason: why it is not allowed.
            event_id: under which it is one answer, however often it is sent.
            conversation_id: whose request it is, of ``requests(deep=True)``: a child of this conversation, or a child
                of such a child. None: of this one.

        Returns:
            The number of its entry, for `reply` of the conversation that has made the request.

        Raises:
            NotAParent: the other conversation is not below this one.
            EventIdConflict: another event of the conversation has this event id, such as another answer.
            RequestNotPending: it is answered, dropped or expired already, unknown, or of the other kind.
            UnknownConversation, ConversationTerminated, InvalidInput: as for `send`.
        """
        if (allowed is None) == (result is MISSING):
            raise errors.InvalidInput("answer with allowed= or with result=, and not with both")
        event: AnswerEvent
        if allowed is not None:
            event = ConfirmationAnswer(request_id=request_id, allowed=allowed, reason=reason)
        else:
            event = CustomToolResult(request_id=request_id, result=result, is_error=is_error)
        if conversation_id is None or conversation_id == self.conversation_id:
            return await self.send(event, event_id=event_id)
        return await (await self._below(check_id(conversation_id, "conversation id"))).send(event, event_id=event_id)

    async def _below(self, conversation_id: str) -> ConversationHandle:
        """The handle of a child, or of a child of such a child."""
        me = await self._page(JournalQuery(session_id=self.conversation_id, limit=1))
        child = page = await self._find(conversation_id)
        if child is None:
            raise unknown_conversation(conversation_id)
        while page is not None and page.parent is not None and page.parent_journal != me.journal_id:
            above = await self._find(page.parent)
            page = above if above is not None and above.journal_id == page.parent_journal else None
        if page is None or page.parent is None:
            raise errors.NotAParent(conversation_id, f"it is not below {self.conversation_id!r}: use its own handle")
        kind = ConversationKind(name=child.kind, types=EventTypes(), limits=self._kind.limits)
        return ConversationHandle(self._client, kind, conversation_id)

    async def interrupt(
        self, *, cancel_running: bool = False, cascade: bool = False, reason: str = "", event_id: str | None = None
    ) -> int:
        """Redirect the conversation: drop pending requests and revisits, and clear the answers that no wake has read,
        then wake it. A call that waits for one of these does not run.

        Args:
            cancel_running: cancel the wake that is under way; otherwise it ends first. One that begins at that moment
                may be cancelled although it has this interrupt among its inputs: the next one has the same inputs.
            cascade: interrupt the children too.
            reason: for the handler and for readers.
            event_id: under which it is one interrupt, however often it is sent.

        Returns:
            The number of its entry.

        Raises:
            UnknownConversation, ConversationTerminated, InvalidInput: as for `send`.
        """
        event = UserInterrupt(reason=reason, cancel=cancel_running, cascade=cascade)
        return await self.send(event, event_id=event_id)

    async def resume(self) -> bool:
        """Have a conversation that has failed, or waits for its next attempt, try again now. One whose instance an
        operator has deleted gets another one. False: there is nothing to try again, and nothing was written.

        Raises:
            UnknownConversation, ConversationTerminated: as for `send`.
        """
        page = await self._page(JournalQuery(session_id=self.conversation_id, limit=1))
        if page.instance_status is not None and await self.status() in {"idle", "requires_action", "waiting"}:
            return False
        event = ConversationStatusChanged(status="running", reason="resumed")
        entry = self._entry(event, self._client.journals.new_event_id(), is_input=False)
        await self._append(self._new(entry=entry, message=RESUME_MESSAGE))
        return True

    async def dead_letters(self) -> Sequence[DeadLetter]:
        """The inputs of wakes that have failed for good, which later wakes have gone on behind, oldest first; as far as
        retention has kept them.

        Raises:
            UnknownConversation: there is none.
        """
        return await dead_letters(self)

    async def retry(self, seq: int) -> int:
        """Send a dead letter again, behind all that has come since; a second time it is the same event. Work that a
        parent had delegated with it has ended for the parent, and stays so.

        Returns:
            Its new number: see `reply`.

        Raises:
            UnknownEntry: this entry is no dead letter.
            RequestNotPending: it is an answer, and its request does not wait any more.
            ConversationTerminated, UnknownConversation: as for `send`.
        """
        letter = next((each for each in await self.dead_letters() if each.seq == check_seq(seq)), None)
        if letter is None:
            raise errors.UnknownEntry(self.conversation_id, f"entry {seq} is no dead letter: `dead_letters` has them")
        if letter.event.kind not in ENDS:
            return await self.send(letter.event, event_id=retry_id(seq))
        timeline = self._client.journals.timeline  # clients send no ends of their own
        appended = await self._send_input(self._entry(letter.event, retry_id(seq)))
        return EntryNumber.of(appended.seq, JournalIdentity(appended.journal_id, timeline))

    async def terminate(self, *, reason: str = "", cascade: bool = False) -> None:
        """End the conversation: it takes no more events, a wake under way is cancelled, and pending requests and
        revisits are dropped. Idempotent.

        One that has ended stays as it is: with ``cascade`` its children are terminated. An operator who cancels its
        instance ends a conversation without its children.

        Args:
            reason: for readers.
            cascade: terminate the children too.

        Raises:
            UnknownConversation: there is none.
        """
        event = ConversationStatusChanged(status="terminated", reason=reason)
        entry = self._entry(event, self._client.journals.new_event_id(), is_input=False)
        append = self._new(entry=entry, message=terminate_message(cascade=cascade), closes=True, drops=True)
        while (appended := await self._append_lasting(append)).outcome == "closed":
            if (await self._page(JournalQuery(session_id=self.conversation_id, limit=1))).closed:
                for child in await self._children(self.conversation_id) if cascade else ():
                    with suppress(errors.UnknownConversation):
                        await (await self._below(child)).terminate(reason=reason, cascade=True)
                return
            with suppress(errors.UnknownInstance, errors.InstanceNotFinished):  # another call was first
                await self._client.delete(self.conversation_id)
        await self._check(append, appended)

    async def _send(
        self, event: JournalEvent, event_id: str | None, about: Description
    ) -> tuple[EntryNumber, Appended]:
        timeline = self._client.journals.timeline
        appended = await self._send_event(event, event_id, check_description(about) if about else None)
        return EntryNumber.of(appended.seq, JournalIdentity(appended.journal_id, timeline)), appended

    async def _send_event(self, event: JournalEvent, event_id: str | None, about: Description | None) -> Appended:
        check_input(event, event_id)
        entry = self._entry(event, event_id or self._client.journals.new_event_id())
        if isinstance(event, AnswerEvent):
            answers = Answer(request_id=check_id(event.request_id, "request id"), kind=event.answers)
            append = self._new(entry=entry, message=WAKE_MESSAGE, answers=answers)
        elif isinstance(event, UserInterrupt):
            append = self._new(entry=entry, message=interrupt_message(cancel=event.cancel), drops=True)
        else:
            return await self._send_input(entry, about)
        return await self._append(append)

    async def _send_input(self, entry: NewEntry, about: Description | None = None) -> Appended:
        """Append an input. What would create the conversation goes with it, unless it is known to be there."""
        journals = self._client.journals
        append = self._new(entry=entry, message=WAKE_MESSAGE, unread_limit=MAX_UNREAD_EVENTS)
        if journals.is_known(self.conversation_id):
            appended = await journals.append(append)
            if appended.outcome != "unknown":
                return await self._check(append, appended)
        return await self._append(replace(append, start=replace(self._kind.start(), about=about)))

    def _new(self, **fields: Any) -> JournalAppend:
        return JournalAppend(session_id=self.conversation_id, kind=self._kind.name, **fields)

    def _entry(self, event: JournalEvent, event_id: str, *, is_input: bool = True) -> NewEntry:
        trace = traceparent() if is_input else None
        payload = self._kind.types.encode(event, EventMeta(trace=trace) if trace else NO_META)
        return NewEntry(kind=event.kind, payload=payload, event_id=event_id, is_input=is_input)

    async def _append(self, append: JournalAppend) -> Appended:
        return await self._check(append, await self._append_lasting(append))

    async def _append_lasting(self, append: JournalAppend) -> Appended:
        """Append; if only the instance is gone, which an operator has deleted, with what creates it again."""
        appended = await self._client.journals.append(append)
        if appended.outcome == "unknown" and append.start is None and appended.journal_id:
            again = replace(append, start=self._kind.start(), journal_id=appended.journal_id)
            return await self._client.journals.append(again)
        return appended

    async def _check(self, append: JournalAppend, appended: Appended) -> Appended:
        """Return what was appended, or raise the error for its outcome."""
        match appended.outcome:
            case "appended" | "repeated":
                return appended
            case "other_event":
                event_id = None if append.entry is None else append.entry.event_id
                raise errors.EventIdConflict(
                    self.conversation_id,
                    f"entry {appended.seq} is another event with the event id {event_id!r}: give each event its own id",
                )
            case "unknown":
                raise unknown_conversation(self.conversation_id)
            case "closed":
                raise errors.ConversationTerminated(self.conversation_id, "it is terminated, and takes no more events")
            case "not_parent":
                raise errors.NotAParent(self.conversation_id, "it is no child of this one")
            case "not_pending":
                request_id = append.answers.request_id if append.answers else ""
                raise errors.RequestNotPending(
                    self.conversation_id,
                    f"request {request_id!r} does not wait for this answer: it is answered, has expired, was dropped "
                    "by an interrupt, or is none of this kind; requests() are the ones that wait",
                )
            case "full" | "over_quota" as refusal:
                check_delivery(self.conversation_id, refusal, await self._client.quotas())
        page = await self._find(self.conversation_id)
        if page is None or page.kind == self._kind.name:
            raise errors.ConversationKindMismatch(
                self.conversation_id, "an instance of another orchestration has this id: use another id"
            )
        self._refuse_kind(page.kind)

    # -- reading

    def events(
        self,
        *,
        after: int | str = 0,
        follow: bool = False,
        kinds: Collection[str | type[JournalEvent]] = (),
        stream: bool = True,
    ) -> EventFeed:
        """Entries of the journal in order, and what wakes stream meanwhile.

        Provisional output comes as `Streamed`, and calls of tools as `ToolStarted` and `ToolEnded`: each part once, in
        order, without gaps within an attempt. A `Retracted` follows: before the entries that replace it, or when the
        attempt has failed.

        Retention may remove entries that a slow reader, or one that comes back, has not read: the feed raises
        `EntriesRemoved` then. What it had removed before the reader began (``after=0``) is left out.

        Args:
            after: 0, the beginning; or `EventFeed.position` of an earlier feed, which is exact within a stream; or a
                number of an entry. A position, and a number from `send`, know their journal.
            follow: wait for new entries, also for the first event of a conversation that is not there yet. The feed
                ends with the conversation, also when an operator has cancelled its instance. False: it ends with the
                last entry.
            kinds: only entries of these kinds, or classes; empty: all.
            stream: with provisional output.

        Raises:
            InvalidInput: ``after`` is no position.
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

    async def requests(self, *, deep: bool = False) -> Sequence[PendingRequest]:
        """The requests that wait for an answer, oldest first; none if there is no such conversation.

        Args:
            deep: with the requests of its children, and of theirs; of `limits.MAX_BELOW` conversations at most, the
                nearest first. Their events are read as events of this kind.
        """
        journals, types, me = self._client.journals, self._kind.types, self.conversation_id
        if deep:
            found, *_ = await journals.all_requests(RequestFilter(below=me))
            return [request_of(each, types, each.session_id) for each in found]
        work = await journals.pending(me)
        return [request_of(each, types, me) for each in work.open_requests] if work else []

    async def revisits(self) -> Sequence[PendingRevisit]:
        """The later wakes that were requested, by due time; none if there is no such conversation."""
        work = await self._client.journals.pending(self.conversation_id)
        return [revisit_of(each) for each in work.revisits] if work else []

    async def status(self) -> ConversationStatus:
        """The status of the conversation, from its journal and its instance.

        Raises:
            UnknownConversation: there is none.
        """
        return (await self._client.get_conversation(self.conversation_id)).status

    async def explain(self) -> Explanation | None:
        """The reason why the conversation waits; see `Client.explain`.

        Raises:
            UnknownInstance: there is none.
        """
        return await self._client.explain(self.conversation_id)

    async def delete(self, *, cascade: bool = False, timeout: float | None = DELETE_SECONDS) -> bool:
        """Remove the conversation: its instance, also while it runs, its state and its journal. Entries that a fork
        continues are kept for it. False: there was none.

        A child is terminated before, and removed when it has ended: then its parent is notified of the end of what it
        has given to it (`ChildEnded`).

        Args:
            cascade: remove its children too, and theirs. A child of an earlier conversation with this id, which was
                deleted without it, is none of them.
            timeout: seconds that a child may take to end; None: forever.

        Raises:
            WaitTimeout: the child is terminated and not removed: no worker has ended it yet. ``waits_for`` says why.
            InvalidInput: the timeout is negative, or not a number.
        """
        check_timeout(timeout)
        if (page := await self._find(self.conversation_id)) is None:
            removed_instance = await self._remove_instance(self.conversation_id)
            if (page := await self._find(self.conversation_id)) is None:
                has_record = await self._client.session_store.load(self.conversation_id) is not None
                return (has_record and await self._remove_rest(self.conversation_id)) or removed_instance
            # A parent has created it meanwhile, and waits for its end.
        await self._end_delegations(page, timeout)
        # No wake of a conversation commits without its instance: then it has no more children than there are.
        removed: dict[str, bool] = {}
        waiting = [self.conversation_id]
        for one in waiting:
            if one not in removed:
                removed[one] = await self._remove_instance(one)
                if cascade:
                    waiting += await self._children(one)
        return [await self._remove_rest(one) or removed[one] for one in reversed(removed)][-1]

    async def _children(self, conversation_id: str) -> list[str]:
        """Ids of the children of the conversation, not of an earlier one of this id."""
        page = await self._find(conversation_id)
        if page is None:
            return []
        found: list[str] = []
        where = JournalFilter(parent=conversation_id, parent_journal=page.journal_id)
        while rows := await self._client.journals.list(where, MAX_PAGE):
            found += [each.session_id for each in rows]
            where = replace(where, after=(rows[-1].created_at, rows[-1].session_id))
        return found

    async def _end_delegations(self, page: JournalPage, timeout: float | None) -> None:
        """Terminate a child, and wait for its end, unless its parent has ended."""
        if page.parent is None or page.instance_status in FINISHED:
            return
        parent = await self._find(page.parent)
        if parent is None or has_ended(parent) or page.parent_journal != parent.journal_id:
            return
        with anyio.move_on_after(timeout):
            with suppress(errors.UnknownConversation):  # another call has removed it
                await self.terminate(reason="it is deleted")
                await self._wait_end(page.last_seq)
            return
        raise await self._client.wait_timeout(
            self.conversation_id,
            f"conversation {self.conversation_id!r} is terminated, but no worker has ended it within {timeout:g} s: "
            "repeat the call; or delete its instance before, and its parent is not notified",
        )

    async def _wait_end(self, after: int) -> None:
        while True:
            try:
                async with self.events(after=after, follow=True, stream=False) as feed:
                    async for _ in feed:
                        pass
            except errors.EntriesRemoved as removed:
                after = removed.first_seq - 1
            except errors.TimelineChanged:
                after = 0
            else:
                return

    async def _check_not_blocked(self) -> None:
        """Refuse to wait in a handler for a wake that cannot begin before that handler has ended."""
        blocked = blocked_journals(self.conversation_id)
        if not blocked:
            return
        page = await self._find(self.conversation_id)
        if page is not None and page.journal_id in blocked:  # not one of the same id in another database
            raise errors.WakeMisuse(
                f"this handler waits for a reply of conversation {self.conversation_id!r}, whose next wake begins when "
                "this handler has ended: it is its own conversation, or one whose handler waits for this one. Use "
                "wake.revisit() to run again, send() without waiting, or wake.delegate() to give the work to another "
                "conversation"
            )

    async def _find(self, conversation_id: str) -> JournalPage | None:
        return await self._client.journals.read(JournalQuery(session_id=conversation_id, limit=1))

    async def _remove_instance(self, conversation_id: str) -> bool:
        with suppress(errors.UnknownInstance):
            await self._client.delete(conversation_id, force=True)
            return True
        return False

    async def _remove_rest(self, conversation_id: str) -> bool:
        """Remove state and journal, and an instance that an event has created again meanwhile. What an event begins
        between two of these calls is removed as a whole, or not at all.
        """
        removed = False
        while await self._remove_record(conversation_id):
            removed = True
            await self._remove_instance(conversation_id)
        return removed

    async def _remove_record(self, conversation_id: str) -> bool:
        state = await self._client.session_store.delete([conversation_id])  # with its journal
        (journal,) = await self._client.journals.delete([conversation_id])
        return bool(state) or journal

    async def _reply(self, change: Change, seq: int, appended: Appended | None = None) -> Reply:
        look = appended is None or appended.outcome != "appended"  # sent before: it may be processed already
        journal = seq.journal if isinstance(seq, EntryNumber) else None
        journal_id = 0 if journal is None else journal.journal_id
        timeline = self._timeline if journal is None else journal.timeline
        entries: list[Entry] = []
        while True:
            if not look:
                with waiting_for(self.conversation_id, seq):
                    await self._check_not_blocked()
                    await change.wait()
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
                raise errors.UnknownConversation(self.conversation_id, "it was deleted, and another one has its id")
            check_awaited(self.conversation_id, seq, page, after)
            look = page.more
            entries += page.entries
            if not page.more and page.wake is not None and page.processed >= seq:
                about = (page.wake.wake_id, page.wake.processed, page.wake.reason)
                return Reply(self.conversation_id, int(seq), *about, entries, self._kind.types)
