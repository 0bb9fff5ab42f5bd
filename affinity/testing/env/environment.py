"""`Env`: an app in one process, with a clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from affinity.async_block import AsyncBlock
from affinity.client import SessionMoveOutcome
from affinity.composed.app import App
from affinity.composed.client import Client
from affinity.composed.options import RuntimeOptions
from affinity.errors import (
    AffinityError,
    DatabaseFailure,
    InvalidInput,
    InvalidOptions,
    NothingWillHappen,
    ProviderError,
)
from affinity.limits import MAX_RETENTION_SECONDS
from affinity.orchestration import ActivityContext
from affinity.orchestration.definitions import definition_of
from affinity.payloads import Blobs, PayloadCodec, check_blobs, check_codec, with_payloads
from affinity.provider.contract import Provider
from affinity.provider.timeline import Timeline
from affinity.provider.urls import scheme_of
from affinity.tasks import BackgroundTask
from affinity.testing.env.fakes import Fake
from affinity.testing.env.reasons import describe, explain
from affinity.testing.env.sqlite import SqliteDatabase
from affinity.testing.env.traffic import LOOK_SECONDS, Commit, Traffic, observed, steps
from affinity.testing.env.waiting import EnvDatabase, Waiting
from affinity.testing.env.workers import EnvWorker, WorkerOfEnv, pass_idle_time
from affinity.worker.services import Timing

if TYPE_CHECKING:
    from affinity.testing.env.postgres import PostgresDatabase

TICK: Final = 0.001
"""A shorter move of the clock is no jump: PostgreSQL's statements put what they queue some microseconds apart."""

GRACE_SECONDS: Final = 0.25
"""Real time for which nothing may happen before a wait that nothing can end raises `NothingWillHappen`: another task of
the test may be about to send something.
"""


