"""Trends: what is counted, once, in which minute and for which name."""

from __future__ import annotations

from functools import partial
from typing import Final

from affinity.provider.contract import InstanceUpdate, OrchestrationItem, Provider, Retention
from affinity.trends.durations import percentile
from affinity.trends.store.contract import LAG, STEP_ROWS, TrendCounts, TrendKind, trends_of
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ACTIVITY, ORCHESTRATION, message_ids, new_instance
from affinity_conformance.providers.cluster import ENQUEUER, Cluster, concurrently
from affinity_conformance.providers.peer import Peer

PAUSE: Final = 10.0
KEEP: Final = 86_400.0
TESTED: Final = "tested"
NAMES: Final = (TESTED, "other", "late", "busy", "bad", "calm")


async def count(cluster: Cluster, worker: Peer) -> None:
    """Let what has happened become old enough, and count all of it."""
    await cluster.advance(LAG + PAUSE)
    while await trends_of(worker.provider).count_trends(pause=PAUSE, keep=KEEP) == 0:
        pass


async def total(
    provider: Provider, name: str = "", kind: TrendKind = "orchestration", minutes: int = 60
) -> dict[str, int]:
    """The counts of a name that are not zero."""
    rows = (await trends_of(provider).read_trends(kind, name, minutes)).rows
    sums = {
        field: sum(getattr(row.counts, field) for row in rows)
        for field in ("started", "completed", "failed", "cancelled", "retries")
    }
    return {field: number for field, number in sums.items() if number}


async def begin(worker: Peer, instance_id: str, name: str = TESTED, delay: float = 0.0) -> OrchestrationItem:
    """Start an instance, and take it."""
    await worker.provider.create_instance([new_instance(instance_id, name=name, delay=delay)])
    return await take(worker, instance_id)


async def take(worker: Peer, instance_id: str) -> OrchestrationItem:
    return next(item for item in await worker.take_instances(names=NAMES) if item.instance_id == instance_id)


async def end(worker: Peer, instance_id: str, update: InstanceUpdate, name: str = TESTED) -> None:
    """Start an instance, and end it in its first turn."""
    await finish(worker, await begin(worker, instance_id, name), update)


async def finish(worker: Peer, item: OrchestrationItem, update: InstanceUpdate) -> None:
    assert (await worker.commit_one(item, consumed=message_ids(item), update=update)).committed


