"""``affinity stop``: drain and end a worker by its process id, and wait until it has ended.

A process id is easily a wrong one, and SIGTERM ends most programs. So the database is asked whether it is a worker.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Final, Protocol

import click

from affinity.cli.help import REFUSED, TIMED_OUT, UNKNOWN
from affinity.cli.shell import Shell, command, with_client
from affinity.errors import ProviderError

INIT: Final = 1
"""The first process of a container. It ignores signals that it has no handler for, as during its imports, so SIGTERM is
sent again: a further one changes nothing in a worker that drains. It ends any other process that has no handler.
"""

SIGNAL_SECONDS: Final = 1.0
"""Between two of them."""

POLL_SECONDS: Final = 0.05
"""Between two looks for a process, where the system has no descriptors of processes."""


@command()
@click.argument("pid", type=click.IntRange(1, 2**31 - 1))
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait for its end  [default: forever]")
@click.option(
    "--force", is_flag=True, help="Ask no database: the process is ended whatever it is, also before it has registered."
)
def stop(shell: Shell, *, pid: int, timeout: float | None, force: bool) -> None:
    """Drain and end the worker whose process id is PID (in a container, 1), and wait until it has ended.

    It sends SIGTERM, which begins the drain: running activities end or are given back, and sessions are released, or
    left to the worker's next start for restart_grace. The process must be a live worker of the database on this host,
    unless --force is given. It needs no shell or other program in the image. Ctrl-C ends the waiting; the drain goes
    on. Exit code 5 when there is no such process, 4 after --timeout.

    Examples:
      affinity stop 4711
      kubectl exec affinity-workers-0 -- affinity stop 1     # its container starts again
    """
    process = _find(pid)
    if not force:
        _check_worker(shell, pid)
    ended = _end(process, pid, math.inf if timeout is None else timeout)
    shell.show({"pid": pid, "ended": ended}, lambda: None)
    if not ended:
        click.echo(f"Error: process {pid} has not ended after {timeout:g} s; it drains on", err=True)
        click.get_current_context().exit(TIMED_OUT)


def end_process(pid: int, timeout: float) -> bool:
    """Send SIGTERM to a process and wait until it has ended; False: it has not, after ``timeout`` seconds.

    Raises:
        click.ClickException: there is no such process, or it is another user's.
    """
    return _end(_find(pid), pid, timeout)


def _check_worker(shell: Shell, pid: int) -> None:
    """Check that the process is a live worker of the database on this host."""
    host = socket.gethostname()
    try:
        workers = with_client(shell, lambda client: client.workers())
    except ProviderError:
        click.echo(f"It is not known whether process {pid} is a worker; --force asks no database", err=True)
        raise
    local = [each for each in workers if each.alive and each.labels.get("host") == host]
    here = {each.labels.get("pid"): each.worker_id for each in local}
    if str(pid) not in here:
        found = ", ".join(f"{one} ({name})" for one, name in sorted(here.items(), key=str)) or "none"
        raise _Refused(
            f"process {pid} is no live worker of this database on this host, {host}; those here are: {found}. --force "
            "ends it all the same"
        )


def _find(pid: int) -> _Process:
    try:
        return _open(pid)
    except ProcessLookupError:
        raise _NoProcess(f"there is no process {pid}") from None


def _end(process: _Process, pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    try:
        process.terminate()
    except ProcessLookupError:
        raise _NoProcess(f"there is no process {pid}") from None
    except PermissionError:
        raise _Refused(f"process {pid} is another user's") from None
    with suppress(ProcessLookupError):  # it has ended meanwhile
        while not process.wait(max(0.0, min(SIGNAL_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            if pid == INIT:
                process.terminate()
    return True


class _NoProcess(click.ClickException):
    exit_code = UNKNOWN


class _Refused(click.ClickException):
    exit_code = REFUSED


class _Process(Protocol):
    def terminate(self) -> None:
        """Send SIGTERM; ProcessLookupError: it has ended."""

    def wait(self, seconds: float) -> bool:
        """Whether it ends within this time."""


class _Descriptor:
    """A process by a descriptor of Linux, which never means a later process of the same id."""

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)

    def terminate(self) -> None:
        signal.pidfd_send_signal(self._file, signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._file], [], [], seconds)[0])


class _Id:
    """A process by its id. One that its parent has not waited for yet counts as running."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.kill(self._pid, 0)
            time.sleep(POLL_SECONDS)
        return False


def _open(pid: int) -> _Process:
    try:
        return _Descriptor(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # another system, or a sandbox that does not have the call
        return _Id(pid)
