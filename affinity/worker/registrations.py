"""The code of this worker, compared with the code that other live workers registered.

With two apps that have one name for different functions, chance says which one runs. Two versions of one app, as
during a rollout, are no such case. A name that no live worker has is reported too: its work waits.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import anyio

from affinity.explain.names import ORCHESTRATIONS, code_differences, described, has_code
from affinity.provider.contract import WorkerInfo
from affinity.worker.services import WorkerPart, WorkerServices

logger: logging.Logger = logging.getLogger("affinity.worker")

COMPARE_SECONDS = 60.0
"""Seconds between two looks at the registrations of other workers."""

_SHOWN = 5
"""Names in one warning."""


class Registrations(WorkerPart):
    """Warns of names that live workers have different code for, and of names that none has code for."""

    def __init__(self, services: WorkerServices) -> None:
        super().__init__(services)
        self._worker_id = services.identity.worker_id
        self._different: set[str] = set()
        self._missing: set[str] = set()
        self._reported: set[str] = set()
        self._wanted = anyio.Event()

    def note_missing(self, orchestration: str) -> None:
        """An instance of an orchestration has come that this worker has no code for, or a schedule will start some."""
        if orchestration not in self._reported:
            self._reported.add(orchestration)
            self._missing.add(orchestration)
            self._wanted.set()

    async def run(self) -> None:
        """Compare at the start, once a minute, and when a name is missing."""
        while True:
            if self._lease.is_serving:
                self._wanted = anyio.Event()
                found = await self._health.call_seldom(self._provider.list_workers, self.run)
                workers = [one for one in found if one.alive]
                self._report_differences(workers)
                self._report_missing(workers)
            with anyio.move_on_after(COMPARE_SECONDS * random.uniform(0.9, 1.1)):  # noqa: S311
                await self._wanted.wait()

    def _report_differences(self, workers: Sequence[WorkerInfo]) -> None:
        """Log the names that differ, each once until no live worker differs in it."""
        found = {one.what: one for one in code_differences(workers) if self._worker_id in one.worker_ids}
        new = [one for what, one in found.items() if what not in self._different]
        self._different = set(found)
        if new:
            others = sorted({each for one in new for each in one.worker_ids} - {self._worker_id})
            logger.warning(
                "worker %s: other live workers (%s) have other code for %s: which code runs is chance, until one of "
                "the apps uses another name, or its workers have ended",
                self._worker_id,
                _listed(others),
                _listed([one.what for one in new]),
            )

    def _report_missing(self, workers: Sequence[WorkerInfo]) -> None:
        """Log each orchestration that has come without code for it here."""
        missing, self._missing = self._missing, set()
        for label in sorted(missing):
            what = described(ORCHESTRATIONS, label)
            if any(has_code(one, ORCHESTRATIONS, label) for one in workers):
                logger.info("%s is not registered here; leaving it to workers that know it", what)
            else:
                logger.warning(
                    "no live worker registers the %s: its instances wait until a worker includes it in its app", what
                )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
