"""An `Env` each of whose workers is a process, so that SIGKILL can end it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import reduce
from types import TracebackType
from typing import Any, NoReturn

import anyio
import anyio.to_thread

from affinity.composed.app import App
from affinity.composed.options import RuntimeOptions
from affinity.errors import AffinityError, InvalidApp, InvalidInput, ProviderError
from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity.tasks import BackgroundTask
from affinity.testing.env.environment import Env
from affinity.testing.env.peer import Fields, Peer, PeerFailed, PeerGone
from affinity.testing.env.traffic import Commit, Traffic
from affinity.testing.env.workers import WorkerOfEnv, names_in


class ProcessWorker:
    """One worker in a process of its own: see `EnvWorker`, and `affinity.testing.env.child` for the other side."""

    def __init__(
        self,
        app: str,
        options: RuntimeOptions,
        *,
        names: Sequence[str],
        url: str,
        traffic: Traffic,
        now: Callable[[], float],
        on_end: Callable[[Exception], None],
    ) -> None:
        self._options = options
        self._setup = {"app": app, "names": names, "url": url}
        self._traffic, self._now, self._on_end = traffic, now, on_end
        self.is_abandoned = self._is_killed = False
        self.is_paused: bool = False
        """See `EnvWorker`."""
        self._is_resuming = False
        self._peer = Peer(self._answer)
        self._status: Fields = {
            "changes": 0,
            "is_alive": False,
            "is_recovering": False,
            "runs_code": False,
            "has_unwritten": False,
        }
        self._commits: dict[int, Commit] = {}  # by their numbers in the process
        self._wanted = self._done = 0  # looks for work: asked for, and answered
        self._asking: set[asyncio.Task[None]] = set()
        self._failure: PeerFailed | None = None

    async def __aenter__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 -- it takes a millisecond; a module of ours
                [sys.executable, "-m", "affinity.testing.env.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        await self._peer.open(ours)
        self._reading = BackgroundTask(self._read)
        options = self._options.model_dump(mode="json", exclude_unset=True)
        try:
            started = await self._peer.ask("start", options=options, now=self._now(), **self._setup)
        except PeerGone:
            started = {"error": f"its process has ended with {await self._end()}"}
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.crash()
            raise
        if "error" in started:
            await self.crash()
            raise InvalidApp(started["error"])
        self.identity: WorkerIdentity = WorkerIdentity(
            worker_id=self._options.worker_node_id, incarnation=Incarnation(started["incarnation"])
        )
        self._note(started)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_abandoned:  # else the env ends too: nothing is to be drained
            await self._ask("drain")
        await self.crash()

    async def _read(self) -> None:
        await self._peer.run()
        if self._status["is_alive"] and not self._is_killed:
            self._status = {**self._status, "is_alive": False, "is_recovering": False}
            self._on_end(AffinityError(f"the process of a worker has ended by itself, with {await self._end()}"))

    async def _end(self) -> int:
        return await anyio.to_thread.run_sync(self._process.wait)

    # -- what it says

    async def _answer(self, name: str, fields: Fields) -> Fields:
        if name == "status":
            self._note(fields)
            return {}
        assert name == "commit"
        try:
            await self._commit(**fields)
        except ProviderError as error:
            return {"error": type(error).__name__, "message": str(error)}
        return {}

    async def _commit(self, number: int, verb: str, what: str, *, done: bool) -> None:
        if done:
            await self._traffic.end_commit(self._commits[number])
        else:
            name = self._options.worker_node_id
            self._commits[number] = await self._traffic.begin_described_commit(name, verb, what)

    def _note(self, status: Fields) -> None:
        self._traffic.changes += status["changes"] - self._status["changes"]
        self._status = status
        self._traffic.notify()

    @property
    def has_crashed(self) -> bool:
        """Whether it was killed."""
        return self._is_killed

    @property
    def is_alive(self) -> bool:
        """See `EnvWorker`."""
        return not (self._is_killed or self.is_paused) and bool(self._status["is_alive"])

    @property
    def is_recovering(self) -> bool:
        """See `EnvWorker`."""
        says_so = not self.is_paused and bool(self._status["is_recovering"])
        return not self._is_killed and (self._is_resuming or says_so)

    @property
    def runs_code(self) -> bool:
        """See `EnvWorker`."""
        return bool(self._status["runs_code"])

    @property
    def has_unwritten(self) -> bool:
        """See `EnvWorker`; or a call of it is in flight."""
        return bool(self._status["has_unwritten"])

    @property
    def has_looked(self) -> bool:
        """See `EnvWorker`."""
        return self._done == self._wanted

    # -- what it is asked

    def look(self) -> None:
        """Look for work now."""
        self._wanted += 1
        self._spawn(self._look(self._wanted))

    def _spawn(self, asking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _look(self, number: int) -> None:
        await self._ask_aside("look")
        self._done = max(self._done, number)
        self._traffic.notify()

    async def _ask_aside(self, name: str) -> None:
        """Ask for what no caller awaits: a failure ends the waits of the client, and the next question."""
        try:
            await self._ask(name)
        except PeerFailed as error:
            self._failure = error
            self._on_end(error)

    async def sweep(self) -> None:
        """One round of maintenance."""
        await self._ask("sweep")

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Within it the process calls its database no more; then it goes on with the new time."""
        await self._ask("hold")
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._ask("go_on", now=self._now())

    def pass_time(self, seconds: float) -> None:
        """Its process has done so, at the end of `held`."""

    def pause(self) -> None:
        """See `EnvWorker`."""
        self.is_paused = True
        self._spawn(self._ask_aside("pause"))

    async def resume(self) -> None:
        """See `EnvWorker`."""
        self._is_resuming = True
        try:
            await self._ask("resume")
            self.is_paused = False
        finally:
            self._is_resuming = False

    async def _ask(self, name: str, **fields: Any) -> None:
        if self._failure is not None:
            raise self._failure
        with suppress(PeerGone):
            self._note(await self._peer.ask(name, **fields))

    # -- its end

    def cut(self) -> None:
        """Kill it."""
        self._is_killed = self.is_abandoned = True
        self._process.kill()

    async def crash(self) -> None:
        """Kill it, and wait for its end."""
        self.cut()
        await self._end()
        await self._reading.join()


