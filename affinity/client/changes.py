"""The waits for changes of sessions in this process: hints, and a poll once a second as the safety net.

All waits of a client share one subscription of the provider (`ProviderConnection.watch_changes`), which is open while
there are waits. A hint may be lost, so once a second all waits are notified anyway. They read at the same time, and
share one call to read (`batching.Batcher`): at most one statement a second, however many wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from heapq import nsmallest
from typing import Final

import anyio

from affinity.errors import ClientError, ProviderError
from affinity.limits import MAX_BATCH
from affinity.provider.contract import ChangeWatch, merge_changes
from affinity.redaction import redacted
from affinity.tasks import check_loop

logger: logging.Logger = logging.getLogger("affinity.client")

SAFETY_SECONDS: Final = 1.0
"""Seconds between two polls."""

LINGER_SECONDS: Final = 10.0
"""Seconds for which the subscription stays open when nothing waits, so that the next wait need not open it."""

MAX_CHANGED: Final = 10_000
"""Sessions that are noted for one `AllChanges`. Beyond this number, any session may have changed."""

ALL: Final = ""
"""Stands for all sessions, in place of a session's id."""

Watch = Callable[[], AbstractAsyncContextManager[ChangeWatch]]
Listener = Callable[[Mapping[str, bool]], None]


class Change:
    """One wait for changes of one session, again and again.

    Args:
        session_id: of the session.
        only_major: do not wait for minor changes (`ChangeWatch.wait`).
        now: the loop's time.
    """

    __slots__ = ("_has_changed", "_waiting", "notified_at", "only_major", "session_id")

    def __init__(self, session_id: str, only_major: bool, now: float) -> None:
        self.session_id: str = session_id
        self.only_major: bool = only_major
        self.notified_at: float = now  # by the loop's clock
        self._has_changed = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """True if no notification has come since it began to wait."""
        return self._waiting is not None and not self._waiting.done()

    def notify(self, now: float, changed: Mapping[str, bool] | None = None) -> None:
        """Notify that there may be something new to read. ``changed``: as `ChangeWatch.wait` returns it; None: not
        known.
        """
        self._has_changed = True
        self.notified_at = now
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the wait with this error."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    async def wait(self) -> None:
        """Wait until there may be something that was not there when the last wait ended."""
        if not self._has_changed:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._has_changed = False


class AllChanges(Change):
    """Waits for changes of any session, from its creation until `leave`."""

    __slots__ = ("_any", "_changed", "_changes")

    def __init__(self, changes: Changes, now: float) -> None:
        super().__init__(ALL, False, now)
        self._changes = changes
        self._changed: dict[str, bool] = {}
        self._any = False

    def notify(self, now: float, changed: Mapping[str, bool] | None = None) -> None:
        if changed is not None and not self._any:
            merge_changes(self._changed, changed)
            self._any = not changed or len(self._changed) > MAX_CHANGED
        super().notify(now)

    def take(self) -> Mapping[str, bool] | None:
        """Return the sessions that changed since the last call, as `ChangeWatch.wait` returns them; None: any."""
        changed, self._changed = self._changed, {}
        is_any, self._any = self._any, False
        return None if is_any else changed

    async def opened(self) -> None:
        """See `Changes.opened`."""
        await self._changes.opened()

    def leave(self) -> None:
        """Stop the notifications."""
        self._changes.remove(self)

    def leave_soon(self) -> None:
        """Stop the notifications; from any thread."""
        self._changes.remove_soon(self)


