"""Simulated workers, clients and scripts that carry out a plan, and compare what they are told with the reference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, NamedTuple

from affinity.errors import DatabaseChanged, SessionWriteConflict, WorkerFenced
from affinity.provider.contract import (
    FetchOptions,
    Incarnation,
    InstanceUpdate,
    Message,
    NewInstance,
    NewMessage,
    NewWorkItem,
    OrchestrationItem,
    Provider,
    Release,
    Reset,
    SessionHold,
    SessionInfo,
    SessionWatch,
    Suspend,
    Timeouts,
    Turn,
    TurnResult,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkItem,
    WorkKey,
)
from affinity.provider.history import read_whole_history
from affinity.provider.timeline import Timeline
from affinity.records import SessionRecord, SessionState, StateWrite
from affinity.testing.conformance.providers.builders import new_instance, turn
from tests.model import steps as do
from tests.model.databases import ModelDatabase
from tests.model.leases import Leases, Violation
from tests.model.reference import HOLD, ITEM_LOCK, LEASE, SESSION_LOCK, Reference, SentTurn

TIMEOUTS: Final = Timeouts(work_item_lock=ITEM_LOCK, session_lock=SESSION_LOCK)
NAMES: Final = ("flow",)
LONG: Final = 10_000_000.0

_ENDS: Final[dict[str, InstanceUpdate | None]] = {
    "": None,
    "continue": InstanceUpdate(status="running", continued=True),
    "complete": InstanceUpdate(status="completed", output='"done"'),
    "fail": InstanceUpdate(status="failed", error='"bad"'),
    "cancel": InstanceUpdate(status="cancelled", error='"stop"'),
}


@dataclass
class Coroutine:
    """An instance in a worker's memory."""

    at: OrchestrationItem
    birth: int
    hand: list[Message] = field(default_factory=list)
    activities: list[int] = field(default_factory=list)  # of this execution, scheduled so far
    timers: list[int] = field(default_factory=list)
    committing: bool = False


@dataclass
class CachedState:
    """A session's state in a worker's memory."""

    epoch: int
    content: str
    version: int


@dataclass
class SimulatedWorker:
    """One process: its memory goes with it."""

    identity: WorkerIdentity
    coroutines: dict[str, Coroutine] = field(default_factory=dict)
    work: dict[WorkKey, WorkItem] = field(default_factory=dict)
    cache: dict[str, CachedState] = field(default_factory=dict)
    late: list[Callable[[], Awaitable[None]]] = field(default_factory=list)


class Seen(NamedTuple):
    """A record as a script has read it."""

    version: int = 0
    birth: str | None = None
    content: str = ""


@dataclass(frozen=True)
class Writing:
    """What a script saves."""

    session_id: str
    content: str
    seen: Seen | None  # that it was made from; None: it replaces whatever there is
    new_birth: str  # of the record, if there is none
    key: str | None

    @property
    def birth(self) -> str | None:
        """Of the record, as far as the script knows it."""
        return None if self.seen is None else self.seen.birth or self.new_birth

    async def send(self, provider: Provider) -> int:
        """Save it."""
        new = SessionState(session_id=self.session_id, state=self.content.encode())
        expected = None if self.seen is None else self.seen.version
        return await provider.states.save(new, expected_version=expected, birth=self.birth, idempotency_key=self.key)


@dataclass
class Script:
    """What a script has read, or has made of what it has read."""

    seen: dict[str, Seen] = field(default_factory=dict)


def expect(what: str, found: object, wanted: object) -> None:
    """Raise unless the provider did what the reference says."""
    if found != wanted:
        raise Violation(f"{what}: the provider says {found!r}, the model {wanted!r}")


