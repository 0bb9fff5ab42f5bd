"""SQLite beyond the conformance suite: files, migrations, errors, hints, plans, processes."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any, LiteralString

import anyio
import pytest

from affinity.conversation.store import sqlite as store_of_conversations
from affinity.conversation.store.sqlite import requests
from affinity.errors import ConnectionLost, Contention, Duplicate, ReadOnly, SchemaMismatch
from affinity.provider import sqlite as package
from affinity.provider.contract import (
    FetchOptions,
    Generation,
    Hint,
    Incarnation,
    NewInstance,
    NewWorkItem,
    Provider,
    Timeouts,
    Turn,
    WorkerIdentity,
    WorkKey,
)
from affinity.provider.history import read_whole_history
from affinity.provider.sqlite import Clock, SqliteProvider, driver, failures, instances
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.transaction import PORTION
from affinity.provider.sqlite.migration import MIGRATIONS, migrate
from affinity.provider.statements import load_statements, with_parts
from affinity_conformance.providers.builders import count_rows, profile
from tests.provider import sqlite_crowd as crowd
from tests.provider.sqlite_files import create_file
from tests.support.forked_programs import Fork

TIMEOUTS = Timeouts(work_item_lock=30.0, session_lock=300.0)
GENERATION = Generation("first")
WAIT_SECONDS = 30.0  # seconds of real time for what comes immediately


# --- files and migrations -------------------------------------------------------------------------------------------


async def test_zero_to_now_equals_step_by_step(tmp_path: Path) -> None:
    in_one_step, in_steps = tmp_path / "in_one_step.db", tmp_path / "in_steps.db"
    assert await SqliteProvider.migrate(in_one_step) == (0, len(MIGRATIONS))
    for version in range(1, len(MIGRATIONS) + 1):
        assert migrate(in_steps, MIGRATIONS[:version]) == (version - 1, version)
    assert schema(in_one_step) == schema(in_steps)
    assert await SqliteProvider.migrate(in_one_step) == (len(MIGRATIONS), len(MIGRATIONS))


async def test_ten_processes_migrate_concurrently(tmp_path: Path) -> None:
    path = tmp_path / "affinity.db"
    forks = [Fork(crowd.migrate, str(path)) for _ in range(10)]
    reports = [fork.output().strip() for fork in forks]
    done, found = f"(0, {len(MIGRATIONS)})", f"({len(MIGRATIONS)}, {len(MIGRATIONS)})"
    assert sorted(reports) == sorted([done] + [found] * 9)
    await (await SqliteProvider.open(path)).aclose()


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "affinity.db"
    await SqliteProvider.migrate(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO migrations (version, oldest_code, release) VALUES (999, 999, '9.1')")
        connection.commit()
    for refused in (SqliteProvider.open, SqliteProvider.migrate):
        with pytest.raises(SchemaMismatch, match=r"999 .* use affinity 9.1 or later"):
            await refused(path)


async def test_a_database_that_was_never_migrated_is_refused(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.db", tmp_path / "empty.db"
    empty.touch()
    for path in (missing, empty):
        with pytest.raises(SchemaMismatch, match="affinity migrate"):
            await SqliteProvider.open(path)
    assert not missing.exists()


@pytest.mark.parametrize("name", ["plain.db", "with space.db", "per%cent?#&.db", "ünï.db"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    await SqliteProvider.migrate(tmp_path / name)
    async with aclosing(await SqliteProvider.open(tmp_path / name)) as provider:
        assert await provider.create_instance([new_instance("i")]) == [True]
    assert (tmp_path / name).exists()


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """With the files beside it, whatever the umask is; the mode of an existing file is left alone."""
    path, shared = tmp_path / "affinity.db", tmp_path / "shared.db"
    shared.touch()
    shared.chmod(0o664)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    before = os.umask(0)
    try:
        for file in (path, shared):
            await SqliteProvider.migrate(file)
            async with aclosing(await SqliteProvider.open(file)) as provider:
                assert await provider.create_instance([new_instance("i")]) == [True]
                modes = {
                    each.name.removeprefix(file.name): each.stat().st_mode & 0o777
                    for each in tmp_path.glob(f"{file.name}*")
                }
            assert modes == dict.fromkeys(("", "-wal", "-shm"), 0o600 if file == path else 0o664)
        await SqliteProvider.migrate(link)
        assert (tmp_path / "target").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_a_missing_directory_is_a_lost_connection(tmp_path: Path) -> None:
    for failing in (SqliteProvider.open, SqliteProvider.migrate):
        with pytest.raises(ConnectionLost):
            await failing(tmp_path / "missing" / "affinity.db")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "affinity.db"
    path.write_text("not a database " * 1_000)
    for failing in (SqliteProvider.open, SqliteProvider.migrate):
        with pytest.raises(SchemaMismatch, match="SQLITE_NOTADB"):
            await failing(path)


async def test_a_held_write_lock_is_contention(path: Path) -> None:
    async with aclosing(await SqliteProvider.open(path, max_wait=0.02)) as provider:
        with write_locked(path), pytest.raises(Contention):
            await provider.create_instance([new_instance("i")])
        assert await provider.create_instance([new_instance("i")]) == [True]


async def test_an_activity_queued_twice_is_a_duplicate(provider: SqliteProvider) -> None:
    identity = await owner(provider, "i")
    item = new_item("i", 1)
    with pytest.raises(Duplicate):
        await provider.commit_turn(identity, [new_turn("i", work_items=[item, item])], TIMEOUTS)
    assert await read_whole_history(provider, "i", 1) == []


async def test_a_read_only_connection_is_recognised(provider: SqliteProvider) -> None:
    await provider._writer.call(lambda database: database._connection.execute("PRAGMA query_only = ON").fetchall())
    with pytest.raises(ReadOnly):
        await provider.create_instance([new_instance("i")])


async def test_readers_do_not_wait_for_a_writer(path: Path, provider: SqliteProvider) -> None:
    identity = await owner(provider, "i")
    with write_locked(path), anyio.fail_after(WAIT_SECONDS):
        assert (await provider.get_instance(["i"]))[0] is not None
        options = FetchOptions(limit=10, max_sessions=10, names=["work"], unknown_after=60.0)
        assert (await provider.fetch_work_item(identity, options)).items == ()


async def test_a_closed_provider_refuses_calls(path: Path) -> None:
    provider = await SqliteProvider.open(path)
    await provider.aclose()
    with pytest.raises(ConnectionLost, match="closed"):
        await provider.list_workers()


async def test_a_call_whose_caller_is_gone_is_finished(path: Path, provider: SqliteProvider) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await provider.create_instance([new_instance("i")])
    assert scope.cancelled_caught
    async with aclosing(await SqliteProvider.open(path)) as other:
        await provider._writer.call(Database.changed)  # behind the abandoned call
        assert await other.get_instance(["i"]) != [None]


# --- batches and time -----------------------------------------------------------------------------------------------


async def test_a_batch_beyond_one_portion_keeps_its_order(provider: SqliteProvider) -> None:
    identity = await owner(provider, "i")
    events = [f'{{"n": {number}, "text": "é\\u0000\\"🙂"}}' for number in range(3 * PORTION + 1)]
    await provider.commit_turn(identity, [new_turn("i", history=events)], TIMEOUTS)
    assert await read_whole_history(provider, "i", 1) == events


async def test_an_instant_survives_the_way_out_and_back() -> None:
    for offset in (0.0, 0.1234567, 1e9 / 3):
        now = Clock(offset).now()
        assert instant(now).timestamp() == now


# --- hints ----------------------------------------------------------------------------------------------------------


async def test_a_commit_of_another_connection_is_a_hint(path: Path, provider: SqliteProvider) -> None:
    identity = await owner(provider, "i")
    async with provider.hints(identity) as source:
        assert await source.wait(0) is None
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE counters SET value = value + 1")
            with anyio.fail_after(WAIT_SECONDS):
                assert await source.wait(WAIT_SECONDS) == Hint()


async def test_a_worker_is_not_notified_by_its_own_commits(provider: SqliteProvider) -> None:
    identity = await owner(provider, "i")
    async with provider.hints(identity) as source:
        await provider.renew_worker(identity, 1_000.0)
        assert await source.wait(0.1) is None


async def test_only_wake_sends_hints_to_the_workers_that_share_a_provider(provider: SqliteProvider) -> None:
    """The caller sends them, once: not the verb and its caller both."""
    identity = await owner(provider, "i")
    async with provider.hints(identity) as source:
        await provider.create_instance([new_instance("j")])
        assert await source.wait(0.1) is None
        await provider.notify_workers({None: Hint()})
        with anyio.fail_after(WAIT_SECONDS):
            assert await source.wait(WAIT_SECONDS) == Hint()


# --- plans ----------------------------------------------------------------------------------------------------------

RARE = {
    "release_unknown_locks",
    "demand",
    "count_instances",
    "renew_epochs",
    "untried",
    "is_behind",
    "count_suspended",
    "count_statuses",
    "with_requests",
    "abandoned",
    "over",
    "remove_ended",
    "retried_items",
    "count_parked",
}
"""Statements that may read a whole table: after a lost reply, for status pages, when a quota is set, when a timeline
begins, at a migration; all that is suspended, every ten seconds or up to a limit; all pending requests; or, for
retention by age or by small bounds, all journals; at a sweep, all waits of activities: of those that run now, or
whose workers have died since the sweep before.
"""

IN_PARTS = {
    "shown",
    "list_states",
    "instances",
    "labelled",
    "of_page",
    "conditions",
    "unlocked",
    "known",
    "columns",
    "is_waiting",
    "at_label",
    "first",
    "first_labelled",
    "measure_label",
    "list_ended",
    "list_failures",
    "list_suspended",
    "past",
    "by_end",
    "item",
    "runner",
    "route_items",
}
"""Statements that never run as they stand: `test_sqlite_state_list` and `LISTINGS` look at parts of listings.
The others are conditions or columns, which statements include.
"""

LISTINGS = [
    ("instances", {"shown", "instance_id"}),
    *(
        ("instances", {form, "whole", order, *parts})
        for form in ("shown", "counted")
        for order in ("newest", "oldest")
        for parts in ([], ["one_status"], ["parent_id"], ["session_id", "name"], ["name", "until"])
    ),
    ("instances", {"shown", "newest", "one_status", "name", "until"}),
    *(
        ("labelled", {form, "whole", order, *parts})
        for form in ("shown", "counted")
        for order in ("newest", "oldest")
        for parts in ([], ["created_since", "created_before", "name"], ["several", "status", "until"])
    ),
    *(
        ("list_ended", {order, *parts})
        for order in ("newest", "oldest")
        for parts in (["all", "by_end"], ["most", "by_end", "name"], ["most", "longest"], ["most", "shortest"])
    ),
    *(
        (name, {order, *parts})
        for name in ("first", "first_labelled", "measure_label")
        for order in ("newest", "oldest")
        for parts in ([], ["created_since", "created_before", "several"])
    ),
]
"""Parts of the listing of instances."""

HARMLESS = re.compile(
    r"SCAN (json_each|j|g|CONSTANT ROW|workers|w|\(subquery-\d+\)|stale|routes|names|bounds|rewritten|doomed|timeline"
    r"|tree|t|sqlite_sequence|sized|summed|quotas|parents|p|up|u|member|m|partly|run|r"
    r"|planned|able|n|a|h|c|classes|has|me|newest|named|oldest|few|found|listed|first|last"
    r"|database_identity)( |$)"
)
"""Scans of arguments, of what a statement has made itself, of the few workers, of tables with one row, and of the first
rows of a table."""


def statements() -> list[Any]:
    loaded = [
        (file.stem, name, sql)
        for each in (package, driver, store_of_conversations)
        for file in sorted(Path(str(each.__file__)).parent.glob("*.sql"))
        for name, sql in load_statements(each.__name__, file.name).items()
    ]
    whole = [
        pytest.param(sql, id=f"{file}:{name}")
        for file, name, sql in loaded
        if name not in RARE | IN_PARTS and file != "requests"
    ]
    inbox = [
        pytest.param(with_parts(requests.LIST, frozenset({part})), id=f"requests:{part}")
        for part in ("all", "some", "below")
    ]
    of_failures = [
        pytest.param(with_parts(failures.SQL[name], frozenset(parts)), id=f"{name}:{'+'.join(parts)}")
        for name in ("list_failures", "list_suspended")
        for one in ([], ["name"], ["error_type"])
        for parts in (one, [*one, "after"])
    ]
    return [*whole, *inbox, *of_failures] + [
        pytest.param(with_parts(instances.SQL[name], frozenset(parts)), id=f"{name}:{'+'.join(sorted(parts))}")
        for name, parts in LISTINGS
    ]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A migrated file, for what changes nothing in it."""
    create_file(path := tmp_path_factory.mktemp("empty") / "affinity.db")
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@pytest.mark.parametrize("sql", statements())
def test_no_statement_scans_a_table(empty: sqlite3.Connection, sql: LiteralString) -> None:
    arguments: Any = Anything() if ":" in sql else [None] * sql.count("?")
    plan = [row[3] for row in empty.execute(f"EXPLAIN QUERY PLAN {sql}", arguments)]
    assert [step for step in plan if step.startswith("SCAN") and not HARMLESS.match(step)] == []


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("more", [(), ("until",), ("several", "status", "name"), ("several", "until")])
def test_a_page_by_labels_goes_along_the_index(empty: sqlite3.Connection, order: str, more: Sequence[str]) -> None:
    """It sorts nothing, begins at the cursor, and looks for other labels at the same place."""
    sql = with_parts(instances.SQL["labelled"], frozenset({"shown", "whole", order, *more}))
    plan = [row[3] for row in empty.execute(f"EXPLAIN QUERY PLAN {sql}", Anything())]
    assert not [step for step in plan if "TEMP B-TREE" in step]
    (walk,) = (step for step in plan if " l " in step)
    assert "phase=? AND (created_at,instance_id)" in walk
    looks = [step for step in plan if " o " in step]
    assert all("key=? AND value=? AND phase=? AND created_at=? AND instance_id=?" in step for step in looks)
    assert len(looks) == ("several" in more)


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_page_by_the_end_goes_along_the_index(empty: sqlite3.Connection, order: str) -> None:
    sql = with_parts(instances.SQL["list_ended"], frozenset({"all", "by_end", order, "name"}))
    plan = [row[3] for row in empty.execute(f"EXPLAIN QUERY PLAN {sql}", Anything())]
    assert not [step for step in plan if "TEMP B-TREE" in step]
    assert any("ended_instances" in step for step in plan)


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("more", [(), ("several",), ("prefix", "until")])
def test_a_count_by_labels_reads_no_instance(empty: sqlite3.Connection, order: str, more: Sequence[str]) -> None:
    sql = with_parts(instances.SQL["labelled"], frozenset({"counted", "slim", order, *more}))
    plan = [row[3] for row in empty.execute(f"EXPLAIN QUERY PLAN {sql}", Anything())]
    assert not [step for step in plan if " i " in step or " s " in step]


