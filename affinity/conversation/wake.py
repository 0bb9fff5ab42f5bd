"""`Wake`: the argument of the handler of a conversation."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, Literal, Protocol, TypeVar, Unpack, cast

from pydantic import JsonValue
from pydantic_core import from_json

from affinity import errors
from affinity.conversation.client import ConversationInfo, info_of
from affinity.conversation.events import (
    AgentMessage,
    ChildDelegated,
    ChildEnded,
    EventMeta,
    InputsRead,
    JournalEntry,
    JournalEvent,
    OutcomeUpdated,
    RequestEvent,
    SpanError,
    UserInterrupt,
    check_input,
    check_output,
    meta_of,
)
from affinity.conversation.follow import has_ended
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.journal import (
    REFUSAL_MARK,
    Description,
    Entry,
    JournalAppend,
    JournalCreation,
    JournalFilter,
    JournalPage,
    JournalQuery,
    NewEntry,
    NewRequest,
    NewRevisit,
    OpenDelegation,
    check_description,
)
from affinity.conversation.kinds import WAKE_MESSAGE, ConversationKind
from affinity.conversation.lineage_calls import CommonCalls
from affinity.conversation.reading import DEFAULT_ENTRIES, EntryReader, Kinds
from affinity.conversation.runs import RunCalls, RunTask, new_run
from affinity.conversation.sections import Section
from affinity.conversation.step_calls import StepCalls
from affinity.conversation.steps import Committed, WakeSteps
from affinity.conversation.trace import CANCELLED, TRACE_KINDS, current_span, error_of, inside
from affinity.conversation.views import PendingRevisit
from affinity.conversation.wake_parts import WakeParts
from affinity.conversation.wake_runs import WakeRun, WakeRuns
from affinity.conversation.writing import WakeWriting, end_of_delegation
from affinity.flow.charging import Budget, limits_in
from affinity.headers import current_headers
from affinity.limits import (
    MAX_CYCLES,
    MAX_EVENT_BYTES,
    MAX_PAGE,
    MAX_PAYLOAD_BYTES,
    MAX_STATE_BYTES,
    MAX_UNREAD_EVENTS,
    MAX_WAKE_ENTRIES,
    check_depth,
    check_id,
    check_integer,
    check_payload,
    check_text,
    seconds_of,
)
from affinity.orchestration import ActivityContext
from affinity.orchestration.gates import HasLimitUse, check_declared, check_limit
from affinity.orchestration.middleware import CallKind
from affinity.readback import json_of
from affinity.session import OpenSession, Resource
from affinity.tracing import current_context, part_span

R = TypeVar("R", bound=RequestEvent)
T = TypeVar("T")

_PRIORITIES: Final = {"low": -10, "normal": 0, "high": 10}
MAX_PRIORITY: Final = 1_000

MAX_REASON: Final = 1024
"""Bytes of the reason of a revisit."""

_LOGGER: Final = logging.getLogger("affinity.conversation")


class Delegate(Protocol):
    """The conversations of a child: `affinity.Conversations`."""

    @property
    def spec(self) -> ConversationKind:
        """Names, events and bounds of these conversations."""
        ...

    @property
    def max_cycles(self) -> int:
        """Default bound of the wakes of one delegation."""
        ...


class Wake(CommonCalls[None], RunCalls, StepCalls):
    """One bounded run of a conversation's handler.

    Its entries, requests, revisits and delegations commit in one transaction with the state, the result and the
    watermark of processed inputs; or nothing does, and the run is repeated. When the handler has ended, calls that add
    something raise `SessionError`: tasks and threads that it has left behind are not part of the commit.

    Attributes:
        id: the same in all attempts.
        attempt: from 1; attempts that a drain interrupted do not count.
        conversation_id: of the conversation, which is its session id too.
        parent: the conversation whose child this one is; None: this conversation has no parent.
        pending: new inputs since the last wake, oldest first, and refusals for expired requests. Answers that an
            interrupt follows are left out: it has cleared them.
        due: the revisits that are due, greatest priority first, then by due time.
        headers: of the first of its inputs that was sent with some: see `affinity.use_headers`.
        context: of the activity that runs the wake.
    """

    def __init__(self, parts: WakeParts) -> None:
        """Called by the worker."""
        super().__init__(parts.journals.read, parts.kind, parts.lineage, parts.writing.session_id)
        self._parts = parts
        self._requests = parts.inputs.requests
        self._revisits = parts.inputs.revisits
        self._usage: dict[str, int] = {}
        self._number = 0
        self._left_revisits = [
            revisit for revisit in parts.writing.work.revisits if revisit.key.startswith(f"{parts.wake_id}.")
        ]
        self._committed = Committed(parts.inputs.committed)
        self._outcome: OutcomeUpdated | None = None
        for entry in self._read_committed():
            self._note_last(entry.event)
            self._add_usage(entry.event)
        self.id: str = parts.wake_id
        self.attempt: int = parts.attempt
        self.parent: str | None = parts.inputs.parent
        self.pending: Sequence[JournalEntry] = parts.inputs.pending
        self.due: Sequence[PendingRevisit] = parts.inputs.due
        self.headers: Mapping[str, str] = parts.headers
        self.context: ActivityContext = parts.context

    @property
    def _database(self) -> str:
        return self._parts.address[0]

    @property
    def events(self) -> Sequence[JournalEvent]:
        """The events of `pending`."""
        return [entry.event for entry in self.pending]

    @property
    def committed(self) -> Sequence[JournalEntry]:
        """The entries that earlier attempts of this wake have committed (see `commit`), without its trace. A handler
        that skips the entries it finds here needs the state that was committed with them: this call puts that state in
        place.
        """
        if self._parts.inputs.committed:
            self._parts.kept.look()
        return self._read_committed()

    def _read_committed(self) -> Sequence[JournalEntry]:
        return [self._types.read(entry) for entry in self._parts.inputs.committed]

    @property
    def read_up_to(self) -> int:
        """Number of the last input that this wake was given, or that an earlier one has processed."""
        return self._parts.writing.processed

    @property
    def interrupt(self) -> UserInterrupt | None:
        """The last interrupt among the inputs. It has dropped the requests and revisits that were pending, and cleared
        the answers that no wake had read.
        """
        return next((event for event in reversed(self.events) if isinstance(event, UserInterrupt)), None)

    @property
    def requests(self) -> Sequence[PendingRequest[JournalEvent]]:
        """The pending requests, oldest first, with the requests that this wake has made."""
        return tuple(self._requests)

    @property
    def usage(self) -> dict[str, int]:
        """The sum of ``usage`` of the entries of this wake, in earlier attempts too (see `committed`)."""
        return dict(self._usage)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``affinity.conversation``, with conversation, wake, attempt and worker in ``extra``."""
        about = {"session_id": self.conversation_id, "wake_id": self.id, "attempt": self.attempt}
        return logging.LoggerAdapter(_LOGGER, {**about, "worker_id": self.context.worker_id})

    # -- output

    def append(self, event: JournalEvent, /) -> None:
        """Append an event to the journal.

        Raises:
            WakeMisuse: the value is not an event of these conversations, is one that only clients or the conversation
                write, or is a request (see `require`).
            InvalidInput: the wake would have more than `ConversationLimits.entries`.
            NotSerializable, PayloadTooLarge: a value in the event has no JSON form, or the event is too large.
        """
        check_output(event, self._types)
        if isinstance(event, RequestEvent):
            raise errors.WakeMisuse(
                f"{type(event).__name__} is a request: use wake.require(), which waits for its answer"
            )
        self._append(event)

    def stream(self, value: Any, /) -> None:
        """Show provisional output to readers now: text, or another JSON value. The commit of the wake replaces it, and
        an attempt that fails retracts it.

        Raises:
            NotSerializable, PayloadTooLarge: it has no JSON form, or is too large.
        """
        self._parts.stream.write(value)

    @contextmanager
    def stream_tool(
        self, tool: str, tool_use_id: str, arguments: Mapping[str, JsonValue], /, *, call_key: str = ""
    ) -> Iterator[None]:
        """Show readers that a call of a tool runs, in the block: as `ToolStarted`, and `ToolEnded`, which is an error
        if the block raises. `run_loop` does it for each call. ``call_key``: the key of the call's `ToolUse`; by default
        a new key.

        Raises:
            NotSerializable, PayloadTooLarge: the arguments have no JSON form, or are nested too deep.
        """
        stream = self._parts.stream
        key = stream.start_tool(tool, tool_use_id, arguments, call_key)
        try:
            yield
        except BaseException:
            stream.end_tool(key, is_error=True)
            raise
        stream.end_tool(key, is_error=False)

    def finish(self, result: JsonValue = None) -> None:
        """End the delegations of this conversation with this result, with the wake's commit.

        Without this call they end with the text of the wake's last `AgentMessage`, when there is nothing left to do: no
        input, no request, no revisit, and no unfinished delegation to a child of its own.

        Raises:
            NotSerializable, PayloadTooLarge: the result has no JSON form, or no event has room for it.
        """
        text = check_depth(f"[{_as_json('result', result, MAX_EVENT_BYTES)}]", "the result")
        self._require_running()
        self._parts.finish.is_set, self._parts.finish.result = True, from_json(text)[0]

    def note_truncated(self) -> None:
        """Note that the handler was cut off before it was done, as `run_loop` is by ``max_rounds``: a wake that would
        end with "end_turn" ends with "truncated".

        Raises:
            SessionError: the handler has ended.
        """
        self._require_running()
        self._parts.is_truncated = True

    # -- limits

    async def consume(self, limit: HasLimitUse, units: int) -> None:
        """Count units that this wake has used in the rate of a limit, such as the tokens of a model's reply: see
        `ActivityContext.consume`. They count immediately, and again when the wake is repeated; within a `step` they
        count as often as that runs.

        Args:
            limit: a limit, or a key as of ``tokens.key(owner)``.
            units: an integer from 0.

        Raises:
            InvalidLimit, InvalidOptions, ActivityMisuse: as `ActivityContext.consume`.
            SessionError: the handler has ended.
        """
        self._require_running()
        await self.context.consume(limit, units)

    async def budget(self, limit: HasLimitUse) -> Budget:
        """Return how much of a limit's rate is used now, by all work: whether it can pay for more. It takes two reads.

        Raises:
            InvalidLimit: it is no limit, has keys and none is named, or no app declares it.
            SessionError: the handler has ended.
        """
        self._require_running()
        use = check_limit(limit)._use
        check_declared(limit)
        limits = limits_in(self.context)
        return Budget(use) if limits is None else await limits.get_budget(use)

    @property
    def _writing(self) -> WakeWriting:
        self._require_running()
        return self._parts.writing

    def _require_running(self) -> None:
        self._parts.require_running()

    def _append(self, event: JournalEvent) -> None:
        writing = self._writing
        if self._committed.take(event.kind, lambda payload: payload == self._types.encode(event)) is None:
            writing.append(event)
            self._add_usage(event)
        else:
            self._parts.kept.note_taken()
        self._note_last(event)

    def _add_usage(self, event: JournalEvent) -> None:
        for name, number in getattr(event, "usage", {}).items():
            self._usage[name] = self._usage.get(name, 0) + number

    def _note_last(self, event: JournalEvent) -> None:
        """Note an event of the wake, if it stands for the earlier events of its kind."""
        if isinstance(event, AgentMessage) and not self._parts.finish.is_set:
            self._parts.finish.result = event.text
        if isinstance(event, OutcomeUpdated):
            self._outcome = event

    @contextmanager
    def span(self, name: str, /, *, calls: bool = False) -> Iterator[None]:
        """Trace the block as a part of the wake, such as a tool: its beginning, its end, and its error are in the
        journal.

        Args:
            name: the name of the span.
            calls: the block calls another service: in OpenTelemetry the span is of kind CLIENT.

        Raises:
            InvalidId: the name is out of bounds.
        """
        trace, clock = self._parts.trace, time.monotonic()
        outer = current_span()
        begun = trace.started(trace.next_id(), check_id(name, "name of a span"), parent=outer)
        self._record("span.started", begun)
        error: SpanError | None = None
        try:
            with inside(begun["span"]), part_span(name, calls=calls):
                yield
        except BaseException as raised:
            error = error_of(raised)
            raise
        finally:
            self._record("span.completed", trace.completed(begun, clock, error))

    def _record(self, kind: str, fields: Mapping[str, Any]) -> None:
        writing = self._parts.writing
        if not self._parts.has_ended and len(writing.entries) < MAX_WAKE_ENTRIES:
            self._parts.trace.entries.append(writing.record(kind, fields))

    async def arrived(self) -> Sequence[JournalEntry]:
        """Return the inputs that have come since this wake began, oldest first, as many as one wake reads: such as a
        message that changes what is asked for. They stay pending, and a later wake has them. So does one that an
        earlier attempt has found here.

        Raises:
            SessionError: the handler has ended.
        """
        self._require_running()
        return [self._types.read(entry) for entry in await self._read_arrived()]

    async def _read_arrived(self) -> Sequence[Entry]:
        query = JournalQuery(
            session_id=self.conversation_id, after=self.read_up_to, pending=True, limit=self._kind.limits.inputs
        )
        page = await self._parts.journals.read(query)
        return [] if page is None else page.entries

    async def _take_arrived(self, is_wanted: Callable[[JournalEvent], bool]) -> Sequence[JournalEntry]:
        """Add the inputs that have come since to those of this wake, up to the first one that is not wanted, or has
        more to it than its event. An entry says where they were read: it commits with what the handler does next.
        """
        self._require_running()
        if self._parts.take_inputs is None or self._parts.writing.creations:  # a new conversation has the others
            return []
        read = takewhile(lambda each: meta_of(each.payload).delegation is None, await self._read_arrived())
        found = [(entry, self._types.read(entry)) for entry in read]
        taken = [*takewhile(lambda each: is_wanted(each[1].event), found)]
        if taken:
            self._parts.writing.note(InputsRead(len(taken), len(self._parts.writing.work.inputs)))
            self._parts.take_inputs([entry for entry, _ in taken])
            self._steps.note_given()
            self.pending = [*self.pending, *(each for _, each in taken)]
        return [each for _, each in taken]

    # -- before the end

    @cached_property
    def _steps(self) -> WakeSteps:
        return WakeSteps(self._parts)

    async def commit(self) -> None:
        """Make durable and visible now the entries, requests and delegations so far, and the state. The inputs stay
        pending until the wake ends. After a wake has made a conversation (`fork`, `merge` …), this does nothing, and
        the end of the wake commits the rest: the new conversation begins with the inputs that the wake has processed.

        The commit stays when the wake fails, or is repeated: the next attempt has its entries in the history, as
        `committed`, and an entry that it adds again with the same content is not written twice. That attempt begins
        with the state from before the wake. Where it makes this commit again, the state that was committed is put in
        place: so each change counts once.

        Raises:
            SessionWriteConflict: the wake no longer runs here, or may not know whether the write was applied. Do not
                catch it: the wake is repeated.
            SessionError: the handler has ended.
            NotSerializable, PayloadTooLarge: the state is refused, as at the end of a wake.
        """
        self._require_running()
        await self._steps.commit()

    def section(self, name: str = "section", /) -> Section:
        """Begin a section, which goes on where an earlier attempt has stopped: such as a loop that asks a model. It
        reads its committed entries (`Section.committed`, `history`), and does not repeat that work. So the state of its
        last commit is put in place here. A section is known by its name and its place among the sections of that name.

        Raises:
            InvalidId: the name is out of bounds.
            SessionError: the handler has ended.
        """
        self._require_running()
        commit = self._steps.begin_section(check_id(name, "name of a section"))

        async def commit_here() -> None:
            self._require_running()
            await commit()

        read, endings = self._read_committed(), self._parts.endings
        return Section(commit_here, read, endings, self._steps.count, self._take_arrived)

    async def keep_token(self, token: str, /) -> None:
        """Within the function of a step: commit a token by which its ``resume`` finds what the function has begun, such
        as the id of a background call of a model. A later token takes its place.

        Raises:
            WakeMisuse: no function of a step of this wake runs here.
            InvalidId, PayloadTooLarge: it is no text, or larger than `limits.MAX_TOKEN`.
            SessionWriteConflict, SessionError, InvalidInput: see `step`.
        """
        self._require_running()
        await self._steps.keep_token(token)

    def run(self, name: str, /) -> AbstractAsyncContextManager[WakeRun]:
        """Begin a run, or go on in it: its steps keep their results until the block is left, also when the wake ends
        before that, to wait for a person. A later wake runs the block again, and gets these results.

        ::

            async with wake.run("refund") as run:
                plan = await run.step("plan", ask_model, wake.id)
                answer = await run.require(ToolConfirmation(tool="refund", arguments=plan))  # of a later wake
                ...

        A block that waits is left (see `WakeRun.require`), and the wake goes on behind it. A run ends when its block is
        left in any other way, also by an error that the handler catches; and by an interrupt. Its steps count to the
        bounds of `step`, in each wake in which it goes on.

        Raises:
            InvalidId: the name is out of bounds.
            WakeMisuse: a run of this name goes on in this wake, or waits.
            SessionError: the handler has ended.
        """
        self._require_running()
        return self._runs.open(check_id(name, "name of a run"))

    @cached_property
    def _runs(self) -> WakeRuns:
        return WakeRuns(self._parts, self._steps, self.require)

    def _end_runs(self) -> None:
        """Remove the rows of the runs that do not go on behind this wake."""
        if self._parts.writing.run_steps:
            self._runs.end(self._parts.writing.run_steps)

    async def _step(self, name: str, function: Callable[..., Any], args: Sequence[Any], **options: Any) -> Any:
        self._require_running()
        return await self._steps.run(name, function, args, **options)

    def _with_middleware(
        self, kind: CallKind, name: str, input: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function with the middleware of the app around it, for layers above."""
        return self._parts.around(kind, name, input, function)

    async def begin_once(self, key: str, /) -> bool:
        """Record that something is to run once, before it begins. False: it was begun by an earlier attempt, or by an
        earlier wake that was interrupted or has failed since the last successful wake.

        Raises:
            InvalidId: the key is out of bounds.
            InvalidInput, SessionWriteConflict, SessionError: see `step`.
        """
        self._require_running()
        return await self._steps.begin_once(key)

    def has_begun(self, key: str, /) -> bool:
        """Return whether `begin_once` has recorded this key, in this wake or in one that it names."""
        return self._steps.has_begun(key)

    # -- resources

    async def resource(self, resource: Resource[T], /) -> T:
        """Return a resource of this conversation's session, or of its home: see `OpenSession.resource`.

        Raises:
            ResourceClosed: `close_resource` has closed it.
            SessionError: the handler has ended.
            Exception: the error of its ``open``.
        """
        opening = self._opening()
        found = await opening.resource(resource)
        if not resource.is_durable:
            opening._mark_open()
        return found

    async def close_resource(self, resource: Resource[Any], /) -> None:
        """End this conversation's use of a resource; see `OpenSession.close_resource`.

        Raises:
            SessionError: the handler has ended.
        """
        await self._opening().close_resource(resource)

    def _opening(self) -> OpenSession[Any]:
        if self._parts.opening is None:
            raise errors.SessionError("a wake has resources while its handler runs")
        return self._parts.opening

    # -- requests

    def require(self, request: R, /, *, expires_in: float | timedelta | None = None) -> R:
        """Ask a person, or the client: the conversation waits for the answer, which is an input of a later wake.

        Args:
            request: `ToolConfirmation`, `CustomToolUse`, or a request of the application.
            expires_in: seconds, or a timedelta, after which it counts as refused; a negative time counts as 0. None: it
                waits forever.

        Returns:
            The request with its new id, so that no late answer reaches another request.

        Raises:
            WakeMisuse: the event is not a request.
            InvalidInput: the conversation has as many pending requests as it may have.
            InvalidOptions: the time is out of bounds.
            NotSerializable, PayloadTooLarge: see `append`.
        """
        if not isinstance(request, RequestEvent) or "request_id" not in type(request).model_fields:
            raise errors.WakeMisuse(f"require takes a RequestEvent with a field request_id, not {request!r:.80}")
        seconds = None if expires_in is None else seconds_of("expires_in", expires_in)
        if (asked := self._find_committed(request, "request_id")) is not None:
            return request.model_copy(update={"request_id": asked})
        if len(self._requests) >= (most := self._kind.limits.requests):
            raise errors.InvalidInput(
                f"{len(self._requests)} requests are pending, the limit of {most} (ConversationLimits)"
            )
        found = self._new_id()
        made = request.model_copy(update={"request_id": found})
        self._append(made)
        payload = self._writing.entries[-1].payload
        new = NewRequest(request_id=found, kind=made.kind, payload=payload, expires_in=seconds)
        self._writing.request(new)
        now = datetime.now(UTC)
        until = None if seconds is None else now + timedelta(seconds=seconds)
        self._requests.append(
            PendingRequest(
                conversation_id=self.conversation_id,
                conversation_kind=self._kind.name,
                request_id=found,
                kind=made.kind,
                event=made,
                wake_id=self.id,
                created_at=now,
                expires_at=until,
            )
        )
        return made

    def withdraw(self, request_id: str, /) -> None:
        """Withdraw a pending request of this conversation: nobody has to answer it any longer. The end of the wake
        answers it, as if it had expired, and a later answer raises `RequestNotPending`.

        An answer that comes while this wake runs is an input of the next one all the same.

        Args:
            request_id: of one of `requests`.

        Raises:
            WakeMisuse: no such request is pending.
            SessionError: the handler has ended.
        """
        self._parts.require_running()
        found = next((request for request in self._requests if request.request_id == request_id), None)
        if found is None:
            raise errors.WakeMisuse(f"no request {request_id!r} is pending: see Wake.requests")
        self._requests.remove(found)
        self._writing.withdraw(request_id, self._types.withdrawn_answer(found.kind, request_id))

    # -- revisits

    def revisit(
        self,
        delay: float | timedelta,
        *,
        key: str | None = None,
        priority: Literal["low", "normal", "high"] | int = "normal",
        reason: str = "",
        note: JsonValue = None,
    ) -> None:
        """Request a later wake.

        Args:
            delay: seconds, or a timedelta, by the database's clock; a negative one counts as 0.
            key: while a revisit of this key is pending, another one is not added, whatever the bound; a revisit that is
                due in this wake does not count as pending. By default a new key.
            priority: of revisits that are due together, the greater first; the names are -10, 0 and 10.
            reason: the reason, for the later wake and for people.
            note: anything else that the later wake needs, as JSON.

        Raises:
            InvalidInput: the conversation has as many pending revisits as it may have.
            InvalidId, InvalidOptions, NotSerializable, PayloadTooLarge: an argument is out of bounds.
        """
        writing = self._writing
        number = _PRIORITIES.get(priority, priority) if isinstance(priority, str) else priority
        if type(number) is not int or abs(number) > MAX_PRIORITY:
            raise errors.InvalidOptions(
                f"priority must be low, normal, high, or an integer from -1000 to 1000, not {priority!r:.80}"
            )
        new = NewRevisit(
            key=self._new_id() if key is None else check_id(key, "key of a revisit"),
            delay=seconds_of("delay", delay),
            priority=number,
            reason=check_payload(check_text(reason, "reason of a revisit"), "reason of a revisit", MAX_REASON),
            note=_as_json("note of a revisit", note),
        )
        if new.key in self._revisits or (key is None and self._has_committed_revisit(new)):
            return
        if len(self._revisits) >= (most := self._kind.limits.revisits):
            raise errors.InvalidInput(
                f"{len(self._revisits)} revisits are pending, the limit of {most} (ConversationLimits)"
            )
        writing.measure(new.note)
        writing.revisits.append(new)
        self._revisits.add(new.key)

    def _has_committed_revisit(self, new: NewRevisit) -> bool:
        """Return whether an earlier attempt of this wake has committed the same revisit."""
        same = (self.id, new.priority, new.reason, new.note)
        for place, each in enumerate(self._left_revisits):
            if (each.wake_id, each.priority, each.reason, each.note) == same:
                del self._left_revisits[place]
                return True
        return False

    # -- children

    async def delegate(
        self,
        conversations: Delegate,
        child_id: str,
        event: JournalEvent,
        /,
        *,
        max_cycles: int | None = None,
        **about: Unpack[Description],
    ) -> str:
        """Give work to a child, a conversation with its own journal and state, which is created if it does not exist.

        It takes effect with the wake's commit. The end of the delegation is an input of this conversation,
        `ChildEnded`. If the child cannot take the work at the commit, or has been deleted since this call, the outcome
        is "failed", with an error of type ``DelegationRefused``.

        Args:
            conversations: of the child.
            child_id: its id; this conversation must be its parent.
            event: its input.
            max_cycles: wakes that it may run for this delegation, from 1; by default the ``max_cycles`` of its
                `Conversations.on_wake`.
            about: title, owner and labels of a new child; by default it has the owner and the labels of this one.

        Returns:
            The id of the delegation.

        Raises:
            NotAParent: the conversation exists, and this one is not its parent. (A child of an earlier conversation
                with this one's id, which was deleted without its children, has another parent.)
            ConversationKindMismatch, ConversationTerminated: it is of another kind, or takes no more events.
            WakeMisuse: the value is not an event, or is one that only a wake writes; or no `Conversations` are given.
            InvalidInput, InvalidOptions: an argument is out of bounds.
            NotSerializable, PayloadTooLarge: see `append`.
        """
        check_input(event, refusal=errors.WakeMisuse)
        spec = getattr(conversations, "spec", None)
        if not isinstance(spec, ConversationKind):
            raise errors.WakeMisuse(
                f"{conversations!r:.80} is no kind of conversations: give the Conversations of the child"
            )
        cycles = conversations.max_cycles if max_cycles is None else max_cycles
        check_integer(cycles, "max_cycles", 1, MAX_CYCLES)
        delegated = ChildDelegated(check_id(child_id, "conversation id"), "", spec.name, cycles)
        if (begun := self._find_committed(delegated, "delegation")) is not None:
            return begun
        child, given = await self._check_child(child_id, spec.name), check_description(about)
        described = await self._inherited() | given if child is None else None
        delegation = self._new_id()
        meta = EventMeta(
            trace=current_context(),
            headers=dict(current_headers()) or None,
            delegation=delegation,
            parent=self.conversation_id,
            parent_kind=self._kind.name,
            parent_journal=self._writing.work.journal_id,
            max_cycles=cycles,
        )
        entry = NewEntry(
            kind=event.kind, payload=spec.types.encode(event, meta), event_id=f"delegation/{delegation}", is_input=True
        )
        self._writing.measure(entry.payload)
        self._append(delegated.model_copy(update={"delegation": delegation}))
        self._writing.delegations.append(OpenDelegation(delegation, child_id))
        self._writing.appends.append(
            JournalAppend(
                session_id=child_id,
                kind=spec.name,
                entry=entry,
                message=WAKE_MESSAGE,
                start=replace(spec.start(parent=self.conversation_id), about=described),
                journal_id=child,
                sender=self.conversation_id,
                unread_limit=MAX_UNREAD_EVENTS,
                if_refused=self._refused(child_id, delegation),
            )
        )
        return delegation

    async def _inherited(self) -> Description:
        """Return the part of this conversation's description that a new child inherits."""
        for own in await self._parts.journals.list(JournalFilter(session_id=self.conversation_id), 1):
            return {"owner": own.owner, "labels": own.labels}
        return {}

    def _refused(self, child_id: str, delegation: str) -> JournalAppend:
        """Return the end of a delegation that the commit refuses, although the child could take it before."""
        error = SpanError(type="DelegationRefused", message=json.loads(REFUSAL_MARK))
        event = ChildEnded(child=child_id, delegation=delegation, outcome="failed", error=error)
        return end_of_delegation(
            event, self.conversation_id, self._parts.kind.name, self._parts.writing.work.journal_id
        )

    async def children(self, *, terminated: bool | None = None) -> Sequence[str]:
        """Return the ids of the children, newest first, at most `limits.MAX_PAGE`; without children that this wake
        creates.
        """
        journal_id = self._parts.writing.work.journal_id
        where = JournalFilter(parent=self.conversation_id, parent_journal=journal_id, closed=terminated)
        return [row.session_id for row in await self._parts.journals.list(where, MAX_PAGE)]

    async def kind_of_child(self, child_id: str) -> str | None:
        """Return the kind of a child; None: this conversation has no such child."""
        journal_id = self._parts.writing.work.journal_id
        where = JournalFilter(session_id=child_id, parent=self.conversation_id, parent_journal=journal_id)
        found = await self._parts.journals.list(where, 1)
        return found[0].kind if found else None

    async def _check_child(self, child_id: str, kind: str) -> int | None:
        """Return the journal id of a child; None: the child has no journal yet."""
        if child_id == self.conversation_id:
            raise errors.NotAParent(child_id, "a conversation is not its own child")
        if any(creation.session_id == child_id for creation in self._writing.creations):
            raise errors.NotAParent(child_id, "this wake makes it from another conversation")
        page = await self._parts.journals.read(JournalQuery(session_id=child_id, limit=1))
        if page is None:
            return None
        if page.kind != kind:
            raise errors.ConversationKindMismatch(child_id, f"it is of kind {page.kind!r}, not {kind!r}")
        if page.parent != self.conversation_id:
            raise errors.NotAParent(child_id, f"it is no child of {self.conversation_id!r}")
        if page.parent_journal != self._writing.work.journal_id:
            raise errors.NotAParent(
                child_id,
                f"it is a child of an earlier conversation with the id {self.conversation_id!r}, which was deleted "
                "without it: delete it, or use another id",
            )
        if page.closed or has_ended(page):
            raise errors.ConversationTerminated(child_id, "it has ended, and takes no more events")
        return page.journal_id

    # -- runs

    def _start_run(self, event: JournalEvent, name: str, work: dict[str, Any]) -> str:
        writing = self._writing
        if (begun := self._find_committed(event, name)) is not None:
            return begun
        run = self._new_id()
        source = {"conversation": self.conversation_id, "kind": self._kind.name, "journal": writing.work.journal_id}
        start = new_run(self._kind, cast(RunTask, {**source, "run": run, **work}))
        writing.measure(start.start)
        self._append(event.model_copy(update={name: run}))
        writing.delegations.append(OpenDelegation(run, run))
        writing.starts.append(start)
        return run

    # -- lineage

    async def merge(
        self,
        left: str,
        right: str,
        *,
        into: str,
        state: Any = None,
        keep: Literal["left", "right"] | None = None,
        operator: str | None = None,
        extras: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Merge two conversations of this kind into a new one, with the wake's commit.

        It has the entries of the left one, then the entries of the right one that the left one does not have; see
        `ConversationHandle.merge`.

        Raises:
            UnknownConversation, ConversationKindMismatch: no conversation has this id, or it is of another kind.
            InvalidOptions: the sides use different resources, and ``keep`` is not given.
            ConversationExists, InvalidInput: see `fork`.
        """
        creation = await self._planner.merge(
            left, right, into, state=state, keep=keep, operator=operator, extras=extras
        )
        await self._create(creation)

    async def total_usage(self) -> dict[str, int]:
        """Return the sum of ``usage`` of all committed entries, like `ConversationHandle.usage`, and of this wake."""
        total = Counter(await self._planner.usage(self.conversation_id))
        for entry in self._parts.writing.entries:  # without what `commit` has committed
            if entry.kind in self._types.kinds_with_usage:
                total.update(from_json(entry.payload).get("usage", {}))
        return dict(total)

    async def _derive(self, new_id: str, plan: Any, *args: Any, **options: Any) -> None:
        await self._create(await plan(self.conversation_id, *args, **options))

    async def _create(self, creation: JournalCreation) -> None:
        new_id = creation.session_id
        made = {planned.session_id for planned in self._writing.creations} | {
            append.session_id for append in self._writing.appends
        }
        taken = await self._planner.is_taken(new_id) or await self._parts.journals.has_instance(new_id)
        if taken or new_id in made:
            raise errors.ConversationExists(new_id, "its id is in use")
        size = sum([planned.size for planned in (*self._writing.creations, creation)])
        if self._writing.creations and size > MAX_STATE_BYTES:
            raise errors.PayloadTooLarge(
                f"the conversations that the wake makes have {size} bytes, over the limit of {MAX_STATE_BYTES}"
            )
        self._writing.creations.append(creation)

    # -- reading

    async def outcome(self) -> OutcomeUpdated | None:
        """Return the goal of the conversation, with the changes of this wake; None: it has none."""
        return self._outcome or await super().outcome()

    async def _entries(self, query: JournalQuery) -> list[JournalEntry]:
        """Return entries without the trace of this wake, unless kinds or the wake are given: a repeated attempt
        reads the same entries as the first one.
        """
        found: list[JournalEntry] = []
        while True:
            read = await super()._entries(query)
            if query.kinds or query.wake_id is not None:
                return read
            kept = [entry for entry in read if not self._is_own_trace(entry)]
            found = [*kept, *found] if query.newest_first else [*found, *kept]
            if len(kept) == len(read):
                return found
            rest = replace(query, limit=query.limit - len(kept))
            query = replace(rest, before=read[0].seq) if query.newest_first else replace(rest, after=read[-1].seq)

    def _is_own_trace(self, entry: JournalEntry) -> bool:
        """Return whether the entry belongs to the trace of this wake, or closes the trace of a wake that was cancelled
        before.
        """
        is_own = entry.wake_id == self.id or (entry.event_id or "").startswith(CANCELLED)
        return is_own and str(entry.kind).startswith(TRACE_KINDS)

    async def conversations(
        self, *, prefix: str | None = None, conversation_id: str | None = None, limit: int = DEFAULT_ENTRIES
    ) -> Sequence[ConversationInfo]:
        """Return the conversations of this kind, newest first, with their status; without those that this wake makes.

        Args:
            prefix: beginning of their ids.
            conversation_id: this one alone.
            limit: the greatest number of conversations.
        """
        where = JournalFilter(kind=self._kind.name, prefix=prefix, session_id=conversation_id)
        return [info_of(row) for row in await self._parts.journals.list(where, limit)]

    async def read(
        self,
        conversation_id: str,
        /,
        *,
        after: int | str | None = None,
        before: int | str | None = None,
        around: int | str | None = None,
        kinds: Kinds = (),
        wake: str | None = None,
        last: int | None = None,
        limit: int = DEFAULT_ENTRIES,
    ) -> Sequence[JournalEntry]:
        """Return entries of another conversation, for tools. The arguments are those of `history`.

        Raises:
            UnknownConversation: no conversation has this id.
            ConversationKindMismatch: its kind is neither the kind of this conversation nor in ``readable``.
            UnknownEntry, InvalidInput: see `history`.
        """
        reader = EntryReader(self._read_other, self._types, check_id(conversation_id, "conversation id"))
        return await reader.history(
            after=after, before=before, around=around, kinds=kinds, wake=wake, last=last, limit=limit
        )

    async def _read_other(self, query: JournalQuery) -> JournalPage:
        page = await self._parts.journals.read(query)
        if page is None:
            raise errors.UnknownConversation(query.session_id, "there is none")
        if page.kind != self._kind.name and page.kind not in self._parts.readable:
            raise errors.ConversationKindMismatch(
                query.session_id, f"conversations of kind {page.kind!r} cannot be read here"
            )
        return page

    def _new_id(self) -> str:
        self._number += 1
        attempt = f"{self._parts.writing.attempt}." if self._steps.has_parts else ""  # its ids may be in use
        return f"{self.id}.{attempt}{self._number}"

    def _find_committed(self, event: JournalEvent, name: str) -> str | None:
        """Return the value of a field of an event, an id, that an earlier attempt has committed with the other fields
        the same.
        """

        def is_same(payload: str) -> bool:
            return {**from_json(payload), name: ""} == wanted

        if not self._parts.inputs.committed:
            return None
        wanted = {**from_json(self._types.encode(event)), name: ""}
        found = self._committed.take(event.kind, is_same)
        if found is not None:
            self._parts.kept.note_taken()
        return None if found is None else str(from_json(found.payload)[name])


def _as_json(what: str, value: JsonValue, limit: int = MAX_PAYLOAD_BYTES) -> str:
    try:
        text, _ = json_of(value)
    except ValueError as error:
        raise errors.NotSerializable(f"the {what} has no JSON form: {error}") from error
    return check_payload(text, what, limit)


_current: Final[ContextVar[Wake | None]] = ContextVar("affinity.conversation.current_wake", default=None)


@contextmanager
def handled(wake: Wake) -> Iterator[None]:
    """Mark that the handler of this wake runs in the block."""
    token = _current.set(wake)
    try:
        yield
    finally:
        _current.reset(token)


def current_wake() -> Wake | None:
    """Return the wake whose handler runs here, also in the tasks and threads that it has started; None: no handler runs
    here. It is for libraries that a handler calls, and that have no other way to its wake.
    """
    return _current.get()
