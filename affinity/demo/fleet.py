"""The worker processes of a run: start, kill, stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from affinity.demo.worker import WorkerSettings

STOP_SECONDS: Final = 10.0
"""How long workers have to drain before they are killed."""

LOG_LINES: Final = 15
"""Lines of a worker's log that a failure shows."""


class WorkerProcess:
    """A worker in a process of its own, with its log in a file."""

    def __init__(self, settings: WorkerSettings, folder: Path) -> None:
        self.name = settings.options.worker_node_id
        self.title = self.name.removeprefix(f"{settings.run}-")
        self.log = folder / f"{self.name}.log"
        self.counts = settings.counts
        self.killed = False
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 -- this interpreter, on a module of ours
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

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    @property
    def exit_text(self) -> str:
        """How it ended, for people."""
        code = self.process.poll()
        return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"

    def kill(self) -> None:
        """Send SIGKILL."""
        self.killed = True
        self.process.kill()

    def end(self, timeout: float) -> None:
        """Wait for its end; after ``timeout`` seconds, kill it."""
        try:
            self.process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def log_tail(self) -> str:
        """The end of its log, with a headline."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"\n--- the end of {self.log}:", *lines])


class Fleet:
    """All workers of a run."""

    def __init__(self) -> None:
        self.workers: list[WorkerProcess] = []

    def start(self, settings: WorkerSettings, folder: Path) -> None:
        """Start one more worker; its log goes to ``folder``."""
        self.workers.append(WorkerProcess(settings, folder))

    @property
    def crashed(self) -> Sequence[WorkerProcess]:
        """Workers that ended without a signal from the demo."""
        return [worker for worker in self.workers if not worker.alive and not worker.killed]


@contextmanager
def open_fleet() -> Iterator[Fleet]:
    """A fleet whose workers are stopped at the end."""
    fleet = Fleet()
    try:
        yield fleet
    finally:
        for worker in fleet.workers:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in fleet.workers:
            worker.end(deadline - time.monotonic())
