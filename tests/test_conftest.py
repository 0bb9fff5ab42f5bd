"""What the other tests stand on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.conftest import Servers

START_AND_DIE = """
import os
from tests.servers.programs import programs
server = next(programs()).open()
print(server._process.pid, server._home, server._data, flush=True)
os.kill(os.getpid(), 9)
"""


async def test_a_database_can_be_had_within_a_running_loop(servers: Servers) -> None:
    """By async fixtures and tests, whichever test comes first."""
    fresh = servers.without_databases()
    assert fresh.shared("new") != servers.shared("new")
    assert fresh.template("new") != servers.template("new")


def test_a_test_process_that_is_killed_leaves_no_server_behind() -> None:
    """Nor its data, which may be in memory."""
    done = subprocess.run([sys.executable, "-c", START_AND_DIE], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid, *directories = done.stdout.split()
    deadline = time.monotonic() + 30
    while _runs(int(pid)) or any(Path(directory).exists() for directory in directories):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
