"""Worker processes for tests: real ones, started as a user would, stopped with real signals."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.board import VARIABLE, Board

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0
"""Seconds after which a test that waits for a process is broken."""

FAST = {
    "worker_lease_timeout": 2.0,
    "work_item_lock_timeout": 4.0,
    "session_lock_timeout": 60.0,
    "poll_interval": 0.3,
    "stall_timeout": 10.0,
    "drain_timeout": 20.0,
}
"""Short leases, so that a takeover takes seconds; the rules are those of the defaults."""


class WorkerProcess:
    """A worker in a process of its own; its log is read as it comes."""

    def __init__(
        self,
        url: str,
        name: str,
        app: str = "tests.apps:app",
        board: Board | None = None,
        root: Path = ROOT,  # where its code of affinity is
        **options: Any,
    ) -> None:
        values = FAST | {"worker_node_id": name} | options
        environment = os.environ | {f"AFFINITY_{key.upper()}": str(value) for key, value in values.items()}
        if board is not None:
            environment[VARIABLE] = board.path
        self.url = url
        self.name = name
        self.log: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "affinity", "--url", url, "worker", app],
            cwd=root,
            env=environment | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.log.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self.log.append("(end of log)")
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_log(self, pattern: str) -> str:
        """The first line of the log, so far or to come, that matches."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._find(pattern) or self._find(r"\(end of log\)"), PATIENCE)
            line = self._find(pattern)
        assert line, f"{self.name} never logged {pattern!r} (found {found!r}):\n" + "\n".join(self.log)
        return line

    def _find(self, pattern: str) -> str | None:
        return next((line for line in self.log if re.search(pattern, line)), None)

    def ready(self) -> WorkerProcess:
        self.wait_log("running app")
        return self

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP, between two transactions: in the middle of one, an SQLite file would stay locked for everybody until
        the process goes on (`docs/leases.md`), which is not what tests of leases are about.
        """
        while True:
            self.send(signal.SIGSTOP)
            if _is_writable(self.url):
                return
            self.send(signal.SIGCONT)

    def wait(self) -> int:
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()


def _is_writable(url: str) -> bool:
    if not url.startswith("sqlite:"):
        return True
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


class Workers:
    """Starts workers, and ends those that a test left running."""

    def __init__(self, url: str, board: Board | None = None) -> None:
        self.url = url
        self._board = board
        self._all: list[WorkerProcess] = []

    def start(self, name: str, app: str = "tests.apps:app", **options: Any) -> WorkerProcess:
        """A worker that has registered and runs."""
        return self.launch(name, app, **options).ready()

    def launch(self, name: str, app: str = "tests.apps:app", **options: Any) -> WorkerProcess:
        """A worker that may still be starting."""
        worker = WorkerProcess(self.url, name, app, self._board, **options)
        self._all.append(worker)
        return worker

    def end(self) -> None:
        for worker in self._all:
            worker.end()


@contextmanager
def open_workers(url: str, board: Board | None = None) -> Iterator[Workers]:
    """Workers on one database. Their activities ask that board; without one, the one in the environment."""
    workers = Workers(url, board)
    try:
        yield workers
    finally:
        workers.end()
