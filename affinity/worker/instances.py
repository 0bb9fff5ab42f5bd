"""Live orchestration instances of this worker: the sticky cache, and the path from an input to a committed turn.

A worker owns an instance by a lease in the database and keeps its coroutine, so that a turn costs one step of it and no
replay. The cache may be dropped at any time: the history is authoritative, and every turn is checked against it
(`Turn`).

At most one turn of an instance is in flight. Inputs that arrive meanwhile wait in its mailbox and are all in the next.

Converging: the instance of an orchestration whose work runs on one session should be owned by the holder of that
session, so that its turns are fused. When `FIRST_MOVE` turns in a row placed work only on sessions of one other worker,
the instance is handed to that worker. Each move doubles the number that the next one needs, so an orchestration that
alternates between workers does not bounce.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakSet

from cachetools import LRUCache

from affinity import errors
from affinity.errors import ProviderError
from affinity.headers import NO_HEADERS
from affinity.limits import SHOWN_WAIT
from affinity.orchestration import KernelApp
from affinity.orchestration.engine import Execution, Step
from affinity.orchestration.events import Event, OrchestrationStarted, payload_size
from affinity.orchestration.middleware import ObservedTurn, Observer
from affinity.orchestration.wire import encode_message, event_type
from affinity.provider.contract import (
    FINISHED,
    InstanceUpdate,
    OrchestrationItem,
    Placed,
    QueuedMessage,
    Release,
    Suspend,
    Turn,
    TurnResult,
    WorkAck,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.records import ActivityRun, constructor
from affinity.redaction import redacted
from affinity.tasks import call_without_task
from affinity.tracing import is_in_use
from affinity.user_code import call_sync, describe_error
from affinity.worker.activities import ActivityRunner
from affinity.worker.capacity import Capacity
from affinity.worker.commits import Commits
from affinity.worker.live import (
    NOOP,
    HistoryPoint,
    Input,
    LiveInstance,
    log_failure,
    read_input,
    runs_of,
    staged_of,
    unwanted_results,
)
from affinity.worker.registrations import Registrations
from affinity.worker.replays import Replay, Replays
from affinity.worker.results import StagedResult, requeue_after_conflict
from affinity.worker.retry import is_retryable
from affinity.worker.sent_events import SentEvents
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.sessions import HeldSessions
from affinity.worker.tracing import ExecutionTracer
from affinity.worker.turns import NO_RUNS, BuiltTurn, build_turn

logger: logging.Logger = logging.getLogger("affinity.worker")

_input = constructor(Input)

FIRST_MOVE = 2
"""Turns in a row with work only on one other worker, before an instance moves there for the first time."""

LARGEST_MOVE = 1024
"""Turns in a row that a later move needs, at most."""

NEEDS_OPERATOR = (errors.OrchestrationPoisoned, errors.ExecutionLimitReached, ProviderError)
"""Errors that suspend an instance until an operator resumes it: other code alone does not correct them."""


class InstanceTable(WorkerPart):
    """The live instances, bounded by ``size``, least recently used first out."""

    def __init__(
        self,
        app: KernelApp,
        services: WorkerServices,
        *,
        code: str,
        capacity: Capacity,
        commits: Commits,
        activities: ActivityRunner,
        sessions: HeldSessions,
        replays: Replays,
        sent_events: SentEvents,
        registrations: Registrations,
    ) -> None:
        super().__init__(services)
        self._app = app
        self._code = code
        # Half of a batch: new work is in the turn twice, as an event and as a row.
        self._step_bytes = services.options.max_batch_bytes // 2
        self._cache_size = services.options.instance_cache_size
        self._cache_bytes = services.options.instance_cache_bytes
        self._worker_id = services.identity.worker_id
        self._observe = services.metrics.count_orchestration
        self._observers = app.observers
        self._failed_observers: set[Observer] = set()
        self._tracer = ExecutionTracer(worker_id=self._worker_id, is_on=is_in_use())
        self._capacity = capacity
        self._commits = commits
        self._activities = activities
        self._sessions = sessions
        self._replays = replays
        self._sent_events = sent_events
        self._registrations = registrations
        self._live: OrderedDict[str, LiveInstance] = OrderedDict()
        self._moves: LRUCache[str, int] = LRUCache(maxsize=10_000)
        # Instances that `deliver` skips for now: their release is not written yet, or they were dropped with a turn in
        # flight, whose outcome comes first.
        self._released: set[str] = set()
        self._in_flight: set[int] = set()  # ids of messages that are in a mailbox or in a turn
        self._gave_back: set[str] = set()  # instances that gave messages back since a fetch left them out
        # Of results on their way; settled ones stay until they are garbage.
        self._staged: WeakSet[StagedResult] = WeakSet()
        self.size: int = 0  # characters of the histories of all live instances
        self.turns: int = 0
        self.replays: int = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def is_idle(self) -> bool:
        """Whether no instance has an input, a turn or a replay in hand."""
        return all(live.idle for live in self._live.values())

    def waiting_locks(self) -> list[WorkLock]:
        """Locks of work items whose results wait for the next turn of their instance."""
        return [i.lock for live in self._live.values() for i in live.mailbox if i.lock is not None]

    # -- inputs

    def excluded_messages(self) -> list[int]:
        """Ids of the messages that the next fetch leaves out: they are in memory.

        From this call to `deliver`, an instance that gives such messages back is remembered. The fetch may bring later
        messages of it, and must not deliver them first.
        """
        self._gave_back.clear()
        return list(self._in_flight)

    def deliver_result(self, item: WorkItem, event: Event, staged: StagedResult | None = None) -> None:
        """Take the result of a work item that ran here: into the next turn of its instance, if live here, or an ack."""
        live = self._live.get(item.lock.key.instance_id)
        if staged is not None:
            self._staged.add(staged)
        waited = item.queued_for if item.queued_for >= SHOWN_WAIT else None
        run = None if item.attempts == 1 and waited is None else ActivityRun(self._worker_id, item.attempts, waited)
        if live is None or live.execution.execution_id != item.lock.key.execution_id:
            self._ack(item.lock, event, run, staged, ordered=item.ordered)
            return
        size = payload_size(event)
        self._capacity.input_size += size
        order = item.session_id if item.ordered else None
        live.mailbox.append(_input(event=event, size=size, lock=item.lock, run=run, staged=staged, order=order))
        self._pump(live)

    def deliver(self, items: Sequence[OrchestrationItem]) -> bool:
        """Take fetched instances with their messages. An instance that is not live is replayed from its history first.

        Instances that were given up meanwhile are skipped: their messages are for the next owner. So are instances that
        gave messages back meanwhile, or were dropped with a turn in flight: the fetch has left out some of their
        messages, and a later fetch has them all, in order.

        Returns:
            False when all fetched instances wait for a turn, a release or a suspension to be written. Its outcome
            notifies the fetcher; a fetch before that would find the same instances.
        """
        items = [item for item in items if item.instance_id not in self._released]
        if not items:
            return False
        current = {item.instance_id for item in items if self._keep_if_current(item)}  # may give messages back
        if any(item.instance_id in self._gave_back for item in items):
            self._notifier.notify_fetcher()
        items = [item for item in items if item.instance_id not in self._gave_back | self._released]
        uncached = self._release_other_suspects([item for item in items if item.instance_id not in current])
        for item in items:
            if (live := self._live.get(item.instance_id)) is not None:
                self._feed(live, item.messages)
        for item in uncached:
            self._adopt(item)
        self._shrink()
        return True

    def _release_other_suspects(self, items: list[OrchestrationItem]) -> list[OrchestrationItem]:
        """Keep at most one suspect: an instance that several workers in a row have claimed without committing a turn.

        The other suspects are released before it runs (`Replays`). So their claims do not count if it ends the process.
        """
        others = [item for item in items if self._is_suspect(item)][1:]
        for item in others:
            self._release(Release(instance_id=item.instance_id))
        return [item for item in items if item not in others]

    def _is_suspect(self, item: OrchestrationItem) -> bool:
        return item.claims > self._options.isolate_after

    def _keep_if_current(self, item: OrchestrationItem) -> bool:
        """Keep the coroutine in memory if these messages are for it, else drop it; returns whether it was kept."""
        live = self._live.get(item.instance_id)
        if live is None:
            return False
        same = (live.generation, live.execution.execution_id) == (item.generation, item.execution_id)
        if same and (live.committing or live.replay is not None or live.execution.event_count == item.event_count):
            return True
        self._drop(live)
        return False

    def _feed(self, live: LiveInstance, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            self._in_flight.add(message.id)
            self._capacity.input_size += len(message.payload)
        if live.replay is not None:
            live.unread += messages
            return
        live.mailbox += [read_input(message, live.execution) for message in messages]
        self._pump(live)

    # -- loading

    def _adopt(self, item: OrchestrationItem) -> None:
        """Load the instance, and give it its messages. A bad row suspends this instance only."""
        try:
            live = self._new(item)
        except Exception as error:
            self._suspend(HistoryPoint.of(item), item.name, error)
            return
        if live is None:
            self._give_back_unknown(item)
            return
        self._live[item.instance_id] = live
        has_values = item.value_bytes > 0 and item.execution_id > 1
        if item.event_count or has_values or self._is_suspect(item):
            done = partial(self._finish_replay, live, HistoryPoint.of(item))
            live.replay = Replay(live.execution, done, is_suspect=self._is_suspect(item), lacks_values=has_values)
            self._replays.add(live.replay)
        self._feed(live, item.messages)

    def _new(self, item: OrchestrationItem) -> LiveInstance | None:
        """Return the instance at the start of its execution; None if this worker has no code for it.

        Raises:
            OrchestrationPoisoned: it has been claimed too often for anything of it to be decoded, let alone run.
        """
        definition = self._app.find_orchestration(item.name, item.version)
        if definition is None:
            return None
        if item.claims > self._options.max_attempts:
            raise errors.OrchestrationPoisoned(
                f"{item.claims} workers took it and none committed a turn: it seems to kill them"
            )
        return LiveInstance(
            Execution(definition, item.instance_id, item.execution_id, item.session_id), item.generation
        )

    def _finish_replay(self, live: LiveInstance, at: HistoryPoint, error: Exception | None) -> None:
        """Go on with an instance whose replay has ended; suspend it after an error."""
        self._notifier.on_memory_freed()
        if error is not None:
            self._suspend(at, live.execution.name, error)
            return
        assert live.replay is not None
        self.replays += bool(live.replay.events)
        self._grow(live, live.replay.size)
        live.replay = None
        messages, live.unread = live.unread, []
        live.mailbox[:0] = [read_input(message, live.execution) for message in messages]
        self._pump(live)
        self._shrink()

    def _suspend(self, at: HistoryPoint, name: str, error: Exception) -> None:
        """Suspend an instance that cannot go on, though its code has not failed: it waits for an operator or for other
        code. Every suspension is decided here. No row of the instance need be readable.
        """
        if (live := self._live.get(at.instance_id)) is not None:
            self._drop(live)
        error_type, message = describe_error(error)
        suspend = Suspend(
            **at._asdict(),
            error_type=error_type,
            message=message,
            code=self._code,
            needs_code=not isinstance(error, NEEDS_OPERATOR),
        )
        self._released.add(at.instance_id)

        def done(is_suspended: bool) -> None:
            self._released.discard(at.instance_id)
            if is_suspended:  # else it has moved on meanwhile, or is suspended already
                self._observe(name, "suspended")
                shown = redacted(error)
                defect = None if isinstance(error, errors.AffinityError) else shown
                text, of = "instance %s is suspended: %s: %s", {"instance_id": at.instance_id}
                logger.error(text, at.instance_id, *describe_error(shown), exc_info=defect, extra=of)

        self._commits.submit_suspend(suspend, done)

    def _give_back_unknown(self, item: OrchestrationItem) -> None:
        """Give an instance back that this worker has no code for, or suspend it after ``unregistered_timeout``."""
        label = item.name if item.version is None else f"{item.name}@{item.version}"
        if item.unknown_for is not None and item.unknown_for >= self._options.unregistered_timeout:
            unknown = errors.UnknownOrchestration(f"no worker registers the orchestration {label!r}")
            self._suspend(HistoryPoint.of(item), item.name, unknown)
            return
        self._registrations.note_missing(label)
        self._release(Release(instance_id=item.instance_id, unknown=True))

    # -- a turn

    def _pump(self, live: LiveInstance) -> None:
        """Step the instance over everything in its mailbox, unless a turn of it is in flight."""
        if live.committing or live.replay is not None or not live.mailbox:
            return
        self._live.move_to_end(live.execution.instance_id)
        inputs, live.mailbox = live.mailbox, []
        execution, before = live.execution, live.execution.event_count
        try:
            self._step(live, inputs)
        except Exception as error:
            live.mailbox = inputs
            at = HistoryPoint(execution.instance_id, live.generation, execution.execution_id, before)
            self._suspend(at, execution.definition.name, error)

    def _step(self, live: LiveInstance, inputs: list[Input]) -> None:
        """Step the instance, and submit its turn.

        Raises:
            Exception: an input cannot be read, or another failure that is not the orchestration's. Nothing was
                submitted.
        """
        events: list[Event] = []
        for received in inputs:
            if received.error is not None:
                raise received.error
            event = received.event
            if type(event) is OrchestrationStarted:  # with what only a worker knows
                event = replace(event, time=self._lease.now(), version=live.execution.definition.version)
            events.append(event)
        step = call_without_task(
            live.execution.advance,
            events,
            now=self._lease.now,
            new_guid=lambda: str(uuid.uuid4()),
            max_size=self._step_bytes,
        )
        if live.execution.unread_size > self._cache_bytes:
            raise errors.ExecutionLimitReached(
                f"external events of more than {self._cache_bytes} bytes (instance_cache_bytes) wait "
                "until the code reads them"
            )
        self._submit(live, step, inputs)

    def _submit(self, live: LiveInstance, step: Step, inputs: list[Input]) -> None:
        consumed = inputs[: step.consumed]
        messages: list[int] = []
        acks: list[WorkLock] = []
        unwanted: Collection[int] = ()
        staged: Sequence[StagedResult] = ()
        runs = NO_RUNS
        for received in consumed:
            if received.message_id is not None:
                messages.append(received.message_id)
            if received.lock is not None:
                acks.append(received.lock)
            if received.run is not None and not runs:
                runs = runs_of(step, consumed)
            if received.staged is not None and not staged:
                unwanted = unwanted_results(step, consumed)
                staged = staged_of(consumed, unwanted)
        first = live.execution.event_count == len(step.events)
        built = build_turn(
            live.execution,
            step,
            generation=live.generation,
            first_version=live.execution.definition.version if first else None,
            consumed=messages,
            acks=acks,
            states=[result.state for result in staged if result.state is not None] if staged else (),
            parts=[part for result in staged for part in result.parts] if staged else (),
            runs=runs,
            lock_here=self._capacity.slots_for_new_work(),
            plain_here=self._capacity.slots_for_plain_work(),
            try_reserve_session=self._capacity.try_reserve_session,
            placement=self._capacity.placement,
            latest_version=self._latest_version,
            contexts=self._tracer.contexts(live.execution, live.generation),
        )
        if step.outcome is None:
            live.mailbox = inputs[step.consumed :]  # for the next turn: this one is large enough
        else:
            self._return(live.execution.instance_id, inputs[step.consumed :])
        live.committing = True
        self._commits.submit_turn(built, partial(self._apply_outcome, live, built, consumed, unwanted))
        self._activities.read_ahead(built.turn)

    def _latest_version(self, name: str) -> str | None:
        latest = self._app.find_orchestration(name)
        return None if latest is None else latest.version

    def _apply_outcome(
        self,
        live: LiveInstance,
        built: BuiltTurn,
        inputs: list[Input],
        unwanted: Collection[int],
        result: TurnResult | ProviderError,
    ) -> None:
        live.committing = False
        if self._live.get(live.execution.instance_id) is not live:
            self._released.discard(live.execution.instance_id)
            self._notifier.notify_fetcher()
        if isinstance(result, ProviderError) or not result.committed:
            self._withdraw(live, built.turn, inputs, result)
            return
        self.turns += 1
        if built.turn.update is not None:
            self._count(live.execution.definition.name, built.turn, built.turn.update)
        is_ordered = False
        for received in inputs:
            if received.staged is not None:
                received.staged.settle(id(received) not in unwanted)
            if received.order is not None:
                is_ordered = True
        self._forget(inputs)
        self._grow(live, built.size)
        self._notifier.on_memory_freed()
        self._place(built, result.placed)
        if is_ordered:
            self._promote(built, result.placed, inputs)
        if built.does_more:
            self._spread(built.turn)
            self._sent_events.note(live.execution.instance_id, built.sent)
            if built.turn.replies or built.turn.values or (built.ends and live.execution.has_keys):
                self._notifier.notify_change(live.execution.instance_id)  # clients wait for the reply, or for a value
        self._tell_observers(live.execution, built)
        if built.ends:
            log_failure(live.execution)
            self._tracer.record_end(live.execution, built.turn, self._lease.now())
            self._drop(live)
            self._notifier.notify_fetcher()
        elif not (result.placed and self._move_to_holder(live, holders_of(built.turn, result.placed))) and live.mailbox:
            self._pump(live)
        if self.size > self._cache_bytes or len(self._live) > self._cache_size:
            self._shrink()

    def _tell_observers(self, execution: Execution, built: BuiltTurn) -> None:
        """Call the observers of the application; what they raise is logged."""
        if not self._observers:
            return
        turn, update = built.turn, built.turn.update
        outcome = None if update is None or not built.ends else "continued" if update.continued else update.status
        observed = ObservedTurn(
            instance_id=execution.instance_id,
            execution_id=execution.execution_id,
            orchestration=execution.name,
            version=execution.version,
            session_id=execution.session_id,
            worker_id=self._worker_id,
            headers=execution.headers or NO_HEADERS,
            events=list(enumerate(map(event_type, turn.history), turn.event_count + 1)),
            outcome=outcome,  # type: ignore[arg-type]  # of a turn that ends
            error=execution.failure,
        )
        for observer in self._observers:
            try:
                call_sync(observer, observed)
            except Exception as error:
                if observer not in self._failed_observers:  # once: it may fail at each turn
                    self._failed_observers.add(observer)
                    name = getattr(observer, "__qualname__", observer)
                    logger.exception("observer of turns %s failed", name, exc_info=redacted(error))

    def _withdraw(
        self, live: LiveInstance, turn: Turn, inputs: list[Input], result: TurnResult | ProviderError
    ) -> None:
        """Drop the coroutine of a turn that was not committed, as far as this worker knows, and keep its inputs."""
        if isinstance(result, TurnResult):
            inputs = self._still_good(inputs, result)
        live.mailbox = inputs + live.mailbox
        self._drop(live)
        if not isinstance(result, TurnResult | errors.DatabaseChanged) and not is_retryable(result):
            name = live.execution.definition.name
            self._suspend(HistoryPoint.of(turn), name, result)  # the database does not accept its contents
        self._notifier.notify_fetcher()

    def _still_good(self, inputs: list[Input], result: TurnResult) -> list[Input]:
        """Return the inputs of a refused turn without void results.

        A result is void if its token is dead, or if its writes met something newer in the store. In the second
        case the activity runs again, from the newer version.
        """
        void = [i for i in inputs if i.lock in result.lost_acks]
        conflicting = [i for i in inputs if i.writes_any(result.conflicts)]
        for received in conflicting:
            assert received.lock is not None
            logger.warning(
                "instance %s: what activity %d writes met something newer in the store; running it again",
                received.lock.key.instance_id,
                received.lock.key.activity_id,
                extra={"instance_id": received.lock.key.instance_id},
            )
            self._metrics.count_conflict()
            self._commits.submit_abandon(requeue_after_conflict(received.lock))
        for received in void + conflicting:
            received.settle(False)
        self._forget(void + conflicting)
        return [i for i in inputs if i not in void and i not in conflicting]

    def _place(self, built: BuiltTurn, placed: Sequence[Placed]) -> None:
        is_shared = False
        for place, task, wanted in zip(placed, built.tasks, built.turn.work_items, strict=True):
            if place.parked:
                continue
            if place.item is not None:
                self._activities.start(place.item, task)
            elif place.holder is None and wanted.claim_here:
                self._notifier.notify_fetcher()  # it is offered to this worker
            elif wanted.session_id is None:
                is_shared = True
            else:
                self._notifier.hint(place.holder)
        if is_shared:
            self._notifier.share()
        if self._state.waits_for_room and self._sessions.has_idle():
            self._notifier.on_rest()

    def _promote(self, built: BuiltTurn, placed: Sequence[Placed], inputs: list[Input]) -> None:
        """Fetch ordered items that the turn may have made the first of their sessions, by removing the item before.

        A session for which the turn has locked an ordered item here needs no fetch: that item is the first.
        """
        if left := {received.order for received in inputs if received.order is not None}:
            items = zip(placed, built.turn.work_items, strict=True)
            if left - {item.order for place, item in items if place.item is not None}:
                self._notifier.notify_fetcher()

    def _spread(self, turn: Turn) -> None:
        """Notify the workers for which the turn has queued work, or whose work it has cancelled; this one too."""
        if turn.cancel_activities:
            keys = {WorkKey(turn.instance_id, turn.execution_id, number) for number in turn.cancel_activities}
            self._activities.cancel(keys, "no longer awaited")
        if turn.cancel_activities or (turn.update is not None and turn.update.status == "cancelled"):
            self._notifier.hint(None, cancel=True)
        if turn.instances:
            self._notifier.hint(None)
        for session_id in turn.release_sessions:
            self._sessions.recheck(session_id)
            self._notifier.notify_fetcher()  # if nothing kept it, there is room for another one
        for instance_id in {message.instance_id for message in turn.messages if not message.delay}:
            if instance_id in self._live:
                self._notifier.notify_fetcher()
            else:
                self._notifier.hint_owner(instance_id)
        if timers := [message.delay for message in turn.messages if message.delay]:
            self._notifier.fetch_after(min(timers))

    def _count(self, name: str, turn: Turn, update: InstanceUpdate) -> None:
        """Count a turn that begins an instance, or ends an execution, for the metrics."""
        if turn.execution_id == 1 and turn.event_count == 0:
            self._observe(name, "started")
        if update.continued or update.status in FINISHED:
            self._observe(name, "continued" if update.continued else update.status)

    # -- moving to the holder of the session

    def _move_to_holder(self, live: LiveInstance, holders: Collection[str | None]) -> bool:
        """Count turns whose work all went to one other worker, and hand the instance over when there were enough."""
        remote_holder = next(iter(holders)) if len(holders) == 1 else None
        if remote_holder is None or remote_holder == self._worker_id:
            live.remote_holder = None
            return False
        live.remote_turns = live.remote_turns + 1 if remote_holder == live.remote_holder else 1
        live.remote_holder = remote_holder
        name = live.execution.instance_id
        moves = self._moves.get(name, 0)
        if not live.idle or live.remote_turns < min(FIRST_MOVE << moves, LARGEST_MOVE):
            return False
        self._moves[name] = moves + 1
        self._drop(live)
        self._release(Release(instance_id=name, to=remote_holder))
        self._notifier.hint(remote_holder)
        return True

    def _release(self, release: Release) -> None:
        name = release.instance_id
        self._released.add(name)
        self._commits.submit_release(release, partial(self._released.discard, name))

    # -- dropping

    def settle_staged(self) -> None:
        """Settle the results whose commit this worker will no longer see: they count as not applied."""
        for staged in list(self._staged):
            staged.settle(False)

    def drop_all(self) -> None:
        """Drop every instance, since the lease has expired; they are replayed from their histories later."""
        for live in list(self._live.values()):
            results = [i for i in live.mailbox if i.lock is not None]  # their tokens are dead too
            for received in results:
                received.settle(False)
            live.mailbox = [i for i in live.mailbox if i.lock is None]
            self._forget(results)
            self._drop(live)

    def close_all(self) -> None:
        """Close the coroutines that are left when the worker has ended.

        Otherwise the interpreter closes them later, and reports the errors of their cleanup.
        """
        for live in self._live.values():
            live.execution.close()

    def drop_idle(self) -> None:
        """Drop every instance that is between two turns: safe at any time, it only costs replays."""
        for live in [live for live in self._live.values() if live.idle]:
            self._drop(live)

    def _drop(self, live: LiveInstance) -> None:
        if self._live.get(live.execution.instance_id) is live:
            del self._live[live.execution.instance_id]
            self.size -= live.size
            if live.committing:
                self._released.add(live.execution.instance_id)
        if live.replay is not None:
            self._replays.remove(live.replay)
            live.mailbox += [Input(NOOP, len(message.payload), message_id=message.id) for message in live.unread]
            live.unread = []
        waiting, live.mailbox = live.mailbox, []
        self._return(live.execution.instance_id, waiting)
        live.execution.close()

    def _grow(self, live: LiveInstance, size: int) -> None:
        """Add to the size of the history that the coroutine has seen."""
        if self._live.get(live.execution.instance_id) is live:
            live.size += size
            self.size += size

    def _return(self, instance_id: str, inputs: Iterable[Input]) -> None:
        """Give back inputs that no turn consumed: messages are still queued, results are sent as messages."""
        for received in inputs:
            if received.lock is not None:
                self._ack(
                    received.lock, received.event, received.run, received.staged, ordered=received.order is not None
                )
            else:
                self._gave_back.add(instance_id)
        self._forget(inputs)

    def _forget(self, inputs: Iterable[Input]) -> None:
        for received in inputs:
            if received.message_id is not None:
                self._in_flight.discard(received.message_id)
            self._capacity.input_size -= received.size

    def _ack(
        self, lock: WorkLock, event: Event, run: ActivityRun | None, staged: StagedResult | None, *, ordered: bool
    ) -> None:
        message = encode_message(lock.key.execution_id, event, run or ActivityRun(self._worker_id, 1))
        state, parts = (staged.state, staged.parts) if staged else (None, ())
        ack = WorkAck(lock=lock, message=message, state=state, parts=parts)
        self._commits.submit_ack(ack, staged, ordered=ordered)

    def _shrink(self) -> None:
        """Drop idle instances, least recently used first, while there are too many, or their histories too large. The
        last used one stays: a history that is too large by itself would be replayed for each turn.
        """
        count = len(self._live) - self._cache_size
        size = self.size - self._cache_bytes
        last = next(reversed(self._live.values()), None)
        excess: list[LiveInstance] = []
        for live in self._live.values():
            if count <= 0 and (size <= 0 or live is last):
                break
            if live.idle:
                excess.append(live)
                count, size = count - 1, size - live.size
        for live in excess:
            self._drop(live)


def holders_of(turn: Turn, placed: Sequence[Placed]) -> Collection[str | None]:
    """The holders of the sessions of a turn's new work. For parked work: the worker that ran the last activity, whose
    result has come as a message.
    """
    last = next((run.worker_id for run in turn.runs.values()), None)
    return {last if place.parked else place.holder for place in placed}
