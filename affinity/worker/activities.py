"""Running activities: slots, cancellation of async and sync code, retries, results, and give-backs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import anyio
import anyio.to_thread

from affinity import errors
from affinity.around import around, before_each
from affinity.errors import SessionRecordTooNew
from affinity.headers import enter_headers
from affinity.limits import MAX_NOTED_ERROR_BYTES, MAX_REASON_BYTES, truncate
from affinity.orchestration import ActivityContext, KernelApp, RetryPolicy
from affinity.orchestration.definitions import ActivityDefinition, Prefetch
from affinity.orchestration.events import ActivityCompleted, ActivityFailed, ActivityFailureKind, Event
from affinity.orchestration.failures import RecordedError, recorded, stack_of
from affinity.orchestration.middleware import MiddlewareCall
from affinity.orchestration.signals import RetryAfter
from affinity.orchestration.wire import ActivityTask, decode_task
from affinity.provider.contract import Turn, WaitFailure, WorkAbandon, WorkFetch, WorkItem, WorkKey, WorkLock
from affinity.redaction import redacted, redacted_text
from affinity.session.stores import RetryingStore
from affinity.session.writer import current_activity, enter_activity
from affinity.tasks import CLEANUP_SECONDS, ignore_error, leave_behind, on_left_behind
from affinity.telemetry import enter_instance, enter_labelled, enter_session
from affinity.tracing import attempt_span, enter_attempt, is_in_use
from affinity.user_code import as_error, call_sync, describe_error, lasting_context, own_context
from affinity.worker.clients import ClientMaker, WorkerClients
from affinity.worker.commits import Commits
from affinity.worker.guests import GuestPart
from affinity.worker.isolation import Isolation, is_isolated, not_begun, pause_alone
from affinity.worker.results import StagedResult, discard, requeue_after_conflict
from affinity.worker.services import WorkerServices
from affinity.worker.sessions import HeldSessions, record_need
from affinity.worker.tracing import AttemptTracer
from affinity.worker.waits import WorkerWaits

logger: logging.Logger = logging.getLogger("affinity.worker")

LEAVE_AFTER = 2 * CLEANUP_SECONDS
"""Seconds that a cancelled activity has for its end: the functions that it calls have less. Then it has ended, and its
code is left behind: it keeps its slot, and nothing that it returns or writes counts.
"""

THREAD_POLL = 0.05
"""Seconds between two looks for the end of threads, for which a worker that ends waits."""

UNKNOWN_PAUSE = 0.5
"""Seconds that a session's unknown item stays invisible, so that another worker can fetch it."""

UNREADABLE_PAUSE = 30.0
"""Seconds after which an item whose task cannot be decoded comes again: a worker may have its key by then."""


class _TimeLimit(NamedTuple):
    """The time limit of a run, and the error's message when the run takes longer."""

    seconds: float
    message: str

    @classmethod
    def of(cls, item: WorkItem, task: ActivityTask) -> _TimeLimit | None:
        """Return the limit of this attempt, or the limit over all attempts if that ends earlier."""
        own = None if task.timeout is None else cls(task.timeout, f"ran longer than its timeout of {task.timeout:g} s")
        if task.retry is None or (total := task.retry.total_timeout) is None:
            return own
        rest = total - item.queued_for
        if own is not None and own.seconds <= rest:
            return own
        return cls(rest, f"did not succeed within its total_timeout of {total:g} s")


@dataclass(slots=True, eq=False)
class _Running:
    item: WorkItem
    context: ActivityContext
    limit: _TimeLimit | None
    work: ActivityTask
    began: float  # on the monotonic clock
    task: asyncio.Task[Event] | None = None
    alarm: asyncio.TimerHandle | None = None  # when its time is over
    leave: Callable[[_Running], object] | None = None  # called when it has not ended in time after its cancellation
    cancelled: str | None = None  # why, once it is cancelled: its outcome is dropped then
    timed_out: bool = False
    staged: StagedResult | None = None
    retry_after: float | None = None  # seconds until it runs again, which its code has asked for

    def cancel(self, reason: str) -> None:
        """Cancel the code: by the flag for sync code, by the exception at the next await for async code."""
        self.context._cancel(reason)
        if self.task is not None:
            self.task.cancel()
            if self.leave is not None:
                asyncio.get_running_loop().call_later(LEAVE_AFTER, self.leave, self)
                self.leave = None

    def drop(self, reason: str) -> None:
        """Cancel it, once, without an outcome."""
        if self.cancelled is None:
            self.cancelled = reason
            self.cancel(reason)

    def time_out(self) -> None:
        """Cancel it since its time is over: unlike a dropped run, it has an outcome."""
        if self.cancelled is None:
            self.timed_out = True
            self.cancel("timeout")

    def error_of(self, raised: BaseException | None) -> Exception:
        """Return the error as which its code counts that has ended so; after its time is over, that is the error."""
        if self.timed_out and self.limit is not None:
            late = errors.ActivityTimeout(self.item.name, errors.ActivityTimeout.__name__, self.limit.message)
            late.__cause__ = raised  # its traceback says where the time ran out
            return late
        return as_error(raised or asyncio.CancelledError())


