"""Worker processes for tests: real ones, which run the `affinity` command and are stopped with real signals.

They are forked by a process that has imported the command already, in a fiftieth of the time that a new interpreter
takes. `tests/cli/test_processes.py` starts the command as a user would.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from affinity.cli import main
from tests.support.activity_calls import VARIABLE, ActivityCalls

ROOT = Path(__file__).parent.parent.parent
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
"""Short leases, so that a takeover takes seconds; the same rules hold as with the defaults."""


class WorkerProcess:
    """A worker in a process of its own; its log is read as it comes."""

    def __init__(
        self,
        url: str,
        name: str,
        app: str = "tests.support.apps:app",
        calls: ActivityCalls | None = None,
        *,
        root: Path = ROOT,  # where its code of affinity is
        anew: bool = False,  # in an interpreter of its own, for what only a new program reads
        flags: Sequence[str] = (),  # of its command
        **options: Any,
    ) -> None:
        values = FAST | {"worker_node_id": name} | options
        environment = os.environ | {f"AFFINITY_{key.upper()}": str(value) for key, value in values.items()}
        if calls is not None:
            environment[VARIABLE] = calls.path
        self.url = url
        self.name = name
        self.log: list[str] = []
        self._changed = threading.Condition()
        reader, writer = FORKS.Pipe(duplex=False)
        arguments = ["--url", url, "worker", app, *flags]
        self._process = FORKS.Process(target=_run, args=(arguments, environment, root, anew, writer))
        self._process.start()
        writer.close()
        self._reader = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reader.start()

    def _read(self, log: Connection) -> None:
        with log, open(log.fileno(), closefd=False) as lines:
            for line in lines:
                with self._changed:
                    self.log.append(line.rstrip())
                    self._changed.notify_all()
        with self._changed:
            self.log.append("(end of log)")
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

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
        with suppress(ProcessLookupError):  # it may end at this moment
            if self._process.is_alive():
                os.kill(self.pid, number)

    def pause(self) -> None:
        """SIGSTOP, between two transactions: in the middle of one, an SQLite file would stay locked for everybody until
        the process goes on (`docs/understand/leases.md`), which is not what tests of leases are about.
        """
        while True:
            self.send(signal.SIGSTOP)
            self._wait_until_stopped()
            if _is_writable(self.url):
                return
            self.send(signal.SIGCONT)

    def _wait_until_stopped(self) -> None:
        """A thread that waits for the disk stops when the disk has answered, and may take a lock before."""
        end = time.monotonic() + PATIENCE
        while not _is_stopped(self.pid):
            assert time.monotonic() < end, f"{self.name} does not stop"
            time.sleep(0.001)

    def wait(self) -> int:
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, f"{self.name} did not end:\n" + "\n".join(self.log)
        self._reader.join(PATIENCE)
        return self._process.exitcode

    def end(self) -> None:
        self.send(signal.SIGCONT)
        self._process.kill()
        self.wait()


FORKS: Final = multiprocessing.get_context("forkserver")
"""Forks processes from a server process that has imported the modules of a worker."""

_POLLS: Final = threading.Lock()
_poll: Final = popen_forkserver.Popen.poll


def _poll_alone(popen: popen_forkserver.Popen, flag: int = os.WNOHANG) -> int | None:
    """A start asks all processes for their end, beside a thread that waits for one: of two that read an exit code, the
    second would find 255.
    """
    with _POLLS:
        return _poll(popen, flag)


popen_forkserver.Popen.poll = _poll_alone  # type: ignore[method-assign, assignment]
FORKS.set_forkserver_preload(
    [
        "affinity.cli.worker",
        "affinity.agent",
        "affinity.testing",
        "affinity.provider.postgres",
        "affinity.provider.sqlite",
        "tests.support.apps",
        "uvloop",
        "anyio._backends._asyncio",
        "opentelemetry.trace",
        "tests.support.frozen",
    ]
)


def _run(arguments: Sequence[str], environment: Mapping[str, str], root: Path, anew: bool, log: Connection) -> None:
    """The `affinity` command, in the process that was forked for it."""
    end_with_the_tests()
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    os.dup2(log.fileno(), 2)
    log.close()
    if anew or root != ROOT:
        other = {**environment, "PYTHONPATH": str(ROOT)}
        os.execve(sys.executable, [sys.executable, "-m", "affinity", *arguments], other)  # noqa: S606
    main(arguments)


def end_with_the_tests() -> None:
    """This process, which was forked for them, must not outlive them, however they end."""
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    # Each process that it forks is given the means to keep the server alive; this one is to end with it.
    os.close(vars(forkserver)["_forkserver"]._forkserver_alive_fd)


def _is_stopped(pid: int) -> bool:
    """Whether all threads of the process are; True too where there is no /proc to look at."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


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
    """Starts workers, and ends workers that a test left running."""

    def __init__(self, url: str, calls: ActivityCalls | None = None) -> None:
        self.url = url
        self._calls = calls
        self._all: list[WorkerProcess] = []

    def start(self, name: str, app: str = "tests.support.apps:app", **options: Any) -> WorkerProcess:
        """A worker that has registered and runs."""
        return self.launch(name, app, **options).ready()

    def launch(self, name: str, app: str = "tests.support.apps:app", **options: Any) -> WorkerProcess:
        """A worker that may still be starting."""
        worker = WorkerProcess(self.url, name, app, self._calls, **options)
        self._all.append(worker)
        return worker

    def running(self) -> list[WorkerProcess]:
        """The workers whose process has not ended."""
        return [worker for worker in self._all if worker.is_running]

    def end(self) -> None:
        for worker in self._all:
            worker.end()


@contextmanager
def open_workers(url: str, calls: ActivityCalls | None = None) -> Iterator[Workers]:
    """Workers on one database. ``calls``: where their activities call the test; by default the environment says it."""
    workers = Workers(url, calls)
    try:
        yield workers
    finally:
        workers.end()
