"""Every verb of the contract once: what it needs, the call, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from affinity.provider.contract import (
    FINISHED,
    OFFER_SECONDS,
    EndedWaits,
    Hint,
    HistoryCursor,
    HistoryPage,
    InstanceUpdate,
    MessageKey,
    MessageReply,
    MoveFilter,
    MoveReport,
    NewMessage,
    OrchestrationItem,
    PlannedMove,
    Provider,
    Quotas,
    Release,
    Reset,
    WorkAbandon,
    WorkAck,
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
from affinity.testing.conformance.providers.fault_fixtures import (
    ALL,
    Attempt,
    FaultFixtures,
    once,
    returns,
    same,
)
from affinity.testing.conformance.providers.fault_journals import JOURNAL_VERBS, JournalWriteOnce
from affinity.testing.conformance.providers.fault_resources import RESOURCE_VERBS
from affinity.testing.conformance.providers.peer import Peer

Prepare: TypeAlias = Callable[[FaultFixtures], Awaitable[Attempt]]

VERBS: Final[dict[str, Prepare]] = {}
"""The preparation of each verb, by its name."""


def _verb(prepare: Prepare) -> Prepare:
    VERBS[prepare.__name__] = prepare
    return prepare


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
    return returns(0, (await fixtures.registered()).drain)


@_verb
async def set_drain_wanted(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()

    async def then() -> None:
        clean = replace(newcomer, provider=fixtures.clean.provider)
        assert await clean.provider.free_drained_sessions(clean.identity) == 0
        assert await clean.provider.set_drain_wanted(clean.worker_id, wanted=False)
        await clean.leave()

    return returns(True, lambda: fixtures.provider.set_drain_wanted(newcomer.worker_id, wanted=True), then)


@_verb
async def free_drained_sessions(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()
    assert await fixtures.clean.provider.set_drain_wanted(newcomer.worker_id, wanted=True)
    return returns(0, lambda: fixtures.provider.free_drained_sessions(newcomer.identity))


@_verb
async def release_worker(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()

    async def then() -> None:
        workers = await fixtures.clean.provider.list_workers()
        assert newcomer.worker_id not in [worker.worker_id for worker in workers if worker.alive]

    return returns(None, newcomer.leave, then)


@_verb
async def exchange_load(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()

    async def check(_: object) -> None:
        told = {worker.worker_id: worker.sessions for worker in (await fixtures.clean.provider.get_load()).workers}
        assert told[newcomer.worker_id] == fixtures.number

    return Attempt(lambda: newcomer.provider.exchange_load(newcomer.identity, fixtures.number), check)


@_verb
async def get_load(fixtures: FaultFixtures) -> Attempt:
    async def check(load: Any) -> None:
        assert fixtures.me.worker_id in [worker.worker_id for worker in load.workers]

    return Attempt(fixtures.provider.get_load, check)


@_verb
async def suspend_rebalancing(fixtures: FaultFixtures) -> Attempt:
    async def check(_: object) -> None:
        assert not (await fixtures.clean.provider.get_load()).suspended

    return Attempt(lambda: fixtures.provider.suspend_rebalancing(suspended=False), check)


# --- work items


@_verb
async def fetch_work_item(fixtures: FaultFixtures) -> Attempt:
    """One item that claims its session, one of a session that is held, and one without a session."""
    held, new = await fixtures.held(), fixtures.name("t")
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
    return returns(
        [True],
        lambda: fixtures.provider.renew_work_item_lock(fixtures.me, [item.lock], TIMEOUTS),
        lambda: fixtures.assert_acks(item),
    )


@_verb
async def check_work_item(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return returns([True], lambda: fixtures.provider.check_work_item([item.lock]), lambda: fixtures.assert_acks(item))


@_verb
async def begin_work_item(fixtures: FaultFixtures) -> Attempt:
    """A delivery that its fetch did not count, counted once."""
    await fixtures.cluster.enqueue(None)
    item = await fixtures.clean.take_one(uncounted_after=0)

    async def then() -> None:
        assert await fixtures.clean.give_back(item) == [True]
        await fixtures.assert_comes_again(item, attempts=2)

    return returns(True, lambda: fixtures.provider.begin_work_item(fixtures.me, item.lock, 1), then)


@_verb
async def ack_work_item(fixtures: FaultFixtures) -> Attempt:
    """With session state and a journal: all is written, once."""
    session = fixtures.name("s")
    item = await fixtures.item(session)
    journal = await JournalWriteOnce.prepare(fixtures)
    acks = [WorkAck(lock=item.lock, message="done", state=state_write(item), journal=journal.write)]

    async def then() -> None:
        await journal.check()
        assert (await fixtures.cluster.record(session)).version == 1
        assert await fixtures.clean.check(item) == [False]

    return once([True], [False], lambda: fixtures.provider.ack_work_item(fixtures.me, acks, TIMEOUTS), then)


@_verb
async def abandon_work_item(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return once(
        [True],
        [False],
        lambda: fixtures.provider.abandon_work_item(fixtures.me, [WorkAbandon(lock=item.lock)]),
        lambda: fixtures.assert_comes_again(item),
    )


@_verb
async def release_unknown_locks(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return once(
        1,
        0,
        lambda: fixtures.provider.release_unknown_locks(fixtures.me, []),
        lambda: fixtures.assert_comes_again(item),
    )


@_verb
async def end_waits(fixtures: FaultFixtures) -> Attempt:
    (key,) = await fixtures.cluster.enqueue(None, fail_after=1.0)
    await fixtures.cluster.advance(2.0)
    attempt = Attempt(lambda: fixtures.provider.end_waits(fixtures.me, limit=10, tag_timeout=None, item_lock=30.0))

    async def check(result: EndedWaits) -> None:
        found = [item.lock.key for item, _ in result.failed]
        assert found == [key] or (attempt.unknown and not found)
        await fixtures.clean.release_unknown()
        assert await fixtures.clean.ack(await fixtures.clean.take_one()) == [True]  # nothing is left for the next verb

    async def recover() -> None:
        await fixtures.clean.release_unknown()

    attempt.check, attempt.recover = check, recover
    return attempt


# --- sessions


@_verb
async def check_session(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()

    async def check(result: Sequence[float | None]) -> None:
        assert result[0] is not None

    return Attempt(lambda: fixtures.provider.check_session(fixtures.me, [session]), check)


@_verb
async def release_session(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()

    async def then() -> None:
        assert await fixtures.clean.holds_for(session) == [None]

    return once(["released"], ["not_held"], lambda: fixtures.provider.release_session([session]), then)


@_verb
async def move_session(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()
    plan = PlannedMove(session_id=session, to=fixtures.other.worker_id, within=LONG_LEASE)

    async def then() -> None:
        assert await fixtures.other.take_moved(session) == [session]

    return returns(["planned"], lambda: fixtures.provider.move_session([plan]), then)


@_verb
async def take_session(fixtures: FaultFixtures) -> Attempt:
    """A second call finds that the session is there already."""
    session = fixtures.name("s")
    await fixtures.cluster.use(fixtures.other, session)
    assert await fixtures.other.plan(session, fixtures.me.worker_id) == "planned"

    async def check(taken: Any) -> None:
        assert [one.former for one in taken] == ["b"] or (attempt.unknown and taken == [])
        assert await fixtures.clean.holds_for(session) != [None]

    attempt = Attempt(
        lambda: fixtures.provider.take_session(fixtures.me, [session], max_sessions=10**6, session_lock=SESSION_LOCK),
        check,
    )
    return attempt


@_verb
async def release_idle_session(fixtures: FaultFixtures) -> Attempt:
    """For one new session, which is then claimed. All other held sessions stay."""
    idle, new = await fixtures.held(), fixtures.name("t")
    await fixtures.cluster.enqueue(new)
    await fixtures.cluster.advance(OFFER_SECONDS)
    full = sum(holder == fixtures.clean.worker_id for holder in (await fixtures.cluster.holders()).values())
    options = fetch_options(1, max_sessions=full)
    users = {idle: "no such instance"}

    async def then() -> None:
        item = await fixtures.clean.take_one(max_sessions=full)
        assert item.session_id == new
        await fixtures.assert_acks(item)

    return once(
        [idle],
        [],
        lambda: fixtures.provider.release_idle_session(fixtures.me, options, min_idle=SESSION_LOCK, only_users=users),
        then,
    )


@_verb
async def load_state(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.saved()
    return same(fixtures, lambda provider: provider.states.load(session))


@_verb
async def save_state(fixtures: FaultFixtures) -> Attempt:
    """The first version of a record; the idempotency key tells a repetition."""
    session = state(fixtures.name("s"))
    return returns(1, lambda: fixtures.provider.states.save(session, expected_version=0, idempotency_key="once"))


@_verb
async def find_families_of_states(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.saved()

    async def found(provider: Provider) -> list[list[str]]:
        families = await provider.states.families([session, "missing"])
        return [[row.session_id for row in rows] for rows in families]

    return same(fixtures, found)


@_verb
async def delete_state(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.saved()
    return once([session], [], lambda: fixtures.provider.states.delete([session]))


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
    at = await fixtures.ended()
    cursor = HistoryCursor(at.instance_id, at.execution_id)
    return returns([HistoryPage(events=["event"], more=False)], lambda: fixtures.provider.read_history([cursor]))


@_verb
async def commit_turn(fixtures: FaultFixtures) -> Attempt:
    """History, a message, a work item, and the state and the journal that go with a result: all of it, once."""
    session = fixtures.name("s")
    start = await fixtures.instance()
    at = await fixtures.clean.go_on(start, consumed=message_ids(start), work_items=[work_item(start, 1, session)])
    item = await fixtures.clean.take_one()
    journal = await JournalWriteOnce.prepare(fixtures)
    step = turn(
        at,
        acks=[item.lock],
        states=[state_write(item)],
        journals=[journal.write],
        work_items=[work_item(at, 2, session)],
        messages=[NewMessage(instance_id=at.instance_id, payload="to itself")],
        replies=[MessageReply("k", "1")],
    )
    attempt = Attempt(lambda: fixtures.provider.commit_turn(fixtures.me, [step], TIMEOUTS))

    async def check(results: Any) -> None:
        assert results[0].committed or attempt.unknown
        assert await fixtures.clean.history(at) == ["event"] * 2
        assert (await fixtures.cluster.record(session)).version == 1
        await journal.check()
        await fixtures.assert_acks(await fixtures.clean.take_one())
        await fixtures.assert_continues(at.instance_id)

    attempt.check = check
    return attempt


@_verb
async def release_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()

    async def then() -> None:
        (owned,) = [i for i in await fixtures.other.take_instances() if i.instance_id == at.instance_id]
        await fixtures.other.commit_one(owned, update=InstanceUpdate(status="completed"))

    release = Release(instance_id=at.instance_id)
    return returns(None, lambda: fixtures.provider.release_instance(fixtures.me, [release]), then)


@_verb
async def suspend_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()

    async def then() -> None:
        assert (await fixtures.clean.info(at.instance_id)).status == "suspended"
        await fixtures.remove(at.instance_id)

    return once(True, False, lambda: Peer(fixtures.provider, fixtures.me).suspend(at), then)


@_verb
async def retry_suspended(fixtures: FaultFixtures) -> Attempt:
    name = await fixtures.suspended()
    return once(
        [name],
        [],
        lambda: fixtures.provider.retry_suspended(fixtures.me, names=["flow"], code="new", limit=10),
        lambda: fixtures.assert_continues(name),
    )


@_verb
async def resume_instance(fixtures: FaultFixtures) -> Attempt:
    name = await fixtures.suspended()
    return once(
        ["resumed"],
        ["not_suspended"],
        lambda: fixtures.provider.resume_instance([name]),
        lambda: fixtures.assert_continues(name),
    )


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

    async def then() -> None:
        taken = await fixtures.taken(at.instance_id)
        assert (taken.execution_id, taken.event_count) == (at.execution_id + 1, 1)
        await fixtures.finish(taken)

    return once(True, False, lambda: fixtures.provider.reset_instance(reset), then)


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

    async def then() -> None:
        owned = await fixtures.taken(name)
        assert len(owned.messages) == 1
        await fixtures.finish(owned)

    return once([True], [False], lambda: fixtures.provider.create_instance([new_instance(name)]), then)


@_verb
async def send_message(fixtures: FaultFixtures) -> Attempt:
    """The one verb that may be done twice: the error says so to its caller."""
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
async def send_keyed_message(fixtures: FaultFixtures) -> Attempt:
    """With a key it may be sent again after any error."""
    start = await fixtures.instance()
    at = await fixtures.clean.go_on(start, consumed=message_ids(start))
    message = NewMessage(instance_id=at.instance_id, payload="m", key="k")

    async def then() -> None:
        owned = await fixtures.taken(at.instance_id)
        assert len(owned.messages) == 1
        await fixtures.finish(owned)

    return once(["delivered"], ["repeated"], lambda: fixtures.provider.send_message([message]), then)


# --- administration


@_verb
async def delete_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    return once(["deleted"], ["unknown"], lambda: fixtures.provider.delete_instance([at.instance_id], force=True))


@_verb
async def prune_instances(fixtures: FaultFixtures) -> Attempt:
    """An instance that has ended; after a lost reply, it may be gone."""
    at = await fixtures.ended()
    attempt = Attempt(lambda: fixtures.provider.prune_instances(FINISHED, 0.0))

    async def check(pruned: Any) -> None:
        assert pruned.instances >= 1 or attempt.unknown
        assert await fixtures.clean.provider.get_instance([at.instance_id]) == [None]

    attempt.check = check
    return attempt


@_verb
async def prune_histories(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    assert (await fixtures.clean.commit_one(at, update=InstanceUpdate(status="running", continued=True))).committed
    attempt = Attempt(lambda: fixtures.provider.prune_histories(0.0))

    async def check(pruned: Any) -> None:
        assert pruned.executions >= 1 or attempt.unknown
        assert await fixtures.clean.history(at) == []
        await fixtures.remove(at.instance_id)

    attempt.check = check
    return attempt


@_verb
async def set_quotas(fixtures: FaultFixtures) -> Attempt:
    limits = Quotas(instances=1_000_000 + fixtures.number)

    async def check(_: object) -> None:
        assert await fixtures.clean.provider.get_quotas() == limits

    return Attempt(lambda: fixtures.provider.set_quotas(limits), check)


@_verb
async def list_work_items(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.clean.commit_one(at, work_items=[work_item(at, 1)])
    return same(
        fixtures,
        lambda provider: provider.list_work_items(at.instance_id, 10),
        lambda: fixtures.remove(at.instance_id),
    )


@_verb
async def report_session_moves(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()
    listed = fixtures.clean.provider.list_session_moves
    (move,) = await listed(MoveFilter(session_id=session), limit=1)
    report = [MoveReport(move.epoch, 0.5, fixtures.number)]

    async def then() -> None:
        (told,) = await listed(MoveFilter(session_id=session), limit=1)
        assert (told.hydrate_seconds, told.hydrate_bytes) == (0.5, fixtures.number)

    return returns([move.reason], lambda: fixtures.provider.report_session_moves(report), then)


# --- verbs that only read


async def _sessions_by_id(provider: Provider, _: OrchestrationItem) -> list[tuple[str, int] | None]:
    first = await provider.list_sessions(limit=1)
    found = await provider.get_session([*(row.session_id for row in first), "no such session"])
    return [None if row is None else (row.session_id, row.epoch) for row in found]


async def _session_ids(provider: Provider, _: OrchestrationItem) -> list[str]:
    return [session.session_id for session in await provider.list_sessions(limit=10)]


async def _worker_ids(provider: Provider, _: OrchestrationItem) -> list[str]:
    return [worker.worker_id for worker in await provider.list_workers()]


async def _state_ids(provider: Provider, _: OrchestrationItem) -> list[str]:
    return [row.session_id for row in await provider.states.list(SessionFilter(), 10)]


async def _queue_sizes(provider: Provider, _: OrchestrationItem) -> tuple[object, ...]:
    sizes = await provider.measure_queues(10)
    return sizes.work_items, sizes.messages, sizes.suspended


READS: Final[dict[str, Callable[[Provider, OrchestrationItem], Awaitable[Any]]]] = {
    "list_states": _state_ids,
    "count_states": lambda provider, _: provider.states.count(SessionFilter()),
    "get_instance": lambda provider, at: provider.get_instance([at.instance_id]),
    "get_replies": lambda provider, at: provider.get_replies([MessageKey(at.instance_id, "k")]),
    "list_instances": lambda provider, _: provider.list_instances(ALL, 10),
    "read_origins": lambda provider, at: provider.read_origins(at.instance_id, at.execution_id),
    "list_executions": lambda provider, at: provider.list_executions(at.instance_id, 10),
    "list_tree": lambda provider, at: provider.list_tree(at.instance_id, 10),
    "measure_queues": _queue_sizes,
    "count_instances": lambda provider, _: provider.count_instances(10),
    "get_quotas": lambda provider, _: provider.get_quotas(),
    "get_session": _sessions_by_id,
    "list_sessions": _session_ids,
    "list_session_moves": lambda provider, _: provider.list_session_moves(MoveFilter(), limit=10),
    "list_workers": _worker_ids,
    "desired_workers": lambda provider, _: provider.desired_workers(),
    "count_work": lambda provider, _: provider.count_work(),
}
"""Verbs whose result does not change with time, or the part of it that does not; of an instance that has ended."""


def _reading(read: Callable[[Provider, OrchestrationItem], Awaitable[Any]]) -> Prepare:
    async def prepare(fixtures: FaultFixtures) -> Attempt:
        at = await fixtures.ended()
        return same(fixtures, lambda provider: read(provider, at))

    return prepare


VERBS.update({name: _reading(read) for name, read in READS.items()})
VERBS.update(JOURNAL_VERBS)
VERBS.update(RESOURCE_VERBS)
