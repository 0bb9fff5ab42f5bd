"""One run: start workers, raise messages, kill a worker half-way, wait for the end, and verify.

One loop does it all, and awaits only the database: raise the messages that are due, take a snapshot, act on it. A run
that cannot end raises `DemoFailed`, which names the worker or the conversations at fault.

A conversation opens in the first part of the run and lasts until its end, its messages evenly spread. So a worker that
dies after the first part has sessions with work left.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio
import click

from affinity.client import ExternalEvent, Start
from affinity.composed.client import Client
from affinity.composed.options import RuntimeOptions
from affinity.demo.app import EVENT, THINK_SECONDS, TurnReply, orchestration_name, transcripts_of
from affinity.demo.conversations import Conversation
from affinity.demo.display import LEASE_SECONDS, DemoReport, Display, counted
from affinity.demo.verify import Holders, read_records, recovery_seconds, verify
from affinity.demo.worker import DemoWorker, WorkerSettings, start_workers
from affinity.errors import ProviderError, SessionLoadFailed
from affinity.limits import MAX_BATCH, MAX_PAGE
from affinity.provider import migrate, open_provider
from affinity.provider.contract import Provider, SessionInfo
from affinity.records import SessionFilter
from affinity.session import SessionManager

TURNS_PER_SECOND: Final = 150.0  # pace of the replay
SHORTEST_SECONDS: Final = 4.0  # of a replay of few messages: time to watch it, and to kill a worker
OPENING: Final = 0.25  # part of the run in which conversations open
RAISED_AT_ONCE: Final = 500  # messages, so that a feed that is late does not block the loop
TICK_SECONDS: Final = 0.05  # between two rounds of the loop: the precision of the messages' times
SNAPSHOT_SECONDS: Final = 0.25  # between two, or four times the duration of one: they must not become the load
STALL_SECONDS: Final = 60.0  # without any progress after which the run has failed
CLEAN_UP_SECONDS: Final = 10.0  # to remove the data of the run from a database that it shares


class DemoFailed(click.ClickException):
    """The run could not come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """One run of the demo."""

    run: str  # its id: the prefix of all names that it writes to the database
    url: str | None = field(repr=False)  # None: a fresh SQLite file; may hold a password
    workers: int
    kill: bool
    seed: int  # spreads the messages over time
    conversations: Mapping[str, Conversation] = field(repr=False)  # by session id, which is also the instance id

    def settings(self, number: int, url: str) -> WorkerSettings:
        """Settings of a worker. The survivors of a kill have room for all sessions."""
        options = RuntimeOptions.make(
            worker_node_id=f"{self.run}-worker-{number}",
            max_sessions_per_runtime=math.ceil(len(self.conversations) / max(1, self.workers - 1)),
            worker_lease_timeout=LEASE_SECONDS,
            drain_timeout=3.0,
            unregistered_timeout=30 * 86_400.0,  # unknown work belongs to other users of the database
        )
        return WorkerSettings(run=self.run, url=url, options=options)


def schedule(conversations: Mapping[str, Conversation], seed: int) -> Iterator[tuple[float, str]]:
    """The due messages, in order: seconds from the beginning, and the conversation."""
    lengths = {session_id: len(conversation.messages) for session_id, conversation in conversations.items()}
    longest = max(lengths.values()) * THINK_SECONDS * 1.5
    seconds = max(SHORTEST_SECONDS, sum(lengths.values()) / TURNS_PER_SECOND, longest)
    chance = random.Random(seed)  # noqa: S311 -- not a secret
    for session_id, messages in lengths.items():
        opens = chance.uniform(0.0, seconds * OPENING)
        yield from ((opens + (seconds - opens) * n / messages, session_id) for n in range(messages))


@asynccontextmanager
async def open_database(url: str, clear: Sequence[str], display: Display) -> AsyncIterator[Provider]:
    """The database; at the end, the sessions and instances of the ids in ``clear`` are removed."""
    provider = await open_provider(url, application_name="affinity demo")
    try:
        yield provider
    finally:
        with anyio.CancelScope(shield=True):
            try:
                with anyio.fail_after(CLEAN_UP_SECONDS):
                    for start in range(0, len(clear), MAX_BATCH):
                        await provider.delete_instance(clear[start : start + MAX_BATCH], force=True)
                        await provider.states.delete(clear[start : start + MAX_BATCH])
            except (ProviderError, TimeoutError) as error:
                display.say(f"instances and sessions are left in the database, from {clear[0]!r} on: {error}")
            await provider.aclose()


async def export_transcripts(provider: Provider, run: str, folder: Path, display: Display) -> None:
    """Write the transcripts of a failed run to the folder, as ``affinity sessions export`` would write them."""
    try:
        async with await anyio.open_file(folder / "transcripts.jsonl", "w", encoding="utf-8") as file:
            async for line in SessionManager(provider.states).export(SessionFilter(kind=transcripts_of(run).kind)):
                await file.write(f"{line}\n")
    except (ProviderError, SessionLoadFailed) as error:
        display.say(f"not all transcripts could be read: {error}")


