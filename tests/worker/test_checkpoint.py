"""Checkpoints in real workers: what a retry starts from, after a failure, a kill, and a fence that was lost."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from affinity import Client
from affinity.errors import OrchestrationFailed
from tests.support.activity_calls import ActivityCalls, open_calls
from tests.support.checkpoint_app import in_database
from tests.support.worker_processes import Workers, open_workers

pytestmark = pytest.mark.anyio

APP = "tests.support.checkpoint_app:app"
FORGETFUL = "tests.support.checkpoint_app:forgetful"


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


async def steps_of(client: Client) -> list[str]:
    async with in_database.open("s", store=client.session_store, auto_save=False) as progress:
        return progress.steps


async def test_a_killed_activity_goes_on_from_its_checkpoint(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """Two were done and the third was under way: the next worker does the third and the fourth."""
    first = workers.start("first", APP)
    await client.start("journey", ["a", "b", "c", "d"], instance_id="i")
    for step in ("a", "b"):
        call = await calls.next()
        assert (call["step"], call["attempt"]) == (step, 1)
        await call.answer()
    assert (await calls.next())["step"] == "c"
    assert await steps_of(client) == ["a", "b"]
    first.send(signal.SIGKILL)
    workers.start("second", APP)
    for step in ("c", "d"):
        call = await calls.next()
        assert (call["step"], call["attempt"], call["worker"]) == (step, 2, "second")
        await call.answer()
    assert await client.wait("i", timeout=30) == ["a", "b", "c", "d", "end"]
    assert await steps_of(client) == ["a", "b", "c", "d", "end"]


@pytest.mark.parametrize("app", [APP, FORGETFUL], ids=["database", "memory"])
async def test_a_retry_goes_on_from_the_checkpoint(
    workers: Workers, client: Client, calls: ActivityCalls, app: str
) -> None:
    """By the policy of the activity, in the same worker; with a store in its memory, too."""
    workers.start("only", app)
    await client.start("journey", ["a", "b"], instance_id="i")
    await (await calls.next()).answer()
    await (await calls.next()).answer("fail")
    call = await calls.next()
    assert (call["step"], call["attempt"]) == ("b", 2)
    await call.answer()
    assert await client.wait("i", timeout=30) == ["a", "b", "end"]


async def test_a_checkpoint_after_a_script_has_written_is_refused(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """And the activity runs again, from what the script has left."""
    workers.start("only", APP)
    await client.start("journey", ["a", "b"], instance_id="i")
    await (await calls.next()).answer()
    call = await calls.next()
    async with in_database.open("s", store=client.session_store) as progress:
        progress.steps.append("by hand")
    await call.answer()
    again = await calls.next()
    assert (again["step"], again["attempt"]) == ("b", 2)
    assert again["epoch"] > call["epoch"]
    await again.answer()
    assert await client.wait("i", timeout=30) == ["a", "by hand", "b", "end"]


async def test_a_paused_worker_whose_session_moved_writes_no_checkpoint(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """It was asked to go on after its leases had ended and another worker had taken the session."""
    first = workers.start("first", APP)
    await client.start("journey", ["a"], instance_id="i")
    late = await calls.next()
    first.pause()
    workers.start("second", APP)
    call = await calls.next()
    assert (call["worker"], call["step"]) == ("second", "a")
    await late.answer()
    first.send(signal.SIGCONT)
    first.wait_log("lease")
    assert await steps_of(client) == []
    await call.answer()
    assert await client.wait("i", timeout=30) == ["a", "end"]
    assert await steps_of(client) == ["a", "end"]


async def test_a_write_of_its_own_session_by_id_fails_with_a_word_on_checkpoints(
    workers: Workers, client: Client
) -> None:
    """At its first attempt, though its policy would retry: not as poison after ten."""
    workers.start("only", APP)
    run = await client.start("selfish", None)
    with pytest.raises(OrchestrationFailed, match=r"SessionSelfConflict.*opening\.checkpoint\(\)"):
        await client.wait(run.instance_id, timeout=30)
    assert await client.session_store.load("s") is None
