"""Three worker processes that are killed and paused, repeatedly, while a test runs."""

from __future__ import annotations

import random
import signal
from typing import Any, Final

import anyio
from anyio import to_thread

from tests.support.worker_processes import FAST, WorkerProcess, Workers

KILL_EVERY: Final = 2.0
PAUSE: Final = FAST["work_item_lock_timeout"] + 1.0
"""A paused worker sleeps for longer than all its leases."""

NAMES: Final = ("red", "green", "blue")


class FaultInjector:
    """Starts three workers, kills and pauses them, and counts the kills and pauses."""

    def __init__(self, workers: Workers, target: str, *, pause: float = PAUSE, **options: Any) -> None:
        self._workers = workers
        self._target = target
        self._pause = pause
        self._options = options
        self._dice = random.Random(7)
        self._paused: str | None = None
        self._processes: dict[str, WorkerProcess] = {}
        self.kills = self.pauses = 0

    async def start(self) -> None:
        for name in NAMES:
            self._launch(name)
        for worker in self._processes.values():
            await to_thread.run_sync(worker.ready)

    def _launch(self, name: str) -> None:
        self._processes[name] = self._workers.launch(name, self._target, **self._options)

    async def inject(self, seconds: float) -> None:
        """Kill and pause workers, both at the same time, for so many seconds."""
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_repeatedly)
                tasks.start_soon(self._pause_repeatedly)
        if self._paused is not None:
            self._processes[self._paused].send(signal.SIGCONT)

    async def _kill_repeatedly(self) -> None:
        while True:
            await anyio.sleep(KILL_EVERY)
            victim = self._dice.choice([name for name in NAMES if name != self._paused])
            self._processes[victim].send(signal.SIGKILL)
            await to_thread.run_sync(self._processes[victim].wait)
            self._launch(victim)
            self.kills += 1

    async def _pause_repeatedly(self) -> None:
        while True:
            await anyio.sleep(KILL_EVERY / 2)
            self._paused = self._dice.choice(NAMES)
            await to_thread.run_sync(self._processes[self._paused].pause)
            await anyio.sleep(self._pause)
            self._processes[self._paused].send(signal.SIGCONT)
            self._paused = None
            self.pauses += 1
