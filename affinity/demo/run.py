"""One run: start workers, let people write, kill a worker half-way, wait for the end, and verify.

All of it happens in one loop that never waits for anything but the database: raise what is due, look, and act on what
is seen. What ends the run early is a `DemoFailed` that says which worker or which conversation is to blame.
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
from affinity.demo.app import orchestration_name
from affinity.demo.conversations import Conversation
from affinity.demo.counts import Counts
from affinity.demo.database import export_transcripts, open_database
from affinity.demo.display import Display, View, counted
from affinity.demo.feed import Feed
from affinity.demo.fleet import Fleet, WorkerProcess, open_fleet
from affinity.demo.plan import LEASE_SECONDS, Plan, replay_seconds
from affinity.demo.records import read_records
from affinity.demo.report import Outcome, Report
from affinity.demo.transcript import transcripts_of
from affinity.demo.verify import Record, Verdict, recovery_seconds, verify
from affinity.demo.watch import Sight, Watch
from affinity.provider import migrate
from affinity.provider.contract import Provider, SessionInfo

TICK_SECONDS: Final = 0.05
"""Between two rounds of the loop: how exactly messages keep to their time."""

LOOK_SECONDS: Final = 0.25
"""Between two looks at the database, at least."""

REST: Final = 4.0
"""Between two looks, as a multiple of what the last one took: with many sessions, looking must not become the work."""

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
class Casualty:
    """The worker that was killed."""

    worker: WorkerProcess
    at: float  # Unix seconds
    orphans: Collection[str]  # sessions that the table gives it after its death
    running: int  # of these, how many had a turn under way


async def run_demo(plan: Plan, conversations: Sequence[Conversation], *, folder: Path, display: Display) -> Outcome:
    """Replay ``conversations`` and verify what became of them.

    Args:
        plan: workers, database, and whether one is killed.
        conversations: what to replay.
        folder: for the logs, the counts, and the database unless the plan names one.
        display: where to show it.

    Raises:
        DemoFailed: a worker ended by itself, or nothing went on any more.
        InvalidUrl, ProviderError: the database is wrong, or refuses.
    """
    url = plan.url or f"sqlite:///{quote(str(folder / 'affinity.db'))}"
    by_session = {plan.session_id(conversation): conversation for conversation in conversations}
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
        # The workers have left: nothing changes any more, and what they have counted is complete.
        return await run.outcome()


@dataclass(kw_only=True)
class _Run:
    """A run whose parts are open."""

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
        self._casualty: Casualty | None = None

    # -- the run

    async def workers_registered(self) -> None:
        """Wait until all workers hold their leases.

        Raises:
            DemoFailed: one ended, or they take too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            self._check_fleet()
            sight = await self._watch.look()
            if sight.registered >= set(self.plan.worker_names):
                return
            if time.monotonic() > deadline:
                missing = [worker for worker in self.fleet.workers if worker.name not in sight.registered]
                logs = "".join(map(_log_of, missing))
                raise DemoFailed(f"{counted(len(missing), 'worker')} did not register within {START_SECONDS:g} s{logs}")
            await anyio.sleep(TICK_SECONDS)

    async def play(self) -> None:
        """Let people write, and go on until all conversations have ended.

        Raises:
            DemoFailed: a worker ended by itself, or nothing goes on any more.
        """
        self._feed.begin()
        look_at = 0.0
        while True:
            await self._feed.raise_due()
            if (began := time.monotonic()) >= look_at:
                await self._act(await self._look())
                if self._feed.finished and not await self._open_instances(limit=1):
                    await self._watch.sessions()
                    return
                look_at = time.monotonic() + max(LOOK_SECONDS, REST * (time.monotonic() - began))
            await anyio.sleep(TICK_SECONDS)

    async def outcome(self) -> Outcome:
        """Read what is left, and verify it.

        Raises:
            DemoFailed: the conversations were over before a worker could be killed.
        """
        if self.plan.kill and self._casualty is None:
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

    # -- steps of the loop

    async def _look(self) -> Sight:
        sight = await self._watch.look()
        self.display.show(
            View(
                elapsed=time.time() - self._feed.began_at,
                workers=self._watch.workers(sight),
                turns=sight.turns,
                total=self._total,
                migrated=self._watch.migrated,
            )
        )
        return sight

    async def _act(self, sight: Sight) -> None:
        """Notice what should not be, and kill when it is time."""
        self._check_fleet()
        if self._progress.stalled_at(sight.turns):
            raise DemoFailed(await self._describe_stall(sight))
        if self.plan.kill and self._casualty is None and sight.turns * 2 >= self._total:
            self._casualty = await self._kill()

    def _check_fleet(self) -> None:
        for worker in self.fleet.fallen:
            raise DemoFailed(f"{worker.title} (pid {worker.pid}) ended by itself, {worker.exit_text}{_log_of(worker)}")

    async def _open_instances(self, *, limit: int) -> Sequence[str]:
        page = await self.client.list_page(prefix=self.plan.session_prefix, status=OPEN, limit=limit)
        return [instance.instance_id for instance in page.items]

    # -- the kill

    async def _kill(self) -> Casualty | None:
        """Kill the worker with the most to lose, in the middle of a turn; None while no worker has anything."""
        if (victim := await self._busy_worker()) is None:
            return None
        at = time.time()
        victim.kill()
        orphans = [session for session in await self._watch.sessions() if session.worker_id == victim.name]
        # The people on its sessions all write on: none of them is idle while the others wait for a new holder.
        await self._feed.hasten([session.session_id for session in orphans])
        casualty = Casualty(
            worker=victim,
            at=at,
            orphans=frozenset(session.session_id for session in orphans),
            running=sum(session.queued > 0 for session in orphans),
        )
        self.display.say(f"Killed {victim.title} (pid {victim.pid}), which held {counted(len(orphans), 'session')}.")
        return casualty

    async def _busy_worker(self) -> WorkerProcess | None:
        """The worker that holds the most unfinished sessions, when one of them has work; any one after a while."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            sight = await self._watch.look()
            held = {worker: self._unfinished(sight, worker) for worker in self.fleet.workers}
            victim = max(held, key=lambda worker: len(held[worker]))
            if not held[victim]:
                return None
            if any(session.queued for session in held[victim]) or time.monotonic() > deadline:
                return victim
            await self._feed.raise_due()

    def _unfinished(self, sight: Sight, worker: WorkerProcess) -> Sequence[SessionInfo]:
        return [session for session in sight.held_by(worker.name) if self._feed.left(session.session_id)]

    # -- words

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
        if (casualty := self._casualty) is None:
            return None
        waited = recovery_seconds(records, killed=casualty.worker.name, killed_at=casualty.at, orphans=casualty.orphans)
        return round(waited or 0.0, 2)

    def _story(self, records: Sequence[Record], seconds: float) -> Iterable[str]:
        yield (
            f"Replayed {counted(len(records), 'conversation')} of chitchat-dataset as sessions over "
            f"{counted(self.plan.workers, 'worker')} in {seconds:.0f} s."
        )
        if (casualty := self._casualty) is not None:
            yield (
                f"Half-way, {casualty.worker.title} (pid {casualty.worker.pid}) was killed with SIGKILL; it held "
                f"{counted(len(casualty.orphans), 'session')}, {casualty.running} of them with a turn under way."
            )
            again = sum(reply.attempt > 1 for record in records for reply in record.replies)
            yield f"Turns that had been started there and were run again by the survivors: {again}."

    async def _describe_stall(self, sight: Sight) -> str:
        stuck = await self._open_instances(limit=STUCK_SHOWN)
        sessions = {session.session_id: session for session in sight.sessions}
        lines = [f"nothing has gone on for {STALL_SECONDS:g} s; {sight.turns} of {self._total} turns are done"]
        lines += [_describe_stuck(instance_id, sessions.get(instance_id)) for instance_id in stuck]
        return "\n".join(lines) + "".join(_log_of(worker) for worker in self.fleet.workers if worker.alive)


class _Progress:
    """Notices when nothing goes on."""

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
    holder = f"held by {session.worker_id}" if session.held else f"held by nobody, last by {session.worker_id}"
    return (
        f"  {instance_id}: {holder} at epoch {session.epoch}, {session.queued} turns queued, idle {session.idle:.0f} s"
    )


def _log_of(worker: WorkerProcess) -> str:
    return f"\n--- the end of {worker.log}:\n{worker.log_tail()}"
