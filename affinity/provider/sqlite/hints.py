"""Hints for workers: immediate in this process, soon in other processes.

Providers of one process find each other through a registry keyed by file; a hint for one of its workers is handed
over there. Other processes have no such channel: the thread that owns the connection looks for their commits
(``PRAGMA data_version``) while a worker or a subscriber waits, and treats each as a hint that all may have changed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import anyio

from affinity.provider.contract import Hint

T = TypeVar("T")

_registry: Final[defaultdict[Path, set[Subscription]]] = defaultdict(set)
registry_lock: Final = Lock()  # providers of one process may live on several event loops, in several threads


class Mailbox(ABC, Generic[T]):
    """A mailbox in which news waits for its reader.

    Args:
        registry: lists it while it is open.
        path: the resolved path of the file.
        watch: called with +1 when the reader begins to wait, with -1 when it ends.
    """

    def __init__(self, registry: defaultdict[Path, set[Any]], path: Path, watch: Callable[[int], None]) -> None:
        self._registry = registry
        self._path = path
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self.came = anyio.Event()

    def open(self) -> None:
        """Register the mailbox, so that senders find it."""
        with registry_lock:
            self._registry[self._path].add(self)

    def close(self) -> None:
        """Remove the mailbox from the registry."""
        with registry_lock:
            self._registry[self._path].discard(self)
            if not self._registry[self._path]:
                del self._registry[self._path]

    async def wait_for_news(self, timeout: float) -> None:
        """Wait until news has come since the last call, for at most ``timeout`` seconds."""
        if not self.came.is_set():
            self._watch(+1)
            try:
                with anyio.move_on_after(timeout):
                    await self.came.wait()
            finally:
                self._watch(-1)
        self.came = anyio.Event()

    @abstractmethod
    def receive(self, news: T) -> None:
        """Merge news with the waiting news; on the reader's loop."""

    def post(self, news: T) -> None:
        """Call `receive` on the reader's loop, from any thread."""
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self.receive, news)


class Subscription(Mailbox[Hint]):
    """A worker's `HintSource`.

    Args:
        path: the resolved path of the file.
        worker_id: of the worker that receives the hints.
        watch: called with +1 when the worker begins to wait, with -1 when it ends.
    """

    def __init__(self, path: Path, worker_id: str, watch: Callable[[int], None]) -> None:
        super().__init__(_registry, path, watch)
        self.worker_id = worker_id
        self._pending: Hint | None = None

    async def wait(self, timeout: float) -> Hint | None:
        await self.wait_for_news(timeout)
        hint, self._pending = self._pending, None
        return hint

    def receive(self, hint: Hint) -> None:
        """Merge a hint with the pending one; on this subscription's own loop."""
        self._pending = hint.merge(self._pending)
        self.came.set()


def send(path: Path, workers: Mapping[str | None, Hint]) -> None:
    """Give hints to the workers of this process on one file, by id; None: to all."""
    with registry_lock:
        subscriptions = list(_registry[path]) if path in _registry else []
    for subscription in subscriptions:
        for name in (None, subscription.worker_id):
            if name in workers:
                subscription.post(workers[name])
