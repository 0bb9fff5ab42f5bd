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
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import anyio
import click

from affinity.client import Client, ExternalEvent, Start
from affinity.demo.app import EVENT, THINK_SECONDS, TurnReply, orchestration_name, transcript_kind, transcripts_of
from affinity.demo.conversations import Conversation
from affinity.demo.display import LEASE_SECONDS, DemoOutcome, DemoReport, Display, counted
from affinity.demo.verify import read_records, recovery_seconds, verify
from affinity.demo.worker import DemoWorker, WorkerSettings, start_workers
from affinity.errors import ProviderError, SessionLoadFailed
from affinity.limits import MAX_BATCH, MAX_PAGE
from affinity.provider import migrate, open_provider
from affinity.provider.contract import Provider, SessionInfo
from affinity.records import SessionFilter
from affinity.session import SessionManager
from affinity.worker import RuntimeOptions

TURNS_PER_SECOND: Final = 150.0  # pace of the replay
SHORTEST_SECONDS: Final = 4.0  # of a replay of few messages: time to watch it, and to kill a worker
OPENING: Final = 0.25  # part of the run in which conversations open
RAISED_AT_ONCE: Final = 500  # messages, so that a feed that is late does not block the loop
TICK_SECONDS: Final = 0.05  # between two rounds of the loop: the precision of the messages' times
SNAPSHOT_SECONDS: Final = 0.25  # between two, or four times the duration of one: they must not become the load
START_SECONDS: Final = 60.0  # that workers may take to register
STALL_SECONDS: Final = LEASE_SECONDS + 30.0  # without any progress after which the run has failed
CLEAN_UP_SECONDS: Final = 10.0  # to remove the data of the run from a database that it shares


class DemoFailed(click.ClickException):
    """The run could not come to its end."""


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """One run of the demo."""

    run: str  # its id: the prefix of all names that it writes to the database
    url: str | None = field(repr=False)  # None: a fresh SQLite file; may hold a password
    workers: int
    kill: bool
    seed: int  # chooses the conversations, and spreads their messages over time

    @property
    def session_prefix(self) -> str:
        """The prefix of the ids of all sessions of the run, which are those of their instances too."""
        return f"{self.run}-chat-"

    def settings(self, number: int, *, url: str, sessions: int) -> WorkerSettings:
        """Settings of a worker. The survivors of a kill have room for all sessions."""
        options = RuntimeOptions.make(
            worker_node_id=f"{self.run}-worker-{number}",
            max_sessions_per_runtime=math.ceil(sessions / max(1, self.workers - 1)),
            worker_lease_timeout=LEASE_SECONDS,
            drain_timeout=3.0,
            unregistered_timeout=30 * 86_400.0,  # unknown work belongs to other users of the database
        )
        return WorkerSettings(run=self.run, url=url, options=options)


def schedule(conversations: Mapping[str, Conversation], seed: int) -> Iterator[tuple[float, str]]:
    """When the next message of which conversation is due, in seconds from the beginning."""
    lengths = {session_id: len(conversation.messages) for session_id, conversation in conversations.items()}
    longest = max(lengths.values()) * THINK_SECONDS * 1.5
    seconds = max(SHORTEST_SECONDS, sum(lengths.values()) / TURNS_PER_SECOND, longest)
    chance = random.Random(seed)  # noqa: S311 -- not a secret
    for session_id, messages in lengths.items():
        opens = chance.uniform(0.0, seconds * OPENING)
        yield from ((opens + (seconds - opens) * n / messages, session_id) for n in range(messages))


# --- the database -----------------------------------------------------------------------------------------------------


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
            async for line in SessionManager(provider.states).export(SessionFilter(kind=transcript_kind(run))):
                await file.write(f"{line}\n")
    except (ProviderError, SessionLoadFailed) as error:
        display.say(f"not all transcripts could be read: {error}")


# --- the run ----------------------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """The database at one moment."""

    sessions: Sequence[SessionInfo]  # of this run
    registered: AbstractSet[str]  # workers whose lease is alive
    turns: int  # messages in the states of the sessions

    def held_by(self, worker: str) -> Sequence[SessionInfo]:
        """Sessions that this worker holds."""
        return [session for session in self.sessions if session.held and session.worker_id == worker]


