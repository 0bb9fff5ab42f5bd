"""Removal of instances that ended long ago, with their trees, and of histories of former executions."""

from __future__ import annotations

from dataclasses import replace

from affinity.limits import PRUNE_WINDOW
from affinity.provider.contract import (
    FINISHED,
    InstancePruning,
    InstanceUpdate,
    NewMessage,
    OrchestrationItem,
    Retention,
)
from affinity.provider.history import read_whole_history
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, turn
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.resets import reset
from affinity_conformance.providers.kernel.trees import DONE, child_of
from affinity_conformance.providers.peer import Peer

DAY = 86_400.0
COMPLETED = frozenset({"completed"})
CONTINUED = InstanceUpdate(status="running", continued=True)


class RetentionRules(Rules):
    """`Provider.prune_instances`, `Provider.prune_histories`, and the share that a sweep does of them."""

    async def test_an_instance_goes_when_it_ended_long_ago(self, cluster: Cluster) -> None:
        """Pruning goes by the time of the end, not of the creation (contract: prune_instances)."""
        a = await cluster.worker("a")
        await _ended(a, "old")
        late = await a.own("late")
        await cluster.advance(2 * DAY)
        await a.commit_one(late, update=DONE)
        assert await _pruned(a, 3 * DAY) == 0
        assert await _pruned(a, DAY, dry_run=True) == 1
        assert await _pruned(a, DAY) == 1
        assert await _existing_ids(a, "old", "late") == ["late"]
        assert await read_whole_history(a.provider, "old", 1) == []

    async def test_what_has_not_ended_stays(self, cluster: Cluster) -> None:
        """Pruning keeps pending, running and suspended instances (contract: prune_instances)."""
        a = await cluster.worker("a")
        await a.go_on(await a.own("running"))
        assert await a.suspend(await a.own("suspended"))
        await a.provider.create_instance([new_instance("pending")])
        await cluster.advance(DAY)
        assert await _pruned(a, 0.0, FINISHED) == 0
        assert await _existing_ids(a, "running", "suspended", "pending") == ["running", "suspended", "pending"]

    async def test_only_what_ended_as_asked_goes(self, cluster: Cluster) -> None:
        """Pruning removes instances with the given statuses only (contract: prune_instances)."""
        a = await cluster.worker("a")
        await _ended(a, "completed")
        await _ended(a, "failed", InstanceUpdate(status="failed", error="{}"))
        await cluster.advance(DAY)
        assert await _pruned(a, 0.0) == 1
        assert await _existing_ids(a, "completed", "failed") == ["failed"]
        assert await _pruned(a, 0.0, frozenset({"cancelled", "failed"})) == 1

    async def test_a_child_goes_with_its_parent_and_never_before_it(self, cluster: Cluster) -> None:
        """A child that ended long ago stays until its parent is removed (contract: prune_instances)."""
        a = await cluster.worker("a")
        parent, child = await _family(a)
        await a.commit_one(child, update=DONE)
        await cluster.advance(10 * DAY)
        assert await _pruned(a, DAY, FINISHED) == 0
        await a.commit_one(parent, update=DONE)
        await cluster.advance(2 * DAY)
        assert await _pruned(a, DAY, dry_run=True) == 2
        assert await _pruned(a, DAY) == 2
        assert await _existing_ids(a, "parent", "child") == []

    async def test_a_tree_stays_while_a_member_has_not_ended_for_long(self, cluster: Cluster) -> None:
        """A tree stays while a member runs or has ended lately (contract: prune_instances)."""
        a = await cluster.worker("a")
        parent, child = await _family(a)
        await a.commit_one(parent, update=DONE)
        await cluster.advance(10 * DAY)
        assert await _pruned(a, DAY, FINISHED) == 0
        await a.commit_one(child, update=InstanceUpdate(status="failed", error="{}"))
        assert await _pruned(a, DAY, FINISHED) == 0
        await cluster.advance(2 * DAY)
        assert await _pruned(a, DAY) == 2

    async def test_a_child_whose_parent_is_gone_goes_by_itself(self, cluster: Cluster) -> None:
        """A child without its parent is removed alone, also when another instance has the parent's id (contract:
        generation).
        """
        a = await cluster.worker("a")
        parent, child = await _family(a)
        await a.commit_one(child, update=DONE)
        await a.commit_one(parent, update=DONE)
        await a.provider.delete_instance(["parent"], tree=False)
        await a.own("parent")
        await cluster.advance(DAY)
        assert await _pruned(a, 0.0) == 1
        assert await _existing_ids(a, "parent", "child") == ["parent"]

    async def test_an_id_that_is_used_again_is_not_taken_for_the_old_one(self, cluster: Cluster) -> None:
        """The recorded end of an instance does not apply to its successor under the same id (contract: generation)."""
        a = await cluster.worker("a")
        await _ended(a, "i")
        await a.provider.delete_instance(["i"])
        await a.go_on(await a.own("i"))
        await cluster.advance(DAY)
        assert await _pruned(a, 0.0, FINISHED) == 0
        assert await _existing_ids(a, "i") == ["i"]

    async def test_an_instance_that_was_reset_counts_from_its_new_end(self, cluster: Cluster) -> None:
        """The time of the new end counts (contract: reset_instance)."""
        a, at = await cluster.owner("a", "i")
        await a.commit_one(at, update=InstanceUpdate(status="failed", error="{}"))
        await cluster.advance(DAY)
        assert await reset(a, replace(at, event_count=1), keep=1, messages=[NewMessage(instance_id="i", payload="on")])
        assert await _pruned(a, 0.0, FINISHED) == 0
        (again,) = await a.take_instances()
        assert (await a.commit_one(again, update=DONE)).committed
        assert await _pruned(a, DAY / 2, FINISHED) == 0
        await cluster.advance(DAY)
        assert await _pruned(a, DAY / 2, FINISHED) == 1

    async def test_pruning_goes_in_steps(self, cluster: Cluster) -> None:
        """Each step begins where the one before ended, and a dry run counts the same instances (limits:
        PRUNE_WINDOW).
        """
        a = await cluster.worker("a")
        number = PRUNE_WINDOW + 10
        for size in (PRUNE_WINDOW, 10):
            await a.provider.create_instance([new_instance(f"{size}.{n}") for n in range(size)])
            while items := await a.take_instances(PRUNE_WINDOW):
                turns = [turn(item, consumed=message_ids(item), update=DONE) for item in items]
                assert all(result.committed for result in await a.commit(*turns))
        await cluster.advance(DAY)
        assert await _pruned(a, 0.0, dry_run=True) == number
        first = await a.provider.prune_instances(COMPLETED, 0.0)
        assert 0 < first.instances < number
        assert first.after is not None
        assert await _pruned(a, 0.0) == number - first.instances

    async def test_two_concurrent_prunes_take_each_instance_once(self, cluster: Cluster) -> None:
        """Concurrent pruning removes each instance once (contract: prune_instances)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for n in range(5):
            await _ended(a, f"i{n}")
        await cluster.advance(DAY)
        first, second = await concurrently(lambda: _pruned(a, 0.0), lambda: _pruned(b, 0.0))
        assert first + second == 5

    async def test_the_history_of_a_former_execution_goes(self, cluster: Cluster) -> None:
        """Pruning removes the history of a former execution and keeps the current one's (contract: prune_histories)."""
        a = await cluster.worker("a")
        at = await a.go_on(await a.own("i"))
        await a.commit_one(at, update=CONTINUED)
        await cluster.advance(2 * DAY)
        second = replace(at, execution_id=2, event_count=0)
        await a.commit_one(second, update=CONTINUED)
        third = await a.go_on(replace(at, execution_id=3, event_count=0))
        assert (await a.provider.prune_histories(DAY, dry_run=True)).executions == 1
        pruned = await a.provider.prune_histories(DAY)
        assert (pruned.executions, pruned.limit_reached) == (1, False)
        histories = [await read_whole_history(a.provider, "i", execution) for execution in (1, 2, 3)]
        assert list(map(len, histories)) == [0, 1, 1]
        assert (await a.provider.prune_histories(DAY)).executions == 0
        assert (await a.commit_one(third, update=DONE)).committed

    async def test_the_histories_of_one_instance_go(self, cluster: Cluster) -> None:
        """Others keep theirs, and their keys of messages (contract: prune_histories)."""
        a = await cluster.worker("a")
        items = [await a.go_on(await a.own(name)) for name in ("i", "j")]
        for at in items:
            key = NewMessage(instance_id=at.instance_id, payload="m", unread_limit=9, key="k")
            assert list(await a.provider.send_message([key])) == ["delivered"]
            await a.commit_one(at, update=CONTINUED)
        await cluster.advance(1)
        assert (await a.provider.prune_histories(0.0, instance_id="i", dry_run=True)).executions == 1
        pruned = await a.provider.prune_histories(0.0, instance_id="i")
        assert (pruned.executions, pruned.limit_reached) == (1, False)
        assert [len(await a.history(at)) for at in items] == [0, 2]
        again = [NewMessage(instance_id=name, payload="m", unread_limit=9, key="k") for name in ("i", "j")]
        assert list(await a.provider.send_message(again)) == ["delivered", "repeated"]
        assert (await a.provider.prune_histories(0.0)).executions == 1

    async def test_what_is_left_of_a_long_history_is_its_beginning(self, cluster: Cluster) -> None:
        """A step removes a bounded number of events, the latest first (limits: PRUNE_EVENTS)."""
        a, at = await cluster.owner("a", "i")
        events = [str(n) for n in range(12_000)]
        assert (await a.commit_one(at, history=events, update=CONTINUED)).committed
        first = await a.provider.prune_histories(0.0)
        assert (first.executions, first.limit_reached) == (0, True)
        assert await a.history(at) == events[: len(await a.history(at))] != []
        assert (await a.provider.prune_histories(0.0)).executions == 1
        assert await a.history(at) == []

    async def test_a_sweep_prunes_when_it_is_asked_to(self, cluster: Cluster) -> None:
        """Sweeps with ``retention`` prune step by step, whichever worker sweeps, and keep failed instances (contract:
        sweep).
        """
        a = await cluster.worker("a")
        await _ended(a, "done")
        await _ended(a, "failed", InstanceUpdate(status="failed", error="{}"))
        await a.commit_one(await a.own("goes on"), update=CONTINUED)
        await cluster.advance(2 * DAY)
        await _ended(a, "late")
        assert (await cluster.sweep()).instances_removed == 0
        swept = await cluster.sweep(retention=Retention(instances=DAY, histories=DAY))
        assert (swept.instances_removed, swept.executions_removed) == (1, 1)
        assert await _existing_ids(a, "done", "failed", "late", "goes on") == ["failed", "late", "goes on"]
        await cluster.advance(2 * DAY)
        assert (await cluster.sweep(retention=Retention(instances=DAY))).instances_removed == 1


async def _pruned(a: Peer, older_than: float, status: frozenset[str] = COMPLETED, *, dry_run: bool = False) -> int:
    """The number of instances that all steps together removed."""
    step: InstancePruning = await a.provider.prune_instances(status, older_than, dry_run=dry_run)
    removed = step.instances
    while step.after is not None:
        step = await a.provider.prune_instances(status, older_than, after=step.after, dry_run=dry_run)
        removed += step.instances
    return removed


async def _ended(a: Peer, name: str, update: InstanceUpdate = DONE) -> None:
    assert (await a.commit_one(await a.own(name), update=update)).committed


async def _existing_ids(a: Peer, *names: str) -> list[str]:
    return [row.instance_id for row in await a.provider.get_instance(names) if row is not None]


async def _family(a: Peer) -> tuple[OrchestrationItem, OrchestrationItem]:
    """A parent that waits for a child."""
    parent = await a.own("parent")
    at = await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, "child")])
    (child,) = await a.take_instances()
    return at, child
