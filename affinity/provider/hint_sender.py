"""The hints of a client: it notifies workers of the rows that it has queued for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import anyio

from affinity.errors import ProviderError
from affinity.provider.contract import Hint, Provider

logger: logging.Logger = logging.getLogger("affinity.client")

FLUSH_TIMEOUT: Final = 1.0
"""How long a client that closes tries to send its last hint; without it, workers find the work at their next poll."""


class HintSender:
    """Sends hints to workers: in the background, and one hint for many calls."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._for_all: Hint | None = None
        self._instances: set[str] = set()
        self._holders: set[str] = set()
        self._pending = anyio.Event()

    def notify_all(self, *, cancel: bool = False) -> None:
        """Notify workers of work that any of them may take; ``cancel`` says that running work may have been removed."""
        self._for_all = Hint(cancel=cancel).merge(self._for_all)
        self._pending.set()

    def notify_owners(self, instance_ids: Iterable[str]) -> None:
        """Notify the workers that own these instances."""
        self._instances.update(instance_ids)
        if self._instances:
            self._pending.set()

    def notify_holder(self, worker_id: str | None) -> None:
        """Notify the worker that holds the session of new work; None: no worker does."""
        if worker_id is None:
            return self.notify_all()
        self._holders.add(worker_id)
        self._pending.set()

    async def run(self) -> None:
        """Send hints until cancelled."""
        while True:
            await self._pending.wait()
            await self._send()

    async def flush(self) -> None:
        """Send the pending hint, if there is one."""
        with anyio.move_on_after(FLUSH_TIMEOUT, shield=True):
            if self._pending.is_set():
                await self._send()

    async def _send(self) -> None:
        pending, self._pending = self._pending, anyio.Event()
        for_all, self._for_all = self._for_all, None
        instances, self._instances = self._instances, set()
        holders, self._holders = self._holders, set()
        try:
            if for_all is not None:
                await self._provider.notify_workers({None: for_all})
            else:
                await self._provider.notify_workers(dict.fromkeys(holders, Hint(only_own=True)), instances)
        except ProviderError as error:
            logger.debug("a hint was not sent: %s", error)
        except anyio.get_cancelled_exc_class():  # for `flush`
            self._pending = pending
            if for_all is not None:
                self._for_all = for_all.merge(self._for_all)
            self._instances |= instances
            self._holders |= holders
            raise