class Changes:
    """The waits of one client for changes of sessions. For the event loop on which it is made.

    Args:
        watch: subscribes to hints.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._listeners: list[Listener] = []
        self._loop = asyncio.get_running_loop()
        self._changes: dict[str, set[Change]] = {}
        self._wanted = asyncio.Event()
        self._ready = asyncio.Event()  # the subscription is open, or could not be opened
        self._closed = False
        self._next_poll = 0.0

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each hint, before the waits are notified."""
        self._listeners.append(listener)

    def of(self, session_id: str, *, only_major: bool = False) -> ChangeScope:
        """Return the changes of a session from now on, for one ``async with``; see `Change`. Its beginning raises
        `ClientError` when the client was closed.

        Raises:
            WrongEventLoop: the caller does not run on its loop.
        """
        check_loop(self._loop, "client")
        return ChangeScope(self, session_id, only_major)

    async def of_all(self) -> AllChanges:
        """Return the changes of all sessions from now on.

        Raises:
            WrongEventLoop: the caller does not run on its loop.
            ClientError: the client was closed.
        """
        check_loop(self._loop, "client")
        change = AllChanges(self, self._loop.time())
        self.add(change)
        try:
            await self.opened()
        except BaseException:
            self.remove(change)
            raise
        return change

    def add(self, change: Change) -> None:
        """Notify this wait of changes."""
        self._changes.setdefault(change.session_id, set()).add(change)
        self._wanted.set()

    def remove_soon(self, change: Change) -> None:
        """Stop the notifications of a wait; from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.remove, change)

    def remove(self, change: Change) -> None:
        """Stop the notifications of a wait."""
        changes = self._changes[change.session_id]
        changes.discard(change)
        if not changes:
            del self._changes[change.session_id]

    async def opened(self) -> None:
        """Wait until the subscription is open, or could not be opened.

        Raises:
            ClientError: the client was closed.
        """
        if not self._ready.is_set():
            await self._ready.wait()
        if self._closed:
            raise ClientError("the client is closed")

    def notify(self, changed: Mapping[str, bool]) -> None:
        """Notify the waits for these sessions, as `ChangeWatch.wait` returns them."""
        now = asyncio.get_running_loop().time()
        for change in self._changes.get(ALL, ()):
            change.notify(now, changed)
        for session_id, is_major in (changed or dict.fromkeys(self._changes, True)).items():
            for change in self._changes.get(session_id, ()):
                if is_major or not change.only_major:
                    change.notify(now)

    @property
    def awaited(self) -> list[str]:
        """The sessions that are waited for, `ALL` among them."""
        return [change.session_id for changes in self._changes.values() for change in changes if change.is_waiting]

    def fail(self, error: Exception) -> None:
        """End all waits with this error."""
        for change in [change for changes in self._changes.values() for change in changes]:
            change.fail(error)

    async def run(self) -> None:
        """Receive hints until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                try:
                    async with self._watch() as watch:
                        self._ready.set()
                        self.notify({})  # there was no hint for what came before
                        await self._receive(watch)
                    self._ready.clear()
                except ProviderError as error:
                    logger.debug("no hints of changes: %s", redacted(error))
                    self._ready.set()
                    await anyio.sleep(SAFETY_SECONDS * random.uniform(1.0, 1.25))  # noqa: S311 -- not a secret
                    self._poll(asyncio.get_running_loop().time())
        finally:
            self._closed = True
            self._ready.set()
            self.notify({})  # their next read raises

    async def _receive(self, watch: ChangeWatch) -> None:
        """Receive hints until nothing has waited for a while."""
        idle_since: float | None = None
        while True:
            now = asyncio.get_running_loop().time()
            idle_since = None if self._changes else idle_since or now
            if idle_since is not None and now - idle_since >= LINGER_SECONDS:
                self._wanted.clear()
                return
            changed = await watch.wait(max(0.0, self._next_poll - now) if self._changes else SAFETY_SECONDS)
            if changed is not None:
                for listener in self._listeners:
                    listener(changed)
                self.notify(changed)
            self._poll(asyncio.get_running_loop().time())

    def _poll(self, now: float) -> None:
        """Once a second, notify as many waits as fit into one read, the longest first."""
        if now < self._next_poll:
            return
        self._next_poll = now + SAFETY_SECONDS * random.uniform(1.0, 1.25)  # noqa: S311 -- not a secret
        waiting = [change for changes in self._changes.values() for change in changes if change.is_waiting]
        due = [change for change in waiting if now - change.notified_at >= SAFETY_SECONDS / 2]
        if len(due) > MAX_BATCH:
            due = nsmallest(MAX_BATCH, due, key=lambda change: change.notified_at)
        for change in due:
            change.notify(now)


class ChangeScope:
    """The changes of one session, within its block."""

    __slots__ = ("_changes", "change")

    def __init__(self, changes: Changes, session_id: str, only_major: bool) -> None:
        self._changes = changes
        self.change: Change = Change(session_id, only_major, asyncio.get_running_loop().time())

    async def __aenter__(self) -> Change:
        self._changes.add(self.change)
        try:
            await self._changes.opened()
        except BaseException:
            self._changes.remove(self.change)
            raise
        return self.change

    async def __aexit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """End the block of a scope that was entered without ``async with``."""
        self._changes.remove(self.change)

    def leave_soon(self) -> None:
        """End the block, from any thread."""
        self._changes.remove_soon(self.change)