def database_of(plan: DemoPlan, folder: Path) -> str:
    """The URL of the database of a run: in its folder, unless the plan names one."""
    return plan.url or f"sqlite:///{quote(str(folder / 'affinity.db'))}"


async def nothing_more(report: DemoReport) -> None:
    """The end of a run that is not looked at."""


async def run_demo(
    plan: DemoPlan,
    folder: Path,
    display: Display,
    before_clean_up: Callable[[DemoReport], Awaitable[None]] = nothing_more,
) -> DemoReport:
    """Replay the conversations and verify the result. The folder is for the logs, the transcripts of a failed run, and
    the database unless the plan names one. ``before_clean_up`` is awaited while the data of the run are still there.

    Raises:
        DemoFailed: a worker ended by itself, or the run stalled.
        InvalidUrl, ProviderError: the database is wrong, or refuses.
    """
    url = database_of(plan, folder)
    settings = [plan.settings(n + 1, url) for n in range(plan.workers)]
    await migrate(url)
    async with (
        open_database(url, list(plan.conversations) if plan.url else [], display) as provider,
        Client.from_provider(provider) as client,
    ):
        text = f"Starting {counted(plan.workers, 'worker')} on {provider.dialect}; worker lease {LEASE_SECONDS:g} s."
        display.say(text)
        try:
            with start_workers(settings, folder) as workers:
                run = _DemoRun(plan, workers, client, display)
                await run.play()
            report = await run.report(provider.dialect)  # the workers have ended: the database is complete
        except DemoFailed:
            await export_transcripts(provider, plan.run, folder, display)
            raise
        if report.differences:
            await export_transcripts(provider, plan.run, folder, display)
        await before_clean_up(report)
        return report


async def read_holders(client: Client, *, after: int) -> Holders:
    """The workers to which sessions have moved after an epoch."""
    holders: dict[str, dict[int, str]] = {}
    while moves := await client.session_moves(after=after, limit=MAX_PAGE):
        for move in moves:
            holders.setdefault(move.session_id, {})[move.epoch] = move.to_worker
        after = moves[-1].epoch
    return holders


