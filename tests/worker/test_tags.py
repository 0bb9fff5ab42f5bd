"""Tags: which workers run an activity, which tag a session has, and the reason shown if no worker has the tag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from affinity import Client, RuntimeOptions, Worker
from affinity.client import Activity
from affinity.errors import OrchestrationFailed
from tests.support.all_databases import on_all_databases
from tests.support.tagged_app import app
from tests.support.worker_processes import FAST as OPTIONS
from tests.support.worker_processes import Workers

APP = "tests.support.tagged_app:app"


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@asynccontextmanager
async def working(url: str, **workers: dict[str, Any]) -> AsyncIterator[None]:
    """Workers of these names, with these options, in this process."""
    async with AsyncExitStack() as stack:
        for name, options in workers.items():
            values = {**OPTIONS, "worker_node_id": name, **options}
            await stack.enter_async_context(Worker(app, url, RuntimeOptions.make(**values)))
        yield


async def _waiting(client: Client, instance_id: str) -> Activity:
    """Its activity, once it is queued."""
    with anyio.fail_after(60):
        while not (found := [one for one in await client.activities(instance_id) if not one.finished]):
            await anyio.sleep(0.02)
    return found[0]


@on_all_databases
async def test_two_processes_one_with_a_tag(workers: Workers, client: Client) -> None:
    """Work with a tag runs on the worker that has it, also later work of its session, retries, and after
    ``continue_as_new``. The worker with the tag takes nothing else.
    """
    for worker in [workers.launch("cpu", APP), workers.launch("gpu", APP, tags="gpu", only_tagged=True)]:
        worker.ready()
    found = await client.wait((await client.start("tour", 2)).instance_id, timeout=60)
    assert set(found.pop("plain")) == {"cpu"}
    assert {worker for several in found.values() for worker in several} == {"gpu"}
    assert len(found) == 5
    rows = {row.worker_id: (list(row.tags), row.only_tagged) for row in await client.workers()}
    assert rows == {"gpu": (["gpu"], True), "cpu": ([], False)}


async def test_a_worker_for_any_tag_takes_all_work(kept_url: str, client: Client) -> None:
    """Also of sessions with a tag, and of a worker that has left."""
    async with working(kept_url, every={"tags": "any"}):
        found = await client.wait((await client.start("tour", 2)).instance_id, timeout=60)
        assert {worker for several in found.values() for worker in several} == {"every"}
    with pytest.raises(ValueError, match="stands alone"):
        RuntimeOptions.make(tags="any,gpu")


async def test_a_worker_with_a_tag_takes_untagged_work_too(kept_url: str, client: Client) -> None:
    """Unless it is to take nothing else."""
    async with working(kept_url, gpu={"tags": ("gpu",)}):
        found = await client.wait((await client.start("tour", 1)).instance_id, timeout=60)
        assert {worker for several in found.values() for worker in several} == {"gpu"}


async def test_another_tag_than_that_of_the_session_is_an_error(kept_url: str, client: Client) -> None:
    """The first work gives the session its tag, or none; the error says so at the await, and the session goes on."""
    async with working(kept_url, w={"tags": ("gpu", "eu")}):
        run = await client.start("mismatch", ["gpu", "eu", None, "gpu"], instance_id="tagged")
        text = "SessionTagMismatch: it has the tag 'eu', and its session 'tagged' began with the tag 'gpu'"
        assert await client.wait(run.instance_id, timeout=60) == ["ran", text, "ran", "ran"]
        run = await client.start("mismatch", [None, "eu", None], instance_id="plain")
        text = "SessionTagMismatch: it has the tag 'eu', and its session 'plain' began with no tag"
        assert await client.wait(run.instance_id, timeout=60) == ["ran", text, "ran"]


async def test_a_worker_without_tags_refuses_a_tag_for_its_session(kept_url: str, client: Client) -> None:
    """The session is held there, so that is where the work of another tag is refused."""
    async with working(kept_url, w={}):
        run = await client.start("mismatch", [None, "eu", None], instance_id="plain")
        text = "SessionTagMismatch: it has the tag 'eu', and its session 'plain' began with no tag"
        assert await client.wait(run.instance_id, timeout=60) == ["ran", text, "ran"]


async def test_work_whose_tag_no_worker_has_waits_and_says_so(kept_url: str, client: Client) -> None:
    """It runs when a worker with the tag comes."""
    async with working(kept_url, cpu={}):
        run = await client.start("tagged", "gpu")
        waiting = await _waiting(client, run.instance_id)
        assert (waiting.status, waiting.tag, waiting.has_worker) == ("queued", "gpu", False)
        async with working(kept_url, gpu={"tags": ("gpu",)}):
            assert await client.wait(run.instance_id, timeout=60) == "gpu"


async def test_work_whose_tag_no_worker_has_fails_by_option(kept_url: str, client: Client) -> None:
    """After ``unregistered_timeout``, with a typed error at the await."""
    async with working(kept_url, cpu={"missing_tag": "fail", "unregistered_timeout": 1.0}):
        run = await client.start("tagged", "gpu")
        with pytest.raises(OrchestrationFailed, match="NoWorkerWithTag: no worker with its tag was alive for 1 s"):
            await client.wait(run.instance_id, timeout=60)


@asynccontextmanager
async def a_full_holder(url: str, client: Client, how: dict[str, float]) -> AsyncIterator[str]:
    """An instance whose session is held by the worker "holder", which has no free slot by now."""
    holder = {"worker_concurrency": 1, "tags": ("busy",)}
    async with working(url, holder=holder):
        run = await client.start("strict", how)
        with anyio.fail_after(60):
            while not [lease async for lease in client.sessions() if lease.held and not lease.queued]:
                await anyio.sleep(0.02)
        hog = await client.start("hogs", 60.0)
        with anyio.fail_after(60):
            while not [one for one in await client.activities(hog.instance_id) if one.status == "running"]:
                await anyio.sleep(0.02)
        async with working(url, other={}):
            await client.raise_event(run.instance_id, "go", None)
            yield run.instance_id
        await client.cancel(hog.instance_id)


async def test_a_worker_with_a_free_slot_takes_the_session_over(kept_url: str, client: Client) -> None:
    """``wait``: the session moves, with a reason."""
    async with a_full_holder(kept_url, client, {"wait": 0.5}) as instance_id:
        assert await client.wait(instance_id, timeout=60) == ["holder", "other"]
        moves = await client.session_moves(session_id=instance_id)
        assert "holder_busy" in {move.reason for move in moves}


async def test_work_that_is_not_started_in_time_fails(kept_url: str, client: Client) -> None:
    """``fail_after``: a typed error at the await; the session stays where it is."""
    async with a_full_holder(kept_url, client, {"fail_after": 0.5}) as instance_id:
        text = f"SessionBusy: it was not started on session {instance_id!r} within its fail_after"
        assert await client.wait(instance_id, timeout=60) == ["holder", text]