class TrendRules(Rules):
    """The verbs of `TrendProvider`."""

    async def test_starts_and_ends_count_for_their_name_and_for_all(self, cluster: Cluster) -> None:
        """Each instance counts once for its start, and once for its end (contract: count_trends)."""
        a = await cluster.worker("a")
        await end(a, "i", InstanceUpdate(status="completed"))
        await end(a, "j", InstanceUpdate(status="failed", error="{}"))
        await end(a, "k", InstanceUpdate(status="cancelled"), name="other")
        await a.provider.create_instance([new_instance("l", name="other")])
        await count(cluster, a)
        await count(cluster, a)
        assert await total(a.provider, TESTED) == {"started": 2, "completed": 1, "failed": 1}
        assert await total(a.provider, "other") == {"started": 2, "cancelled": 1}
        of_suite = (await total(a.provider, ORCHESTRATION)).get("started", 0)
        assert await total(a.provider) == {"started": 4 + of_suite, "completed": 1, "failed": 1, "cancelled": 1}
        assert await total(a.provider, "none") == {}
        assert await total(a.provider, TESTED, "activity") == {}

    async def test_counts_are_in_the_minute_of_the_event(self, cluster: Cluster) -> None:
        """A start and an end count in the minutes in which they were; later counts are added (contract:
        count_trends).
        """
        a = await cluster.worker("a")
        item = await begin(a, "i")
        await cluster.advance(120)
        await finish(a, item, InstanceUpdate(status="completed"))
        await count(cluster, a)
        await end(a, "j", InstanceUpdate(status="completed"))
        await cluster.advance(60)
        await count(cluster, a)
        rows = [
            (row.minute, row.counts)
            for row in (await trends_of(a.provider).read_trends("orchestration", TESTED, 60)).rows
        ]
        starts = [minute for minute, counts in rows for _ in range(counts.started)]
        ends = [minute for minute, counts in rows for _ in range(counts.completed)]
        assert len(starts) == len(ends) == 2
        assert ends[0] - starts[0] == 2
        assert starts[1] == ends[1]
        assert [minute for minute, _ in rows] == sorted(minute for minute, _ in rows)

    async def test_durations_are_from_the_start_to_the_end(self, cluster: Cluster) -> None:
        """A percentile of them is within a fifth; a delayed start begins when its delay ends (contract:
        count_trends).
        """
        a = await cluster.worker("a")
        items = [await begin(a, f"i{number}") for number in range(3)]
        await cluster.advance(100)
        for item in items:
            await finish(a, item, InstanceUpdate(status="completed"))
        await a.provider.create_instance([new_instance("late", name="late", delay=1000.0)])
        await cluster.advance(1000)
        late = await take(a, "late")
        await cluster.advance(10)
        await finish(a, late, InstanceUpdate(status="failed", error="{}"))
        await count(cluster, a)
        found = {each.name: each.counts.durations for each in await trends_of(a.provider).sum_trends(60, 10)}
        assert sum(found[TESTED].values()) == 3
        assert 80 < (percentile(found[TESTED], 0.5) or 0) < 125
        assert 8 < (percentile(found["late"], 0.95) or 0) < 13

    async def test_failed_attempts_count_for_activity_and_orchestration(self, cluster: Cluster) -> None:
        """An attempt that failed and is repeated is a retry; one that was given back is none (contract:
        count_trends).
        """
        a = await cluster.worker("a")
        await a.give_back(await cluster.give(a, None), failed=True)
        await a.give_back(await a.take_one(), failed=True, delay=3)
        await cluster.advance(3)
        await a.give_back(await a.take_one())
        await count(cluster, a)
        assert await total(a.provider, ACTIVITY, "activity") == {"retries": 2}
        assert (await total(a.provider, ORCHESTRATION))["retries"] == 2
        assert (await total(a.provider, kind="activity"))["retries"] == 2

    async def test_the_age_of_a_queue_is_of_its_oldest_row(self, cluster: Cluster) -> None:
        """Work that no worker has waits, from when it could be fetched; work that runs, or is delayed, does not
        (contract: count_trends).
        """
        a = await cluster.worker("a")
        await cluster.give(a, None, names=(ACTIVITY,))
        await cluster.enqueue(None, delay=500)
        await count(cluster, a)
        assert max(_ages((await trends_of(a.provider).read_trends("activity", ACTIVITY, 60)).rows), default=0) < 5
        await cluster.enqueue("s")
        await cluster.advance(100 - LAG - PAUSE)
        await count(cluster, a)
        for kind, name in (("activity", ACTIVITY), ("orchestration", ORCHESTRATION), ("orchestration", "")):
            rows = (await trends_of(a.provider).read_trends(kind, name, 60)).rows  # type: ignore[arg-type]
            assert 100 <= max(_ages(rows)) < 120

    async def test_a_start_that_no_worker_takes_waits(self, cluster: Cluster) -> None:
        """Messages count for their orchestration (contract: count_trends)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i", name=TESTED)])
        await cluster.advance(200)
        await count(cluster, a)
        rows = (await trends_of(a.provider).read_trends("orchestration", TESTED, 60)).rows
        assert 200 <= max(_ages(rows)) < 230

    async def test_one_caller_counts(self, cluster: Cluster) -> None:
        """Of several calls one counts; the others learn when the next is due (contract: count_trends)."""
        workers = [await cluster.worker(name) for name in "abcd"]
        await end(workers[0], "i", InstanceUpdate(status="completed"))
        await cluster.advance(LAG + 1)
        calls = [partial(trends_of(worker.provider).count_trends, pause=1000.0, keep=KEEP) for worker in workers]
        for _ in range(3):
            assert all(900 < seconds <= 1000 for seconds in await concurrently(*calls))
        assert await total(workers[0].provider, TESTED) == {"started": 1, "completed": 1}
        assert 800 < ((await cluster.sweep()).due["trends"] or 0) <= 1000
        await cluster.advance(1000)
        assert ((await cluster.sweep()).due["trends"] or 0) <= 0

    async def test_what_is_too_new_waits_for_the_next_count(self, cluster: Cluster) -> None:
        """Rows of the last seconds may belong to transactions that nobody sees yet (contract: count_trends)."""
        a = await cluster.worker("a")
        await count(cluster, a)
        await cluster.advance(PAUSE)
        await a.provider.create_instance([new_instance("i", name=TESTED)])
        await trends_of(a.provider).count_trends(pause=0.0, keep=KEEP)
        assert await total(a.provider, TESTED) == {}
        await count(cluster, a)
        assert await total(a.provider, TESTED) == {"started": 1}

    async def test_a_step_is_bounded(self, cluster: Cluster) -> None:
        """A call counts at most `STEP_ROWS` rows of each kind, and says that there are more (contract:
        count_trends).
        """
        a = await cluster.worker("a")
        await count(cluster, a)
        for first in range(0, STEP_ROWS + 100, 1000):
            await a.provider.create_instance([new_instance(f"i{n}", name=TESTED) for n in range(first, first + 1000)])
        await cluster.advance(LAG + PAUSE)
        assert await trends_of(a.provider).count_trends(pause=PAUSE, keep=KEEP) == 0
        before = (await total(a.provider, TESTED))["started"]
        assert 0 < before <= STEP_ROWS + 1000
        await count(cluster, a)
        assert (await total(a.provider, TESTED))["started"] == 6000

    async def test_what_is_too_old_is_not_counted(self, cluster: Cluster) -> None:
        """A first count, or one after a long time, goes back as far as counts are kept (contract: count_trends)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("old", name=TESTED)])
        await cluster.advance(3600)
        await a.provider.create_instance([new_instance("new", name=TESTED)])
        await cluster.advance(LAG + 1)
        await trends_of(a.provider).count_trends(pause=PAUSE, keep=600.0)
        assert await total(a.provider, TESTED, minutes=100) == {"started": 1}

    async def test_sums_begin_with_what_fails(self, cluster: Cluster) -> None:
        """By failures and retries, then starts; over the last minutes alone (contract: sum_trends)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance(f"b{n}", name="busy") for n in range(3)])
        await end(a, "i", InstanceUpdate(status="failed", error="{}"), name="bad")
        await a.provider.create_instance([new_instance("c", name="calm")])
        await count(cluster, a)
        names = [each.name for each in await trends_of(a.provider).sum_trends(60, 10)]
        assert [name for name in names if name in {"busy", "bad", "calm"}] == ["bad", "busy", "calm"]
        assert [each.name for each in await trends_of(a.provider).sum_trends(60, 1)] == ["bad"]
        await cluster.advance(3600)
        assert "bad" not in {each.name for each in await trends_of(a.provider).sum_trends(60, 10)}
        assert "bad" in {each.name for each in await trends_of(a.provider).sum_trends(100, 10)}

    async def test_a_read_knows_what_it_lacks(self, cluster: Cluster) -> None:
        """It says up to when all is counted (contract: read_trends)."""
        a = await cluster.worker("a")
        assert (await trends_of(a.provider).read_trends("orchestration", "", 60)).counted_to is None
        await count(cluster, a)
        await cluster.advance(100)
        found = await trends_of(a.provider).read_trends("orchestration", "", 60)
        assert found.counted_to is not None
        assert 100 <= (found.now - found.counted_to).total_seconds() < 120

    async def test_old_counts_are_removed(self, cluster: Cluster) -> None:
        """A sweep removes rows older than its bound, and nothing without one (contract: TrendProvider)."""
        a = await cluster.worker("a")
        await a.give_back(await cluster.give(a, None), failed=True)
        await end(a, "i", InstanceUpdate(status="completed"))
        await count(cluster, a)
        await cluster.advance(3600)
        for keep in (None, {"trends": 7200.0}):
            await cluster.sweep(retention=Retention(moves=1e9, guests=keep or {}))
            assert await total(a.provider, TESTED, minutes=100) == {"started": 1, "completed": 1}
        removed = (await cluster.sweep(retention=Retention(guests={"trends": 1800.0}))).removed
        assert removed["trends"] >= 3
        assert await total(a.provider, TESTED, minutes=100) == {}

    async def test_failed_attempts_go_with_their_instance(self, cluster: Cluster) -> None:
        """A deleted instance leaves no attempts to count (contract: TrendProvider)."""
        a = await cluster.worker("a")
        await a.give_back(await cluster.give(a, None), failed=True)
        assert await a.provider.delete_instance([ENQUEUER], force=True) == ["deleted"]
        await count(cluster, a)
        assert await total(a.provider, ACTIVITY, "activity") == {}


def _ages(rows: object) -> list[float]:
    found: list[TrendCounts] = [row.counts for row in rows]  # type: ignore[attr-defined]
    return [counts.queue_age for counts in found if counts.queue_age is not None]