class _DemoRun:
    """The state of a run."""

    def __init__(self, plan: DemoPlan, workers: Sequence[DemoWorker], client: Client, display: Display) -> None:
        self._plan, self._workers, self._client, self._display = plan, workers, client, display
        self._due = sorted(schedule(plan.conversations, plan.seed), reverse=True)  # the next one is the last
        self._left = {one: [*reversed(each.messages)] for one, each in plan.conversations.items()}  # likewise
        self._total = len(self._due)
        self._began_at, self._began = time.time(), time.monotonic()
        self._victim: DemoWorker | None = None
        self._orphans: Sequence[str] = ()  # sessions that the victim held when it died
        self._story: list[str] = []
        self._done, self._done_at = -1, 0.0  # turns, and when (monotonic) there was one more
        self._held: Mapping[str, int] = {}  # sessions, by worker whose lease is alive
        self._epoch = 0  # of the last move before the run
        self._holders: Holders = {}

    async def play(self) -> None:
        """Wait until the workers hold their leases, then raise the messages until all conversations have ended.

        Raises:
            DemoFailed: a worker ended by itself, or the run stalled.
        """
        self._epoch = max([move.epoch for move in await self._client.session_moves(limit=1)], default=0)
        missing = {worker.name for worker in self._workers}
        while missing:
            await self._look()
            missing -= self._held.keys()
            await anyio.sleep(TICK_SECONDS)
        self._began_at, self._began, look_at, ended = time.time(), time.monotonic(), 0.0, False
        while not ended:
            await self._raise_due()
            if (began := time.monotonic()) >= look_at:
                ended = not self._due and not await self._unfinished()
                await self._look()
                self._display.show(str(self))
                if self._plan.kill and self._victim is None and self._done * 2 >= self._total:
                    await self._kill()
                look_at = time.monotonic() + max(SNAPSHOT_SECONDS, 4 * (time.monotonic() - began))
            await anyio.sleep(TICK_SECONDS)

    async def report(self, provider: str) -> DemoReport:
        """Read the histories and states, and verify them.

        Raises:
            DemoFailed: the conversations were over before a worker could be killed.
        """
        plan, victim, recovery = self._plan, self._victim, None
        if plan.kill and victim is None:
            raise DemoFailed("the conversations were over before a worker could be killed: replay more of them")
        records = await read_records(self._client, plan.conversations, transcripts_of(plan.run))
        verdict = verify(records, self._holders, {each.name: each.process.pid for each in self._workers})
        replies = [reply for record in records for reply in record.replies]
        seconds = max((reply.answered_at for reply in replies), default=0.0) - self._began_at
        what = f"{counted(len(records), 'conversation')} of chitchat-dataset as sessions"
        self._story.insert(0, f"Replayed {what} over {counted(plan.workers, 'worker')} in {seconds:.0f} s.")
        if victim is not None:
            killed, at = victim.name, victim.killed_at
            recovery = recovery_seconds(records, killed=killed, killed_at=at, orphans=self._orphans) or 0.0
            again = sum(reply.attempt > 1 for reply in replies)
            self._story.append(f"Turns that had been started there and were run again by the survivors: {again}.")
        return DemoReport(
            provider=provider,
            workers=plan.workers,
            sessions=len(records),
            turns=self._total,
            killed_workers=int(victim is not None),
            recovery_seconds=recovery if recovery is None else round(recovery, 2),
            turns_per_second=round(len(replies) / max(seconds, TICK_SECONDS), 1),
            hydrations=sum_of_workers(replies, lambda reply: reply.hydrations),
            refused_writes=sum_of_workers(replies, lambda reply: reply.refused),
            story=tuple(self._story),
            **asdict(verdict),
        )

    # -- messages

    async def _raise_due(self) -> None:
        elapsed = time.monotonic() - self._began
        due: list[str] = []
        while self._due and self._due[-1][0] <= elapsed and len(due) < RAISED_AT_ONCE:
            due.append(self._due.pop()[1])
        await self._raise_next(due)

    async def _raise_next(self, session_ids: Sequence[str]) -> None:
        """Raise the next message of each of these conversations, if there is one; start those without any."""
        lengths = {one: len(self._plan.conversations[one].messages) for one in session_ids}
        name = orchestration_name(self._plan.run)
        new = [Start(name, length, one) for one, length in lengths.items() if len(self._left[one]) == length]
        await self._client.start_many(new)
        events = [ExternalEvent(one, EVENT, self._left[one].pop()) for one in session_ids if self._left[one]]
        await self._client.raise_events(events)

    # -- workers

    async def _look(self) -> None:
        """Look at the database; fail when a worker has crashed, or the run has stalled."""
        self._held = {worker.worker_id: worker.sessions for worker in await self._client.workers() if worker.alive}
        states = self._client.session_manager.list(SessionFilter(kind=transcripts_of(self._plan.run).kind))
        done = sum([state.metadata.message_count or 0 async for state in states])
        # Always from the first one: a move may be committed after one with a later epoch.
        self._holders = await read_holders(self._client, after=self._epoch)
        for worker in self._workers:
            if not (worker.alive or worker.killed_at):
                raise DemoFailed(worker.describe_end())
        if done != self._done:
            self._done, self._done_at = done, time.monotonic()
        if time.monotonic() - self._done_at > STALL_SECONDS:
            sessions = {session.session_id: session for session in await self._sessions()}
            lines = [f"no progress for {STALL_SECONDS:g} s: {self}"]
            lines += [f"  {one}: {sessions.get(one)}" for one in await self._unfinished()]
            raise DemoFailed("\n".join(lines) + "".join(each.log_tail() for each in self._workers if each.alive))

    async def _sessions(self) -> Sequence[SessionInfo]:
        return [session async for session in self._client.sessions() if session.session_id in self._left]

    async def _unfinished(self) -> Sequence[str]:
        """Some of the conversations that have not ended."""
        page = await self._client.list_instances(prefix=self._plan.run, status=("pending", "running")).page(limit=5)
        return [instance.instance_id for instance in page.items]

    def __str__(self) -> str:
        """The time, the turns, the moves, and the sessions that each worker holds, in one line."""
        moved = sum(len(set(self._holders.get(one, {}).values())) > 1 for one in self._left)
        progress = f"{self._done}/{self._total} turns, {counted(moved, 'session')} moved"
        parts = [f"{time.monotonic() - self._began:5.1f} s  {progress}"]
        for worker in self._workers:
            held = self._held.get(worker.name)
            alive = "has no lease" if held is None else counted(held, "session")
            parts.append(f"{worker.title} {'killed' if worker.killed_at else alive}")
        return "; ".join(parts)

    async def _kill(self) -> None:
        """Kill the worker with the most unfinished sessions, in the middle of a turn: if it runs none, give it some."""
        held = [one for one in await self._sessions() if one.held and self._left[one.session_id]]
        counts = Counter(session.worker_id for session in held)
        victim = max(self._workers, key=lambda worker: counts[worker.name])
        its_own = [session for session in held if session.worker_id == victim.name]
        if not any(session.queued for session in its_own):
            await self._raise_next([session.session_id for session in its_own])
        victim.kill()
        orphans = [session for session in await self._sessions() if session.worker_id == victim.name]
        self._victim, self._orphans = victim, [session.session_id for session in orphans]
        await self._raise_next(self._orphans)  # all have work now: the recovery is measured from here
        running = sum(session.queued > 0 for session in orphans)
        what = f"{counted(len(orphans), 'session')}, {running} of them with a turn under way"
        self._story.append(f"Half-way, {victim} was killed with SIGKILL; it held {what}.")
        self._display.say(self._story[-1])


def sum_of_workers(replies: Iterable[TurnReply], count: Callable[[TurnReply], int]) -> int:
    """The sum of a count of all workers. It only grows, so the greatest that a worker has reported is its last."""
    last = Counter[str]()
    for reply in replies:
        last[reply.worker_id] = max(last[reply.worker_id], count(reply))
    return last.total()
