"""The metrics of a worker at its port."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from typing import Final
from unittest.mock import AsyncMock

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Wake, Worker
from affinity.conversation import UserMessage
from affinity.errors import ConnectionLost, OrchestrationFailed, UnknownActivity, WakeFailed, WorkerStalled
from affinity.provider.contract import InstanceCounts, QueueStatistics
from affinity.worker import metrics
from affinity.worker.measures import Measure
from tests.conversation.application import Chat, stage
from tests.support.apps import app
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

WAIT_SECONDS: Final = 30.0
"""Seconds; a wait ends as soon as there is what it waits for."""


async def test_what_happened_is_counted(sqlite_url: str) -> None:
    options = RuntimeOptions.make(worker_node_id="w-0", poll_interval=0.2, metrics_port=0)
    async with Worker(app, sqlite_url, options) as worker, Client(sqlite_url) as client:
        for name, value in (("walk", 3), ("stroll", 2), ("failing", 1)):
            run = await client.start(name, value)
            try:
                await client.wait(run.instance_id, timeout=30)
            except OrchestrationFailed:
                assert name == "failing"
        await worker.drain()  # it has heard of its last commit too
        assert worker.metrics_port
        found = await anyio.to_thread.run_sync(_scraped, worker.metrics_port)
    activities = {(labels["activity"], labels["outcome"]): n for labels, n in found["affinity_activities_total"]}
    assert activities == {("step", "completed"): 3, ("sync_step", "completed"): 2, ("fail", "failed"): 1}
    orchestrations = {
        (labels["orchestration"], labels["outcome"]): n for labels, n in found["affinity_orchestrations_total"]
    }
    assert orchestrations == {
        ("walk", "started"): 1,
        ("walk", "completed"): 1,
        ("stroll", "started"): 1,
        ("stroll", "completed"): 1,
        ("failing", "started"): 1,
        ("failing", "failed"): 1,
    }
    assert found["affinity_turns_total"] == [({"worker": "w-0"}, 9)]  # one more than activities for each orchestration
    turns = [n for labels, n in found["affinity_commit_batch_size_sum"] if labels["kind"] == "turn"]
    assert turns == [9]
    assert found["affinity_running_activities"] == found["affinity_lease_lapses_total"] == [({"worker": "w-0"}, 0)]
    assert found["affinity_live_instances"] == [({"worker": "w-0"}, 0)]
    runs = {labels["activity"]: n for labels, n in found["affinity_activity_run_seconds_count"]}
    assert runs == {"step": 3, "sync_step": 2, "fail": 1}
    assert {labels["activity"]: n for labels, n in found["affinity_activity_queue_seconds_count"]} == runs
    assert found["affinity_database_up"] == [({"worker": "w-0"}, 1)]
    assert "commit_turn" in {labels["verb"] for labels, _ in found["affinity_provider_call_seconds_count"]}


async def test_wakes_are_counted_by_what_became_of_them(sqlite_url: str) -> None:
    """One whose handler has raised is no good end, though the result of its activity commits."""
    entered = anyio.Event()

    async def respond(wake: Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("fail")]:
            raise ValueError
        if wake.events == [UserMessage("wait")]:
            entered.set()
            await anyio.sleep_forever()

    retry = RetryPolicy(max_attempts=3, initial_interval=0.01)
    async with stage(sqlite_url, respond, retry=retry) as on:
        await on.talk("a").ask(UserMessage("well"), timeout=WAIT_SECONDS)
        with pytest.raises(WakeFailed):
            await on.talk("b").ask(UserMessage("fail"), timeout=WAIT_SECONDS)
        await on.talk("c").send(UserMessage("wait"))
        await entered.wait()
        seq = await on.talk("c").interrupt(cancel_running=True)
        await on.talk("c").reply(seq, timeout=WAIT_SECONDS)
        samples = [one for family in on.workers[0].metrics.registry.collect() for one in family.samples]
    ends = {one.labels["outcome"]: one.value for one in samples if one.name == "affinity_activities_total"}
    assert ends == {"completed": 2, "retried": 2, "failed": 1, "cancelled": 1}


async def test_what_there_is_in_the_database_is_published(kept_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each scrape, but not read again for a while; nothing while the database does not answer."""
    observed = App("observed")

    @observed.activity
    async def refuse(context: ActivityContext) -> None:
        raise ValueError

    @observed.orchestration
    async def stuck(context: OrchestrationContext) -> None:
        await context.schedule_activity(refuse, retry=RetryPolicy(initial_interval=60))

    @observed.orchestration
    async def countdown(context: OrchestrationContext, left: int) -> None:
        if left:
            context.continue_as_new(left - 1)

    options = RuntimeOptions.make(worker_node_id="w-0", poll_interval=0.2, unregistered_timeout=0.2, metrics_port=0)
    async with Worker(observed, kept_url, options) as worker, Client(kept_url) as client:
        assert worker.metrics_port
        handle, unknown = await client.start(stuck), await client.start("unheard of")
        await (await client.start(countdown, 2)).wait(30)
        with anyio.fail_after(30):
            while not any(one.next_attempt_at for one in await handle.activities()):
                await anyio.sleep(0.01)
            while (await unknown.status()).status != "suspended":
                await anyio.sleep(0.01)
        found = await anyio.to_thread.run_sync(_scraped, worker.metrics_port)
        with monkeypatch.context() as broken:
            broken.setattr(worker.runtime, "measure_work", None)  # it must not be called again
            again = await anyio.to_thread.run_sync(_scraped, worker.metrics_port)
        assert again["affinity_instances"] == found["affinity_instances"]
        broken_database = AsyncMock(side_effect=ConnectionLost("no"))
        monkeypatch.setattr(worker.runtime, "measure_work", broken_database)
        monkeypatch.setattr(metrics, "WORK_SECONDS", 0.0)
        assert "affinity_instances" not in await anyio.to_thread.run_sync(_scraped, worker.metrics_port)
    assert {labels["status"]: n for labels, n in found["affinity_instances"] if n} == {
        "running": 1,
        "suspended": 1,
        "completed": 1,
    }
    states = {labels["state"]: n for labels, n in found["affinity_queued_activities"]}
    assert states == {"running": 0, "waiting": 0, "delayed": 1, "blocked": 0}
    assert {labels["state"]: n for labels, n in found["affinity_queued_messages"]}["suspended"] == 1
    queues = {labels["queue"] for labels, _ in found["affinity_oldest_waiting_seconds"]}
    assert queues == {"activities", "messages", "sessions"}
    assert found["affinity_schedule_late_seconds"] == [({"worker": "w-0"}, 0)]
    outcomes = {(labels["orchestration"], labels["outcome"]): n for labels, n in found["affinity_orchestrations_total"]}
    assert outcomes == {
        ("stuck", "started"): 1,
        ("countdown", "started"): 1,
        ("countdown", "continued"): 2,
        ("countdown", "completed"): 1,
        (metrics.UNREGISTERED, "suspended"): 1,
    }


