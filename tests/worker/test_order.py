"""Messages reach an orchestration in the order in which they were sent, however turns and fetches overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import anyio
import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import DatabaseFailure
from affinity.provider.contract import Turn

pytestmark = pytest.mark.anyio

app = App("order")


@app.orchestration
async def inbox(context: OrchestrationContext, got: list[int]) -> list[int]:
    """Takes one message an execution."""
    got = [*got, await context.schedule_wait("message", int)]
    if len(got) < 3:
        context.continue_as_new(got)
    return got


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.mark.parametrize("first", ["commit", "fetch"])
async def test_messages_that_go_back_are_not_overtaken(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A fetch leaves out a message that waits for the next turn. Before it reads the queue, the execution has ended, so
    that the message is for the next; which of the two is answered ``first`` does not matter.
    """
    begin, sent, more, committed, delivered = (anyio.Event() for _ in range(5))
    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)) as worker:
        provider, instances = worker.runtime._provider, worker.runtime.instances
        fetch, commit_turn = provider.fetch_orchestration_item, provider.commit_turn

        async def late_fetch(*args: Any, exclude: Collection[int], **options: Any) -> Any:
            await begin.wait()
            if sent.is_set():
                delivered.set()
            elif len(exclude) == 3:  # the start and both messages
                sent.set()
                await committed.wait()
                while first == "commit" and len(instances):
                    await anyio.sleep(0)
            return await fetch(*args, exclude=exclude, **options)

        async def late_commit(*args: Any, **hints: Any) -> Any:
            await more.wait()
            result = await commit_turn(*args, **hints)
            committed.set()
            if first == "fetch":
                await delivered.wait()
            return result

        monkeypatch.setattr(provider, "fetch_orchestration_item", late_fetch)
        monkeypatch.setattr(provider, "commit_turn", late_commit)
        run = await client.start(inbox, [])
        for number in range(2):
            await run.raise_event("message", number)
        begin.set()
        with anyio.fail_after(30):
            await sent.wait()
            await run.raise_event("message", 2)
            more.set()
            assert await run.wait(30) == [0, 1, 2]


async def test_messages_of_a_turn_that_outlasts_the_lease_are_not_overtaken(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database refuses the turn with the first message until the lease is back and the queue is read again.

    Until the turn is written there is nothing to fetch, and the worker does not ask again and again.
    """
    read, expired = anyio.Event(), anyio.Event()
    first: set[int] = set()
    fetches = 0
    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=5)) as worker:
        provider, runtime = worker.runtime._provider, worker.runtime
        fetch, write = provider.fetch_orchestration_item, runtime.commits.turns.write

        async def late_fetch(*args: Any, **options: Any) -> Any:
            nonlocal fetches
            fetched = await fetch(*args, **options)
            fetches += expired.is_set()
            if expired.is_set() and fetched.items:
                asyncio.get_running_loop().call_later(0.05, read.set)  # once the answer is delivered
            return fetched

        async def refusing_write(turns: Sequence[Turn]) -> Any:
            if not read.is_set() and any(first.issubset(turn.consumed) for turn in turns):
                raise DatabaseFailure("the disk is full")
            return await write(turns)

        run = await client.start(inbox, [])
        with anyio.fail_after(30):
            while not runtime.instances.turns:
                await anyio.sleep(0.01)
            monkeypatch.setattr(provider, "fetch_orchestration_item", late_fetch)
            monkeypatch.setattr(runtime.commits.turns, "write", refusing_write)
            await run.raise_event("message", 0)
            while not runtime.instances._in_flight:
                await anyio.sleep(0.01)
            first |= runtime.instances._in_flight
            runtime.lease.expire("a test")
            await run.raise_event("message", 1)
            expired.set()
            runtime.lease.resume()
            await run.raise_event("message", 2)
            assert await run.wait(30) == [0, 1, 2]
            assert fetches < 20  # one for each message, turn and hint
