"""Sessions that a later release has written, beside workers of the release before."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from affinity import Client, RuntimeOptions, Sessions, Worker
from affinity.errors import OrchestrationFailed, SessionRecordTooNew
from tests.support.all_databases import on_all_databases
from tests.support.word_list_app import later, make_app
from tests.support.worker_processes import WorkerProcess, Workers

pytestmark = pytest.mark.anyio

NOTES, LATER = "tests.support.word_list_app:app", "tests.support.word_list_app:later"


@on_all_databases
async def test_a_record_of_a_later_release_goes_to_a_worker_that_can_read_it(workers: Workers, client: Client) -> None:
    """With its session and without a failure; the worker that cannot read it meets it once, and takes other work."""
    first = workers.start("first", app=LATER)
    assert (await write(client, "s", "one"))["words"] == ["one"]
    first.send(signal.SIGTERM)
    first.wait()
    old = workers.start("old", app=NOTES)
    assert (await write(client, "plain", "one"))["words"] == ["one"]
    waiting = await client.start("write", ("s", "two"))
    old.wait_log("giving the session back")
    assert (await write(client, "plain", "two"))["words"] == ["one", "two"]
    workers.start("new", app=LATER)
    assert (await client.wait(waiting.instance_id, timeout=30))["words"] == ["one", "two"]
    assert (await write(client, "s", "three"))["words"] == ["one", "two", "three"]
    assert given_back(old) == 1


async def test_a_record_that_no_worker_can_read_fails_its_activity(kept_url: str) -> None:
    """After ``unregistered_timeout``, as one that no worker registers; not before."""
    options = {"poll_interval": 0.2, "unregistered_timeout": 0.6}
    old = make_app(Sessions(list[str], kind="notes", initial=lambda _: []))
    async with Client(kept_url) as client:
        async with Worker(later, kept_url, RuntimeOptions.make(**options)):
            await write(client, "s", "one")
        async with Worker(old, kept_url, RuntimeOptions.make(**options)) as worker:
            with pytest.raises(OrchestrationFailed) as raised:
                await write(client, "s", "two")
            assert SessionRecordTooNew.__name__ in str(raised.value)
            assert "from schema version 2 to 1" in str(raised.value)
            retried = worker.metrics.registry.get_sample_value(
                "affinity_activities_total",
                {"worker": worker.identity.worker_id, "activity": "add", "outcome": "retried"},
            )
            assert retried == 1


async def write(client: Client, session_id: str, word: str) -> Any:
    """What the session has then."""
    return await client.wait((await client.start("write", (session_id, word))).instance_id, timeout=30)


def given_back(worker: WorkerProcess) -> int:
    """How often it gave a session back that it could not read."""
    return sum("giving the session back" in line for line in worker.log)
