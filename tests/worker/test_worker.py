"""One worker in this process: orchestrations end to end on every provider."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from affinity import Client, RuntimeOptions, Start, Worker
from affinity.errors import ActivityFailed, OrchestrationFailed, UnknownActivity, WorkerFenced
from affinity.orchestration.wire import ActivityTask
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkerIdentity, WorkItem
from affinity.provider.postgres import PostgresProvider
from affinity.provider.sqlite import SqliteProvider
from affinity_conformance.providers.builders import profile
from tests.support.apps import app

pytestmark = pytest.mark.anyio

OPTIONS = {"poll_interval": 0.2}


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.fixture
async def worker(kept_url: str) -> AsyncIterator[Worker]:
    async with Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as worker:
        yield worker


async def test_turns_on_a_session_run_in_order_under_one_epoch(worker: Worker, client: Client) -> None:
    run = await client.start("walk", 30)
    result = await client.wait(run.instance_id, timeout=30)
    assert [one["n"] for one in result] == list(range(30))
    assert len({one["epoch"] for one in result}) == 1
    assert {one["worker"] for one in result} == {worker.identity.worker_id}


async def test_a_warm_orchestration_is_never_replayed(worker: Worker, client: Client) -> None:
    """Sticky instances: after the first turn, no history is read."""
    run = await client.start("walk", 50)
    await client.wait(run.instance_id, timeout=30)
    assert worker.runtime.instances.replays == 0
    assert worker.runtime.instances.turns == 51


async def test_threads_fan_out_and_children(worker: Worker, client: Client) -> None:
    assert len(await client.wait((await client.start("stroll", 5)).instance_id, timeout=30)) == 5
    assert await client.wait((await client.start("fan_out", 300)).instance_id, timeout=30) == sum(range(300))
    assert await client.wait((await client.start("parent", 5)).instance_id, timeout=30) == [0, 0, 1, 3, 6]


async def test_a_failure_is_retried_and_then_reported(worker: Worker, client: Client) -> None:
    run = await client.start("failing", 3)
    with pytest.raises(OrchestrationFailed, match="attempt 3") as raised:
        await client.wait(run.instance_id, timeout=30)
    assert raised.value.error_type == ActivityFailed.__name__


async def test_timers_and_events(worker: Worker, client: Client) -> None:
    await client.start("collect", 5, instance_id="collect")
    for n in range(5):
        await client.raise_event("collect", "item", n)
    assert await client.wait("collect", timeout=30) == [0, 1, 2, 3, 4]
    await client.wait((await client.start("nap", 0.3)).instance_id, timeout=30)


@pytest.mark.parametrize("cached", [10_000, 0])
@pytest.mark.parametrize("sessions", [1, 100])
async def test_the_worker_concerned_is_notified_without_a_poll(
    kept_url: str, client: Client, cached: int, sessions: int
) -> None:
    """Of results, children, events and new executions, wherever they are for: no poll comes before the end."""
    options = RuntimeOptions.make(
        poll_interval=60,
        worker_lease_timeout=90,
        stall_timeout=90,
        instance_cache_size=cached,
        max_sessions_per_runtime=sessions,
    )
    async with (
        Worker(app, kept_url, options),
        Worker(app, kept_url, options.model_copy(update={"worker_node_id": "other"})),
    ):
        if sessions == 1:  # each of them has one of the two
            await client.wait((await client.start("alternate", 10)).instance_id, timeout=30)
            return
        runs = await client.start_many([Start("parent", 5), Start("fan_out", 20), Start("walk", 5), Start("nap", 0.05)])
        await client.start("relay", 6, instance_id="relay")
        for n in range(6):
            await client.raise_event("relay", "item", n)
        for run in runs:
            await client.wait(run.instance_id, timeout=30)
        assert await client.wait("relay", timeout=30) == [6, 5]


async def test_a_short_timer_does_not_wait_for_the_poll(kept_url: str, client: Client) -> None:
    """Which would come after the end of this test."""
    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=60, worker_lease_timeout=90, stall_timeout=90)):
        await client.wait((await client.start("nap", 0.05)).instance_id, timeout=30)


async def test_events_survive_continue_as_new(worker: Worker, client: Client) -> None:
    """All events are there before the first execution starts; each execution takes one."""
    await client.start("relay", 6, instance_id="relay")
    for n in range(6):
        await client.raise_event("relay", "item", n)
    assert await client.wait("relay", timeout=30) == [6, 5]


async def test_events_stay_in_order_over_continue_as_new(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that an execution leaves to the next are not overtaken by a fetch that was asked for before and reads
    the queue later.
    """
    chance = random.Random(1)
    for provider in (SqliteProvider, PostgresProvider):
        for verb in ("fetch_orchestration_item", "commit_turn"):
            monkeypatch.setattr(provider, verb, late(getattr(provider, verb), chance))
    async with Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)):
        runs = [await client.start("inbox", []) for _ in range(10)]
        for number in range(20):
            async with anyio.create_task_group() as tasks:
                for run in runs:
                    tasks.start_soon(run.raise_event, "item", number)
        for run in runs:
            assert await client.wait(run.instance_id, timeout=60) == list(range(20))


