"""A worker whose lease has lapsed and come back: what was begun before ends by itself, and touches nothing of what runs
now.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import anyio
import psycopg
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.worker.lease import UnansweredCalls
from tests.provider.postgres_stage import administrator
from tests.servers.proxy import proxy
from tests.support.activity_calls import open_calls
from tests.support.worker_processes import open_workers

pytestmark = pytest.mark.anyio

SHORT = RuntimeOptions.make(worker_lease_timeout=1, poll_interval=0.2)


def named(name: str) -> RuntimeOptions:
    return SHORT.model_copy(update={"worker_node_id": name})


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@contextmanager
def silenced(url: str) -> Iterator[None]:
    """The database answers no worker."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute("BEGIN EXCLUSIVE")
            yield
            file.execute("ROLLBACK")
    else:
        with administrator(url) as admin, admin.transaction():
            admin.execute("LOCK TABLE workers, worker_queue IN ACCESS EXCLUSIVE MODE")
            yield
            raise psycopg.Rollback


async def test_a_run_that_ends_after_its_successor_has_begun_takes_nothing_from_it(
    kept_url: str, client: Client
) -> None:
    """Two runs of one work item on one worker: the older one is still cleaning up when the item is fetched again."""
    app = App("twice")
    begun, cancelled, cleaned, ended, over = [anyio.Event(), anyio.Event()], *(anyio.Event() for _ in range(4))
    runs = iter(begun)

    @app.activity
    async def work(context: ActivityContext) -> int:
        run = next(runs)
        run.set()
        try:
            await (anyio.sleep_forever() if run is begun[0] else over.wait())
        except BaseException:
            cancelled.set()
            with anyio.CancelScope(shield=True):
                await cleaned.wait()
            ended.set()
            raise
        return begun.index(run)

    @app.orchestration
    async def once(context: OrchestrationContext) -> int:
        return await context.schedule_activity(work).on_session("s")

    async with Worker(app, kept_url, SHORT) as worker:
        run = await client.start("once")
        with anyio.fail_after(30):
            await begun[0].wait()
            with silenced(kept_url):
                await cancelled.wait()
            await begun[1].wait()
            cleaned.set()
            await ended.wait()
        over.set()
        assert await client.wait(run.instance_id, timeout=30) == 1
        assert len(worker.runtime.activities) == 0


@dataclass
class Steps:
    """Two steps on one session; each says where it starts, and waits."""

    app: App = field(default_factory=lambda: App("steps"))
    starts: list[tuple[str, int]] = field(default_factory=list)
    gates: tuple[anyio.Event, anyio.Event] = field(default_factory=lambda: (anyio.Event(), anyio.Event()))

    def __post_init__(self) -> None:
        @self.app.activity
        async def step(context: ActivityContext, n: int) -> None:
            self.starts.append((context.worker_id, n))
            await self.gates[n].wait()

        @self.app.activity
        async def prepare(context: ActivityContext) -> None:
            """With its turn, the statements of a commit have been prepared: it is one request."""

        @self.app.orchestration
        async def two(context: OrchestrationContext) -> None:
            for _ in range(3):
                await context.schedule_activity(prepare).on_session("s")
            for n in range(2):
                await context.schedule_activity(step, n).on_session("s")

    async def started(self, *wanted: tuple[str, int]) -> None:
        """Until these have started, in this order, and no other."""
        with anyio.fail_after(30):
            while len(self.starts) < len(wanted):
                await anyio.sleep(0.01)
        assert self.starts == list(wanted)

    def let_go(self) -> None:
        for gate in self.gates:
            gate.set()


async def until_logged(caplog: pytest.LogCaptureFixture, said: str) -> None:
    with anyio.fail_after(30):
        while said not in caplog.text:
            await anyio.sleep(0.01)


