"""Every verb of the contract once, prepared so that it has something to do, with what must be true afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from affinity.provider.contract import (
    FINISHED,
    OFFER_SECONDS,
    Hint,
    HistoryCursor,
    HistoryPage,
    Incarnation,
    InstanceFilter,
    InstanceUpdate,
    NewMessage,
    OrchestrationItem,
    Provider,
    Quotas,
    Release,
    Reset,
    Suspend,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkItem,
)
from affinity.records import SessionFilter
from affinity.testing.conformance.providers.builders import (
    LONG_LEASE,
    SESSION_LOCK,
    TIMEOUTS,
    fetch_options,
    message_ids,
    new_instance,
    state,
    state_write,
    turn,
    work_item,
)
from affinity.testing.conformance.providers.harness import FaultyProvider
from affinity.testing.conformance.providers.peer import Peer
from affinity.testing.conformance.providers.world import World


async def _nothing(*_: object) -> None:
    pass


@dataclass
class Attempt:
    """One verb: the call on the faulty provider, what its result must be, and how a worker gets over a lost reply."""

    call: Callable[[], Awaitable[Any]]
    check: Callable[[Any], Awaitable[None]] = _nothing
    recover: Callable[[], Awaitable[None]] = _nothing
    unknown: bool = False  # a reply was lost: the verb may have been done before


class FaultStage:
    """Worker ``a`` twice: on a provider that meets faults, and on one that does not; and another worker."""

    def __init__(self, world: World, faulty: FaultyProvider, clean: Peer, other: Peer) -> None:
        self.world = world
        self.faulty = faulty
        self.clean = clean
        self.other = other
        self.number = 0  # of the attempt: each has ids of its own

    @classmethod
    async def build(cls, world: World) -> FaultStage:
        """On a fresh database."""
        clean = await world.worker("a")
        return cls(world, await world.open_faulty(), clean, await world.worker("b"))

    @property
    def provider(self) -> Provider:
        """The one that meets faults."""
        return self.faulty.provider

    @property
    def me(self) -> WorkerIdentity:
        """The worker."""
        return self.clean.identity

    def name(self, kind: str) -> str:
        """An id that only this attempt uses."""
        return f"{kind}{self.number:05d}"

    async def item(self, session_id: str | None = None) -> WorkItem:
        """A work item that the worker has taken."""
        await self.world.enqueue(session_id)
        return await self.clean.take_one()

    async def instance(self) -> OrchestrationItem:
        """An instance that the worker owns."""
        return await self.clean.own(self.name("i"))

    async def taken(self, instance_id: str) -> OrchestrationItem:
        """The instance, which must have messages for the worker."""
        (owned,) = [item for item in await self.clean.take_instances() if item.instance_id == instance_id]
        return owned

    async def finish(self, at: OrchestrationItem) -> None:
        """End an instance, so that it is in no later attempt's way."""
        await self.clean.commit_one(at, consumed=message_ids(at), update=InstanceUpdate(status="completed"))

    async def snapshot(self) -> list[object]:
        """What the database has, as far as it does not change with time."""
        provider = self.clean.provider
        return [
            await provider.count_work(),
            [(i.instance_id, i.status, i.owner, i.event_count) for i in await provider.list_instances(ALL, 1000)],
            [(s.session_id, s.worker_id, s.epoch, s.held, s.queued) for s in await provider.list_sessions(limit=1000)],
            [(w.worker_id, w.incarnation, w.alive, w.draining) for w in await provider.list_workers()],
            [(r.session_id, r.version, r.epoch) for r in await provider.states.list(SessionFilter(), 1000)],
        ]

    def newcomer(self) -> Peer:
        """A worker of its own, on the faulty provider."""
        identity = WorkerIdentity(worker_id=self.name("w"), incarnation=Incarnation(self.name("x")))
        return Peer(self.provider, identity)


ALL: Final = InstanceFilter()

Prepare: TypeAlias = Callable[[FaultStage], Awaitable[Attempt]]

VERBS: Final[list[Prepare]] = []
"""The preparation of each verb, by its name."""


def _verb(prepare: Prepare) -> Prepare:
    VERBS.append(prepare)
    return prepare


def _is(*allowed: object) -> Callable[[Any], Awaitable[None]]:
    async def check(result: Any) -> None:
        assert result in allowed

    return check


def _once(attempt: Attempt, wanted: object, repeated: object) -> Attempt:
    """A verb that says so when it was done before."""

    async def check(result: Any) -> None:
        assert result == wanted or (attempt.unknown and result == repeated)

    attempt.check = check
    return attempt


