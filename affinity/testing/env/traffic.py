"""The calls that the parts of an `Env` make to its database: how many are in flight, and which changed anything."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Final, NamedTuple, TypeAlias, cast

import anyio
import anyio.to_thread

from affinity.errors import ConnectionLost, DatabaseFailure, QuotaExceeded
from affinity.provider.contract import Provider
from affinity.testing.env.commits import describe_commit

STEPS: Final = 12
"""Steps of the event loop after which code that waits for nothing has made its next call, or waits."""

LOOK_SECONDS: Final = 0.02
"""Between two looks at what nothing announces."""

_READS: Final = ("get_", "list_", "read_", "check_", "measure_", "count_", "find_", "load", "desired_")
"""How the names of calls begin that only read."""

_ASIDE: Final = frozenset({"renew_worker", "renew_work_item_lock", "notify_changes", "notify_workers", "get_load"})
"""Hints, renewals and reports: nothing follows from them."""

_RENEWALS: Final = frozenset({"renew_worker", "register_worker"})
"""Calls after which a worker has its lease."""

HOLD_SECONDS: Final = 0.005
"""Between two looks of a lease renewer at whether its worker stands still: it has an event loop of its own."""

_FETCHES: Final = frozenset({"fetch_work_item", "fetch_orchestration_item"})
"""Calls whose result says when the next row becomes due."""

COMMITS: Final = frozenset(
    {
        "commit_turn",
        "ack_work_item",
        "abandon_work_item",
        "suspend_instance",
        "save",
        "charge_limits",
        "close_limits",
    }
)
"""Calls by which a worker writes what its code has done; ``save``: of session states."""


class Commit(NamedTuple):
    """One call of a worker that commits."""

    number: int  # from 1, over all workers of the env
    worker_id: str
    verb: str
    what: str  # instances and activities, for people; "" while nothing watches commits

    def __str__(self) -> str:
        return f"{self.verb} by {self.worker_id}: {self.what}"


OnCommit: TypeAlias = Callable[[Commit, bool], Awaitable[None]]
"""Called before a commit of a worker (False) and after it (True)."""

BROUGHT: Final[dict[str, Callable[[Any], object]]] = {
    "fetch_work_item": lambda found: found.items or found.claim_lost,
    "fetch_orchestration_item": lambda found: found.items or found.claim_lost,
    "sweep": lambda done: done.rerouted,
    "end_waits": lambda ended: ended.failed or ended.freed,
    "retry_suspended": bool,
    "take_session": bool,
    "release_idle_session": bool,
    "release_unknown_locks": bool,
    "take_unused_resources": bool,
    "report_session_moves": lambda _: False,
    "drain_worker": lambda held: held is None,  # it takes work again
    "prune_journals": lambda _: False,
    "begin_wait": lambda _: False,
    "end_wait": lambda _: False,
    "get_waits": lambda _: False,
    "write_schedules": any,
    "admit": lambda found: found.admitted or found.more,
    "return_slots": bool,
    "declare_limits": lambda _: False,
}
"""Calls that workers repeat: whether one has brought or changed anything."""


class Traffic:
    """The calls on the event loop of one `Env`."""

    def __init__(self) -> None:
        self.in_flight: int = 0
        self.changes: int = 0
        """Calls so far that have brought or changed something, or may have."""
        self.commits: int = 0
        """Commits of workers that have begun."""
        self.turns = 0
        """Turns of instances that workers have sent."""
        self.on_commit: OnCommit | None = None
        """Injects faults: the worker gets its exception for the commit."""
        self.refusals: int = 0
        """Calls of workers that the database is to refuse."""
        self._names: dict[Any, str] = {}  # of the activities that were queued, by key
        self._ended = anyio.Event()
        self._gate: anyio.Event | None = None

    async def begin_commit(self, worker_id: str, verb: str, arguments: Sequence[Any]) -> Commit:
        """Called before each commit: raise the error that is due."""
        what = describe_commit(verb, arguments, self._names) if self.on_commit is not None else ""
        return await self.begin_described_commit(worker_id, verb, what)

    async def begin_described_commit(self, worker_id: str, verb: str, what: str) -> Commit:
        """The same, where the arguments are not at hand."""
        self.commits += 1
        commit = Commit(self.commits, worker_id, verb, what)
        await self.end_commit(commit, done=False)
        return commit

    async def end_commit(self, commit: Commit, *, done: bool = True) -> None:
        """Called after each commit: raise the error that is due."""
        if self.on_commit is not None:
            await self.on_commit(commit, done)

    def refuse(self, name: str) -> None:
        """Called at each call of a worker: raise `DatabaseFailure` while there are refusals left."""
        if self.refusals > 0:
            self.refusals -= 1
            raise DatabaseFailure(f"the test refuses {name}")

    def begin(self) -> None:
        """Count a call that begins."""
        self.in_flight += 1

    def end(self, *, changed: bool) -> None:
        """Count its end."""
        self.in_flight -= 1
        self.changes += changed
        self.notify()

    def notify(self) -> None:
        """End the wait for a call to end."""
        self._ended.set()

    async def wait(self, seconds: float) -> None:
        """Wait until a call has ended, for so long at most."""
        with anyio.move_on_after(seconds):
            await self._ended.wait()
        self._ended = anyio.Event()

    def stop(self) -> None:
        """Hold back all calls that begin, until `go_on`."""
        self._gate = anyio.Event()

    def go_on(self) -> None:
        """Let the calls through that were held back."""
        if self._gate is not None:
            self._gate.set()
        self._gate = None

    async def pass_gate(self) -> None:
        """Wait while calls are held back."""
        while self._gate is not None:
            await self._gate.wait()


class _StoreLost(ConnectionLost):
    """A call of a crashed worker. It is not repeated: a thread of that worker would wait with it, and keep the state of
    its session from the other workers of this process.
    """

    retryable = False


class Link:
    """The link between a worker's code and the database: it can hold calls back, and be cut."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.is_cut: bool = False
        self.is_renewed: bool = False
        """Whether the lease was renewed since the last `go_on`."""
        self.times_resumed: int = 0
        """How often the worker has gone on."""
        self._resumed: anyio.Event | None = None

    @property
    def is_held(self) -> bool:
        """Whether the worker stands still. For any thread."""
        return self._resumed is not None

    def hold(self) -> None:
        """Hold back the calls that begin, and the answers to the others, until `go_on` or `cut`."""
        self._resumed = self._resumed or anyio.Event()

    def go_on(self) -> None:
        """Let held calls through."""
        before, self._resumed = self._resumed, None
        self.is_renewed = False
        self.times_resumed += 1
        if before is not None:
            before.set()

    def cut(self) -> None:
        """Let no call and no answer through from now on."""
        self.is_cut = True
        self.go_on()

    async def wait(self) -> None:
        """Wait while the worker stands still."""
        while self._resumed is not None:
            await self._resumed.wait()

    async def cross(self) -> None:
        """Wait while the worker stands still.

        Raises:
            ConnectionLost: the worker has crashed.
        """
        await self.wait()
        self.check()

    async def cross_from_thread(self) -> None:
        """As `cross`, on another event loop."""
        while self.is_held:  # noqa: ASYNC110 -- an event belongs to one loop
            await anyio.sleep(HOLD_SECONDS)
        self.check()

    def check(self) -> None:
        """Raise `ConnectionLost` once the worker has crashed."""
        if self.is_cut:
            raise ConnectionLost("the worker has crashed")


