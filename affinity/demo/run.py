"""One run: start workers, raise messages, kill a worker half-way, wait for the end, and verify.

One loop does it all, and awaits only the database: raise the messages that are due, take a snapshot, act on it. A run
that cannot end raises `DemoFailed`, which names the worker or the conversations at fault.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio
import click

from affinity.client import Client
from affinity.demo.app import orchestration_name, transcripts_of
from affinity.demo.conversations import Conversation
from affinity.demo.database import export_transcripts, open_database
from affinity.demo.display import Display, Outcome, Report, View, counted
from affinity.demo.feed import Feed
from affinity.demo.fleet import Fleet, WorkerProcess, open_fleet
from affinity.demo.plan import LEASE_SECONDS, Plan, replay_seconds
from affinity.demo.records import read_records
from affinity.demo.verify import Record, Verdict, recovery_seconds, verify
from affinity.demo.watch import Snapshot, Watch
from affinity.demo.worker import Counts
from affinity.provider import migrate
from affinity.provider.contract import Provider, SessionInfo

TICK_SECONDS: Final = 0.05
"""Between two rounds of the loop: the precision of the messages' times."""

SNAPSHOT_SECONDS: Final = 0.25
"""Between two snapshots, at least."""

SNAPSHOT_REST: Final = 4.0
"""Between two snapshots, as a multiple of the duration of the last one: they must not become the load."""

START_SECONDS: Final = 60.0
"""How long workers may take to register."""

BUSY_SECONDS: Final = 2.0
"""How long to wait for a turn to run on the worker that is to be killed in the middle of one."""

STALL_SECONDS: Final = LEASE_SECONDS + 30.0
"""Without any progress for this long, the run has failed."""

STUCK_SHOWN: Final = 5
"""Conversations that a stall names."""

OPEN: Final = ("pending", "running")