class ActivityRunner:
    """Runs up to ``worker_concurrency`` activities."""

    def __init__(
        self,
        app: KernelApp,
        services: WorkerServices,
        *,
        sessions: HeldSessions,
        commits: Commits,
        guests: Mapping[str, GuestPart],
        spawn: Callable[..., None],
        clients: ClientMaker | None = None,
    ) -> None:
        """``spawn`` starts a task of the worker: it receives an async function and its arguments. ``clients``: makes
        the client that activities use.
        """
        health = services.health
        self._activities = app.activities
        found = {name: app.middleware_of(name) for name in app.activities}
        self._middleware = {name: middleware for name, middleware in found.items() if middleware}
        self._of_guests = app.guest_activities if self._middleware else frozenset()
        self._states = RetryingStore(
            services.provider.states,
            reading=health.retry,
            writing=health.retry_if_unchanged,
            resources=services.provider,
        )
        self._guests = guests
        self._access = {guest: part.access for guest, part in guests.items() if part.access is not None}
        self._waits = WorkerWaits(services.provider)
        wanted = {name: each.prefetch for name, each in app.activities.items() if each.prefetch is not None}
        self._prefetches = {name: each for name, each in wanted.items() if each.most and each.guest in guests}
        self.prefetched: Mapping[str, Sequence[str]] = names_by_guest(self._prefetches)
        """Names of the activities that begin with something that a guest keeps, by guest."""
        self._options = services.options
        self._lease = services.lease
        self._locks = services.lease.locks
        self._worker_id = services.options.worker_node_id
        self._concurrency = services.options.worker_concurrency
        self._max_attempts = services.options.max_attempts
        self._isolate_after = services.options.isolate_after
        self._notifier = services.notifier
        self._observe = services.metrics.count_activity
        self._observe_queue = services.metrics.observe_queue
        self._observe_run = services.metrics.observe_run
        self._count_conflict = services.metrics.count_conflict
        self._tracer = AttemptTracer(services) if is_in_use() else None
        self._sessions = sessions
        self._commits = commits
        self._spawn_task = spawn
        self.deliver_result: Callable[[WorkItem, Event, StagedResult | None], None]
        """Receives the result of an activity, good or bad, with the writes that go with it; set by the worker."""
        # By lock: after an expiry an item may be fetched again while its former run, of the same key, still ends.
        self._running: dict[WorkLock, _Running] = {}
        self.size: int = 0  # characters of the payloads of what runs
        # Items that go back with their session once its other work has ended.
        self._leaving: dict[str, list[WorkAbandon]] = {}
        self._limiter = anyio.CapacityLimiter(services.options.worker_concurrency)
        self._threads = _Threads()
        self._left_behind: dict[asyncio.Task[Any], str] = {}  # activities by the tasks whose code goes on
        self._reported = False
        self._variables = lasting_context()  # of the worker's start
        self._clients = None if clients is None else WorkerClients(clients, services.provider, self._variables.copy())
        self._variables.run(on_left_behind.set, self._note_code)
        services.lease.left_behind = lambda: self.left_behind
        self._empty = anyio.Event()
        self.isolation: Isolation = Isolation(
            lambda: bool(self._running), self._count_isolated, self._notifier.on_slot_freed
        )

    def __len__(self) -> int:
        return len(self._running)

    @property
    def free_slots(self) -> int:
        """The number of activities that may start now."""
        if self.isolation.is_on and self.isolation.keeps_others_out:
            return 0
        free = self._concurrency - len(self._running) - len(self._threads.left_behind) - len(self._left_behind)
        return free if free > 0 else 0

    @property
    def left_behind(self) -> int:
        """Slots whose activities have ended, while their code goes on."""
        return len(self._left_behind) + len(self._threads.left_behind)

    @property
    def busy_threads(self) -> int:
        """Threads that run sync code now; each may use a core."""
        return self._threads.busy

    @property
    def delivered(self) -> list[WorkLock]:
        """Locks of started items, and of the isolated item that is about to start."""
        waiting = self.isolation.waiting
        return [*self._running, *([] if waiting is None else [waiting.lock])]

    # -- starting

    def read_ahead(self, turn: Turn) -> None:
        """Read the data with which the activities of a turn begin, while the turn is committed.

        A turn with parts is left out: the read could miss what they write. So is one that cancels activities: until it
        is committed, they may commit parts.
        """
        if self._prefetches and not (turn.parts or turn.cancel_activities):
            for item in turn.work_items:
                if item.lock_here and (prefetch := self._prefetches.get(item.name)):
                    self._guests[prefetch.guest].read_ahead(turn.instance_id, prefetch.most)

    def start_all(self, fetched: WorkFetch) -> None:
        """Begin to run fetched activities; what they begin with has come too, or is read in one batch."""
        if self._prefetches:
            for item in fetched.items:
                if prefetch := self._prefetches.get(item.name):
                    instance_id = item.lock.key.instance_id
                    found = fetched.prefetched.get(prefetch.guest, {}).get(instance_id)
                    self._guests[prefetch.guest].read_ahead(instance_id, prefetch.most, found)
        for item in fetched.items:
            self.start(item)

    def start(self, item: WorkItem, task: ActivityTask | None = None) -> None:
        """Begin to run a work item that is locked to this worker; ``task`` spares the decoding of its payload.
        Without a lease it is given back, and so it is while the worker drains.
        """
        if not self._lease.is_serving:
            self._commits.submit_abandon(not_begun(item, self._isolate_after))
            return
        self._locks.add(item.lock)
        if item.limited:
            self._commits.limited.add(item.lock)
        if item.attempts <= 1:
            self._observe_queue(item.name, item.queued_for)
        if item.session_id is not None and item.session_epoch is not None:
            self._sessions.begin(item.session_id, item.session_epoch, item.lock.key.instance_id)
            if item.session_tag is not None:
                self._sessions.set_tag(item.session_id, item.session_tag)
        definition = self._activities.get(item.name)
        if definition is None:
            self._give_back_unknown(item)
        elif item.attempts - item.failures > self._max_attempts:
            times = item.attempts - item.failures - 1
            poisoned = RecordedError("ActivityPoisoned", f"started {times} times without coming to an end")
            self._fail(item, "poisoned", poisoned)
        else:
            try:
                task = task or decode_task(item.payload)
            except errors.PayloadUnreadable as error:
                self._put_off_unreadable(item, error)
            except errors.NotSerializable as error:
                unreadable = RecordedError(errors.NotSerializable.__name__, f"its task cannot be read: {error}")
                self._fail(item, "failed", unreadable)
            else:
                self._run(item, definition, task)

    def _run(self, item: WorkItem, definition: ActivityDefinition, task: ActivityTask) -> None:
        if task.tag is not None and item.session_id is not None and task.tag != item.session_tag:
            of_session = "no tag" if item.session_tag is None else f"the tag {item.session_tag!r}"
            text = f"it has the tag {task.tag!r}, and its session {item.session_id!r} began with {of_session}"
            self._fail(item, "tag_mismatch", RecordedError(errors.SessionTagMismatch.__name__, text))
            return
        limit = None if task.timeout is None and task.retry is None else _TimeLimit.of(item, task)
        if limit is not None and limit.seconds <= 0:
            self._fail(item, "timeout", RecordedError(errors.ActivityTimeout.__name__, limit.message))
            return
        if not is_isolated(item, self._isolate_after):
            self._spawn(item, definition, task, limit)
            return

        def run(counted: bool) -> None:
            if counted:
                self._spawn(item, definition, task, limit)
            else:
                self._end(item)

        if self.isolation.add(item, run):
            text = "activity %s of %s was interrupted %d times; running it alone"
            logger.warning(text, item.name, item.lock.key.instance_id, item.attempts - 1, extra=_ids(item))
        else:
            self._give_back(item)

    def _give_back(self, item: WorkItem) -> None:
        """Give back items that were never handed to code."""
        self._end(item)
        self._commits.submit_abandon(not_begun(item, self._isolate_after))

    def _count_isolated(self, item: WorkItem, then: Callable[[bool | None], None]) -> None:
        """See `Isolation`."""
        self._spawn_task(self._count, item, then)

    async def _count(self, item: WorkItem, then: Callable[[bool | None], None]) -> None:
        await self._commits.flush_in_time()  # results in flight must not be lost with the process
        if self.isolation.waiting is item:
            pause = pause_alone(item, self._isolate_after) if item.attempts < self._max_attempts else 0.0
            then(await self._commits.count_delivery(item, pause) if self.isolation.is_alone else None)

    def _spawn(
        self, item: WorkItem, definition: ActivityDefinition, task: ActivityTask, limit: _TimeLimit | None
    ) -> None:
        instance_id, execution_id, activity_id = item.lock.key
        context = ActivityContext._of(
            instance_id,
            execution_id,
            activity_id,
            name=item.name,
            orchestration_name=task.orchestration,
            orchestration_version=task.version,
            instance_generation=task.generation,
            session_id=item.session_id,
            session_epoch=item.session_epoch,
            labels=task.labels,
            attempt=item.attempts,
            worker_id=self._worker_id,
            headers=task.headers,
            session_store=self._states,
            session_listeners=self._sessions.listeners,
            guests=self._access,
            waits=self._waits,
            commit_part=partial(self._commits.commit_part, item.lock),
            middleware=self._middleware.get(item.name, ()) if self._middleware else (),
            input=task.input,
            definition=definition,
            clients=self._clients,
        )
        running = self._running[item.lock] = _Running(item, context, limit, task, time.monotonic())
        self.size += len(item.payload)
        # Not in a task group, whose bookkeeping costs more than the rest of a turn. `_handle_end` handles its end, and
        # `aclose` waits for the tasks that are left.
        run = self._result if self._tracer is None else partial(self._traced, self._tracer)
        coroutine = run(activity_id, running, definition, task)
        running.task = asyncio.get_running_loop().create_task(
            coroutine, name=item.name, context=own_context(self._variables)
        )
        running.leave = self._leave_behind
        running.task.add_done_callback(partial(self._handle_end, running))

    # -- running

    async def _traced(
        self,
        tracer: AttemptTracer,
        activity_id: int,
        running: _Running,
        definition: ActivityDefinition,
        task: ActivityTask,
    ) -> Event:
        attempt = await tracer.describe(running.item, task, running.context)
        if definition.prefetch is not None:  # the guest knows where that comes from
            enter_attempt(attempt)
            return await self._result(activity_id, running, definition, task)
        with attempt_span(attempt):
            return await self._result(activity_id, running, definition, task)

    async def _result(
        self, activity_id: int, running: _Running, definition: ActivityDefinition, task: ActivityTask
    ) -> Event:
        enter_activity(running.context)
        enter_headers(task.headers)
        enter_instance(running.context.instance_id)
        enter_labelled(running.context)
        enter_session(running.item.session_id or task.shown_session)  # None too: the task inherits what was ambient
        if running.limit is not None:
            running.alarm = asyncio.get_running_loop().call_later(running.limit.seconds, running.time_out)
        try:
            arguments = definition.arguments(task.input)
            if running.context._middleware and definition.name not in self._of_guests:
                value = await self._around(running, definition, arguments)
            elif definition.is_async:
                value = await definition.function(running.context, *arguments)
            else:
                value = await self._in_thread(running, partial(definition.function, running.context, *arguments))
            result = definition.encode_result(value)
            if participants := running.context._close():
                running.staged = await StagedResult.of(participants, running.item.session_id)
            end: Event | BaseException = ActivityCompleted(activity_id, result)
        except BaseException as error:
            end = error
        finally:
            if running.alarm is not None:
                running.alarm.cancel()
        if running.cancelled is not None:
            raise asyncio.CancelledError(running.cancelled)  # the end is dropped
        if isinstance(end, BaseException):
            if not running.timed_out and (asked := [e for e in errors.errors_in(end) if isinstance(e, RetryAfter)]):
                running.retry_after = await self._close_limits(asked, running)
            raise running.error_of(end)
        if running.timed_out:  # the code has ignored that
            raise running.error_of(None)
        return end

    async def _close_limits(self, asked: Sequence[RetryAfter], running: _Running) -> float:
        """Close the limits that the code has named; return the seconds until it may run again, or 0: it waits there."""
        pause = 0.0
        for signal in asked:
            if signal.limit is not None and await self._close_limit(signal.limit._place, signal, running):
                continue
            pause = max(pause, signal.seconds)
        return pause

    async def _close_limit(self, place: tuple[str, str], signal: RetryAfter, running: _Running) -> bool:
        """Close a limit; return whether the work waits there."""
        cause = signal.__cause__ or signal.__context__
        why = "" if cause is None else f": {type(cause).__name__}"  # its text may hold what no list should show
        reason = truncate(f"activity {running.item.name}{why}", MAX_REASON_BYTES)
        closed = [await part.close_limit(place, signal.seconds, reason) for part in self._guests.values()]
        return any(closed) and running.work.waits_at(*place)

    def _handle_end(self, running: _Running, done: asyncio.Task[Event]) -> None:
        """Handle the end of a task, even if it was cancelled before its first step."""
        running.leave = None
        self.size -= len(running.item.payload)
        if self._running.get(running.item.lock) is not running:
            return  # it was left behind
        raised = running.error_of(None) if done.cancelled() else done.exception()
        error = None if raised is None else errors.decisive_error(raised)
        self._close(running, None if error else done.result(), error)

    def _close(self, running: _Running, event: Event | None, error: BaseException | None) -> None:
        """End an activity, with its result or with an error."""
        del self._running[running.item.lock]
        self._observe_run(running.item.name, time.monotonic() - running.began)
        try:
            self._finish(running, event, error)
        except Exception as broken:
            self._lease.end_by_defect(broken)
        if not self._running:
            self._empty.set()
        if self.isolation.is_on:
            self.isolation.end(running.item.lock)
            self.isolation.proceed()

    def _leave_behind(self, running: _Running) -> None:
        """End an activity that has not ended though it was cancelled: its code may go on for ever."""
        if running.task is not None and not running.task.done():
            leave_behind(running.task, partial(self._note_left_behind, running.item.name))
            self._close(running, None, running.error_of(None))

    def _note_code(self, task: asyncio.Task[Any]) -> None:
        """Count a task that the code of an activity has begun and leaves behind."""
        activity = current_activity()
        self._note_left_behind(task.get_name() if activity is None else activity.name, task)

    def _note_left_behind(self, name: str, task: asyncio.Task[Any]) -> None:
        """Count the code of a task that an activity has left behind until it is gone."""
        self._left_behind[task] = name
        task.add_done_callback(self._note_gone)
        self._report_left_behind()

    def _note_gone(self, task: asyncio.Task[Any]) -> None:
        ignore_error(task)
        logger.info("code of activity %s that was left behind has ended", self._left_behind.pop(task))
        self._report_left_behind()
        self._notifier.on_slot_freed()
        if not self._left_behind:
            self._empty.set()

    def _report_left_behind(self) -> None:
        """Log that no slot is left for activities that run; once, until there is one again."""
        is_full = self.left_behind >= self._concurrency
        if is_full and not self._reported:
            logger.error(
                "worker %s: code that ignores its cancellation has all %d slots (worker_concurrency): %s; no work is "
                "taken until some of it ends. Mend the code, and start the worker again",
                self._worker_id,
                self._concurrency,
                ", ".join(self.stuck),
            )
        self._reported = is_full

    async def _around(self, running: _Running, definition: ActivityDefinition, arguments: tuple[Any, ...]) -> Any:
        """Run an activity with the middleware around it."""
        context = running.context
        call = MiddlewareCall(
            kind="activity",
            name=definition.name,
            input=arguments[0] if arguments else None,
            attempt=context.attempt,
            headers=context.headers,
            labels=context.labels,
            context=context,
        )
        function = before_each(context._repeats(), partial(definition.function, context, *arguments))
        return await around(context._middleware, call, function, partial(self._in_thread, running))()

    async def _in_thread(self, running: _Running, function: Callable[[], Any]) -> Any:
        """Run sync code. A thread cannot be killed: once cancelled, it keeps its slot until it returns."""
        call = partial(self._threads.call, running, function)
        try:
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            self._threads.leave(running)
            self._report_left_behind()

    # -- ending

    def _finish(self, running: _Running, event: Event | None, error: BaseException | None) -> None:
        item = running.item
        if running.cancelled is not None or event is None:
            self._discard(running, error)
        if running.cancelled is not None:
            self._observe(item.name, "cancelled")
            self._end(item)
        elif event is not None:
            self._observe(item.name, running.context._outcome)
            self._end(item)
            self.deliver_result(item, event, running.staged)
        else:
            assert error is not None
            self._handle_failure(running, running.work, error)
        self._notifier.on_slot_freed()

    def _discard(self, running: _Running, error: BaseException | None) -> None:
        discard(running.context, error)
        if running.staged is not None:
            running.staged.settle(False)

    def _handle_failure(self, running: _Running, task: ActivityTask, error: BaseException) -> None:
        item = running.item
        if isinstance(error, errors.SessionWriteConflict) and _is_own(error.session_id, item):
            text = "activity %s of %s: %s; running it again"
            logger.warning(text, item.name, item.lock.key.instance_id, redacted(error), extra=_ids(item))
            self._observe(item.name, "retried")
            self._count_conflict()
            self._end(item)
            self._commits.submit_abandon(requeue_after_conflict(item.lock))
            return
        if running.retry_after is not None:
            self._put_off(running, running.retry_after, error)
            return
        if isinstance(error, errors.SessionLoadFailed) and isinstance(error.__cause__, errors.PayloadUnreadable):
            self._put_off_unreadable(item, error.__cause__, "what is stored of its session")
            return
        if item.session_id is not None and self._is_unreadable_here(error, item):
            self._give_back_unreadable(item, item.session_id, error)
            return
        failures = item.failures + 1
        pause = None if task.retry is None else _pause(running, task.retry, error, failures)
        if pause is not None:
            _log_failure(
                logging.WARNING, f"failed and is retried in {pause:.1f} s", item, describe_error(redacted(error))
            )
            self._observe(item.name, "retried")
            self._end(item)
            given = WorkAbandon(
                lock=item.lock,
                delay=pause,
                failed=True,
                error=_noted(error),
                error_type=describe_error(error)[0],
                stack=stack_of(error) or None,
            )
            self._commits.submit_abandon(given)
            return
        if isinstance(error, errors.ActivityTimeout):
            timeout = RecordedError(error.error_type, error.message, None, stack_of(error))
            self._fail(item, "timeout", timeout, error)
        else:
            self._fail(item, "failed", recorded(error), error)

    def _put_off(self, running: _Running, pause: float, error: BaseException) -> None:
        """Give back work whose code has raised `RetryAfter`: the attempt does not count."""
        item = running.item
        text = "activity %s of %s is given back: %s: %s"
        logger.info(text, item.name, item.lock.key.instance_id, *describe_error(redacted(error)), extra=_ids(item))
        self._observe(item.name, "retried")
        self._end(item)
        self._commits.submit_abandon(WorkAbandon(lock=item.lock, delay=pause, count_attempt=False, error=_noted(error)))

    def _put_off_unreadable(self, item: WorkItem, error: errors.PayloadUnreadable, what: str = "its task") -> None:
        """Give back work of which something cannot be decoded. It does not fail: nothing would bring it back with its
        key.
        """
        text = "activity %s of %s waits: %s cannot be read: %s"
        logger.warning(text, item.name, item.lock.key.instance_id, what, redacted(error), extra=_ids(item))
        self._end(item)
        given = replace(not_begun(item, self._isolate_after), delay=UNREADABLE_PAUSE, error=_noted(error))
        self._commits.submit_abandon(given)

    def _fail(
        self, item: WorkItem, kind: ActivityFailureKind, failure: RecordedError, error: BaseException | None = None
    ) -> None:
        text = failure.message if error is None else redacted_text(failure.message, error)
        _log_failure(logging.ERROR, "failed and is not retried", item, (failure.error_type, text), error)
        self._observe(item.name, kind)
        self._end(item)
        failed = ActivityFailed(item.lock.key.activity_id, kind, *failure)
        self.deliver_result(item, failed, None)

    def fail_waiting(self, item: WorkItem, why: WaitFailure) -> None:
        """Fail an item whose time to wait is over. The database has locked it to this worker for this purpose only."""
        if not self._lease.is_serving:
            return  # its lock ends with the lease
        self._locks.add(item.lock)
        on = "" if item.session_id is None else f" on session {item.session_id!r}"
        text = {
            "busy": f"it was not started{on} within its fail_after",
            "no_worker_with_tag": f"no worker with its tag was alive for {self._options.unregistered_timeout:g} s",
        }[why]
        error = errors.SessionBusy if why == "busy" else errors.NoWorkerWithTag
        # Without its session: the item was never counted as running in it.
        self._fail(replace(item, session_id=None), why, RecordedError(error.__name__, text))

    def _end(self, item: WorkItem) -> None:
        self._locks.discard(item.lock)
        if item.session_id is not None:
            self._sessions.end(item.session_id)
            leaving = self._leaving.get(item.session_id)
            if leaving and self._sessions.running(item.session_id) <= len(leaving):
                self._leave(item.session_id)

    # -- giving back

    def _give_back_unknown(self, item: WorkItem) -> None:
        """Give back work that this worker has no code for, for a worker that has the code.

        Its session is given back too, once the session's other work here is done. After ``unregistered_timeout``
        without such a worker the work fails.
        """
        if self._has_waited(item):
            unknown = RecordedError("UnknownActivity", f"no worker registers the activity {item.name!r}")
            self._fail(item, "unknown", unknown)
        elif item.session_id is None:
            logger.info("activity %s is not registered here; leaving it to workers that know it", item.name)
            self._end(item)
            self._commits.submit_abandon(replace(not_begun(item, self._isolate_after), unknown=True))
        else:
            text = "activity %s of %s is not registered here; giving session %s back"
            logger.warning(text, item.name, item.lock.key.instance_id, item.session_id, extra=_ids(item))
            self._give_back_with_session(item.session_id, not_begun(item, self._isolate_after))

    def _is_unreadable_here(self, error: BaseException, item: WorkItem) -> TypeGuard[SessionRecordTooNew]:
        if not isinstance(error, SessionRecordTooNew) or self._has_waited(item):
            return False
        return _is_own(error.session_id, item)

    def _give_back_unreadable(self, item: WorkItem, session_id: str, error: SessionRecordTooNew) -> None:
        """Give back work whose record was written by later code, with its session, for a worker that can read it.

        The record is of the session, or of the session with the instance's id. The activity's code has ended at the
        read, which does not count as an attempt.
        """
        text = "activity %s of %s: later code wrote the record of session %s (%s); giving the session back"
        logger.warning(text, item.name, item.lock.key.instance_id, error.session_id, redacted(error), extra=_ids(item))
        self._observe(item.name, "retried")
        need = record_need(error.kind, error.from_version)
        self._give_back_with_session(session_id, WorkAbandon(lock=item.lock, count_attempt=False, needs=need))

    def _give_back_with_session(self, session_id: str, given: WorkAbandon) -> None:
        leaving = self._leaving.setdefault(session_id, [])
        leaving.append(replace(given, delay=UNKNOWN_PAUSE, unknown=True, release_session=True))
        if self._sessions.running(session_id) <= len(leaving):
            self._leave(session_id)

    def _leave(self, session_id: str) -> None:
        for given in self._leaving.pop(session_id, ()):
            self._locks.discard(given.lock)
            self._sessions.end(session_id)
            self._commits.submit_abandon(given)
        self._spawn_task(self._sessions.remove, session_id)  # its state here is of no further use

    def _has_waited(self, item: WorkItem) -> bool:
        """Return whether ``unregistered_timeout`` has passed without a worker that could run it."""
        return item.unknown_for is not None and item.unknown_for >= self._options.unregistered_timeout

    def pass_time(self, seconds: float) -> None:
        """Move the time of running activities forward: for their time limits and the pauses of their retries."""
        loop = asyncio.get_running_loop()
        for running in self._running.values():
            running.began -= seconds
            if running.alarm is not None and not running.alarm.cancelled():
                running.alarm.cancel()
                running.alarm = loop.call_at(running.alarm.when() - seconds, running.time_out)

    # -- cancelling

    def cancel(self, keys: Collection[WorkKey], reason: str) -> None:
        """Cancel these activities as far as they run here; their outcomes are dropped."""
        for lock, running in list(self._running.items()):
            if lock.key in keys:
                running.drop(reason)
        if (waiting := self.isolation.waiting) is not None and waiting.lock.key in keys:
            self._forget(waiting)

    def cancel_locks(self, locks: Sequence[WorkLock], reason: str) -> None:
        """Cancel the activities that run under these locks."""
        for lock in locks:
            if (running := self._running.get(lock)) is not None:
                running.drop(reason)
            elif (waiting := self.isolation.waiting) is not None and waiting.lock == lock:
                self._forget(waiting)
            self._locks.discard(lock)
            self._commits.limited.discard(lock)

    def _forget(self, waiting: WorkItem) -> None:
        """Drop the item that waits to run alone: this worker has it no longer."""
        self.isolation.clear()
        self._end(waiting)

    def cancel_all(self, reason: str) -> None:
        """Cancel everything that runs."""
        for running in list(self._running.values()):
            running.drop(reason)
        if (waiting := self.isolation.waiting) is not None:
            self._forget(waiting)
        self._leaving.clear()
        self._locks.clear()
        self._commits.limited.clear()

    def give_back_waiting(self) -> None:
        """Give back what waits to run alone."""
        if (waiting := self.isolation.waiting) is not None:
            self.isolation.clear()
            self._give_back(waiting)

    def interrupt_all(self) -> None:
        """Cancel everything and give it back for a drain. This does not count as an attempt."""
        for running in list(self._running.values()):
            running.drop("the worker is draining")
            self._commits.submit_abandon(WorkAbandon(lock=running.item.lock, count_attempt=False))

    async def drained(self) -> None:
        """Wait until nothing runs."""
        while self._running:
            self._empty = anyio.Event()
            await self._empty.wait()

    async def aclose(self, timeout: float) -> None:
        """Cancel what runs, and wait up to ``timeout`` seconds for its code to end, in threads too."""
        self.cancel_all("the worker ends")
        with anyio.move_on_after(timeout):
            while self._running or self._left_behind or self._threads.left_behind:
                self._empty = anyio.Event()
                with anyio.move_on_after(THREAD_POLL if self._threads.left_behind else None):
                    await self._empty.wait()
        if self._clients is not None:
            await self._clients.aclose()
        for part in self._guests.values():
            await part.aclose()

    @property
    def stuck(self) -> list[str]:
        """Names of cancelled activities that still run: in a thread, or because their code ignores the cancellation."""
        running = {running.item.name for running in self._running.values()}
        return sorted(running | {*self._left_behind.values()} | self._threads.names())


