"""Worker processes: started as a user would, watched through their logs, ended with real signals."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

import psutil

from bench.systems.base import ROOT, Launch, System, child_environment

START_SECONDS = 60.0
"""After which a worker that is not ready counts as broken."""

STOP_SECONDS = 20.0
"""After which a worker that was asked to end is killed."""

LOG_LINES = 200
"""Lines of its log that are kept to explain a failure."""


class WorkerFailed(RuntimeError):
    """A worker process ended before it was ready; the message holds its log."""


class WorkerProcess:
    """One worker process."""

    def __init__(self, launch: Launch) -> None:
        self._ready = launch.ready
        self._log: list[str] = []
        self._changed = threading.Condition()
        self._is_ready = self._is_over = False
        self._process = subprocess.Popen(  # noqa: S603 -- a module of ours
            launch.arguments,
            cwd=ROOT,
            env=child_environment(launch),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.usage = psutil.Process(self._process.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ready(self) -> Self:
        """Wait until it says that it takes work.

        Raises:
            WorkerFailed: it ended, or does not say so in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._is_over, START_SECONDS)
            if not self._is_ready:
                raise WorkerFailed("\n".join(["a worker is not ready:", *self._log]))
        return self

    def cpu_seconds(self) -> float:
        """Processor time that it has used so far."""
        times = self.usage.cpu_times()
        return float(times.user + times.system)

    def written(self) -> int:
        """Bytes that it has handed to the system so far, to files and elsewhere; Linux knows."""
        return int(self.usage.io_counters().write_chars)

    def memory(self) -> int:
        """Bytes that only it uses."""
        return int(self.usage.memory_full_info().uss)

    def pause(self) -> None:
        """Stop it in its tracks."""
        self.usage.suspend()

    def resume(self) -> None:
        """Let it go on."""
        self.usage.resume()

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ask it to end, as a deployment would; kill it when it does not."""
        with suppress(psutil.NoSuchProcess):
            self.usage.resume()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._log = [*self._log[-LOG_LINES:], line.rstrip()]
                self._is_ready = self._is_ready or re.search(self._ready, line.rstrip()) is not None
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class Fleet:
    """The worker processes of one system on one database."""

    def __init__(self, system: System, url: str, stack: ExitStack) -> None:
        self._system = system
        self._url = url
        self._stack = stack

    def start(self, name: str, *, url: str | None = None, **options: Any) -> WorkerProcess:
        """Start a worker and wait until it is ready; it ends with the fleet."""
        return self.launch(name, url=url, **options).ready()

    def launch(self, name: str, *, url: str | None = None, **options: Any) -> WorkerProcess:
        """Start a worker."""
        worker = WorkerProcess(self._system.launch(url or self._url, name, **options))
        self._stack.callback(worker.end)
        return worker


@contextmanager
def fleet(system: System, url: str) -> Iterator[Fleet]:
    """Worker processes that end with the block."""
    with ExitStack() as stack:
        yield Fleet(system, url, stack)
