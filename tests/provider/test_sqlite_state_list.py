"""SQLite: what a listing of session state costs, by its plans and by its steps."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime
from itertools import combinations, count
from pathlib import Path
from typing import Any, Final

import pytest

from affinity.provider.sqlite import Clock, session_state_list
from affinity.provider.sqlite.driver.database import Database, connect
from affinity.provider.sqlite.session_state_list import LIST, list_states
from affinity.provider.statements import with_parts
from affinity.session import SessionFilter, SessionMetadata, SessionState
from tests.provider.sqlite_files import create_file

OLD: Final = datetime(2020, 1, 1, tzinfo=UTC)
YOUNG: Final = datetime(2021, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A migrated file."""
    create_file(path := tmp_path / "affinity.db")
    return path


CONDITIONS: Final[dict[str, SessionFilter]] = {
    "nothing": SessionFilter(),
    "parent": SessionFilter(parent="p"),
    "name": SessionFilter(name="n"),
    "kind": SessionFilter(kind="k"),
    "schema_version": SessionFilter(schema_version=7),
    "labels": SessionFilter(labels={"x": "1"}),
    "prefix": SessionFilter(prefix="new"),
    "participant": SessionFilter(participant="ann"),
    "holder": SessionFilter(holder="a"),
    "created_after": SessionFilter(created_after=YOUNG),
    "updated_after": SessionFilter(updated_after=YOUNG),
    "idle_for": SessionFilter(idle_for=60.0),
    "after": SessionFilter(after=(YOUNG, "x")),
}

each_condition = pytest.mark.parametrize("where", CONDITIONS.values(), ids=CONDITIONS.keys())

IN_ORDER: Final = {
    "by_age": "",
    "by_parent": "parent=?",
    "by_name": "name=?",
    "by_kind": "kind=?",
    "by_schema_version": "schema_version=?",
}
BOUNDS: Final = {
    "since": "updated_at>?",
    "until": "updated_at<?",
    "after": "(updated_at,session_id)<(?,?)",
}


@pytest.mark.parametrize("bounds", [[], ["since"], ["until"], ["after"], ["since", "until"], ["since", "after"]])
@pytest.mark.parametrize("by", IN_ORDER)
def test_a_page_along_an_index_sorts_nothing(path: Path, by: str, bounds: list[str]) -> None:
    """It begins where the cursor says and ends where the time does."""
    plan = explain(path, {by, by.removeprefix("by_"), *bounds})
    assert not [step for step in plan if "TEMP B-TREE" in step]
    (step,) = (step for step in plan if " r " in step)
    sought = [*filter(None, [IN_ORDER[by]]), *(BOUNDS[bound] for bound in bounds)]
    assert step.startswith("SEARCH" if sought else "SCAN r USING INDEX session_states_by_age")
    assert all(part in step for part in sought)


@pytest.mark.parametrize("by", [*IN_ORDER, "by_id"])
def test_conditions_beside_the_path_are_looked_up_by_key(path: Path, by: str) -> None:
    """Of each record that the path comes to."""
    parts = {
        "parent",
        "name",
        "kind",
        "schema_version",
        "prefix",
        "created_after",
        "labels",
        "participant",
        "holder",
        "orphaned",
    }
    for others in (parts, *map(set, combinations(sorted(parts), 2))):
        plan = explain(path, {by, by.removeprefix("by_"), "since", *others})
        scans = [step for step in plan if step.startswith("SCAN")]
        assert {step.split()[1] for step in scans} <= {"p", "j"}, others


@each_condition
@pytest.mark.parametrize("met_by_all", [False, True])
def test_a_page_is_not_dearer_among_many_records(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: SessionFilter, met_by_all: bool
) -> None:
    """Whether few records meet the condition or all do, as long as what meets it is not more than is sorted."""
    monkeypatch.setattr(session_state_list, "FEW", 50)
    costs = []
    for others in (200, 4_000):
        populate(path, others, like_the_others=met_by_all)
        costs.append(page_cost(path, where))
    assert costs[1] < 1.2 * costs[0]


@each_condition
@pytest.mark.parametrize("few", [0, 10, 1_000])
def test_every_path_finds_the_same(path: Path, monkeypatch: pytest.MonkeyPatch, where: SessionFilter, few: int) -> None:
    """Whether what meets a condition counts as few or not."""
    populate(path, 200, like_the_others=False)
    wanted = page(path, where)
    monkeypatch.setattr(session_state_list, "FEW", few)
    assert page(path, where) == wanted
    assert wanted


