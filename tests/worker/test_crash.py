"""Workers as real processes, stopped, paused and killed with real signals, on every provider."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from affinity import Client
from affinity.errors import ActivityPoisoned, OrchestrationFailed, OrchestrationPoisoned
from affinity_workflows import STUCK
from tests.support.activity_calls import ActivityCalls, open_calls
from tests.support.all_databases import on_all_databases
from tests.support.waiting import started
from tests.support.worker_processes import FAST, Workers, open_workers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def calls() -> AsyncIterator[ActivityCalls]:
    async with open_calls() as calls:
        yield calls


@pytest.fixture
def workers(kept_url: str, calls: ActivityCalls) -> Iterator[Workers]:
    with open_workers(kept_url) as workers:
        yield workers


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


async def test_a_killed_holder_is_replaced_within_its_lease(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """SIGKILL in the middle of an activity: another worker runs it again, under a new epoch, long before the locks of
    its work item and its session end, and it is recorded once.
    """
    first = workers.start("first", work_item_lock_timeout=60)
    run = await client.start("held_walk", 2, instance_id="walk")
    before = await calls.next()
    workers.start("second")
    first.send(signal.SIGKILL)
    again = await calls.next(timeout=45)
    assert (before["worker"], again["worker"]) == ("first", "second")
    assert (before["n"], again["n"], again["attempt"]) == (0, 0, 2)
    assert again["epoch"] > before["epoch"]
    await again.answer()
    await (await calls.next()).answer()
    result = await client.wait(run.instance_id, timeout=30)
    assert [(one["n"], one["worker"]) for one in result] == [(0, "second"), (1, "second")]


@on_all_databases
async def test_a_restarted_worker_goes_on_immediately(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """The same name, another process: it has the session without waiting for a lease, under a new epoch."""
    first = workers.start("stable", worker_lease_timeout=60, work_item_lock_timeout=60, stall_timeout=60)
    await client.start("held_walk", 1, instance_id="walk")
    before = await calls.next()
    first.send(signal.SIGKILL)
    first.wait()
    workers.start("stable", worker_lease_timeout=60, work_item_lock_timeout=60, stall_timeout=60)
    again = await calls.next(timeout=45)
    assert again["worker"] == "stable"
    assert again["pid"] != before["pid"]
    assert again["epoch"] > before["epoch"]
    await again.answer()
    assert len(await client.wait("walk", timeout=30)) == 1


@on_all_databases
async def test_a_paused_holder_finds_itself_out_and_corrupts_nothing(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """SIGSTOP for longer than every lease: when it wakes, its result is refused and its lease is gone; then it serves
    again.
    """
    paused = workers.start("paused", session_lock_timeout=5)
    await client.start("held_walk", 2, instance_id="walk")
    before = await calls.next()
    workers.start("other", session_lock_timeout=5)
    paused.pause()
    again = await calls.next()
    assert again["worker"] == "other"
    await again.answer()
    last = await calls.next()
    assert (last["worker"], last["n"]) == ("other", 1)
    await before.answer()  # it reads this when it wakes: its turn, as it thinks
    paused.send(signal.SIGCONT)
    paused.wait_log("lease lost")
    paused.wait_log("lease is back")
    await last.answer()
    result = await client.wait("walk", timeout=30)
    assert [(one["n"], one["worker"]) for one in result] == [(0, "other"), (1, "other")]
    assert [event.type for event in await client.history("walk")].count("activity_completed") == 2
    assert await client.wait((await client.start("stroll", 1)).instance_id, timeout=30)


@on_all_databases
async def test_a_second_process_of_a_name_fences_the_first(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """The first stops immediately, with an error; its running activity is cancelled, and is done by the second."""
    first = workers.start("twin")
    await client.start("held_walk", 1, instance_id="walk")
    before = await calls.next()
    workers.start("twin")
    assert first.wait() != 0
    with anyio.fail_after(30):
        await before.gone.wait()
    again = await calls.next()
    assert again["epoch"] > before["epoch"]
    await again.answer()
    assert len(await client.wait("walk", timeout=30)) == 1


@on_all_databases
async def test_sigterm_finishes_and_hands_on_immediately(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """Drain: running work ends here, the session's next work starts elsewhere immediately, and the exit code is 0."""
    leases: dict[str, Any] = {"worker_lease_timeout": 60, "work_item_lock_timeout": 60, "stall_timeout": 60}
    first = workers.start("first", **leases)
    await client.start("held_walk", 2, instance_id="walk")
    running = await calls.next()
    workers.start("second", **leases)
    first.send(signal.SIGTERM)
    first.wait_log("draining")
    await running.answer()
    following = await calls.next(timeout=45)
    assert (following["worker"], following["n"], following["attempt"]) == ("second", 1, 1)
    assert following["epoch"] > running["epoch"]
    assert first.wait() == 0
    await following.answer()
    result = await client.wait("walk", timeout=30)
    assert [(one["n"], one["worker"]) for one in result] == [(0, "first"), (1, "second")]