def late(verb: Callable[..., Awaitable[Any]], chance: random.Random) -> Callable[..., Awaitable[Any]]:
    """The same verb, up to 20 ms late."""

    async def called(*args: Any, **kwargs: Any) -> Any:
        await anyio.sleep(chance.uniform(0, 0.02))
        return await verb(*args, **kwargs)

    return called


@pytest.mark.parametrize("seed", range(3))
async def test_the_instance_cache_may_be_dropped_at_any_time(worker: Worker, client: Client, seed: int) -> None:
    """Dropping live coroutines at random moments changes nothing but the number of replays."""
    chance = random.Random(seed)
    runs = [await client.start("walk", 20, instance_id=f"walk-{n}") for n in range(10)]

    async def drop() -> None:
        while True:
            await anyio.sleep(chance.uniform(0, 0.002))
            worker.runtime.instances.drop_idle()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drop)
        for run in runs:
            result = await client.wait(run.instance_id, timeout=60)
            assert [one["n"] for one in result] == list(range(20))
            assert [one["attempt"] for one in result] == [1] * 20
        tasks.cancel_scope.cancel()
    assert worker.runtime.instances.replays > 0


async def test_an_orchestration_moves_to_where_its_session_is(kept_url: str, client: Client) -> None:
    """Two workers: the turns of an instance become local to the session's holder, wherever it starts."""
    async with (
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as one,
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as two,
    ):
        runs = [await client.start("walk", 30) for _ in range(10)]
        for run in runs:
            result = await client.wait(run.instance_id, timeout=60)
            assert len({(r["worker"], r["epoch"]) for r in result}) == 1
        assert one.runtime.instances.turns + two.runtime.instances.turns == 10 * 31
        assert one.runtime.instances.replays + two.runtime.instances.replays <= 10


async def test_a_burst_is_shared_and_each_session_begins_where_its_instance_is(kept_url: str, client: Client) -> None:
    """So that turns are local from the first one on: nothing is moved, and nothing is replayed."""
    async with (
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as one,
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as two,
    ):
        runs = await client.start_many([Start("walk", 20) for _ in range(60)])
        walks = [await client.wait(run.instance_id, timeout=60) for run in runs]
        assert all(len({(turn["worker"], turn["epoch"]) for turn in walk}) == 1 for walk in walks)
        assert one.runtime.instances.replays + two.runtime.instances.replays == 0
        held = [len(worker.runtime.sessions) for worker in (one, two)]
        assert sum(held) == 60
        assert [worker.runtime.instances.turns for worker in (one, two)] == [21 * sessions for sessions in held]
        assert min(held) >= 5  # half of them, unless the scheduler of a busy machine prefers one of the two


