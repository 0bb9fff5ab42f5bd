"""Hints: wake workers of this process immediately, and workers of other processes soon.

Providers of one process find each other through a registry keyed by file; a hint for one of its workers is handed
over there. Other processes have no such channel: the thread that owns the connection looks for their commits
(``PRAGMA data_version``) while a worker waits, and treats each as a hint to read the queues.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

import anyio

from affinity.provider.contract import Hint

_registry: Final[defaultdict[Path, set[Subscription]]] = defaultdict(set)
_registry_lock: Final = Lock()  # providers of one process may live on several event loops, in several threads


class Subscription:
    """A worker's `HintSource`.

    Args:
        path: the resolved path of the file.
        worker_id: whose hints these are.
        watch: called with +1 when the worker begins to wait, with -1 when it ends.
    """

    def __init__(self, path: Path, worker_id: str, watch: Callable[[int], None]) -> None:
        self.worker_id = worker_id
        self._path = path
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._pending: Hint | None = None
        self._came = anyio.Event()

    def open(self) -> None:
        """Be found by `send`."""
        with _registry_lock:
            _registry[self._path].add(self)

    def close(self) -> None:
        """Be found no more."""
        with _registry_lock:
            subscriptions = _registry[self._path]
            subscriptions.discard(self)
            if not subscriptions:
                del _registry[self._path]

    async def wait(self, timeout: float) -> Hint | None:
        if self._pending is None:
            self._watch(+1)
            try:
                with anyio.move_on_after(timeout):
                    await self._came.wait()
            finally:
                self._watch(-1)
        hint, self._pending, self._came = self._pending, None, anyio.Event()
        return hint

    def receive(self, hint: Hint) -> None:
        """Merge a hint with those that wait; on this subscription's own loop."""
        self._pending = hint.merge(self._pending)
        self._came.set()

    def post(self, hint: Hint) -> None:
        """Hand a hint over, from any thread."""
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self.receive, hint)


def send(path: Path, workers: Mapping[str | None, Hint]) -> None:
    """Give hints to the workers of this process on one file, by id; None: to all."""
    with _registry_lock:
        subscriptions = list(_registry[path]) if path in _registry else []
    for subscription in subscriptions:
        for name in (None, subscription.worker_id):
            if name in workers:
                subscription.post(workers[name])