@on_all_databases
async def test_a_drain_that_takes_too_long_gives_back_without_burning_an_attempt(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    first = workers.start("first", drain_timeout=0.2)
    await client.start("held_walk", 1, instance_id="walk")
    running = await calls.next()
    workers.start("second")
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    again = await calls.next()
    assert (again["worker"], again["attempt"]) == ("second", running["attempt"])
    await again.answer()
    assert len(await client.wait("walk", timeout=30)) == 1


@on_all_databases
async def test_a_second_sigterm_changes_nothing(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """A supervisor may send it after a hook has: what runs ends here, and is not started again."""
    first = workers.start("first", drain_timeout=60)
    await client.start("held_walk", 1, instance_id="walk")
    running = await calls.next()
    for _ in range(2):
        first.send(signal.SIGTERM)
        first.wait_log("draining")
    workers.start("second")
    await running.answer()
    assert first.wait() == 0
    assert [one["worker"] for one in await client.wait("walk", timeout=30)] == ["first"]


@on_all_databases
async def test_ctrl_c_cuts_a_drain_short(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    first = workers.start("first", drain_timeout=60)
    await client.start("held_walk", 1, instance_id="walk")
    await calls.next()
    first.send(signal.SIGTERM)
    first.wait_log("draining")
    first.send(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGTERM
    assert "SIGINT, stopping now" in "\n".join(first.log)
    workers.start("second")
    await (await calls.next()).answer()
    assert len(await client.wait("walk", timeout=30)) == 1


@on_all_databases
async def test_ctrl_c_ends_a_worker_whose_event_loop_waits_for_a_socket(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """As by a request without `await`: no step of the interpreter follows, so that the signal has to interrupt it."""
    first = workers.start("blocked", stall_timeout=60)
    await client.start("held_once", "block_loop", instance_id="block")
    await calls.next()
    first.wait_log("blocked for more than a second")
    first.send(signal.SIGINT)
    first.wait_log("nothing can drain until it moves")
    first.send(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
    workers.start("second")
    await (await calls.next()).answer()
    assert (await client.wait("block", timeout=30))["worker"] == "second"


@on_all_databases
async def test_keep_alive_survives_a_blocked_loop(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """An activity that blocks the event loop past its leases keeps its session: a thread renews them."""
    lease = 2 * FAST["worker_lease_timeout"]  # the renewing thread must have a core to itself now and then
    workers.start("busy", stall_timeout=60, worker_lease_timeout=lease)
    await client.start("held_once", "block_loop", instance_id="block")
    blocked = await calls.next()
    workers.start("idle")
    # Work for the idle worker, whose end shows that time has passed; its timer outlasts the busy worker's lease.
    await client.wait((await client.start("nap", lease + 1.0)).instance_id, timeout=60)
    assert calls.waiting() == 0, "the blocked activity was started again"
    await blocked.answer()
    assert (await client.wait("block", timeout=30))["attempt"] == 1


@on_all_databases
async def test_a_hung_loop_is_not_kept_alive_for_ever(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """Past `stall_timeout` the worker gives its lease up, says where it hangs, and others take over."""
    hung = workers.start("hung", stall_timeout=3)
    await client.start("held_once", "block_loop", instance_id="block")
    await calls.next()
    workers.start("other", stall_timeout=60)
    line = hung.wait_log("no progress")
    assert "giving up the lease" in line
    hung.wait_log("block_loop")
    again = await calls.next()
    assert again["worker"] == "other"
    await again.answer()
    assert (await client.wait("block", timeout=30))["worker"] == "other"


@on_all_databases
async def test_a_session_goes_to_a_worker_that_registers_its_activity(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """A rolling deploy: the holder lacks the activity, so it gives the work back with the session."""
    workers.start("old")
    await client.wait((await client.start("walk", 1, instance_id="warm")).instance_id, timeout=30)
    await client.start("held_once", "only_newer", instance_id="rolling")
    workers.start("new", app="tests.support.apps:newer")
    assert (await client.wait("rolling", timeout=30))["worker"] == "new"


async def test_ten_workers_start_together_on_an_empty_database(workers: Workers, client: Client) -> None:
    started = [workers.launch(f"worker-{n}") for n in range(10)]
    for worker in started:
        worker.ready()
    assert {worker.worker_id for worker in await client.workers() if worker.alive} == {w.name for w in started}
    runs = [await client.start("walk", 3) for _ in range(20)]
    for run in runs:
        assert len(await client.wait(run.instance_id, timeout=60)) == 3


@pytest.mark.parametrize("activity", ["cancellable", "cancellable_thread"])
@pytest.mark.parametrize("how", ["instance", "select", "timeout"])
@on_all_databases
async def test_cancellation_reaches_a_running_activity(
    workers: Workers, client: Client, calls: ActivityCalls, activity: str, how: str
) -> None:
    """An instance cancelled, a select lost, a timeout: async code is cancelled at its await, sync code sees it."""
    workers.start("only")
    name = {"instance": "held_once", "select": "race", "timeout": "held_with_timeout"}[how]
    await client.start(name, activity, instance_id="cancel")
    await (await calls.next()).answer()
    if how == "instance":
        await client.cancel("cancel", "enough")
    elif how == "select":
        await client.raise_event("cancel", "stop", "now")
    ended = await calls.next(timeout=45)
    assert ended["state"]
    await ended.answer()
    ended_as = await client.wait_finished("cancel", timeout=30)
    assert ended_as.status == {"instance": "cancelled", "select": "completed", "timeout": "failed"}[how]


@on_all_databases
async def test_work_that_kills_its_worker_fails_as_poison(workers: Workers, client: Client) -> None:
    """Deliveries are counted where a kill cannot lose them; past ``max_attempts`` without an end the activity fails."""
    await client.start("held_once", "kill_worker", instance_id="poison")
    for _ in range(2):
        assert workers.launch("victim", max_attempts=2).wait() == -signal.SIGKILL
    workers.start("victim", max_attempts=2)
    with pytest.raises(OrchestrationFailed, match="started 2 times") as raised:
        await client.wait("poison", timeout=30)
    assert raised.value.error_type == ActivityPoisoned.__name__


@on_all_databases
async def test_poison_does_not_condemn_its_neighbours(workers: Workers, client: Client) -> None:
    """All were interrupted by the same deaths. After half of ``max_attempts`` each runs alone, and is counted when its
    code begins: only the one that kills is interrupted again.
    """
    innocent = [f"{name}-{n}" for name in ("held_once", "race") for n in range(5)]
    for name in innocent[::2]:
        await client.start(name.partition("-")[0], "doze", instance_id=name)
    await client.start("held_once", "kill_worker", instance_id="poison")
    for name in innocent[1::2]:
        await client.start(name.partition("-")[0], "doze", instance_id=name)
    for _ in range(3):
        assert workers.launch("victim", max_attempts=3).wait() == -signal.SIGKILL
    workers.start("victim", max_attempts=3)
    with pytest.raises(OrchestrationFailed, match="started 3 times") as raised:
        await client.wait("poison", timeout=60)
    assert raised.value.error_type == ActivityPoisoned.__name__
    for name in innocent:
        await client.wait(name, timeout=60)


@on_all_databases
async def test_an_orchestration_that_kills_does_not_condemn_its_neighbours(workers: Workers, client: Client) -> None:
    """Of the instances that worker after worker took, one is brought to life at a time; the others are given up."""
    innocent = [f"innocent-{n}" for n in range(5)]
    for name in innocent[::2]:
        await client.start("held_once", "doze", instance_id=name)
    await client.start("kills_its_worker", 1, instance_id="poison")
    for name in innocent[1::2]:
        await client.start("held_once", "doze", instance_id=name)
    for _ in range(3):
        assert workers.launch("victim", max_attempts=3).wait() == -signal.SIGKILL
    workers.start("victim", max_attempts=3)
    for name in innocent:
        await client.wait(name, timeout=60)
    with anyio.fail_after(30):
        while (suspension := (await client.status("poison")).suspension) is None:
            await anyio.sleep(0.05)
    assert suspension.error_type == OrchestrationPoisoned.__name__


@pytest.mark.slow
@on_all_databases
async def test_code_that_holds_the_interpreter_past_the_lease_comes_to_an_end(workers: Workers, client: Client) -> None:
    """Each of its runs is an attempt, though it is the lease that interrupts it, and the worker lives on."""
    await client.start("held_once", "hold_gil", instance_id="gil")
    workers.start("worker", max_attempts=2)
    with pytest.raises(OrchestrationFailed, match="started 2 times") as raised:
        await client.wait("gil", timeout=60)
    assert raised.value.error_type == ActivityPoisoned.__name__
    await client.start("held_once", "doze", instance_id="doze")
    assert await client.wait("doze", timeout=30) == 1


@pytest.mark.slow
@pytest.mark.slow_cases(r"stubborn\]")
@pytest.mark.parametrize("activity", ["stubborn", "stubborn_thread"])
@on_all_databases
async def test_code_that_ignores_its_cancellation_does_not_keep_the_process(
    workers: Workers, client: Client, calls: ActivityCalls, activity: str
) -> None:
    """The drain gives the work back, the exit says which activity is stuck, and the process ends."""
    first = workers.start("first", drain_timeout=0.2)
    await client.start("held_once", activity, instance_id="stuck")
    await (await calls.next()).answer()
    first.send(signal.SIGTERM)
    assert first.wait() == STUCK
    assert activity in first.wait_log("do not end")


@on_all_databases
async def test_an_event_reaches_an_instance_of_a_draining_worker(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """What a draining worker owns is not out of reach until it has left."""
    first = workers.start("first")
    await client.start("held_walk", 1, instance_id="walk")
    running = await calls.next()
    await client.start("collect", 1, instance_id="collect")
    await started(client, "collect")
    first.send(signal.SIGTERM)
    first.wait_log("draining")
    await client.raise_event("collect", "item", 7)
    assert await client.wait("collect", timeout=30) == [7]
    await running.answer()
    assert first.wait() == 0
