"""Failovers under load: what happens to the cluster, and what came of it."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Literal

import anyio
from anyio import to_thread

from affinity import Client, migrate
from tests.failover import work
from tests.servers.patroni import TTL, Cluster, Replication, open_cluster
from tests.support.fault_injection import NAMES, FaultInjector
from tests.support.worker_processes import open_workers

APP: Final = "tests.failover.app:app"

LEASE: Final = 5.0
OPTIONS: Final = {"worker_lease_timeout": LEASE, "work_item_lock_timeout": 2 * LEASE, "max_attempts": 1_000}

BAR: Final = LEASE + TTL + 3.0
"""Seconds after which the last session is served again."""

SESSIONS: Final = 10
"""Of each kind."""

BEFORE: Final = 3
AFTER: Final = 3
"""Acknowledgements of each session."""

DEADLINE: Final = 240.0

STORM: Final = 60.0
"""Seconds."""

CUT: Final = 2.0
"""Seconds for which an asynchronous standby receives nothing before its primary dies."""

Way = Literal["hosts", "haproxy"]


@dataclass
class Outcome:
    """Of one case."""

    case: str
    replication: Replication
    way: Way
    judged: work.Judged
    pause: float
    raised: Counter[str]
    restarts: int
    """New incarnations of workers, which began with empty caches."""

    def __str__(self) -> str:
        found = self.judged
        raised = ", ".join(f"{number} {name}" for name, number in sorted(self.raised.items())) or "nothing"
        return (
            f"{self.case}, {self.replication}, {self.way}: {found.seen} seen, {found.lost} lost, "
            f"{found.doubled} doubled, {self.pause:.1f} s, {self.restarts} new incarnations, clients: {raised}"
        )


class Stage:
    """What a fault may use."""

    def __init__(self, cluster: Cluster, injector: FaultInjector, work: work.Work) -> None:
        self.cluster, self.injector, self.work = cluster, injector, work

    async def call(self, what: Callable[[], object]) -> None:
        """Something that waits for programs."""
        await to_thread.run_sync(what)


Fault = Callable[[Stage], Awaitable[float]]
"""Carries it out; since when the pause is measured."""


async def switchover(stage: Stage) -> float:
    """As an operator says it."""
    since = time.monotonic()
    await stage.call(stage.cluster.switch_over)
    return since


async def postgres_killed(stage: Stage) -> float:
    """The primary dies."""
    since = time.monotonic()
    primary = stage.cluster.primary
    primary.kill_postgres()
    await stage.call(lambda: stage.cluster.until_other_leads(primary))
    return since


async def lagging(stage: Stage) -> float:
    """The standby gets nothing for a moment; then the primary dies."""
    stage.cluster.primary.proxy.lose()
    await anyio.sleep(CUT)
    return await postgres_killed(stage)


async def patroni_killed(stage: Stage) -> float:
    """PostgreSQL goes on without it, and takes writes beside the one that is promoted, until its Patroni is back."""
    primary = stage.cluster.primary
    primary.kill()
    await stage.call(lambda: stage.cluster.until_other_leads(primary))
    await anyio.sleep(3.0)
    since = time.monotonic()
    primary.start()
    return since


async def patroni_gone(stage: Stage) -> float:
    """The same, and it comes back when all goes on."""
    primary = stage.cluster.primary
    since = time.monotonic()
    primary.kill()
    await stage.call(lambda: stage.cluster.until_other_leads(primary))
    await stage.work.until_served(AFTER, time.monotonic())
    primary.start()
    return since


async def etcd_leader_killed(stage: Stage) -> float:
    """Two others are left."""
    since = time.monotonic()
    leader = stage.cluster.etcd_leader
    leader.kill()
    await anyio.sleep(TTL)
    leader.start()
    return since


async def quorum_lost(stage: Stage) -> float:
    """One etcd is left, so the primary steps down; then the others come back."""
    gone = stage.cluster.etcd[1:]
    for each in gone:
        each.kill()
    await stage.call(stage.cluster.until_none_leads)
    await anyio.sleep(5.0)
    since = time.monotonic()
    for each in gone:
        each.start()
    return since


async def paused(stage: Stage) -> float:
    """The machine of the primary stands still, and goes on when the other one leads."""
    primary = stage.cluster.primary
    since = time.monotonic()
    primary.pause()
    await stage.call(lambda: stage.cluster.until_other_leads(primary))
    await stage.work.until_served(AFTER, time.monotonic())
    await stage.call(primary.resume)
    return since


async def storm(stage: Stage) -> float:
    """One failover after the other, while workers are killed and paused."""
    is_over = False

    async def fail_over() -> None:
        faults = itertools.cycle([switchover, postgres_killed])
        while not is_over:
            await next(faults)(stage)
            await stage.call(stage.cluster.until_whole)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail_over)
        await stage.injector.inject(STORM)
        is_over = True
    return time.monotonic()


FAULTS: Final[Mapping[str, Fault]] = {
    "switchover": switchover,
    "postgres killed": postgres_killed,
    "lagging standby": lagging,
    "patroni killed": patroni_killed,
    "patroni gone": patroni_gone,
    "etcd leader killed": etcd_leader_killed,
    "quorum lost": quorum_lost,
    "paused": paused,
    "storm": storm,
}


async def run(case: str, replication: Replication, way: Way = "hosts") -> Outcome:
    """Carry it out on a cluster of its own."""
    with open_cluster(replication) as cluster:
        return await run_on(cluster, case, way)


async def run_on(cluster: Cluster, case: str, way: Way) -> Outcome:
    """Carry it out under load, let all come to rest, and judge."""
    database = "failover"
    cluster.create_database(database)
    await migrate(cluster.url(database))
    url = cluster.url(database) if way == "hosts" else cluster.url_of_haproxy(database)
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(DEADLINE))
        workers = stack.enter_context(open_workers(url))
        injector = FaultInjector(workers, APP, pause=2 * LEASE + 1.0, **OPTIONS)
        await injector.start()
        clients = [await stack.enter_async_context(Client(url)) for _ in range(2)]
        load = work.make(clients, SESSIONS)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run)
                await load.until_served(BEFORE, time.monotonic())
                since = await FAULTS[case](Stage(cluster, injector, load))
                await to_thread.run_sync(cluster.until_whole)
                await load.until_served(AFTER, time.monotonic())
                load.is_over = True
        except BaseException:
            said = [f"{each.name}: {line}" for each in workers.running() for line in each.log[-30:]]
            print("\n".join([load.state(), *said]))  # no note: a timeout replaces the error
            raise
        processes = workers.running()
        assert len(processes) == len(NAMES)
        async with Client(url) as client:
            judged = await load.judge(client, is_redone=cluster.replication == "asynchronous")
        for each in processes:
            each.send(signal.SIGTERM)
        assert {each.wait() for each in processes} == {0}
        restarts = sum("starting again as a new incarnation" in line for each in processes for line in each.log)
    return Outcome(case, cluster.replication, way, judged, load.pause(since), load.raised, restarts)