QUEUES = QueueStatistics(
    work_items={},
    messages={},
    oldest_work_item=None,
    oldest_message=None,
    suspended=7,
    parked=0,
    waiting_sessions=3,
    oldest_waiting_session=None,
    late={},
)


def test_guests_measure_with_a_label_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gauges and counters; a name that is gone is exported no more."""
    monkeypatch.setattr(metrics, "WORK_SECONDS", -1.0)
    measured = {"limit_waiting": {"model": 3.0, "tenant": 0.0}, "limit_admissions": {"model": 17.0}}
    collected = metrics.Metrics("w", App())
    wanted = [Measure("limit_waiting", "Waits", "limit"), Measure("limit_admissions", "Has", "limit", grows=True)]
    collected.work(lambda after: (QUEUES, InstanceCounts(counts={}, after=None), measured), {}, wanted)

    def scraped() -> dict[tuple[str, str], float]:
        found = [sample for family in collected.registry.collect() for sample in family.samples]
        return {(one.name, one.labels["limit"]): one.value for one in found if "limit" in one.labels}

    assert scraped() == {
        ("affinity_limit_waiting", "model"): 3.0,
        ("affinity_limit_waiting", "tenant"): 0.0,
        ("affinity_limit_admissions_total", "model"): 17.0,
    }
    measured.clear()
    assert scraped() == {}


def test_instances_are_counted_a_page_at_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are of the last time that all were counted; only suspended instances are always counted now."""
    monkeypatch.setattr(metrics, "WORK_SECONDS", -1.0)
    pages = {
        None: InstanceCounts(counts={"completed": 2}, after="b"),
        "b": InstanceCounts(counts={"completed": 1, "running": 1, "suspended": 1}, after=None),
    }
    collected = metrics.Metrics("w", App())
    collected.work(lambda after: (QUEUES, pages[after], {}), {})

    def scraped() -> dict[str, float]:
        samples = [one for family in collected.registry.collect() for one in family.samples]
        return {one.labels["status"]: one.value for one in samples if one.name == "affinity_instances" and one.value}

    assert scraped() == {"suspended": 7}
    for _ in range(3):  # a pass is two scrapes
        assert scraped() == {"completed": 3, "running": 1, "suspended": 7}
    pages[None] = InstanceCounts(counts={"failed": 1}, after=None)
    assert scraped() == {"failed": 1, "suspended": 7}


