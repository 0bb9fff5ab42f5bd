"""`Conversations`: the states of sessions, each with a journal and a handler."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from pydantic_core import to_json

from affinity.conversation.admission import NO_GATE, WakeGates, WakeLimit, WakePriority, gates_of
from affinity.conversation.client import ConversationCalls, ConversationConditions
from affinity.conversation.events import EventTypes, JournalEntry, JournalEvent
from affinity.conversation.handle import ConversationHandle
from affinity.conversation.home import HomedScope
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.journal import JournalWrite, PendingWork
from affinity.conversation.kinds import NOUN, ConversationKind, ConversationLimits
from affinity.conversation.program import Program, Start, WakeTask
from affinity.conversation.running import WakeRunner
from affinity.conversation.runs import RunEnd, RunTask, report_end, run_task
from affinity.conversation.scheduled import conditions_of, delivery_of, target_of
from affinity.conversation.scheduled import register as register_scheduled
from affinity.conversation.wake import Wake
from affinity.errors import InvalidApp, InvalidLimit, InvalidOptions
from affinity.flow.declaring import declare_limits
from affinity.limits import MAX_CYCLES, check_id, check_integer, check_items, seconds_of
from affinity.orchestration import ActivityContext, KernelApp, OrchestrationContext, RetryPolicy
from affinity.orchestration.definitions import Prefetch, is_async, refuse_other_context, refuse_unbound
from affinity.records import SessionMetadata, SessionState
from affinity.schedules import ScheduleTarget
from affinity.session import OpenSession, Sessions, StateCodec
from affinity.tasks import call_here
from affinity.user_code import check_function, is_rerun

S = TypeVar("S")

logger: logging.Logger = logging.getLogger("affinity.conversation")

Rebuild: TypeAlias = Callable[[Sequence[JournalEntry]], S | Awaitable[S]]
Handler: TypeAlias = Callable[[Wake, S], Awaitable[None]]


class SessionsOptions(TypedDict, Generic[S], total=False):
    """Options that `Conversations` has in common with `Sessions`."""

    schema_version: int
    initial: Callable[[str], S] | None
    codec: StateCodec[Any] | None
    record: type[Any] | None
    to_record: Callable[[S], Any] | None
    from_record: Callable[[Any], S] | None
    metadata: Callable[[S], SessionMetadata] | None
    follow_leases: bool
    fresh_scratch: bool
    dispose: Callable[[str, S], Awaitable[None] | None] | None
    max_sessions: int
    max_bytes: int | None
    size_of: Callable[[S], int] | None
    idle_timeout: float | None
    movable: bool
    timer: Callable[[], float]


DEFAULT_CYCLES: Final = 10
"""Default of ``max_cycles``."""


class Conversations(Sessions[S]):
    """Conversations of one kind: sessions with a journal of what happened, and a handler that runs for what arrives.

    ::

        support = affinity.Conversations(Chat, kind="support")

        @support.on_wake
        async def respond(wake: affinity.Wake, chat: Chat) -> None:
            for event in wake.events:
                ...

        app.include(support)

    A conversation begins with its first input. Its id is the id of its session and of its instance.
    """

    _noun: Final = NOUN

    def __init__(
        self,
        state: type[S],
        *,
        kind: str | None = None,
        events: Iterable[type[JournalEvent]] = (),
        limits: ConversationLimits | Iterable[ConversationLimits | WakeLimit] | None = None,
        priority: WakePriority = 0,
        readable: Iterable[str] = (),
        rebuild: Rebuild[S] | None = None,
        **options: Unpack[SessionsOptions[S]],
    ) -> None:
        """Define the conversations of one kind.

        Args:
            state: the type of the state of each conversation; see `Sessions`.
            kind: of the conversations, and of the records of their state; by default the name of the type.
            events: kinds of events beside the built-in ones.
            limits: at which wakes wait, such as ``[model, tenant.by(lambda info: info.owner)]``: a wake begins when all
                have room, and keeps its slots until it ends, or waits for its next attempt. Or bounds of each
                conversation, `ConversationLimits`; or both, in one list.
            priority: of the wakes, at their limits and among work that a worker may take: from 0 to
                ``limits.MAX_PRIORITY``, the greatest first. Or a function of the conversation (`ConversationInfo`).
            readable: other kinds of conversations that tools may read (`Wake.read`).
            rebuild: returns the state that entries lead to, oldest first, for a fork from an earlier entry, and for a
                summary; it may be async. Without it these begin with an initial state.
            options: the options of `Sessions`, but for ``store`` and ``auto_save``: the state commits with the journal.

        Raises:
            InvalidOptions: see `Sessions`; or an event is not a class of events, or its kind is taken; or the priority
                is refused.
            InvalidLimit: the limits are refused: one has keys, and neither a key nor a function is named.
        """
        if refused := options.keys() & {"store", "auto_save"}:
            raise InvalidOptions(f"{sorted(refused)[0]}: the state of a conversation commits with its journal")
        super().__init__(state, kind=kind, **options)
        self._handler: Handler[S] | None = None
        self._has_warned = False
        self.retry: RetryPolicy = RetryPolicy()
        self.max_cycles: int = DEFAULT_CYCLES
        self.wake_timeout: float | None = None
        self.readable: frozenset[str] = frozenset(check_id(name, "kind") for name in check_items(readable, "readable"))
        bounds, waits = _split_limits(limits)
        self.gates: WakeGates = gates_of(waits, priority)
        types = EventTypes(check_items(events, "events"))
        self.spec: ConversationKind = ConversationKind(name=self.kind, types=types, limits=bounds)
        self._app: KernelApp | None = None
        if rebuild is not None:
            check_function(rebuild, "rebuild", "entries")
        self._rebuild = rebuild

    @overload
    def on_wake(self, handler: Handler[S], /) -> Handler[S]: ...
    @overload
    def on_wake(
        self,
        handler: None = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        max_cycles: int = ...,
        timeout: float | timedelta | None = None,
    ) -> Callable[[Handler[S]], Handler[S]]: ...
    def on_wake(
        self,
        handler: Any = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        max_cycles: int = DEFAULT_CYCLES,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Register the handler: ``async def handler(wake, state)``. It runs on the holder of the session, for one wake
        at a time, with the state as `Sessions.open` gives it. It returns nothing: see `Wake.append`.

        Args:
            handler: the function, if the decorator is used without arguments.
            retry: when it raises. By default `RetryPolicy`: three attempts. Then the conversation has the status
                "failed". A resume tries its inputs again; with the next input they become dead letters. Not retried,
                among others: `PayloadTooLarge`, `NotSerializable`, `WakeMisuse`, `ActivityMisuse`. The time in the
                queue does not count for ``total_timeout``.
            max_cycles: wakes of one delegation, by default: see `Wake.delegate`.
            timeout: seconds, or a timedelta, that one attempt may take.

        Raises:
            InvalidApp: a handler is registered, or this is not an ``async def``, or does not take (wake, state).
            InvalidOptions: an option is out of range.
        """

        def register(function: Handler[S]) -> Handler[S]:
            if self._handler is not None and not is_rerun(self._handler, function):
                raise InvalidApp(f"the conversations of kind {self.kind!r} have a handler already")
            _check_handler(function, f"the handler of the conversations of kind {self.kind!r}")
            self._handler = function
            return function

        self.retry = RetryPolicy() if retry is None else retry
        self.max_cycles = check_integer(max_cycles, "max_cycles", 1, MAX_CYCLES)
        self.wake_timeout = None if timeout is None else seconds_of("timeout", timeout)
        return register if handler is None else register(handler)

    def _get_handler(self) -> Handler[S]:
        """Return the registered handler.

        Raises:
            InvalidApp: no handler is registered.
        """
        if self._handler is None:
            raise InvalidApp(
                f"the conversations of kind {self.kind!r} have no handler: decorate one with on_wake, above app.include"
            )
        return self._handler

    async def _handle(self, wake: Wake, state: S) -> None:
        """Run the handler for a wake. A value that it returns is dropped, with one warning."""
        handler: Callable[[Wake, S], Awaitable[object]] = self._get_handler()
        returned = await handler(wake, state)
        if returned is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the handler %s of the conversations of kind %r returned %s, which is dropped: "
                "use wake.append(AgentMessage(…)) for an answer, or wake.finish(…) for the result of a child",
                getattr(handler, "__qualname__", handler),
                self.kind,
                type(returned).__name__,
            )

    def connect(self, client: ConversationCalls, conversation_id: str) -> ConversationHandle:
        """Return the handle of a conversation; see `Client.conversation`."""
        return ConversationHandle(client, self.spec, conversation_id, self)

    def scheduled(self, event: JournalEvent, conversation_id: str) -> ScheduleTarget:
        """Return an event to a conversation, for `App.schedule` and `Schedules.create`; the event may begin the
        conversation.

        Raises:
            InvalidInput: the event or the id is refused.
        """
        receiver = check_id(conversation_id, "conversation id")
        return target_of(self.spec, {**delivery_of(self.spec, event), "to": receiver})

    def scheduled_each(self, event: JournalEvent, **where: Unpack[ConversationConditions]) -> ScheduleTarget:
        """Return an event to each conversation that fits at the time of the tick, for `App.schedule` and
        `Schedules.create`. It is sent in steps of 1,000, and not to terminated conversations. After a crash it goes on
        with the step in which it was.

        Args:
            event: see `ConversationHandle.send`; not an answer, and not an interrupt.
            where: conditions; see `affinity.conversation.client.ConversationConditions`.

        Raises:
            InvalidInput: the event or a condition is refused.
        """
        return target_of(self.spec, {**delivery_of(self.spec, event), "each": conditions_of(where)})

    def read_request(self, request: PendingRequest[Mapping[str, Any]]) -> JournalEvent:
        """Return the event of a request of the inbox; an `UnknownEvent` if these conversations do not know its kind."""
        return self.spec.types.decode(request.kind, to_json(request.event).decode())

    def _open_state(self, ctx: ActivityContext, work: PendingWork) -> OpenSession[S]:
        """Return the state of the conversation, for a wake."""
        scope: ActivityContext | HomedScope = ctx
        if work.home is not None:
            scope = HomedScope(ctx, ctx.instance_id, max(ctx.session_epoch or 0, work.epoch))
        return self._open_in_activity(scope, work.parent, is_new=not work.has_record)

    @property
    def _can_rebuild(self) -> bool:
        """True if the application has given ``rebuild``."""
        return self._rebuild is not None

    async def _rebuilt(self, conversation_id: str, entries: Sequence[JournalEntry]) -> SessionState | None:
        """Return the state that these entries lead to, as it is stored; None without ``rebuild``.

        Raises:
            NotSerializable, PayloadTooLarge: it cannot be stored.
        """
        if self._rebuild is None:
            return None
        return await self._encoded(conversation_id, await call_here(self._rebuild, entries))

    async def _encoded(self, conversation_id: str, state: S) -> SessionState | None:
        """Return a state of a new conversation, as it is stored.

        Raises:
            NotSerializable, PayloadTooLarge: it cannot be stored.
        """
        encoded = await self._schema.encode(self._schema.new(conversation_id, state))
        return None if encoded is None else encoded.new

    def _functions(self) -> KernelApp:
        """Return the orchestrations and the activities of these conversations; for `App.include`.

        Raises:
            InvalidApp: no handler is registered.
        """
        self._get_handler()
        if self._app is None:
            self._app = self._registered()
        return self._app

    def _sources(self) -> Iterable[Callable[..., Any]]:
        """Return the handler; see `affinity.orchestration.app.HasFunctions`."""
        return [self._get_handler()]

    def _input_types(self) -> Mapping[str, Any]:
        """Return the application's events that clients may send; see `affinity.orchestration.app.HasInputTypes`."""
        return self.spec.types.input_types()

    def _registered(self) -> KernelApp:
        app, spec, runner = KernelApp(self.kind), self.spec, WakeRunner(self)
        declare_limits(app, self.gates.limits)

        @app.activity(name=spec.activity, prefetch=Prefetch(JournalWrite.guest, spec.limits.inputs))
        async def wake(ctx: ActivityContext, task: dict[str, Any]) -> dict[str, Any]:
            return cast(dict[str, Any], await runner.run(ctx, cast(WakeTask, task)))

        @app.orchestration(name=spec.orchestration)
        async def conversation(ctx: OrchestrationContext, start: dict[str, Any]) -> None:
            await Program(ctx, spec.activity, cast(Start, start), self.gates.fixed or NO_GATE).run()

        @app.orchestration(name=spec.run)
        async def run(ctx: OrchestrationContext, task: dict[str, Any]) -> None:
            await run_task(ctx, spec.report, cast(RunTask, task))

        @app.activity(name=spec.report)
        async def report(ctx: ActivityContext, end: dict[str, Any]) -> None:
            await report_end(ctx, cast(RunEnd, end))

        register_scheduled(app, spec)
        return app


def _split_limits(given: object) -> tuple[ConversationLimits, list[object]]:
    """Return the bounds of each conversation, and the limits at which wakes wait.

    Raises:
        InvalidLimit: it is neither, or has bounds twice.
    """
    if given is None or isinstance(given, ConversationLimits):
        return given or ConversationLimits(), []
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidLimit(f"limits are ConversationLimits, or a list of limits such as [model], not {given!r:.80}")
    limits = [*given]
    bounds = [limit for limit in limits if isinstance(limit, ConversationLimits)]
    if len(bounds) > 1:
        raise InvalidLimit("limits have ConversationLimits twice: give them once")
    return (*bounds, ConversationLimits())[0], [limit for limit in limits if not isinstance(limit, ConversationLimits)]


def _check_handler(function: Handler[Any], description: str) -> None:
    if not callable(function) or not is_async(function):
        raise InvalidApp(f"{description} must be an async def")
    refuse_unbound(description, function)
    signature = inspect.signature(function)
    try:
        signature.bind(None, None)
    except TypeError:
        raise InvalidApp(f"{description} must take the wake and the state, (wake, state), not {signature}") from None
    refuse_other_context(description, function, Wake, ("wake", "state"))