def names_by_guest(prefetches: Mapping[str, Prefetch]) -> dict[str, list[str]]:
    """Return the names of activities by the guest of what they begin with."""
    found: dict[str, list[str]] = {}
    for name, prefetch in prefetches.items():
        found.setdefault(prefetch.guest, []).append(name)
    return found


def _is_own(session_id: str, item: WorkItem) -> bool:
    """Return whether it is the session of the activity or of its instance's id: a guest's may run on another lease."""
    return session_id in {item.session_id, item.lock.key.instance_id}


def _ids(item: WorkItem) -> dict[str, str | None]:
    """Return the ids of an item for a line of the log."""
    return {"instance_id": item.lock.key.instance_id, "session_id": item.session_id}


def _log_failure(
    level: int, consequence: str, item: WorkItem, described: tuple[str, str], error: BaseException | None = None
) -> None:
    """One line for one failed attempt; with the traceback of ``error``, which the last attempt has raised."""
    key = item.lock.key
    session = "" if item.session_id is None else f"session {item.session_id}, "
    logger.log(
        level,
        "activity %s of %s %s (execution %d, event %d, %sattempt %d): %s: %s",
        item.name,
        key.instance_id,
        consequence,
        key.execution_id,
        key.activity_id,
        session,
        item.attempts,
        *described,
        exc_info=None if error is None else redacted(error),
        extra={**key._asdict(), "activity": item.name, "attempt": item.attempts, "session_id": item.session_id},
    )