def _same(stage: FaultStage, ask: Callable[[Provider], Awaitable[Any]]) -> Attempt:
    """A verb that only reads: what it says is what the other provider says."""

    async def check(result: Any) -> None:
        assert result == await ask(stage.clean.provider)

    return Attempt(lambda: ask(stage.provider), check)


# --- workers


@_verb
async def register_worker(stage: FaultStage) -> Attempt:
    newcomer = stage.newcomer()

    async def check(_: object) -> None:
        assert await replace(newcomer, provider=stage.clean.provider).renew_lease(LONG_LEASE) is not None

    return Attempt(newcomer.register, check)


@_verb
async def renew_worker(stage: FaultStage) -> Attempt:
    async def check(lease: object) -> None:
        assert lease is not None

    return Attempt(lambda: stage.provider.renew_worker(stage.me, LONG_LEASE), check)


@_verb
async def drain_worker(stage: FaultStage) -> Attempt:
    newcomer = stage.newcomer()
    await replace(newcomer, provider=stage.clean.provider).register()
    return Attempt(newcomer.drain, _is(0))


@_verb
async def release_worker(stage: FaultStage) -> Attempt:
    newcomer = stage.newcomer()
    await replace(newcomer, provider=stage.clean.provider).register()

    async def check(_: object) -> None:
        workers = await stage.clean.provider.list_workers()
        assert newcomer.worker_id not in [worker.worker_id for worker in workers if worker.alive]

    return Attempt(newcomer.leave, check)


# --- work items


@_verb
async def fetch_work_item(stage: FaultStage) -> Attempt:
    """One item that claims its session, one of a session that is held, and one without a session."""
    held, new = stage.name("s"), stage.name("t")
    await stage.world.use(stage.clean, held)
    keys = set(await stage.world.enqueue(held, new, None))

    async def check(fetched: Any) -> None:
        items = [*fetched.items, *await stage.clean.take_all()]
        assert {item.lock.key for item in items} == keys
        assert len(items) == len(keys)
        assert await stage.clean.ack(*items) == [True] * len(keys)

    async def recover() -> None:
        await stage.clean.release_unknown()

    return Attempt(lambda: stage.provider.fetch_work_item(stage.me, fetch_options(10)), check, recover)


@_verb
async def renew_work_item_lock(stage: FaultStage) -> Attempt:
    item = await stage.item()

    async def check(result: object) -> None:
        assert result == [True]
        assert await stage.clean.ack(item) == [True]

    return Attempt(lambda: stage.provider.renew_work_item_lock(stage.me, [item.lock], TIMEOUTS), check)


@_verb
async def check_work_item(stage: FaultStage) -> Attempt:
    item = await stage.item()

    async def check(result: object) -> None:
        assert result == [True]
        assert await stage.clean.ack(item) == [True]

    return Attempt(lambda: stage.provider.check_work_item([item.lock]), check)


@_verb
async def begin_work_item(stage: FaultStage) -> Attempt:
    """A delivery that its fetch did not count, counted once."""
    await stage.world.enqueue(None)
    options = replace(fetch_options(1), uncounted_after=0)
    (item,) = (await stage.clean.provider.fetch_work_item(stage.me, options)).items

    async def check(result: object) -> None:
        assert result is True
        assert await stage.clean.give_back(item) == [True]
        again = await stage.clean.take_one()
        assert again.attempts == 2
        assert await stage.clean.ack(again) == [True]

    return Attempt(lambda: stage.provider.begin_work_item(stage.me, item.lock, 1), check)


@_verb
async def ack_work_item(stage: FaultStage) -> Attempt:
    """With session state: both are written, once."""
    session = stage.name("s")
    item = await stage.item(session)
    acks = [WorkAck(lock=item.lock, message="done", state=state_write(item))]
    attempt = Attempt(lambda: stage.provider.ack_work_item(stage.me, acks, TIMEOUTS))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        assert (await stage.world.record(session)).version == 1
        assert await stage.clean.check(item) == [False]

    attempt.check = check
    return attempt


@_verb
async def abandon_work_item(stage: FaultStage) -> Attempt:
    item = await stage.item()
    attempt = Attempt(lambda: stage.provider.abandon_work_item(stage.me, [WorkAbandon(lock=item.lock)]))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        again = await stage.clean.take_one()
        assert again.lock.key == item.lock.key
        assert await stage.clean.ack(again) == [True]

    attempt.check = check
    return attempt


