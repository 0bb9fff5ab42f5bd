"""The worker processes of a run: started, replaced one after the other, and never left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process, TaskGroup

import affinity
from examples.local_llm.worker import Settings

START_SECONDS: Final = 60.0
"""How long a worker may take to load its model and register."""

STOP_SECONDS: Final = 20.0
"""How long it may take to drain."""

LOOK_SECONDS: Final = 0.1
"""Between two looks at whether it has registered."""

LOG_LINES: Final = 15
"""Of a worker that failed, that are shown."""


class WorkerFailed(Exception):
    """A worker process ended by itself, or did not start in time."""


class WorkerProcess:
    """One worker, in a process of its own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._log = folder / f"{settings.mode}-{settings.name}.log"
        self._told = False
        self._process: Process | None = None

    async def start(self, client: affinity.Client, watchers: TaskGroup) -> None:
        """Start it, and wait until it has registered."""
        self._told = False
        with self._log.open("ab") as log:
            process = self._process = await anyio.open_process(
                [sys.executable, "-m", "examples.local_llm.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the command, which then stops its workers
            )
        watchers.start_soon(self._watch, process)
        assert process.stdin is not None
        await process.stdin.send(self._settings.model_dump_json().encode() + b"\n")
        with anyio.move_on_after(START_SECONDS) as patience:
            while not await _registered(client, process.pid):  # noqa: ASYNC110 -- another process has no event to give
                await anyio.sleep(LOOK_SECONDS)
        if patience.cancelled_caught:
            raise self._failure(f"has not registered within {START_SECONDS:g} s")

    def terminate(self) -> None:
        """Have it drain and leave."""
        self._told = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def ended(self) -> None:
        """Wait until it has left; kill it if it does not."""
        if self._process is None:
            return
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_SECONDS):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()

    async def _watch(self, process: Process) -> None:
        code = await process.wait()
        if not self._told:
            raise self._failure(f"has ended with exit code {code}")

    def _failure(self, what: str) -> WorkerFailed:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return WorkerFailed(f"{self._settings.name} {what}\n{tail}")


async def _registered(client: affinity.Client, pid: int) -> bool:
    return any(worker.alive and worker.labels.get("pid") == str(pid) for worker in await client.workers())


class Fleet:
    """All workers of a run."""

    def __init__(self, workers: list[WorkerProcess], client: affinity.Client, watchers: TaskGroup) -> None:
        self._workers = workers
        self._client = client
        self._watchers = watchers

    async def replace(self) -> None:
        """A new process for each worker, one after the other."""
        for worker in self._workers:
            worker.terminate()
            await worker.ended()
            await worker.start(self._client, self._watchers)


@asynccontextmanager
async def open_fleet(settings: list[Settings], client: affinity.Client, folder: Path) -> AsyncIterator[Fleet]:
    """Workers that run until the block ends, however it does.

    Raises:
        WorkerFailed: in a group, when one does not start, or ends by itself meanwhile.
    """
    workers: list[WorkerProcess] = []
    async with anyio.create_task_group() as watchers:
        try:
            for one in settings:
                workers.append(WorkerProcess(one, folder))
                await workers[-1].start(client, watchers)
            yield Fleet(workers, client, watchers)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                await worker.ended()
