"""The client's calls. Requests are checked in `requests`, rows decoded in `records`; the rest is the provider's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

import anyio

from affinity.client.background import Waiters, Waker
from affinity.client.calls import (
    batches,
    check_deletion,
    check_delivery,
    check_quotas,
    check_resumption,
    insist,
    unknown_instance,
)
from affinity.client.handle import Handle
from affinity.client.management import (
    ExecutionSummary,
    InstanceTree,
    PendingActivity,
    WorkStatistics,
    activity_of,
    execution_of,
    read_statistics,
    tree_of,
)
from affinity.client.pruning import (
    COMPLETED,
    EndedStatus,
    PrunedInstances,
    PruneProgress,
    prune_histories,
    prune_instances,
)
from affinity.client.records import (
    HistoryRecord,
    Instance,
    Page,
    cursor_of,
    error_details_of,
    failure_of,
    instance_of,
    read_cursor,
    record_of,
)
from affinity.client.requests import (
    ExternalEvent,
    Orchestration,
    Start,
    new_cancellation,
    new_event,
    new_instance,
    result_codec,
)
from affinity.client.resets import build_reset, cut_history
from affinity.client.stores import insistent
from affinity.errors import (
    ClientError,
    Contention,
    InstanceExists,
    InvalidInput,
    OrchestrationCancelled,
    OrchestrationFailed,
    WaitTimeout,
)
from affinity.limits import MAX_COUNT, MAX_PAGE, check_id
from affinity.orchestration.app import MISSING
from affinity.orchestration.codec import Codec
from affinity.provider import open_provider
from affinity.provider.contract import (
    NO_QUOTAS,
    Delivery,
    HistoryCursor,
    HistoryPage,
    InstanceFilter,
    InstanceInfo,
    InstanceStatus,
    NewInstance,
    NewMessage,
    Provider,
    Quotas,
    Resumption,
    SessionInfo,
    SessionRelease,
    WorkerInfo,
)
from affinity.provider.history import history_pages
from affinity.records import SessionStore
from affinity.session.manager import SessionManager

MAX_RESETS: Final = 20
"""Attempts to reset an instance that takes a turn between the look at its history and the reset."""

R = TypeVar("R")
T = TypeVar("T")


class Client:
    """Starts orchestrations and talks to them, through the database alone.

    ::

        async with Client("sqlite:///affinity.db") as client:
            handle = await client.start(conversation, Opening(topic="tea"), instance_id="chat-17")
            await handle.raise_event("user_message", {"text": "hello"})
            summary = await handle.wait(timeout=60)

    Calls are repeated for `calls.RETRY_SECONDS` while the database fails in a way that passes. Those that cannot be
    made twice without harm (events, requests to cancel) are not, once the connection was lost in the middle: they raise
    `ConnectionLost`, and may or may not have happened.

    Every call raises a `ProviderError` when the database refuses or fails; its fields say what that means. No message
    names the database.
    """

    def __init__(self, url: str) -> None:
        """A client of the database at ``url``, which is opened on entry.

        Raises:
            InvalidUrl, ConnectionLost, AccessDenied, SchemaMismatch: on entry, as `affinity.provider.open_provider`.
        """
        self._url = url
        self._given: Provider | None = None
        self._stack: AsyncExitStack | None = None

    @classmethod
    def from_provider(cls, provider: Provider) -> Client:
        """A client on an open provider, which stays the caller's to close."""
        client = cls("")
        client._given = provider
        return client

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._opened = self._given
            if self._opened is None:
                self._opened = await open_provider(self._url, application_name="affinity client")
                stack.push_async_callback(self._opened.aclose)
            self._waker = Waker(self._opened)
            self._waiters = Waiters(self._look_up)
            stack.push_async_callback(self._waker.flush)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._waker.run)
            self._tasks.start_soon(self._waiters.run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        stack, self._stack = self._stack, None
        if stack is None:
            return None
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):  # it leaves as itself, not in a group with the tasks' end
            kind = error = trace = None
        return await stack.__aexit__(kind, error, trace)

    @property
    def _provider(self) -> Provider:
        if self._stack is None or self._opened is None:
            raise ClientError("the client is not open: use it within `async with Client(url) as client`")
        return self._opened

    # -- starting

    @overload
    async def start(
        self,
        orchestration: Callable[..., Coroutine[Any, Any, R]],
        input: Any = ...,
        *,
        instance_id: str | None = ...,
        version: str | None = ...,
        session_id: str | None = ...,
    ) -> Handle[R]: ...
    @overload
    async def start(
        self,
        orchestration: str,
        input: Any = ...,
        *,
        instance_id: str | None = ...,
        version: str | None = ...,
        session_id: str | None = ...,
    ) -> Handle[Any]: ...
    async def start(
        self,
        orchestration: Orchestration,
        input: Any = MISSING,
        *,
        instance_id: str | None = None,
        version: str | None = None,
        session_id: str | None = None,
    ) -> Handle[Any]:
        """Start an instance; with an id of an instance of the same orchestration, give that one (``created`` is False).

        Args:
            orchestration: a registered function, whose annotations type input and result, or a name.
            input: its input.
            instance_id: makes the call idempotent. By default a random one.
            version: by default the latest that the worker knows which runs it first.
            session_id: that the instance works for: in the logs and spans of its whole tree of calls, given to code as
                ``ctx.session_id``, inherited by sub-orchestrations, listed and filtered by. Nothing runs on that
                session by itself. An instance that was there keeps its own.

        Raises:
            InstanceExists: the id belongs to an instance of another orchestration.
            QuotaExceeded: the database has as many instances as it may have, or the input is larger than one may be.
            InvalidInput: an id or the input is refused; its subclasses say why.
            OrchestrationMisuse: an input is missing, or too much.
        """
        (handle,) = await self.start_many([Start(orchestration, input, instance_id, version, session_id)])
        return handle

    async def start_many(self, starts: Iterable[Start]) -> Sequence[Handle[Any]]:
        """Start instances in few round trips; each as by `start`, nothing when the form of one is refused.

        Raises:
            InstanceExists: ids belong to instances of other orchestrations; all others have been started.
            QuotaExceeded: as by `start`; of more than `limits.MAX_BATCH`, the first ones may have been started.
        """
        wanted = list(starts)
        instances = [new_instance(start) for start in wanted]
        created = [
            flag for batch in batches(instances, lambda each: len(each.start)) for flag in await self._create(batch)
        ]
        # A random id that was there is ours too, from an attempt whose answer was lost.
        created = [new or start.instance_id is None for start, new in zip(wanted, created, strict=True)]
        await self._refuse_others([i for i, new in zip(instances, created, strict=True) if not new])
        return [
            Handle(
                instance_id=instance.instance_id, created=new, _client=self, _result=result_codec(start.orchestration)
            )
            for start, instance, new in zip(wanted, instances, created, strict=True)
        ]

    async def _create(self, batch: Sequence[NewInstance]) -> Sequence[bool]:
        created = await insist(partial(self._provider.create_instance, batch))
        if any(created):
            self._waker.wake()
        return created

    async def _refuse_others(self, instances: Sequence[NewInstance]) -> None:
        """Raise when one of the ids, all of which were there, belongs to another orchestration."""
        names = {instance.instance_id: instance.name for instance in instances}
        present = [info for batch in batches(list(names)) for info in await self._look_up(batch)]
        others = [info for info in present if info is not None and info.name != names[info.instance_id]]
        if others:
            ids = ", ".join(f"{info.instance_id!r} (of {info.name!r})" for info in others)
            raise InstanceExists(f"the id belongs to an instance of another orchestration: {ids}")

    # -- telling

    async def raise_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Send an instance an event; it is buffered until the orchestration waits for one of that name.

        Raises:
            UnknownInstance, InstanceFinished, TooManyUnreadEvents, QuotaExceeded: nothing was sent.
            InvalidId, NotSerializable, PayloadTooLarge: an id, the name or the data is refused.
            ConnectionLost: it may or may not have been sent; to send it again may deliver it twice.
        """
        (delivery,) = await self.raise_events([ExternalEvent(instance_id, name, data)])
        refused = delivery in {"full", "over_quota"}
        check_delivery(instance_id, delivery, await self.quotas() if refused else NO_QUOTAS)

    async def raise_events(self, events: Iterable[ExternalEvent]) -> Sequence[Delivery]:
        """Send events in few round trips, in order: for each "delivered", "unknown", "finished", "full" (too many are
        unread) or "over_quota" (its instance would have too many bytes).

        Raises:
            InvalidId, NotSerializable, PayloadTooLarge: one is refused; nothing was sent.
            ConnectionLost: some may have been sent.
        """
        messages = [new_event(event) for event in events]
        parts = batches(messages, lambda each: len(each.payload))
        return [delivery for batch in parts for delivery in await self._send(batch)]

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Ask an instance to end; it has the time to clean up that its code takes.

        Raises:
            UnknownInstance, InstanceFinished: nothing was sent.
            InvalidId: the id is refused.
        """
        (delivery,) = await self._send([new_cancellation(instance_id, reason)])
        check_delivery(instance_id, delivery)

    async def _send(self, batch: Sequence[NewMessage]) -> Sequence[Delivery]:
        # Contention changed nothing; after a lost connection, another try could be a duplicate.
        deliveries = await insist(partial(self._provider.send_message, batch), twice=False)
        told = zip(batch, deliveries, strict=True)
        self._waker.wake_owners(message.instance_id for message, delivery in told if delivery == "delivered")
        return deliveries

    # -- waiting

    @overload
    async def wait(self, instance_id: str, timeout: float | None = ...) -> Any: ...
    @overload
    async def wait(self, instance_id: str, timeout: float | None = ..., *, type: type[T]) -> T: ...
    async def wait(self, instance_id: str, timeout: float | None = None, *, type: Any = Any) -> Any:
        """The output of an instance, once it has ended.

        Args:
            instance_id: the instance; it follows ``continue_as_new``.
            timeout: seconds; None: for ever.
            type: the output's type.

        Raises:
            OrchestrationFailed, OrchestrationCancelled: how it ended instead.
            WaitTimeout: it has not ended.
            UnknownInstance: there is none, or it was deleted meanwhile.
            NotSerializable: the output is not of that type.
        """
        return await self.wait_decoded(instance_id, timeout, Codec(type, "output of the instance"))

    async def wait_decoded(self, instance_id: str, timeout: float | None, codec: Codec | None) -> Any:
        """`wait`, with the output read by ``codec``; None: as plain JSON values."""
        info = await self._ended(instance_id, timeout)
        if info.status == "failed":
            raise OrchestrationFailed(*failure_of(info), error_details_of(info))
        if info.status == "cancelled":
            raise OrchestrationCancelled(failure_of(info).message)
        return instance_of(info).output if codec is None else codec.decode(info.output or "null")

    async def wait_finished(self, instance_id: str, timeout: float | None = None) -> Instance:
        """The instance once it has ended, well or not: for those to whom a failure is an answer, not an error.

        Raises:
            WaitTimeout, UnknownInstance: as for `wait`.
        """
        return instance_of(await self._ended(instance_id, timeout))

    async def _ended(self, instance_id: str, timeout: float | None) -> InstanceInfo:
        check_id(instance_id, "instance id")
        if timeout is not None and not timeout >= 0:
            raise InvalidInput(f"timeout = {timeout!r}: must be a number of seconds, not negative")
        _ = self._provider  # raises when the client is not open
        with anyio.move_on_after(timeout):
            return await self._waiters.ended(instance_id)
        (info,) = await self._provider.get_instance([instance_id])  # it may have ended since the last look
        if info is None:
            raise unknown_instance(instance_id)
        if not instance_of(info).finished:
            raise WaitTimeout(f"instance {instance_id!r} has not ended within {timeout:g} s; it goes on")
        return info

    # -- looking

    async def status(self, instance_id: str) -> Instance:
        """The instance as it is now.

        Raises:
            UnknownInstance: there is none.
            InvalidId: the id is refused.
        """
        return instance_of(await self._present(instance_id))

    async def _present(self, instance_id: str) -> InstanceInfo:
        (info,) = await self._look_up([check_id(instance_id, "instance id")])
        if info is None:
            raise unknown_instance(instance_id)
        return info

    async def history(self, instance_id: str, *, execution_id: int | None = None) -> Sequence[HistoryRecord]:
        """The events of one execution of an instance, oldest first; by default of the current one. See `iter_history`
        for a history that may be too large to be in memory as a whole.

        Raises:
            UnknownInstance: there is none.
            InvalidId: the id is refused.
        """
        return [record async for record in self.iter_history(instance_id, execution_id=execution_id)]

    async def iter_history(
        self, instance_id: str, *, execution_id: int | None = None, after: int = 0
    ) -> AsyncIterator[HistoryRecord]:
        """As `history`, read page by page: at most `limits.MAX_BATCH_BYTES` at a time. ``after``: the last event that
        is not wanted.

        Raises:
            UnknownInstance, InvalidId: as for `history`.
        """
        execution = (await self.status(instance_id)).execution_id if execution_id is None else execution_id
        origins = await insist(partial(self._provider.read_origins, instance_id, execution))
        known = {origin.event_id: origin for origin in origins}
        event_ids = count(after + 1)
        async for texts in history_pages(self._read_page, HistoryCursor(instance_id, execution, after)):
            for text, event_id in zip(texts, event_ids, strict=False):
                yield record_of(event_id, text, known.get(event_id))

    async def _read_page(self, at: HistoryCursor) -> HistoryPage:
        (page,) = await insist(partial(self._provider.read_history, [at]))
        return page

    async def executions(
        self, instance_id: str, *, limit: int = 100, before: int | None = None
    ) -> Sequence[ExecutionSummary]:
        """The executions of an instance whose histories are kept, and the current one; newest first.

        Args:
            instance_id: the instance.
            limit: executions at most, from 1 to `limits.MAX_PAGE`.
            before: only those before this one: the last of the page before.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: the id is refused, or a limit out of range.
        """
        _check_limit(limit, MAX_PAGE)
        instance = await self._present(instance_id)
        rows = await insist(partial(self._provider.list_executions, instance_id, limit, before=before))
        return [execution_of(row, instance) for row in rows]

    async def activities(self, instance_id: str, *, limit: int = 100) -> Sequence[PendingActivity]:
        """Activities of an instance that have no result yet, oldest first: which run, which wait for a worker, which
        wait for their next attempt, and why.

        Args:
            instance_id: the instance.
            limit: activities at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: the id is refused, or a limit out of range.
        """
        _check_limit(limit, MAX_PAGE)
        await self._present(instance_id)
        rows = await insist(partial(self._provider.list_work_items, instance_id, limit))
        return [activity_of(row) for row in rows]

    async def tree(self, instance_id: str, *, limit: int = MAX_PAGE) -> InstanceTree:
        """An instance with its sub-orchestrations and theirs.

        Args:
            instance_id: the instance at the root.
            limit: instances at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: the id is refused, or a limit out of range.
        """
        _check_limit(limit, MAX_PAGE)
        root = check_id(instance_id, "instance id")
        members = await insist(partial(self._provider.list_tree, root, limit + 1))
        if not members:
            raise unknown_instance(root)
        return tree_of(root, members, limit)

    async def statistics(self, *, limit: int = MAX_COUNT) -> WorkStatistics:
        """How many instances there are of each status, what is in the queues, and how long the oldest work has waited.

        Args:
            limit: where each count of the queues stops, from 1 to `limits.MAX_COUNT`. Instances are all counted, by
                pages.

        Raises:
            InvalidInput: a limit out of range.
        """
        _check_limit(limit, MAX_COUNT)
        return await read_statistics(self._provider, limit)

    async def list_page(
        self,
        *,
        status: Collection[InstanceStatus] = (),
        name: str | None = None,
        prefix: str | None = None,
        parent_id: str | None = None,
        reason: str | None = None,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Some instances, newest first.

        Args:
            status: any of these; empty: all.
            name: of the orchestration.
            prefix: of the instance id.
            parent_id: the instance that they are sub-orchestrations of.
            reason: for which they are suspended: `Suspension.error_type`.
            session_id: that they were started with, or their parents.
            after: `Page.next` of the page before.
            limit: instances on the page, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: a limit out of range, or a cursor that is none.
        """
        _check_limit(limit, MAX_PAGE)
        cursor = None if after is None else read_cursor(after)
        where = InstanceFilter(
            status=status,
            name=name,
            prefix=prefix,
            parent_id=parent_id,
            reason=reason,
            session_id=session_id,
            after=cursor,
        )
        rows = await insist(partial(self._provider.list_instances, where, limit))
        return Page(items=[*map(instance_of, rows)], next=cursor_of(rows[-1]) if len(rows) == limit else None)

    async def list_instances(
        self,
        *,
        status: Collection[InstanceStatus] = (),
        name: str | None = None,
        prefix: str | None = None,
        parent_id: str | None = None,
        reason: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Instance]:
        """All instances that fit, newest first, read page by page; see `list_page`."""
        after: str | None = None
        while True:
            page = await self.list_page(
                status=status,
                name=name,
                prefix=prefix,
                parent_id=parent_id,
                reason=reason,
                session_id=session_id,
                after=after,
                limit=MAX_PAGE,
            )
            for instance in page.items:
                yield instance
            if (after := page.next) is None:
                return

    async def sessions(self) -> AsyncIterator[SessionInfo]:
        """All sessions that have a row by id: who holds each, or last did; read page by page."""
        after: str | None = None
        while True:
            rows = await insist(partial(self._provider.list_sessions, after=after, limit=MAX_PAGE))
            for row in rows:
                yield row
            if len(rows) < MAX_PAGE:
                return
            after = rows[-1].session_id

    async def workers(self) -> Sequence[WorkerInfo]:
        """All workers by id, alive or not."""
        return await insist(self._provider.list_workers)

    async def quotas(self) -> Quotas:
        """The limits of this database; off by default."""
        return await insist(self._provider.get_quotas)

    async def set_quotas(self, quotas: Quotas) -> None:
        """Replace all limits of this database, for all clients and workers. On PostgreSQL only the role that migrated
        may do so.

        Raises:
            InvalidOptions: a limit is no integer from 1 to `limits.MAX_QUOTA`.
            AccessDenied: this role may not set limits.
        """
        await insist(partial(self._provider.set_quotas, check_quotas(quotas)))

    # -- suspended instances

    async def resume(self, instance_id: str) -> None:
        """Let a suspended instance go on: a worker takes it, and tries again what it was suspended at.

        Raises:
            UnknownInstance, InstanceNotSuspended: nothing was changed.
            InvalidId: the id is refused.
            ConnectionLost: it may or may not have been resumed.
        """
        (resumption,) = await self.resume_many([instance_id])
        check_resumption(instance_id, resumption)

    async def resume_many(self, instance_ids: Iterable[str]) -> Sequence[Resumption]:
        """Resume instances in few round trips: for each "resumed", "unknown" or "not_suspended".

        Raises:
            InvalidId: an id is refused; nothing was changed.
            ConnectionLost: some may have been resumed.
        """
        wanted = [check_id(instance_id, "instance id") for instance_id in instance_ids]
        return [resumption for batch in batches(wanted) for resumption in await self._resume(batch)]

    async def _resume(self, batch: Sequence[str]) -> Sequence[Resumption]:
        resumptions = await insist(partial(self._provider.resume_instance, batch), twice=False)
        self._waker.wake()
        return resumptions

    async def reset(self, instance_id: str, *, to_event: int) -> int:
        """Open an instance again, a finished one too, at an earlier event of its present execution.

        A new execution begins with the events up to this one; the former one stays readable, by its number. If a step
        of the code goes on behind the event, the whole step is taken again. What is outstanding at that point is
        scheduled anew: activities run again, unless they had ended before. External events that came later come again.
        Session state is not rewound, nor is anything else that activities have done. See docs/learn/orchestrations.md.

        Args:
            instance_id: the instance.
            to_event: the last event that counts, from 1: see `history`.

        Returns:
            The number of the new execution.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: there is no such event, or an event before it cannot be read.
            Contention: the instance goes on so fast that it is never where its history was read.
        """
        for _ in range(MAX_RESETS):
            info = await self._present(instance_id)
            pages = history_pages(self._read_page, HistoryCursor(instance_id, info.execution_id))
            texts = [text async for page in pages for text in page]
            if len(texts) != info.event_count:
                continue
            cut = cut_history(texts, to_event, info.execution_id)
            children = dict(zip(cut.children, await self._look_up(cut.children), strict=True))
            reset = build_reset(info, cut, children)
            if await insist(partial(self._provider.reset_instance, reset), twice=False):
                self._waker.wake()
                return info.execution_id + 1
        raise Contention(f"instance {instance_id!r} is never where its history was read: try again")

    # -- sessions

    async def release_session(self, session_id: str) -> SessionRelease:
        """Release a session before its time, whichever worker holds it: any worker may claim it then, and its holder
        has room for another one. What was saved of its state stays; its holder lets go of what it has in memory within
        about ten seconds. A wait that holds the session (``hold_session``) does not keep it.

        Returns:
            "released"; "busy", when its holder runs work of it, or is about to: nothing was changed; or "not_held".

        Raises:
            InvalidId: the id is refused.
            ConnectionLost: it may or may not have been released.
        """
        wanted = [check_id(session_id, "session id")]
        (release,) = await insist(partial(self._provider.release_session, wanted), twice=False)
        self._waker.wake()
        return release

    # -- what sessions know

    @property
    def session_store(self) -> SessionStore:
        """The records of session state in this database; see `open_store`."""
        return insistent(self._provider.states)

    @property
    def session_manager(self) -> SessionManager:
        """Lists, shows, deletes, prunes, exports and imports these records."""
        return SessionManager(self.session_store)

    # -- removing

    async def delete(self, instance_id: str, *, force: bool = False, keep_children: bool = False) -> None:
        """Remove a finished instance with its history, or with ``force`` any; and with it its sub-orchestrations and
        theirs, unless ``keep_children``. A parent that still waits for it gets `OrchestrationFailed`.

        Raises:
            UnknownInstance: there is none.
            InstanceNotFinished: it is running, or one that goes with it, and ``force`` is not given.
            InvalidId: the id is refused.
        """
        wanted = [check_id(instance_id, "instance id")]
        delete = partial(self._provider.delete_instance, wanted, force=force, tree=not keep_children)
        (deletion,) = await insist(delete, twice=False)
        check_deletion(instance_id, deletion)
        self._waker.wake()  # a parent may have been told

    async def prune(
        self,
        *,
        older_than: float,
        status: Collection[EndedStatus] = COMPLETED,
        dry_run: bool = False,
        progress: PruneProgress | None = None,
    ) -> PrunedInstances:
        """Remove instances that ended long ago, each with its history and its sub-orchestrations, oldest first.

        A sub-orchestration goes with its parent and never before it. A tree stays while a member of it has not ended
        for that long: running and suspended ones are never removed. It goes in steps: one that ends in the middle
        leaves what it has done, and may be started again.

        Args:
            older_than: seconds since the end, by the database's clock.
            status: how they ended.
            dry_run: change nothing.
            progress: called after each step with the number of instances so far.

        Raises:
            InvalidInput: an age or a status is out of range.
        """
        return await prune_instances(
            self._provider, older_than, status, dry_run=dry_run, progress=progress or _no_progress
        )

    async def prune_histories(
        self, *, older_than: float, dry_run: bool = False, progress: PruneProgress | None = None
    ) -> int:
        """Remove the histories of former executions: those after which ``continue_as_new``, or a reset, began another
        one, more than ``older_than`` seconds ago. Instances go on, and keep the history of their present execution. In
        steps, as `prune`.

        Returns:
            The number of executions whose history was removed, or would be.

        Raises:
            InvalidInput: the age is out of range.
        """
        return await prune_histories(self._provider, older_than, dry_run=dry_run, progress=progress or _no_progress)

    async def _look_up(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        return await insist(partial(self._provider.get_instance, instance_ids))


def _no_progress(_: int) -> None:
    pass


def _check_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise InvalidInput(f"limit = {limit!r}: must be from 1 to {most}")
