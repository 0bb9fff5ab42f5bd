"""`Env`: an app in one process, with a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import anyio

from affinity.async_block import AsyncBlock
from affinity.client import Client
from affinity.errors import NothingWillHappen, ProviderError
from affinity.orchestration import App
from affinity.provider.contract import Provider
from affinity.provider.timeline import Timeline
from affinity.tasks import BackgroundTask
from affinity.testing.env.databases import EnvDatabase, SqliteDatabase, Waiting
from affinity.testing.env.reasons import explain
from affinity.testing.env.traffic import Traffic, observed
from affinity.testing.env.workers import EnvWorker
from affinity.worker import RuntimeOptions
from affinity.worker.services import Timing

STEPS: Final = 12
"""Steps of the event loop after which code that waits for nothing has made its next call, or waits."""

LOOK_SECONDS: Final = 0.02
"""Between two looks at whether a client waits, while no call ends."""

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
    can run, the clock jumps to what is due next. Leases of the workers move along.

    Args:
        app: what the workers run.
        options: of the workers; ``worker_node_id`` is the env's to choose: ``worker-0``, ``worker-1``, ….
    """

    def __init__(self, app: App, *, options: RuntimeOptions | None = None) -> None:
        self._app = app
        self._options = options or RuntimeOptions()
        self._traffic = Traffic()
        self._round = anyio.Event()  # at each jump
        self._jumping = asyncio.Lock()
        self._timing = Timing(pause=self._pause, monotonic=self._monotonic)
        self._workers: list[EnvWorker] = []
        self._stack = AsyncExitStack()
        self.jumps = 0
        """How often the clock has jumped."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._database: EnvDatabase = await SqliteDatabase.create()
            stack.push_async_callback(self._database.aclose)
            self.started = self.now()
            self._own = await self._database.open(one_connection=True)
            stack.push_async_callback(self._own.aclose)
            for number in range(1):
                worker = self._new_worker(f"worker-{number}")
                await stack.enter_async_context(worker)
                self._workers.append(worker)
            self.client = await stack.enter_async_context(Client.from_provider(observed(self._own, self._traffic)))
            driver = BackgroundTask(self._drive)
            stack.push_async_callback(driver.join)
            stack.callback(driver.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    client: Client
    """A client of the database; the clock jumps while it waits."""
    started: datetime
    """When the env was entered, by its clock."""

    def now(self) -> datetime:
        """The time of the database's clock."""
        return datetime.fromtimestamp(self._database.now(), UTC)

    def _new_worker(self, name: str) -> EnvWorker:
        options = self._options.model_copy(update={"worker_node_id": name})
        return EnvWorker(self._app, options, self._open, self._traffic, self._timing)

    async def _open(self, timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider:
        return await self._database.open(timeline, one_connection=one_connection)

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
        while True:
            if not self.client._awaited:
                await self._traffic.wait(LOOK_SECONDS)
                await _steps()
                continue
            try:
                async with self._jumping:
                    await self._jump_once()
            except ProviderError:  # as every loop of a worker
                await anyio.sleep(LOOK_SECONDS)
            except NothingWillHappen as error:
                self.client._fail_waits(error)
                await _steps()

    async def _jump_once(self) -> None:
        """Wait until nothing can run; if the client still waits then, jump to what is due next.

        Raises:
            NothingWillHappen: nothing is due.
        """
        await self._settle()
        if not self.client._awaited:
            return
        due = await self._database.next_due(self._waiting())
        if due is not None:
            await self._jump(due)
        elif await self._stays_quiet():
            raise NothingWillHappen(f"nothing will ever happen: {await self._explain()}")

    async def _jump(self, to: float) -> None:
        self._traffic.stop()
        try:
            await self._database.jump(to, [worker.identity.incarnation for worker in self._alive])
        finally:
            self._traffic.go_on()
        self.jumps += 1
        self._traffic.changes += 1
        before, self._round = self._round, anyio.Event()
        before.set()

    async def _settle(self) -> None:
        """Wait until nothing runs and nothing can run, and the client has seen it."""
        while True:
            changes = self._traffic.changes
            if self._is_busy():
                await self._traffic.wait(LOOK_SECONDS)
                await _steps()
                continue
            for worker in self._alive:
                worker.look()
            while not self._has_changed(changes) and not all(worker.has_looked for worker in self._alive):
                await self._traffic.wait(LOOK_SECONDS)
            if not self._has_changed(changes):
                for worker in self._alive:
                    await worker.runtime.maintenance.sweep()
            if not self._has_changed(changes):
                self.client._look_now()
                await _steps()
                while self._traffic.in_flight:
                    await self._traffic.wait(LOOK_SECONDS)
                await _steps()
            if not self._has_changed(changes):
                return

    async def _stays_quiet(self) -> bool:
        """Whether nothing happens for a while of real time."""
        changes = self._traffic.changes
        with anyio.move_on_after(GRACE_SECONDS):
            while not self._has_changed(changes) and self.client._awaited:
                await self._traffic.wait(LOOK_SECONDS)
        return not self._has_changed(changes) and bool(self.client._awaited)

    def _is_busy(self) -> bool:
        return self._traffic.in_flight > 0 or any(worker.is_busy for worker in self._alive)

    def _has_changed(self, changes: int) -> bool:
        return self._traffic.changes != changes or any(worker.is_busy for worker in self._alive)

    @property
    def _alive(self) -> Sequence[EnvWorker]:
        return [worker for worker in self._workers if worker.is_alive]

    def _waiting(self) -> Waiting:
        alive = [worker.identity.incarnation for worker in self._alive]
        return Waiting(alive, self._options.session_min_idle, self._options.unregistered_timeout)

    async def _explain(self) -> str:
        return "; ".join([await explain(self.client, each) for each in dict.fromkeys(self.client._awaited)])


async def _steps() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)
