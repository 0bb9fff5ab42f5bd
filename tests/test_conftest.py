"""The fixtures that other tests use."""

from __future__ import annotations

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
from tests.support import extras

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
    ("given", "marks", "processes"),
    [
        ([], "not slow", True),
        (["tests"], "not slow", True),
        ([f"{ROOT}/tests/"], "not slow", True),
        (["--all"], "", True),
        (["tests", "--all"], "", True),
        (["-m", "slow"], "slow", True),
        (["tests", "-m", "slow"], "slow", True),
        (["tests/worker"], "", False),
        (["tests", "tests/worker"], "", False),
        (["tests/test_conftest.py::test_x"], "", False),
    ],
)
def test_slow_tests_are_left_out_of_the_whole_suite_only(given: list[str], marks: str, processes: bool) -> None:
    """Without a path, and with that of all tests; `--all`, `-m` and the name of a part include them."""
    options = {"all": "--all" in given, "markexpr": "slow" if "-m" in given else ""}
    paths = [path for path in given if not path.startswith("-") and path != "slow"]
    source = pytest.Config.ArgsSource.ARGS if paths else pytest.Config.ArgsSource.TESTPATHS
    plugins = SimpleNamespace(hasplugin=lambda _: True)
    option = SimpleNamespace(**options, numprocesses=None, dist="no", usepdb=False)
    place = SimpleNamespace(dir=ROOT)
    config: Any = SimpleNamespace(
        option=option, args=paths or ["tests"], args_source=source, pluginmanager=plugins, invocation_params=place
    )
    pytest_cmdline_main(config)
    assert (option.markexpr, option.numprocesses is not None) == (marks, processes)


def test_what_runs_on_a_server_is_marked(request: pytest.FixtureRequest, any_url: str) -> None:
    """For sessions that leave PostgreSQL out."""
    assert (request.node.get_closest_marker("postgres") is not None) == any_url.startswith("postgresql:")


@pytest.mark.parametrize(("module", "required"), [("trustme", False), ("trustme", True), ("nowhere", False)])
def test_a_file_is_skipped_where_a_package_of_the_large_extra_is_missing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, required: bool
) -> None:
    """Not where each has to be installed, nor for want of any other module."""
    skipped = module == "trustme" and not required
    error: type[BaseException] = pytest.skip.Exception if skipped else pytest.Module.CollectError
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(extras, "REQUIRED", required)
    file = tmp_path / "test_that_needs_more.py"
    file.write_text(f"import {module}\n")
    with pytest.raises(error, match=module):
        extras.Module.from_parent(request.session, path=file).collect()


class Collected(SimpleNamespace):
    """As much of an item as the hook asks."""

    name: str
    patterns: Sequence[str]
    marker: str
    found: list[tuple[str, str]]

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        """Keep it."""
        self.found.append((self.name, mark.name))

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        """Those that name its cases."""
        return (getattr(pytest.mark, name)(each).mark for each in self.patterns if name == self.marker)

    def get_closest_marker(self, _: str) -> None:
        """It has none."""


def marked(path: str, patterns: Sequence[str] = (), marker: str = "") -> list[tuple[str, str]]:
    """The marks that the hook adds to four cases of a file, with their names."""
    found: list[tuple[str, str]] = []
    items: Any = [
        Collected(nodeid=f"{path}::{name}", path=Path(path), name=name, patterns=patterns, marker=marker, found=found)
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
    assert marked(path) == [("both[old-x]", mark) for mark in marks]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["new"], ["both[new-x]"]),
        (["new|alone"], ["both[new-x]", "alone[old]"]),
        (["^neither$", r"\[old"], ["both[old-x]", "alone[old]", "neither"]),
        (["absent"], []),
    ],
)
@pytest.mark.parametrize(("marker", "marks"), [("nightly_cases", ["slow", "nightly"]), ("slow_cases", ["slow"])])
def test_cases_that_their_test_names_are_nightly_or_slow(
    marker: str, marks: list[str], patterns: list[str], names: list[str]
) -> None:
    """By regular expressions, whatever the file."""
    assert marked("tests/provider/b.py", patterns, marker) == [(name, mark) for name in names for mark in marks]


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
