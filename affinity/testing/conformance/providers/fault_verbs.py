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
from affinity.testing.conformance.providers.cluster import Cluster
from affinity.testing.conformance.providers.harness import FaultyProvider
from affinity.testing.conformance.providers.peer import Peer


async def _nothing(*_: object) -> None:
    pass


@dataclass
class Attempt:
    """One verb: the call on the faulty provider, what its result must be, and how a worker gets over a lost reply."""

    call: Callable[[], Awaitable[Any]]
    check: Callable[[Any], Awaitable[None]] = _nothing
    recover: Callable[[], Awaitable[None]] = _nothing
    unknown: bool = False  # a reply was lost: the verb may have been done before


class FaultFixtures:
    """Worker ``a`` twice: on a provider that meets faults, and on one that does not; and another worker."""

    def __init__(self, cluster: Cluster, faulty: FaultyProvider, clean: Peer, other: Peer) -> None:
        self.cluster = cluster
        self.faulty = faulty
        self.clean = clean
        self.other = other
        self.number = 0  # of the attempt: each has ids of its own

    @classmethod
    async def build(cls, cluster: Cluster) -> FaultFixtures:
        """On a fresh database."""
        clean = await cluster.worker("a")
        return cls(cluster, await cluster.open_faulty(), clean, await cluster.worker("b"))

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
        await self.cluster.enqueue(session_id)
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

Prepare: TypeAlias = Callable[[FaultFixtures], Awaitable[Attempt]]

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


def _same(fixtures: FaultFixtures, ask: Callable[[Provider], Awaitable[Any]]) -> Attempt:
    """A verb that only reads: what it says is what the other provider says."""

    async def check(result: Any) -> None:
        assert result == await ask(fixtures.clean.provider)

    return Attempt(lambda: ask(fixtures.provider), check)


# --- workers


@_verb
async def register_worker(fixtures: FaultFixtures) -> Attempt:
    newcomer = fixtures.newcomer()

    async def check(_: object) -> None:
        assert await replace(newcomer, provider=fixtures.clean.provider).renew_lease(LONG_LEASE) is not None

    return Attempt(newcomer.register, check)


@_verb
async def renew_worker(fixtures: FaultFixtures) -> Attempt:
    async def check(lease: object) -> None:
        assert lease is not None

    return Attempt(lambda: fixtures.provider.renew_worker(fixtures.me, LONG_LEASE), check)


@_verb
async def drain_worker(fixtures: FaultFixtures) -> Attempt:
    newcomer = fixtures.newcomer()
    await replace(newcomer, provider=fixtures.clean.provider).register()
    return Attempt(newcomer.drain, _is(0))


@_verb
async def release_worker(fixtures: FaultFixtures) -> Attempt:
    newcomer = fixtures.newcomer()
    await replace(newcomer, provider=fixtures.clean.provider).register()

    async def check(_: object) -> None:
        workers = await fixtures.clean.provider.list_workers()
        assert newcomer.worker_id not in [worker.worker_id for worker in workers if worker.alive]

    return Attempt(newcomer.leave, check)


# --- work items


@_verb
async def fetch_work_item(fixtures: FaultFixtures) -> Attempt:
    """One item that claims its session, one of a session that is held, and one without a session."""
    held, new = fixtures.name("s"), fixtures.name("t")
    await fixtures.cluster.use(fixtures.clean, held)
    keys = set(await fixtures.cluster.enqueue(held, new, None))

    async def check(fetched: Any) -> None:
        items = [*fetched.items, *await fixtures.clean.take_all()]
        assert {item.lock.key for item in items} == keys
        assert len(items) == len(keys)
        assert await fixtures.clean.ack(*items) == [True] * len(keys)

    async def recover() -> None:
        await fixtures.clean.release_unknown()

    return Attempt(lambda: fixtures.provider.fetch_work_item(fixtures.me, fetch_options(10)), check, recover)


