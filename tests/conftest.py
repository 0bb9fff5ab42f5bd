"""Databases for tests: SQLite files, and databases on an old and a new PostgreSQL, each test's own."""

from __future__ import annotations

from tests.support import shared_bytecode  # isort: skip -- before all that it is to share

import gc
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest

from affinity import migrate
from affinity.conversation import shown_trace
from tests.provider import warm
from tests.provider.harnesses import UNDISTURBED, PostgresHarness, clear
from tests.provider.sqlite_files import create_file
from tests.servers import NoPostgres, Offer, PostgresServer, old_and_new
from tests.servers.programs import memory, share_clusters
from tests.support import extras
from tests.support.waiting import run_on_a_thread

TESTS: Final = Path(__file__).resolve().parent

PROCESSES_PER_CORE: Final = 2
"""Half of the time a test waits: for a server, a process or a lease."""

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by `nohup`: workers that tests start would ignore it too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

MAX_PROCESSES: Final = 8
"""Each may start two PostgreSQL servers."""

VERSIONED: Final = {
    "provider",
    "test_stores.py",
    "test_connections.py",
    "test_faults.py",
    "test_lost_tail.py",
    "test_outage.py",
}
"""Directories and files whose tests depend on the version of PostgreSQL."""

NIGHTLY: Final = (pytest.mark.slow, pytest.mark.nightly)

ON_POSTGRES: Final = {"old", "new", "postgres", "postgresql"}
"""Parameters of fixtures."""


def pytest_configure() -> None:
    """SQLite files need not survive the machine either: `tmp_path` is in memory, as far as there is room."""
    if (place := memory()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(place))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Without arguments: all but the slow tests, shared among several processes. `-n` and `-m` decide otherwise. Not in
    `addopts`, where `-n` would be an unknown option with `-p no:xdist`.
    """
    option = config.option
    whole = _is_whole(config)
    if whole and not (option.all or option.markexpr):
        option.markexpr = "not slow"
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput") or option.usepdb:
        return
    if option.numprocesses is None and whole:
        option.numprocesses = min(PROCESSES_PER_CORE * (os.cpu_count() or 1), MAX_PROCESSES)
    if option.numprocesses and option.dist == "no":
        option.dist = "worksteal"


def _is_whole(config: pytest.Config) -> bool:
    """Return whether all tests are meant: by no argument, or by this folder."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return True
    return {(config.invocation_params.dir / argument).resolve() for argument in config.args} == {TESTS}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Files that import what only `test-all` has are skipped where it is not installed."""
    return extras.Module.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes a minute starts before everything else. What the older PostgreSQL repeats of the newer one, where
    the version makes no difference, is for `--all`.
    """
    names = {item.nodeid for item in items}
    for item in items:
        if _is_on_postgres(item):
            item.add_marker(pytest.mark.postgres)
        newer = re.sub(r"\bold\b", "new", item.nodeid)
        if newer != item.nodeid and newer in names and VERSIONED.isdisjoint(item.path.parts):
            _leave_to_the_night(item)
        if any(re.search(each.args[0], item.name) for each in item.iter_markers("nightly_cases")):
            _leave_to_the_night(item)
        if any(re.search(each.args[0], item.name) for each in item.iter_markers("slow_cases")):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("nightly") is not None:
            item.add_marker(pytest.mark.slow)  # or README's command would run it
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def _is_on_postgres(item: pytest.Item) -> bool:
    """Return whether a parameter is a server, or several databases with a server among them."""
    given = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    parts = [part for value in given for part in (value if isinstance(value, tuple) else (value,))]
    return any(isinstance(part, str) and part in ON_POSTGRES for part in parts)


