"""Hints for workers and readers of journals: immediate in this process, soon in other processes.

Providers of one process find each other through a registry keyed by file; a hint for one of its workers is handed
over there. Other processes have no such channel: the thread that owns the connection looks for their commits
(``PRAGMA data_version``) while a worker or a reader waits, and treats each as a hint to read the queues and journals.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import anyio

from affinity.provider.contract import Hint
from affinity.provider.contract.journal_side import merge_changes

_registry: Final[defaultdict[Path, set[Subscription]]] = defaultdict(set)
_journal_registry: Final[defaultdict[Path, set[JournalSubscription]]] = defaultdict(set)
_registry_lock: Final = Lock()  # providers of one process may live on several event loops, in several threads


class _Mailbox:
    """A place where hints wait for their reader.

    Args:
        watch: called with +1 when the reader begins to wait, with -1 when it ends.
    """

    def __init__(self, watch: Callable[[int], None]) -> None:
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._came = anyio.Event()

    async def wait_for_hint(self, timeout: float) -> None:
        """Wait until `notify` was called since the last call, for at most ``timeout`` seconds."""
        if not self._came.is_set():
            self._watch(+1)
            try:
                with anyio.move_on_after(timeout):
                    await self._came.wait()
            finally:
                self._watch(-1)
        self._came = anyio.Event()

    def notify(self) -> None:
        """A hint is there."""
        self._came.set()

    def call(self, receive: Callable[..., None], *args: object) -> None:
        """Call a function on the reader's loop, from any thread."""
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(receive, *args)


class Subscription(_Mailbox):
    """A worker's `HintSource`.

    Args:
        path: the resolved path of the file.
        worker_id: whose hints these are.
        watch: called with +1 when the worker begins to wait, with -1 when it ends.
    """

    def __init__(self, path: Path, worker_id: str, watch: Callable[[int], None]) -> None:
        super().__init__(watch)
        self.worker_id = worker_id
        self._path = path
        self._pending: Hint | None = None

    def open(self) -> None:
        """Be found by `send`."""
        with _registry_lock:
            _registry[self._path].add(self)

    def close(self) -> None:
        """Be found no more."""
        with _registry_lock:
            _remove(_registry, self._path, self)

    async def wait(self, timeout: float) -> Hint | None:
        await self.wait_for_hint(timeout)
        hint, self._pending = self._pending, None
        return hint

    def receive(self, hint: Hint) -> None:
        """Merge a hint with the pending one; on this subscription's own loop."""
        self._pending = hint.merge(self._pending)
        self.notify()

    def post(self, hint: Hint) -> None:
        """Hand a hint over, from any thread."""
        self.call(self.receive, hint)


class JournalSubscription(_Mailbox):
    """A reader's `JournalWatch`.

    Args:
        path: the resolved path of the file.
        watch: called with +1 when the reader begins to wait, with -1 when it ends.
    """

    def __init__(self, path: Path, watch: Callable[[int], None]) -> None:
        super().__init__(watch)
        self._path = path
        self._changed: dict[str, bool] | None = None
        self._any = False  # any journal may have changed

    def open(self) -> None:
        """Be found by `send_journals`."""
        with _registry_lock:
            _journal_registry[self._path].add(self)

    def close(self) -> None:
        """Be found no more."""
        with _registry_lock:
            _remove(_journal_registry, self._path, self)

    async def wait(self, timeout: float) -> Mapping[str, bool] | None:
        await self.wait_for_hint(timeout)
        changed = {} if self._any else self._changed
        self._changed, self._any = None, False
        return changed

    def receive(self, changed: Mapping[str, bool]) -> None:
        """Add sessions whose journals have changed, none for any, as `wait` gives them; on this subscription's own
        loop.
        """
        self._any = self._any or not changed
        self._changed = self._changed or {}
        merge_changes(self._changed, changed)
        self.notify()

    def post(self, changed: Mapping[str, bool]) -> None:
        """As `receive`, from any thread."""
        self.call(self.receive, changed)


_S = TypeVar("_S")


def _remove(registry: defaultdict[Path, set[_S]], path: Path, subscription: _S) -> None:
    registry[path].discard(subscription)
    if not registry[path]:
        del registry[path]


def send_journals(path: Path, changed: Mapping[str, bool]) -> None:
    """Notify the readers of this process on one file that journals have changed, as `JournalWatch.wait` gives it."""
    with _registry_lock:
        subscriptions = list(_journal_registry[path]) if path in _journal_registry else []
    for subscription in subscriptions:
        subscription.post(changed)


def send(path: Path, workers: Mapping[str | None, Hint]) -> None:
    """Give hints to the workers of this process on one file, by id; None: to all."""
    with _registry_lock:
        subscriptions = list(_registry[path]) if path in _registry else []
    for subscription in subscriptions:
        for name in (None, subscription.worker_id):
            if name in workers:
                subscription.post(workers[name])
