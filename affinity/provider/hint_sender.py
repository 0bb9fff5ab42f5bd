"""Hints that are sent in the background: to workers, and to the subscribers of changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from affinity.errors import ProviderError
from affinity.provider.contract import Hint, ProviderConnection, merge_changes
from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.provider")

FLUSH_TIMEOUT: Final = 1.0
"""Longest time in seconds that `HintSender.flush` takes; without the hint, workers find the work at their next poll."""


@dataclass(slots=True)
class _Hints:
    workers: dict[str | None, Hint] = field(default_factory=dict)  # None: all
    owners_of: set[str] = field(default_factory=set)  # instances
    changes: dict[str, bool] = field(default_factory=dict)  # by session, as `ChangeWatch.wait` returns them

    @property
    def is_lone(self) -> bool:
        """True if nothing waits but the change of one session."""
        return len(self.changes) == 1 and not self.workers and not self.owners_of

    def add(self, other: _Hints) -> None:
        for worker, hint in other.workers.items():
            self.workers[worker] = hint.merge(self.workers.get(worker))
        self.owners_of |= other.owners_of
        merge_changes(self.changes, other.changes)


class HintSender:
    """Sends hints. Hints that come during a call or in a pause are sent together. A hint that fails is not sent again.

    Args:
        provider: sends them.
        delay: seconds before each call.
        pause: seconds behind each call.
        lone_pause: the same behind a notice of one changed session alone.
    """

    def __init__(
        self, provider: ProviderConnection, *, delay: float = 0.0, pause: float = 0.0, lone_pause: float | None = None
    ) -> None:
        self._provider = provider
        self._delay, self._pause = delay, pause
        self._lone_pause = pause if lone_pause is None else lone_pause
        self._waiting = _Hints()
        self._came = anyio.Event()

    def notify_all(self, *, cancel: bool = False) -> None:
        """Notify workers of work that any of them may take; ``cancel`` says that running work may have been removed."""
        self.notify(None, Hint(cancel=cancel))

    def notify(self, worker_id: str | None, hint: Hint) -> None:
        """Send a hint to a worker; None: to all."""
        self._waiting.workers[worker_id] = hint.merge(self._waiting.workers.get(worker_id))
        self._came.set()

    def notify_owners(self, instance_ids: Iterable[str]) -> None:
        """Notify the workers that own these instances."""
        self._waiting.owners_of.update(instance_ids)
        if self._waiting.owners_of:
            self._came.set()

    def notify_holder(self, worker_id: str | None) -> None:
        """Notify the worker that holds the session of new work; None: no worker does."""
        self.notify(worker_id, Hint(only_own=worker_id is not None))

    def notify_changes(self, changed: Mapping[str, bool]) -> None:
        """Notify the subscribers that these sessions have changed, as `ChangeWatch.wait` returns them."""
        merge_changes(self._waiting.changes, changed)
        if self._waiting.changes:
            self._came.set()

    def forget_change(self, session_id: str) -> None:
        """Drop the notice of this change, because another caller has sent it."""
        self._waiting.changes.pop(session_id, None)

    async def run(self) -> None:
        """Send hints until cancelled."""
        while True:
            await self._came.wait()
            if self._delay:
                await anyio.sleep(self._delay)
            if pause := self._lone_pause if await self._send() else self._pause:
                await anyio.sleep(pause)

    async def flush(self) -> None:
        """Send the hints that wait, if there are any."""
        with anyio.move_on_after(FLUSH_TIMEOUT, shield=True):
            if self._came.is_set():
                await self._send()

    async def _send(self) -> bool:
        """Send the waiting hints; return whether they were a notice of one changed session alone."""
        self._came = anyio.Event()
        hints, self._waiting = self._waiting, _Hints()
        owners_of = set[str]() if None in hints.workers else hints.owners_of  # else they are among all
        try:
            await self._notify_changes(hints.changes)
            if hints.workers or owners_of:
                await self._provider.notify_workers(hints.workers, owners_of)
        except ProviderError as error:  # polls find the work, and other loops report the state of the database
            logger.debug("a hint was not sent: %s", redacted(error))
        except anyio.get_cancelled_exc_class():  # for `flush`
            self._waiting.add(hints)
            self._came.set()
            raise
        return hints.is_lone

    async def _notify_changes(self, changes: Mapping[str, bool]) -> None:
        for minor in (False, True):
            session_ids = [session_id for session_id, is_major in changes.items() if is_major is not minor]
            if session_ids:
                await self._provider.notify_changes(session_ids, minor=minor)
