"""Failures: which are kept, for how long, and how they are listed and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from affinity.limits import FIRST_STACKS, LAST_STACKS
from affinity.provider.contract import (
    FailureFilter,
    FailurePlace,
    FailureRecord,
    InstanceUpdate,
    NewFailure,
    Retention,
    WorkItem,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ACTIVITY, ORCHESTRATION
from affinity_conformance.providers.cluster import ENQUEUER, Cluster
from affinity_conformance.providers.peer import Peer

HOUR: Final = 3600.0
FAILED: Final = InstanceUpdate(status="failed", error="{}")


def place_of(found: FailureRecord) -> FailurePlace:
    return FailurePlace(found.failed_at, found.instance_id, found.execution_id, found.activity_id, found.attempt)


async def fail(worker: Peer, item: WorkItem, error_type: str = "ValueError", stack: str | None = "where") -> None:
    """Give an item back after a failed attempt."""
    assert await worker.give_back(item, failed=True, error=f"{error_type}: no", error_type=error_type, stack=stack)


async def end(worker: Peer, instance_id: str, *failures: NewFailure, update: InstanceUpdate | None = FAILED) -> bool:
    """Take a turn of a new instance with these failures."""
    item = await worker.own(instance_id)
    return (await worker.commit_one(item, failures=failures, update=update)).committed


class FailureRules(Rules):
    """`list_failed_attempts`, `list_failures`, `group_failures`, and what keeps and removes failures."""

    async def test_each_failed_attempt_is_kept_with_its_error_and_stack(self, cluster: Cluster) -> None:
        """An attempt that was given back without a failure is none (contract: list_failed_attempts)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, None)
        await fail(a, item)
        await a.give_back(await a.take_one())
        await cluster.advance(60)
        await fail(a, await a.take_one(), "OSError", None)
        first, second = await a.provider.list_failed_attempts(*item.lock.key[:2], 10)
        assert (first.activity_id, first.attempt) == (item.lock.key.activity_id, 1)
        assert (first.error, first.stack, first.is_retried) == ("ValueError: no", "where", True)
        assert (first.kind, first.name, first.error_type) == ("activity", ACTIVITY, "ValueError")
        assert (second.attempt, second.error_type, second.stack) == (3, "OSError", None)
        assert 60 <= (second.failed_at - first.failed_at).total_seconds() < 80
        assert await a.provider.list_failed_attempts(*item.lock.key[:2], 1) == [second]
        assert await a.provider.list_failed_attempts(ENQUEUER, 99, 10) == []

    async def test_stacks_of_the_first_and_the_last_attempts_are_kept(self, cluster: Cluster) -> None:
        """All attempts are counted (contract: WorkAbandon.stack)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, None)
        attempts = FIRST_STACKS + LAST_STACKS + 10
        await fail(a, item)
        for _ in range(attempts - 1):
            await fail(a, await a.take_one())
        found = await a.provider.list_failed_attempts(*item.lock.key[:2], 1000)
        kept = [each.attempt for each in found if each.stack is not None]
        assert kept == [*range(1, FIRST_STACKS + 1), *range(attempts - LAST_STACKS + 1, attempts + 1)]
        assert [each.attempt for each in found] == [*range(1, attempts + 1)]

    async def test_a_turn_keeps_its_failures_if_it_is_committed(self, cluster: Cluster) -> None:
        """Of activities that have failed, and of the orchestration (contract: Turn.failures)."""
        a = await cluster.worker("a")
        activity = NewFailure(3, "charge", "ValueError", "ValueError: no", 2)
        whole = NewFailure(0, ORCHESTRATION, "ActivityFailed", "ActivityFailed: no", 0)
        assert await end(a, "i", activity, whole)
        item = await a.own("j")
        assert not (await a.commit_one(replace(item, event_count=7), failures=[whole])).committed
        found = await a.provider.list_failures(FailureFilter(seconds=HOUR), 10)
        shown = {(each.instance_id, each.kind, each.name, each.activity_id, each.attempt) for each in found}
        assert shown == {("i", "activity", "charge", 3, 2), ("i", "orchestration", ORCHESTRATION, 0, 0)}
        assert [each.is_retried for each in found] == [False, False]
        assert [each.activity_id for each in await a.provider.list_failed_attempts("i", 1, 10)] == [3]

    async def test_failures_are_listed_newest_first_in_pages(self, cluster: Cluster) -> None:
        """By time, name and class, each once (contract: list_failures)."""
        a = await cluster.worker("a")
        for number in range(5):
            error = "ValueError" if number % 2 else "OSError"
            activities = [NewFailure(n, "charge", error, f"{error}: {number}", 1) for n in (2, 3)]
            assert await end(a, f"i{number}", *activities, NewFailure(0, "order", error, "no", 0))
            await cluster.advance(600)
        provider = a.provider

        async def pages(where: FailureFilter, size: int) -> list[FailureRecord]:
            found, page = list[FailureRecord](), await provider.list_failures(where, size)
            while page:
                found += page
                page = await provider.list_failures(replace(where, after=place_of(page[-1])), size)
            return found

        for size in (1, 2, 100):
            found = await pages(FailureFilter(seconds=HOUR), size)
            assert len({place_of(each) for each in found}) == len(found) == 15
            assert [each.failed_at for each in found] == sorted((each.failed_at for each in found), reverse=True)
            of = await pages(FailureFilter(seconds=HOUR, kind="activity", name="charge", error_type="OSError"), size)
            assert [each.instance_id for each in of] == ["i4", "i4", "i2", "i2", "i0", "i0"]
            of = await pages(FailureFilter(seconds=HOUR, kind="activity", name="charge"), size)
            assert of == [each for each in found if each.name == "charge"], "of all classes, in the order of the time"
            of = await pages(FailureFilter(seconds=HOUR, kind="orchestration", name="order"), size)
            assert [each.instance_id for each in of] == ["i4", "i3", "i2", "i1", "i0"]
            assert {each.instance_id for each in await pages(FailureFilter(seconds=1300.0), size)} == {"i4", "i3"}
        assert await provider.list_failures(FailureFilter(seconds=HOUR, kind="activity", name="order"), 10) == []

    async def test_failures_are_counted_by_name_and_class(self, cluster: Cluster) -> None:
        """With the first and the last of the time; those with the most first (contract: group_failures)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, None)
        await fail(a, item)
        await cluster.advance(7200)
        await fail(a, await a.take_one())
        await cluster.advance(60)
        await fail(a, await a.take_one())
        await end(a, "i", NewFailure(2, ACTIVITY, "OSError", "no", 1), NewFailure(0, ACTIVITY, "OSError", "no", 0))
        found = await a.provider.group_failures(HOUR, 10, most=100)
        rows = [(each.kind, each.error_type, each.count, each.instances, each.is_cut) for each in found.groups]
        assert rows[0] == ("activity", "ValueError", 2, 1, False)
        assert sorted(rows[1:]) == [("activity", "OSError", 1, 1, False), ("orchestration", "OSError", 1, 1, False)]
        assert 60 <= (found.groups[0].last_at - found.groups[0].first_at).total_seconds() < 80
        assert 0 <= (found.now - found.groups[0].last_at).total_seconds() < 20
        assert [(each.instance_id, each.error) for each in found.groups[:1]] == [(ENQUEUER, "ValueError: no")]
        assert {(each.instance_id, each.error) for each in found.groups[1:]} == {("i", "no")}
        assert not found.is_cut
        assert (await a.provider.group_failures(86_400, 10, most=100)).groups[0].count == 3
        one = await a.provider.group_failures(HOUR, 1, most=1)
        assert (len(one.groups), one.is_cut) == (1, True)
        few = (await a.provider.group_failures(HOUR, 9, most=1)).groups
        counts = {each.error_type: (each.count, each.is_cut) for each in few}
        assert counts == {"ValueError": (1, True), "OSError": (1, False)}
        await cluster.advance(2 * HOUR)
        assert (await a.provider.group_failures(HOUR, 10, most=100)).groups == []

    async def test_suspended_instances_are_listed_until_they_go_on(self, cluster: Cluster) -> None:
        """However long ago they were suspended, and under their present reason (contract: list_failures)."""
        a = await cluster.worker("a")
        assert await a.suspend(await a.own("old"))
        await cluster.advance(2 * HOUR)
        assert await a.suspend(await a.own("other", name="billing"), error_type="UnknownOrchestration", message="m")
        await cluster.advance(60)
        assert await a.suspend(await a.own("new"))
        await end(a, "i", NewFailure(0, "order", "OSError", "no", 0))
        provider = a.provider

        async def pages(size: int, **conditions: Any) -> list[FailureRecord]:
            found, where = list[FailureRecord](), FailureFilter(seconds=HOUR, **conditions)
            page = await provider.list_failures(where, size)
            while page:
                found += page
                page = await provider.list_failures(replace(where, after=place_of(page[-1])), size)
            return found

        for size in (1, 2, 100):
            every = await pages(size)
            assert [each.instance_id for each in every] == ["i", "new", "other", "old"]
            assert [each.kind for each in every] == ["orchestration", *["suspension"] * 3]
            of = await pages(size, kind="suspension", name=ORCHESTRATION)
            assert [each.instance_id for each in of] == ["new", "old"]
            assert await pages(size, kind="suspension", name=ORCHESTRATION, error_type="Nondeterminism") == of
            assert await pages(size, kind="suspension", name=ORCHESTRATION, error_type="OSError") == []
            assert [each.instance_id for each in await pages(size, kind="orchestration", name="order")] == ["i"]
        other = every[2]
        shown = (other.name, other.error_type, other.error, other.is_retried, other.execution_id, other.activity_id)
        assert shown == ("billing", "UnknownOrchestration", "m", False, 1, 0)
        assert await provider.resume_instance(["new"]) == ["resumed"]
        assert await provider.delete_instance(["old"], force=True) == ["deleted"]
        assert [each.instance_id for each in await pages(10)] == ["i", "other"]
        assert [each.kind for each in (await provider.group_failures(HOUR, 10, most=10)).groups] == [
            "suspension",
            "orchestration",
        ]

    async def test_suspended_instances_are_counted_by_name_and_class(self, cluster: Cluster) -> None:
        """Before all that goes on by itself, and however long ago (contract: group_failures)."""
        a = await cluster.worker("a")
        for name in ("s1", "s2", "s3"):
            assert await a.suspend(await a.own(name))
            await cluster.advance(2 * HOUR)
        assert await a.suspend(await a.own("other"), error_type="UnknownOrchestration", message="m")
        for number in range(4):
            await end(a, f"i{number}", NewFailure(0, "order", "OSError", "no", 0))
        found = await a.provider.group_failures(HOUR, 10, most=100)
        rows = [(each.kind, each.error_type, each.count, each.instances, each.is_cut) for each in found.groups]
        assert rows == [
            ("suspension", "Nondeterminism", 3, 3, False),
            ("suspension", "UnknownOrchestration", 1, 1, False),
            ("orchestration", "OSError", 4, 4, False),
        ]
        first, second, _ = found.groups
        assert (first.name, first.instance_id) == (ORCHESTRATION, "s3")
        assert (second.instance_id, second.error) == ("other", "m")
        assert 4 * HOUR <= (first.last_at - first.first_at).total_seconds() < 4.1 * HOUR
        few = await a.provider.group_failures(HOUR, 1, most=2)
        assert [(each.count, each.is_cut) for each in few.groups] == [(2, True)]
        assert few.is_cut

    async def test_failures_go_with_their_instance_and_by_their_age(self, cluster: Cluster) -> None:
        """A sweep leaves those with a stack to the history of their execution (contract: Retention.failures)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, None)
        await fail(a, item)
        await fail(a, await a.take_one(), stack=None)
        await end(a, "i", NewFailure(0, "order", "OSError", "no", 0))
        await cluster.advance(100)
        for keep in (Retention(moves=1e9), Retention(failures=1000.0)):
            assert (await cluster.sweep(retention=keep)).failures_removed == 0
        assert (await cluster.sweep(retention=Retention(failures=50.0))).failures_removed == 2
        left = await a.provider.list_failures(FailureFilter(seconds=HOUR), 10)
        assert [(each.instance_id, each.attempt) for each in left] == [(ENQUEUER, 1)]
        assert await a.provider.delete_instance([ENQUEUER], force=True) == ["deleted"]
        assert await a.provider.list_failures(FailureFilter(seconds=HOUR), 10) == []

    async def test_failures_go_with_the_history_of_their_execution(self, cluster: Cluster) -> None:
        """With the events of a former execution (contract: prune_histories)."""
        a = await cluster.worker("a")
        again = InstanceUpdate(status="running", continued=True)
        assert await end(a, "i", NewFailure(2, "charge", "OSError", "no", 1), update=again)
        await cluster.advance(100)
        assert len(await a.provider.list_failed_attempts("i", 1, 10)) == 1
        await a.provider.prune_histories(50.0)
        assert await a.provider.list_failed_attempts("i", 1, 10) == []
