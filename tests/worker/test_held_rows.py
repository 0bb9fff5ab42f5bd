"""One row that somebody else holds stops one session: PostgreSQL; SQLite has no locks of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, LiteralString

import anyio
import psycopg
import pytest
from pydantic import BaseModel

import affinity
from affinity import App, Client, Conversations, RuntimeOptions, Sessions, Worker
from affinity.conversation import AgentMessage, UserMessage

pytestmark = pytest.mark.anyio

SESSIONS: Final = 8
PROGRESS: Final = 10
"""Activities that each of the others does while the row is held."""
PATIENCE: Final = 8.0
"""Seconds for them, of which they need one on an idle machine; the row is held for longer."""

HELD: Final[Mapping[str, LiteralString]] = {
    "an instance": "SELECT FROM affinity.instances WHERE instance_id = 's3' FOR UPDATE",
    "a session": "SELECT FROM affinity.sessions WHERE session_id = 's3' FOR UPDATE",
    "a work item": "SELECT FROM affinity.worker_queue WHERE instance_id = 's3' FOR UPDATE",
    "a state": "SELECT FROM affinity.session_states WHERE session_id = 's3' FOR UPDATE",
    "half of the sessions": "SELECT FROM affinity.sessions WHERE session_id BETWEEN 's0' AND 's3' FOR UPDATE",
}


async def until(is_so: Callable[[], bool], patience: float = 30.0) -> None:
    with anyio.fail_after(patience):
        while not is_so():
            await anyio.sleep(0.005)


app = App("held rows")
counters = Sessions(Counter[str], kind="counter", initial=lambda _: Counter())
app.include(counters)
done: Counter[str] = Counter()


@app.activity
async def count(ctx: affinity.ActivityContext) -> None:
    async with counters.open(ctx) as counter:
        counter["n"] += 1
    await anyio.sleep(0.01)
    assert ctx.session_id is not None
    done[ctx.session_id] += 1


@app.orchestration
async def counting(ctx: affinity.OrchestrationContext) -> None:
    while True:
        for _ in range(100):
            await ctx.schedule_activity(count).on_session(ctx.instance_id)
        ctx.continue_as_new()


@pytest.mark.parametrize("held", HELD)
async def test_a_held_row_stops_its_session_only(postgres_migrated: str, held: str) -> None:
    """The turns of the others are committed at once, again and again; the held one goes on when it is free."""
    done.clear()
    names = [f"s{n}" for n in range(SESSIONS)]
    async with Worker(app, postgres_migrated), Client(postgres_migrated) as client:
        for name in names:
            await client.start(counting, instance_id=name)
        await until(lambda: all(done[name] >= 3 for name in names))
        async with await psycopg.AsyncConnection.connect(postgres_migrated) as holder:
            while not (await holder.execute(HELD[held])).rowcount:  # between two turns there is no work item
                await holder.rollback()
            rest = names[4:] if held.startswith("half") else [name for name in names if name != "s3"]
            before = done.copy()
            await until(lambda: all(done[name] >= before[name] + PROGRESS for name in rest), PATIENCE)
            assert done["s3"] <= before["s3"] + 2  # one may run, and one have been committed
            await holder.rollback()
        before = done.copy()
        await until(lambda: done["s3"] >= before["s3"] + 3)


async def test_a_renewal_waits_for_no_held_row(postgres_migrated: str) -> None:
    """The lease and the locks of all other items outlive a row that is held for longer than they last."""
    started: set[str] = set()
    freed = anyio.Event()
    long = App("long")

    @long.activity
    async def wait(ctx: affinity.ActivityContext) -> int:
        assert ctx.session_id is not None
        started.add(ctx.session_id)
        await freed.wait()
        return ctx.attempt

    @long.orchestration
    async def waiting(ctx: affinity.OrchestrationContext) -> int:
        return await ctx.schedule_activity(wait).on_session(ctx.instance_id)

    options = RuntimeOptions.make(worker_lease_timeout=2.0, work_item_lock_timeout=3.0, session_lock_timeout=5.0)
    async with Worker(long, postgres_migrated, options), Client(postgres_migrated) as client:
        handles = [await client.start(waiting, instance_id=f"s{n}") for n in range(4)]
        await until(lambda: len(started) == len(handles))
        async with await psycopg.AsyncConnection.connect(postgres_migrated) as holder:
            await holder.execute("SELECT FROM affinity.worker_queue WHERE instance_id = 's3' FOR UPDATE")
            await holder.execute("SELECT FROM affinity.sessions WHERE session_id = 's2' FOR UPDATE")
            await anyio.sleep(4.5)
            await holder.rollback()
        freed.set()
        with anyio.fail_after(20):
            assert [await handle.wait() for handle in handles[:3]] == [1, 1, 1]
            await handles[3].wait()


async def test_a_held_lease_is_named(postgres_migrated: str, caplog: pytest.LogCaptureFixture) -> None:
    """Work goes on until the lease ends; then it stops, with the reason, until the row is free."""
    done.clear()
    options = RuntimeOptions.make(worker_lease_timeout=3.0)
    async with Worker(app, postgres_migrated, options), Client(postgres_migrated) as client:
        for name in ("s0", "s1"):
            await client.start(counting, instance_id=name)
        await until(lambda: min(done["s0"], done["s1"]) >= 3)
        async with await psycopg.AsyncConnection.connect(postgres_migrated) as holder:
            await holder.execute("SELECT FROM affinity.workers FOR UPDATE")
            before = done.copy()
            await until(lambda: "another transaction holds the row of this worker" in caplog.text)
            assert min(done[name] - before[name] for name in ("s0", "s1")) >= 3
            await holder.rollback()
        before = done.copy()
        await until(lambda: min(done[name] - before[name] for name in ("s0", "s1")) >= 3)


class Chat(BaseModel):
    """Nothing."""


support = Conversations(Chat, kind="support")


@support.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    wake.append(AgentMessage("how can I help?"))


async def test_a_held_journal_stops_one_conversation_only(postgres_migrated: str) -> None:
    """Appends of a client that were to go together, and wakes of a worker."""
    talking = App("talking")
    talking.include(support)
    async with Worker(talking, postgres_migrated), Client(postgres_migrated) as client:
        talks = [client.conversation(support, f"c{n}") for n in range(SESSIONS)]
        others = [n for n in range(SESSIONS) if n != 3]
        for talk in talks:
            await talk.ask(UserMessage("hi"), timeout=20)
        connect = psycopg.AsyncConnection.connect
        async with await connect(postgres_migrated) as holder, anyio.create_task_group() as tasks:
            await holder.execute("SELECT FROM affinity.journals WHERE session_id = 'c3' FOR UPDATE")
            answered: Counter[int] = Counter()

            async def ask(n: int) -> None:
                await talks[n].ask(UserMessage("again"), timeout=30)
                answered[n] += 1

            tasks.start_soon(ask, 3)
            for times in range(1, 4):
                for n in others:
                    tasks.start_soon(ask, n)
                await until(lambda times=times: all(answered[n] == times for n in others), PATIENCE)  # type: ignore[misc]
            assert answered[3] == 0
            await holder.rollback()
        assert answered[3] == 1
