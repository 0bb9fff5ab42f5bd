"""The verbs on workers, work items and sessions under faults: what each needs, the call, and what must be true then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from affinity.provider.contract import (
    OFFER_SECONDS,
    EndedWaits,
    IdleSession,
    PlannedMove,
    Provider,
    WorkAbandon,
    WorkAck,
)
from affinity_conformance.providers.builders import (
    LONG_LEASE,
    SESSION_LOCK,
    TIMEOUTS,
    fetch_options,
    state,
    state_write,
)
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, nothing, once, returns, same

# --- workers


async def register_worker(fixtures: FaultFixtures) -> Attempt:
    newcomer = fixtures.newcomer()

    async def check(_: object) -> None:
        assert await replace(newcomer, provider=fixtures.clean.provider).renew_lease(LONG_LEASE) is not None

    return Attempt(newcomer.register, check)


async def renew_worker(fixtures: FaultFixtures) -> Attempt:
    async def check(lease: object) -> None:
        assert lease is not None

    return Attempt(lambda: fixtures.provider.renew_worker(fixtures.me, LONG_LEASE), check)


async def drain_worker(fixtures: FaultFixtures) -> Attempt:
    return returns(0, (await fixtures.registered()).drain)


async def set_drain_wanted(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()

    async def then() -> None:
        clean = replace(newcomer, provider=fixtures.clean.provider)
        assert await clean.drain(if_wanted=True) == 0
        assert await clean.provider.set_drain_wanted(clean.worker_id, wanted=False)
        await clean.leave()

    return returns(True, lambda: fixtures.provider.set_drain_wanted(newcomer.worker_id, wanted=True), then)


async def release_worker(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()

    async def then() -> None:
        workers = await fixtures.clean.provider.list_workers()
        assert newcomer.worker_id not in [worker.worker_id for worker in workers if worker.alive]

    return returns(None, newcomer.leave, then)


async def get_load(fixtures: FaultFixtures) -> Attempt:
    newcomer = await fixtures.registered()

    async def check(_: object) -> None:
        load = {worker.worker_id: worker.sessions for worker in (await fixtures.clean.provider.get_load()).workers}
        assert load[newcomer.worker_id] == fixtures.number

    return Attempt(lambda: newcomer.provider.get_load(newcomer.identity, held=fixtures.number), check)


async def suspend_rebalancing(fixtures: FaultFixtures) -> Attempt:
    async def check(_: object) -> None:
        assert not (await fixtures.clean.provider.get_load()).suspended

    return Attempt(lambda: fixtures.provider.suspend_rebalancing(suspended=False), check)


# --- work items


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


async def renew_work_item_lock(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return returns(
        [True],
        lambda: fixtures.provider.renew_work_item_lock(fixtures.me, [item.lock], TIMEOUTS),
        lambda: fixtures.assert_acks(item),
    )


async def check_work_item(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return returns([True], lambda: fixtures.provider.check_work_item([item.lock]), lambda: fixtures.assert_acks(item))


async def begin_work_item(fixtures: FaultFixtures) -> Attempt:
    """A delivery that its fetch did not count, counted once."""
    await fixtures.cluster.enqueue(None)
    item = await fixtures.clean.take_one(uncounted_after=0)

    async def then() -> None:
        assert await fixtures.clean.give_back(item) == [True]
        await fixtures.assert_comes_again(item, attempts=2)

    return returns(True, lambda: fixtures.provider.begin_work_item(fixtures.me, item.lock, 1, pause=0.0), then)


async def ack_work_item(fixtures: FaultFixtures) -> Attempt:
    return await ack_once(fixtures)


async def ack_once(fixtures: FaultFixtures, also: Callable[[], Awaitable[None]] = nothing, **fields: Any) -> Attempt:
    """An ack with session state, and with the fields given: all is written, once."""
    session = fixtures.name("s")
    item = await fixtures.item(session)
    acks = [WorkAck(lock=item.lock, message="done", state=state_write(item), **fields)]

    async def then() -> None:
        await also()
        assert (await fixtures.cluster.record(session)).version == 1
        assert await fixtures.clean.check(item) == [False]

    return once([True], [False], lambda: fixtures.provider.ack_work_item(fixtures.me, acks, TIMEOUTS), then)


async def abandon_work_item(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return once(
        [True],
        [False],
        lambda: fixtures.provider.abandon_work_item(fixtures.me, [WorkAbandon(lock=item.lock)]),
        lambda: fixtures.assert_comes_again(item),
    )


async def release_unknown_locks(fixtures: FaultFixtures) -> Attempt:
    item = await fixtures.item()
    return once(
        1,
        0,
        lambda: fixtures.provider.release_unknown_locks(fixtures.me, []),
        lambda: fixtures.assert_comes_again(item),
    )


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


async def release_session(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()

    async def then() -> None:
        assert await fixtures.clean.holds_for(session) == [None]

    return once(["released"], ["not_held"], lambda: fixtures.provider.release_session([session]), then)


async def move_session(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()
    plan = PlannedMove(session_id=session, to=fixtures.other.worker_id, within=LONG_LEASE)

    async def then() -> None:
        assert await fixtures.other.take_moved(session) == [session]

    return returns(["planned"], lambda: fixtures.provider.move_session([plan]), then)


async def take_session(fixtures: FaultFixtures) -> Attempt:
    """A second call finds that the session is there already."""
    session = fixtures.name("s")
    await fixtures.cluster.use(fixtures.other, session)
    assert await fixtures.other.plan(session, fixtures.me.worker_id) == "planned"

    async def check(taken: Any) -> None:
        assert [session.former for session in taken] == ["b"] or (attempt.unknown and taken == [])
        assert await fixtures.clean.holds_for(session) != [None]

    attempt = Attempt(
        lambda: fixtures.provider.take_session(fixtures.me, [session], max_sessions=10**6, session_lock=SESSION_LOCK),
        check,
    )
    return attempt


async def release_idle_session(fixtures: FaultFixtures) -> Attempt:
    """Release it for one new session, which is then claimed. All other held sessions stay."""
    idle, new = await fixtures.held(), fixtures.name("t")
    await fixtures.cluster.enqueue(new)
    await fixtures.cluster.advance(OFFER_SECONDS)
    full = sum(holder == fixtures.clean.worker_id for holder in (await fixtures.cluster.holders()).values())
    options = fetch_options(1, max_sessions=full)
    order = [IdleSession(session_id=idle, only_user="no such instance")]

    async def then() -> None:
        item = await fixtures.clean.take_one(max_sessions=full)
        assert item.session_id == new
        await fixtures.assert_acks(item)

    return once(
        [idle],
        [],
        lambda: fixtures.provider.release_idle_session(fixtures.me, options, order=order),
        then,
    )


async def load_state(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.saved()
    return same(fixtures, lambda provider: provider.states.load(session))


async def save_state(fixtures: FaultFixtures) -> Attempt:
    """The first version of a record; a repetition is known by the idempotency key."""
    session = state(fixtures.name("s"))
    return returns(1, lambda: fixtures.provider.states.save(session, expected_version=0, idempotency_key="once"))


async def list_relatives_of_states(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.saved()

    async def found(provider: Provider) -> list[list[str]]:
        states = provider.states
        both = await states.children([session, "missing"], 10), await states.ancestors(session, 10)
        return [[row.session_id for row in rows] for rows in both]

    return same(fixtures, found)


async def delete_state(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.saved()
    return once([session], [], lambda: fixtures.provider.states.delete([session]))


WORK_VERBS: Final = {
    prepare.__name__: prepare
    for prepare in (
        register_worker,
        renew_worker,
        drain_worker,
        set_drain_wanted,
        release_worker,
        get_load,
        suspend_rebalancing,
        fetch_work_item,
        renew_work_item_lock,
        check_work_item,
        begin_work_item,
        ack_work_item,
        abandon_work_item,
        release_unknown_locks,
        end_waits,
        release_session,
        move_session,
        take_session,
        release_idle_session,
        load_state,
        save_state,
        list_relatives_of_states,
        delete_state,
    )
}
