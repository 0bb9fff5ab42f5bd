"""The schema's version: what a release does with the schema of a later one, on SQLite and on PostgreSQL."""

from __future__ import annotations

import sqlite3
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path

import anyio
import pytest

from affinity import migrate
from affinity.errors import SchemaMismatch
from affinity.provider import inspect_schema, open_provider
from affinity.provider.postgres import migration as postgres
from affinity.provider.postgres import sequences
from affinity.provider.schema import Migration, SchemaVersion, check_usable
from affinity.provider.sqlite import migration as sqlite
from affinity_conformance.providers.builders import new_instance
from tests.provider.postgres_stage import PATIENCE, administrator, opened
from tests.provider.roles import as_role, plain_role
from tests.support.later_release import CONTRACTS, EXPANDS, upgrade

pytestmark = pytest.mark.anyio


async def test_the_schema_of_a_later_release_is_used(any_url: str) -> None:
    """By a worker that runs on, that restarts in the middle of a rollout, or is rolled back."""
    _, known = await migrate(any_url)
    async with aclosing(await open_provider(any_url)) as running:
        assert await running.create_instance([new_instance("i")]) == [True]
        assert await upgrade(any_url, EXPANDS, EXPANDS.replace("later", "later_still")) == known + 2
        assert await running.create_instance([new_instance("i"), new_instance("j")]) == [False, True]
    assert await migrate(any_url) == (known + 2, known + 2)
    async with aclosing(await open_provider(any_url)) as restarted:
        assert [found.instance_id for found in await restarted.get_instance(["i", "j"]) if found] == ["i", "j"]


async def test_a_schema_that_has_contracted_names_the_release_that_it_needs(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that does not know what replaces that which is gone, is refused by workers and migrations alike."""
    for module in (postgres, sqlite):
        monkeypatch.setattr(module, "VERSION", "9.1")
    await upgrade(any_url, EXPANDS, CONTRACTS)
    for refused in (open_provider, migrate):
        with pytest.raises(SchemaMismatch, match=r"use affinity 9\.1 or later"):
            await refused(any_url)


async def test_a_migration_that_contracts_leaves_the_release_before_in(any_url: str) -> None:
    """It may name any version up to its own as the oldest code."""
    _, known = await migrate(any_url)
    await upgrade(any_url, EXPANDS, CONTRACTS.replace("{version}", str(known)))
    await (await open_provider(any_url)).aclose()


@pytest.mark.parametrize("change", [EXPANDS, CONTRACTS])
async def test_a_schema_is_inspected(any_url: str, change: str) -> None:
    """Whether or not this code may use it."""
    _, known = await migrate(any_url)
    before = await inspect_schema(any_url)
    assert (before.version, before.known, before.pending, before.behind) == (known, known, (), ())
    await upgrade(any_url, change)
    if change == CONTRACTS:
        remove_sessions(any_url)
    after = await inspect_schema(any_url)
    assert (after.version, after.is_usable) == (known + 1, change == EXPANDS)
    assert after.oldest_code == (before.oldest_code if change == EXPANDS else known + 1)


def remove_sessions(url: str) -> None:
    """Drop a table that the later release does not use any more."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("DROP TABLE sessions")
    else:
        with administrator(url) as admin:
            admin.execute("DROP TABLE sessions CASCADE")


def test_every_sequence_is_repaired_by_a_migration(postgres_migrated: str) -> None:
    """A new sequence needs a line that names the table whose numbers it must not repeat.

    A number of the audit log may be repeated: its rows are known by their time as well. Numbers of limited work and of
    charges are an order, and no identity.
    """
    with administrator(postgres_migrated) as admin:
        names = admin.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema").fetchall()
    repaired = {name for (name,) in names} - {
        "audit_entry_id_seq",
        "limit_charges_number_seq",
        "limited_work_number_seq",
    }
    assert all(f"'{name}'" in statement for name in repaired for statement in (sequences._BEHIND, sequences._REPAIR))


async def test_a_role_without_rights_to_sequences_starts(postgres_migrated: str) -> None:
    """It does not see how far they are, and takes none for one that was never used."""
    async with aclosing(await open_provider(postgres_migrated)) as provider:
        await provider.create_instance([new_instance("i")])
    grants = ("GRANT USAGE ON SCHEMA affinity TO {}", "GRANT SELECT ON ALL TABLES IN SCHEMA affinity TO {}")
    with administrator(postgres_migrated) as admin, plain_role(admin, *grants) as role:
        before, after = await migrate(as_role(postgres_migrated, role))
    assert before == after


async def test_a_new_schema_is_one_line_of_progress_and_an_upgrade_one_for_each_migration(
    tmp_path: Path, postgres_database: str
) -> None:
    later = [EXPANDS.replace("later", name) for name in ("a", "b", "c")]
    for url in (f"sqlite:///{tmp_path}/new.db", postgres_database):
        lines: list[str] = []
        version = await upgrade(url, later[0], progress=lines.append)
        await upgrade(url, *later, progress=lines.append)
        steps = [f"migration: {step:04d}_later applied" for step in (version + 1, version + 2)]
        assert lines == [f"migration: new schema, version {version}", *steps]


async def test_a_migration_behind_a_long_reader_blocks_no_other_statement(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets the others pass, again and again, and is applied when the reader has ended; each attempt is a line."""
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(postgres, "MIGRATION_PAUSES", (0.01, 0.02))
    lines: list[str] = []
    with administrator(postgres_migrated) as reader:
        reader.execute("BEGIN; LOCK TABLE instances IN ACCESS SHARE MODE")
        async with opened(postgres_migrated) as provider, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(upgrade, postgres_migrated, EXPANDS, progress=lines.append))
            with anyio.fail_after(PATIENCE):
                while len(lines) < 3:
                    assert await provider.get_instance(["i"]) == [None]
            assert "trying again in 0.02 s" in lines[-1]
            reader.execute("ROLLBACK")
    assert "later applied" in lines[-1]


@pytest.mark.parametrize(("known", "is_usable"), [(11, False), (12, True), (13, True), (14, True), (15, False)])
def test_code_between_the_oldest_and_the_version_may_use_a_schema(known: int, is_usable: bool) -> None:
    """Later code must migrate first."""
    found = SchemaVersion(version=14, oldest_code=12)
    migrations = [Migration(number, "", "") for number in range(1, known + 1)]
    if is_usable:
        check_usable(found, migrations, "it")
    else:
        with pytest.raises(SchemaMismatch, match="later release" if known < 12 else "affinity migrate"):
            check_usable(found, migrations, "it")
