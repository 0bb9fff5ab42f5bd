"""Ordered activities of a session run in the order of their commits, whatever happens to the workers."""

from __future__ import annotations

import signal
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio import to_thread

from affinity.client import Client, ExternalEvent
from tests.everywhere import everywhere
from tests.processes import WorkerProcess, Workers
from tests.scribes import check, schedule

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

SCRIBES, LINES = 3, 45
APP: Final = "tests.scribes:app"
NAMES: Final = ("red", "green", "blue")
OPTIONS: Final[dict[str, Any]] = {"max_attempts": 100}


@everywhere
async def test_several_orchestrations_append_to_one_log(workers: Workers, client: Client, tmp_path: Path) -> None:
    """Workers are killed and started again all the time. Each line is scheduled when the one before it is committed. So
    the log has them in order, once each, and none begins before the one before it has ended, though attempts fail and
    are repeated. Work that is not ordered runs between a beginning and an end.
    """
    notes = tmp_path / str(next(_FILES))
    running = {name: workers.start(name, APP, **OPTIONS) for name in NAMES}
    scribes = [(await client.start("scribe", str(notes))).instance_id for _ in range(SCRIBES)]
    async with anyio.create_task_group() as group:
        group.start_soon(_kill_one_after_the_other, workers, running)
        for number in range(LINES):
            await schedule(client, scribes[number % SCRIBES], number)
        await client.raise_events(ExternalEvent(scribe, "line", -1) for scribe in scribes)
        for scribe in scribes:
            await client.wait(scribe, timeout=150)
        group.cancel_scope.cancel()
    await check(client, notes, LINES)


_FILES = count()
"""Names of files: the test runs on several databases at the same time."""


async def _kill_one_after_the_other(workers: Workers, running: dict[str, WorkerProcess]) -> None:
    """Each is started again under its name a little later, mostly before its lease has ended."""
    for name in cycle(NAMES):
        await anyio.sleep(2.5)
        running[name].send(signal.SIGKILL)
        await anyio.sleep(1.0)
        running[name] = await to_thread.run_sync(partial(workers.start, name, APP, **OPTIONS))