async def test_the_reply_to_a_turn_that_is_read_after_a_lease_expiry_starts_nothing(
    postgres_migrated: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease went and came back while it was on its way, and the session went to another worker."""
    monkeypatch.setattr(UnansweredCalls, "beat", lambda self: 0.0)  # it may take longer than a lease
    steps = Steps()
    with proxy(postgres_migrated) as network:
        async with Client(postgres_migrated) as client, Worker(steps.app, network.url, named("one")) as one:
            run = await client.start("two")
            await steps.started(("one", 0))
            network.hold("affinity one commit")
            steps.gates[0].set()
            while not one.runtime.commits.turns._in_flight:
                await anyio.sleep(0)
            network.hold("affinity lease one")
            await until_logged(caplog, "lease lost")
            async with Worker(steps.app, postgres_migrated, named("two")):
                await steps.started(("one", 0), ("two", 1))
                network.let_go("affinity lease one")
                await until_logged(caplog, "lease is back")
                network.let_go("affinity one commit")
                with anyio.fail_after(30):
                    while one.runtime.commits.turns._in_flight:
                        await anyio.sleep(0)
                await anyio.wait_all_tasks_blocked()
                await steps.started(("one", 0), ("two", 1))
                steps.let_go()
                await client.wait(run.instance_id, timeout=30)
    assert steps.starts == [("one", 0), ("two", 1)]


@pytest.mark.parametrize(("link", "again"), [("commit", 1), ("fetch", 0)])
async def test_a_worker_whose_own_calls_are_not_answered_gives_its_lease_up(
    postgres_migrated: str, caplog: pytest.LogCaptureFixture, link: str, again: int
) -> None:
    """Though calls of the renewing thread are answered. The lease comes back when the others are."""
    steps = Steps()
    with proxy(postgres_migrated) as network:
        async with Client(postgres_migrated) as client, Worker(steps.app, network.url, named("one")):
            run = await client.start("two")
            await steps.started(("one", 0))
            network.hold(f"affinity one {link}")
            if link == "commit":
                steps.gates[0].set()
            async with Worker(steps.app, postgres_migrated, named("two")):
                await steps.started(("one", 0), ("two", again))
                _, found, later = caplog.text.partition("has not answered the worker")
                assert found
                assert "lease is back" not in later
                network.let_go(f"affinity one {link}")
                await until_logged(caplog, "lease is back")
                steps.let_go()
                await client.wait(run.instance_id, timeout=30)


async def test_a_process_that_was_paused_starts_nothing_that_its_lease_covered(postgres_migrated: str) -> None:
    """It reads the reply to its turn when it wakes, before it can know that its lease has ended."""
    async with Client(postgres_migrated) as client, open_calls() as calls:
        with (
            proxy(postgres_migrated) as network,
            open_workers(network.url) as through_network,
            open_workers(postgres_migrated) as direct,
        ):
            paused = through_network.start("paused")
            await client.start("held_walk", 4, instance_id="walk")
            for _ in range(2):  # with their turns, the statements of a commit have been prepared
                await (await calls.next()).answer()
            running = await calls.next()
            network.hold("affinity paused commit")
            await running.answer()
            with anyio.fail_after(30):
                while [event.type for event in await client.history("walk")].count("activity_completed") < 3:
                    await anyio.sleep(0.01)
            network.hold("affinity lease paused quick")
            paused.pause()
            direct.start("other")
            last = await calls.next()
            assert (last["worker"], last["n"]) == ("other", 3)
            network.let_go("affinity paused commit")
            paused.send(signal.SIGCONT)
            paused.wait_log("lease lost")
            network.let_go("affinity lease paused quick")
            paused.wait_log("lease is back")
            await client.start("held_once", "held", instance_id="probe")
            probe = await calls.next()  # calls come in order
            assert (probe["instance"], calls.waiting()) == ("probe", 0)
            for call in (probe, last):
                await call.answer()
            assert [one["worker"] for one in await client.wait("walk", timeout=30)] == ["paused"] * 3 + ["other"]