class KilledWorker(NamedTuple):
    """The worker that was killed."""

    worker: DemoWorker
    at: float  # Unix seconds
    orphans: Sequence[str]  # sessions that the table gives it after its death
    running: int  # of these, how many had a turn under way


class Observer:
    """Takes snapshots of a run through the database, and records all holders that it ever saw."""

    def __init__(self, plan: DemoPlan, provider: Provider) -> None:
        self._prefix, self._where = plan.session_prefix, SessionFilter(kind=transcript_kind(plan.run))
        self._provider, self._states = provider, SessionManager(provider.states)
        self.holders: dict[str, dict[int, str]] = {}  # that the ``sessions`` table named, by session and epoch

    @property
    def migrated(self) -> int:
        """Sessions that were seen on more than one worker."""
        return sum(len(set(epochs.values())) > 1 for epochs in self.holders.values())

    async def snapshot(self) -> Snapshot:
        """Read the database."""
        registered = {worker.worker_id for worker in await self._provider.list_workers() if worker.alive}
        turns = sum([state.metadata.message_count or 0 async for state in self._states.list(self._where)])
        return Snapshot(await self.sessions(), registered, turns)

    async def sessions(self) -> Sequence[SessionInfo]:
        """The sessions of this run."""
        found: list[SessionInfo] = []
        after = self._prefix
        while page := await self._provider.list_sessions(after=after, limit=MAX_PAGE):
            ours = [session for session in page if session.session_id.startswith(self._prefix)]
            found += ours
            if len(ours) < len(page):
                break
            after = page[-1].session_id
        for session in found:
            # The first one stays: should an epoch ever change hands, the turns of the second are off their holder.
            self.holders.setdefault(session.session_id, {}).setdefault(session.epoch, session.worker_id)
        return found


async def run_demo(
    plan: DemoPlan, conversations: Sequence[Conversation], *, folder: Path, display: Display
) -> DemoOutcome:
    """Replay ``conversations`` and verify the result.

    Args:
        plan: workers, database, and whether one is killed.
        conversations: what to replay.
        folder: for the logs, the transcripts of a failed run, and the database unless the plan names one.
        display: where to show it.

    Raises:
        DemoFailed: a worker ended by itself, or the run stalled.
        InvalidUrl, ProviderError: the database is wrong, or refuses.
    """
    url = plan.url or f"sqlite:///{quote(str(folder / 'affinity.db'))}"
    by_session = {f"{plan.session_prefix}{each.id}": each for each in conversations}
    settings = [plan.settings(n + 1, url=url, sessions=len(by_session)) for n in range(plan.workers)]
    await migrate(url)
    async with (
        open_database(url, list(by_session) if plan.url else [], display) as provider,
        Client.from_provider(provider) as client,
    ):
        text = f"Starting {counted(plan.workers, 'worker')} on {provider.dialect}; worker lease {LEASE_SECONDS:g} s."
        display.say(text)
        run = _DemoRun(plan, by_session, provider, client, display)
        try:
            with start_workers(settings, folder) as workers:
                await run.play(workers)
            outcome = await run.outcome()  # the workers have ended: the database is complete
        except DemoFailed:
            await export_transcripts(provider, plan.run, folder, display)
            raise
        if outcome.differences:
            await export_transcripts(provider, plan.run, folder, display)
        return outcome