@pytest.mark.parametrize("where", [SessionFilter(orphaned=True), SessionFilter(heads=True)], ids=["orphaned", "heads"])
def test_a_place_in_a_family_is_not_dearer_to_find_among_many_without_parents(path: Path, where: SessionFilter) -> None:
    """Orphans are looked for among records that have a parent; heads are on the first page, or nearly."""
    costs = []
    for others in (200, 4_000):
        populate(path, others, like_the_others=False)
        assert page(path, where)
        costs.append(page_cost(path, where))
    assert costs[1] < 1.2 * costs[0]


# --- helpers ----------------------------------------------------------------------------------------------------------


def explain(path: Path, parts: set[str]) -> list[str]:
    """The plan of a listing with these parts."""
    arguments: Any = defaultdict(lambda: None)
    with closing(sqlite3.connect(path)) as connection:
        statement = with_parts(LIST, frozenset({"rows", "limit", *parts}))
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", arguments)]


def page(path: Path, where: SessionFilter) -> list[str]:
    """The ids that a listing finds, in its order."""
    with closing(connect(path)) as connection:
        found = Database(connection, Clock()).read(list_states, where, 20)
    return [row.session_id for row in found]


def page_cost(path: Path, where: SessionFilter) -> int:
    """Instructions of SQLite's virtual machine that a page takes."""
    steps = count()
    with closing(connect(path)) as connection:
        connection.set_progress_handler(lambda: next(steps) < 0, 1)  # a true answer would end the statement
        Database(connection, Clock()).read(list_states, where, 20)
    return next(steps)


ONE: Final = SessionState(
    session_id="new",
    state=b"state",
    schema_version=7,
    metadata=SessionMetadata(kind="k", name="n", parent="p", labels={"x": "1"}, participants=["ann", "bob"]),
)
OTHER: Final = SessionState(session_id="old", state=b"state")

FILL: Final = """
INSERT INTO session_states (
    session_id, version, created_at, updated_at, schema_version, encoding, kind, name, parent, labels, participants,
    state
)
SELECT printf('%s%05d', :session_id, value), 1, :written + value, :written + value, :schema_version, 'plain', :kind,
       :name, :parent, :labels, :participants, x'00'
FROM json_each(:numbers)"""

FILL_LABELS: Final = """
INSERT INTO session_labels (session_id, key, value)
SELECT r.session_id, j.key, j.value FROM session_states AS r, json_each(r.labels) AS j"""

FILL_PARTICIPANTS: Final = """
INSERT INTO session_participants (session_id, participant)
SELECT r.session_id, j.value FROM session_states AS r, json_each(r.participants) AS j"""

WORKER: Final = """
INSERT INTO workers (
    worker_id, incarnation, locked_until, started_at, labels, capacity, app, code_version, code_since, registered
)
VALUES ('a', 'a-1', 1e12, 0, '{}', 100, 'app', '1', 0, '{}')"""
FILL_HELD: Final = """
INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at, claimed_at)
SELECT session_id, 'a', 'a-1', 1, 1e12, 0, 0 FROM session_states WHERE schema_version = 7"""


def populate(path: Path, others: int, *, like_the_others: bool) -> None:
    """Records afresh: ten that meet every condition, and others, that meet all of them or none."""
    with closing(sqlite3.connect(path)) as connection:
        for table in ("session_states", "session_labels", "session_participants", "sessions", "workers"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute(WORKER)
        fill(connection, ONE if like_the_others else OTHER, OLD if not like_the_others else YOUNG, range(10, others))
        fill(connection, ONE, YOUNG, range(1, 10))
        connection.execute(FILL_LABELS)
        connection.execute(FILL_PARTICIPANTS)
        connection.execute(FILL_HELD)
        connection.commit()


def fill(connection: sqlite3.Connection, new: SessionState, written: datetime, numbers: range) -> None:
    about = new.metadata
    columns = {
        "session_id": new.session_id,
        "schema_version": new.schema_version,
        "kind": about.kind,
        "name": about.name,
        "parent": about.parent,
        "labels": json.dumps(dict(about.labels)),
        "participants": json.dumps(list(about.participants)),
        "written": written.timestamp(),
        "numbers": json.dumps(list(numbers)),
    }
    connection.execute(FILL, columns)
