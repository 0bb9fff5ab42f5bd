"""The kernel's verbs under faults: what each needs, the call, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from affinity.provider.contract import (
    FINISHED,
    FailureFilter,
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
    Provider,
    Quotas,
    Release,
    Restart,
    WorkItemInfo,
)
from affinity.records import ActivityWait
from affinity.session import SessionFilter
from affinity_conformance.providers.builders import (
    LONG_LEASE,
    TIMEOUTS,
    message_ids,
    new_instance,
    reset_of,
    state_write,
    turn,
    work_item,
)
from affinity_conformance.providers.fault_fixtures import (
    ALL,
    Attempt,
    FaultFixtures,
    FaultPart,
    Prepare,
    kernel_rows,
    nothing,
    once,
    returns,
    same,
)
from affinity_conformance.providers.kernel.fault_resources import RESOURCE_VERBS
from affinity_conformance.providers.kernel.fault_work import WORK_VERBS
from affinity_conformance.providers.peer import Peer

VERBS: Final[dict[str, Prepare]] = {}
"""The preparation of each verb, by its name."""


def _verb(prepare: Prepare) -> Prepare:
    VERBS[prepare.__name__] = prepare
    return prepare


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
    return await turn_once(fixtures)


async def turn_once(fixtures: FaultFixtures, also: Callable[[], Awaitable[None]] = nothing, **parts: Any) -> Attempt:
    """A turn with history, messages, a work item, session state and the parts given: all is written, once."""
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
        replies=[MessageReply("k", "1")],
        **parts,
    )

    async def check(results: Any) -> None:
        assert results[0].committed or attempt.unknown
        assert await fixtures.clean.history(at) == ["event"] * 2
        assert (await fixtures.cluster.record(session)).version == 1
        await also()
        await fixtures.assert_acks(await fixtures.clean.take_one())
        await fixtures.assert_continues(at.instance_id)

    attempt = Attempt(lambda: fixtures.provider.commit_turn(fixtures.me, [step], TIMEOUTS), check)
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
async def restart_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.ended()
    restart = Restart(new=new_instance(at.instance_id, name=at.name), ended=at.generation)

    async def then() -> None:
        taken = await fixtures.taken(at.instance_id)
        assert (taken.execution_id, taken.event_count, taken.generation) == (
            at.execution_id + 1,
            0,
            restart.new.generation,
        )
        await fixtures.finish(taken)

    return once([True], [False], lambda: fixtures.provider.restart_instance([restart]), then)


@_verb
async def reset_instance(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    reset = reset_of(at, 0, messages=[NewMessage(instance_id=at.instance_id, payload="again")])

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
async def notify_workers(fixtures: FaultFixtures) -> Attempt:
    return Attempt(lambda: fixtures.provider.notify_workers({"a": Hint(), None: Hint()}, [fixtures.name("i")]))


@_verb
async def watch_changes(fixtures: FaultFixtures) -> Attempt:
    async def subscribe() -> None:
        async with fixtures.provider.watch_changes() as watch:
            await watch.wait(0.0)

    return Attempt(subscribe)


@_verb
async def notify_changes(fixtures: FaultFixtures) -> Attempt:
    return Attempt(lambda: fixtures.provider.notify_changes([fixtures.name("c")]))


@_verb
async def begin_wait(fixtures: FaultFixtures) -> Attempt:
    wait = ActivityWait(1, fixtures.name("i"), 1, 1, "w", "other", None, None)
    return returns(None, lambda: fixtures.provider.begin_wait(wait))


@_verb
async def end_wait(fixtures: FaultFixtures) -> Attempt:
    return returns(None, lambda: fixtures.provider.end_wait(1))


@_verb
async def get_waits(fixtures: FaultFixtures) -> Attempt:
    return returns([], lambda: fixtures.provider.get_waits(fixtures.name("i")))


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

    async def check(result: object) -> None:
        assert result == ["delivered"]
        owned = await fixtures.taken(at.instance_id)
        assert len(owned.messages) == 1 or (attempt.unknown and len(owned.messages) == 2)
        await fixtures.finish(owned)

    attempt = Attempt(lambda: fixtures.provider.send_message([message]), check)
    return attempt


@_verb
async def send_keyed_message(fixtures: FaultFixtures) -> Attempt:
    """A message with a key may be sent again after any error."""
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

    async def check(pruned: Any) -> None:
        assert pruned.instances >= 1 or attempt.unknown
        while pruned.after is not None:  # a busy machine removes few in one step
            pruned = await fixtures.clean.provider.prune_instances(FINISHED, 0.0, after=pruned.after)
        assert await fixtures.clean.provider.get_instance([at.instance_id]) == [None]

    attempt = Attempt(lambda: fixtures.provider.prune_instances(FINISHED, 0.0), check)
    return attempt


@_verb
async def prune_histories(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    assert (await fixtures.clean.commit_one(at, update=InstanceUpdate(status="running", continued=True))).committed

    async def check(pruned: Any) -> None:
        assert pruned.executions >= 1 or attempt.unknown
        while pruned.limit_reached:
            pruned = await fixtures.clean.provider.prune_histories(0.0)
        assert await fixtures.clean.history(at) == []
        await fixtures.remove(at.instance_id)

    attempt = Attempt(lambda: fixtures.provider.prune_histories(0.0), check)
    return attempt


@_verb
async def set_quotas(fixtures: FaultFixtures) -> Attempt:
    limits = Quotas(instances=1_000_000 + fixtures.number)

    async def check(_: object) -> None:
        assert await fixtures.clean.provider.get_quotas() == limits

    return Attempt(lambda: fixtures.provider.set_quotas(limits), check)


@_verb
async def mark_encoded(fixtures: FaultFixtures) -> Attempt:
    former = (await fixtures.clean.provider.read_identity()).check_value
    value = f"value {fixtures.number}"

    async def check(_: object) -> None:
        found = await fixtures.clean.provider.read_identity()
        assert (found.encoded, found.check_value) == (True, value)

    return Attempt(lambda: fixtures.provider.mark_encoded(value, former=former), check)


@_verb
async def mark_offloaded(fixtures: FaultFixtures) -> Attempt:
    async def check(_: object) -> None:
        assert (await fixtures.clean.provider.read_identity()).offloaded

    return Attempt(fixtures.provider.mark_offloaded, check)


async def _items_at_no_time(instance_id: str, provider: Provider) -> list[WorkItemInfo]:
    return [replace(item, age=0.0) for item in await provider.list_work_items(instance_id, 10)]


@_verb
async def list_work_items(fixtures: FaultFixtures) -> Attempt:
    at = await fixtures.instance()
    await fixtures.clean.commit_one(at, work_items=[work_item(at, 1)])
    return same(
        fixtures,
        partial(_items_at_no_time, at.instance_id),
        lambda: fixtures.remove(at.instance_id),
    )


@_verb
async def report_session_moves(fixtures: FaultFixtures) -> Attempt:
    session = await fixtures.held()
    listed = fixtures.clean.provider.list_session_moves
    (move,) = await listed(MoveFilter(session_id=session), limit=1)
    report = [MoveReport(move.epoch, 0.5, fixtures.number, {"model": 2.5})]

    async def then() -> None:
        (move,) = await listed(MoveFilter(session_id=session), limit=1)
        assert (move.hydrate_seconds, move.hydrate_bytes) == (0.5, fixtures.number)
        assert move.resource_seconds == {"model": 2.5}

    return returns([move.reason], lambda: fixtures.provider.report_session_moves(report), then)


# --- verbs that only read


async def _session_ids(provider: Provider, _: OrchestrationItem) -> list[str]:
    page = [session.session_id for session in await provider.list_sessions(limit=10)]
    return [*page, *[session.session_id for session in await provider.list_sessions([*page[:1], "no such session"])]]


async def _name_of_database(provider: Provider, _: OrchestrationItem) -> str:
    return (await provider.read_identity()).name


async def _worker_ids(provider: Provider, _: OrchestrationItem) -> list[str]:
    return [worker.worker_id for worker in await provider.list_workers()]


async def _state_ids(provider: Provider, _: OrchestrationItem) -> list[str]:
    return [row.session_id for row in await provider.states.list(SessionFilter(), 10)]


async def _queue_sizes(provider: Provider, _: OrchestrationItem) -> tuple[object, ...]:
    sizes = await provider.measure_queues(10)
    return sizes.work_items, sizes.messages, sizes.suspended


async def _groups(provider: Provider) -> object:
    return (await provider.group_failures(60.0, 10, most=10)).groups


READS: Final[dict[str, Callable[[Provider, OrchestrationItem], Awaitable[Any]]]] = {
    "list_states": _state_ids,
    "count_states": lambda provider, _: provider.states.count(SessionFilter()),
    "get_instance": lambda provider, at: provider.get_instance([at.instance_id]),
    "list_waiting_tags": lambda provider, _: provider.list_waiting_tags(10),
    "get_values": lambda provider, at: provider.get_values([at.instance_id]),
    "measure_instance": lambda provider, at: provider.measure_instance(at.instance_id),
    "get_replies": lambda provider, at: provider.get_replies([MessageKey(at.instance_id, "k")]),
    "list_instances": lambda provider, _: provider.list_instances(ALL, 10),
    "count_matching": lambda provider, _: provider.count_matching(ALL, 10),
    "read_origins": lambda provider, at: provider.read_origins(at.instance_id, at.execution_id),
    "list_failed_attempts": lambda provider, at: provider.list_failed_attempts(at.instance_id, at.execution_id, 10),
    "list_failures": lambda provider, _: provider.list_failures(FailureFilter(seconds=60.0), 10),
    "group_failures": lambda provider, _: _groups(provider),
    "list_executions": lambda provider, at: provider.list_executions(at.instance_id, 10),
    "list_queue": lambda provider, _: provider.list_queue("retried", 10),
    "list_tree": lambda provider, at: provider.list_tree(at.instance_id, 10),
    "measure_queues": _queue_sizes,
    "sample_waiting_work": lambda provider, _: provider.sample_waiting_work(10),
    "count_instances": lambda provider, _: provider.count_instances(10),
    "count_statuses": lambda provider, _: provider.count_statuses(10),
    "get_quotas": lambda provider, _: provider.get_quotas(),
    "read_identity": _name_of_database,
    "list_sessions": _session_ids,
    "list_session_moves": lambda provider, _: provider.list_session_moves(MoveFilter(), limit=10),
    "list_session_uses": lambda provider, _: provider.list_session_uses("s"),
    "list_workers": _worker_ids,
    "list_code": lambda provider, _: provider.list_code(),
    "desired_workers": lambda provider, _: provider.desired_workers(),
}
"""Verbs whose result does not change with time, or the part of it that does not; of an instance that has ended."""


def _reading(read: Callable[[Provider, OrchestrationItem], Awaitable[Any]]) -> Prepare:
    async def prepare(fixtures: FaultFixtures) -> Attempt:
        at = await fixtures.ended()
        return same(fixtures, lambda provider: read(provider, at))

    return prepare


VERBS.update({name: _reading(read) for name, read in READS.items()})
VERBS.update(WORK_VERBS)
VERBS.update(RESOURCE_VERBS)

KERNEL: Final = FaultPart(verbs=VERBS, rows=kernel_rows)