@pytest.mark.parametrize(("slots", "limit"), [(20, 200), (40, 10)], ids=["no slot more", "more than one fetch takes"])
async def test_turns_stay_fused_where_each_session_has_a_slot(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch, slots: int, limit: int
) -> None:
    """A fetch that took all there was, and as much as it could, leaves no item waiting for a slot."""
    monkeypatch.setattr("affinity.worker.fetcher.FETCH_LIMIT", limit)
    runs = await client.start_many([Start("walk", 30) for _ in range(20)])
    async with Worker(app, kept_url, RuntimeOptions.make(**OPTIONS, worker_concurrency=slots)) as worker:
        fetched = 0
        start = worker.runtime.activities.start

        def count(item: WorkItem, task: ActivityTask | None = None) -> None:
            nonlocal fetched
            fetched += task is None  # one that a turn has placed here comes with its task
            start(item, task)

        monkeypatch.setattr(worker.runtime.activities, "start", count)
        for one in runs:
            await client.wait(one.instance_id, timeout=60)
        assert worker.runtime.instances.turns == 20 * 31
        assert fetched <= 5 * 20


async def test_the_sessions_of_one_orchestration_are_for_all_workers(kept_url: str, client: Client) -> None:
    """It would like to have one session where it is, not all of them."""
    async with (
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as one,
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as two,
    ):
        run = await client.start("spread", 60)
        assert await client.wait(run.instance_id, timeout=60) == 60
        assert min(len(worker.runtime.sessions) for worker in (one, two)) >= 5  # as above


