"""Whatever a row contains, a worker goes on serving all other instances.

Each example corrupts payloads of some instances, at most one of each, beside healthy ones: random bytes, random JSON,
values of other types, truncations. The healthy ones finish, and no worker ends. What cannot be read suspends its
instance, or fails the activity whose task or session state it is; what can be read is as good as any other row.

``HYPOTHESIS_PROFILE=thorough`` makes many more examples.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, LiteralString, NamedTuple

import anyio
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Sessions, Worker
from affinity.errors import NotSerializable
from affinity.orchestration.wire import decode_event, decode_task
from affinity.session import SessionMetadata
from tests.support.messages import decode_message

pytestmark = pytest.mark.timeout(600)

PROFILES: Final = {"default": 6, "thorough": 200}
EXAMPLES: Final = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "default")]

HEALTHY: Final = 3
HISTORY_EVENTS: Final = 8
"""Events of an instance when its rows are corrupted."""

app = App("any row")
memories = Sessions(
    dict[str, int],
    kind="memory",
    initial=lambda _: {"n": 0},
    metadata=lambda state: SessionMetadata(message_count=state["n"], labels={"a": "b"}, participants=["c"]),
)
app.include(memories)


@app.activity
async def remember(context: ActivityContext, n: int) -> int:
    async with memories.open(context) as memory:
        memory["n"] = memory.get("n", 0) + n
        return memory["n"]


@app.orchestration
async def everything(context: OrchestrationContext, n: int) -> int:
    """Has a row in every table by the time at which the worker without `later` ends."""
    context.set_custom_status({"n": n})
    session = context.instance_id
    await context.schedule_activity(remember, n).on_session(session)
    context.schedule_session_moved(session)
    await context.schedule_wait("go", int)
    await context.schedule_activity("later", n)
    return await context.schedule_activity(remember, n).on_session(session)


first_app = App("any row, first release")
first_app.include(app)


@app.activity
async def later(context: ActivityContext, n: int) -> int:
    return n


class PayloadColumn(NamedTuple):
    """A payload column, and how to find a row of one instance, session or worker."""

    table: LiteralString
    name: LiteralString
    key: LiteralString = "instance_id"
    holds: str = "text"  # or "bytes", "json" (PostgreSQL takes no other text there), "integer"


COLUMNS: Final = [
    PayloadColumn("history", "event"),
    PayloadColumn("orchestrator_queue", "payload"),
    PayloadColumn("worker_queue", "payload"),
    PayloadColumn("session_watches", "payload"),
    PayloadColumn("instances", "custom_status"),
    PayloadColumn("session_states", "state", "session_id", "bytes"),
    PayloadColumn("session_states", "encoding", "session_id"),
    PayloadColumn("session_states", "kind", "session_id"),
    PayloadColumn("session_states", "labels", "session_id", "json"),
    PayloadColumn("session_states", "participants", "session_id", "json"),
    PayloadColumn("session_states", "schema_version", "session_id", "integer"),
    PayloadColumn("session_states", "message_count", "session_id", "integer"),
    PayloadColumn("session_states", "name", "session_id"),
    PayloadColumn("session_states", "parent", "session_id"),
    PayloadColumn("workers", "labels", "worker_id", "json"),
]


@dataclass(frozen=True)
class Corruption:
    """What becomes of one payload."""

    column: PayloadColumn
    place: float  # which row of the instance, if it has several, and where in it: 0 to 1
    how: str
    value: Any

    def applied(self, original: bytes) -> bytes:
        match self.how:
            case "bytes":
                assert isinstance(self.value, bytes)
                return self.value
            case "json":
                return json.dumps(self.value).encode()
            case "cut":
                return original[: int(self.place * len(original))]
            case "flip":
                at = int(self.place * (len(original) - 1))
                return original[:at] + bytes([self.value]) + original[at + 1 :]
            case "deep":
                return b"[" * int(self.value) + b"]" * int(self.value)
            case "field":
                return _with_field(original, self.place, self.value)
        raise AssertionError(self.how)


def _with_field(original: bytes, place: float, value: Any) -> bytes:
    """The JSON object with another value in one of its fields, at any depth."""
    try:
        document = json.loads(original)
    except ValueError:
        return json.dumps(value).encode()
    fields: list[tuple[dict[str, Any], str]] = []
    objects = [document]
    while objects:
        one = objects.pop()
        if isinstance(one, dict):
            fields += [(one, key) for key in one]
            objects += one.values()
    if not fields:
        return json.dumps(value).encode()
    owner, key = fields[int(place * (len(fields) - 1))]
    owner[key] = value
    return json.dumps(document).encode()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["event_raised", "activity_completed", "timer_fired", "orchestration_started", "\x00", "go"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
how_and_value = (
    st.tuples(st.just("bytes"), st.binary(max_size=40))
    | st.tuples(st.just("json"), json_values)
    | st.tuples(st.just("cut"), st.none())
    | st.tuples(st.just("flip"), st.integers(0, 255))
    | st.tuples(st.just("deep"), st.sampled_from([190, 199, 201, 5_000]))
    | st.tuples(st.just("field"), json_values)
)


def corruptions(column: PayloadColumn) -> st.SearchStrategy[Corruption]:
    return st.builds(_corruption, st.just(column), st.floats(0, 1), how_and_value)


def _corruption(column: PayloadColumn, place: float, how_and_value: tuple[str, Any]) -> Corruption:
    return Corruption(column, place, *how_and_value)


class DatabaseRows:
    """The rows of one database, behind the back of its provider."""

    def __init__(self, url: str) -> None:
        self._is_sqlite = url.startswith("sqlite")
        self._url = url.removeprefix("sqlite:///")

    def corrupt(self, key: str, corruption: Corruption) -> tuple[str, bytes] | None:
        """Change one row; what it has now, by the kind of the row; None when the database refuses it."""
        column = corruption.column
        rows = self._rows(column, key)
        place, original = rows[int(corruption.place * (len(rows) - 1))]
        changed = corruption.applied(original)
        try:
            self._write(column, place, self._value(column, changed))
        except (psycopg.Error, ValueError):
            return None  # PostgreSQL looks itself: text in its encoding, JSON that is JSON, integers in range
        return column.table, changed

    def _value(self, column: PayloadColumn, changed: bytes) -> object:
        if column.holds == "integer":
            return int.from_bytes(changed[:3], "big")
        if column.holds == "bytes":
            return changed
        return changed if self._is_sqlite else changed.decode()

    def _rows(self, column: PayloadColumn, key: str) -> list[tuple[Any, bytes]]:
        row = "ctid::text" if not self._is_sqlite else _ROW_ID[column.table]
        value = f"CAST({column.name} AS {'BLOB' if self._is_sqlite else 'text'})"
        found = self._run(f"SELECT {row}, {value} FROM {column.table} WHERE {column.key} = ?", key)
        assert found, (column, key)
        return [(at, text.encode() if isinstance(text, str) else bytes(text or b"")) for at, text in found]

    def _write(self, column: PayloadColumn, place: Any, value: object) -> None:
        if self._is_sqlite:
            cast = "CAST(? AS TEXT)" if column.holds in {"text", "json"} else "?"
            row = _ROW_ID[column.table]
            self._run(f"UPDATE {column.table} SET {column.name} = {cast} WHERE {row} = ?", value, place)
        else:
            cast = {"json": "?::jsonb", "bytes": "?", "integer": "?::int", "text": "?::text"}[column.holds]
            self._run(f"UPDATE {column.table} SET {column.name} = {cast} WHERE ctid = ?::tid", value, place)

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._is_sqlite:
            with closing(sqlite3.connect(self._url, isolation_level=None)) as connection:
                return connection.execute(statement, values).fetchall()
        with psycopg.connect(self._url, options="-c search_path=affinity", autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement.replace("?", "%s")), values)
            return cursor.fetchall() if cursor.description else []


_ROW_ID: Final[dict[str, LiteralString]] = {
    "history": "instance_id || '/' || event_id",
    "orchestrator_queue": "id",
    "worker_queue": "id",
    "session_watches": "instance_id",
    "instances": "instance_id",
    "session_states": "session_id",
    "workers": "worker_id",
}


def is_readable(row: tuple[str, bytes]) -> bool:
    """Whether this version can read it."""
    table, raw = row
    decode: Any = {
        "history": decode_event,
        "orchestrator_queue": decode_message,
        "session_watches": decode_message,
        "worker_queue": decode_task,
    }.get(table)
    try:
        if decode is not None:
            decode(raw.decode())
    except (NotSerializable, UnicodeDecodeError):
        return False
    return True


def worker_of(url: str, app: App, name: str) -> Worker:
    return Worker(app, url, RuntimeOptions.make(worker_node_id=name, poll_interval=0.2, drain_timeout=2.0))


async def until_all_have_rows(client: Client, names: Sequence[str]) -> None:
    with anyio.fail_after(60):
        for name in names:
            while (await client.status(name)).event_count < HISTORY_EVENTS:
                await anyio.sleep(0.02)


async def play(url: str, number: int, corrupted: Sequence[Corruption]) -> None:
    sick = [f"sick-{number}-{n}" for n in range(len(corrupted))]
    healthy = [f"healthy-{number}-{n}" for n in range(HEALTHY)]
    rows = DatabaseRows(url)
    async with Client(url) as client:
        async with worker_of(url, first_app, f"first-{number}"):
            for name in sick + healthy:
                await client.start(everything, 1, instance_id=name)
                await client.raise_event(name, "go", 1)
            await until_all_have_rows(client, sick + healthy)
        for name in sick + healthy:
            await client.raise_event(name, "unread", 1)
        left = {
            name: rows.corrupt(f"first-{number}" if one.column.table == "workers" else name, one)
            for name, one in zip(sick, corrupted, strict=True)
        }
        async with worker_of(url, app, f"second-{number}") as worker:
            for name in healthy:
                assert await client.wait(name, timeout=60) == 2
            async with anyio.create_task_group() as checks:
                for name, row in left.items():
                    checks.start_soon(check_sick, client, name, row)
            assert worker.runtime.lease.error is None
            assert f"first-{number}" in {each.worker_id for each in await client.workers()}
            fresh = await client.start(everything, 1)
            await client.raise_event(fresh.instance_id, "go", 1)
            assert await client.wait(fresh.instance_id, timeout=60) == 2
        assert {each.instance_id async for each in client.list_instances(prefix="sick-")} >= set(sick)
        assert {each.session_id async for each in client.session_manager.list()} >= set(sick)


async def check_sick(client: Client, name: str, row: tuple[str, bytes] | None) -> None:
    """An instance with a row that cannot be read ends, with a reason; any other may go on as its rows say."""
    with anyio.move_on_after(60 if row is not None and not is_readable(row) else 1):
        while True:
            found = await client.status(name)
            await client.history(name)
            if found.suspension is not None or found.finished:
                break
            await anyio.sleep(0.1)
    if row is None or is_readable(row):
        return
    if row[0] == "worker_queue":
        assert found.error is not None, found
        assert "its task cannot be read" in found.error.message
    elif row[0] != "session_watches" or found.status != "completed":  # the session may move when all is done
        assert found.suspension is not None, found
        assert found.suspension.error_type == "OrchestrationUnreadable"
        assert "cannot be read" in found.suspension.message


NUMBERS = count()


@pytest.mark.slow
@pytest.mark.nightly_cases("new")
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=PROFILES["default"] == EXAMPLES,
    phases=[Phase.generate] if PROFILES["default"] == EXAMPLES else [Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(corrupted=st.tuples(*map(corruptions, 2 * COLUMNS)))
def test_any_row_hurts_its_own_instance_only(kept_url: str, corrupted: tuple[Corruption, ...]) -> None:
    anyio.run(play, kept_url, next(NUMBERS), corrupted)
