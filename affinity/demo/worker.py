"""The worker processes of a run. Each is ``python -m affinity.demo.worker NAME``, where NAME is for the process list.

The settings come as one line of JSON on stdin, since a URL may hold a password. Stdin stays open after it: the kernel
closes it when the demo ends, however it ends, and the worker ends too.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

import anyio
from pydantic import BaseModel, Field

from affinity.composed.options import RuntimeOptions
from affinity.composed.worker import Worker
from affinity.demo.app import build_app, transcripts_of

STOP_SECONDS: Final = 10.0  # that workers have to drain before they are killed
LOG_LINES: Final = 15  # of a worker, that a failure shows


class WorkerSettings(BaseModel):
    """Input of a worker process."""

    run: str
    url: str = Field(repr=False)  # may hold a password
    options: RuntimeOptions


class DemoWorker:
    """A worker in a process of its own, with its log in a file."""

    def __init__(self, settings: WorkerSettings, folder: Path) -> None:
        self.name: str = settings.options.worker_node_id
        self.title: str = self.name.removeprefix(f"{settings.run}-")
        self.killed_at: float = 0.0  # Unix seconds
        self._log = folder / f"{self.name}.log"
        with self._log.open("wb") as log:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 -- this interpreter, on a module of ours
                [sys.executable, "-m", "affinity.demo.worker", self.name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is for the demo, which then stops its workers
            )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and is reported as crashed
            self.process.stdin.write(settings.model_dump_json().encode() + b"\n")

    def __str__(self) -> str:
        return f"{self.title} (pid {self.process.pid})"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL."""
        self.killed_at = time.time()
        self.process.kill()

    def end(self, timeout: float) -> None:
        """Wait for its end; after ``timeout`` seconds, kill it."""
        with self.process:
            try:
                self.process.wait(max(0.0, timeout))
            except subprocess.TimeoutExpired:
                self.process.kill()

    def describe_end(self) -> str:
        """How the process ended, and the end of its log."""
        code = self.process.poll()
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return f"{self} ended by itself, {how}{self.log_tail()}"

    def log_tail(self) -> str:
        """The end of its log, with a headline."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"\n--- the end of {self._log}:", *lines])


@contextmanager
def start_workers(settings: Sequence[WorkerSettings], folder: Path) -> Iterator[Sequence[DemoWorker]]:
    """Workers that are stopped at the end; their logs go to ``folder``."""
    workers: list[DemoWorker] = []
    try:
        for each in settings:
            workers.append(DemoWorker(each, folder))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.end(deadline - time.monotonic())


def main() -> None:
    """Run one worker until it is signalled, or until the demo has ended."""
    # Unbuffered: a thread that waits in a buffered read would hold a lock that the interpreter needs at its end.
    lifeline = FileIO(0, closefd=False)
    settings = WorkerSettings.model_validate_json(lifeline.readline())
    threading.Thread(target=_end_with, args=[lifeline], name="lifeline", daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    transcripts = transcripts_of(settings.run, max_sessions=max(1, settings.options.max_sessions_per_runtime))
    worker = Worker(build_app(settings.run, transcripts), settings.url, settings.options, migrate=False)
    anyio.run(worker.serve)


def _end_with(lifeline: FileIO) -> None:
    lifeline.read()  # returns when the other end is closed
    os._exit(1)


if __name__ == "__main__":
    main()
