"""Schedules: the fence of each write, starts in the same transaction, and which are due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from affinity.errors import QuotaExceeded
from affinity.limits import SCHEDULE_STEP
from affinity.provider.contract import InstanceUpdate, Provider, Quotas, Retention
from affinity.schedules.store.contract import ScheduleRow, ScheduleWrite, schedules_of
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import count_rows, message_ids, new_instance
from affinity_conformance.providers.cluster import Cluster, concurrently


class ScheduleRules(Rules):
    """The verbs of `ScheduleProvider`."""

    async def test_a_row_is_returned_as_it_was_written(self, cluster: Cluster) -> None:
        """Every column comes back, with the time of the write and the next revision (contract: ScheduleRow)."""
        provider = (await cluster.worker("a")).provider
        at = datetime(2026, 3, 29, 1, 30, 0, 125_000, tzinfo=UTC)
        row = _row(
            "nightly",
            spec='{"cron":"0 3 * * *","text":"\\u0000é"}',
            app="shop",
            code="c1",
            paused="operator",
            note="holidays",
            next_due=at,
            last_due=at - timedelta(days=1),
            running="i",
            queued=at,
            queued_until=at + timedelta(hours=1),
            retry_at=at + timedelta(minutes=1),
            skipped=3,
        )
        assert await _write(provider, row) == [True]
        (found,) = await schedules_of(provider).list_schedules(["nightly", "unknown"])
        assert found.created_at is not None
        assert found.updated_at is not None
        assert timedelta(0) <= found.updated_at - found.created_at < timedelta(seconds=1)
        assert replace(found, created_at=None, updated_at=None) == replace(row, revision=1)

    async def test_a_write_needs_the_revision_that_is_there(self, cluster: Cluster) -> None:
        """A write of an older revision, of another generation, or of a taken name does nothing; the others of its call
        are done (contract: write_schedules).
        """
        provider = (await cluster.worker("a")).provider
        assert await _write(provider, _row("s"), _row("t")) == [True, True]
        seen, other = await schedules_of(provider).list_schedules(["s", "t"])
        assert await _write(provider, replace(seen, skipped=1)) == [True]
        writes = [
            ScheduleWrite(row=replace(seen, skipped=2), starts=[new_instance("late")]),
            ScheduleWrite(row=replace(other, skipped=2), starts=[new_instance("right")]),
        ]
        assert list(await schedules_of(provider).write_schedules(writes)) == [False, True]
        assert [info is None for info in await provider.get_instance(["late", "right"])] == [True, False]
        assert await _write(provider, _row("s", generation="h")) == [False]
        (now,) = await schedules_of(provider).list_schedules(["s"])
        assert (now.skipped, now.revision, now.generation) == (1, 2, "g")
        assert await _write(provider, replace(now, generation="h")) == [False]
        assert await _write(provider, _row("missing", revision=1)) == [False]

    async def test_one_of_many_workers_fires(self, cluster: Cluster) -> None:
        """One of several concurrent writes from one revision is done, with its start (contract: write_schedules)."""
        workers = [await cluster.worker(name) for name in "abcd"]
        await _write(workers[0].provider, _row("s"))
        (seen,) = await schedules_of(workers[0].provider).list_schedules()
        outcomes = list[tuple[str, bool]]()

        async def fire(provider: Provider, name: str) -> None:
            tick = ScheduleWrite(row=replace(seen, running=name), starts=[new_instance(name)])
            (done,) = await schedules_of(provider).write_schedules([tick])
            outcomes.append((name, done))

        await concurrently(*(partial(fire, worker.provider, worker.worker_id) for worker in workers))
        won = [name for name, done in outcomes if done]
        assert len(won) == 1
        (now,) = await schedules_of(workers[0].provider).list_schedules()
        assert (now.running, now.revision) == (won[0], 2)
        found = await workers[0].provider.get_instance([worker.worker_id for worker in workers])
        assert [info.instance_id for info in found if info is not None] == won

    async def test_of_concurrent_creations_one_is_done(self, cluster: Cluster) -> None:
        """A name is created once (contract: write_schedules)."""
        workers = [await cluster.worker(name) for name in "abcd"]
        outcomes = list[bool]()

        async def create(provider: Provider, generation: str) -> None:
            outcomes.extend(await _write(provider, _row("s", generation=generation)))

        await concurrently(*(partial(create, worker.provider, worker.worker_id) for worker in workers))
        assert sorted(outcomes) == [False, False, False, True]

    async def test_an_instance_that_is_there_is_not_started_again(self, cluster: Cluster) -> None:
        """The schedule goes on although its tick was started before (contract: write_schedules)."""
        provider = (await cluster.worker("a")).provider
        await provider.create_instance([new_instance("s/g@1", start="first")])
        await _write(provider, _row("s"))
        (seen,) = await schedules_of(provider).list_schedules()
        before = await count_rows(provider)
        (done,) = await schedules_of(provider).write_schedules(
            [ScheduleWrite(row=seen, starts=[new_instance("s/g@1")])]
        )
        assert done
        assert await count_rows(provider) == before

    async def test_the_longest_due_schedule_is_measured(self, cluster: Cluster) -> None:
        """The time for which it has been due is measured; None if no schedule is due (contract: QueueStatistics)."""
        provider = (await cluster.worker("a")).provider
        now = (await schedules_of(provider).get_due_schedules(0)).now
        await _write(
            provider, _row("never"), *(_row(f"{n}", next_due=now + timedelta(seconds=n)) for n in (20, 10, 99))
        )
        assert (await provider.measure_queues(1)).late["schedules"] is None
        await cluster.advance(30)
        late = (await provider.measure_queues(1)).late["schedules"]
        assert late is not None
        assert 20 <= late < 25

    async def test_a_quota_refuses_the_whole_call(self, cluster: Cluster) -> None:
        """Then no schedule is written either (contract: write_schedules)."""
        provider = (await cluster.worker("a")).provider
        await _write(provider, _row("s"), _row("t"))
        rows = await schedules_of(provider).list_schedules()
        await provider.set_quotas(Quotas(instances=(await count_rows(provider))["instances"] + 1))
        writes = [ScheduleWrite(row=row, starts=[new_instance(row.name)]) for row in rows]
        with pytest.raises(QuotaExceeded) as caught:
            await schedules_of(provider).write_schedules(writes)
        assert caught.value.quota == "instances"
        assert list(await schedules_of(provider).list_schedules()) == list(rows)
        assert list(await schedules_of(provider).write_schedules(writes[:1])) == [True]

    async def test_what_is_due(self, cluster: Cluster) -> None:
        """The longest due first, up to the limit; the sweep knows when the next one is (contract: get_due_schedules,
        Sweep.due).
        """
        a = await cluster.worker("a")
        assert (await _due(a.provider), await _next_schedule(a.provider)) == ([], None)
        now = (await schedules_of(a.provider).get_due_schedules(1)).now
        times = {"late": -10.0, "later": -20.0, "soon": 600.0, "never": None}
        await _write(
            a.provider,
            *[
                _row(name, next_due=None if seconds is None else now + timedelta(seconds=seconds))
                for name, seconds in times.items()
            ],
        )
        assert await _due(a.provider) == ["later", "late"]
        assert await _due(a.provider, limit=1) == ["later"]
        assert (await _next_schedule(a.provider) or 0.0) <= 0
        for row in await schedules_of(a.provider).list_schedules(["late", "later"]):
            await _remove(a.provider, row)
        due = await schedules_of(a.provider).get_due_schedules(10)
        assert not due.rows
        assert 500 < (due.next_due or 0.0) <= 600
        assert 500 < (await _next_schedule(a.provider) or 0.0) <= 600
        await cluster.harness.advance(601)
        assert await _due(a.provider) == ["soon"]

    async def test_a_queued_tick_is_due_when_the_instance_before_it_has_ended(self, cluster: Cluster) -> None:
        """Neither the verb nor a sweep reports it before (contract: get_due_schedules)."""
        a, at = await cluster.owner("a", "i")
        now = (await schedules_of(a.provider).get_due_schedules(1)).now
        await _write(a.provider, _row("s", running="i", queued=now))
        (row,) = await schedules_of(a.provider).list_schedules()
        assert row.is_running
        assert (await _due(a.provider), await _next_schedule(a.provider)) == ([], None)
        await a.commit_one(at, consumed=message_ids(at), update=InstanceUpdate(status="completed"))
        assert await _due(a.provider) == ["s"]
        assert (await _next_schedule(a.provider) or 0.0) <= 0
        (row,) = await schedules_of(a.provider).list_schedules()
        assert not row.is_running

    async def test_schedules_are_listed_by_name(self, cluster: Cluster) -> None:
        """They are listed in pages, and for one app (contract: list_schedules)."""
        provider = (await cluster.worker("a")).provider
        await _write(provider, *[_row(name, app="shop" if name in "bd" else None) for name in "dbca"])
        assert _names(await schedules_of(provider).list_schedules(limit=3)) == ["a", "b", "c"]
        assert _names(await schedules_of(provider).list_schedules(after="c")) == ["d"]
        assert _names(await schedules_of(provider).list_schedules(app="shop")) == ["b", "d"]
        assert _names(await schedules_of(provider).list_schedules(app="shop", after="b", limit=5)) == ["d"]
        assert _names(await schedules_of(provider).list_schedules([])) == []

    async def test_an_ended_schedule_is_removed_with_the_instances(self, cluster: Cluster) -> None:
        """It goes with instances that ended at that time; a declared or paused schedule stays (contract: sweep)."""
        provider = (await cluster.worker("a")).provider
        queued = (await schedules_of(provider).get_due_schedules(1)).now
        await _write(
            provider,
            _row("ended"),
            _row("declared", app="shop"),
            _row("paused", paused="operator"),
            _row("active", next_due=queued + timedelta(days=99)),
            _row("waits", queued=queued, running="i"),
        )
        for seconds, left in ((50, 5), (100, 4)):
            await cluster.harness.advance(seconds)
            await provider.sweep(
                interval=0.0, session_retention=1e6, worker_retention=1e6, retention=Retention(instances=100.0)
            )
            assert len(await schedules_of(provider).list_schedules()) == left
        assert _names(await schedules_of(provider).list_schedules(["ended"])) == []

    async def test_a_deleted_schedule_is_gone(self, cluster: Cluster) -> None:
        """Its name is free again (contract: write_schedules)."""
        provider = (await cluster.worker("a")).provider
        await _write(provider, _row("s"))
        (row,) = await schedules_of(provider).list_schedules()
        assert await _remove(provider, replace(row, revision=5)) == [False]
        assert await _remove(provider, row) == [True]
        assert await _write(provider, _row("s", generation="h")) == [True]

    async def test_what_was_put_off_hides_nothing(self, cluster: Cluster) -> None:
        """Schedules that were put off keep none behind from its turn, and come again when their time is over (contract:
        get_due_schedules).
        """
        provider = (await cluster.worker("a")).provider
        now = (await schedules_of(provider).get_due_schedules(0)).now
        rows = [
            _row(f"s{number:03}", next_due=now - timedelta(seconds=2_000 - number))
            for number in range(SCHEDULE_STEP + 1)
        ]
        rows += [
            _row(f"q{number:03}", queued=now - timedelta(seconds=2_000 - number)) for number in range(SCHEDULE_STEP + 1)
        ]
        assert all(await schedules_of(provider).write_schedules([ScheduleWrite(row=row) for row in rows]))
        first = (await schedules_of(provider).get_due_schedules(SCHEDULE_STEP)).rows
        assert len(first) == 2 * SCHEDULE_STEP
        later = now + timedelta(seconds=60)
        assert all(
            await schedules_of(provider).write_schedules([ScheduleWrite(row=_put_off(row, later)) for row in first])
        )
        behind = await schedules_of(provider).get_due_schedules(SCHEDULE_STEP)
        assert {row.name for row in behind.rows} == {f"s{SCHEDULE_STEP}", f"q{SCHEDULE_STEP}"}
        assert behind.next_due is not None
        assert behind.next_due <= 0
        assert all(
            await schedules_of(provider).write_schedules(
                [ScheduleWrite(row=_put_off(row, later)) for row in behind.rows]
            )
        )
        none = await schedules_of(provider).get_due_schedules(SCHEDULE_STEP)
        assert not none.rows
        assert none.next_due is not None
        assert 0 < none.next_due <= 60
        await cluster.advance(61)
        assert len((await schedules_of(provider).get_due_schedules(SCHEDULE_STEP)).rows) == 2 * SCHEDULE_STEP


def _put_off(row: ScheduleRow, until: datetime) -> ScheduleRow:
    return replace(row, retry_at=until)


def _row(name: str, **fields: Any) -> ScheduleRow:
    return ScheduleRow(**{"name": name, "generation": "g", "spec": "{}", **fields})


async def _write(provider: Provider, *rows: ScheduleRow) -> list[bool]:
    return list(await schedules_of(provider).write_schedules([ScheduleWrite(row=row) for row in rows]))


async def _remove(provider: Provider, row: ScheduleRow) -> list[bool]:
    return list(await schedules_of(provider).write_schedules([ScheduleWrite(row=row, removed=True)]))


async def _due(provider: Provider, limit: int = 10) -> list[str]:
    return _names((await schedules_of(provider).get_due_schedules(limit)).rows)


async def _next_schedule(provider: Provider) -> float | None:
    return (await provider.sweep(interval=0.0, session_retention=1e6, worker_retention=1e6)).due["schedules"]


def _names(rows: Sequence[ScheduleRow]) -> list[str]:
    return [row.name for row in rows]
