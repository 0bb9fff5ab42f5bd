"""Steps of simulated workers: the turns of instances, and the instances that are suspended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from affinity.provider.contract import (
    InstanceUpdate,
    NewInstance,
    NewMessage,
    NewWorkItem,
    OrchestrationItem,
    Reset,
    Restart,
    SessionHold,
    SessionWatch,
    Suspend,
    Turn,
    TurnResult,
    WorkItem,
    WorkKey,
)
from affinity.session import StateWrite
from affinity_conformance.providers.builders import new_instance, turn
from tests.model import steps as do
from tests.model.cluster_state import (
    NAMES,
    TIMEOUTS,
    CachedRecord,
    Coroutine,
    SimulatedWorker,
    expect,
)
from tests.model.journal_steps import JournalSteps
from tests.model.leases import Violation
from tests.model.reference import HOLD, SentTurn
from tests.model.work_steps import WorkSteps

_ENDS: Final[dict[str, InstanceUpdate | None]] = {
    "": None,
    "continue": InstanceUpdate(status="running", continued=True),
    "complete": InstanceUpdate(status="completed", output='"done"'),
    "fail": InstanceUpdate(status="failed", error='"bad"'),
    "cancel": InstanceUpdate(status="cancelled", error='"stop"'),
}


class TurnSteps(WorkSteps, JournalSteps):
    """Carries out the steps of a worker that concern instances."""

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
            generation = self.model.instances[item.instance_id].generation
            live = worker.coroutines[item.instance_id] = Coroutine(replace(item, messages=()), generation)
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

    def _build(self, worker: SimulatedWorker, live: Coroutine, step: do.TurnStep, used: set[WorkKey]) -> SentTurn:
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
                ordered=step.ordered and session is not None,
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
            parts=[] if step.wake is None else self._wake(worker, step),
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
        return SentTurn(built, live.generation, [m.payload for m in consumed])

    def _child(self, parent: OrchestrationItem, child: int) -> NewInstance:
        return new_instance(
            f"i{child}",
            start=self._tag("start"),
            parent_id=parent.instance_id,
            parent_generation=parent.generation,
            on_deleted=self._tag(f"deleted i{child}"),
            on_exists=self._tag(f"exists i{child}"),
            generation=self._tag("generation"),
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
            worker.cache[write.new.session_id] = CachedRecord(write.epoch, content, write.base_version + 1)
        if reply == "twice":
            await self._send_turns(worker, batch, "lost")
        for (live, one), result in zip(batch, results, strict=True):
            await self._settled(worker, live, one.turn, result, heard=reply != "lost")

    def _judge_turn(self, one: SentTurn, result: TurnResult, *, passes: bool) -> None:
        at = (one.turn.instance_id, one.turn.execution_id, one.turn.event_count)
        expect(f"turn of {at}, generation {one.generation}", result.committed, passes)
        if live := [lock for lock in result.lost_acks if self.model.find(lock)]:
            # A lock that another turn of the batch has used up is lost, too.
            expect("locks that are lost", passes, False)
            assert live
        for session_id in result.conflicts:
            written = {write.new.session_id for write in one.turn.states}
            if session_id not in written | {write.session_id for write in one.turn.parts}:
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
            if self.model.is_blocked(instance.items[new.key]):
                raise Violation(f"{new.key} is locked here, and another ordered item of its session is before it")
            self.model.lock(worker.identity, place.item)
            row = self.sessions.get(new.session_id) if new.session_id is not None else None
            if new.session_id is not None and not self._holds(worker, row):
                raise Violation(f"{new.key} is locked to {worker.identity}: {new.session_id} is not held there: {row}")
            expect("epoch", place.item.session_epoch, row.epoch if row else None)

    async def _settled(
        self, worker: SimulatedWorker, live: Coroutine, sent: Turn, result: TurnResult, *, heard: bool
    ) -> None:
        """The worker goes on with what it knows."""
        live.committing = False
        for lock in sent.acks:
            worker.work.pop(lock.key, None)
        if not (heard and result.committed):
            for write in sent.states:  # unknown, or the store is newer: the memory is not trusted
                worker.cache.pop(write.new.session_id, None)
            if worker.coroutines.get(sent.instance_id) is live:
                del worker.coroutines[sent.instance_id]
            return
        for written in sent.parts:
            worker.pending.pop(written.session_id, None)
        for place in result.placed:
            if place.item is not None:
                await self._take(worker, place.item)
        if sent.update is not None and (sent.update.continued or sent.update.status != "running"):
            worker.coroutines.pop(sent.instance_id, None)
        else:
            live.at = replace(live.at, event_count=live.at.event_count + len(sent.history))

    # -- suspending, and what operators do about it

    async def _suspend(self, worker: SimulatedWorker, step: do.SuspendInstance) -> None:
        idle = [live for live in worker.coroutines.values() if not live.committing]
        if not idle:
            return
        live = idle[step.which % len(idle)]
        one = Suspend(
            instance_id=live.at.instance_id,
            generation=live.at.generation,
            execution_id=live.at.execution_id,
            event_count=live.at.event_count,
            error_type="Broken",
            message=self._tag("broken"),
            code=worker.identity.worker_id,
            needs_code=step.needs_code,
        )
        wanted = self.model.suspend(worker.identity, one, live.generation)
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

    async def _reset(self, name: str, step: do.ResetInstance) -> None:
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
            generation=info.generation,
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

    async def _restart(self, name: str) -> None:
        (info,) = await self.provider.get_instance([name])
        if info is None:
            return
        new = new_instance(name, name=info.name, start=self._tag("start"), generation=self._tag("generation"))
        restart = Restart(new=new, ended=info.generation)
        expect(f"{name} restarted", await self.provider.restart_instance([restart]), [self.model.restart(new)])
        await self._look()
        expect(f"{name} restarted again", await self.provider.restart_instance([restart]), [False])
        await self._look()


def _place(at: OrchestrationItem) -> tuple[object, ...]:
    """What shows whether a coroutine in memory is the one that was fetched."""
    return (at.execution_id, at.event_count, at.generation)


def _cancelled(step: do.TurnStep, old: Sequence[int], new: Sequence[int]) -> list[int]:
    return [*new] if step.cancel == "new" else [*old, *new] if step.cancel == "all" else []