class _DemoRun:
    """The state of a run."""

    def __init__(
        self,
        plan: DemoPlan,
        conversations: Mapping[str, Conversation],  # by session
        provider: Provider,
        client: Client,
        display: Display,
    ) -> None:
        self._plan, self._conversations, self._client, self._display = plan, conversations, client, display
        self._dialect, self._observer = provider.dialect, Observer(plan, provider)
        self._workers: Sequence[DemoWorker] = []
        self._total = sum(len(conversation.messages) for conversation in conversations.values())
        self._raised = dict.fromkeys(conversations, 0)
        self._due = sorted(schedule(conversations, plan.seed), reverse=True)  # the next one is the last
        self._began_at = self._began = 0.0  # Unix seconds, monotonic
        self._killed: KilledWorker | None = None
        self._done, self._done_at = -1, 0.0  # turns, and when (monotonic) there was one more

    async def play(self, workers: Sequence[DemoWorker]) -> None:
        """Wait until the workers hold their leases, then raise the messages until all conversations have ended.

        Raises:
            DemoFailed: a worker ended by itself or did not register, or the run stalled.
        """
        self._workers, deadline = workers, time.monotonic() + START_SECONDS
        while missing := await self._not_registered():
            if time.monotonic() > deadline:
                logs = "".join(worker.log_tail() for worker in missing)
                raise DemoFailed(f"{counted(len(missing), 'worker')} did not register within {START_SECONDS:g} s{logs}")
            await anyio.sleep(TICK_SECONDS)
        self._began_at, self._began, snapshot_at = time.time(), time.monotonic(), 0.0
        while True:
            await self._raise_due()
            if (began := time.monotonic()) >= snapshot_at:
                await self._act(await self._observer.snapshot())
                if not self._due and not await self._open_instances(limit=1):
                    await self._observer.sessions()
                    return
                snapshot_at = time.monotonic() + max(SNAPSHOT_SECONDS, 4 * (time.monotonic() - began))
            await anyio.sleep(TICK_SECONDS)

    async def _not_registered(self) -> Sequence[DemoWorker]:
        self._check_workers()
        registered = (await self._observer.snapshot()).registered
        return [worker for worker in self._workers if worker.name not in registered]

    async def outcome(self) -> DemoOutcome:
        """Read the histories and states, and verify them.

        Raises:
            DemoFailed: the conversations were over before a worker could be killed.
        """
        plan, killed, recovery = self._plan, self._killed, None
        if plan.kill and killed is None:
            raise DemoFailed("the conversations were over before a worker could be killed: replay more of them")
        records = await read_records(self._client, self._conversations, transcripts_of(plan.run))
        verdict = verify(records, self._observer.holders, {each.name: each.process.pid for each in self._workers})
        replies = [reply for record in records for reply in record.replies]
        seconds = max((reply.answered_at for reply in replies), default=0.0) - self._began_at
        if killed is not None:
            found = recovery_seconds(records, killed=killed.worker.name, killed_at=killed.at, orphans=killed.orphans)
            recovery = round(found or 0.0, 2)
        numbers = asdict(verdict)
        differences = numbers.pop("differences")
        report = DemoReport(
            provider=self._dialect,
            workers=plan.workers,
            sessions=len(records),
            turns=self._total,
            killed_workers=int(killed is not None),
            recovery_seconds=recovery,
            turns_per_second=round(len(replies) / max(seconds, TICK_SECONDS), 1),
            hydrations=sum_of_workers(replies, lambda reply: reply.hydrations),
            refused_writes=sum_of_workers(replies, lambda reply: reply.refused),
            **numbers,
        )
        story = tuple(self._story(replies, seconds))
        return DemoOutcome(report=report, differences=differences, story=story)

    # -- messages

    async def _raise_due(self) -> None:
        elapsed = time.monotonic() - self._began
        due = [one for _, one in takewhile(lambda entry: entry[0] <= elapsed, reversed(self._due[-RAISED_AT_ONCE:]))]
        del self._due[len(self._due) - len(due) :]
        await self._raise_next(due)

    async def _raise_next(self, session_ids: Collection[str]) -> None:
        """Raise the next message of each of these conversations, if there is one; those without any are started."""
        new = dict.fromkeys(session_id for session_id in session_ids if not self._raised[session_id])
        name = orchestration_name(self._plan.run)
        await self._client.start_many(Start(name, len(self._conversations[one].messages), one) for one in new)
        events = []
        for session_id in session_ids:
            position = self._raised[session_id]
            for message in self._conversations[session_id].messages[position : position + 1]:
                events.append(ExternalEvent(session_id, EVENT, message))
                self._raised[session_id] += 1
        await self._client.raise_events(events)

    def _left(self, session: SessionInfo) -> int:
        """Messages of a conversation that are not raised yet."""
        return len(self._conversations[session.session_id].messages) - self._raised[session.session_id]

    # -- workers

    async def _act(self, snapshot: Snapshot) -> None:
        """Show the run; fail when a worker has crashed or the run has stalled; kill a worker half-way."""
        now, moved = time.monotonic(), counted(self._observer.migrated, "session")
        progress = f"{now - self._began:5.1f} s  {snapshot.turns}/{self._total} turns, {moved} moved"
        self._display.show("; ".join([progress, *(_describe_worker(worker, snapshot) for worker in self._workers)]))
        self._check_workers()
        if snapshot.turns != self._done:
            self._done, self._done_at = snapshot.turns, now
        if now - self._done_at > STALL_SECONDS:
            raise DemoFailed(await self._describe_stall(snapshot))
        if self._plan.kill and self._killed is None and snapshot.turns * 2 >= self._total:
            await self._kill(snapshot)

    def _check_workers(self) -> None:
        for worker in self._workers:
            if not (worker.alive or worker.killed):
                raise DemoFailed(worker.describe_end())

    async def _kill(self, snapshot: Snapshot) -> None:
        """Kill the worker with the most unfinished sessions, in the middle of a turn: not while it has none to run."""
        held = {each: [one for one in snapshot.held_by(each.name) if self._left(one)] for each in self._workers}
        victim = max(held, key=lambda worker: len(held[worker]))
        if not any(session.queued for session in held[victim]):
            return
        at = time.time()
        victim.kill()
        orphans = [session for session in await self._observer.sessions() if session.worker_id == victim.name]
        # All orphans get work now: the recovery is measured from here.
        await self._raise_next(session_ids := [session.session_id for session in orphans])
        self._display.say(f"Killed {victim}, which held {counted(len(orphans), 'session')}.")
        self._killed = KilledWorker(victim, at, session_ids, sum(session.queued > 0 for session in orphans))

    # -- for people

    async def _open_instances(self, *, limit: int) -> Sequence[str]:
        page = await self._client.list_page(
            prefix=self._plan.session_prefix, status=("pending", "running"), limit=limit
        )
        return [instance.instance_id for instance in page.items]

    def _story(self, replies: Sequence[TurnReply], seconds: float) -> Iterator[str]:
        what = f"{counted(len(self._conversations), 'conversation')} of chitchat-dataset as sessions"
        yield f"Replayed {what} over {counted(self._plan.workers, 'worker')} in {seconds:.0f} s."
        if (killed := self._killed) is not None:
            held = f"{counted(len(killed.orphans), 'session')}, {killed.running} of them with a turn under way"
            yield f"Half-way, {killed.worker} was killed with SIGKILL; it held {held}."
            again = sum(reply.attempt > 1 for reply in replies)
            yield f"Turns that had been started there and were run again by the survivors: {again}."

    async def _describe_stall(self, snapshot: Snapshot) -> str:
        sessions = {session.session_id: session for session in snapshot.sessions}
        lines = [f"no progress for {STALL_SECONDS:g} s; {snapshot.turns} of {self._total} turns are done"]
        lines += [f"  {one}: {sessions.get(one)}" for one in await self._open_instances(limit=5)]
        return "\n".join(lines) + "".join(worker.log_tail() for worker in self._workers if worker.alive)


def _describe_worker(worker: DemoWorker, snapshot: Snapshot) -> str:
    if worker.killed:
        return f"{worker.title} killed"
    held = counted(len(snapshot.held_by(worker.name)), "session")
    return f"{worker.title} {held if worker.name in snapshot.registered else 'has no lease'}"


def sum_of_workers(replies: Iterable[TurnReply], count: Callable[[TurnReply], int]) -> int:
    """The sum of a count of all workers. It only grows, so the greatest that a worker has reported is its last."""
    last = Counter[str]()
    for reply in replies:
        last[reply.worker_id] = max(last[reply.worker_id], count(reply))
    return last.total()