class _Observed:
    """Forwards everything, and counts the coroutine methods; so for the store of session states in it."""

    def __init__(self, observed: Any, traffic: Traffic, link: Link | None) -> None:
        self._observed = observed
        self._traffic = traffic
        self._link = link

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._observed, name)
        if name == "states":
            found = _ObservedStore(found, self._traffic, self._link)
        elif inspect.iscoroutinefunction(found) and name != "aclose":
            found = self._counted(name, found)
        else:
            return found
        setattr(self, name, found)  # the next look-up does not come here
        return found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        traffic, link, brought = self._traffic, self._link, BROUGHT.get(name)
        commits, aside, reads = name in COMMITS, name in _ASIDE, name.startswith(_READS)
        fetches = name in _FETCHES

        @wraps(call)
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if link is not None:
                await link.cross()
            if aside:
                return await call(*args, **kwargs)
            await traffic.pass_gate()
            traffic.begin()
            changed = not reads
            if name == "commit_turn":
                traffic.turns += len(args[1])
            try:
                commit: Commit | None = None
                if link is not None:
                    traffic.refuse(name)
                    if commits:
                        commit = await traffic.begin_commit(link.worker_id, name, args)
                    link.check()  # again: the worker may have crashed meanwhile
                result = await call(*args, **kwargs)
                if commit is not None:
                    await traffic.end_commit(commit)
                if brought is not None:
                    changed = bool(brought(result))
                if fetches and result.next_due:  # by itself, nothing becomes due: after a jump the workers look
                    result = replace(result, next_due=None)
            except QuotaExceeded:
                changed = False
                raise
            finally:
                traffic.end(changed=changed)
            if link is not None:
                await link.cross()
            return result

        return counted


class _ObservedStore(_Observed):
    """The same for the store of session states."""

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        counted = super()._counted(name, call)

        @wraps(counted)
        async def ending(*args: Any, **kwargs: Any) -> Any:
            try:
                return await counted(*args, **kwargs)
            except ConnectionLost as error:
                if self._link is not None and self._link.is_cut:
                    raise _StoreLost(str(error)) from None
                raise

        return ending


def observed(provider: Provider, traffic: Traffic, link: Link | None = None) -> Provider:
    """The provider with its calls counted. ``link``: of a worker; None for a client."""
    return cast("Provider", _Observed(provider, traffic, link))


class _Locked:
    """Forwards everything; each coroutine method holds a lock meanwhile."""

    def __init__(self, provider: Provider, lock: threading.Lock, link: Link) -> None:
        self._provider = provider
        self._lock = lock
        self._link = link

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._provider, name)
        if not inspect.iscoroutinefunction(found) or name == "aclose":
            return found

        @wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._link.cross_from_thread()
            await anyio.to_thread.run_sync(self._lock.acquire)
            times_resumed = self._link.times_resumed
            try:
                result = await found(*args, **kwargs)
            finally:
                self._lock.release()
            await self._link.cross_from_thread()
            if times_resumed == self._link.times_resumed:  # else it is of before the pause
                self._link.is_renewed |= name in _RENEWALS and result is not None
            return result

        return call


def locked(provider: Provider, lock: threading.Lock, link: Link) -> Provider:
    """The provider of a lease renewer: none of its calls is in flight while the clock jumps."""
    return cast("Provider", _Locked(provider, lock, link))


async def steps() -> None:
    """Let code that waits for nothing go on, until its next call."""
    for _ in range(STEPS):
        await asyncio.sleep(0)
