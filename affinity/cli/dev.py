"""``affinity dev``: a worker that starts again when the code changes or it is killed, and the console beside it.

The worker is a process of its own, as is the check of new code, so that each has the code as it is in the files. Both
are in process groups of their own: Ctrl-C at the terminal comes here only.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import click
from anyio.abc import Process

from affinity.cli.help import FAILED, NO_DATABASE, UNKNOWN
from affinity.cli.output import counted
from affinity.cli.shell import Shell, command, current_user
from affinity.composed.options import RuntimeOptions
from affinity.errors import InvalidOptions, ProviderError
from affinity.provider import migrate
from affinity_workflows import SIGNALLED

POLL_SECONDS: Final = 0.3
"""Between two looks at the files. A change is complete when the next look finds no other one."""

STUCK_SECONDS: Final = 10.0
"""For so long beyond its drain, or a second Ctrl-C, a worker may take to end. One whose event loop is blocked ends by
itself only when its lease is given up, and not at all where its code never gives back the interpreter.
"""

CONSOLE: Final = ("jinja2", "starlette", "uvicorn")
"""What the extra ``console`` installs."""

NO_CONSOLE: Final = "the console is not installed: pip install 'affinity-workflows[console]'"

SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Files: TypeAlias = Mapping[str, tuple[int, int]]
"""The time of the last change, and the size, of each file."""


@command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--console/--no-console", default=None, help="Show the console beside it  [default: if it is installed]")
def dev(shell: Shell, *, target: str, console: bool | None) -> None:
    """Run a worker for development: it starts again when a Python file below the working directory changes.

    It prints the address of a console, on this machine, which opens in any browser until the command ends. There you
    may do everything, and a button kills the worker with SIGKILL: another one starts, and continues its work. The
    console needs an extra: pip install 'affinity-workflows[console]'.

    Before new code starts, all open instances are replayed against it, and the instances are listed that it would
    suspend. Then the running activities of the old worker end (AFFINITY_DRAIN_TIMEOUT), and the new one starts. Code
    that cannot be imported does not start: the error is printed, and the old worker goes on.

    Options of `affinity worker` are given by the environment. Ctrl-C drains the worker, and a second one stops it
    immediately. Exit code 130 after Ctrl-C, 0 after SIGTERM or SIGHUP.

    Examples:
      affinity dev support:app
      affinity dev support:app --no-console
      AFFINITY_LOG_LEVEL=debug affinity dev support:app --url sqlite:///dev.db
    """
    is_installed = all(map(find_spec, CONSOLE))
    if console and not is_installed:
        raise InvalidOptions(NO_CONSOLE)
    if console is None and not is_installed:
        _say(NO_CONSOLE)
    running = DevWorker(target, shell.url)
    ended_by = anyio.run(partial(running.run, console=is_installed and console is not False))
    shell.show({"signal": ended_by.name, "starts": running.starts}, lambda: None)
    if ended_by is signal.SIGINT:
        click.get_current_context().exit(SIGNALLED + ended_by)


class DevWorker:
    """The process of the worker, and what becomes of it when files change.

    Args:
        target: ``MODULE:APP``.
        url: of the database.
    """

    def __init__(self, target: str, url: str) -> None:
        self._target, self._url = target, url
        # A start under the name of a killed worker has its sessions without waiting for the end of its lease.
        self._name = os.environ.get("AFFINITY_WORKER_NODE_ID") or f"dev-{secrets.token_hex(4)}"
        self._worker: Process | None = None
        self._patience: anyio.CancelScope | None = None  # the wait for the end of the worker
        self.starts: int = 0
        """Starts of the worker."""

    async def run(self, *, console: bool) -> signal.Signals:
        """Run until a signal comes, and the worker has ended; returns the signal. With ``console``, serve it too."""
        received: list[signal.Signals] = []
        watching = anyio.CancelScope()
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive, signals, received, watching)
                async with self._console() if console else nullcontext() as address:
                    with watching:
                        with suppress(ProviderError):  # which the worker reports
                            await migrate(self._url)  # so that another terminal may begin
                        if address is not None:
                            _say(f"the console: {address}")
                        await self._follow()
                await self._end()
                tasks.cancel_scope.cancel()
        return received[0]

    async def _receive(
        self, signals: AsyncIterator[signal.Signals], received: list[signal.Signals], watching: anyio.CancelScope
    ) -> None:
        async for number in signals:
            if received and number is signal.SIGINT:
                self._send(number)
                if self._patience is not None:
                    self._patience.deadline = min(self._patience.deadline, anyio.current_time() + STUCK_SECONDS)
            received.append(number)
            watching.cancel()

    def _console(self) -> AbstractAsyncContextManager[str]:
        # By its name, as commands are loaded: an extra, which is above the command line.
        found: AbstractAsyncContextManager[str] = import_module("affinity.console.dev").serve_dev(
            self._url, self._kill, current_user()
        )
        return found

    def _kill(self) -> bool:
        """Kill the worker; False: none runs."""
        if not self._is_running():
            return False
        self._send(signal.SIGKILL)
        return True

    async def _follow(self) -> None:
        """Start the worker, and again with each change, and when it was killed."""
        seen: Files | None = None
        ended: Process | None = None  # the worker whose end was shown
        while True:
            now = find_files()
            if now != seen:
                if seen is not None:
                    _say(f"{_describe(seen, now)} changed")
                seen = await _settled(now)
                await self._start()
            elif self._worker is not ended and not self._is_running():
                ended = self._worker
                if ended is not None and ended.returncode == -signal.SIGKILL:
                    _say("the worker was killed: another one starts")
                    await self._open()
                else:
                    _say("the worker has ended: waiting for a change")
            await anyio.sleep(POLL_SECONDS)

    async def _start(self) -> None:
        if not await self._may_start():
            _say("the old worker goes on" if self._is_running() else "waiting for a change")
            return
        if self._is_running():
            _say("the running work of the old worker ends")
        await self._end()
        await self._open()

    async def _open(self) -> None:
        with anyio.CancelScope(shield=True):  # there is no process without its place in `_worker`
            self._worker = await anyio.open_process(self._command("worker"), stdout=None, stderr=None, **self._options)
        self.starts += 1

    async def _may_start(self) -> bool:
        """Whether the code can be imported. Prints why not, or which instances it would suspend."""
        check = self._command("replay", "--sample", "none")
        done = await anyio.run_process(check, check=False, **self._options)
        if done.returncode == FAILED:
            _say(f"the new code would suspend instances\n\n{done.stdout.decode().strip()}\n")
        elif done.returncode not in {0, UNKNOWN, NO_DATABASE}:  # no open instance; or what the worker will say
            click.echo(done.stderr.decode().strip(), err=True)
            return False
        return True

    async def _end(self) -> None:
        """End the worker, also one that cannot."""
        if self._worker is None or not self._is_running():
            return
        self._send(signal.SIGTERM)
        drain = RuntimeOptions.from_environment().drain_timeout
        with anyio.CancelScope(deadline=anyio.current_time() + drain + STUCK_SECONDS) as self._patience:
            await self._worker.wait()
        if self._patience.cancelled_caught and self._is_running():
            _say("the worker does not end, as its event loop is blocked: it is killed")
            self._send(signal.SIGKILL)
            await self._worker.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._worker is not None:
            with suppress(ProcessLookupError):
                self._worker.send_signal(number)

    def _is_running(self) -> bool:
        return self._worker is not None and self._worker.returncode is None

    def _command(self, name: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "affinity", name, self._target, *options]

    @property
    def _options(self) -> dict[str, Any]:
        # A compiled file is of a second and a size, which two versions of a source may have.
        environment = os.environ | {
            "AFFINITY_URL": self._url,
            "AFFINITY_WORKER_NODE_ID": self._name,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {"stdin": subprocess.DEVNULL, "env": environment, "start_new_session": True}


def find_files() -> Files:
    """The Python files below the working directory, without environments and hidden folders."""
    found: dict[str, tuple[int, int]] = {}
    for folder, folders, names in os.walk("."):
        folders[:] = [each for each in folders if not _is_skipped(Path(folder, each))]
        for name in names:
            if name.endswith(".py"):
                with suppress(FileNotFoundError):
                    about = Path(folder, name).stat()
                    found[str(Path(folder, name))] = about.st_mtime_ns, about.st_size
    return found


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in SKIPPED or (folder / "pyvenv.cfg").exists()


async def _settled(files: Files) -> Files:
    """The files once they stay as they are: an editor, or a checkout, writes several."""
    while True:
        await anyio.sleep(POLL_SECONDS)
        now = find_files()
        if now == files:
            return now
        files = now


def _describe(before: Files, now: Files) -> str:
    names = sorted({name for name, _ in before.items() ^ now.items()})
    first, more = names[0], len(names) - 1
    return f"{first} and {counted(more, 'other file')}" if more else first


def _say(text: str) -> None:
    click.echo(f"dev: {text}", err=True)
