"""Three worker processes that a test kills and pauses, again and again."""

from __future__ import annotations

import random
import signal
from typing import Any, Final

import anyio
from anyio import to_thread

from tests.processes import FAST, WorkerProcess, Workers

KILL_EVERY: Final = 2.0
PAUSE: Final = FAST["work_item_lock_timeout"] + 1.0
"""A paused worker sleeps for longer than all its leases."""

NAMES: Final = ("red", "green", "blue")


class Crew:
    """Three workers, killed and paused in turn."""

    def __init__(self, workers: Workers, target: str, *, pause: float = PAUSE, **options: Any) -> None:
        self._workers = workers
        self._target = target
        self._pause = pause
        self._options = options
        self._dice = random.Random(7)
        self._paused: str | None = None
        self._crew: dict[str, WorkerProcess] = {}
        self.kills = self.pauses = 0

    async def start(self) -> None:
        for name in NAMES:
            self._launch(name)
        for worker in self._crew.values():
            await to_thread.run_sync(worker.ready)

    def _launch(self, name: str) -> None:
        self._crew[name] = self._workers.launch(name, self._target, **self._options)

    async def harass(self, seconds: float) -> None:
        """Kills and pauses, side by side, for so long."""
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_again_and_again)
                tasks.start_soon(self._pause_again_and_again)
        if self._paused is not None:
            self._crew[self._paused].send(signal.SIGCONT)

    async def _kill_again_and_again(self) -> None:
        while True:
            await anyio.sleep(KILL_EVERY)
            victim = self._dice.choice([name for name in NAMES if name != self._paused])
            self._crew[victim].send(signal.SIGKILL)
            await to_thread.run_sync(self._crew[victim].wait)
            self._launch(victim)
            self.kills += 1

    async def _pause_again_and_again(self) -> None:
        while True:
            await anyio.sleep(KILL_EVERY / 2)
            self._paused = self._dice.choice(NAMES)
            await to_thread.run_sync(self._crew[self._paused].pause)
            await anyio.sleep(self._pause)
            self._crew[self._paused].send(signal.SIGCONT)
            self._paused = None
            self.pauses += 1