class DemoFailed(click.ClickException):
    """The run could not come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledWorker:
    """The worker that was killed."""

    worker: WorkerProcess
    at: float  # Unix seconds
    orphans: Collection[str]  # sessions that the table gives it after its death
    running: int  # of these, how many had a turn under way


async def run_demo(plan: Plan, conversations: Sequence[Conversation], *, folder: Path, display: Display) -> Outcome:
    """Replay ``conversations`` and verify the result.

    Args:
        plan: workers, database, and whether one is killed.
        conversations: what to replay.
        folder: for the logs, the counts, and the database unless the plan names one.
        display: where to show it.

    Raises:
        DemoFailed: a worker ended by itself, or the run stalled.
        InvalidUrl, ProviderError: the database is wrong, or refuses.
    """
    url = plan.url or f"sqlite:///{quote(str(folder / 'affinity.db'))}"
    by_session = plan.by_session(conversations)
    await migrate(url)
    async with open_database(url, list(by_session) if plan.url else [], display) as provider:
        try:
            outcome = await _replay(plan, by_session, provider, url=url, folder=folder, display=display)
        except DemoFailed:
            await export_transcripts(provider, plan.run, folder, display)
            raise
        if not outcome.good:
            await export_transcripts(provider, plan.run, folder, display)
        return outcome


async def _replay(
    plan: Plan,
    conversations: Mapping[str, Conversation],
    provider: Provider,
    *,
    url: str,
    folder: Path,
    display: Display,
) -> Outcome:
    async with Client.from_provider(provider) as client:
        with open_fleet() as fleet:
            display.say(
                f"Starting {counted(plan.workers, 'worker')} on {provider.dialect}; worker lease {LEASE_SECONDS:g} s."
            )
            for name in plan.worker_names:
                counts = folder / f"{name}.counts.json"
                fleet.start(plan.settings(name, url=url, counts=counts, sessions=len(conversations)), folder)
            run = _Run(
                plan=plan,
                conversations=conversations,
                provider=provider,
                client=client,
                fleet=fleet,
                display=display,
            )
            await run.workers_registered()
            await run.play()
        # The workers have ended: the database and their counts are complete.
        return await run.outcome()


@dataclass(kw_only=True)
class _Run:
    """The state of a run."""

    plan: Plan
    conversations: Mapping[str, Conversation]  # by session
    provider: Provider
    client: Client
    fleet: Fleet
    display: Display

    def __post_init__(self) -> None:
        self._watch = Watch(self.plan, self.provider, self.fleet)
        self._feed = Feed(
            self.client,
            orchestration_name(self.plan.run),
            self.conversations,
            seconds=replay_seconds(self.conversations.values()),
            seed=self.plan.seed,
        )
        self._total = sum(len(conversation.messages) for conversation in self.conversations.values())
        self._progress = _Progress()
        self._killed: KilledWorker | None = None

    async def workers_registered(self) -> None:
        """Wait until all workers hold their leases.

        Raises:
            DemoFailed: one ended, or they take too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            self._check_fleet()
            snapshot = await self._watch.snapshot()
            if snapshot.registered >= set(self.plan.worker_names):
                return
            if time.monotonic() > deadline:
                missing = [worker for worker in self.fleet.workers if worker.name not in snapshot.registered]
                logs = "".join(worker.log_tail() for worker in missing)
                raise DemoFailed(f"{counted(len(missing), 'worker')} did not register within {START_SECONDS:g} s{logs}")
            await anyio.sleep(TICK_SECONDS)

    async def play(self) -> None:
        """Raise the messages until all conversations have ended.

        Raises:
            DemoFailed: a worker ended by itself, or the run stalled.
        """
        self._feed.begin()
        snapshot_at = 0.0
        while True:
            await self._feed.raise_due()
            if (began := time.monotonic()) >= snapshot_at:
                await self._act(await self._shown_snapshot())
                if self._feed.finished and not await self._open_instances(limit=1):
                    await self._watch.sessions()
                    return
                snapshot_at = time.monotonic() + max(SNAPSHOT_SECONDS, SNAPSHOT_REST * (time.monotonic() - began))
            await anyio.sleep(TICK_SECONDS)

    async def outcome(self) -> Outcome:
        """Read the histories and states, and verify them.

        Raises:
            DemoFailed: the conversations were over before a worker could be killed.
        """
        if self.plan.kill and self._killed is None:
            raise DemoFailed("the conversations were over before a worker could be killed: replay more of them")
        transcripts = transcripts_of(self.plan.run)
        records = await read_records(self.provider, self.conversations, transcripts, self.client.session_store)
        verdict = verify(records, self._watch.holders, {worker.name: worker.pid for worker in self.fleet.workers})
        seconds = max((r.answered_at for record in records for r in record.replies), default=0.0) - self._feed.began_at
        return Outcome(
            report=self._report(records, verdict, seconds),
            good=verdict.good,
            differences=verdict.differences,
            story=tuple(self._story(records, seconds)),
        )

    async def _shown_snapshot(self) -> Snapshot:
        snapshot = await self._watch.snapshot()
        self.display.show(
            View(
                elapsed=time.time() - self._feed.began_at,
                workers=self._watch.views(snapshot),
                turns=snapshot.turns,
                total=self._total,
                migrated=self._watch.migrated,
            )
        )
        return snapshot

    async def _act(self, snapshot: Snapshot) -> None:
        """Fail when a worker has crashed or the run has stalled; kill a worker half-way."""
        self._check_fleet()
        if self._progress.stalled_at(snapshot.turns):
            raise DemoFailed(await self._describe_stall(snapshot))
        if self.plan.kill and self._killed is None and snapshot.turns * 2 >= self._total:
            self._killed = await self._kill()

    def _check_fleet(self) -> None:
        for worker in self.fleet.crashed:
            how = f"ended by itself, {worker.exit_text}"
            raise DemoFailed(f"{worker.title} (pid {worker.pid}) {how}{worker.log_tail()}")

    async def _open_instances(self, *, limit: int) -> Sequence[str]:
        page = await self.client.list_page(prefix=self.plan.session_prefix, status=OPEN, limit=limit)
        return [instance.instance_id for instance in page.items]

    async def _kill(self) -> KilledWorker | None:
        """Kill the worker with the most unfinished sessions, in the middle of a turn; None while no worker has any."""
        if (victim := await self._busy_worker()) is None:
            return None
        at = time.time()
        victim.kill()
        orphans = [session for session in await self._watch.sessions() if session.worker_id == victim.name]
        # All orphans get work now: the recovery is measured from here.
        await self._feed.raise_next([session.session_id for session in orphans])
        killed = KilledWorker(
            worker=victim,
            at=at,
            orphans=frozenset(session.session_id for session in orphans),
            running=sum(session.queued > 0 for session in orphans),
        )
        self.display.say(f"Killed {victim.title} (pid {victim.pid}), which held {counted(len(orphans), 'session')}.")
        return killed

    async def _busy_worker(self) -> WorkerProcess | None:
        """The worker that holds the most unfinished sessions, once one of them has work, or `BUSY_SECONDS` are over."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            snapshot = await self._watch.snapshot()
            held = {worker: self._unfinished(snapshot, worker) for worker in self.fleet.workers}
            victim = max(held, key=lambda worker: len(held[worker]))
            if not held[victim]:
                return None
            if any(session.queued for session in held[victim]) or time.monotonic() > deadline:
                return victim
            await self._feed.raise_due()

    def _unfinished(self, snapshot: Snapshot, worker: WorkerProcess) -> Sequence[SessionInfo]:
        return [session for session in snapshot.held_by(worker.name) if self._feed.left(session.session_id)]

    def _report(self, records: Sequence[Record], verdict: Verdict, seconds: float) -> Report:
        counts = Counts.read(worker.counts for worker in self.fleet.workers)
        return Report(
            provider=self.provider.dialect,
            workers=self.plan.workers,
            sessions=len(records),
            turns=self._total,
            killed_workers=sum(worker.killed for worker in self.fleet.workers),
            migrated_sessions=verdict.migrated_sessions,
            hydrations=counts.hydrations,
            turns_off_holder=verdict.turns_off_holder,
            lost_turns=verdict.lost_turns,
            duplicated_results=verdict.duplicated_results,
            transcripts_verified=verdict.transcripts_verified,
            recovery_seconds=self._recovery(records),
            turns_per_second=round(sum(len(record.replies) for record in records) / max(seconds, TICK_SECONDS), 1),
            states_agreed=verdict.states_agreed,
            refused_writes=counts.refused,
        )

    def _recovery(self, records: Sequence[Record]) -> float | None:
        if (killed := self._killed) is None:
            return None
        waited = recovery_seconds(records, killed=killed.worker.name, killed_at=killed.at, orphans=killed.orphans)
        return round(waited or 0.0, 2)

    def _story(self, records: Sequence[Record], seconds: float) -> Iterable[str]:
        yield (
            f"Replayed {counted(len(records), 'conversation')} of chitchat-dataset as sessions over "
            f"{counted(self.plan.workers, 'worker')} in {seconds:.0f} s."
        )
        if (killed := self._killed) is not None:
            yield (
                f"Half-way, {killed.worker.title} (pid {killed.worker.pid}) was killed with SIGKILL; it held "
                f"{counted(len(killed.orphans), 'session')}, {killed.running} of them with a turn under way."
            )
            again = sum(reply.attempt > 1 for record in records for reply in record.replies)
            yield f"Turns that had been started there and were run again by the survivors: {again}."

    async def _describe_stall(self, snapshot: Snapshot) -> str:
        stuck = await self._open_instances(limit=STUCK_SHOWN)
        sessions = {session.session_id: session for session in snapshot.sessions}
        lines = [f"no progress for {STALL_SECONDS:g} s; {snapshot.turns} of {self._total} turns are done"]
        lines += [_describe_stuck(instance_id, sessions.get(instance_id)) for instance_id in stuck]
        return "\n".join(lines) + "".join(worker.log_tail() for worker in self.fleet.workers if worker.alive)


class _Progress:
    """Detects a stall."""

    def __init__(self) -> None:
        self._turns = -1
        self._since = 0.0

    def stalled_at(self, turns: int) -> bool:
        """Whether the run has been at this number of turns for too long."""
        if turns != self._turns:
            self._turns, self._since = turns, time.monotonic()
        return time.monotonic() - self._since > STALL_SECONDS


def _describe_stuck(instance_id: str, session: SessionInfo | None) -> str:
    if session is None:
        return f"  {instance_id}: no worker has ever held its session"
    holder = f"held by {session.worker_id}" if session.held else f"held by no worker, last by {session.worker_id}"
    return (
        f"  {instance_id}: {holder} at epoch {session.epoch}, {session.queued} turns queued, idle {session.idle:.0f} s"
    )
