"""A simulated cluster: workers, clients and scripts that carry out a plan, compared with the reference."""

from __future__ import annotations

import asyncio
from copy import deepcopy

from affinity.errors import DatabaseChanged
from affinity.provider.contract import (
    Incarnation,
    WorkerIdentity,
)
from affinity.provider.history import read_whole_history
from affinity.provider.timeline import Timeline
from tests.model import steps as do
from tests.model.cluster_state import (
    LONG,
    SimulatedWorker,
    expect,
)
from tests.model.leases import Violation
from tests.model.reference import LEASE
from tests.model.script_steps import ScriptSteps
from tests.model.turn_steps import TurnSteps


class SimulatedCluster(TurnSteps, ScriptSteps):
    """One plan's run on one database."""

    async def run(self, plan: do.Plan) -> None:
        """Carry the plan out, then bring everything to its end, and see that nothing is left."""
        await self.database.begin()
        try:
            self.provider = await self.database.provider(Timeline())
            self.elsewhere = await self.database.provider()  # of the scripts
            for worker in range(2):
                await self.step(do.StartWorker(worker))
            for step in plan:
                await self.step(step)
            await self._end()
        finally:
            await self.database.resume_writes()
            for task, _ in self._held_up:
                await asyncio.wait([task])
            await self.database.end()

    async def step(self, step: do.PlanStep) -> None:  # noqa: PLR0912
        """Carry one step out and judge it. Held up calls end first, unless the step is of use in between."""
        if not isinstance(step, do.FetchWork):
            await self._finish()
        match step:
            case do.StartWorker():
                await self._start(f"w{step.worker}")
            case do.Create() | do.Send() | do.Delete():
                await self._client(step)
            case do.AppendInput():
                await self._append(step)
            case do.PruneJournals():
                await self._prune_journals(step.most)
            case do.DeleteJournal():
                await self._delete_journal(f"i{step.instance}")
            case do.ResumeInstance():
                await self._resume_instance(f"i{step.instance}")
            case do.ResetInstance():
                await self._reset(f"i{step.instance}", step)
            case do.RestartInstance():
                await self._restart(f"i{step.instance}")
            case do.ReleaseSession():
                await self._release_session(f"s{step.session}")
            case do.Load() | do.Save() | do.Remove():
                await self._script(self.scripts[step.script], f"s{step.session}", step)
            case do.FinishWrites():
                """It has ended."""
            case do.Pass():
                await self.database.advance(step.seconds)
                self.model.now += step.seconds
                await self._look(time_passed=True)
            case do.RunSweep():
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
            case do.ReleaseUnknownLocks():
                await self._release_unknown_locks(worker)
            case do.ReadPending():
                await self._read_pending(worker, f"i{step.instance}")
            case do.HandOver():
                await self._hand_over(worker, step)
            case do.SuspendInstance():
                await self._suspend(worker, step)
            case do.Retry():
                await self._retry(worker)

    # -- a lost tail, and the end

    async def _lose_tail(self) -> None:
        if self._kept is None:
            return
        await self.database.lose_tail()
        now, generations, numbers = self.model.now, self.model.generations, self.model.numbers
        self.model, self.leases.rows = self._kept
        self._kept = None  # the standby is the primary now
        self.model.now, self.model.generations, self.model.numbers = now, generations, numbers
        self.workers.clear()
        for script in self.scripts:
            script.seen.clear()
        await self._begin_timeline()
        await self._look(time_passed=True)
        for worker in range(2):
            await self.step(do.StartWorker(worker))

    async def _begin_timeline(self) -> None:
        """The first call on a database that has lost commits learns of it. Without such a call, ids would come back."""
        await self.database.show_loss()
        unknown = WorkerIdentity(worker_id="unknown", incarnation=Incarnation("unknown"))
        try:
            await self.provider.renew_worker(unknown, LEASE)
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
        for _ in range(500):
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
            await self._commit(last, do.Commit(0, (do.TurnStep(),)))
            last.coroutines.pop(next(iter(last.coroutines)), None)

    async def _check_contents(self) -> None:
        """Histories and records are what the reference says."""
        keys = [(name, e) for name, i in self.model.instances.items() for e in i.histories]
        for name, execution in keys:
            found = await read_whole_history(self.provider, name, execution)
            expect(f"history of {name}", found, self.model.instances[name].histories[execution])
        await self._check_journals()
        for number in range(do.SESSIONS):
            self._judge_record(f"s{number}", await self.provider.states.load(f"s{number}"))

    async def _delete_all(self) -> None:
        names = sorted(self.model.instances)
        self.model.delete(names, force=True)
        deletions = await self.provider.delete_instance(names, force=True)
        expect("running, by force", "running" in deletions, False)  # a child is unknown when its parent took it along
        for name in sorted(self.model.journals):
            await self._delete_journal(name)
        records = sorted(self.model.records)
        expect("removed", list(await self.provider.states.delete(records)), records)
        self.model.records.clear()
        await self._leave(self.workers["last"], for_good=True)
        await self.step(do.Pass(100_000))
        await self._sweep(0.0)
        left = {name: rows for name, rows in (await self.database.rows()).items() if rows}
        expect("rows left", left, {})
