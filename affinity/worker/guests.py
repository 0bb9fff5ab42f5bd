"""The parts that guests add to a worker. A guest's module ``worker`` has its class of such a part, named ``PART``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import ClassVar

from affinity.guests import modules
from affinity.orchestration import KernelApp
from affinity.provider.contract import Provider, WorkerInfo
from affinity.worker.measures import Measure, Measured
from affinity.worker.services import WorkerPart, WorkerServices


class GuestPart(WorkerPart):
    """The loops of a guest in one worker, and what activities use of it.

    Args:
        services: of the worker.
        app: has what its code declares for the guest, in `KernelApp.declared`.
        code: version of the app's code.
    """

    late: ClassVar[tuple[str, str] | None] = None
    """Name and text of the gauge of the guest's `QueueStatistics.late`."""

    measures: ClassVar[Sequence[Measure]] = ()
    """The metrics of the database that `measure` reads."""

    def __init__(self, services: WorkerServices, app: KernelApp, *, code: str) -> None:
        super().__init__(services)

    @classmethod
    def is_wanted(cls, provider: Provider, app: KernelApp) -> bool:
        """Return whether a worker has this part: a provider of another database may lack the guest's verbs."""
        raise NotImplementedError

    @property
    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The loops, which run until they are cancelled; each begins again after an error of the database."""
        raise NotImplementedError

    @property
    def access(self) -> object | None:
        """The guest's object for activities: their `ActivityContext._guests` by the guest's name. None: it has none."""
        return None

    async def close_limit(self, place: tuple[str, str], seconds: float, reason: str) -> bool:
        """Admit no work at a limit, or at one key of it, for some seconds. False: the guest keeps no limits."""
        return False

    def read_ahead(self, instance_id: str, most: int, found: object | None = None) -> None:
        """Begin to read the data with which an activity begins (`Prefetch`), unless a fetch has ``found`` it. The
        read sees all commits up to now.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """End the guest's work for activities: the worker has ended."""

    def on_due(self, seconds: float | None) -> None:
        """Receive the guest's `Sweep.due` of a sweep of this worker."""

    def on_gates(self, came: bool) -> None:
        """Receive that work which this worker has committed waits at a gate (``came``), or that work which has passed
        one has ended or was given back (`affinity.records.Gate`).
        """

    async def run_due(self) -> float | None:
        """Do the work that is due; return the seconds until the next is, or None if none will be. It is called when a
        loop would be too late: by `affinity.testing.Env` after a sweep, since its clock may stand, and by a worker that
        ends when it is idle.
        """
        return None

    async def measure(self) -> Measured:
        """Return the values of `measures`: at a scrape, at most every `affinity.worker.metrics.WORK_SECONDS`."""
        return {}

    def starts(self) -> Iterable[tuple[str, str | None]]:
        """Return the name and version of each orchestration that the guest will start for the app."""
        return ()


def newest_version(workers: Sequence[WorkerInfo], app: str) -> str | None:
    """Return the newest version of an app's code that live workers run; None if no worker runs it."""
    alive = [worker for worker in workers if worker.alive and worker.labels.get("app") == app]
    newest = max(alive, key=lambda worker: (worker.code_since, worker.code_version), default=None)
    return None if newest is None else newest.code_version


@cache
def guest_parts() -> Mapping[str, type[GuestPart]]:
    """Return the class of each guest's part, by guest."""
    return {guest: module.PART for guest, module in modules("worker").items()}