@_verb
async def release_unknown_locks(stage: FaultStage) -> Attempt:
    item = await stage.item()
    attempt = Attempt(lambda: stage.provider.release_unknown_locks(stage.me, []))

    async def check(result: object) -> None:
        assert result == 1 or (attempt.unknown and result == 0)
        again = await stage.clean.take_one()
        assert again.lock.key == item.lock.key
        assert await stage.clean.ack(again) == [True]

    attempt.check = check
    return attempt


# --- sessions


@_verb
async def check_session(stage: FaultStage) -> Attempt:
    session = stage.name("s")
    await stage.world.use(stage.clean, session)

    async def check(result: Sequence[float | None]) -> None:
        assert result[0] is not None

    return Attempt(lambda: stage.provider.check_session(stage.me, [session]), check)


@_verb
async def release_session(stage: FaultStage) -> Attempt:
    session = stage.name("s")
    await stage.world.use(stage.clean, session)
    attempt = Attempt(lambda: stage.provider.release_session([session]))

    async def check(result: Sequence[str]) -> None:
        assert result == ["released"] or (attempt.unknown and result == ["not_held"])
        assert await stage.clean.holds_for(session) == [None]

    attempt.check = check
    return attempt


@_verb
async def release_idle_session(stage: FaultStage) -> Attempt:
    """For one new session, which is then claimed. Whatever was held before stays."""
    idle, new = stage.name("s"), stage.name("t")
    await stage.world.use(stage.clean, idle)
    await stage.world.enqueue(new)
    await stage.world.advance(OFFER_SECONDS)
    full = sum(holder == stage.clean.worker_id for holder in (await stage.world.holders()).values())
    options = fetch_options(1, max_sessions=full)
    users = {idle: "no such instance"}
    attempt = Attempt(
        lambda: stage.provider.release_idle_session(stage.me, options, min_idle=SESSION_LOCK, only_users=users)
    )

    async def check(result: Sequence[str]) -> None:
        assert result == [idle] or (attempt.unknown and result == [])
        item = await stage.clean.take_one(max_sessions=full)
        assert item.session_id == new
        assert await stage.clean.ack(item) == [True]

    attempt.check = check
    return attempt


@_verb
async def load_state(stage: FaultStage) -> Attempt:
    session = stage.name("s")
    await stage.clean.provider.states.save(state(session))
    return _same(stage, lambda provider: provider.states.load(session))


@_verb
async def save_state(stage: FaultStage) -> Attempt:
    """The first version of a record; its turn tells a repetition."""
    session = stage.name("s")
    return Attempt(
        lambda: stage.provider.states.save(state(session), expected_version=0, idempotency_key="once"), _is(1)
    )


@_verb
async def list_states(stage: FaultStage) -> Attempt:
    async def listed(provider: Provider) -> list[str]:
        return [row.session_id for row in await provider.states.list(SessionFilter(), 10)]

    return _same(stage, listed)


@_verb
async def count_states(stage: FaultStage) -> Attempt:
    return _same(stage, lambda provider: provider.states.count(SessionFilter()))


@_verb
async def find_families_of_states(stage: FaultStage) -> Attempt:
    session = stage.name("s")
    await stage.clean.provider.states.save(state(session))

    async def found(provider: Provider) -> list[list[str]]:
        families = await provider.states.families([session, "missing"])
        return [[row.session_id for row in rows] for rows in families]

    return _same(stage, found)


@_verb
async def delete_state(stage: FaultStage) -> Attempt:
    session = stage.name("s")
    await stage.clean.provider.states.save(state(session))
    return _once(Attempt(lambda: stage.provider.states.delete([session])), [session], [])


# --- orchestrations


@_verb
async def fetch_orchestration_item(stage: FaultStage) -> Attempt:
    name = stage.name("i")
    await stage.clean.provider.create_instance([new_instance(name)])

    async def check(fetched: Any) -> None:
        found = [item for item in fetched.items if item.instance_id == name]
        assert [len(item.messages) for item in found] == [1]
        await stage.finish(found[0])

    return Attempt(Peer(stage.provider, stage.me).fetch_instances, check)


