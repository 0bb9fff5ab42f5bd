"""What `affinity check` and a worker that starts find at a database: each thing that it may lack, and nothing else."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest
from psycopg import sql

from affinity import Client, Worker
from affinity.errors import AccessDenied, DatabaseFailure, InvalidUrl, ProviderError, ReadOnly
from affinity.provider import CheckResult, change_rights, check_database, inspect_schema
from affinity.provider.postgres.checks import check_server
from affinity.provider.postgres.driver.target import Target
from affinity.provider.sqlite import checks as sqlite_checks
from tests.provider.postgres_stage import administrator
from tests.provider.roles import as_role, plain_role
from tests.servers import PostgresServer, old_and_new
from tests.servers.pgbouncer import IGNORES, PROGRAM, REFUSES, pooler
from tests.servers.programs import LocalServer, programs
from tests.support.smoke import app
from tests.support.worker_processes import ROOT

pytestmark = pytest.mark.anyio

needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer")

POSTGRES: Final = [
    "connection",
    "version",
    "pooler",
    "primary",
    "role",
    "schema",
    "encoding",
    "listen",
    "timeline",
    "clock",
    "durability",
    "connections",
    "vacuum",
    "isolation",
]
SQLITE: Final = ["version", "file", "schema", "journal", "encoding", "disk", "filesystem", "space"]


async def found(url: str) -> dict[str, CheckResult]:
    """The results by what was looked at; each but an ok one names a remedy."""
    results = await check_database(url)
    assert [one.check for one in results if one.level == "ok" and one.remedy is not None] == []
    assert [one.check for one in results if one.level != "ok" and not one.remedy] == []
    named = {result.check: result for result in results}
    assert len(named) == len(results)
    return named


def levels(results: Mapping[str, CheckResult]) -> dict[str, str]:
    """What is not ok."""
    return {name: result.level for name, result in results.items() if result.level != "ok"}


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    with administrator(postgres_migrated) as connection:
        yield connection


async def test_a_server_that_lacks_nothing(postgres_migrated: str, postgres_server: PostgresServer) -> None:
    results = await found(postgres_migrated)
    assert list(results) == POSTGRES
    assert levels(results) == {}
    assert results["version"].found.startswith(f"PostgreSQL {postgres_server.major}")
    assert results["role"].found == "postgres is a superuser"


async def test_a_check_changes_nothing(postgres_migrated: str, postgres_database: str) -> None:
    """Nor does it make the schema."""
    written = (
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del), (SELECT token FROM affinity.timeline) FROM pg_stat_user_tables"
    )
    with psycopg.connect(postgres_migrated, autocommit=True) as connection:
        before = connection.execute(written).fetchall()
        await found(postgres_migrated)
        assert connection.execute(written).fetchall() == before
    assert levels(await found(postgres_database)) == {"schema": "warning"}
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT to_regnamespace('affinity')").fetchall() == [(None,)]


async def test_what_a_role_may_do(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Each kind of role is told; one without rights is an error, which the named command mends."""
    with plain_role(admin) as worker, plain_role(admin) as client, plain_role(admin) as scaler, plain_role(admin) as no:
        await change_rights(postgres_migrated, workers=[worker], clients=[client], scalers=[scaler])
        for role, kind in {worker: "worker", client: "client", scaler: "scaler"}.items():
            results = await found(as_role(postgres_migrated, role))
            assert results["role"].level == "ok"
            assert f"has the rights of a {kind}" in results["role"].found
            assert ("a worker needs" in results["role"].found) is (kind != "worker")
        refused = await found(as_role(postgres_migrated, no))
        assert levels(refused) == {"role": "error"}
        assert refused["role"].remedy == f"affinity migrate --grant-worker {no}, as the owner of the schema"
        await change_rights(postgres_migrated, workers=[no])
        assert levels(await found(as_role(postgres_migrated, no))) == {}
        admin.execute(sql.SQL("REVOKE UPDATE ON sessions FROM {}").format(sql.Identifier(no)))
        lacking = (await found(as_role(postgres_migrated, no)))["role"]
    assert (lacking.level, lacking.found) == (
        "ok",
        f"{no} has the rights of a client; a worker needs {refused['role'].remedy}",
    )


