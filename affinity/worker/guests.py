"""The parts that guests add to a worker. A guest's module ``worker`` has its class of such a part, named ``PART``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import ClassVar

from affinity.guests import modules
from affinity.orchestration import KernelApp
from affinity.provider.contract import Provider
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

    def read_ahead(self, instance_id: str, most: int, found: object | None = None) -> None:
        """Begin to read the data with which an activity begins (`Prefetch`), unless a fetch has ``found`` it. The
        read sees all commits up to now.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """End the guest's work for activities: the worker has ended."""

    def on_due(self, seconds: float | None) -> None:
        """Receive the guest's `Sweep.due` of a sweep of this worker."""

    async def run_due(self) -> None:
        """Do the work that is due. `affinity.testing.Env` calls it after a sweep, since its clock may stand."""

    def starts(self) -> Iterable[tuple[str, str | None]]:
        """Return the name and version of each orchestration that the guest will start for the app."""
        return ()


@cache
def guest_parts() -> Mapping[str, type[GuestPart]]:
    """Return the class of each guest's part, by guest."""
    return {guest: module.PART for guest, module in modules("worker").items()}