class SimulatedCluster:
    """One plan's run on one database."""

    def __init__(self, database: ModelDatabase) -> None:
        self.database = database
        self.model = Reference()
        self.leases = Leases()
        self.workers: dict[str, SimulatedWorker] = {}
        self.scripts = [Script() for _ in range(do.SCRIPTS)]
        self._numbers = count(1)
        self._kept: tuple[Reference, dict[str, SessionInfo]] | None = None
        self._messages: dict[int, str] = {}  # all that were ever fetched, by id
        self._held_up: list[tuple[asyncio.Task[Any], Callable[[], None]]] = []

    async def run(self, plan: do.Plan) -> None:
        """Carry the plan out, then bring everything to its end, and see that nothing is left."""
        await self.database.begin()
        try:
            self.provider = await self.database.provider(Timeline())
            self.elsewhere = await self.database.provider()  # of the scripts
            for worker in range(2):
                await self.step(do.Start(worker))
            for step in plan:
                await self.step(step)
            await self._end()
        finally:
            await self.database.resume_writes()
            for task, _ in self._held_up:
                await asyncio.wait([task])
            await self.database.end()

    async def step(self, step: do.PlanStep) -> None:  # noqa: PLR0912
        """Carry one step out and judge it. What is held up ends first, unless the step is of use in between."""
        if not isinstance(step, do.FetchWork):
            await self._finish()
        match step:
            case do.Start():
                await self._start(f"w{step.worker}")
            case do.Create() | do.Send() | do.Delete():
                await self._client(step)
            case do.ResumeInstance():
                await self._resume_instance(f"i{step.instance}")
            case do.Reset():
                await self._reset(f"i{step.instance}", step)
            case do.ReleaseSession():
                await self._release_session(f"s{step.session}")
            case do.Load() | do.Save() | do.Remove():
                await self._script(self.scripts[step.script], f"s{step.session}", step)
            case do.Finish():
                """It has ended."""
            case do.Pass():
                await self.database.advance(step.seconds)
                self.model.now += step.seconds
                await self._look(time_passed=True)
            case do.Sweep():
                await self._sweep(step.retention)
            case do.Remember():
                await self.database.remember()
                self._kept = deepcopy((self.model, self.leases.rows))
            case do.LoseTail():
                await self._lose_tail()
            case _:
                worker = self.workers.get(f"w{step.worker}")
                if worker is not None:
                    await self._worker(worker, step)

    async def _worker(self, worker: SimulatedWorker, step: do.PlanStep) -> None:  # noqa: PLR0912
        match step:
            case do.Renew():
                await self._renew(worker)
            case do.Resume():
                await self._resume(worker)
            case do.Drain() | do.Leave():
                await self._leave(worker, for_good=isinstance(step, do.Leave))
            case do.FetchWork():
                await self._fetch_work(worker, step)
            case do.FetchInstances():
                await self._fetch_instances(worker, step)
            case do.Commit():
                await self._commit(worker, step)
            case do.Deliver():
                if worker.late:
                    await worker.late.pop(0)()
            case do.Ack() | do.GiveBack() | do.Checkpoint():
                if worker.work:
                    item = list(worker.work.values())[step.which % len(worker.work)]
                    await self._settle_item(worker, item, step)
            case do.MakeRoom():
                await self._make_room(worker, step)
            case do.RenewLocks():
                await self._renew_locks(worker)
            case do.Disown():
                await self._disown(worker)
            case do.HandOver():
                await self._hand_over(worker, step)
            case do.Suspend():
                await self._suspend(worker, step)
            case do.Retry():
                await self._retry(worker)

    # -- looking at the database

    async def _look(self, **what: Any) -> None:
        """Compare the rows that can be counted, and judge the leases, after each verb."""
        rows = await self.provider.list_sessions(limit=100)
        moved = self.leases.see({row.session_id: row for row in rows}, **what)
        for session_id in moved:
            self.model.tell_watchers(session_id)
        found = await self.provider.count_work()
        wanted = {
            "work_items": len(self.model.items()),
            "messages": self.model.messages(),
            "instances": len(self.model.instances),
            "workers": len(self.model.workers),
        }
        expect("rows", {name: found[name] for name in wanted}, wanted)

    @property
    def sessions(self) -> dict[str, SessionInfo]:
        """The rows of sessions, as they were before the verb that is under way."""
        return self.leases.rows

    def _tag(self, what: str) -> str:
        return f"{what} {next(self._numbers)}"

    # -- workers

    async def _start(self, name: str) -> None:
        identity = WorkerIdentity(worker_id=name, incarnation=Incarnation(self._tag(name)))
        await self.provider.register_worker(identity, LEASE, {})
        self.workers[name] = SimulatedWorker(identity)
        self.model.register(identity)
        await self._look(started=name, freed_by=name)

    async def _renew(self, worker: SimulatedWorker) -> None:
        row = self.model.workers.get(worker.identity.worker_id)
        try:
            renewed = await self.provider.renew_worker(worker.identity, LEASE) is not None
        except WorkerFenced:
            expect("fenced", True, row is not None and row.incarnation != worker.identity.incarnation)
            return
        expect("renewed", renewed, self.model.is_alive(worker.identity))
        if renewed and row is not None:
            row.until = self.model.now + LEASE
        await self._look()

    async def _resume(self, worker: SimulatedWorker) -> None:
        row = self.model.workers.get(worker.identity.worker_id)
        fenced = row is not None and row.incarnation != worker.identity.incarnation
        try:
            await self.provider.register_worker(worker.identity, LEASE, {}, resume=True)
        except WorkerFenced:
            expect("fenced", True, fenced)
            return
        expect("fenced", False, fenced)
        self.model.register(worker.identity)
        await self._look()

    async def _leave(self, worker: SimulatedWorker, *, for_good: bool) -> None:
        name = worker.identity.worker_id
        if for_good:
            await self.provider.release_worker(worker.identity)
        else:
            await self.provider.drain_worker(worker.identity)
        self.model.leave(worker.identity, for_good=for_good)
        await self._look(freed_by=name)

    async def _hand_over(self, worker: SimulatedWorker, step: do.HandOver) -> None:
        if not worker.coroutines:
            return
        name = list(worker.coroutines)[step.which % len(worker.coroutines)]
        to = None if step.to is None else f"w{step.to}"
        await self.provider.release_instance(worker.identity, [Release(instance_id=name, to=to)])
        del worker.coroutines[name]
        self.model.hand_over(worker.identity, name, to)
        await self._look()

    async def _sweep(self, retention: float) -> None:
        for _ in range(100):
            done = await self.provider.sweep(interval=0.0, session_retention=retention, worker_retention=retention)
            # A provider may keep the row of a worker that the lock of a session names still.
            named = {row.worker_id for row in self.sessions.values() if row.expires_in > 0}
            rows = {row.worker_id for row in await self.provider.list_workers()}
            self.model.sweep_workers(retention, named & rows)
            await self._look(swept=True)
            if not done.limit_reached:
                return
        raise Violation("sweep says `more` for ever")

    # -- work

    async def _fetch_work(self, worker: SimulatedWorker, step: do.FetchWork) -> None:
        before = self.sessions
        options = FetchOptions(
            limit=step.limit, max_sessions=step.room, names=("work",), unknown_after=60.0, timeouts=TIMEOUTS
        )
        asking = self.provider.fetch_work_item(worker.identity, options)
        if self._held_up:
            call = await self.database.settle(asking)
            if not call.done():  # it waits for a script, which therefore was the first
                await self._finish()
            fetched = await call
        else:
            fetched = await asking
        for got in fetched.items:
            self._judge_item(worker, got)
            self.model.lock(worker.identity, got)
        await self._look()
        for got in fetched.items:
            self._judge_session(worker, got, before)
        held = {name for name, row in self.sessions.items() if self._holds(worker, row)}
        if held - {name for name, row in before.items() if self._holds(worker, row)} and len(held) > step.room:
            raise Violation(f"{worker.identity.worker_id} holds {sorted(held)}, with room for {step.room}")
        if step.reply == "lost":
            return
        if step.reply == "twice":
            await self._fetch_work(worker, replace(step, reply="lost"))
        for got in fetched.items:
            await self._take(worker, got)

    def _judge_item(self, worker: SimulatedWorker, got: WorkItem) -> None:
        instance = self.model.instances.get(got.lock.key.instance_id)
        item = instance.items.get(got.lock.key) if instance else None
        if item is None:
            raise Violation(f"{got.lock.key} was fetched, and is not queued")
        if not self.model.is_alive(worker.identity):
            raise Violation(f"{worker.identity} fetched {got.lock.key} and is not alive")
        if not self.model.is_free(item):
            raise Violation(f"{got.lock.key} was fetched by {worker.identity}, and is locked or not visible")
        expect("item", (got.payload, got.session_id), (item.text, item.session_id))
        expect("attempts, failures", (got.attempts, got.failures), (item.attempts + 1, item.failures))

    def _judge_session(self, worker: SimulatedWorker, got: WorkItem, before: dict[str, SessionInfo]) -> None:
        if got.session_id is None:
            return
        row = self.sessions[got.session_id]
        if not self._holds(worker, row):
            raise Violation(f"{got.lock.key} went to {worker.identity}, which does not hold {got.session_id}: {row}")
        expect("epoch", got.session_epoch, row.epoch)
        if self.model.is_draining(worker.identity) and not self._holds(worker, before.get(got.session_id)):
            raise Violation(f"{worker.identity} drains and has claimed {got.session_id}")

    @staticmethod
    def _holds(worker: SimulatedWorker, row: SessionInfo | None) -> bool:
        return row is not None and row.held and row.incarnation == worker.identity.incarnation

    async def _take(self, worker: SimulatedWorker, got: WorkItem) -> None:
        """The worker has a new item in hand, and its session's state in memory."""
        worker.work[got.lock.key] = got
        if got.session_id is None:
            return
        assert got.session_epoch is not None
        record = self.model.records.get(got.session_id)
        cached = worker.cache.get(got.session_id)
        if cached is None or cached.epoch != got.session_epoch:
            loaded = await self.provider.states.load(got.session_id)
            self._judge_record(got.session_id, loaded)
            content, version = (record.content, record.version) if record else ("", 0)
            worker.cache[got.session_id] = CachedState(got.session_epoch, content, version)
        elif (cached.content, cached.version) != ((record.content, record.version) if record else ("", 0)):
            raise Violation(
                f"{worker.identity} has {cached} of {got.session_id} and its lease has that epoch still;"
                f" the record is {record}"
            )

    def _judge_record(self, session_id: str, loaded: SessionRecord | None) -> None:
        record = self.model.records.get(session_id)
        wanted = record and (record.content, record.version, record.epoch, record.key)
        found = loaded and (loaded.state.decode(), loaded.version, loaded.epoch, loaded.idempotency_key)
        expect(f"record of {session_id}", found, wanted)

    async def _settle_item(self, worker: SimulatedWorker, item: WorkItem, step: do.PlanStep) -> None:
        match step:
            case do.Ack():
                await self._ack(worker, item, step)
            case do.GiveBack():
                await self._give_back(worker, item, step)
            case do.Checkpoint():
                await self._checkpoint(worker, item, step)

    async def _ack(self, worker: SimulatedWorker, item: WorkItem, step: do.Ack) -> None:
        write = self._state_write(worker, item) if step.saves else None
        ack = WorkAck(lock=item.lock, message=self._tag("result"), state=write)
        for _ in range(2 if step.reply == "twice" else 1):
            passes = self.model.find(item.lock) is not None
            passes = passes and (write is None or self.model.fits(write, self.sessions))
            (acked,) = await self.provider.ack_work_item(worker.identity, [ack], TIMEOUTS)
            expect(f"ack of {item.lock.key}", acked, passes)
            if acked:
                self.model.ack(item.lock, ack.message)
                self._written(worker, [write] if write else [])
            await self._look()
        if step.reply != "heard" and write is not None:
            worker.cache.pop(write.new.session_id, None)
        del worker.work[item.lock.key]

    def _state_write(self, worker: SimulatedWorker, item: WorkItem) -> StateWrite | None:
        """What the activity has made of its session's state, under the epoch with which it was fetched."""
        if item.session_id is None or (cached := worker.cache.get(item.session_id)) is None:
            return None
        assert item.session_epoch is not None
        content = f"{cached.content}{item.payload}\n"
        new = SessionState(session_id=item.session_id, state=content.encode())
        return StateWrite(new=new, base_version=cached.version, epoch=item.session_epoch)

    def _written(self, worker: SimulatedWorker, writes: Sequence[StateWrite]) -> None:
        """A state has passed: it is in the record, and what is in memory is that."""
        for write in writes:
            content = write.new.state.decode()
            self.model.write(write.new.session_id, content, epoch=write.epoch)
            worker.cache[write.new.session_id] = CachedState(write.epoch, content, write.base_version + 1)

    async def _checkpoint(self, worker: SimulatedWorker, item: WorkItem, step: do.Checkpoint) -> None:
        write = self._state_write(worker, item)
        if write is None:
            return
        passes = self.model.fits(write, self.sessions)
        try:
            await self.provider.states.save(write.new, expected_version=write.base_version, epoch=write.epoch)
        except SessionWriteConflict:
            expect(f"checkpoint of {write.new.session_id}", False, passes)
            worker.cache.pop(write.new.session_id)
        else:
            expect(f"checkpoint of {write.new.session_id}", True, passes)
            self._written(worker, [write])
            if step.reply == "lost":
                worker.cache.pop(write.new.session_id)
        await self._look()

    async def _give_back(self, worker: SimulatedWorker, item: WorkItem, step: do.GiveBack) -> None:
        given = WorkAbandon(
            lock=item.lock,
            delay=float(step.delay),
            failed=step.failed,
            count_attempt=step.counted,
            release_session=step.release,
        )
        for _ in range(2 if step.reply == "twice" else 1):
            wanted = self.model.abandon(given)
            (done,) = await self.provider.abandon_work_item(worker.identity, [given])
            expect(f"{item.lock.key} given back", done, wanted)
            await self._look(freed_by=worker.identity.worker_id if step.release else None)
        del worker.work[item.lock.key]

    async def _renew_locks(self, worker: SimulatedWorker) -> None:
        locks = [item.lock for item in worker.work.values()]
        found = await self.provider.renew_work_item_lock(worker.identity, locks, TIMEOUTS)
        for lock, renewed in zip(locks, found, strict=True):
            item = self.model.find(lock)
            expect(f"renewal of {lock.key}", renewed, item is not None)
            if item is None:
                del worker.work[lock.key]
            else:
                item.until = self.model.now + ITEM_LOCK
        await self._look()

    async def _disown(self, worker: SimulatedWorker) -> None:
        if worker.late:
            return  # it does so only when no commit is under way
        known = [item.lock for item in worker.work.values()]
        unheard = [
            item
            for item in self.model.items()
            if item.holder == worker.identity and item.token not in {lock.token for lock in known}
        ]
        found = await self.provider.release_unknown_locks(worker.identity, known)
        expect("released", found, len(unheard))
        for item in unheard:
            self.model.unlock(item, counted=False)
        await self._look()

    # -- orchestrations

    async def _fetch_instances(self, worker: SimulatedWorker, step: do.FetchInstances) -> None:
        hand = [m for c in worker.coroutines.values() for m in c.hand] if step.exclude else []
        fetched = await self.provider.fetch_orchestration_item(
            worker.identity,
            limit=step.limit,
            names=NAMES,
            unknown_after=60.0,
            exclude=[message.id for message in hand],
        )
        for item in fetched.items:
            self._judge_instance(worker, item, [message.payload for message in hand])
        await self._look()
        if step.reply == "lost":
            return
        if step.reply == "twice":
            await self._fetch_instances(worker, replace(step, reply="lost"))
        for item in fetched.items:
            self._adopt(worker, item)

    def _judge_instance(self, worker: SimulatedWorker, item: OrchestrationItem, exclude: list[str]) -> None:
        instance = self.model.instances.get(item.instance_id)
        if instance is None or instance.finished or instance.status == "suspended":
            raise Violation(f"{item.instance_id} was fetched, and is not running")
        ours = instance.owner == worker.identity
        if not self.model.is_alive(worker.identity):
            raise Violation(f"{worker.identity} fetched {item.instance_id} and is not alive")
        if not ours and (self.model.is_alive(instance.owner) or self.model.is_draining(worker.identity)):
            raise Violation(f"{worker.identity} took {item.instance_id}, which {instance.owner} owns")
        instance.owner = worker.identity
        for message in item.messages:
            expect(f"message {message.id}", message.payload, self._messages.setdefault(message.id, message.payload))
        where = (item.execution_id, item.event_count)
        expect(f"place of {item.instance_id}", where, (instance.execution_id, instance.event_count))
        wanted = self.model.visible(instance, exclude)
        unordered = {m.text for m in wanted if not m.ordered}
        texts = [m.payload for m in item.messages]
        expect(f"messages of {item.instance_id}", sorted(texts), sorted(m.text for m in wanted))
        in_order = [text for text in texts if text not in unordered]
        expect(f"order in {item.instance_id}", in_order, [m.text for m in wanted if m.ordered])

    def _adopt(self, worker: SimulatedWorker, item: OrchestrationItem) -> None:
        """The coroutine in memory gets the messages, if it is the one that they are for; else there is a new one."""
        live = worker.coroutines.get(item.instance_id)
        if live is None or not (live.committing or _place(live.at) == _place(item)):
            birth = self.model.instances[item.instance_id].birth
            live = worker.coroutines[item.instance_id] = Coroutine(replace(item, messages=()), birth)
        known = {message.id for message in live.hand}
        live.hand += [message for message in item.messages if message.id not in known]

    async def _commit(self, worker: SimulatedWorker, step: do.Commit) -> None:
        batch: dict[str, tuple[Coroutine, SentTurn]] = {}
        used: set[WorkKey] = set()
        for one in step.turns:
            free = [live for name, live in worker.coroutines.items() if not live.committing and name not in batch]
            if free:
                live = free[one.which % len(free)]
                sent = self._build(worker, live, one, used)
                batch[live.at.instance_id] = (live, sent)
        if not batch:
            return
        for live, sent in batch.values():
            live.committing = True
            live.hand = [m for m in live.hand if m.id not in sent.turn.consumed]
        if step.reply == "late":
            worker.late.append(lambda: self._send_turns(worker, [*batch.values()], "heard"))
        else:
            await self._send_turns(worker, [*batch.values()], step.reply)

    def _build(self, worker: SimulatedWorker, live: Coroutine, step: do.Step, used: set[WorkKey]) -> SentTurn:
        me, at = live.at.instance_id, live.at
        consumed = live.hand[: step.consume]
        foreign = [m.id for other in worker.coroutines.values() if other is not live for m in other.hand]
        acks = [i for i in worker.work.values() if step.acks and i.lock.key[:2] == (me, at.execution_id)]
        acks = [item for item in acks if item.lock.key not in used]
        used.update(item.lock.key for item in acks)
        events = [f"got {m.payload}" for m in consumed] + [f"done {i.payload}" for i in acks]

        def scheduled(what: str) -> int:
            events.append(self._tag(what))
            return at.event_count + len(events)

        work = [
            NewWorkItem(
                key=WorkKey(me, at.execution_id, scheduled("work")),
                name="work",
                payload=events[-1],
                session_id=None if session is None else f"s{session}",
                delay=float(step.delay),
                lock_here=step.here,
                claim_here=step.here and step.claim,
            )
            for session in step.schedule
        ]
        timers = [] if step.timer is None else [(at.execution_id, scheduled("timer"))]
        children = [self._child(at, step.child)] if step.child is not None else []
        messages = [
            NewMessage(instance_id=me, payload=events[-1], delay=float(step.timer or 0), timer=timer)
            for timer in timers
        ]
        if step.send is not None:
            messages.append(NewMessage(instance_id=f"i{step.send}", payload=self._tag("said"), delay=float(step.delay)))
        if step.end == "continue":
            messages.append(NewMessage(instance_id=me, payload=self._tag("again")))
        new_activities = [item.key.activity_id for item in work]
        new_timers = [timer for _, timer in timers]
        hold = scheduled("hold") if step.hold is not None else 0
        built = turn(
            at,
            history=events or [self._tag("nothing")],
            consumed=[m.id for m in consumed] + (foreign if step.foreign else []),
            acks=[item.lock for item in acks],
            states=self._state_writes(worker, acks) if step.saves else [],
            work_items=work,
            messages=messages,
            instances=children,
            cancel_activities=_cancelled(step, live.activities, new_activities),
            cancel_timers=_cancelled(step, live.timers, new_timers),
            watches=[] if step.watch is None else [SessionWatch(f"s{step.watch}", self._tag(f"moved s{step.watch}"))],
            holds=[] if step.hold is None else [SessionHold(f"s{step.hold}", hold, HOLD)],
            release_sessions=[] if step.release is None else [f"s{step.release}"],
            update=_ENDS[step.end],
        )
        live.activities += new_activities
        live.timers += new_timers
        return SentTurn(built, live.birth, [m.payload for m in consumed])

    def _child(self, parent: OrchestrationItem, child: int) -> NewInstance:
        return new_instance(
            f"i{child}",
            start=self._tag("start"),
            parent_id=parent.instance_id,
            parent_birth=parent.birth,
            on_deleted=self._tag(f"deleted i{child}"),
            on_exists=self._tag(f"exists i{child}"),
            birth=self._tag("birth"),
        )

    def _state_writes(self, worker: SimulatedWorker, acks: Sequence[WorkItem]) -> list[StateWrite]:
        """One for each session: the first result that comes with a state."""
        writes: dict[str, StateWrite] = {}
        for item in acks:
            write = self._state_write(worker, item)
            if write is not None:
                writes.setdefault(write.new.session_id, write)
        return list(writes.values())

    async def _send_turns(
        self, worker: SimulatedWorker, batch: Sequence[tuple[Coroutine, SentTurn]], reply: do.Reply
    ) -> None:
        sent = [one for _, one in batch]
        before = self.sessions
        verdicts = self.model.judge(worker.identity, sent, before)
        results = await self.provider.commit_turn(worker.identity, [one.turn for one in sent], TIMEOUTS)
        for one, result, passes in zip(sent, results, verdicts, strict=True):
            self._judge_turn(one, result, passes=passes)
        passed = [one for one, passes in zip(sent, verdicts, strict=True) if passes]
        self.model.commit(passed)
        for one, result in zip(sent, results, strict=True):
            self._judge_places(worker, one.turn, result)
        await self._look(released=[name for one in passed for name in one.turn.release_sessions])
        for write in [write for one in passed for write in one.turn.states]:
            content = write.new.state.decode()
            worker.cache[write.new.session_id] = CachedState(write.epoch, content, write.base_version + 1)
        if reply == "twice":
            await self._send_turns(worker, batch, "lost")
        for (live, one), result in zip(batch, results, strict=True):
            await self._settled(worker, live, one.turn, result, heard=reply != "lost")

    def _judge_turn(self, one: SentTurn, result: TurnResult, *, passes: bool) -> None:
        at = (one.turn.instance_id, one.turn.execution_id, one.turn.event_count)
        expect(f"turn of {at}, born {one.birth}", result.committed, passes)
        if live := [lock for lock in result.lost_acks if self.model.find(lock)]:
            # A lock that another turn of the batch has used up is lost, too.
            expect("locks that are lost", passes, False)
            assert live
        for session_id in result.conflicts:
            if session_id not in {write.new.session_id for write in one.turn.states}:
                raise Violation(f"a conflict over {session_id}, which the turn does not write")

    def _judge_places(self, worker: SimulatedWorker, sent: Turn, result: TurnResult) -> None:
        """Work that the commit has locked to its worker."""
        if not result.committed:
            return
        expect("places", len(result.placed), len(sent.work_items))
        draining = self.model.is_draining(worker.identity)
        for new, place in zip(sent.work_items, result.placed, strict=True):
            instance = self.model.instances[sent.instance_id]
            queued = new.key in instance.items
            if place.item is None:
                if queued and new.lock_here and not new.delay and new.session_id is None and not draining:
                    raise Violation(f"{new.key} is not locked here")
                continue
            if not (queued and new.lock_here and not new.delay and not draining):
                raise Violation(f"{new.key} is locked here: queued {queued}, {new}")
            self.model.lock(worker.identity, place.item)
            row = self.sessions.get(new.session_id) if new.session_id is not None else None
            if new.session_id is not None and not self._holds(worker, row):
                raise Violation(f"{new.key} is locked to {worker.identity}: {new.session_id} is not held there: {row}")
            expect("epoch", place.item.session_epoch, row.epoch if row else None)

    async def _settled(
        self, worker: SimulatedWorker, live: Coroutine, sent: Turn, result: TurnResult, *, heard: bool
    ) -> None:
        """The worker goes on with what it was told."""
        live.committing = False
        for lock in sent.acks:
            worker.work.pop(lock.key, None)
        if not (heard and result.committed):
            for write in sent.states:  # nobody knows, or the store knows better: the memory is not trusted
                worker.cache.pop(write.new.session_id, None)
            if worker.coroutines.get(sent.instance_id) is live:
                del worker.coroutines[sent.instance_id]
            return
        for place in result.placed:
            if place.item is not None:
                await self._take(worker, place.item)
        if sent.update is not None and (sent.update.continued or sent.update.status != "running"):
            worker.coroutines.pop(sent.instance_id, None)
        else:
            live.at = replace(live.at, event_count=live.at.event_count + len(sent.history))

    # -- suspending, and what operators do about it

    async def _suspend(self, worker: SimulatedWorker, step: do.Suspend) -> None:
        idle = [live for live in worker.coroutines.values() if not live.committing]
        if not idle:
            return
        live = idle[step.which % len(idle)]
        one = Suspend(
            instance_id=live.at.instance_id,
            birth=live.at.birth,
            execution_id=live.at.execution_id,
            event_count=live.at.event_count,
            error_type="Broken",
            message=self._tag("broken"),
            code=worker.identity.worker_id,
            needs_code=step.needs_code,
        )
        wanted = self.model.suspend(worker.identity, one, live.birth)
        (found,) = await self.provider.suspend_instance(worker.identity, [one])
        expect(f"{one.instance_id} suspended", found, wanted)
        del worker.coroutines[one.instance_id]
        await self._look()

    async def _retry(self, worker: SimulatedWorker) -> None:
        code = worker.identity.worker_id
        serves = self.model.is_alive(worker.identity) and not self.model.is_draining(worker.identity)
        wanted = self.model.untried(code) if serves else set()
        found = await self.provider.retry_suspended(worker.identity, names=NAMES, code=code, limit=100)
        expect("retried", set(found), wanted)
        for name in found:
            self.model.instances[name].status = "running"
            self.model.instances[name].owner = worker.identity
        await self._look()

    async def _resume_instance(self, name: str) -> None:
        (found,) = await self.provider.resume_instance([name])
        expect(f"{name} resumed", found, self.model.resume(name))
        await self._look()

    async def _reset(self, name: str, step: do.Reset) -> None:
        (info,) = await self.provider.get_instance([name])
        if info is None:
            return
        instance, execution = self.model.instances[name], info.execution_id + 1
        expect(f"place of {name}", (info.execution_id, info.event_count), (instance.execution_id, instance.event_count))
        timers = [m.timer[1] for m in instance.messages if m.timer and m.timer[0] == info.execution_id]
        again = [NewMessage(instance_id=name, payload=self._tag("again"))]
        again += [
            NewMessage(instance_id=name, payload=self._tag("timer"), delay=33.0, timer=(execution, number))
            for number in timers
        ]
        work = NewWorkItem(
            key=WorkKey(name, execution, 1),
            name="work",
            payload=self._tag("work"),
            session_id=None if step.session is None else f"s{step.session}",
        )
        one = Reset(
            instance_id=name,
            birth=info.birth,
            execution_id=info.execution_id,
            event_count=info.event_count,
            keep=step.keep % (info.event_count + 1),
            history=[self._tag("reset")],
            messages=again,
            work_items=[work],
        )
        expect(f"{name} reset", await self.provider.reset_instance(one), True)
        self.model.reset(one)
        await self._look()
        expect(f"{name} reset again", await self.provider.reset_instance(one), False)
        await self._look()

    # -- releasing sessions

    async def _release_session(self, name: str) -> None:
        row = self.sessions.get(name)
        found = await self.provider.release_session([name])
        if row is None or not row.held:
            wanted = "not_held"
        else:
            wanted = "busy" if self._in_hand(name, row.incarnation) else "released"
        expect(f"release of {name}", found, [wanted])
        await self._look(released=[name] if wanted == "released" else [])
        expect(f"{name} is held", name in self.sessions and self.sessions[name].held, wanted == "busy")

    def _in_hand(self, session_id: str, incarnation: str) -> bool:
        """Whether that process has work of the session."""
        return any(
            item.session_id == session_id
            and item.token is not None
            and item.until > self.model.now
            and item.holder is not None
            and item.holder.incarnation == incarnation
            for item in self.model.items()
        )

    async def _make_room(self, worker: SimulatedWorker, step: do.MakeRoom) -> None:
        before = self.sessions
        options = FetchOptions(limit=10, max_sessions=step.room, names=("work",), unknown_after=60.0, timeouts=TIMEOUTS)
        freed = await self.provider.release_idle_session(
            worker.identity, options, min_idle=float(step.min_idle), only_users={}
        )
        for name in freed:
            if not self._holds(worker, before.get(name)):
                raise Violation(f"{worker.identity} has released {name}, which it does not hold")
            if queued := [item.key for item in self.model.items() if item.session_id == name]:
                raise Violation(f"{name} was released, though it has work: {queued}")
        if freed and not [i for i in self.model.items() if i.session_id is not None and self.model.is_free(i)]:
            raise Violation(f"{freed} were released, though no work waits")
        await self._look(released=freed)
        if still := [name for name in freed if self.sessions[name].held]:
            raise Violation(f"{still} were released, and are held")

    # -- clients and scripts

    async def _client(self, step: do.Create | do.Send | do.Delete) -> None:
        name = f"i{step.instance}"
        times = 1 if isinstance(step, do.Delete) or step.reply != "twice" else 2
        match step:
            case do.Create():
                new = new_instance(name, start=self._tag("start"), birth=self._tag("birth"))
                for _ in range(times):
                    (created,) = await self.provider.create_instance([new])
                    expect(f"{name} created", created, self.model.create(new))
            case do.Send():
                for _ in range(times):
                    message = NewMessage(instance_id=name, payload=self._tag("event"), delay=float(step.delay))
                    (delivery,) = await self.provider.send_message([message])
                    expect(f"delivery to {name}", delivery, self.model.send(message))
            case do.Delete():
                found = await self.provider.delete_instance([name], force=step.force, tree=step.tree)
                wanted = self.model.delete([name], force=step.force, tree=step.tree)
                expect(f"deletion of {name}", list(found), wanted)
        await self._look()

    async def _script(self, script: Script, session_id: str, step: do.Load | do.Save | do.Remove) -> None:
        if isinstance(step, do.Load):
            loaded = await self.provider.states.load(session_id)
            self._judge_record(session_id, loaded)
            script.seen[session_id] = Seen(loaded.version, loaded.birth, loaded.state.decode()) if loaded else Seen()
        elif step.reply == "late":
            await self.database.pause_writes(session_id)
            await self._hold_up(script, session_id, step)
        elif isinstance(step, do.Save):
            writing = self._prepare(script, session_id, step)
            for _ in range(2 if step.reply == "twice" else 1):
                task = asyncio.ensure_future(writing.send(self.elsewhere))
                await asyncio.wait([task])
                self._saved(script, writing, task)
                await self._look()
        else:
            removed = await self.elsewhere.states.delete([session_id])
            expect("removed", list(removed), [session_id] if self.model.records.pop(session_id, None) else [])
            await self._look()

    def _prepare(self, script: Script, session_id: str, step: do.Save) -> Writing:
        seen = script.seen.get(session_id, Seen()) if step.checked else None
        content = f"{seen.content if seen else ''}{self._tag('saved')}\n"
        return Writing(session_id, content, seen, self._tag("record"), self._tag("key") if step.key else None)

    def _saved(self, script: Script, writing: Writing, task: asyncio.Task[int]) -> None:
        record = self.model.records.get(writing.session_id)
        error = task.exception()
        if error is not None and not isinstance(error, SessionWriteConflict):
            raise error
        if writing.key is not None and record is not None and record.key == writing.key:
            expect("a save that is repeated", error is None and task.result(), record.version)
            return
        version, before = (record.version, record.content) if record else (0, "")
        passes = writing.seen is None or writing.seen.content == before
        expect(f"save of {writing.session_id}", error is None, passes)
        if error is None:
            expect("version", task.result(), version + 1)
            self.model.write(writing.session_id, writing.content, key=writing.key)
            script.seen.pop(writing.session_id, None)
            if writing.birth is not None:
                script.seen[writing.session_id] = Seen(version + 1, writing.birth, writing.content)

    async def _hold_up(self, script: Script, session_id: str, step: do.Save | do.Remove) -> None:
        """Begin a write that stops in the middle, where the database allows that, until `Finish`."""
        if isinstance(step, do.Save):
            writing = self._prepare(script, session_id, step)
            save = await self.database.settle(writing.send(self.elsewhere))
            self._held_up.append((save, lambda: self._saved(script, writing, save)))
        else:
            remove = await self.database.settle(self.elsewhere.states.delete([session_id]))
            self._held_up.append((remove, lambda: self._removed(session_id, remove)))
        if self._held_up[0][0].done():
            await self._finish()

    def _removed(self, session_id: str, task: asyncio.Task[Sequence[str]]) -> None:
        expect("removed", list(task.result()), [session_id] if self.model.records.pop(session_id, None) else [])

    async def _finish(self) -> None:
        """What is held up goes on and ends."""
        await self.database.resume_writes()
        while self._held_up:
            task, judge = self._held_up.pop()
            await asyncio.wait([task])
            judge()
            await self._look()

    # -- a lost tail, and the end

    async def _lose_tail(self) -> None:
        if self._kept is None:
            return
        await self.database.lose_tail()
        now, births, numbers = self.model.now, self.model.births, self.model.numbers
        self.model, self.leases.rows = self._kept
        self._kept = None  # the standby is the primary now
        self.model.now, self.model.births, self.model.numbers = now, births, numbers
        self.workers.clear()
        for script in self.scripts:
            script.seen.clear()
        await self._begin_timeline()
        await self._look(time_passed=True)
        for worker in range(2):
            await self.step(do.Start(worker))

    async def _begin_timeline(self) -> None:
        """The first to look at a database that has lost commits learns of it. If nobody did, ids would come back."""
        await self.database.show_loss()
        nobody = WorkerIdentity(worker_id="nobody", incarnation=Incarnation("nobody"))
        try:
            await self.provider.renew_worker(nobody, LEASE)
        except DatabaseChanged:
            self.provider = await self.database.provider(Timeline())
            self.model.end_leases()

    async def _end(self) -> None:
        """All that is queued is found and finished by a worker that comes last; then nothing is left."""
        await self.step(do.Pass(100_000))
        await self._start("last")
        for name in list(self.model.instances):
            await self._resume_instance(name)
        last = self.workers["last"]
        await self._sweep(LONG)
        for _ in range(50):
            if not self.model.items() and not self.model.messages():
                break
            await self._drain_queues(last)
        else:
            raise Violation(f"stranded: {self.model.items()}, {self.model.messages()} messages")
        await self._check_contents()
        await self._delete_all()

    async def _drain_queues(self, last: SimulatedWorker) -> None:
        await self._renew(last)
        due = [m.visible_at for i in self.model.instances.values() for m in i.messages]
        due += [item.visible_at for item in self.model.items()]
        if min(due) > self.model.now:
            raise Violation("the plan asks for more time than the end gives")
        await self._fetch_work(last, do.FetchWork(0))
        for item in list(last.work.values()):
            await self._ack(last, item, do.Ack(0))
        await self._fetch_instances(last, do.FetchInstances(0))
        while last.coroutines:
            await self._commit(last, do.Commit(0, (do.Step(),)))
            last.coroutines.pop(next(iter(last.coroutines)), None)

    async def _check_contents(self) -> None:
        """Histories and records are what the reference says."""
        keys = [(name, e) for name, i in self.model.instances.items() for e in i.histories]
        for name, execution in keys:
            found = await read_whole_history(self.provider, name, execution)
            expect(f"history of {name}", found, self.model.instances[name].histories[execution])
        for number in range(do.SESSIONS):
            self._judge_record(f"s{number}", await self.provider.states.load(f"s{number}"))

    async def _delete_all(self) -> None:
        names = sorted(self.model.instances)
        self.model.delete(names, force=True)
        deletions = await self.provider.delete_instance(names, force=True)
        expect("running, by force", "running" in deletions, False)  # a child is unknown when its parent took it along
        records = sorted(self.model.records)
        expect("removed", list(await self.provider.states.delete(records)), records)
        self.model.records.clear()
        await self._leave(self.workers["last"], for_good=True)
        await self.step(do.Pass(100_000))
        await self._sweep(0.0)
        left = {name: rows for name, rows in (await self.database.rows()).items() if rows}
        expect("rows left", left, {})


def _place(at: OrchestrationItem) -> tuple[object, ...]:
    """What tells whether a coroutine in memory is the one that was fetched."""
    return (at.execution_id, at.event_count, at.birth)


def _cancelled(step: do.Step, old: Sequence[int], new: Sequence[int]) -> list[int]:
    return [*new] if step.cancel == "new" else [*old, *new] if step.cancel == "all" else []