def _leave_to_the_night(item: pytest.Item) -> None:
    for mark in NIGHTLY:
        item.add_marker(mark)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Objects of the collection stay until the end: the garbage collector, a tenth of the time, leaves them out."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Before xdist starts its processes."""
    if session.config.getoption("numprocesses", None) and _is_whole(session.config):
        shared_bytecode.share()
        share_clusters()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all`; how long, and where, the tests of `tests/model` look for defects; how hard workers are hit."""
    parser.addoption("--all", action="store_true", help="run the slow tests too, which `-m slow` runs alone")
    group = parser.getgroup("model")
    group.addoption("--model-examples", type=int, metavar="N", help="carry out N random plans, not the usual few")
    group.addoption("--model-seed", type=int, metavar="S", help="draw the plans from this seed")
    group = parser.getgroup("crash")
    group.addoption("--crash-seconds", type=float, metavar="S", help="kill workers of conversations for so long")
    group.addoption("--crash-pause", type=float, metavar="S", help="pause them for so long, each time")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The only event loop that psycopg knows."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell that runs the tests in the background has interrupts ignored, here and in every process that we start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _traces_are_not_shown() -> Iterator[None]:
    """On a busy machine any wake takes long. What its journal has meanwhile is for the tests of that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown_trace, "SHOWN_AFTER", 3600.0)
        yield


class Servers:
    """The two servers of a test session, each started when it is first asked for, with a migrated template."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._offers: dict[str, Offer] | None = None
        self._open: dict[str, PostgresServer] = {}
        self._templates: dict[str, str] = {}
        self._shared: dict[str, str] = {}
        self._kept: dict[str, psycopg.Connection[Any]] = {}

    def server(self, age: str) -> PostgresServer:
        """The server of that age, ``old`` or ``new``; the test fails where there is none."""
        if age not in self._open:
            self._open[age] = self._stack.enter_context(self._offer(age).open())
        return self._open[age]

    def template(self, age: str) -> str:
        """The name of a migrated database on that server, to be copied."""
        if age not in self._templates:
            server = self.server(age)
            name = server.create_database()
            run_on_a_thread(migrate, server.url(name))
            self._templates[age] = name
        return self._templates[age]

    def shared(self, age: str) -> str:
        """The URL of a free database on that server, made ready for `PostgresHarness`."""
        if age not in self._shared:
            url = self.server(age).url(self.server(age).create_database())
            run_on_a_thread(PostgresHarness.prepare, url)
            self._shared[age] = url
        return self._shared[age]

    def kept(self, age: str) -> str:
        """The URL of a migrated database on that server for workers and clients, empty again after each call."""
        server = self.server(age)
        if age not in self._kept:
            url = server.url(server.create_database(self.template(age)))
            options = "-c search_path=affinity"
            kept = psycopg.connect(url, autocommit=True, options=options, application_name="affinity tests")
            self._kept[age] = self._stack.enter_context(kept)
            kept.execute(UNDISTURBED)
        clear(self._kept[age])
        return f"{server.url(self._kept[age].info.dbname)}?application_name={quote(warm.APPLICATION)}"

    def without_databases(self) -> Servers:
        """The same servers, without a template or a shared database yet."""
        fresh = Servers(self._stack)
        fresh._offers, fresh._open = self._offers, self._open
        return fresh

    def _offer(self, age: str) -> Offer:
        if self._offers is None:
            try:
                old, new = old_and_new()
            except NoPostgres as missing:
                pytest.fail(str(missing), pytrace=False)
            self._offers = {"old": old, "new": new}
        return self._offers[age]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Both PostgreSQL servers."""
    with ExitStack() as stack:
        yield Servers(stack)
        warm.close_idle()


@pytest.fixture(params=["old", "new"])
def postgres_age(request: pytest.FixtureRequest) -> str:
    """Which of the two servers a test runs on."""
    age: str = request.param
    return age


@pytest.fixture
def postgres_server(servers: Servers, postgres_age: str) -> PostgresServer:
    """A server, once the old one and once the new one; shared by all tests: not to be stopped."""
    return servers.server(postgres_age)


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    with ExitStack() as stack:
        yield _database(postgres_server, stack)


@pytest.fixture
def postgres_shared(servers: Servers, postgres_age: str) -> str:
    """The URL of a database for `PostgresHarness`, which clears it for each test."""
    return servers.shared(postgres_age)


@pytest.fixture
def postgres_migrated(servers: Servers, postgres_age: str) -> Iterator[str]:
    """The URL of a migrated database."""
    with ExitStack() as stack:
        yield _database(servers.server(postgres_age), stack, servers.template(postgres_age))


@pytest.fixture
def postgres_kept(servers: Servers, postgres_age: str) -> str:
    """The URL of a migrated database that tests use one after another, with the connections of those before: half of
    the time that a worker takes on a database of its own. Not for tests that look at connections: all have one name.
    """
    return servers.kept(postgres_age)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a migrated SQLite file."""
    create_file(path := tmp_path / "affinity.db")
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "old", "new"])
def any_url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database: SQLite, the old PostgreSQL, the new PostgreSQL."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield request.getfixturevalue("sqlite_url")
        else:
            yield _database(servers.server(request.param), stack, servers.template(request.param))


@pytest.fixture(params=["sqlite", "old", "new"])
def kept_url(request: pytest.FixtureRequest, servers: Servers) -> str:
    """As `any_url`, for tests that change nothing but rows: on PostgreSQL as `postgres_kept`."""
    url: str = request.getfixturevalue("sqlite_url") if request.param == "sqlite" else servers.kept(request.param)
    return url


@pytest.fixture(params=["sqlite", "old", "new"])
def env_url(request: pytest.FixtureRequest, servers: Servers) -> str | None:
    """The ``url`` of an `affinity.testing.Env`: None, or a PostgreSQL database."""
    return None if request.param == "sqlite" else servers.shared(request.param)


@pytest.fixture(params=[("sqlite", "new"), pytest.param(("old",), marks=NIGHTLY)], ids="+".join)
def all_urls(request: pytest.FixtureRequest, servers: Servers) -> Iterator[dict[str, str]]:
    """The URLs of migrated databases: of SQLite and the new PostgreSQL together, and of the old PostgreSQL."""
    with ExitStack() as stack:
        yield {
            name: request.getfixturevalue("sqlite_url")
            if name == "sqlite"
            else _database(servers.server(name), stack, servers.template(name))
            for name in request.param
        }


def _database(server: PostgresServer, stack: ExitStack, template: str | None = None) -> str:
    name = server.create_database(template)
    stack.callback(server.drop_database, name)
    return server.url(name)
