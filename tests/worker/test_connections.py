"""How many connections to PostgreSQL a worker and a client have, as the server counts them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import psycopg
import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Sessions, Worker
from affinity.provider.postgres.driver import connections

pytestmark = pytest.mark.anyio

COUNT = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name <> ''"

WORKER, IDLE_WORKER, CLIENT = 4, 3, 1


class Tally(BaseModel):
    """The state of a session."""

    steps: int = 0


def _app() -> App:
    """Turns, state that is read and saved, sub-orchestrations, timers, events: a use of each connection."""
    app, tallies = App("busy"), Sessions(Tally)
    app.include(tallies)

    @app.activity
    async def step(ctx: ActivityContext, number: int) -> int:
        async with tallies.open(ctx) as tally:
            tally.steps += 1
        return number

    @app.orchestration
    async def short(ctx: OrchestrationContext, number: int) -> int:
        return await ctx.schedule_activity(step, number).on_session(f"short-{number}")

    @app.orchestration
    async def walk(ctx: OrchestrationContext, turns: int) -> int:
        session = await ctx.new_guid()
        for number in range(turns):
            await ctx.schedule_activity(step, number).on_session(session)
            await ctx.schedule_timer(0.01)
        await ctx.gather(*[ctx.schedule_sub_orchestration(short, number) for number in range(3)])
        return await ctx.schedule_wait("go", int)

    return app


class Watch:
    """Counts connections, by who has them, again and again."""

    def __init__(self, connection: psycopg.Connection[tuple[str]]) -> None:
        self._connection = connection
        self.most: Counter[str] = Counter()
        self.ended = threading.Event()

    def now(self) -> Counter[str]:
        """Connections of workers, clients and all others."""
        kinds = Counter[str]()
        for (name,) in self._connection.execute(COUNT):
            kinds["client" if name == "affinity client" else "worker" if name.startswith("affinity") else "other"] += 1
        return kinds

    def run(self) -> None:
        while not self.ended.wait(0.002):
            self.most |= self.now()


@contextmanager
def _watching(url: str) -> Iterator[Watch]:
    with psycopg.connect(url, autocommit=True, application_name="") as connection:
        watch = Watch(connection)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            yield watch
        finally:
            watch.ended.set()
            thread.join()


async def test_a_worker_needs_four_connections_and_three_when_idle(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its start, which migrates, over work of each kind, to its drain. A client that starts, waits, lists and
    reads records needs one.
    """
    monkeypatch.setattr(connections, "IDLE_TIMEOUT", 0.5)
    options = RuntimeOptions.make(poll_interval=0.2)
    with _watching(postgres_migrated) as watch:
        async with Worker(_app(), postgres_migrated, options), Client(postgres_migrated) as client:
            runs = [await client.start("walk", 20) for _ in range(10)]
            for run in runs:
                assert [one async for one in client.list_instances()]
                await client.history(run.instance_id)
                await client.workers()
                await client.session_store.load("short-1")
            for run in runs:
                await run.raise_event("go", 7)
            assert [await run.wait(timeout=60) for run in runs] == [7] * len(runs)
            with anyio.fail_after(30):
                while watch.now()["worker"] != IDLE_WORKER:
                    await anyio.sleep(0.05)
            again = await client.start("walk", 1)
            await again.raise_event("go", 8)
            assert await again.wait(timeout=60) == 8
    assert watch.most["worker"] == WORKER
    assert watch.most["client"] == CLIENT