async def test_a_file_that_is_set_back_twice_to_one_moment_issues_no_id_again(path: Path) -> None:
    """Though its ids are ahead of the clock, because of a timeline that began shortly before that moment."""
    steps = load_statements(driver.__name__, "timeline.sql")
    reached = []
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('orchestrator_queue', 0)")
        for _ in range(2):
            connection.execute("UPDATE counters SET value = 1 << 52 WHERE name = 'epoch'")
            connection.execute("UPDATE sqlite_sequence SET seq = 1 << 52 WHERE name = 'orchestrator_queue'")
            for step in ("raise_epochs", "raise_message_ids"):
                connection.execute(steps[step], {"now": 0.0})
            reached += connection.execute("SELECT value FROM counters WHERE name = 'epoch'").fetchall()
            reached += connection.execute("SELECT seq FROM sqlite_sequence").fetchall()
    assert len(set(reached[::2])) == len(set(reached[1::2])) == 2
    assert min(reached) > (2**52,)


@pytest.mark.parametrize("name", ["scan", "peek"])
async def test_a_fetch_sorts_nothing(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for file in ("fetching.sql", "orchestrations.sql"):
            sql = load_statements(package.__name__, file)[name]
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", Anything())]
            assert not [step for step in plan if "TEMP B-TREE" in step]


class Anything(dict[str, None]):
    """Arguments for any statement."""

    def __missing__(self, name: str) -> None: ...


# --- many processes -------------------------------------------------------------------------------------------------


async def test_eight_processes_share_one_file_without_error_or_loss(path: Path, provider: SqliteProvider) -> None:
    identity = await owner(provider, "i")
    sessions = [None, "s", "t", "u", "v", "w", "x", "y", "z"]
    items = [new_item("i", number, sessions[number % len(sessions)]) for number in range(400)]
    await provider.commit_turn(identity, [new_turn("i", work_items=items)], TIMEOUTS)
    forks = [Fork(crowd.work, str(path), f"worker {number}") for number in range(8)]
    assert sum(int(fork.output()) for fork in forks) == len(items)
    assert (await count_rows(provider))["work_items"] == 0
    (found,) = (await provider.fetch_orchestration_item(identity, limit=1, names=[], unknown_after=60.0)).items
    results = [message.payload for message in found.messages if message.payload != "start"]
    assert sorted(results) == sorted(item.payload for item in items)


# --- helpers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A migrated file."""
    create_file(path := tmp_path / "affinity.db")
    return path


@pytest.fixture
async def provider(path: Path) -> AsyncIterator[SqliteProvider]:
    """A provider on it."""
    async with aclosing(await SqliteProvider.open(path)) as provider:
        yield provider


async def owner(provider: Provider, instance_id: str) -> WorkerIdentity:
    """A registered worker that owns a new instance."""
    identity = WorkerIdentity(worker_id="owner", incarnation=Incarnation(secrets.token_hex(4)))
    await provider.register_worker(identity, 1_000.0, {}, profile=profile())
    await provider.create_instance([new_instance(instance_id)])
    await provider.fetch_orchestration_item(identity, limit=10, names=["flow"], unknown_after=60.0)
    return identity


def new_instance(instance_id: str) -> NewInstance:
    return NewInstance(instance_id=instance_id, generation=GENERATION, name="flow", version=None, start="start")


def new_item(instance_id: str, number: int, session_id: str | None = None) -> NewWorkItem:
    key = WorkKey(instance_id, 1, number)
    return NewWorkItem(key=key, name="work", payload=f"input {number}", session_id=session_id)


def new_turn(instance_id: str, **step: Any) -> Turn:
    fence = {"instance_id": instance_id, "generation": GENERATION, "execution_id": 1, "event_count": 0}
    return Turn(**{**fence, "history": ["event"], **step})


@contextmanager
def write_locked(path: Path) -> Iterator[None]:
    """Hold the write lock, as a paused process could."""
    with closing(sqlite3.connect(path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        yield


def schema(path: Path) -> list[Any]:
    """Everything that a file defines."""
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("SELECT version, oldest_code FROM migrations").fetchall()
        return version + connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
