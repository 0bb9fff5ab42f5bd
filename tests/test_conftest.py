"""The fixtures that other tests use."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from affinity.provider.postgres.driver.connections import Connection, Role
from affinity.provider.postgres.driver.target import COLD, HOT, Target
from tests.conftest import Servers, pytest_cmdline_main, pytest_collection_modifyitems
from tests.servers.programs import CLUSTERS, LocalServer, programs, share_clusters
from tests.servers.proxy import proxy

ROOT = Path(__file__).resolve().parents[1]

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


class Deaf:
    """A subscriber."""

    def receive(self, channel: str, payload: str) -> None:
        """Do nothing."""

    def end(self, error: Exception) -> None:
        """Do nothing."""


@pytest.mark.anyio
async def test_a_connection_that_is_kept_has_neither_settings_nor_subscriptions_of_before(servers: Servers) -> None:
    """By the next object that gets it."""
    target = Target.parse(servers.kept("new"))
    pids, changed, at_last = [], [], []
    for _ in range(2):
        async with aclosing(Connection(target, "any", HOT)) as one:
            pids += await one.run("SELECT pg_backend_pid()")
            at_last += await one.run("SELECT current_setting('enable_seqscan'), count(*) FROM pg_listening_channels()")
            await one.subscribe(["channel"], Deaf())
            changed += await Role((one,), COLD).run("SELECT current_setting('enable_seqscan')")
    assert pids[0] == pids[1]
    assert changed == [("on",), ("on",)]
    assert at_last == [("off", 0), ("off", 0)]


def test_a_test_process_that_is_killed_leaves_no_server_behind() -> None:
    """Nor its data, which may be in memory."""
    done = subprocess.run([sys.executable, "-c", START_AND_DIE], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid, *directories = done.stdout.split()
    deadline = time.monotonic() + 30
    while _runs(int(pid)) or any(Path(directory).exists() for directory in directories):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_servers_of_a_run_begin_with_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """`initdb` runs once, and what happens to one of them does not to the next."""
    made: list[Path] = []
    initdb = LocalServer._initdb

    def noted(server: LocalServer, directory: Path) -> None:
        made.append(directory)
        initdb(server, directory)

    monkeypatch.setattr(LocalServer, "_initdb", noted)
    monkeypatch.setenv(CLUSTERS, "")  # restored at the end
    share_clusters()
    offer = next(programs())
    for _ in range(2):
        with offer.open() as server, psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE ROLE made_here")
    assert len(made) == 1


@pytest.mark.parametrize(
    ("given", "marks"),
    [({}, "not slow"), ({"all": True}, ""), ({"markexpr": "slow"}, "slow"), ({"source": "ARGS"}, "")],
)
def test_slow_tests_are_left_out_of_the_whole_suite_only(given: dict[str, Any], marks: str) -> None:
    """Without arguments; `--all`, `-m` and the name of a file include them."""
    options = {"all": False, "markexpr": "", "numprocesses": 0, "dist": "no", "usepdb": False}
    source = pytest.Config.ArgsSource[given.pop("source", "TESTPATHS")]
    plugins = SimpleNamespace(hasplugin=lambda _: True)
    config: Any = SimpleNamespace(option=SimpleNamespace(**options | given), args_source=source, pluginmanager=plugins)
    pytest_cmdline_main(config)
    assert config.option.markexpr == marks


class Collected(SimpleNamespace):
    """As much of an item as the hook asks."""

    name: str
    patterns: Sequence[str]
    found: list[tuple[str, str]]

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        """Keep it."""
        self.found.append((self.name, mark.name))

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        """Those that name its cases."""
        assert name == "nightly_cases"
        return (pytest.mark.nightly_cases(pattern).mark for pattern in self.patterns)

    def get_closest_marker(self, _: str) -> None:
        """It has none."""


def nightly(path: str, patterns: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The marks that the hook adds to four cases of a file, with their names."""
    found: list[tuple[str, str]] = []
    items: Any = [
        Collected(nodeid=f"{path}::{name}", path=Path(path), name=name, patterns=patterns, found=found)
        for name in ("both[old-x]", "both[new-x]", "alone[old]", "neither")
    ]
    pytest_collection_modifyitems(items)
    return found


@pytest.mark.parametrize(
    ("path", "marks"),
    [("tests/worker/test_a.py", ["slow", "nightly"]), ("tests/worker/test_faults.py", []), ("tests/provider/b.py", [])],
)
def test_what_the_older_postgresql_repeats_is_nightly(path: str, marks: list[str]) -> None:
    """Where the version makes no difference, and the newer one is there."""
    assert nightly(path) == [("both[old-x]", mark) for mark in marks]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["new"], ["both[new-x]"]),
        (["new|alone"], ["both[new-x]", "alone[old]"]),
        (["^neither$", r"\[old"], ["both[old-x]", "alone[old]", "neither"]),
        (["absent"], []),
    ],
)
def test_cases_that_their_test_names_are_nightly(patterns: list[str], names: list[str]) -> None:
    """By regular expressions, whatever the file."""
    assert nightly("tests/provider/b.py", patterns) == [(name, mark) for name in names for mark in ("slow", "nightly")]


def test_ci_runs_the_slow_tests() -> None:
    """After README's command, which leaves them out: all but the nightly ones, which marks at the tests name."""
    lines = [line.split(" || ")[0].strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    readme = next(place for place, line in enumerate(lines) if '"$test_command"' in line)
    assert ".venv/bin/python -m pytest -m 'slow and not nightly'" in lines[readme:]


def test_the_files_that_ci_names_exist() -> None:
    """Pytest runs nothing where one is missing."""
    for named in re.findall(r"^ *(tests/.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE):
        for path in subprocess.check_output(["bash", "-c", f"printf '%s\\n' {named}"], text=True).split():
            assert (ROOT / path).exists(), path


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_proxy_without_its_server_refuses_connections() -> None:
    """Each, and immediately: a client does not wait for what never comes."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with proxy(f"postgresql://127.0.0.1:{port}/x") as between:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", urlsplit(between.url).port), timeout=10) as client:
                assert client.recv(1) == b""
