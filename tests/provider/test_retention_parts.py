"""The seams of retention: a guest that the kernel has never seen keeps records of sessions, and removes old rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Final

import anyio
import pytest

from affinity.provider import open_provider
from affinity.provider.contract import Retention, Sweep
from affinity.provider.postgres import old_data as postgres_old_data
from affinity.provider.postgres import parts as postgres_parts
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import PostgresPart
from affinity.provider.rounds import RoundKind, Step
from affinity.provider.sqlite import old_data as sqlite_old_data
from affinity.provider.sqlite import parts as sqlite_parts
from affinity.provider.sqlite import session_states
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import Access, SqlitePart
from affinity_conformance.providers.builders import state
from tests.provider.postgres_stage import administrator

pytestmark = pytest.mark.anyio

TABLE: Final = "CREATE TABLE notes (session_id text PRIMARY KEY)"
NOTE: Final = "INSERT INTO notes VALUES ('a')"
NEEDED: Final = "r.session_id IN (SELECT session_id FROM notes)"


def rounds_on_postgres(db: Database, keep: Retention) -> list[RoundKind]:
    async def remove(_: Any) -> Step:
        rows = await db.connections.misc.run("DELETE FROM notes RETURNING session_id")
        return Step(len(rows), None)

    return [RoundKind("notes", keep.guests["notes"], remove)]


def rounds_on_sqlite(access: Access, keep: Retention) -> list[RoundKind]:
    async def remove(_: Any) -> Step:
        return Step(await access.write(lambda tx: tx.run("DELETE FROM notes", {})), None)

    return [RoundKind("notes", keep.guests["notes"], remove)]


@pytest.fixture
def gone(any_url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A database whose providers know the guest beside the others, with a note about one session. SQLite: the sessions
    whose notes go.
    """
    gone: list[str] = []
    notes = PostgresPart(verbs={}, rights=(), rounds=rounds_on_postgres, needs_record=NEEDED)
    on_postgres = {**postgres_parts.parts(), "notes": notes}

    def records_removed(_: Tx, session_ids: Any) -> None:
        gone.extend(session_ids)

    on_sqlite = {
        **sqlite_parts.parts(),
        "notes": SqlitePart(verbs={}, rounds=rounds_on_sqlite, needs_record=NEEDED, records_removed=records_removed),
    }
    for module in (postgres_parts, postgres_old_data):
        monkeypatch.setattr(module, "parts", lambda: on_postgres)
    for other in (sqlite_old_data, session_states):
        monkeypatch.setattr(other, "parts", lambda: on_sqlite)
    if any_url.startswith("sqlite"):
        with closing(sqlite3.connect(any_url.removeprefix("sqlite://"))) as connection, connection:
            connection.execute(TABLE)
            connection.execute(NOTE)
    else:
        with administrator(any_url) as admin:
            admin.execute(TABLE)
            admin.execute(NOTE)
    return gone


async def test_a_guest_keeps_the_records_that_it_needs_and_removes_its_rows_in_rounds(
    any_url: str, gone: list[str]
) -> None:
    """The kernel removes the record when nothing of the guest needs it any more."""
    provider = await open_provider(any_url)

    async def swept() -> Sweep:
        keep = Retention(records=0.0, guests={"notes": 0.0})
        return await provider.sweep(interval=0.0, session_retention=1e6, worker_retention=1e6, retention=keep)

    for session_id in ("a", "b"):
        await provider.states.save(state(session_id))
    await anyio.sleep(2.2)
    first, second = await swept(), await swept()
    await provider.aclose()
    assert (first.records_removed, first.removed) == (1, {"notes": 1})
    assert (second.records_removed, second.removed) == (1, {})
    assert gone == (["b", "a"] if any_url.startswith("sqlite") else [])