def _noted(error: BaseException) -> str:
    """Return the text of an error that is shown while its activity waits for its next attempt."""
    name, message = describe_error(error)
    return truncate(f"{name}: {message}", MAX_NOTED_ERROR_BYTES)


def _pause(running: _Running, retry: RetryPolicy, error: BaseException, failures: int) -> float | None:
    """Seconds until the next attempt; None when there is to be none."""
    item = running.item
    pause = retry.delay(failures, "/".join(map(str, item.lock.key)))
    elapsed = item.queued_for + time.monotonic() - running.began
    return pause if retry.retries(error, failures, elapsed + pause) else None


class _Threads:
    """The runs of sync code in threads. A cancelled run keeps its thread until its code returns."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._inside: set[_Running] = set()
        self.left_behind: set[_Running] = set()
        """Runs that have ended for the worker, while their threads still run code."""

    @property
    def busy(self) -> int:
        """Threads that run code now."""
        return len(self._inside)

    def names(self) -> set[str]:
        """Return the activities whose code is in a thread now."""
        with self._guard:
            return {running.item.name for running in self._inside}

    def leave(self, running: _Running) -> None:
        """Note that the run has ended, whether its thread has returned or not."""
        with self._guard:
            if running in self._inside:
                self.left_behind.add(running)

    def call(self, running: _Running, function: Callable[[], Any]) -> Any:
        """Call the function, in the thread."""
        with self._guard:
            self._inside.add(running)
        try:
            return call_sync(function)
        finally:
            with self._guard:
                self._inside.discard(running)
                self.left_behind.discard(running)
