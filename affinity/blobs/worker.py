"""The part of a worker that collects blobs, and through which activities put and open them."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from affinity.blobs.collection import Collected, collect_blobs
from affinity.blobs.store.contract import blobs_of, knows_blobs
from affinity.orchestration import KernelApp
from affinity.payloads import Vault, vault_of
from affinity.provider.contract import Provider
from affinity.worker.guests import GuestPart
from affinity.worker.services import WorkerServices

logger: logging.Logger = logging.getLogger("affinity.blobs")

LONGEST_PAUSE: Final = 6 * 3600.0
"""Seconds between two collections of a database at most."""

SHARE: Final = 4
"""A collection comes this often within the grace, at least."""

SHORT_PAUSE: Final = 1.0
"""Seconds before the next collection, when one has met its bound."""


class BlobLoops(GuestPart):
    """The loop of one worker."""

    def __init__(self, services: WorkerServices, app: KernelApp, *, code: str) -> None:
        super().__init__(services, app, code=code)
        self._store = blobs_of(services.provider)
        self._vault = vault_of(services.provider)

    @classmethod
    def is_wanted(cls, provider: Provider, app: KernelApp) -> bool:
        """Return whether the worker was given a blob store."""
        return knows_blobs(provider) and vault_of(provider) is not None

    @property
    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Collect."""
        return (self.run,) if self._given.blobs.collect else ()

    @property
    def access(self) -> Vault | None:
        """The blobs, for `ActivityContext.put_blob`."""
        return self._vault

    @property
    def _given(self) -> Vault:
        assert self._vault is not None, "is_wanted"
        return self._vault

    async def run(self) -> None:
        """Collect now and then, until cancelled. Of all workers one does."""
        pause = min(self._given.blobs.grace / SHARE, LONGEST_PAUSE)
        while True:
            await self._pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- workers that start together
            if self._lease.is_serving and await self._store.begin_blob_round(pause):
                while self._lease.is_serving and not (await self.collect()).is_complete:
                    await self._pause(SHORT_PAUSE)

    async def collect(self) -> Collected:
        """Delete the blobs that no row names for the grace."""
        blobs = self._given.blobs
        done = await collect_blobs(blobs.store, self._store, self._given.prefix, blobs.grace)
        if done.deleted:
            logger.info("deleted %d blobs that no row names: %d bytes", done.deleted, done.freed)
        return done


PART: Final = BlobLoops