async def test_clients_do_not_decide_how_many_series_there_are(sqlite_url: str) -> None:
    """Names that no code of the worker registers are one label, of activities and of orchestrations."""
    asks = App("asks")

    @asks.orchestration
    async def calls(ctx: OrchestrationContext, name: str) -> str:
        with suppress(UnknownActivity):
            await ctx.schedule_activity(name, 1)
        return "done"

    names = [f"made-up-{n}" for n in range(5)]
    options = RuntimeOptions.make(unregistered_timeout=0.2, poll_interval=0.1, metrics_port=0)
    async with Worker(asks, sqlite_url, options) as worker, Client(sqlite_url) as client:
        for name in names:
            run = await client.start(calls, name)
            await client.wait(run.instance_id, timeout=WAIT_SECONDS)
            await client.start(name, 1, instance_id=name)
        for name in names:
            await until(partial(_is_suspended, client, name))
        assert worker.metrics_port
        found = await anyio.to_thread.run_sync(_scraped, worker.metrics_port)
    for metric, label in (
        ("affinity_activities_total", "activity"),
        ("affinity_activity_queue_seconds_count", "activity"),
        ("affinity_orchestrations_total", "orchestration"),
    ):
        assert {labels[label] for labels, _ in found[metric]} <= {metrics.UNREGISTERED, "calls"}, metric
        assert any(labels[label] == metrics.UNREGISTERED for labels, _ in found[metric]), metric


def test_names_of_unused_resources_are_bounded() -> None:
    """They come from labels of records, which clients write."""
    collected = metrics.Metrics("w", App())
    collected.show_unclaimed({"box": 5, **{f"made-up-{n}": 1 for n in range(100)}})
    samples = [one for family in collected.registry.collect() for one in family.samples]
    found = {one.labels["resource"]: one.value for one in samples if one.name == "affinity_unclaimed_resources"}
    assert len(found) == metrics.MAX_NAMES + 1
    assert found["box"] == 5
    assert sum(found.values()) == 105


async def _is_suspended(client: Client, instance_id: str) -> bool:
    return (await client.status(instance_id)).status == "suspended"


async def test_a_loop_that_is_blocked_is_logged_and_then_not_alive(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The probe is answered while the loop stands still. It takes three seconds: the line comes after one to two."""
    blocking = App("blocking")
    answers: list[int] = []

    @blocking.activity
    async def hang(context: ActivityContext) -> None:
        """Blocks the loop until the probe says so; a sleep in between would be progress."""
        assert worker.metrics_port
        end = time.monotonic() + WAIT_SECONDS
        while (not answers or answers[-1] == HTTPStatus.OK or not _blockings(caplog)) and time.monotonic() < end:
            answers.append(_alive(worker.metrics_port))

    @blocking.orchestration
    async def hanging(context: OrchestrationContext) -> None:
        await context.schedule_activity(hang)

    options = RuntimeOptions(metrics_port=0, poll_interval=0.2, worker_lease_timeout=1, stall_timeout=3)
    with suppress(WorkerStalled):
        async with Worker(blocking, sqlite_url, options) as worker, Client(sqlite_url) as client:
            assert worker.metrics_port
            assert await anyio.to_thread.run_sync(_alive, worker.metrics_port) == HTTPStatus.OK
            await client.start(hanging)
            while not answers:
                await anyio.sleep(0.01)
    assert set(answers) == {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE}
    (line,) = _blockings(caplog)
    assert "in hang" in line
    assert "sync activity" in line


async def test_the_port_is_for_this_machine_unless_another_address_is_given(sqlite_url: str) -> None:
    """127.0.0.2 is this machine too, and another address."""
    for host, answers in (("127.0.0.1", False), ("0.0.0.0", True)):  # noqa: S104
        options = RuntimeOptions(metrics_port=0, metrics_host=host)
        async with Worker(app, sqlite_url, options) as worker:
            with closing(socket.socket()) as other:
                other.settimeout(WAIT_SECONDS)
                assert (other.connect_ex(("127.0.0.2", worker.metrics_port)) == 0) is answers


def _alive(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=WAIT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def _blockings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log of this test's activity."""
    said = [record.getMessage() for record in caplog.records]
    return [text for text in said if "has been blocked for more than a second" in text and "hang" in text]


def _scraped(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples
