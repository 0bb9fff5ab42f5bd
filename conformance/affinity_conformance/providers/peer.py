"""A worker process that a test drives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict, TypeVar, Unpack

from affinity.errors import Contention
from affinity.limits import MAX_BATCH, MAX_BATCH_BYTES
from affinity.provider.contract import (
    NO_TAGS,
    EndedWaits,
    InstanceInfo,
    OrchestrationFetch,
    OrchestrationItem,
    PlannedMove,
    PlanOutcome,
    Provider,
    SessionHold,
    Suspend,
    Timeouts,
    Turn,
    TurnResult,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkerLease,
    WorkerTags,
    WorkFetch,
    WorkItem,
    WorkLock,
)
from affinity.provider.history import read_whole_history
from affinity.session import StateWrite
from affinity_conformance.providers.builders import (
    LONG_LEASE,
    ORCHESTRATION,
    SESSION_LOCK,
    SHORT_LEASE,
    TIMEOUTS,
    UNKNOWN_AFTER,
    Choices,
    fence_of,
    fetch_options,
    new_instance,
    profile,
    turn,
)

F = TypeVar("F", WorkFetch, OrchestrationFetch)

_MAX_RACES: Final = 1_000


class AbandonFlags(TypedDict, total=False):
    """The flags of `WorkAbandon`."""

    delay: float
    failed: bool
    error: str
    error_type: str
    stack: str | None
    count_attempt: bool
    unknown: bool
    needs: str
    release_session: bool


@dataclass(frozen=True)
class Peer:
    """One worker process: an identity and a provider object of its own."""

    provider: Provider
    identity: WorkerIdentity
    tags: WorkerTags = NO_TAGS

    @property
    def worker_id(self) -> str:
        return self.identity.worker_id

    # -- its lease

    async def register(self, lease: float = LONG_LEASE, *, resume: bool = False, **fields: Any) -> WorkerLease:
        registered = profile(tags=self.tags, **fields)
        return await self.provider.register_worker(self.identity, lease, {}, resume=resume, profile=registered)

    async def renew_lease(
        self, lease: float = SHORT_LEASE, labels: Mapping[str, str] | None = None
    ) -> WorkerLease | None:
        return await self.provider.renew_worker(self.identity, lease, labels)

    async def drain(self, *, restarts: bool = False, if_wanted: bool = False) -> int | None:
        return await self.provider.drain_worker(self.identity, restarts=restarts, if_wanted=if_wanted)

    async def leave(self, restart_grace: float = 0.0) -> None:
        await self.provider.release_worker(self.identity, restart_grace=restart_grace)

    # -- work items

    async def fetch(self, limit: int = 1, **choices: Unpack[Choices]) -> WorkFetch:
        """One call of `fetch_work_item`."""
        options = replace(fetch_options(limit, **choices), tags=self.tags)
        return await self.provider.fetch_work_item(self.identity, options)

    async def take(self, limit: int = 1, **choices: Unpack[Choices]) -> list[WorkItem]:
        """Fetch, and repeat immediately while the provider reports a lost claim."""
        return list((await _won(lambda: self.fetch(limit, **choices))).items)

    async def take_one(self, **choices: Unpack[Choices]) -> WorkItem:
        """The one item that there must be."""
        (item,) = await self.take(1, **choices)
        return item

    async def take_all(self, **choices: Unpack[Choices]) -> list[WorkItem]:
        """Fetch until nothing is left for this worker."""
        taken: list[WorkItem] = []
        while found := await self.take(100, **choices):
            taken += found
        return taken

    async def renew(self, *items: WorkItem, timeouts: Timeouts = TIMEOUTS) -> list[bool]:
        locks = [item.lock for item in items]
        return list(await self.provider.renew_work_item_lock(self.identity, locks, timeouts))

    async def check(self, *items: WorkItem) -> list[bool]:
        return list(await self.provider.check_work_item([item.lock for item in items]))

    async def ack(self, *items: WorkItem, message: str = "done") -> list[bool]:
        acks = [WorkAck(lock=item.lock, message=message) for item in items]
        return list(await self.provider.ack_work_item(self.identity, acks, TIMEOUTS))

    async def ack_with(self, item: WorkItem, write: StateWrite) -> bool:
        """One ack with session state."""
        acks = [WorkAck(lock=item.lock, message="done", state=write)]
        (acked,) = await self.provider.ack_work_item(self.identity, acks, TIMEOUTS)
        return acked

    async def give_back(self, *items: WorkItem, **flags: Unpack[AbandonFlags]) -> list[bool]:
        abandons = [WorkAbandon(lock=item.lock, **flags) for item in items]
        return list(await self.provider.abandon_work_item(self.identity, abandons))

    async def release_unknown(self, *known: WorkLock, delivered: Sequence[WorkItem] = ()) -> int:
        return await self.provider.release_unknown_locks(self.identity, known, [item.lock for item in delivered])

    async def begin(self, item: WorkItem, *, pause: float = 0.0) -> bool:
        return await self.provider.begin_work_item(self.identity, item.lock, item.attempts, pause=pause)

    async def end_waits(self, tag_timeout: float | None = None, limit: int = 100) -> EndedWaits:
        return await self.provider.end_waits(
            self.identity, limit=limit, tag_timeout=tag_timeout, item_lock=TIMEOUTS.work_item_lock
        )

    # -- sessions

    async def holds_for(self, *session_ids: str) -> list[float | None]:
        """Seconds for which it holds each; None: it does not."""
        rows = await self.provider.list_sessions(session_ids)
        mine = self.identity.incarnation
        held = {row.session_id: row.expires_in for row in rows if row.held and row.incarnation == mine}
        return [held.get(session_id) for session_id in session_ids]

    async def plan(self, session_id: str, to: str, within: float | None = 60.0) -> PlanOutcome:
        """Plan that the session moves."""
        (outcome,) = await self.provider.move_session([PlannedMove(session_id=session_id, to=to, within=within)])
        return outcome

    async def take_moved(self, *session_ids: str, max_sessions: int = MAX_BATCH) -> list[str]:
        """Take sessions that are to move to this worker; returns those that it got."""
        taken = await self.provider.take_session(
            self.identity, session_ids, max_sessions=max_sessions, session_lock=SESSION_LOCK
        )
        return [session.session_id for session in taken]

    async def assigned(self) -> list[str]:
        """The sessions that a fetch, which must find no work, says are to be taken."""
        fetched = await self.fetch()
        assert not fetched.items
        return sorted(fetched.assigned)

    # -- orchestrations

    async def fetch_instances(
        self,
        limit: int = 10,
        *,
        names: Collection[str] = (ORCHESTRATION,),
        exclude: Collection[int] = (),
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> OrchestrationFetch:
        """One call of `fetch_orchestration_item`."""
        return await self.provider.fetch_orchestration_item(
            self.identity,
            limit=limit,
            names=names,
            unknown_after=UNKNOWN_AFTER,
            exclude=exclude,
            max_bytes=max_bytes,
        )

    async def take_instances(
        self, limit: int = 10, *, names: Collection[str] = (ORCHESTRATION,)
    ) -> list[OrchestrationItem]:
        """Fetch instances, and repeat immediately while the provider reports a lost claim."""
        return list((await _won(lambda: self.fetch_instances(limit, names=names))).items)

    async def own(self, instance_id: str, **fields: Any) -> OrchestrationItem:
        """Create the instance and take it. The keywords are fields of it."""
        await self.provider.create_instance([new_instance(instance_id, **fields)])
        return next(item for item in await self.take_instances(100) if item.instance_id == instance_id)

    async def commit(
        self, *turns: Turn, timeouts: Timeouts = TIMEOUTS, notify: Collection[str] = ()
    ) -> list[TurnResult]:
        return list(await self.provider.commit_turn(self.identity, turns, timeouts, notify=notify))

    async def history(self, at: OrchestrationItem) -> list[str]:
        """The events of the execution that ``at`` shows."""
        return await read_whole_history(self.provider, at.instance_id, at.execution_id)

    async def info(self, instance_id: str) -> InstanceInfo:
        """The row of an instance that there must be."""
        (row,) = await self.provider.get_instance([instance_id])
        assert row is not None
        return row

    async def commit_one(self, at: OrchestrationItem, **step: Any) -> TurnResult:
        """Commit one turn at the fence that ``at`` shows."""
        (result,) = await self.commit(turn(at, **step))
        return result

    async def suspend(self, at: OrchestrationItem, **why: Any) -> bool:
        """Suspend one instance at the fence that ``at`` shows, for lack of code unless ``why`` says otherwise."""
        one = Suspend(**fence_of(at), error_type="Nondeterminism", message="", code=self.worker_id, needs_code=True)
        (suspended,) = await self.provider.suspend_instance(self.identity, [replace(one, **why)])
        return suspended

    async def retry_suspended(self, code: str, names: Collection[str] = (ORCHESTRATION,), limit: int = 10) -> list[str]:
        """Take what was suspended and this code has not tried; sorted."""
        return sorted(await self.provider.retry_suspended(self.identity, names=names, code=code, limit=limit))

    async def go_on(self, at: OrchestrationItem, **step: Any) -> OrchestrationItem:
        """Commit a turn of one event, which must pass; the instance at the fence of the next one, without messages."""
        assert (await self.commit_one(at, **step)).committed
        return replace(at, event_count=at.event_count + 1, messages=())

    async def hold(self, instance_id: str, session_id: str, seconds: float) -> OrchestrationItem:
        """Let a new instance hold the session, under hold id 1."""
        return await self.go_on(await self.own(instance_id), holds=[SessionHold(session_id, 1, seconds)])


async def _won(fetch: Callable[[], Awaitable[F]]) -> F:
    """The first answer of a fetch that has won its claims."""
    for _ in range(_MAX_RACES):
        with suppress(Contention):  # nothing was changed
            fetched = await fetch()
            if fetched.items or not fetched.claim_lost:
                return fetched
    raise AssertionError(f"a fetch lost {_MAX_RACES} races in a row")
