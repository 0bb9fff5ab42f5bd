"""Fixtures of the tests under faults: parts of the suite, workers with and without faults, rows for each attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from affinity.provider.contract import (
    Incarnation,
    InstanceFilter,
    InstanceUpdate,
    OrchestrationItem,
    Provider,
    WorkerIdentity,
    WorkItem,
)
from affinity.session import SessionFilter
from affinity_conformance.providers.builders import count_rows, message_ids, state
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.harness import FaultyProvider
from affinity_conformance.providers.peer import Peer

ALL: Final = InstanceFilter()


async def nothing(*_: object) -> None:
    """Check nothing."""


@dataclass
class Attempt:
    """One verb: the call on the faulty provider, a check of its result, and what a worker does after a lost reply."""

    call: Callable[[], Awaitable[Any]]
    check: Callable[[Any], Awaitable[None]] = nothing
    recover: Callable[[], Awaitable[None]] = nothing
    unknown: bool = False  # a reply was lost: the verb may have been done before


Prepare: TypeAlias = "Callable[[FaultFixtures], Awaitable[Attempt]]"
"""Makes what a verb needs, and returns the call with its check."""


async def no_rows(_: Provider) -> object:
    """Return nothing."""
    return None


@dataclass(frozen=True, kw_only=True)
class FaultPart:
    """Verbs of the kernel or of a guest for the tests under faults. A suite has it as its attribute ``fault_part``."""

    verbs: Mapping[str, Prepare]
    """The preparation of each verb, by its name."""
    rows: Callable[[Provider], Awaitable[object]] = no_rows
    """Reads what the verbs of this part may change, without values that change with time."""


def fault_parts(suite: type) -> Sequence[FaultPart]:
    """The parts of a suite: the kernel's, and one for each guest whose rules it has."""
    return [vars(base)["fault_part"] for base in suite.__mro__ if "fault_part" in vars(base)]


def fault_verbs(suite: type) -> dict[str, Prepare]:
    """The verbs of all parts of a suite."""
    return {name: prepare for part in fault_parts(suite) for name, prepare in part.verbs.items()}


class FaultFixtures:
    """Worker ``a`` on a provider that meets faults and on one without faults; and another worker."""

    def __init__(
        self, cluster: Cluster, faulty: FaultyProvider, clean: Peer, other: Peer, parts: Sequence[FaultPart] = ()
    ) -> None:
        self.cluster = cluster
        self.parts = parts
        self.faulty = faulty
        self.clean = clean
        self.other = other
        self.number = 0  # of the attempt: each has ids of its own

    @classmethod
    async def build(cls, cluster: Cluster, parts: Sequence[FaultPart]) -> FaultFixtures:
        """Register the workers in a fresh database."""
        clean = await cluster.worker("a")
        return cls(cluster, await cluster.open_faulty(), clean, await cluster.worker("b"), parts)

    @property
    def provider(self) -> Provider:
        """The provider that meets faults."""
        return self.faulty.provider

    @property
    def me(self) -> WorkerIdentity:
        """The worker."""
        return self.clean.identity

    def name(self, kind: str) -> str:
        """An id that only this attempt uses."""
        return f"{kind}{self.number:05d}"

    def newcomer(self) -> Peer:
        """A worker of its own, on the faulty provider."""
        identity = WorkerIdentity(worker_id=self.name("w"), incarnation=Incarnation(self.name("x")))
        return Peer(self.provider, identity)

    async def registered(self) -> Peer:
        """A newcomer that is registered."""
        newcomer = self.newcomer()
        await replace(newcomer, provider=self.clean.provider).register()
        return newcomer

    async def item(self, session_id: str | None = None) -> WorkItem:
        """A work item that the worker has taken."""
        return await self.cluster.give(self.clean, session_id)

    async def assert_acks(self, item: WorkItem) -> None:
        """Its token is live."""
        assert await self.clean.ack(item) == [True]

    async def assert_comes_again(self, item: WorkItem, attempts: int | None = None) -> None:
        """It is delivered once more, and finished."""
        again = await self.clean.take_one()
        assert again.lock.key == item.lock.key
        assert attempts in (None, again.attempts)
        await self.assert_acks(again)

    async def held(self) -> str:
        """A session that the worker holds, idle."""
        session_id = self.name("s")
        await self.cluster.use(self.clean, session_id)
        return session_id

    async def saved(self) -> str:
        """A session with a record."""
        session_id = self.name("s")
        await self.clean.provider.states.save(state(session_id))
        return session_id

    async def instance(self) -> OrchestrationItem:
        """An instance that the worker owns."""
        return await self.clean.own(self.name("i"))

    async def ended(self) -> OrchestrationItem:
        """An instance that has ended."""
        at = await self.instance()
        await self.finish(at)
        return at

    async def suspended(self) -> str:
        """An instance that is suspended."""
        at = await self.instance()
        assert await self.clean.suspend(at)
        return at.instance_id

    async def taken(self, instance_id: str) -> OrchestrationItem:
        """The instance, which must have messages for the worker."""
        (owned,) = [item for item in await self.clean.take_instances() if item.instance_id == instance_id]
        return owned

    async def finish(self, at: OrchestrationItem) -> None:
        """End an instance, so that no later attempt meets it."""
        await self.clean.commit_one(at, consumed=message_ids(at), update=InstanceUpdate(status="completed"))

    async def assert_continues(self, instance_id: str) -> None:
        """The worker can take the instance; it ends."""
        await self.finish(await self.taken(instance_id))

    async def remove(self, instance_id: str) -> None:
        """Delete an instance, so that no later attempt meets it."""
        await self.clean.provider.delete_instance([instance_id], force=True)

    async def snapshot(self) -> list[object]:
        """Return the rows of all parts."""
        return [await part.rows(self.clean.provider) for part in self.parts]


async def kernel_rows(provider: Provider) -> object:
    """Return the kernel's rows, without values that change with time."""
    return [
        await count_rows(provider),
        [(i.instance_id, i.status, i.owner, i.event_count) for i in await provider.list_instances(ALL, 1000)],
        [(s.session_id, s.worker_id, s.epoch, s.held, s.queued) for s in await provider.list_sessions(limit=1000)],
        [(w.worker_id, w.incarnation, w.alive, w.draining) for w in await provider.list_workers()],
        [(r.session_id, r.version, r.epoch) for r in await provider.states.list(SessionFilter(), 1000)],
    ]


def returns(
    wanted: object, call: Callable[[], Awaitable[Any]], then: Callable[[], Awaitable[None]] = nothing
) -> Attempt:
    """A verb with one result, also when it is repeated; and what must be true then."""
    return once(wanted, wanted, call, then)


def once(
    wanted: object,
    repeated: object,
    call: Callable[[], Awaitable[Any]],
    then: Callable[[], Awaitable[None]] = nothing,
) -> Attempt:
    """A verb with another result when it was done before; and what must be true then."""

    async def check(result: Any) -> None:
        assert result == wanted or (attempt.unknown and result == repeated)
        await then()

    attempt = Attempt(call, check)
    return attempt


def same(
    fixtures: FaultFixtures,
    ask: Callable[[Provider], Awaitable[Any]],
    then: Callable[[], Awaitable[None]] = nothing,
) -> Attempt:
    """A verb that only reads: its result is the same on both providers."""

    async def check(result: Any) -> None:
        assert result == await ask(fixtures.clean.provider)
        await then()

    return Attempt(lambda: ask(fixtures.provider), check)