async def test_a_role_that_may_make_the_schema_or_not(postgres_database: str) -> None:
    with administrator(postgres_database) as admin, plain_role(admin) as role:
        url = as_role(postgres_database, role)
        assert levels(await found(url)) == {"role": "error", "schema": "error"}
        name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(postgres_database)["dbname"])  # type: ignore[arg-type]
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(name, sql.Identifier(role)))
        assert levels(await found(url)) == {"schema": "warning"}


@pytest.mark.parametrize(
    ("setting", "value", "check"),
    [
        ("default_transaction_isolation", "serializable", "isolation"),
        ("synchronous_commit", "off", "durability"),
        ("synchronous_commit", "local", "durability"),
    ],
)
async def test_settings_of_a_database(postgres_migrated: str, setting: str, value: str, check: str) -> None:
    """With settings that affinity does not heed, a worker runs."""
    statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
    with administrator(postgres_migrated) as admin:
        database = sql.Identifier(admin.info.dbname)
        admin.execute(statement.format(database, sql.Identifier(setting), sql.Literal(value)))
    results = await found(postgres_migrated)
    assert levels(results) == ({check: "warning"} if value == "off" else {})
    assert value in results[check].found
    async with Worker(app, postgres_migrated, migrate=False):
        pass


async def test_a_database_that_is_not_utf8(postgres_server: PostgresServer) -> None:
    name = sql.Identifier("checked_latin1")
    with closing(psycopg.connect(postgres_server.url(), autocommit=True)) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'").format(name))
        try:
            results = await found(postgres_server.url("checked_latin1"))
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
    assert levels(results) == {"schema": "warning", "encoding": "error"}
    assert "ENCODING 'UTF8'" in str(results["encoding"].remedy)


async def test_a_server_that_hides_its_timeline(postgres_database: str) -> None:
    """From the owner of the schema, whoever asks."""
    with administrator(postgres_database) as admin:
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        with plain_role(admin) as role:
            assert (await found(as_role(postgres_database, role)))["timeline"].level == "warning"