class Env(AsyncBlock):
    """Workers and a client of an app, on a database of their own whose clock is virtual.

    ::

        async with affinity.testing.Env(app) as env:
            run = await env.client.start(reminder, "ann")
            assert await run.wait() == "sent"
            assert env.now() - env.started == timedelta(days=7)

    The clock stands still while code runs. While a call of `client` waits for something, and nothing runs and nothing
    can run, the clock jumps to the next due time. Leases of the workers move along.

    Args:
        app: what the workers run.
        url: a PostgreSQL database, in which the env makes and drops a schema with a random name. By default an SQLite
            file is used, in memory where there is a file system for it.
        workers: how many; their names are ``worker-0``, ``worker-1``, ….
        always_replay: each turn of an orchestration begins with a replay of its history, as after a crash: code that is
            not deterministic suspends its instance.
        options: of the workers; ``worker_node_id`` is not used.
        codec: encodes the payloads, of the workers and of the client. By default there is none, whatever
            ``AFFINITY_CODEC`` names.
        blobs: keeps the large payloads; no worker collects them, since time is virtual here, and not in the store. By
            default there is no blob store.
        max_jump: how far the clock may jump while the client waits, or in one `run_until_idle`; then the wait raises
            `affinity.errors.NothingWillHappen`.
    """

    def __init__(
        self,
        app: App,
        *,
        url: str | None = None,
        workers: int = 1,
        always_replay: bool = False,
        options: RuntimeOptions | None = None,
        codec: PayloadCodec | None = None,
        blobs: Blobs | None = None,
        max_jump: timedelta = timedelta(days=3650),
    ) -> None:
        if workers < 0:
            raise InvalidOptions(f"workers = {workers}: must be at least 0")
        if max_jump <= timedelta(0):
            raise InvalidOptions(f"max_jump = {max_jump}: must be more than 0")
        self._app = App(app.name)  # a copy, in which `fake` replaces activities
        self._app.include(app)
        self._url = url
        self._count = workers
        self._options = options or RuntimeOptions()
        self._codec, self._blobs = check_codec(codec), _uncollected(check_blobs(blobs))
        if always_replay:
            self._options = self._options.model_copy(update={"instance_cache_size": 0})
        self._traffic = Traffic()
        self._round = anyio.Event()  # at each jump
        self._jumping = asyncio.Lock()
        self._ticked = -1  # changes at the last `_tick`
        self._held = 0  # blocks in which the clock does not jump by itself
        self._max_jump = max_jump
        self._timing = Timing(pause=self._pause, monotonic=self._monotonic)
        self._workers: list[WorkerOfEnv] = []
        self._given: EnvDatabase | None = None  # in place of a new database
        self._crashing = asyncio.Lock()  # held by a start too: it has no worker of that name
        self._replaced = set[str]()  # workers that a crash in a commit has ended for good
        self._crashes: list[BackgroundTask] = []
        self._variables = copy_context()  # of the test: a worker that a crash starts has these, as the first ones have
        self._stack = AsyncExitStack()
        self.jumps: int = 0
        """How often the clock has jumped."""

    async def __aenter__(self) -> Self:
        self._variables = copy_context()
        async with AsyncExitStack() as stack:
            self._database = await self._create_database()
            stack.push_async_callback(self._database.aclose)
            self.started = self.now()
            own = await self._database.open(one_connection=True, as_client=True)
            stack.push_async_callback(own.aclose)
            self._own = await self._with_payloads(own)  # the first one marks the database
            stack.push_async_callback(self._leave_workers)
            stack.push_async_callback(self._end_crashes)
            for number in range(self._count):
                await self._start_worker(f"worker-{number}")
            self.client = Client.from_provider(observed(self._own, self._traffic))
            await stack.enter_async_context(self.client)
            driver = BackgroundTask(self._drive)
            stack.push_async_callback(driver.join)
            stack.callback(driver.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            error.add_note(await self.describe())
        await self._stack.__aexit__(kind, error, trace)

    async def _create_database(self) -> EnvDatabase:
        if self._given is not None:
            return self._given
        return await (SqliteDatabase.create() if self._url is None else create_postgres(self._url))

    async def describe(self) -> str:
        """The histories of the instances, and what they wait for. An error that leaves the block has it as a note."""
        try:
            found = await describe(self.client)
        except AffinityError as error:
            found = f"the database cannot be read: {error!r}"
        return f"affinity.testing.Env at {self.now():%Y-%m-%d %H:%M:%S}, {self.jumps} jumps: {found}"

    client: Client
    """A client of the database; the clock jumps while it waits."""
    started: datetime
    """When the env was entered, by its clock."""

    def now(self) -> datetime:
        """The time of the database's clock."""
        return datetime.fromtimestamp(self._database.now(), UTC)

    async def _start_worker(self, name: str) -> None:
        await self._traffic.pass_gate()  # a jump that has begun does not know this worker
        worker = self._make_worker(self._options.model_copy(update={"worker_node_id": name}))
        await worker.__aenter__()
        self._workers.append(worker)

    def _make_worker(self, options: RuntimeOptions) -> WorkerOfEnv:
        return EnvWorker(self._app, options, open_provider=self._open, traffic=self._traffic, timing=self._timing)

    async def _leave_workers(self) -> None:
        """Cancel running code: a test that has ended waits for nothing."""
        for worker in self._workers:
            worker.is_abandoned = True
        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                if worker.is_paused:
                    tasks.start_soon(worker.crash)
                elif not worker.has_crashed:
                    tasks.start_soon(worker.__aexit__, None, None, None)

    async def _open(self, timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider:
        provider = await self._database.open(timeline, one_connection=one_connection)
        try:
            return provider if one_connection else await self._with_payloads(provider)
        except BaseException:
            await provider.aclose()
            raise

    async def _with_payloads(self, provider: Provider) -> Provider:
        """Return a provider with the codec and the blob store of the env."""
        if self._codec is None and self._blobs is None:
            return provider
        return await with_payloads(provider, self._codec, self._blobs, is_worker=True)

    # -- activities

    def fake(
        self,
        activity: Callable[[ActivityContext], Any] | Callable[[ActivityContext, Any], Any] | str,
        outcome: Any = None,
        *,
        times: int | None = None,
    ) -> Fake:
        """Replace an activity, for the calls that begin from now on.

        Args:
            activity: a registered function, or its name.
            outcome: a function, sync or async, that is called with the same arguments; an error, which is raised; or
                what the activity returns.
            times: the calls that are faked; the ones after them run what was there before. None: all.

        Returns:
            Its ``calls`` has the input of each call.

        Raises:
            InvalidInput: the app has no such activity.
        """
        definition = definition_of(activity)
        name = activity if isinstance(activity, str) else definition.name if definition is not None else None
        present = self._app.activities.get(name or "")
        if present is None:
            known = ", ".join(sorted(self._app.activities))
            raise InvalidInput(f"app {self._app.name!r} has no activity {activity!r}; it has: {known}")
        fake = Fake(present, outcome, times)
        self._app._activities[present.name] = fake.define()
        return fake

    # -- workers

    async def crash(self, worker: int | str = 0, *, restart: bool = True) -> None:
        """End a worker as a process that is killed: nothing more of it reaches the database, and its lease goes on.

        Args:
            worker: its number or name.
            restart: start it again under its name, which gets its sessions back immediately. Otherwise other workers
                take over once its lease has ended, to which the clock jumps.

        Raises:
            InvalidInput: no such worker runs.
        """
        async with self._crashing:
            await self._crash(self._worker(worker), restart)

    async def _crash(self, worker: WorkerOfEnv, restart: bool) -> None:
        """The clock does not jump meanwhile: the lease goes on."""
        self._traffic.begin()
        try:
            await worker.crash()
            self._workers.remove(worker)
            if restart:
                await self._start_worker(worker.identity.worker_id)
        finally:
            self._traffic.end(changed=True)

    def _crash_in_commit(self, name: str, *, restart: bool, delay: float | None = None) -> None:
        """Crash a worker from within `Traffic.on_commit`: no later call of it reaches the database; with ``delay``,
        after so many seconds. The rest runs in the background; the clock does not jump meanwhile. Without ``restart``,
        a new worker takes over from the last one. A worker that the scenario has ended meanwhile is left alone.
        """
        found = self._find_worker(name)  # None: it is starting
        if delay is None and found is not None:
            found.cut()
        self._traffic.begin()
        follow = partial(self._follow_crash, name, found, restart=restart, delay=delay or 0.0)
        self._crashes.append(self._variables.copy().run(BackgroundTask, follow))

    async def _follow_crash(self, name: str, worker: WorkerOfEnv | None, *, restart: bool, delay: float) -> None:
        try:
            await anyio.sleep(delay)
            async with self._crashing:
                worker = worker or self._find_worker(name)
                if worker is not None and worker in self._workers:
                    if not restart:
                        self._replaced.add(name)
                    await self._crash(worker, restart)
                if not self._workers:
                    await self._start_worker(f"worker-{self._count}")
        except Exception as error:  # the test must not hang
            self.client._fail_waits(error)
        finally:
            self._traffic.end(changed=True)

    async def _end_crashes(self) -> None:
        for crash in self._crashes:
            await crash.join()

    async def drain(self, worker: int | str = 0) -> None:
        """Have a worker leave, as a process by SIGTERM: it lets running activities end, or interrupts them after
        ``drain_timeout``. That is real time, which `advance` moves.

        Args:
            worker: its number or name.

        Raises:
            InvalidInput: no such worker runs.
        """
        found = self._worker(worker)
        await found.__aexit__(None, None, None)
        self._workers.remove(found)
        self._traffic.changes += 1

    async def move(self, session_id: str, worker: int | str) -> SessionMoveOutcome:
        """Move a session to a worker; see `Client.move_session` for the outcomes.

        Raises:
            InvalidInput: no such worker runs, or the id is refused.
        """
        to = self._worker(worker).identity.worker_id
        outcome = await self.client.move_session(session_id, to)
        if outcome == "planned":
            async with self._by_hand():
                await self._settle(beside_code=True)
            outcome = await self.client.await_session_move(session_id, to)
        return outcome

    def pause(self, worker: int | str = 0) -> None:
        """Have a worker stand still, as a process by SIGSTOP, until `resume`.

        No call of it reaches the database, and no answer reaches its code. Its lease ends when the clock has moved that
        far. Running code stops at its next call of the database; running activities keep neither ``wait`` nor the clock
        waiting. The workers of an env share this process, and with it the states in memory: an activity that another
        worker takes over waits while a call of this worker has the session's state.

        Args:
            worker: its number or name.

        Raises:
            InvalidInput: no such worker runs.
        """
        self._worker(worker).pause()

    async def resume(self, worker: int | str = 0) -> None:
        """Resume a paused worker, with its calls and beliefs of before: the database refuses writes that it may no
        longer make. Returns once it has a lease again, its own or a new one.

        Args:
            worker: its number or name.

        Raises:
            InvalidInput: no such worker runs.
        """
        found = self._worker(worker)
        await self._traffic.pass_gate()  # while the clock jumps, a lease that it gets would stay behind
        await found.resume()

    def fail_calls(self, n: int) -> None:
        """Have the database refuse the next ``n`` calls of the workers, of any kind but the renewals of leases; they
        repeat them, with pauses in real time.
        """
        self._traffic.refusals = n

    def fail_commits(self, n: int) -> None:
        """Have the database refuse the next ``n`` commits of the workers; they repeat them."""
        left, also = n, self._traffic.on_commit

        async def refuse(commit: Commit, done: bool) -> None:
            nonlocal left
            if also is not None:
                await also(commit, done)
            if not done and left > 0:
                left -= 1
                raise DatabaseFailure(f"the test refuses {commit.verb}")

        self._traffic.on_commit = refuse

    def _worker(self, worker: int | str) -> WorkerOfEnv:
        name = worker if isinstance(worker, str) else f"worker-{worker}"
        found = self._find_worker(name)
        if found is None and name in self._replaced and self._workers:
            found = self._workers[0]  # the scenario cannot know of the crash
        if found is None:
            raise InvalidInput(f"no worker {name!r} runs; there are: {', '.join(self.workers)}")
        return found

    def _find_worker(self, name: str) -> WorkerOfEnv | None:
        return next((each for each in self._workers if each.identity.worker_id == name), None)

    @property
    def workers(self) -> Sequence[str]:
        """The names of the workers that run."""
        return [worker.identity.worker_id for worker in self._workers]

    # -- the clock, by hand

    async def advance(self, by: timedelta | float) -> None:
        """Let this much time pass: the clock jumps to all that is due within it, one after the other, then to its end.
        What becomes due is run. For activities that run, too, the time passes: an activity's ``timeout`` ends it.

        Args:
            by: a ``timedelta``, or seconds.

        Raises:
            InvalidInput: it is negative.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        if not 0 <= seconds <= MAX_RETENTION_SECONDS:
            raise InvalidInput(f"advance({by!r}): must be a time of at least 0")
        async with self._by_hand():
            end = round(self._database.now() + seconds, 6)
            while (due := await self._settled_due(beside_code=True)) is not None and due < end:
                await self._jump(due)
            if end > self._database.now():
                await self._jump(end)
                await self._settle(beside_code=True)

    async def run_until_idle(self) -> None:
        """Run, and jump, until nothing runs and nothing is due. The remaining instances wait for an event, an answer or
        an operator. Later ticks of schedules do not count: most schedules have no end; `advance` reaches them.

        Raises:
            NothingWillHappen: something is always due, for longer than ``max_jump``.
        """
        begun = self.now()
        while await self._step(begun, endless=False):
            pass

    async def step(self) -> bool:
        """Run until nothing runs; then jump once, to the next due time.

        Returns:
            Whether anything was due. False: the remaining instances wait for an event, an answer or an operator.

        Raises:
            NothingWillHappen: it is due in more than ``max_jump``.
        """
        return await self._step(self.now())

    async def _step(self, begun: datetime, *, endless: bool = True) -> bool:
        async with self._by_hand():
            due = await self._settled_due(endless=endless)
            if due is not None:
                self._check_jump(begun, due)
                await self._jump(due)
            return due is not None

    async def _settled_due(self, *, beside_code: bool = False, endless: bool = True) -> float | None:
        """The next due time, once nothing runs."""
        while True:
            await self._settle(beside_code=beside_code)
            changes = self._traffic.changes
            due = await self._database.next_due(self._waiting()._replace(endless=endless))
            if not self._is_busy(beside_code, changes):  # again: a crash or a resume may have begun
                return due

    @contextlib.contextmanager
    def freeze(self) -> Iterator[None]:
        """Within this block the clock moves by `advance` and `run_until_idle` only::

        with env.freeze():
            ...
        """
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @contextlib.asynccontextmanager
    async def _by_hand(self) -> AsyncIterator[None]:
        with self.freeze():
            async with self._jumping:
                yield

    # -- what workers have instead of real time

    def _monotonic(self) -> float:
        return self._database.now()

    async def _pause(self, seconds: float) -> None:
        """Real time, cut short by a jump."""
        with anyio.move_on_after(seconds):
            await self._round.wait()

    # -- the clock

    async def _drive(self) -> None:
        """Jump while the client waits, until cancelled."""
        begun: datetime | None = None  # of the wait
        while True:
            try:
                if self._held or not self.client._awaited:
                    begun = None
                    await self._traffic.wait(LOOK_SECONDS)
                    await self._tick()
                    continue
                begun = begun or self.now()
                async with self._jumping:
                    await self._jump_once(begun)
            except ProviderError:  # as every loop of a worker
                await anyio.sleep(LOOK_SECONDS)
            except Exception as error:  # a defect too: the test must not hang
                self.client._fail_waits(error)
                await steps()

    async def _tick(self) -> None:
        """Let the microseconds pass until the last queued row is due: work begins before anything waits."""
        if not self._may_tick():
            return
        await steps()
        if not self._may_tick():
            return
        async with self._jumping:
            self._ticked = self._traffic.changes
            due = await self._database.next_due(self._waiting())
            if due is not None and due - self._database.now() <= TICK:
                await self._jump(due)

    def _may_tick(self) -> bool:
        changed = self._ticked != self._traffic.changes
        return changed and self._database.puts_later and not self._jumping.locked()

    async def _jump_once(self, begun: datetime) -> None:
        """Wait until nothing can run; if the client still waits then, since ``begun``, jump to the next due time.

        Raises:
            NothingWillHappen: nothing is due, or not within ``max_jump``.
        """
        if not await self._settle(by_itself=True) or not self.client._awaited:
            return
        changes = self._traffic.changes
        due = await self._database.next_due(self._waiting())
        if self._is_busy(changes=changes):  # again: a crash or a resume may have begun
            return
        if due is not None:
            if self._is_too_far(begun, due):
                raise NothingWillHappen(f"{self._too_far(begun, due)}: {await self._explain()}")
            await self._jump(due)
        elif await self._stays_quiet():
            raise NothingWillHappen(f"nothing will ever happen: {await self._explain()}")

    async def _jump(self, to: float) -> None:
        seconds, alive = to - self._database.now(), self._alive
        self._traffic.stop()
        try:
            async with AsyncExitStack() as held:
                for worker in alive:
                    await held.enter_async_context(worker.held())
                waiting = self._waiting()
                await self._database.jump(to, waiting.alive, waiting.busy)
            for worker in alive:
                worker.pass_time(seconds)
            pass_idle_time(self._app.session_listeners, seconds)
        finally:
            self._traffic.go_on()
        self.jumps += seconds > TICK
        self._traffic.changes += 1
        before, self._round = self._round, anyio.Event()
        before.set()

    async def _settle(self, *, beside_code: bool = False, by_itself: bool = False) -> bool:
        """Wait until nothing runs and nothing can run, and the client has seen it.

        Args:
            beside_code: activities may run.
            by_itself: return False when the clock is to be moved by hand.
        """
        while not (by_itself and self._held):
            changes = self._traffic.changes
            if self._is_busy(beside_code):
                await self._traffic.wait(LOOK_SECONDS)
                if not self._traffic.in_flight:
                    await steps()
                continue
            for worker in self._alive:
                worker.look()
            while not self._has_changed(changes, beside_code) and not all(one.has_looked for one in self._alive):
                await self._traffic.wait(LOOK_SECONDS)
            if not self._has_changed(changes, beside_code):
                for worker in self._alive:
                    await worker.sweep()
            if not self._has_changed(changes, beside_code):
                self.client._look_now()
                await steps()
                while self._traffic.in_flight:
                    await self._traffic.wait(LOOK_SECONDS)
                await steps()
            if not self._has_changed(changes, beside_code):
                return True
        return False

    async def _stays_quiet(self) -> bool:
        """Whether nothing happens for a while of real time."""
        changes = self._traffic.changes
        with anyio.move_on_after(GRACE_SECONDS):
            while not (self._has_changed(changes) or self._held) and self.client._awaited:
                await self._traffic.wait(LOOK_SECONDS)
        return not (self._has_changed(changes) or self._held) and bool(self.client._awaited)

    def _is_busy(self, beside_code: bool = False, changes: int | None = None) -> bool:
        """Whether a call is under way, or `_has_changed`."""
        since = self._traffic.changes if changes is None else changes
        return self._traffic.in_flight > 0 or self._has_changed(since, beside_code)

    def _has_changed(self, changes: int, beside_code: bool = False) -> bool:
        """Whether there was a change since then, or one is under way."""
        if self._traffic.changes != changes:
            return True
        if any(worker.is_recovering for worker in self._workers):
            return True
        return any(worker.has_unwritten or (worker.runs_code and not beside_code) for worker in self._alive)

    def _is_too_far(self, begun: datetime, due: float) -> bool:
        return datetime.fromtimestamp(due, UTC) - begun > self._max_jump

    def _too_far(self, begun: datetime, due: float) -> str:
        ahead = datetime.fromtimestamp(due, UTC) - begun
        return f"nothing ends within max_jump = {self._max_jump}; the clock would be {ahead} ahead of the wait's begin"

    def _check_jump(self, begun: datetime, due: float) -> None:
        if self._is_too_far(begun, due):
            raise NothingWillHappen(self._too_far(begun, due))

    @property
    def _alive(self) -> Sequence[WorkerOfEnv]:
        return [worker for worker in self._workers if worker.is_alive]

    def _waiting(self) -> Waiting:
        alive = [worker.identity.incarnation for worker in self._alive]
        busy = [worker.identity.incarnation for worker in self._alive if worker.runs_code]
        return Waiting(alive, busy, self._options.unregistered_timeout)

    async def _explain(self) -> str:
        return "; ".join([await explain(self.client, each) for each in dict.fromkeys(self.client._awaited)])


async def create_postgres(url: str) -> PostgresDatabase:
    """A new schema; see `PostgresDatabase.create`.

    Raises:
        InvalidOptions: the URL does not name a PostgreSQL database.
    """
    if scheme_of(url) not in {"postgresql", "postgres"}:
        raise InvalidOptions("url must name a PostgreSQL database; without one, Env makes an SQLite file of its own")
    from affinity.testing.env.postgres import PostgresDatabase  # imported late, as by `open_provider`

    return await PostgresDatabase.create(url)


def _uncollected(blobs: Blobs | None) -> Blobs | None:
    if blobs is not None:
        blobs = copy(blobs)
        blobs.collect = False
    return blobs
