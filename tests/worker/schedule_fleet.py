"""``python -m tests.worker.schedule_fleet``: a fleet whose workers are killed at random fires schedules. Each tick is
to start one instance, and none is to be lost.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from affinity import Client, migrate
from affinity.schedules import Schedule
from affinity.schedules.spec import format_due, new_spec, ticks
from affinity.schedules.store.contract import schedules_of
from tests.support.worker_processes import WorkerProcess, Workers, open_workers

APP: Final = "tests.support.ticks_app:app"

PERIODS: Final = (1.0, 2.0, 3.0, 5.0)
"""Seconds between two ticks of a schedule."""

PAUSE: Final = (0.2, 2.0)
"""Seconds between two kills."""

PATIENCE: Final = 120.0
"""Seconds within which all ticks must have been fired, and their instances have ended, when no worker is killed."""


@dataclass
class Outcome:
    """What was found."""

    expected: int = 0
    lost: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    unended: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    lateness: list[float] = field(default_factory=list)  # seconds from the tick to its instance

    def __str__(self) -> str:
        late = sorted(self.lateness)
        p50, p99 = (late[min(len(late) - 1, int(len(late) * share))] for share in (0.5, 0.99))
        return (
            f"{self.kills} kills, {self.expected} ticks, {len(self.lost)} lost, {len(self.extra)} too many, "
            f"not ended: {dict(self.unended)}; late by p50 {p50:.2f} s, p99 {p99:.2f} s, most {late[-1]:.2f} s"
        )


async def run(url: str, workers: Workers, seconds: float, *, fleet: int, schedules: int, seed: int) -> Outcome:
    """Kill workers for so long, and compare ticks and instances."""
    random.seed(seed)
    outcome = Outcome()
    async with Client(url) as client:
        created = [
            await client.schedules.create(
                f"s{n:03}", "tick", every=PERIODS[n % len(PERIODS)], overlap="allow", catch_up=timedelta(hours=1)
            )
            for n in range(schedules)
        ]
        running = [await anyio.to_thread.run_sync(workers.start, f"w{n}", APP) for n in range(fleet)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await anyio.sleep(random.uniform(*PAUSE))
            place = random.randrange(fleet)
            await anyio.to_thread.run_sync(_replace, workers, running, place)
            outcome.kills += 1
        with anyio.fail_after(PATIENCE):
            until = await _now(client)
            while any(each.next_ticks[0] <= until for each in await client.schedules.list(limit=1_000)):
                await anyio.sleep(0.5)
            while [
                each
                async for each in client.list_instances(status=["pending", "running"])
                if _due(each.instance_id) <= until
            ]:
                await anyio.sleep(0.5)
        await _compare(client, created, until, outcome)
    return outcome


def _replace(workers: Workers, running: list[WorkerProcess], place: int) -> None:
    running[place].send(signal.SIGKILL)
    running[place].wait()
    running[place] = workers.launch(f"w{place}", APP)


async def _now(client: Client) -> datetime:
    return (await schedules_of(client._provider).get_due_schedules(0)).now


def _due(instance_id: str) -> datetime:
    return datetime.fromisoformat(instance_id.rpartition("@")[2])


async def _compare(client: Client, created: Sequence[Schedule], until: datetime, outcome: Outcome) -> None:
    found = {each.instance_id: each async for each in client.list_instances() if _due(each.instance_id) <= until}
    expected = set[str]()
    for n, schedule in enumerate(created):
        spec = new_spec("tick", {"every": PERIODS[n % len(PERIODS)], "end": until})
        due = ticks(spec, schedule.next_ticks[0] - timedelta(microseconds=1))
        expected |= {f"{schedule.name}/{schedule.generation}@{format_due(each)}" for each in due}
    outcome.expected = len(expected)
    outcome.lost, outcome.extra = sorted(expected - found.keys()), sorted(found.keys() - expected)
    outcome.unended = Counter(each.status for each in found.values() if each.status != "completed")
    outcome.lateness = [(each.created_at - _due(name)).total_seconds() for name, each in found.items()]


@contextmanager
def database(options: argparse.Namespace) -> Iterator[str]:
    """Where the fleet works."""
    if options.url is not None:
        yield options.url
    elif options.postgres is not None:
        from tests.servers import old_and_new  # imported late: it is for PostgreSQL only

        with old_and_new()[options.postgres == "new"].open() as server:
            yield server.url(server.create_database())
    else:
        with TemporaryDirectory() as directory:
            yield f"sqlite:///{Path(directory) / 'fleet.db'}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.worker.schedule_fleet", description=__doc__)
    parser.add_argument("--url", help="a database without schedules; by default a new SQLite file")
    parser.add_argument("--postgres", choices=["old", "new"], help="a PostgreSQL server is started")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long workers are killed")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with database(options) as url:
        anyio.run(migrate, url)
        with open_workers(url) as workers:
            work = {"fleet": options.workers, "schedules": options.schedules, "seed": options.seed}
            outcome = anyio.run(lambda: run(url, workers, options.seconds, **work))
    print(outcome)
    return bool(outcome.lost or outcome.extra or outcome.unended)


if __name__ == "__main__":
    sys.exit(main())