async def test_a_schema_that_is_too_new(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    admin.execute("UPDATE migrations SET version = 99, oldest_code = 99")
    assert levels(await found(postgres_migrated)) == {"schema": "error"}


async def test_a_role_whose_connections_do_not_suffice(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    with plain_role(admin, "ALTER ROLE {} CONNECTION LIMIT 3") as role:
        await change_rights(postgres_migrated, workers=[role])
        results = await found(as_role(postgres_migrated, role))
    assert levels(results) == {"connections": "warning"}


async def test_the_clock_of_this_machine(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr("affinity.provider.postgres.checks.time.time", lambda: now() + 60.0)
    results = await found(postgres_migrated)
    assert levels(results) == {"clock": "warning"}
    assert "60.0 s behind this machine's" in results["clock"].found


@pytest.mark.slow
@pytest.mark.parametrize("age", ["old", "new"])
async def test_a_server_of_its_own(age: str) -> None:
    """With the settings of a whole server, and with a standby."""
    offer = dict(zip(("old", "new"), old_and_new(), strict=True))[age]
    local = next((each for each in programs() if each.major == offer.major), None)
    if local is None:
        pytest.skip("a standby needs the programs of the server here")
    with ExitStack() as stack:
        server = stack.enter_context(local.open())
        assert isinstance(server, LocalServer)
        with psycopg.connect(server.url(), autocommit=True) as admin:
            for setting in ("autovacuum = off", "max_connections = 10"):
                admin.execute(f"ALTER SYSTEM SET {setting}".encode())
        server._settings = {name: value for name, value in server._settings.items() if name != "max_connections"}
        server.restart()
        results = await found(server.url())
        assert levels(results) == {"schema": "warning", "vacuum": "warning"}
        assert "room for 1 workers" in results["connections"].found
        standby = stack.enter_context(server.standby())
        assert levels(await found(standby.url())) == {
            "primary": "error",
            "schema": "warning",
            "listen": "warning",
            "vacuum": "warning",
        }


@needs_pgbouncer
@pytest.mark.slow
async def test_a_standby_behind_a_pooler(tmp_path: Path) -> None:
    """Nothing shows there that a session is the connection's own. A client does not read from it."""
    (tmp_path / "shared").mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(next(programs()).open())
        assert isinstance(server, LocalServer)
        standby = stack.enter_context(server.standby())
        url = stack.enter_context(pooler(tmp_path, standby.url(), mode="session"))
        assert levels(await found(url)) == {"pooler": "error", "primary": "error", "listen": "warning"}
        with pytest.raises(ReadOnly, match="25006"):
            await inspect_schema(url)
        shared = stack.enter_context(pooler(tmp_path / "shared", standby.url(), mode="transaction"))
        for each in (url, shared):
            with pytest.raises(ReadOnly):
                async with Client(each):
                    pass


async def test_a_server_that_cannot_be_reached() -> None:
    results = await found("postgresql://nobody@127.0.0.1:1/none")
    assert levels(results) == {"connection": "error"}
    assert "cannot connect to PostgreSQL at 127.0.0.1:1" in results["connection"].found
    with pytest.raises(InvalidUrl):
        await check_database("nothing://here")


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
@pytest.mark.parametrize("ignored", [REFUSES, IGNORES], ids=["refuses", "ignores"])
async def test_a_pooler_is_found(postgres_migrated: str, tmp_path: Path, mode: str, ignored: str) -> None:
    """Whether it refuses the settings of a connection or ignores them; what is behind it is looked at all the same."""
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=ignored) as url:
        results = await found(url)
    assert results["role"].found == "postgres is a superuser"
    if mode == "session":
        assert levels(results) == {}
        assert "in session mode" in results["pooler"].found
        assert "schema" in results
    else:
        assert levels(results) == {"pooler": "error", "listen": "warning"}
        assert "or to a pooler in session mode" in str(results["pooler"].remedy)


@needs_pgbouncer
async def test_a_pooler_that_pretends(postgres_migrated: str, tmp_path: Path) -> None:
    """A server session that is not the connection's own is noticed."""
    pretends = "SET affinity.options = kept; SET search_path = affinity"
    with pooler(tmp_path, postgres_migrated, mode="transaction", ignored=IGNORES, query=pretends) as url:
        assert levels(await found(url)) == {"pooler": "error", "listen": "warning"}


# --- workers ----------------------------------------------------------------------------------------------------------


async def test_a_worker_logs_the_warnings_once(
    postgres_migrated: str, admin: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each with its remedy. A client logs none."""
    with plain_role(admin, "ALTER ROLE {} CONNECTION LIMIT 4", "ALTER ROLE {} SET synchronous_commit = off") as role:
        await change_rights(postgres_migrated, workers=[role])
        url = as_role(postgres_migrated, role)
        expected = [one for one in await check_database(url) if one.level == "warning"]
        assert [one.check for one in expected] == ["durability", "connections"]
        async with Client(url):
            pass
        assert caplog.records == []
        async with Worker(app, url, migrate=False):
            pass
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert lines[0] == f"PostgreSQL: {expected[0].found}; {expected[0].remedy}"
    assert lines[1].endswith(f"; {expected[1].remedy}")
    assert len(lines) == len(expected)


@pytest.mark.parametrize("refusal", [AccessDenied, DatabaseFailure])
async def test_a_server_that_refuses_the_question_stops_no_worker(refusal: type[ProviderError]) -> None:
    async def ask(statement: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        raise refusal("PostgreSQL: permission denied for view pg_roles (42501)", "42501")

    (result,) = await check_server(ask, Target.parse("postgresql://one/app"))
    assert (result.check, result.level) == ("catalogues", "warning")
    assert "pg_roles" in result.found


async def test_a_worker_on_a_disk_that_is_nearly_full(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_checks, "LOW_DISK_BYTES", 1 << 62)
    async with Worker(app, sqlite_url):
        pass
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 1
    assert lines[0].startswith("SQLite: the disk is nearly full: ")


# --- SQLite -----------------------------------------------------------------------------------------------------------


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def test_a_file_that_lacks_nothing(sqlite_url: str) -> None:
    """Looking leaves no other file behind."""
    results = await found(sqlite_url)
    assert list(results) == SQLITE
    assert levels(results) == {}
    assert results["journal"].found.startswith("WAL")
    assert [each.name for each in path_of(sqlite_url).parent.iterdir()] == ["affinity.db"]


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert levels(await found(f"sqlite:///{tmp_path}/none.db")) == {"file": "warning"}
    assert levels(await found(f"sqlite:///{tmp_path}/nowhere/none.db")) == {"file": "error"}
    assert list(tmp_path.iterdir()) == []


async def test_files_that_are_no_database_or_not_ours(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database\n" * 100)
    assert levels(await found(f"sqlite:///{tmp_path}/text.db")) == {"file": "error"}
    (tmp_path / "empty.db").touch()
    assert levels(await found(f"sqlite:///{tmp_path}/empty.db")) == {"schema": "warning"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists locks")
async def test_a_check_keeps_the_locks_of_its_process(sqlite_url: str) -> None:
    """The close of any file descriptor of the file would drop them: then another process that closes its connection
    takes itself for the last one, and removes the log into which this process writes.
    """
    async with Client(sqlite_url):
        before = _locks()
        assert before
        await check_database(sqlite_url)
        assert _locks() == before


def _locks() -> list[str]:
    """The locks of this process, without their numbers."""
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return sorted(line.partition(": ")[2] for line in lines if line.split()[4] == str(os.getpid()))


async def test_another_journal(sqlite_url: str) -> None:
    with closing(sqlite3.connect(path_of(sqlite_url))) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    results = await found(sqlite_url)
    assert levels(results) == {"journal": "warning"}
    assert "not WAL" in results["journal"].found


MOUNTS: Final = """\
21 1 8:1 / / rw,relatime - ext4 /dev/root rw
22 21 0:40 / /mnt/a\\040share rw - nfs4 server:/share rw
23 21 0:41 / /mnt rw - tmpfs none rw
24 22 0:42 / /mnt/a\\040share/local rw master:1 - xfs /dev/sdb rw
"""


class Mounted(NamedTuple):
    path: str
    kind: str


@pytest.mark.parametrize(
    "mounted",
    [
        Mounted("/srv/x.db", "ext4"),
        Mounted("/mnt/x.db", "tmpfs"),
        Mounted("/mnt/a share/x.db", "nfs4"),
        Mounted("/mnt/a share/local/x.db", "xfs"),
    ],
)
async def test_the_file_system_of_a_path(mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the longest mount point above it says; names may have spaces."""
    (mounts := tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(sqlite_checks, "_MOUNTS", mounts)
    assert sqlite_checks.file_system(Path(mounted.path)) == mounted.kind


async def test_a_network_file_system(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mounts := tmp_path / "mountinfo").write_text("21 1 8:1 / / rw - cifs //server/share rw\n")
    monkeypatch.setattr(sqlite_checks, "_MOUNTS", mounts)
    results = await found(sqlite_url)
    assert levels(results) == {"filesystem": "warning"}
    assert "cifs" in results["filesystem"].found
    monkeypatch.setattr(sqlite_checks, "_MOUNTS", tmp_path / "none")
    assert (await found(sqlite_url))["filesystem"].found == "not known"


UNSHARE: Final = ["unshare", "--mount"]


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs the right to mount",
)
@pytest.mark.parametrize("is_open", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_disk_that_is_read_only(sqlite_url: str, *, is_open: bool) -> None:
    """Also for root, and while another process that may write has the file open: all but the disk is looked at."""
    path = path_of(sqlite_url)
    script = f"""mount --bind {path.parent} {path.parent} && mount -o remount,ro,bind {path.parent} &&
        exec {sys.executable} -m affinity check --url {sqlite_url}"""
    with ExitStack() as stack:
        if is_open:
            other = stack.enter_context(closing(sqlite3.connect(path)))
            other.execute("SELECT count(*) FROM instances").fetchone()
        done = subprocess.run([*UNSHARE, "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    bad = [line.split()[:2] for line in done.stdout.splitlines() if not line.startswith(("ok", " "))]
    assert bad == [["error", "disk"]]
    assert "version 1" in done.stdout
