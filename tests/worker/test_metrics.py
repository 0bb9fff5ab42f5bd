"""What a worker publishes at its metrics port."""

from __future__ import annotations

import urllib.request

import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from affinity import RuntimeOptions, Worker
from affinity.client import Client
from affinity.errors import OrchestrationFailed
from tests.apps import app

pytestmark = pytest.mark.anyio


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
    assert found["affinity_turns"] == [({"worker": "w-0"}, 9)]  # one more than activities for each orchestration
    turns = [n for labels, n in found["affinity_commit_batch_size_sum"] if labels["kind"] == "turn"]
    assert turns == [9]
    assert found["affinity_running_activities"] == found["affinity_lease_lapses_total"] == [({"worker": "w-0"}, 0)]
    assert found["affinity_live_instances"] == [({"worker": "w-0"}, 0)]
    assert "commit_turn" in {labels["verb"] for labels, _ in found["affinity_provider_call_seconds_count"]}


def _scraped(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples
