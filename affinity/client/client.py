"""The client: start orchestrations, send them events, cancel them, wait for them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, Unpack, cast, overload

import anyio
from pydantic_core import to_json

from affinity import errors
from affinity.actions import action
from affinity.batching import batches
from affinity.client.activities import Activity
from affinity.client.administration import Administration
from affinity.client.background import IsAwaited, has_ended, has_ended_for_good
from affinity.client.calls import check_delivery, check_timeout, retry, retry_on, unknown_instance
from affinity.client.exports import keep_named_blobs
from affinity.client.inspection import InstanceConditions
from affinity.client.middleware import ClientMiddleware
from affinity.client.registered import RegisteredCalls
from affinity.client.requests import (
    IfEnded,
    Orchestration,
    Start,
    Started,
    StartOutcome,
    StartTiming,
    encoded_input,
    name_of,
    new_cancellation,
    new_event,
    new_instance,
    result_codec,
    start_of,
)
from affinity.client.starts import PendingStart, refusal_of
from affinity.client.values import WantedValue, read_values, wait_value
from affinity.client.views import ExecutionSummary, Instance, InstanceTree, error_of, instance_of
from affinity.client.waits import NotedWait
from affinity.errors import Explanation, InvalidInput
from affinity.limits import MAX_PAGE, check_id
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.context import OrchestrationFunction, OrchestrationWithoutInput
from affinity.orchestration.definitions import MISSING, one_input
from affinity.orchestration.gates import DEFAULT_PRIORITY, HasLimitUse
from affinity.orchestration.overlap import IfRunning
from affinity.orchestration.typed import EventValue, ExternalEvent, event_name
from affinity.payloads import Blobs, PayloadCodec, open_coded
from affinity.provider.contract import (
    FINISHED,
    NO_QUOTAS,
    Delivery,
    InstanceInfo,
    MessageKey,
    NewInstance,
    NewMessage,
    Provider,
)
from affinity.records import Labels, SessionStore, raise_unreadable
from affinity.session.manager import SessionManager
from affinity.session.stores import RetryingStore
from affinity.telemetry import INSTANCE_ATTRIBUTE
from affinity.tracing import client_span

if TYPE_CHECKING:
    from typing_extensions import TypeForm

I = TypeVar("I")  # noqa: E741 - the usual letter for an input type
R = TypeVar("R")
T = TypeVar("T")


_FIRST_EVENTS: Final = 10
"""Events of an execution among which its start is."""


def _accept_all(_: object) -> bool:
    return True


class StartOptions(StartTiming, total=False):
    """Options of `Client.start`."""

    instance_id: str | None
    version: str | None
    for_session: str | None
    if_ended: IfEnded | None
    force: bool


class KernelClient(Administration, RegisteredCalls):
    """The calls of the kernel; `affinity.Client` has those of the guests too."""

    def __init__(
        self,
        url: str,
        *,
        codec: PayloadCodec | None = None,
        blobs: Blobs | None = None,
        middleware: Sequence[ClientMiddleware] = (),
    ) -> None:
        """Create a client of the database at ``url``, which is opened on entry.

        Args:
            url: see `affinity.provider.open_provider`.
            codec: encodes the payloads, as the workers of the database do; by default what ``AFFINITY_CODEC`` names.
            blobs: the blob store of the database (`affinity.blobs.Blobs`); by default what ``AFFINITY_BLOBS`` names.
            middleware: functions ``(call, next)``, with a `ClientCall`, around each start, event, ask and input of a
                conversation; the first one is the outermost. See `App.middleware`.

        Raises:
            InvalidOptions: ``codec`` is none; on entry, when ``AFFINITY_CODEC`` cannot be imported.
            InvalidUrl, ConnectionLost, AccessDenied, SchemaMismatch: on entry, as `affinity.provider.open_provider`.
            ClientError: on entry, when this object is open already.
            InvalidApp: a middleware is not a function of two arguments.
        """
        super().__init__(url, codec=codec, blobs=blobs, middleware=middleware)

    @classmethod
    def from_provider(cls, provider: Provider) -> Self:
        """Return a client on an open provider, which the caller has to close."""
        client = cls("")
        client._given = provider
        return client

    # -- starting

    @overload
    async def start(
        self, orchestration: OrchestrationFunction[I, R], input: I, **options: Unpack[StartOptions]
    ) -> Handle[R]: ...
    @overload
    async def start(
        self, orchestration: OrchestrationWithoutInput[R], **options: Unpack[StartOptions]
    ) -> Handle[R]: ...
    @overload
    async def start(self, orchestration: str, input: Any = ..., **options: Unpack[StartOptions]) -> Handle[Any]: ...
    @one_input
    async def start(
        self,
        orchestration: Orchestration,
        input: Any = MISSING,
        *,
        instance_id: str | None = None,
        version: str | None = None,
        for_session: str | None = None,
        if_ended: IfEnded | None = None,
        delay: float | timedelta = 0.0,
        at: datetime | None = None,
        priority: int = DEFAULT_PRIORITY,
        limits: Sequence[HasLimitUse] = (),
        debounce: float | timedelta | None = None,
        max_wait: float | timedelta | None = None,
        if_running: IfRunning | None = None,
        labels: Labels | None = None,
        force: bool = False,
    ) -> Handle[Any]:
        """Start an instance; for the id of an instance of the same orchestration, return that instance. The
        handle says which (`Handle.outcome`).

        Args:
            orchestration: a registered function, whose annotations type input and result, or a name.
            input: its input.
            instance_id: makes the call idempotent. By default a random one.
            version: by default the latest that the first worker registers.
            for_session: id of the session that it works for: shown in logs, spans and lists, given to code as
                ``ctx.session_id``, and inherited by sub-orchestrations. Activities do not run there because of it: that
                is ``.on_session(id)``. An instance that was there keeps its own, unless it is restarted.
            if_ended: what to do when the instance of this id has ended, with success or without. "return", the default:
                return it as it is. "fail": raise `InstanceFinished`. "restart": begin a new generation of it with this
                input, version and session, in one transaction; of calls that race, one restarts it. The history of the
                former generation stays readable as an earlier execution, and is kept as long as one. No activity,
                event, key or child of the former generation reaches the new one, which has no parent.
            force: by name, also with an input that the code of no live worker takes.
            delay: seconds until it begins, or a timedelta; by the database's clock, as ``at``. Until then it is
                "pending" (`Instance.starts_at`). Events and asks that are sent to it wait with it. A request to cancel
                ends it immediately, and none of its code runs.
            at: begins at this time, which has a time zone; one that is over counts as now. Not together with ``delay``.
            priority: from 0, the default, to `limits.MAX_PRIORITY`. Of instances that could begin, those of a greater
                priority do first; one more counts as much as an hour of waiting (`limits.PRIORITY_SECONDS`).
            limits: `affinity.Limit` objects, or keys of them. It begins when it has a place at each of them, which it
                keeps until it ends, over each ``continue_as_new``.
            debounce: seconds; with an ``instance_id``. It begins when no other start of this id has come for so long;
                each one replaces the input, version, session and limits of the one before. When a worker has taken it,
                ``if_running`` decides, which then is "queue_one" by default; ``if_ended`` is "restart" by default.
            max_wait: with ``debounce``: seconds since the first of these starts, after which it begins anyway.
            if_running: what to do when the instance of this id has not ended. "join", the default: return it as it is.
                "queue_one": begin when it has ended, in one more run; a later such start replaces the input of that
                run. "cancel": the same, and ask it to end. "fail": raise `InstanceRunning`. With "queue_one" and
                "cancel", ``if_ended`` is "restart" by default. A worker begins the next run within about a second.
            labels: texts by key, as in ``{"tenant": "acme"}``, by which `list_instances`, `count_instances`,
                `cancel_instances` and `resume_instances` find it: `limits.MAX_LABELS` at most, bounded like ids.
                Sub-orchestrations have them too, unless they are given others. `OrchestrationContext.set_labels`
                changes them. An instance that was there keeps its own, unless it is restarted or replaced.

        A name that no live worker has code for is started too, with one warning in the log.

        Raises:
            InstanceExists: the id belongs to an instance of another orchestration, ended or not.
            InstanceFinished: it has ended, and ``if_ended`` is "fail".
            InstanceRunning: it has not ended, and ``if_running`` is "fail".
            QuotaExceeded: the database has as many instances as it may have, or the input is larger than one may be.
            InvalidOptions: too many labels; both ``delay`` and ``at``; one that is over ten years from now; ``at`` with
                no time zone; ``debounce`` or ``if_running`` without an id, or ``debounce`` with a time, or above
                ``max_wait``.
            InvalidLimit: of ``limits``.
            InvalidInput: an id, a label, the priority or the input is refused; the subclass is the reason.
            OrchestrationMisuse: an input is missing, or too much.
        """
        new: Callable[..., Start] = Start
        start = new(
            orchestration,
            input,
            instance_id,
            version,
            for_session,
            if_ended,
            delay=delay,
            at=at,
            priority=priority,
            limits=limits,
            debounce=debounce,
            max_wait=max_wait,
            if_running=if_running,
            labels=labels,
        )
        (handle,) = await self.start_many([start], force=force)
        return handle

    @action("start", "instance")
    async def start_many(self, starts: Iterable[Start], *, force: bool = False) -> Sequence[Handle[Any]]:
        """Start instances in few round trips; each as by `start`, none when the form or the input of one is refused.

        Raises:
            InstanceExists: ids belong to instances of other orchestrations; all others have been started.
            InstanceFinished: instances have ended, and their ``if_ended`` is "fail"; all others have been started.
            QuotaExceeded: as by `start`; of more than `limits.MAX_BATCH`, the first ones may have been started.
        """
        wanted = list(starts)
        names, ids = [name_of(start.orchestration) for start in wanted], [start.instance_id for start in wanted]
        return await self._run_call("start", names, ids, lambda: self._start_all(wanted, force=force))

    async def _start_all(self, wanted: Sequence[Start], *, force: bool) -> Sequence[Handle[Any]]:
        with client_span("start", *[name_of(start.orchestration) for start in wanted]) as span:
            pending = [PendingStart(new_instance(start), start) for start in wanted]
            if len(pending) == 1:
                span.set({INSTANCE_ATTRIBUTE: pending[0].new.instance_id})
            for start in () if force else wanted:
                if isinstance(start.orchestration, str):
                    await self._check_start(start.orchestration, start.version, encoded_input(start))
            await self._settle_starts(pending)
        if (refusal := refusal_of(pending)) is not None:
            raise refusal
        return [
            Handle(
                instance_id=settled.new.instance_id,
                outcome=settled.outcome,
                _client=self,
                _result=result_codec(start.orchestration),
            )
            for start, settled in zip(wanted, pending, strict=True)
        ]

    @action("rerun", "instance", "instance_id", "new_id", "version")
    async def rerun(
        self,
        instance_id: str,
        *,
        input: Any = MISSING,
        new_id: str | None = None,
        version: str | None = None,
        force: bool = False,
    ) -> Handle[Any]:
        """Start the orchestration of an instance again, as a new instance with its session and its labels. Limits,
        priority and parent of the instance are not those of the new one.

        Args:
            instance_id: the instance, which has ended or not.
            input: of the new instance; by default the one that the present execution of the instance was given, by its
                start or by ``continue_as_new``.
            new_id: of the new instance; makes the call idempotent. By default a random one.
            version: by default the latest that the first worker registers.
            force: as in `start`.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidInput: the history of the instance has no input: give one; or the input is refused.
            InstanceExists, QuotaExceeded: see `start`.
        """
        instance = await self.status(instance_id)
        given = await self.input_of(instance_id) if input is MISSING else input
        options = StartOptions(
            instance_id=new_id, version=version, for_session=instance.session_id, labels=instance.labels, force=force
        )
        return await self.start(instance.name, given, **options)

    async def input_of(self, instance_id: str) -> Any:
        """Return the input of the present execution of an instance, as plain JSON values.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidInput: it has not begun yet, or its history was removed.
        """
        page = await self.history(instance_id).page(limit=_FIRST_EVENTS)
        for event in page.items:
            if event.type == "orchestration_started":
                return event.fields.get("input")
        raise InvalidInput(f"the history of instance {instance_id!r} has no input: give one")

    async def _settle_starts(self, pending: Sequence[PendingStart]) -> None:
        left = pending
        while left:
            free = [start for start in left if start.is_free]
            for batch in batches(free, _start_size):
                news = [start.new for start in batch]
                created_now = await self._begin(self._provider.create_instance, news, news)
                for start, created in zip(batch, created_now, strict=True):
                    start.outcome = "created" if created else None
            again = [(start, start.restart) for start in left if start.restart is not None]
            for part in batches(again, lambda pair: _start_size(pair[0])):
                restarts = [restart for _, restart in part]
                news = [start.new for start, _ in part]
                restarted = await self._begin(self._provider.restart_instance, restarts, news)
                for (start, _), done in zip(part, restarted, strict=True):
                    start.tried(is_done=done)
            left = [start for start in left if not start.is_settled]
            ids = list(dict.fromkeys(start.new.instance_id for start in left))
            found = {info.instance_id: info for batch in batches(ids) for info in await self._look_up(batch) if info}
            for start in left:
                start.look_at(found.get(start.new.instance_id))
            left = [start for start in left if not start.is_settled]

    async def _begin(
        self, verb: Callable[[Sequence[T]], Awaitable[Sequence[bool]]], batch: Sequence[T], news: Sequence[NewInstance]
    ) -> Sequence[bool]:
        """Create or restart instances; return for each whether it was."""
        begun = await retry(partial(verb, batch))
        if any(begun):
            if any(done and new.gate is not None for done, new in zip(begun, news, strict=True)):
                await self._open_gates()
            self._hints.notify_all()
        return begun

    @overload
    def handle(
        self, instance_id: str, orchestration: OrchestrationFunction[Any, R] | OrchestrationWithoutInput[R]
    ) -> Handle[R]: ...
    @overload
    def handle(self, instance_id: str, orchestration: str | None = ...) -> Handle[Any]: ...
    def handle(self, instance_id: str, orchestration: Orchestration | None = None) -> Handle[Any]:
        """Return a handle of an instance that other code starts. Nothing is sent, so it need not exist yet.

        Args:
            instance_id: the instance.
            orchestration: a registered function, whose annotation types the result; otherwise it is plain JSON values.

        Raises:
            InvalidId: the id is refused.
            InvalidApp: the function is not a registered orchestration.
        """
        codec = None if orchestration is None else result_codec(orchestration)
        checked = check_id(instance_id, "instance id")
        return Handle(instance_id=checked, outcome=None, _client=self, _result=codec)

    # -- sending

    @overload
    async def raise_event(
        self, instance_id: str, name: EventValue[Any], *, idempotency_key: str | None = ..., force: bool = ...
    ) -> None: ...
    @overload
    async def raise_event(
        self,
        instance_id: str,
        name: str,
        data: Any = ...,
        *,
        idempotency_key: str | None = ...,
        force: bool = ...,
    ) -> None: ...
    @action("raise", "instance", "instance_id", "name")
    async def raise_event(
        self,
        instance_id: str,
        name: str | EventValue[Any],
        data: Any = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
    ) -> None:
        """Send an instance an event; it is buffered until the orchestration waits for one of that name.

        Args:
            instance_id: the instance.
            name: of the event; or an event with its data, ``Message(...)``.
            data: anything that JSON can represent.
            idempotency_key: of the events with one key the instance gets the first: sent again, nothing happens, also
                once it has ended. A key is kept as long as the instance, or, with the worker option
                ``history_retention``, at least for that time.
            force: by name, also with data that the orchestration does not wait for, as far as workers know its type.

        Raises:
            UnknownInstance, InstanceFinished, TooManyUnreadEvents, QuotaExceeded: nothing was sent.
            InvalidId, NotSerializable, PayloadTooLarge: an id, the name or the data is refused.
            ConnectionLost: it may or may not have been sent; to send it again may deliver it twice, unless it has a
                key.
        """
        new: Callable[..., ExternalEvent] = ExternalEvent
        (delivery,) = await self.raise_events([new(instance_id, name, data, idempotency_key)], force=force)
        await self._check_delivery(instance_id, delivery)

    async def _check_delivery(self, instance_id: str, delivery: Delivery) -> None:
        refused = delivery in {"full", "over_quota"}
        check_delivery(instance_id, delivery, await self.quotas() if refused else NO_QUOTAS)

    @action("ask", "instance", "instance_id", "event")
    async def ask(
        self,
        instance_id: str,
        event: EventValue[R],
        *,
        idempotency_key: str | None = None,
        start: Started[I] | None = None,
        timeout: float | None = None,
        force: bool = False,
    ) -> R:
        """Send an instance an event, and wait for the reply to it (`ReceivedEvent.reply`). After a failover it is sent
        again, under its key: the database may have lost it.

        ::

            reply = await client.ask("chat-17", Message(UserMessage(text="hi")), idempotency_key="m-17")

        Args:
            instance_id: the instance; it follows ``continue_as_new``.
            event: with its data.
            idempotency_key: the instance receives one event per key. A later call with the same key, by any client,
                delivers nothing and returns the same reply. Default: a random key. The key and the reply are kept as
                for `raise_event`.
            start: the instance to start when no instance has this id: an orchestration, ``(orchestration, input)``, or
                a `Start`. When it has ended without an event of this key, ``if_ended`` of the `Start` applies.
            timeout: seconds; None: forever.
            force: see `raise_event` and `start`.

        Raises:
            NoReply: the instance has ended without a reply.
            WaitTimeout: no reply has come. The event, if it was sent, stays: ask again with the same key.
            UnknownInstance: no instance has this id, and ``start`` was not given; or it was deleted meanwhile.
            InstanceExists: the id belongs to an instance of another orchestration than ``start``; nothing was sent.
            InstanceFinished, TooManyUnreadEvents, QuotaExceeded: nothing was sent.
            InvalidInput: an id, the key, the event, or the input is refused.
            NotSerializable: the reply is not of the type of the event.
        """
        check_timeout(timeout)
        if not isinstance(event, EventValue):
            raise errors.InvalidOptions(f"ask takes an event with its data, as in Message(data), not {event!r}")
        key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
        ask = partial(self._ask, instance_id, event, key=key, start=start, timeout=timeout, force=force)
        return await self._run_call("ask", [event.event.name], [instance_id], ask)

    async def _ask(
        self,
        instance_id: str,
        event: EventValue[R],
        *,
        key: str,
        start: Started[Any] | None,
        timeout: float | None,
        force: bool,
    ) -> R:
        asked = MessageKey(instance_id, key)
        wanted = None if start is None else start_of(start, instance_id)
        name = None if wanted is None else new_instance(wanted).name
        with client_span("ask", event.event.name) as span, anyio.move_on_after(timeout):
            span.set({INSTANCE_ATTRIBUTE: instance_id})
            message = new_event(ExternalEvent(instance_id, event, idempotency_key=key), asked=True)
            if not force:
                await self._check_events([ExternalEvent(instance_id, event)])
            async with self._changes_of(instance_id) as change:
                reply = None
                while reply is None:
                    timeline = self._replies.timeline
                    if wanted is not None:
                        state = await self._replies.look_up(asked, name=name)
                        if state is None or (state.status in FINISHED and not state.is_known):
                            await self._start_all([wanted], force=force)
                    delivery = await self._replies.send(message)
                    await self._check_delivery(instance_id, delivery)
                    if delivery == "delivered":
                        await change.wait()
                    reply = await self._replies.wait(asked, change, timeline, name=name)
                return cast(R, event.event.reply_codec.decode(reply))
        raise await self._wait_timeout(instance_id, f"instance {instance_id!r} has not replied within {timeout:g} s")

    @action("raise", "instance")
    async def raise_events(self, events: Iterable[ExternalEvent], *, force: bool = False) -> Sequence[Delivery]:
        """Send events in few round trips, in order.

        Returns:
            For each event "delivered", "repeated" (one of its key was there), "unknown", "finished", "full" (too many
            are unread) or "over_quota" (its instance would have too many bytes).

        Raises:
            InvalidId, NotSerializable, PayloadTooLarge: one is refused; nothing was sent.
            ConnectionLost: some may have been sent. It is retried when all of them have keys.
        """
        wanted = list(events)
        names, ids = [event_name(event.name) for event in wanted], [event.instance_id for event in wanted]
        return await self._run_call("raise", names, ids, lambda: self._raise_all(wanted, force=force))

    async def _raise_all(self, wanted: Sequence[ExternalEvent], *, force: bool) -> Sequence[Delivery]:
        with client_span("raise", *[event_name(event.name) for event in wanted]) as span:
            messages = [new_event(event) for event in wanted]
            if len(messages) == 1:
                span.set({INSTANCE_ATTRIBUTE: messages[0].instance_id})
            if not force:
                await self._check_events(wanted)
            parts = batches(messages, _message_size)
            return [delivery for batch in parts for delivery in await self._send(batch)]

    @action("cancel", "instance", "instance_id", "reason")
    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Ask an instance to end, after the cleanup of its code.

        Raises:
            UnknownInstance, InstanceFinished: nothing was sent.
            InvalidId: the id is refused.
        """
        (delivery,) = await self._send([new_cancellation(instance_id, reason)])
        check_delivery(instance_id, delivery)

    @action("cancel", "instance", "", "reason")
    async def cancel_many(self, instance_ids: Iterable[str], reason: str = "") -> Sequence[Delivery]:
        """Ask instances to end, in few round trips: return for each "delivered", "unknown" or "finished".

        Raises:
            InvalidId: an id is refused; nothing was sent.
            ConnectionLost: some may have been asked.
        """
        messages = [new_cancellation(instance_id, reason) for instance_id in instance_ids]
        return [delivery for batch in batches(messages, _message_size) for delivery in await self._send(batch)]

    async def cancel_instances(self, *, cancel_reason: str = "", **where: Unpack[InstanceConditions]) -> int:
        """Ask the instances that meet conditions, and have not ended, to end; return how many were asked. It works in
        steps, newest first: an interrupted call keeps its progress, and may be repeated. Instances that are started
        meanwhile are not asked.

        Args:
            cancel_reason: that their code is given. ``reason`` is a condition: why an instance is suspended.
            where: conditions but the status; see `list_instances`.

        Raises:
            InvalidInput: see `list_instances`; or a status is among the conditions, or there is no condition.
            ConnectionLost: some may have been asked.
        """

        async def ask(batch: Sequence[str]) -> int:
            return sum(delivery == "delivered" for delivery in await self.cancel_many(batch, cancel_reason))

        return await self._change_each("cancel_instances", where, ("pending", "running", "suspended"), ask)

    async def _send(self, batch: Sequence[NewMessage]) -> Sequence[Delivery]:
        # Contention changed nothing; after a lost connection, another try could duplicate an event without a key.
        keyed = all(message.key is not None for message in batch)
        deliveries = await retry(partial(self._provider.send_message, batch), idempotent=keyed)
        sent = zip(batch, deliveries, strict=True)
        self._hints.notify_owners(
            message.instance_id for message, delivery in sent if delivery in {"delivered", "repeated"}
        )
        return deliveries

    # -- waiting

    @overload
    async def wait(self, instance_id: str, timeout: float | None = ...) -> Any: ...
    @overload
    async def wait(self, instance_id: str, timeout: float | None = ..., *, type: TypeForm[T]) -> T: ...
    async def wait(self, instance_id: str, timeout: float | None = None, *, type: Any = Any) -> Any:
        """Wait until an instance has ended, and return its output.

        Args:
            instance_id: the instance; it follows ``continue_as_new``.
            timeout: seconds; None: forever.
            type: the output's type.

        Raises:
            OrchestrationFailed, OrchestrationCancelled: how it ended instead.
            WaitTimeout: it has not ended; the error has the reason why it waits.
            UnknownInstance: no instance has this id, or it was deleted meanwhile.
            NotSerializable: the output is not of that type.
        """
        return await self._wait_decoded(instance_id, timeout, Codec(type, "output of the instance"))

    async def _wait_decoded(
        self, instance_id: str, timeout: float | None, codec: Codec | None, is_awaited: IsAwaited = has_ended
    ) -> Any:
        """`wait`, with the output read by ``codec``; None: as plain JSON values."""
        info = await self._ended(instance_id, timeout, is_awaited)
        if info.status == "failed":
            raise errors.OrchestrationFailed(*error_of(info))
        if info.status == "cancelled":
            raise errors.OrchestrationCancelled(error_of(info).message)
        raise_unreadable(info.output)
        return instance_of(info).output if codec is None else codec.decode(info.output or "null")

    async def wait_finished(self, instance_id: str, timeout: float | None = None) -> Instance:
        """Wait until an instance has ended, well or not, and return it; a failure is returned, not raised.

        Raises:
            WaitTimeout, UnknownInstance: see `wait`.
        """
        return instance_of(await self._ended(instance_id, timeout))

    async def wait_status(
        self, instance_id: str, *, changed_from: Instance | None = None, timeout: float | None = None
    ) -> Instance:
        """Return the instance once its status or custom status differs from ``changed_from``, or once it has ended.

        ::

            seen = await client.wait_status("chat-17")
            while not seen.finished:
                print(seen.custom_status)
                seen = await client.wait_status("chat-17", changed_from=seen)

        Statuses that follow each other quickly may be passed over: the latest is returned.

        Args:
            instance_id: the instance; it follows ``continue_as_new``.
            changed_from: the instance as it was seen last; None: it is returned as it is now.
            timeout: seconds; None: forever.

        Raises:
            WaitTimeout: nothing has changed.
            UnknownInstance: no instance has this id, or it was deleted meanwhile.
        """
        if changed_from is None:
            return await self.status(instance_id)
        awaited = partial(_has_changed, changed_from)
        return instance_of(await self._until(instance_id, timeout, awaited, "has not changed"))

    async def values(self, instance_id: str) -> dict[str, Any]:
        """Return the values that the instance has set (`OrchestrationContext.values`), by key, as plain JSON values.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidId: the id is refused.
        """
        check_id(instance_id, "instance id")
        return {key: read_json(text) for key, text in (await read_values(self._provider, instance_id)).items()}

    @overload
    async def wait_value(
        self, instance_id: str, key: str, *, accepts: Callable[[Any], bool] = ..., timeout: float | None = ...
    ) -> Any: ...
    @overload
    async def wait_value(
        self,
        instance_id: str,
        key: str,
        type: TypeForm[T],
        *,
        accepts: Callable[[T], bool] = ...,
        timeout: float | None = ...,
    ) -> T: ...
    async def wait_value(
        self,
        instance_id: str,
        key: str,
        type: Any = Any,
        *,
        accepts: Callable[[Any], bool] = _accept_all,
        timeout: float | None = None,
    ) -> Any:
        """Return a value of an instance once it is set, and accepted.

        ::

            progress = await client.wait_value("import-7", "progress", int, accepts=lambda percent: percent >= 50)

        Values that follow each other quickly may be passed over: the latest is returned.

        Args:
            instance_id: the instance; it follows ``continue_as_new``.
            key: of the value.
            type: of the value; anything that pydantic knows.
            accepts: return whether this value is the awaited one. Default: any.
            timeout: seconds; None: forever.

        Raises:
            NoValue: the instance has ended without it.
            WaitTimeout: it has not come.
            UnknownInstance: no instance has this id, or it was deleted or started again meanwhile.
            NotSerializable: the value is not of the type.
        """
        check_id(instance_id, "instance id")
        check_id(key, "key of a value")
        check_timeout(timeout)
        wanted = WantedValue(key, None if type is Any else Codec(type, f"value {key!r}"), accepts)
        with anyio.move_on_after(timeout):
            async with self._changes_of(instance_id) as change:
                return await wait_value(self._provider, instance_id, wanted, change)
        raise await self._wait_timeout(
            instance_id, f"instance {instance_id!r} has not set the awaited value {key!r} within {timeout:g} s"
        )

    async def _ended(self, instance_id: str, timeout: float | None, is_awaited: IsAwaited = has_ended) -> InstanceInfo:
        with client_span("wait", sends=False) as span:
            span.set({INSTANCE_ATTRIBUTE: instance_id})
            return await self._until(instance_id, timeout, is_awaited, "has not ended")

    async def _until(
        self, instance_id: str, timeout: float | None, is_awaited: IsAwaited, otherwise: str
    ) -> InstanceInfo:
        check_id(instance_id, "instance id")
        check_timeout(timeout)
        _ = self._provider  # raises when the client is not open
        with anyio.move_on_after(timeout):
            if is_awaited is not has_ended:
                return await self._waiters.until(instance_id, is_awaited)
            async with NotedWait(self._database, instance_id) as noted:
                return await noted.over(lambda: self._waiters.until(instance_id, is_awaited))
        message = f"instance {instance_id!r} {otherwise} within {timeout:g} s"
        try:
            (info,) = await self._provider.get_instance([instance_id])  # it may have changed since the last poll
        except errors.ProviderError as error:
            raise errors.WaitTimeout(f"{message}, and the database does not say why") from error
        if info is None:
            raise unknown_instance(instance_id)
        if not is_awaited(info):
            raise await self._wait_timeout(instance_id, message)
        return info

    # -- session state

    @property
    def session_store(self) -> SessionStore:
        """The records of session state in this database; see `open_store`."""
        return retrying_store(self._open_provider, self._loop, "client")

    @property
    def session_manager(self) -> SessionManager:
        """Lists, shows, deletes, prunes, exports and imports these records."""
        return SessionManager(self.session_store)


def _message_size(message: NewMessage) -> int:
    return len(message.payload)


def _start_size(one: PendingStart) -> int:
    return len(one.new.start)


def _has_changed(before: Instance, info: InstanceInfo) -> bool:
    now = instance_of(info)
    return now.finished or _shown(now) != _shown(before)


def _shown(instance: Instance) -> tuple[Any, ...]:
    # As JSON, in which 0, 0.0 and False differ.
    return instance.status, to_json(instance.custom_status), instance.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle(Generic[R]):
    """An instance that was started, now or earlier, with the client's calls for it.

    ``outcome`` says what its start did: "created"; "running", when the instance was there and has not ended (it may be
    suspended); "ended", when it was there and has ended; "restarted"; "replaced", when it waited to begin and its input
    was replaced; "queued", when this start begins after its end: `wait` waits for that run.
    """

    instance_id: str
    outcome: StartOutcome | None  # what its start has found or done; None: this handle has started nothing
    _client: KernelClient = field(repr=False)
    _result: Codec | None = field(repr=False)  # None: the orchestration is known by name only

    async def wait(self, timeout: float | None = None) -> R:
        """Wait until it has ended, and return the result; see `Client.wait`."""
        awaited = has_ended_for_good if self.outcome == "queued" else has_ended
        return cast(R, await self._client._wait_decoded(self.instance_id, timeout, self._result, awaited))

    @overload
    async def raise_event(self, name: EventValue[Any], *, idempotency_key: str | None = ...) -> None: ...
    @overload
    async def raise_event(self, name: str, data: Any = ..., *, idempotency_key: str | None = ...) -> None: ...
    async def raise_event(
        self, name: str | EventValue[Any], data: Any = None, *, idempotency_key: str | None = None
    ) -> None:
        """Send it an event; see `Client.raise_event`."""
        send: Callable[..., Awaitable[None]] = self._client.raise_event
        await send(self.instance_id, name, data, idempotency_key=idempotency_key)

    async def ask(self, event: EventValue[T], *, idempotency_key: str | None = None, timeout: float | None = None) -> T:
        """Send it an event, and wait for the reply; see `Client.ask`."""
        return await self._client.ask(self.instance_id, event, idempotency_key=idempotency_key, timeout=timeout)

    async def cancel(self, reason: str = "") -> None:
        """Ask it to end; see `Client.cancel`."""
        await self._client.cancel(self.instance_id, reason)

    async def resume(self) -> None:
        """Resume it after a suspension; see `Client.resume`."""
        await self._client.resume(self.instance_id)

    async def reset(self, *, to_event: int) -> int:
        """Open it again at an earlier event; see `Client.reset`."""
        return await self._client.reset(self.instance_id, to_event=to_event)

    async def status(self) -> Instance:
        """Return its status, result or error; see `Client.status`."""
        return await self._client.status(self.instance_id)

    async def wait_status(self, *, changed_from: Instance | None = None, timeout: float | None = None) -> Instance:
        """Return its status once it has changed; see `Client.wait_status`."""
        return await self._client.wait_status(self.instance_id, changed_from=changed_from, timeout=timeout)

    async def values(self) -> dict[str, Any]:
        """Return the values that it has set; see `Client.values`."""
        return await self._client.values(self.instance_id)

    @overload
    async def wait_value(
        self, key: str, *, accepts: Callable[[Any], bool] = ..., timeout: float | None = ...
    ) -> Any: ...
    @overload
    async def wait_value(
        self, key: str, type: TypeForm[T], *, accepts: Callable[[T], bool] = ..., timeout: float | None = ...
    ) -> T: ...
    async def wait_value(
        self, key: str, type: Any = Any, *, accepts: Callable[[Any], bool] = _accept_all, timeout: float | None = None
    ) -> Any:
        """Return a value once it is set, and accepted; see `Client.wait_value`."""
        return await self._client.wait_value(self.instance_id, key, type, accepts=accepts, timeout=timeout)

    async def explain(self) -> Explanation | None:
        """Return the reason why it waits; see `Client.explain`. With the outcome "queued": why that start waits."""
        return await self._client._explain(self.instance_id, queued=self.outcome == "queued")

    async def executions(self, *, limit: int = 100, before: int | None = None) -> Sequence[ExecutionSummary]:
        """Return its executions, newest first; see `Client.executions`."""
        return await self._client.executions(self.instance_id, limit=limit, before=before)

    async def activities(self) -> Sequence[Activity]:
        """Return the activities of its current execution, with their status; see `Client.activities`."""
        return await self._client.activities(self.instance_id)

    async def tree(self, *, limit: int = MAX_PAGE) -> InstanceTree:
        """Return the instance and its sub-orchestrations; see `Client.tree`."""
        return await self._client.tree(self.instance_id, limit=limit)


@asynccontextmanager
async def open_store(
    url: str, *, codec: PayloadCodec | None = None, blobs: Blobs | None = None
) -> AsyncIterator[SessionStore]:
    """Open the store of session records in the database at ``url``, for scripts and web handlers.

    ::

        async with open_store("sqlite:///affinity.db") as store, chats.open("chat-17", store=store) as chat:
            chat.title = "Tea"

    Calls are repeated as a `Client` does: for a bounded time, and only where that does no harm.

    Args:
        url: see `affinity.provider.open_provider`.
        codec: encodes the states, as the workers of the database do; by default what ``AFFINITY_CODEC`` names.
        blobs: the blob store of the database; by default what ``AFFINITY_BLOBS`` names.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied, SchemaMismatch: as `affinity.provider.open_provider`.
        InvalidOptions: it is no codec, or ``AFFINITY_CODEC`` cannot be imported.
    """
    provider = await open_coded(url, codec, blobs, application_name="affinity store", one_connection=True)
    try:
        yield retrying_store(provider, asyncio.get_running_loop(), "store")
    finally:
        await provider.aclose()


def retrying_store(provider: Provider, loop: asyncio.AbstractEventLoop, what: str) -> SessionStore:
    """Return the records of a database, with calls repeated as a `Client` does; for the event loop that has opened
    ``what``.
    """
    call = partial(retry_on, loop, what)
    keep = partial(keep_named_blobs, provider)
    return RetryingStore(provider.states, reading=call, writing=partial(call, idempotent=False), keep_named=keep)