class ProcessEnv(Env):
    """An `Env` whose workers are processes; each imports its app from ``target``, see `find_app`."""

    def __init__(
        self,
        app: App,
        target: str,
        *,
        url: str | None = None,
        workers: int = 1,
        options: RuntimeOptions | None = None,
        max_jump: timedelta = timedelta(days=3650),
    ) -> None:
        super().__init__(app, url=url, workers=workers, options=options, max_jump=max_jump)
        self._target = target

    def _make_worker(self, options: RuntimeOptions) -> WorkerOfEnv:
        return ProcessWorker(
            self._target,
            options,
            names=names_in(self._app),
            url=self._database.url,
            traffic=self._traffic,
            now=self._database.now,
            on_end=self._fail_waits,
        )

    def _fail_waits(self, error: Exception) -> None:
        self.client._fail_waits(error)

    def fake(self, activity: Callable[..., Any] | str, outcome: Any = None, *, times: int | None = None) -> NoReturn:
        """Refused: the code of the workers is in other processes.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(f"{activity!r} cannot be faked in the process of a worker: see kills= of crash_matrix")

    def fail_calls(self, n: int) -> NoReturn:
        """Refused: the calls of the workers are in other processes.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(f"fail_calls({n}) does not reach the process of a worker: see kills= of crash_matrix")


def find_app(app: App | Callable[[], App]) -> str:
    """Where another process finds the app, or the function that returns it: ``MODULE:ATTRIBUTE``.

    Raises:
        InvalidInput: no module has it at its top level.
    """
    name = getattr(app, "__qualname__", None)
    if name is not None and _is_at(app, getattr(app, "__module__", ""), name):
        return f"{app.__module__}:{name}"
    for module, found in list(sys.modules.items()):
        for attribute, value in list(vars(found).items()) if module != "__main__" and found is not None else ():
            if value is app:
                return f"{module}:{attribute}"
    raise InvalidInput(
        "worker processes that are killed import the app, or the function that returns it, and no module has it at its"
        " top level: put it there, not into __main__, or kill none (kills=0)"
    )


def _is_at(value: object, module: str, name: str) -> bool:
    try:
        return module != "__main__" and reduce(getattr, name.split("."), sys.modules[module]) is value
    except (KeyError, AttributeError):
        return False
