"""The calls that the parts of an `Env` make to its database: how many are in flight, and which changed anything."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, TypeAlias, cast

import anyio
import anyio.to_thread

from affinity.errors import ConnectionLost
from affinity.provider.contract import Provider

_READS: Final = ("get_", "list_", "read_", "check_", "measure_", "count_", "find_", "load", "desired_")
"""How the names of calls begin that only read."""

_ASIDE: Final = frozenset({"renew_worker", "renew_work_item_lock", "notify_journals", "wake", "exchange_load"})
"""Hints and renewals: nothing follows from them."""

COMMITS: Final = frozenset({"commit_turn", "ack_work_item", "abandon_work_item", "suspend_instance"})
"""Calls by which a worker writes what its code has done."""

OnCommit: TypeAlias = Callable[[str, bool], Awaitable[None]]
"""Called with the name of a commit of a worker, before it (False) and behind it (True)."""

_BROUGHT: Final[dict[str, Callable[[Any], object]]] = {
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
    "drain_worker": lambda _: False,
    "free_drained_sessions": lambda _: False,
    "prune_journals": lambda _: False,
}
"""Calls that workers repeat: whether one has brought or changed anything."""


class Traffic:
    """The calls on the event loop of one `Env`."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.changes = 0
        """Calls so far that have brought or changed something, or may have."""
        self.turns = 0
        """Turns of instances that workers have sent."""
        self.on_commit: OnCommit | None = None
        """Injects faults: what it raises is what the worker gets for its commit."""
        self._ended = anyio.Event()
        self._gate: anyio.Event | None = None

    async def fail(self, name: str, *, done: bool) -> None:
        """Called at each commit: raise the error that is due."""
        if self.on_commit is not None:
            await self.on_commit(name, done)

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


class _Observed:
    """Forwards everything, and counts the coroutine methods; so for the store of session states in it."""

    def __init__(self, observed: Any, traffic: Traffic, is_cut: Callable[[], bool]) -> None:
        self._observed = observed
        self._traffic = traffic
        self._is_cut = is_cut

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._observed, name)
        if name == "states":
            found = _Observed(found, self._traffic, self._is_cut)
        elif inspect.iscoroutinefunction(found) and name != "aclose":
            found = self._counted(name, found)
        else:
            return found
        setattr(self, name, found)  # the next look-up does not come here
        return found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        traffic, brought = self._traffic, _BROUGHT.get(name)
        commits, aside, reads = name in COMMITS, name in _ASIDE, name.startswith(_READS)

        @wraps(call)
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self._is_cut():
                raise ConnectionLost("the worker has crashed")
            if aside:
                return await call(*args, **kwargs)
            await traffic.pass_gate()
            traffic.begin()
            changed = not reads
            if name == "commit_turn":
                traffic.turns += len(args[1])
            try:
                if commits:
                    await traffic.fail(name, done=False)
                result = await call(*args, **kwargs)
                if commits:
                    await traffic.fail(name, done=True)
                if brought is not None:
                    changed = bool(brought(result))
            finally:
                traffic.end(changed=changed)
            return result

        return counted


def observed(provider: Provider, traffic: Traffic, is_cut: Callable[[], bool] = lambda: False) -> Provider:
    """The provider with its calls counted; they fail once ``is_cut`` says so."""
    return cast("Provider", _Observed(provider, traffic, is_cut))


class _Locked:
    """Forwards everything; each coroutine method holds a lock meanwhile."""

    def __init__(self, provider: Provider, lock: threading.Lock) -> None:
        self._provider = provider
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._provider, name)
        if not inspect.iscoroutinefunction(found) or name == "aclose":
            return found

        @wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            await anyio.to_thread.run_sync(self._lock.acquire)
            try:
                return await found(*args, **kwargs)
            finally:
                self._lock.release()

        return call


def locked(provider: Provider, lock: threading.Lock) -> Provider:
    """The provider of a lease renewer: none of its calls is in flight while the clock jumps."""
    return cast("Provider", _Locked(provider, lock))