@_verb
async def renew_work_item_lock(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()

    async def check(result: object) -> None:
        assert result == [True]
        assert await fixtures.clean.ack(item) == [True]

    return Attempt(lambda: fixtures.provider.renew_work_item_lock(fixtures.me, [item.lock], TIMEOUTS), check)


@_verb
async def check_work_item(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()

    async def check(result: object) -> None:
        assert result == [True]
        assert await fixtures.clean.ack(item) == [True]

    return Attempt(lambda: fixtures.provider.check_work_item([item.lock]), check)


@_verb
async def begin_work_item(fixtures: FaultFixtures) -> Attempt:
    """A delivery that its fetch did not count, counted once."""
    await fixtures.cluster.enqueue(None)
    options = replace(fetch_options(1), uncounted_after=0)
    (item,) = (await fixtures.clean.provider.fetch_work_item(fixtures.me, options)).items

    async def check(result: object) -> None:
        assert result is True
        assert await fixtures.clean.give_back(item) == [True]
        again = await fixtures.clean.take_one()
        assert again.attempts == 2
        assert await fixtures.clean.ack(again) == [True]

    return Attempt(lambda: fixtures.provider.begin_work_item(fixtures.me, item.lock, 1), check)


@_verb
async def ack_work_item(fixtures: FaultFixtures) -> Attempt:
    """With session state: both are written, once."""
    session = fixtures.name("s")
    item = await fixtures.item(session)
    acks = [WorkAck(lock=item.lock, message="done", state=state_write(item))]
    attempt = Attempt(lambda: fixtures.provider.ack_work_item(fixtures.me, acks, TIMEOUTS))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        assert (await fixtures.cluster.record(session)).version == 1
        assert await fixtures.clean.check(item) == [False]

    attempt.check = check
    return attempt


@_verb
async def abandon_work_item(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    attempt = Attempt(lambda: fixtures.provider.abandon_work_item(fixtures.me, [WorkAbandon(lock=item.lock)]))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        again = await fixtures.clean.take_one()
        assert again.lock.key == item.lock.key
        assert await fixtures.clean.ack(again) == [True]

    attempt.check = check
    return attempt


@_verb
async def release_unknown_locks(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    attempt = Attempt(lambda: fixtures.provider.release_unknown_locks(fixtures.me, []))

    async def check(result: object) -> None:
        assert result == 1 or (attempt.unknown and result == 0)
        again = await fixtures.clean.take_one()
        assert again.lock.key == item.lock.key
        assert await fixtures.clean.ack(again) == [True]

    attempt.check = check
    return attempt


# --- sessions


@_verb
async def check_session(fixtures: FaultFixtures) -> Attempt:
    session = fixtures.name("s")
    await fixtures.cluster.use(fixtures.clean, session)

    async def check(result: Sequence[float | None]) -> None:
        assert result[0] is not None

    return Attempt(lambda: fixtures.provider.check_session(fixtures.me, [session]), check)


@_verb
async def release_session(fixtures: FaultFixtures) -> Attempt:
    session = fixtures.name("s")
    await fixtures.cluster.use(fixtures.clean, session)
    attempt = Attempt(lambda: fixtures.provider.release_session([session]))

    async def check(result: Sequence[str]) -> None:
        assert result == ["released"] or (attempt.unknown and result == ["not_held"])
        assert await fixtures.clean.holds_for(session) == [None]

    attempt.check = check
    return attempt


@_verb
async def release_idle_session(fixtures: FaultFixtures) -> Attempt:
    """For one new session, which is then claimed. Whatever was held before stays."""
    idle, new = fixtures.name("s"), fixtures.name("t")
    await fixtures.cluster.use(fixtures.clean, idle)
    await fixtures.cluster.enqueue(new)
    await fixtures.cluster.advance(OFFER_SECONDS)
    full = sum(holder == fixtures.clean.worker_id for holder in (await fixtures.cluster.holders()).values())
    options = fetch_options(1, max_sessions=full)
    users = {idle: "no such instance"}
    attempt = Attempt(
        lambda: fixtures.provider.release_idle_session(fixtures.me, options, min_idle=SESSION_LOCK, only_users=users)
    )

    async def check(result: Sequence[str]) -> None:
        assert result == [idle] or (attempt.unknown and result == [])
        item = await fixtures.clean.take_one(max_sessions=full)
        assert item.session_id == new
        assert await fixtures.clean.ack(item) == [True]

    attempt.check = check
    return attempt


@_verb
async def load_state(fixtures: FaultFixtures) -> Attempt:
    session = fixtures.name("s")
    await fixtures.clean.provider.states.save(state(session))
    return _same(fixtures, lambda provider: provider.states.load(session))


@_verb
async def save_state(fixtures: FaultFixtures) -> Attempt:
    """The first version of a record; its turn tells a repetition."""
    session = fixtures.name("s")
    return Attempt(
        lambda: fixtures.provider.states.save(state(session), expected_version=0, idempotency_key="once"), _is(1)
    )


@_verb
async def list_states(fixtures: FaultFixtures) -> Attempt:
    async def listed(provider: Provider) -> list[str]:
        return [row.session_id for row in await provider.states.list(SessionFilter(), 10)]

    return _same(fixtures, listed)


@_verb
async def count_states(fixtures: FaultFixtures) -> Attempt:
    return _same(fixtures, lambda provider: provider.states.count(SessionFilter()))


@_verb
async def find_families_of_states(fixtures: FaultFixtures) -> Attempt:
    session = fixtures.name("s")
    await fixtures.clean.provider.states.save(state(session))

    async def found(provider: Provider) -> list[list[str]]:
        families = await provider.states.families([session, "missing"])
        return [[row.session_id for row in rows] for rows in families]

    return _same(fixtures, found)


@_verb
async def delete_state(fixtures: FaultFixtures) -> Attempt:
    session = fixtures.name("s")
    await fixtures.clean.provider.states.save(state(session))
    return _once(Attempt(lambda: fixtures.provider.states.delete([session])), [session], [])


# --- orchestrations


@_verb
async def fetch_orchestration_item(fixtures: FaultFixtures) -> Attempt:
    name = fixtures.name("i")
    await fixtures.clean.provider.create_instance([new_instance(name)])

    async def check(fetched: Any) -> None:
        found = [item for item in fetched.items if item.instance_id == name]
        assert [len(item.messages) for item in found] == [1]
        await fixtures.finish(found[0])

    return Attempt(Peer(fixtures.provider, fixtures.me).fetch_instances, check)


@_verb
async def read_history(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.finish(at)
    cursor = HistoryCursor(at.instance_id, at.execution_id)
    return Attempt(lambda: fixtures.provider.read_history([cursor]), _is([HistoryPage(events=["event"], more=False)]))


@_verb
async def commit_turn(fixtures: FaultFixtures) -> Attempt:
    """History, a message, a work item and the state that goes with a result: all of it, once."""
    session = fixtures.name("s")
    start = await fixtures.instance()
    at = await fixtures.clean.go_on(start, consumed=message_ids(start), work_items=[work_item(start, 1, session)])
    item = await fixtures.clean.take_one()
    step = turn(
        at,
        acks=[item.lock],
        states=[state_write(item)],
        work_items=[work_item(at, 2, session)],
        messages=[NewMessage(instance_id=at.instance_id, payload="to itself")],
    )
    attempt = Attempt(lambda: fixtures.provider.commit_turn(fixtures.me, [step], TIMEOUTS))

    async def check(results: Any) -> None:
        assert results[0].committed or attempt.unknown
        assert await fixtures.clean.history(at) == ["event"] * 2
        assert (await fixtures.cluster.record(session)).version == 1
        assert await fixtures.clean.ack(await fixtures.clean.take_one()) == [True]
        owned = await fixtures.taken(at.instance_id)
        await fixtures.finish(owned)

    attempt.check = check
    return attempt


@_verb
async def release_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()

    async def check(_: object) -> None:
        (owned,) = [i for i in await fixtures.other.take_instances() if i.instance_id == at.instance_id]
        await fixtures.other.commit_one(owned, update=InstanceUpdate(status="completed"))

    return Attempt(
        lambda: fixtures.provider.release_instance(fixtures.me, [Release(instance_id=at.instance_id)]), check
    )


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
async def suspend_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    attempt = Attempt(lambda: fixtures.provider.suspend_instance(fixtures.me, [_suspend(at)]))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        assert (await fixtures.clean.info(at.instance_id)).status == "suspended"
        await fixtures.clean.provider.delete_instance([at.instance_id], force=True)

    attempt.check = check
    return attempt


@_verb
async def retry_suspended(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.clean.provider.suspend_instance(fixtures.me, [_suspend(at)])
    names = ["flow"]
    attempt = Attempt(lambda: fixtures.provider.retry_suspended(fixtures.me, names=names, code="new", limit=10))

    async def check(result: object) -> None:
        assert result == [at.instance_id] or (attempt.unknown and result == [])
        await fixtures.finish(await fixtures.taken(at.instance_id))

    attempt.check = check
    return attempt


@_verb
async def resume_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.clean.provider.suspend_instance(fixtures.me, [_suspend(at)])
    attempt = Attempt(lambda: fixtures.provider.resume_instance([at.instance_id]))

    async def check(result: object) -> None:
        assert result == ["resumed"] or (attempt.unknown and result == ["not_suspended"])
        await fixtures.finish(await fixtures.taken(at.instance_id))

    attempt.check = check
    return attempt


@_verb
async def reset_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    reset = Reset(
        instance_id=at.instance_id,
        birth=at.birth,
        execution_id=at.execution_id,
        event_count=at.event_count,
        keep=0,
        history=["reset"],
        messages=[NewMessage(instance_id=at.instance_id, payload="again")],
    )
    attempt = Attempt(lambda: fixtures.provider.reset_instance(reset))

    async def check(result: object) -> None:
        assert result or attempt.unknown
        taken = await fixtures.taken(at.instance_id)
        assert (taken.execution_id, taken.event_count) == (at.execution_id + 1, 1)
        await fixtures.finish(taken)

    attempt.check = check
    return attempt


# --- repair and hints


@_verb
async def sweep(fixtures: FaultFixtures) -> Attempt:
    async def check(swept: Any) -> None:
        assert swept.swept

    sweeping = partial(fixtures.provider.sweep, interval=0.0, session_retention=LONG_LEASE, worker_retention=LONG_LEASE)
    return Attempt(sweeping, check)


@_verb
async def hints(fixtures: FaultFixtures) -> Attempt:
    async def subscribe() -> None:
        async with fixtures.provider.hints(fixtures.me) as source:
            await source.wait(0.0)

    return Attempt(subscribe)


@_verb
async def wake(fixtures: FaultFixtures) -> Attempt:
    return Attempt(lambda: fixtures.provider.wake({"a": Hint(), None: Hint()}, [fixtures.name("i")]))


# --- the client


@_verb
async def create_instance(fixtures: FaultFixtures) -> Attempt:
    name = fixtures.name("i")
    attempt = Attempt(lambda: fixtures.provider.create_instance([new_instance(name)]))

    async def check(result: object) -> None:
        assert result == [True] or (attempt.unknown and result == [False])
        owned = await fixtures.taken(name)
        assert len(owned.messages) == 1
        await fixtures.finish(owned)

    attempt.check = check
    return attempt


@_verb
async def send_message(fixtures: FaultFixtures) -> Attempt:
    """The one verb that may be done twice: its caller is told so by the error."""
    start = await fixtures.instance()
    at = await fixtures.clean.go_on(start, consumed=message_ids(start))
    message = NewMessage(instance_id=at.instance_id, payload="m")
    attempt = Attempt(lambda: fixtures.provider.send_message([message]))

    async def check(result: object) -> None:
        assert result == ["delivered"]
        owned = await fixtures.taken(at.instance_id)
        assert len(owned.messages) == 1 or (attempt.unknown and len(owned.messages) == 2)
        await fixtures.finish(owned)

    attempt.check = check
    return attempt


@_verb
async def get_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.finish(at)
    return _same(fixtures, lambda provider: provider.get_instance([at.instance_id]))


@_verb
async def list_instances(fixtures: FaultFixtures) -> Attempt:
    return _same(fixtures, lambda provider: provider.list_instances(ALL, 10))


@_verb
async def delete_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    attempt = Attempt(lambda: fixtures.provider.delete_instance([at.instance_id], force=True))
    return _once(attempt, ["deleted"], ["unknown"])


@_verb
async def prune_instances(fixtures: FaultFixtures) -> Attempt:
    """An instance that has ended; after a lost reply, it may be gone."""
    at = await fixtures.instance()
    await fixtures.finish(at)
    attempt = Attempt(lambda: fixtures.provider.prune_instances(FINISHED, 0.0))

    async def check(pruned: Any) -> None:
        assert (pruned.instances, pruned.after) == (1, None) or (attempt.unknown and pruned.instances == 0)
        assert await fixtures.clean.provider.get_instance([at.instance_id]) == [None]

    return attempt


@_verb
async def prune_histories(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    assert (await fixtures.clean.commit_one(at, update=InstanceUpdate(status="running", continued=True))).committed
    attempt = Attempt(lambda: fixtures.provider.prune_histories(0.0))

    async def check(pruned: Any) -> None:
        assert pruned.executions >= 1 or attempt.unknown
        assert await fixtures.clean.history(at) == []
        await fixtures.clean.provider.delete_instance([at.instance_id], force=True)

    attempt.check = check
    return attempt


@_verb
async def read_origins(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.finish(at)
    return _same(fixtures, lambda provider: provider.read_origins(at.instance_id, at.execution_id))


@_verb
async def list_work_items(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.clean.commit_one(at, work_items=[work_item(at, 1)], update=InstanceUpdate(status="completed"))
    return _same(fixtures, lambda provider: provider.list_work_items(at.instance_id, 10))


@_verb
async def list_executions(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.finish(at)
    return _same(fixtures, lambda provider: provider.list_executions(at.instance_id, 10))


@_verb
async def list_tree(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.finish(at)
    return _same(fixtures, lambda provider: provider.list_tree(at.instance_id, 10))


@_verb
async def measure_queues(fixtures: FaultFixtures) -> Attempt:
    return Attempt(lambda: fixtures.provider.measure_queues(10))


@_verb
async def count_instances(fixtures: FaultFixtures) -> Attempt:
    return _same(fixtures, lambda provider: provider.count_instances(10))


@_verb
async def get_quotas(fixtures: FaultFixtures) -> Attempt:
    return _same(fixtures, lambda provider: provider.get_quotas())


@_verb
async def set_quotas(fixtures: FaultFixtures) -> Attempt:
    limits = Quotas(instances=1_000_000 + fixtures.number)

    async def check(_: object) -> None:
        assert await fixtures.clean.provider.get_quotas() == limits

    return Attempt(lambda: fixtures.provider.set_quotas(limits), check)


@_verb
async def list_sessions(fixtures: FaultFixtures) -> Attempt:
    async def names(provider: Provider) -> list[str]:
        return [session.session_id for session in await provider.list_sessions(limit=10)]

    return _same(fixtures, names)


@_verb
async def list_workers(fixtures: FaultFixtures) -> Attempt:
    async def names(provider: Provider) -> list[str]:
        return [worker.worker_id for worker in await provider.list_workers()]

    return _same(fixtures, names)


@_verb
async def count_work(fixtures: FaultFixtures) -> Attempt:
    return _same(fixtures, lambda provider: provider.count_work())
