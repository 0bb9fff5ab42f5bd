"""The worker processes of a run: started, killed, stopped, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from affinity.demo.plan import WorkerSettings

STOP_SECONDS: Final = 10.0
"""How long workers have to leave in order before they are killed."""

LOG_LINES: Final = 15
"""Lines of a worker's log that a failure shows."""


class WorkerProcess:
    """One worker in a process of its own, with its log in a file."""

    def __init__(self, settings: WorkerSettings, folder: Path) -> None:
        self.name = settings.options.worker_node_id
        self.title = self.name.removeprefix(f"{settings.run}-")  # for people: all names of a run begin alike
        self.log = folder / f"{self.name}.log"
        self.counts = settings.counts
        self.killed = False
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, on a module of ours
                [sys.executable, "-m", "affinity.demo.worker", self.name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is for the demo, which then stops its workers
            )
        assert self._process.stdin is not None
        self._lifeline = self._process.stdin
        with suppress(BrokenPipeError):  # it has failed already, and will be reported as fallen
            self._lifeline.write(settings.model_dump_json().encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def exit_text(self) -> str:
        """How it ended, for people."""
        code = self._process.poll()
        return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"

    def kill(self) -> None:
        """SIGKILL: no warning, no clean-up."""
        self.killed = True
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM: drain and leave."""
        self._process.terminate()

    def end(self, timeout: float) -> None:
        """Wait until it has left; after ``timeout`` seconds, kill it."""
        try:
            self._process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lifeline.close()

    def log_tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class Fleet:
    """All workers of a run."""

    def __init__(self) -> None:
        self.workers: list[WorkerProcess] = []

    def start(self, settings: WorkerSettings, folder: Path) -> None:
        """Start one more worker; its log goes to ``folder``."""
        self.workers.append(WorkerProcess(settings, folder))

    @property
    def fallen(self) -> Sequence[WorkerProcess]:
        """Workers that ended though nobody told them to."""
        return [worker for worker in self.workers if not worker.alive and not worker.killed]

    def named(self, name: str) -> WorkerProcess:
        """The worker of that name."""
        return next(worker for worker in self.workers if worker.name == name)

    def stop(self) -> None:
        """Have all workers leave, and wait until they have."""
        for worker in self.workers:
            worker.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.end(deadline - time.monotonic())


@contextmanager
def open_fleet() -> Iterator[Fleet]:
    """A fleet that is stopped at the end, whatever happens."""
    fleet = Fleet()
    try:
        yield fleet
    finally:
        fleet.stop()
