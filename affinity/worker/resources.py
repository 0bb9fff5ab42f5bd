"""Destroying the resources that nothing uses any more."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Final

import anyio

from affinity.orchestration.app import Destroyable
from affinity.records import DurableResource, parse_stored
from affinity.redaction import redacted
from affinity.worker.services import WorkerPart, WorkerServices

logger: logging.Logger = logging.getLogger("affinity.worker")

SWEEP_SECONDS: Final = 2.0
"""Between two searches for resources that nothing uses; only by workers that include some."""

REPORT_SECONDS: Final = 300.0
"""Between two searches for resources that no worker destroys."""

REPORT_LIMIT: Final = 100

TAKEN_SECONDS: Final = 120.0
"""Seconds after which another worker destroys resources that this one has not."""

SWEEP_LIMIT: Final = 10


class ResourceSweeper(WorkerPart):
    """Destroys unused resources that the app includes, and reports unused resources that stay."""

    def __init__(self, services: WorkerServices, resources: tuple[Destroyable, ...]) -> None:
        super().__init__(services)
        self._by_name = {each.name: each for each in resources}
        self._unclaimed: frozenset[str] = frozenset()  # ids that the last search for others has found

    async def run(self) -> None:
        """Search, again and again."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._report)
            await self._sweep()

    async def _report(self) -> None:
        """Report unused resources of other apps, if the search before has found them too: no worker includes them."""
        while True:
            await self._pause(REPORT_SECONDS)
            find = partial(self._provider.find_unused_resources, without=list(self._by_name), limit=REPORT_LIMIT)
            found = await self._health.retry(find) if self._lease.is_serving else []
            stay = Counter(each.name for each in found if each.resource_id in self._unclaimed)
            self._unclaimed = frozenset(each.resource_id for each in found)
            self._metrics.show_unclaimed(stay)
            for name, number in stay.items():
                logger.warning(
                    "resource %s: nothing uses %d of this name (%d at most are looked at), and no running worker"
                    " destroys them: include it in the app of one",
                    name,
                    number,
                    REPORT_LIMIT,
                )

    async def _sweep(self) -> None:
        while self._by_name:
            await self._pause(SWEEP_SECONDS)
            if self._lease.is_serving:
                take = partial(
                    self._provider.take_unused_resources, list(self._by_name), limit=SWEEP_LIMIT, seconds=TAKEN_SECONDS
                )
                destroyed: list[str] = []
                async with anyio.create_task_group() as tasks:  # one after the other, they could take `TAKEN_SECONDS`
                    for taken in await self._health.retry(take):
                        tasks.start_soon(self._destroy, taken, destroyed)
                if destroyed:
                    await self._health.retry(partial(self._provider.remove_resources, destroyed))

    async def _destroy(self, taken: DurableResource, destroyed: list[str]) -> None:
        """Destroy one, and add its id to ``destroyed``. Raises nothing."""
        try:
            handle = None if taken.handle is None else parse_stored(taken.handle)
        except ValueError as error:
            text = "resource %s (%s) cannot be destroyed: its handle is unreadable"
            logger.exception(text, taken.name, taken.resource_id, exc_info=redacted(error))
            return
        if await self._by_name[taken.name]._destroy_now(taken.resource_id, handle):
            destroyed.append(taken.resource_id)
            logger.info("resource %s (%s) is destroyed: nothing uses it", taken.name, taken.resource_id)
