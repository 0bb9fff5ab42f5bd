"""Control of a database that the suite needs, beside its provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeAlias

from affinity.provider.contract import FetchOptions, Provider, WorkerIdentity
from affinity.provider.timeline import Timeline

Fault: TypeAlias = Literal[
    "disk_full",
    "io_error",
    "out_of_memory",
    "read_only",
    "too_many_connections",  # every new connection is refused
    "statement_timeout",
    "serialization_failure",
    "deadlock",
    "cut_before_reply",  # the database executes the request, and its reply never comes
    "cut_in_reply",  # half of the reply comes
    "cut_after_reply",  # the reply comes, and then the connection is lost
]
"""Faults of a request to a database that do not depend on the data."""


class FaultyProvider(Protocol):
    """A provider object, and a switch on its way to the database."""

    @property
    def provider(self) -> Provider:
        """The provider."""
        ...

    @property
    def met(self) -> bool:
        """True once the injected fault has occurred."""
        ...

    def inject(self, fault: Fault, after: int) -> None:
        """Inject the fault once, into the request (or connection) after the next ``after`` of them.

        A request is a statement, or everything that the provider sends before it waits.
        """
        ...

    async def aclose(self) -> None:
        """Close the provider and the switch. Idempotent."""
        ...


class Harness(Protocol):
    """One fresh database, already migrated, for one test."""

    async def open(self, timeline: Timeline | None = None) -> Provider:
        """Open a further provider object on the same database, as another process would. It follows ``timeline``. The
        suite closes it.
        """
        ...

    async def lose_tail(self) -> None:
        """Make the database look, to every provider object that saw it before, as if it had lost its last commits, as
        after a failover or a restored backup. The rows themselves may stay.
        """
        ...

    async def lose_counters(self) -> None:
        """Reset the sequences of epochs and ids, and nothing else, as a restore that copies only rows does."""
        ...

    async def migrate(self) -> None:
        """Migrate once more, as each worker does when it starts."""
        ...

    async def advance(self, seconds: float) -> None:
        """Move the database's clock forward, for every provider object on it."""
        ...

    async def commit_amid_sweep(
        self, sweep: Callable[[], Awaitable[object]], commit: Callable[[], Awaitable[object]]
    ) -> None:
        """Run ``commit`` after ``sweep`` has read what there is and before it locks or removes anything; or before the
        sweep, where no commit can come between.
        """
        ...

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """The work of one `fetch_work_item` on a provider object opened for it, while no other is open.

        Its unit does not depend on time: rows and blocks read, or instructions of a virtual machine.
        """
        ...

    @property
    def faults(self) -> frozenset[Fault]:
        """The faults that a database of this kind can have: one without a network has no connection to be cut."""
        ...

    async def open_faulty(self) -> FaultyProvider:
        """Open a further provider object, with a switch for faults."""
        ...

    async def aclose(self) -> None:
        """Remove the database."""
        ...
