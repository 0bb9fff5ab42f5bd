"""The calls with which clients send events, answers and interrupts to a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack

from affinity import errors
from affinity.actions import action
from affinity.client.calls import check_delivery
from affinity.conversation.creating import CreationCalls
from affinity.conversation.events import (
    NO_META,
    AnswerEvent,
    ConfirmationAnswer,
    CustomToolResult,
    EventTypes,
    JournalEvent,
    UserInterrupt,
    check_input,
    meta_of_sender,
)
from affinity.conversation.follow import EntryNumber, JournalIdentity, unknown_conversation
from affinity.conversation.journal import (
    Answer,
    Appended,
    Description,
    JournalAppend,
    JournalPage,
    JournalQuery,
    NewEntry,
    check_description,
)
from affinity.conversation.kinds import WAKE_MESSAGE, ConversationKind, interrupt_message
from affinity.conversation.trace import CONVERSATION_ATTRIBUTE
from affinity.limits import MAX_UNREAD_EVENTS, check_id
from affinity.orchestration.definitions import MISSING
from affinity.tracing import ClientOperation, client_span

M = TypeVar("M")


class SendingCalls(CreationCalls[M], Generic[M]):
    """Appends events, and raises the error for each refusal."""

    @action("send", "conversation", "conversation_id", "event")
    async def send(self, event: JournalEvent, *, event_id: str | None = None, **about: Unpack[Description]) -> int:
        """Append an event, and wake the conversation, which begins with its first event.

        Args:
            event: of kind ``user.*``, or of a kind of the application. An answer must fit a pending request; an
                interrupt drops pending requests and revisits.
            event_id: under which it is one event, however often it is sent.
            about: ``title``, ``owner`` and ``labels`` of a conversation that begins with this event; see `create`. An
                existing conversation keeps its own: `describe` changes them.

        Returns:
            The number of its entry, an integer that knows its journal: for `reply`, and for `events`.

        Raises:
            EventIdConflict: another event of the conversation has this event id: other content, or another kind.
            ConversationTerminated: it takes no more events.
            ConversationKindMismatch: it is of another kind, or its id belongs to an instance of something else.
            RequestNotPending: an answer to a request that is not pending.
            UnknownConversation: an answer or an interrupt to a conversation that does not exist.
            TooManyUnreadEvents, QuotaExceeded: it was refused; send it again later.
            InvalidInput: the event or its id is refused; the subclass is the reason.
        """
        send = partial(self._send, event, event_id, about)
        return (await self._client._run_call("send", [self._kind.name], [self.conversation_id], send))[0]

    @action("answer", "conversation", "conversation_id", "request_id", "allowed", "is_error", "reason")
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
            conversation_id: the conversation of the request, from ``requests(deep=True)``: a child of this
                conversation, or a child of such a child. None: this one.

        Returns:
            The number of its entry, for `reply` of the conversation that has made the request.

        Raises:
            NotAParent: the other conversation is not below this one.
            EventIdConflict: another event of the conversation has this event id, such as another answer.
            RequestNotPending: it is answered, dropped or expired already, unknown, or of the other kind.
            UnknownConversation, ConversationTerminated, InvalidInput: see `send`.
        """
        if (allowed is None) == (result is MISSING):
            raise errors.InvalidInput("answer with allowed= or with result=, and not with both")
        check_id(request_id, "request id")
        event: AnswerEvent
        if allowed is not None:
            event = ConfirmationAnswer(request_id=request_id, allowed=allowed, reason=reason)
        else:
            event = CustomToolResult(request_id=request_id, result=result, is_error=is_error)
        if conversation_id is None or conversation_id == self.conversation_id:
            return await self.send(event, event_id=event_id)
        return await (await self._below(check_id(conversation_id, "conversation id"))).send(event, event_id=event_id)

    async def _below(self, conversation_id: str) -> Self:
        """Return the handle of a child, or of a child of such a child."""
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
        return type(self)(self._client, kind, conversation_id)

    @action("interrupt", "conversation", "conversation_id", "cancel_running", "cascade", "reason")
    async def interrupt(
        self, *, cancel_running: bool = False, cascade: bool = False, reason: str = "", event_id: str | None = None
    ) -> int:
        """Redirect the conversation: drop pending requests and revisits, and clear the answers that no wake has read,
        then wake it. A call that waits for one of these does not run.

        Args:
            cancel_running: cancel the running wake; otherwise it ends first. A wake that begins at that moment may be
                cancelled although it has this interrupt among its inputs: the next wake has the same inputs.
            cascade: interrupt the children too.
            reason: for the handler and for readers.
            event_id: under which it is one interrupt, however often it is sent.

        Returns:
            The number of its entry.

        Raises:
            UnknownConversation, ConversationTerminated, InvalidInput: see `send`.
        """
        event = UserInterrupt(reason=reason, cancel=cancel_running, cascade=cascade)
        return await self.send(event, event_id=event_id)

    async def _send(
        self, event: JournalEvent, event_id: str | None, about: Description
    ) -> tuple[EntryNumber, Appended]:
        timeline = self._client.journals.timeline
        with self._traced("send", sends=True):
            appended = await self._send_event(event, event_id, check_description(about) if about else None)
        return EntryNumber.of(appended.seq, JournalIdentity(appended.journal_id, timeline)), appended

    @contextmanager
    def _traced(self, operation: ClientOperation, *, sends: bool = False) -> Iterator[None]:
        """Open the span of a call."""
        with client_span(operation, self._kind.name, sends=sends) as span:
            span.set({CONVERSATION_ATTRIBUTE: self.conversation_id})
            yield

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
        """Append an input; it creates the conversation, unless that is known to exist."""
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
        payload = self._kind.types.encode(event, meta_of_sender() if is_input else NO_META)
        return NewEntry(kind=event.kind, payload=payload, event_id=event_id, is_input=is_input)

    async def _append(self, append: JournalAppend) -> Appended:
        return await self._check(append, await self._append_lasting(append))

    async def _append_lasting(self, append: JournalAppend) -> Appended:
        """Append. If an operator has deleted the instance only, append again, with a start that creates it."""
        appended = await self._client.journals.append(append)
        if appended.outcome == "unknown" and append.start is None and appended.journal_id:
            again = replace(append, start=self._kind.start(), journal_id=appended.journal_id)
            return await self._client.journals.append(again)
        return appended

    async def _check(self, append: JournalAppend, appended: Appended) -> Appended:
        """Return the outcome of an append, or raise its error."""
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

    async def _find(self, conversation_id: str) -> JournalPage | None:
        return await self._client.journals.read(JournalQuery(session_id=conversation_id, limit=1))
