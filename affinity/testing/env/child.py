"""The process of one worker of an `Env`: ``python -m affinity.testing.env.child SOCKET``; see `ProcessWorker`.

It ends with the other end of the socket.
"""

from __future__ import annotations

import functools
import importlib
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio

from affinity import errors
from affinity.composed.app import App
from affinity.composed.options import RuntimeOptions
from affinity.errors import AffinityError, InvalidApp
from affinity.provider.contract import Provider
from affinity.provider.timeline import Timeline
from affinity.provider.urls import sqlite_path
from affinity.testing.env.peer import Fields, Peer, PeerGone
from affinity.testing.env.traffic import LOOK_SECONDS, Commit, Traffic, steps
from affinity.testing.env.workers import EnvWorker, OpenProvider, names_in, pass_idle_time
from affinity.worker.services import Timing


class Child:
    """One worker, and what its env asks of it."""

    def __init__(self) -> None:
        self.peer: Peer = Peer(self._answer)
        self._traffic = Traffic()
        self._traffic.on_commit = self._ask
        self._started = anyio.Event()
        self._worker: EnvWorker
        self._stack = AsyncExitStack()  # of the worker, while it is held
        self._now = 0.0
        self._round = anyio.Event()  # at each jump

    async def report(self) -> None:
        """Say what changes, until the env has ended."""
        await self._started.wait()
        said: Fields = {}
        with suppress(PeerGone):
            while True:
                if (status := self._status()) != said:
                    said = status
                    await self.peer.ask("status", **status)
                await self._traffic.wait(LOOK_SECONDS)
                await steps()

    def _status(self) -> Fields:
        worker = self._worker
        return {
            "changes": self._traffic.changes,
            "has_unwritten": self._traffic.in_flight > 0 or worker.has_unwritten,
            "runs_code": worker.runs_code,
            "is_alive": worker.is_alive,
            "is_recovering": worker.is_recovering,
        }

    async def _answer(self, name: str, fields: Fields) -> Fields:
        if name == "start":
            return await self._start(**fields)
        if name == "hold":
            self._traffic.stop()
            await self._stack.enter_async_context(self._worker.held())
        elif name == "go_on":
            await self._go_on(fields["now"])
        elif name == "sweep":
            await self._worker.sweep()
        elif name == "drain":
            await self._worker.__aexit__(None, None, None)
        elif name == "pause":
            self._worker.pause()
        elif name == "resume":
            await self._worker.resume()
        elif name == "look":
            self._worker.look()
            while not self._worker.has_looked:
                await self._traffic.wait(LOOK_SECONDS)
        return self._status()

    async def _start(self, app: str, names: Sequence[str], url: str, options: Fields, now: float) -> Fields:
        self._now = now
        try:
            self._worker = EnvWorker(
                load_app(app, names),
                RuntimeOptions(**options),
                open_provider=_opener(url),
                traffic=self._traffic,
                timing=Timing(pause=self._pause, monotonic=lambda: self._now),
            )
            await self._worker.__aenter__()
        except AffinityError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        self._started.set()
        return {"incarnation": self._worker.identity.incarnation, **self._status()}

    async def _go_on(self, now: float) -> None:
        seconds, self._now = now - self._now, now
        await self._stack.aclose()
        self._worker.pass_time(seconds)
        pass_idle_time(self._worker.runtime.sessions.listeners, seconds)
        self._traffic.go_on()
        before, self._round = self._round, anyio.Event()
        before.set()

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._round.wait()

    async def _ask(self, commit: Commit, done: bool) -> None:
        """Let the env count a commit; it may end this process meanwhile, or have the commit fail."""
        answer = await self.peer.ask("commit", number=commit.number, verb=commit.verb, what=commit.what, done=done)
        if (error := answer.get("error")) is not None:
            raise getattr(errors, error)(answer["message"])


def load_app(target: str, names: Sequence[str]) -> App:
    """The app at ``MODULE:ATTRIBUTE``, or what the function there returns.

    Raises:
        InvalidApp: there is none, or it has not these activities and orchestrations.
    """
    module, _, attribute = target.partition(":")
    try:
        found: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
        app = found if isinstance(found, App) else found()
    except Exception as error:  # of the code of the application
        raise InvalidApp(f"the process of a worker cannot import {target}: {error!r}") from error
    if not isinstance(app, App):
        raise InvalidApp(f"{target} gives {app!r}, not an App")
    if missing := set(names) - set(names_in(app)):
        raise InvalidApp(
            f"in the process of a worker {target} lacks {', '.join(sorted(missing))}; have a function at the top level"
            " of a module return the whole app"
        )
    return app


def _opener(url: str) -> OpenProvider:
    if (path := sqlite_path(url)) is None:
        from affinity.provider.postgres import PostgresProvider  # imported late, as by `open_provider`

        async def open_schema(timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider:
            return await PostgresProvider.open(
                url, application_name="affinity env", timeline=timeline, one_connection=one_connection
            )

        return open_schema
    from affinity.provider.sqlite import SqliteProvider
    from affinity.testing.env.sqlite import StillClock

    clock = StillClock(path)

    async def open_file(timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider:
        return await SqliteProvider.open(path, clock=clock, timeline=timeline)

    return open_file


async def main(number: int) -> None:
    """Serve until the other end of the socket is closed; then end without a word."""
    child = Child()
    await child.peer.open(socket.socket(fileno=number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.report)
        await child.peer.run()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]))
