"""Worker processes are killed at random while they pay: each order is paid once.

Orders come in groups, and a worker is killed within each, when a random number of them is not paid yet. So there are as
many kills on a slow machine as on a fast one.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import anyio
import pytest

import affinity
from affinity.provider.opening import migrate
from tests.conftest import Servers
from tests.effects.shops import Shop, open_shop
from tests.support.paying_app import VARIABLE, order
from tests.support.worker_processes import PATIENCE, WorkerProcess, Workers, open_workers

APP: Final = "tests.support.paying_app:app"

NIGHT: Final = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("orders", [pytest.param(200, marks=pytest.mark.slow), pytest.param(10_000, marks=NIGHT)])
@pytest.mark.parametrize("kind", ["psycopg-new", "django-new", "sqlite3-sqlite", "django-sqlite"])
async def test_each_order_is_paid_once(
    kind: str, orders: int, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, _, database = kind.partition("-")
    group, kills = max(50, orders // 50), 0
    with ExitStack() as stack:
        if database == "sqlite":
            url, shop_url = f"sqlite:///{tmp_path}/affinity.db", f"sqlite:///{tmp_path}/shop.db"
        else:  # the tables of the application in affinity's database, in another schema
            server = servers.server(database)
            name = server.create_database()
            stack.callback(server.drop_database, name)
            url = shop_url = server.url(name)
        await migrate(url)
        shop = open_shop(library, shop_url)
        monkeypatch.setenv(VARIABLE, f"django+{shop_url}" if library == "django" else shop_url)
        workers = stack.enter_context(open_workers(url))
        began = time.monotonic()
        async with affinity.Client(url) as client:
            for first in range(0, orders, group):
                new = range(first, first + group)
                await client.start_many([affinity.Start(order, n, instance_id=f"o{n}") for n in new])
                while len(workers.running()) < 2:
                    await anyio.to_thread.run_sync(_start, workers)
                await _wait_until_paid(shop, first + group - random.randrange(group))
                await anyio.sleep(random.uniform(0, 0.05))
                await anyio.to_thread.run_sync(_kill, random.choice(workers.running()))
                kills += 1
            for number in range(orders):
                assert await client.wait(f"o{number}", timeout=PATIENCE) == number
        seconds = time.monotonic() - began
        paid, attempts = Counter(shop.paid()), Counter(attempt for _, attempt, _ in shop.rows())
    assert paid == Counter(map(str, range(orders)))
    assert kills == orders // group
    assert sum(count for attempt, count in attempts.items() if attempt > 1), "no payment was interrupted"
    print(f"{kind}: {orders} orders, {kills} kills, rows by attempt {dict(sorted(attempts.items()))}, {seconds:.0f} s")


def _start(workers: Workers) -> None:
    """It has fewer places than there are orders, so that a kill finds it at work. An order may be interrupted often,
    and is not to run alone after that, as work does that has ended its worker some times.
    """
    workers.start(f"w{random.getrandbits(64):x}", APP, worker_concurrency=8, max_attempts=1_000)


def _kill(worker: WorkerProcess) -> None:
    worker.send(signal.SIGKILL)
    worker.wait()


async def _wait_until_paid(shop: Shop, number: int) -> None:
    with anyio.fail_after(PATIENCE), shop.plain() as run:
        while run("SELECT count(*) FROM payments")[0][0] < number:
            await anyio.sleep(0.02)