@_verb
async def read_history(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.finish(at)
    cursor = HistoryCursor(at.instance_id, at.execution_id)
    return Attempt(lambda: stage.provider.read_history([cursor]), _is([HistoryPage(events=["event"], more=False)]))


@_verb
async def commit_turn(stage: FaultStage) -> Attempt:
    """History, a message, a work item and the state that goes with a result: all of it, once."""
    session = stage.name("s")
    start = await stage.instance()
    at = await stage.clean.go_on(start, consumed=message_ids(start), work_items=[work_item(start, 1, session)])
    item = await stage.clean.take_one()
    step = turn(
        at,
        acks=[item.lock],
        states=[state_write(item)],
        work_items=[work_item(at, 2, session)],
        messages=[NewMessage(instance_id=at.instance_id, payload="to itself")],
    )
    attempt = Attempt(lambda: stage.provider.commit_turn(stage.me, [step], TIMEOUTS))

    async def check(results: Any) -> None:
        assert results[0].committed or attempt.unknown
        assert await stage.clean.history(at) == ["event"] * 2
        assert (await stage.world.record(session)).version == 1
        assert await stage.clean.ack(await stage.clean.take_one()) == [True]
        owned = await stage.taken(at.instance_id)
        await stage.finish(owned)

    attempt.check = check
    return attempt


@_verb
async def release_instance(stage: FaultStage) -> Attempt:
    at = await stage.instance()

    async def check(_: object) -> None:
        (owned,) = [i for i in await stage.other.take_instances() if i.instance_id == at.instance_id]
        await stage.other.commit_one(owned, update=InstanceUpdate(status="completed"))

    return Attempt(lambda: stage.provider.release_instance(stage.me, [Release(instance_id=at.instance_id)]), check)


def _suspend(at: OrchestrationItem) -> Suspend:
    return Suspend(
        instance_id=at.instance_id,
        birth=at.birth,
        execution_id=at.execution_id,
        event_count=at.event_count,
        error_type="Unreadable",
        message="it cannot be read",
        code="old",
        needs_code=True,
    )


@_verb
async def suspend_instance(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    attempt = Attempt(lambda: stage.provider.suspend_instance(stage.me, [_suspend(at)]))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        assert (await stage.clean.info(at.instance_id)).status == "suspended"
        await stage.clean.provider.delete_instance([at.instance_id], force=True)

    attempt.check = check
    return attempt


@_verb
async def retry_suspended(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.clean.provider.suspend_instance(stage.me, [_suspend(at)])
    names = ["flow"]
    attempt = Attempt(lambda: stage.provider.retry_suspended(stage.me, names=names, code="new", limit=10))

    async def check(result: object) -> None:
        assert result == [at.instance_id] or (attempt.unknown and result == [])
        await stage.finish(await stage.taken(at.instance_id))

    attempt.check = check
    return attempt


@_verb
async def resume_instance(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.clean.provider.suspend_instance(stage.me, [_suspend(at)])
    attempt = Attempt(lambda: stage.provider.resume_instance([at.instance_id]))

    async def check(result: object) -> None:
        assert result == ["resumed"] or (attempt.unknown and result == ["not_suspended"])
        await stage.finish(await stage.taken(at.instance_id))

    attempt.check = check
    return attempt


@_verb
async def reset_instance(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    reset = Reset(
        instance_id=at.instance_id,
        birth=at.birth,
        execution_id=at.execution_id,
        event_count=at.event_count,
        keep=0,
        history=["reset"],
        messages=[NewMessage(instance_id=at.instance_id, payload="again")],
    )
    attempt = Attempt(lambda: stage.provider.reset_instance(reset))

    async def check(result: object) -> None:
        assert result or attempt.unknown
        taken = await stage.taken(at.instance_id)
        assert (taken.execution_id, taken.event_count) == (at.execution_id + 1, 1)
        await stage.finish(taken)

    attempt.check = check
    return attempt


# --- repair and hints


@_verb
async def sweep(stage: FaultStage) -> Attempt:
    async def check(swept: Any) -> None:
        assert swept.swept

    sweeping = partial(stage.provider.sweep, interval=0.0, session_retention=LONG_LEASE, worker_retention=LONG_LEASE)
    return Attempt(sweeping, check)


@_verb
async def hints(stage: FaultStage) -> Attempt:
    async def subscribe() -> None:
        async with stage.provider.hints(stage.me) as source:
            await source.wait(0.0)

    return Attempt(subscribe)


@_verb
async def wake(stage: FaultStage) -> Attempt:
    return Attempt(lambda: stage.provider.wake({"a": Hint(), None: Hint()}, [stage.name("i")]))


# --- the client


@_verb
async def create_instance(stage: FaultStage) -> Attempt:
    name = stage.name("i")
    attempt = Attempt(lambda: stage.provider.create_instance([new_instance(name)]))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        owned = await stage.taken(name)
        assert len(owned.messages) == 1
        await stage.finish(owned)

    attempt.check = check
    return attempt


@_verb
async def send_message(stage: FaultStage) -> Attempt:
    """The one verb that may be done twice: its caller is told so by the error."""
    start = await stage.instance()
    at = await stage.clean.go_on(start, consumed=message_ids(start))
    message = NewMessage(instance_id=at.instance_id, payload="m")
    attempt = Attempt(lambda: stage.provider.send_message([message]))

    async def check(result: object) -> None:
        assert result == ["delivered"]
        owned = await stage.taken(at.instance_id)
        assert len(owned.messages) == 1 or (attempt.unknown and len(owned.messages) == 2)
        await stage.finish(owned)

    attempt.check = check
    return attempt


@_verb
async def get_instance(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.finish(at)
    return _same(stage, lambda provider: provider.get_instance([at.instance_id]))


@_verb
async def list_instances(stage: FaultStage) -> Attempt:
    return _same(stage, lambda provider: provider.list_instances(ALL, 10))


@_verb
async def delete_instance(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    attempt = Attempt(lambda: stage.provider.delete_instance([at.instance_id], force=True))
    return _once(attempt, ["deleted"], ["unknown"])


@_verb
async def prune_instances(stage: FaultStage) -> Attempt:
    """An instance that has ended; after a lost reply, it may be gone."""
    at = await stage.instance()
    await stage.finish(at)
    attempt = Attempt(lambda: stage.provider.prune_instances(FINISHED, 0.0))

    async def check(pruned: Any) -> None:
        assert (pruned.instances, pruned.after) == (1, None) or (attempt.unknown and pruned.instances == 0)
        assert await stage.clean.provider.get_instance([at.instance_id]) == [None]

    return attempt


@_verb
async def prune_histories(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    assert (await stage.clean.commit_one(at, update=InstanceUpdate(status="running", continued=True))).committed
    attempt = Attempt(lambda: stage.provider.prune_histories(0.0))

    async def check(pruned: Any) -> None:
        assert pruned.executions >= 1 or attempt.unknown
        assert await stage.clean.history(at) == []
        await stage.clean.provider.delete_instance([at.instance_id], force=True)

    attempt.check = check
    return attempt


@_verb
async def read_origins(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.finish(at)
    return _same(stage, lambda provider: provider.read_origins(at.instance_id, at.execution_id))


@_verb
async def list_work_items(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.clean.commit_one(at, work_items=[work_item(at, 1)], update=InstanceUpdate(status="completed"))
    return _same(stage, lambda provider: provider.list_work_items(at.instance_id, 10))


@_verb
async def list_executions(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.finish(at)
    return _same(stage, lambda provider: provider.list_executions(at.instance_id, 10))


@_verb
async def list_tree(stage: FaultStage) -> Attempt:
    at = await stage.instance()
    await stage.finish(at)
    return _same(stage, lambda provider: provider.list_tree(at.instance_id, 10))


@_verb
async def measure_queues(stage: FaultStage) -> Attempt:
    return Attempt(lambda: stage.provider.measure_queues(10))


@_verb
async def count_instances(stage: FaultStage) -> Attempt:
    return _same(stage, lambda provider: provider.count_instances(10))


@_verb
async def get_quotas(stage: FaultStage) -> Attempt:
    return _same(stage, lambda provider: provider.get_quotas())


@_verb
async def set_quotas(stage: FaultStage) -> Attempt:
    limits = Quotas(instances=1_000_000 + stage.number)

    async def check(_: object) -> None:
        assert await stage.clean.provider.get_quotas() == limits

    return Attempt(lambda: stage.provider.set_quotas(limits), check)


@_verb
async def list_sessions(stage: FaultStage) -> Attempt:
    async def names(provider: Provider) -> list[str]:
        return [session.session_id for session in await provider.list_sessions(limit=10)]

    return _same(stage, names)


@_verb
async def list_workers(stage: FaultStage) -> Attempt:
    async def names(provider: Provider) -> list[str]:
        return [worker.worker_id for worker in await provider.list_workers()]

    return _same(stage, names)


@_verb
async def count_work(stage: FaultStage) -> Attempt:
    return _same(stage, lambda provider: provider.count_work())
