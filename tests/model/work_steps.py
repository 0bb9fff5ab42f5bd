"""Steps of simulated workers: leases, sessions, and the work that they fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from affinity.errors import SessionWriteConflict, WorkerFenced
from affinity.provider.contract import (
    FetchOptions,
    IdleSession,
    Incarnation,
    Release,
    Retention,
    SessionInfo,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkItem,
)
from affinity.session import SessionState, StateWrite
from affinity_conformance.providers.builders import profile
from tests.model import steps as do
from tests.model.cluster_state import (
    TIMEOUTS,
    CachedRecord,
    ClusterState,
    SimulatedWorker,
    expect,
)
from tests.model.leases import Violation
from tests.model.reference import ITEM_LOCK, LEASE


class WorkSteps(ClusterState):
    """Carries out the steps of a worker that concern its lease, its sessions and its work."""

    # -- workers

    async def _start(self, name: str) -> None:
        identity = WorkerIdentity(worker_id=name, incarnation=Incarnation(self._tag(name)))
        await self.provider.register_worker(identity, LEASE, {}, profile=profile())
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
            await self.provider.register_worker(worker.identity, LEASE, {}, resume=True, profile=profile())
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
        kept = Retention(moves=retention)
        for _ in range(100):
            done = await self.provider.sweep(
                interval=0.0, session_retention=retention, worker_retention=retention, retention=kept
            )
            # A provider may keep the row of a worker that the lock of a session names still.
            named = {row.worker_id for row in self.sessions.values() if row.expires_in > 0}
            rows = {row.worker_id for row in await self.provider.list_workers()}
            self.model.sweep_workers(retention, named & rows)
            await self._look(swept=True)
            if not done.limit_reached:
                return
        raise Violation("sweep says `more` forever")

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
        if self.model.is_blocked(item):
            raise Violation(f"{got.lock.key} was fetched, and another ordered item of {item.session_id} is before it")
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
            worker.cache[got.session_id] = CachedRecord(got.session_epoch, content, version)
        elif (cached.content, cached.version) != ((record.content, record.version) if record else ("", 0)):
            raise Violation(
                f"{worker.identity} has {cached} of {got.session_id} and its lease has that epoch still;"
                f" the record is {record}"
            )

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
        message = self._tag("result")
        ack = WorkAck(lock=item.lock, message=message, state=write)
        for _ in range(2 if step.reply == "twice" else 1):
            passes = self.model.find(item.lock) is not None
            passes = passes and (write is None or self.model.fits(write, self.sessions))
            (acked,) = await self.provider.ack_work_item(worker.identity, [ack], TIMEOUTS)
            expect(f"ack of {item.lock.key}", acked, passes)
            if acked:
                self.model.ack(item.lock, message)
                self._written(worker, [write] if write else [])
            await self._look()
        if step.reply != "heard" and write is not None:
            worker.cache.pop(write.new.session_id, None)
        del worker.work[item.lock.key]

    def _state_write(self, worker: SimulatedWorker, item: WorkItem) -> StateWrite | None:
        """The session's state after the activity, under the epoch with which it was fetched."""
        if item.session_id is None or (cached := worker.cache.get(item.session_id)) is None:
            return None
        assert item.session_epoch is not None
        content = f"{cached.content}{item.payload}\n"
        new = SessionState(session_id=item.session_id, state=content.encode())
        return StateWrite(new=new, base_version=cached.version, epoch=item.session_epoch)

    def _written(self, worker: SimulatedWorker, writes: Sequence[StateWrite]) -> None:
        """A state has passed: it is in the record and in memory."""
        for write in writes:
            content = write.new.state.decode()
            self.model.write(write.new.session_id, content, epoch=write.epoch)
            worker.cache[write.new.session_id] = CachedRecord(write.epoch, content, write.base_version + 1)

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

    async def _release_unknown_locks(self, worker: SimulatedWorker) -> None:
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
            worker.identity,
            options,
            order=[IdleSession(session_id=name, in_use=step.in_use) for name in sorted(before)],
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