async def test_a_worker_whose_name_is_taken_stops_immediately(kept_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Long before it renews its lease, and before it polls. The other one says at its start that it takes the name."""
    twin = RuntimeOptions.make(
        worker_node_id="twin", worker_lease_timeout=90, work_item_lock_timeout=90, poll_interval=60, stall_timeout=90
    )
    with pytest.raises(WorkerFenced):
        await _until_fenced(Worker(app, kept_url, twin), Worker(app, kept_url, twin))
    assert caplog.text.count("worker twin: another process had this name") == 1


async def _until_fenced(first: Worker, second: Worker) -> None:
    async with first, second:
        with anyio.fail_after(30):
            await first.runtime.lease.ended.wait()
        assert second.runtime.lease.error is None


SECOND = WorkerIdentity(worker_id="twin", incarnation=Incarnation("another"))
ENDED = "ended"  # in place of the number of a process


@pytest.mark.parametrize(
    ("labels", "is_logged"),
    [
        ({"host": "elsewhere", "pid": "17"}, True),
        ({"host": socket.gethostname(), "pid": str(os.getppid())}, True),
        ({"host": socket.gethostname(), "pid": ENDED}, False),
        ({"host": socket.gethostname(), "pid": str(os.getpid())}, False),  # a container's process, number 1 again
        ({}, True),
    ],
)
async def test_a_worker_that_takes_the_name_of_another_process_logs_it(
    kept_url: str, caplog: pytest.LogCaptureFixture, labels: dict[str, str], is_logged: bool
) -> None:
    """Unless that one has ended, as its machine knows, or has given the name back."""
    if labels.get("pid") == ENDED:
        done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True, capture_output=True)
        labels = {**labels, "pid": done.stdout.decode().strip()}
    options = RuntimeOptions.make(worker_node_id="twin", **OPTIONS)
    provider = await open_provider(kept_url)
    try:
        await provider.register_worker(SECOND, 60.0, labels, profile=profile())
        async with Worker(app, kept_url, options):
            said = [one.getMessage() for one in caplog.records if "another process had this name" in one.getMessage()]
            assert len(said) == is_logged
            assert all(f"process {labels.get('pid')} on {labels.get('host')}" in one for one in said)
        caplog.clear()
        async with Worker(app, kept_url, options):
            assert "another process had" not in caplog.text
    finally:
        await provider.aclose()


async def test_a_worker_logs_when_it_is_full(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each time that it became so, with the option that would have it take more."""
    options = RuntimeOptions.make(**OPTIONS, max_sessions_per_runtime=2)
    async with Worker(app, sqlite_url, options) as worker, Client(sqlite_url) as client:
        runs = await client.start_many([Start("walk", 1) for _ in range(2)])
        for run in runs:
            await client.wait(run.instance_id, timeout=30)
        runtime = worker.runtime
        runtime.maintenance.report_capacity()
        runtime.maintenance.report_capacity()
        await runtime.sessions.remove_all()
        runtime.maintenance.report_capacity()
        for name in ("a", "b"):
            runtime.sessions.begin(name, 1)
        runtime.maintenance.report_capacity()
    said = [text for record in caplog.records if "no place left" in (text := record.getMessage())]
    assert len(said) == 2
    assert "holds 2 sessions and has no place left (max_sessions_per_runtime)" in said[0]


async def test_a_worker_is_offered_no_more_sessions_than_it_has_room_for(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds and what may be on its way to it count; an offer that nothing came of does so for a while."""
    async with Worker(app, kept_url, RuntimeOptions.make(**OPTIONS, max_sessions_per_runtime=3)) as worker:
        await client.wait((await client.start("walk", 2, instance_id="held")).instance_id, timeout=30)
        reserve, state = worker.runtime.capacity.try_reserve_session, worker.runtime.services.fetch_state
        assert [reserve(name) for name in ("held", "a", "b", "c")] == [False, True, True, False]
        monkeypatch.setattr("affinity.worker.capacity.OFFER_SECONDS", 0.0)
        state.reserved_sessions = dict.fromkeys(state.reserved_sessions, 0.0)
        assert [reserve(name) for name in ("c", "d", "e")] == [True, True, True]


async def test_two_sessions_on_two_workers_do_not_bounce(kept_url: str, client: Client) -> None:
    async with (
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS, max_sessions_per_runtime=1)) as one,
        Worker(app, kept_url, RuntimeOptions.make(**OPTIONS, max_sessions_per_runtime=1)) as two,
    ):
        run = await client.start("alternate", 40)
        result = await client.wait(run.instance_id, timeout=60)
        assert len({r["worker"] for r in result[::2]}) == 1
        assert one.runtime.instances.replays + two.runtime.instances.replays <= 2


class LossListener:
    """Writes down which sessions the worker says it lost."""

    def __init__(self) -> None:
        self.lost_sessions: list[str] = []

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        self.lost_sessions.append(session_id)

    async def sweep(self) -> None:
        return None


async def test_listeners_hear_of_a_loss_only_when_there_is_one(kept_url: str, client: Client) -> None:
    """State stays from turn to turn; it goes when the worker leaves."""
    listener = LossListener()
    async with Worker(app, kept_url, RuntimeOptions.make(**OPTIONS), listeners=[listener]):
        await client.wait((await client.start("walk", 20, instance_id="walk")).instance_id, timeout=30)
        assert listener.lost_sessions == []
    assert listener.lost_sessions == ["walk"]


@pytest.mark.parametrize("bound", [True, False])
async def test_an_unregistered_activity_fails_by_name(kept_url: str, client: Client, bound: bool) -> None:
    """With a session or without: after ``unregistered_timeout`` of workers that do not know it."""
    options = RuntimeOptions.make(**OPTIONS, unregistered_timeout=0.6)
    async with Worker(app, kept_url, options):
        run = await client.start("held_once" if bound else "held_with_timeout", "only_newer")
        with pytest.raises(OrchestrationFailed, match="only_newer") as raised:
            await client.wait(run.instance_id, timeout=30)
        assert raised.value.error_type == UnknownActivity.__name__
