"""The worker's own tasks begin from callbacks of the event loop too, such as those of the thread of its lease."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextvars import Context
from pathlib import Path

import anyio

from affinity.tasks import start_in
from tests.support.extras import needs

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio
import sniffio
from tests.worker.test_callbacks import begin
asyncio.run(begin())
print("begun")
"""


async def begin() -> None:
    """Start a task as the thread of a lease does: in a callback without a task, and without context variables."""
    begun = asyncio.Event()

    async def work(event: asyncio.Event) -> None:
        with anyio.move_on_after(60):
            await anyio.sleep(0)
            event.set()

    async with anyio.create_task_group() as tasks:
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(start_in, tasks, work, begun, context=Context())
        await asyncio.wait_for(begun.wait(), 60)


def test_a_task_begins_in_a_callback() -> None:
    asyncio.run(begin())


@needs("agents")
def test_also_where_sniffio_is_installed() -> None:
    """Many libraries bring it, as those for models do. anyio asks it which library runs."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "begun\n"), done.stderr
