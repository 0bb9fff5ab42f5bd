"""The calls of an `Env` to its database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from affinity.provider.contract import Provider
from affinity.provider.timeline import Timeline


class Waiting(NamedTuple):
    """Conditions, beside the rows themselves, for when waiting work goes on."""

    alive: Sequence[str]
    """Incarnations of the workers that run: their leases do not end."""
    busy: Sequence[str]
    """Incarnations of the workers that run activities, too: the locks of these do not end. A lock that a worker does
    not know, as after a lost answer, ends.
    """
    unknown: float
    """Seconds after which work fails that no worker has the code or the tag for."""
    endless: bool = True
    """Whether the due times of guests count that may always have a next one: ticks of schedules."""


class EnvDatabase(Protocol):
    """One database of one `Env`."""

    url: str
    """For other processes, as of `affinity.testing.env.child`."""
    puts_later: bool
    """Whether queued items become due some microseconds later."""

    def now(self) -> float:
        """Its time in Unix seconds."""
        ...

    async def open(
        self, timeline: Timeline | None = None, *, one_connection: bool = False, as_client: bool = False
    ) -> Provider:
        """A new provider on it."""
        ...

    async def next_due(self, waiting: Waiting) -> float | None:
        """The earliest time from which something can happen that cannot happen now; None: there is none."""
        ...

    async def jump(self, to: float, alive: Collection[str], busy: Collection[str]) -> None:
        """Set the clock. The leases of the workers ``alive`` move along, and the locks of the work of workers ``busy``;
        see `Waiting`.
        """
        ...

    async def aclose(self) -> None:
        """Remove it."""
        ...
