"""All tables of the database of an `affinity.testing.Env`, in one snapshot, the same for SQLite and PostgreSQL: times
are Unix seconds, and binary values are given by their length. With a codec, texts are as they are stored; only events
and messages are decoded.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, LiteralString, TypeAlias

import anyio.to_thread
from psycopg import AsyncConnection, sql

from affinity.errors import NotSerializable
from affinity.orchestration import events as ev
from affinity.orchestration.wire import decode_event
from affinity.provider.contract import FINISHED
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.testing import Env
from affinity.testing.env.postgres import PostgresDatabase
from affinity.testing.env.sqlite import SqliteDatabase
from tests.payloads.xor import plain
from tests.support.messages import decode_message

Row: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[Any, ...]

COLUMNS: Final[LiteralString] = """
SELECT c.relname, array_agg(
    CASE a.atttypid WHEN 'timestamptz'::regtype THEN format('extract(epoch FROM %1$I)::float8 AS %1$I', a.attname)
                    WHEN 'bytea'::regtype THEN format('length(%1$I) AS %1$I', a.attname)
                    ELSE format('%I', a.attname) END ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY c.relname"""

BEGINNINGS: Final = (ev.ActivityScheduled, ev.TimerCreated, ev.SubOrchestrationScheduled, ev.EventAwaited)
"""Events that begin what a later event of the execution ends."""

ENDS: Final[Mapping[type[ev.Event], type[ev.Event]]] = {
    ev.ActivityCompleted: ev.ActivityScheduled,
    ev.ActivityFailed: ev.ActivityScheduled,
    ev.ActivityCancelled: ev.ActivityScheduled,
    ev.TimerFired: ev.TimerCreated,
    ev.TimerCancelled: ev.TimerCreated,
    ev.SubOrchestrationCompleted: ev.SubOrchestrationScheduled,
    ev.SubOrchestrationFailed: ev.SubOrchestrationScheduled,
    ev.SubOrchestrationCancelled: ev.SubOrchestrationScheduled,
    ev.EventAwaitCancelled: ev.EventAwaited,
}
"""What ends, by the event that ends it."""


def parsed(value: Any) -> Any:
    """A column with JSON: text on SQLite."""
    return json.loads(value) if isinstance(value, str) else value


@dataclass
class Execution:
    """One execution of an instance, as its history has it."""

    instance_id: str
    execution_id: int
    rows: list[Row] = field(default_factory=list)

    @cached_property
    def events(self) -> Mapping[int, ev.Event]:
        """By event id, without events that no release could read."""
        found = {}
        for row in self.rows:
            try:
                found[row["event_id"]] = decode_event(plain(row["event"]))
            except NotSerializable:
                continue
        return found

    @cached_property
    def ended(self) -> set[int]:
        """Ids of the events whose activity, timer, child or wait has ended."""
        return {event.schedule_id for event in self.events.values() if type(event) in ENDS}  # type: ignore[union-attr]

    def open(self, kind: type[ev.Event]) -> Mapping[int, Any]:
        """The events of this class that nothing has ended, by event id."""
        return {n: event for n, event in self.events.items() if type(event) is kind and n not in self.ended}

    @property
    def last(self) -> ev.Event | None:
        """The event with the greatest id."""
        return self.events.get(max(self.events, default=0))


def is_start(work: Row) -> bool:
    """Whether limited work is the start of an instance."""
    return work["item_id"] is None if "item_id" in work else bool(work["activity_id"] < 0)


class Tables:
    """The rows by table, and what several rules ask."""

    def __init__(self, rows: Mapping[str, Sequence[Row]], now: float, last_epoch: int) -> None:
        self.rows = rows
        self.now = now
        self.last_epoch = last_epoch
        """The greatest epoch that was issued."""

    def by(self, table: str, *columns: str) -> Mapping[Any, Row]:
        """The rows of a table by one column, or by several."""
        rows = self.rows[table]
        return {row[columns[0]] if len(columns) == 1 else tuple(row[c] for c in columns): row for row in rows}

    def groups(self, table: str, column: str) -> Mapping[Any, Sequence[Row]]:
        """The rows of a table that have the same value of a column."""
        found: defaultdict[Any, list[Row]] = defaultdict(list)
        for row in self.rows[table]:
            found[row[column]].append(row)
        return found

    @cached_property
    def instances(self) -> Mapping[str, Row]:
        return self.by("instances", "instance_id")

    @cached_property
    def journals(self) -> Mapping[int, Row]:
        return self.by("journals", "journal_id")

    @cached_property
    def workers(self) -> Mapping[Key, Row]:
        """Workers with a lease, by id and incarnation."""
        found = self.by("workers", "worker_id", "incarnation")
        return {key: row for key, row in found.items() if row["locked_until"] > self.now}

    @cached_property
    def executions(self) -> Mapping[Key, Execution]:
        """By instance and number."""
        found: dict[Key, Execution] = {}
        for row in sorted(self.rows["history"], key=lambda row: row["event_id"]):
            key = row["instance_id"], row["execution_id"]
            found.setdefault(key, Execution(*key)).rows.append(row)
        return found

    @cached_property
    def messages(self) -> Mapping[str, Sequence[tuple[Row, int, ev.Event]]]:
        """What waits in the queue of instances: by instance: row, execution and event."""
        found: defaultdict[str, list[tuple[Row, int, ev.Event]]] = defaultdict(list)
        for row in self.rows["orchestrator_queue"]:
            found[row["instance_id"]].append((row, *decode_message(plain(row["payload"]))))
        return found

    @cached_property
    def waiting_starts(self) -> Set[str]:
        """Instances that wait at a limit to begin: suspended ones may have its slots for ever."""
        waiting = (row for row in self.rows["limited_work"] if row["admitted_at"] is None and is_start(row))
        return {row["instance_id"] for row in waiting}

    def is_live(self, instance_id: str) -> bool:
        """Whether the instance is there and has not ended."""
        found = self.instances.get(instance_id)
        return found is not None and found["status"] not in FINISHED

    def is_suspended(self, instance_id: str) -> bool:
        """Whether the instance waits for an operator or for other code: nothing that it is sent is read."""
        return self.is_live(instance_id) and bool(self.instances[instance_id]["status"] == "suspended")

    def current(self, instance_id: str) -> Execution:
        """The execution that an instance is in."""
        key = instance_id, self.instances[instance_id]["execution_id"]
        return self.executions.get(key, Execution(*key))

    def holder(self, session: Row | None) -> Row | None:
        """The live worker that holds a session."""
        if session is None or session["locked_until"] <= self.now:
            return None
        return self.workers.get((session["worker_id"], session["incarnation"]))

    @cached_property
    def entries(self) -> Mapping[int, Mapping[int, Row]]:
        """The own entries of each journal by number."""
        found: defaultdict[int, dict[int, Row]] = defaultdict(dict)
        for row in self.rows["journal_entries"]:
            found[row["journal_id"]][row["seq"]] = row
        return found

    def entry(self, journal: Row, seq: int) -> Row | None:
        """An entry that a journal has, its own or of one that it continues."""
        at: Row | None = journal
        while at is not None and seq <= (at["base_seq"] or 0):
            at = self.journals.get(at["base_id"])
        return None if at is None else self.entries[at["journal_id"]].get(seq)

    def waiting_inputs(self, journal: Row) -> Iterable[int]:
        """Numbers of the inputs that no wake has processed."""
        for seq in range(max(journal["processed"] + 1, journal["first_seq"]), journal["last_seq"] + 1):
            entry = self.entry(journal, seq)
            if entry is not None and entry["is_input"]:
                yield seq


Rule: TypeAlias = Callable[[Tables], Iterator[str]]
"""Gives the violations in the rows of one table."""


class Rules(dict[str, Rule]):
    """Rules by table."""

    def of(self, table: str) -> Callable[[Rule], Rule]:
        """The decorated function is the rule of this table."""

        def add(check: Rule) -> Rule:
            assert table not in self
            self[table] = check
            return check

        return add


def counted(db: Tables, count: float) -> Iterator[str]:
    """Violations of the count of the instances, which exists while there is a quota of them."""
    if any(row["instances"] is not None for row in db.rows["quotas"]) and count != len(db.instances):
        yield f"{count} instances are counted, and {len(db.instances)} are there"


async def read_tables(env: Env) -> Tables:
    """The tables as they are now."""
    database = env._database
    if isinstance(database, SqliteDatabase):
        found = await anyio.to_thread.run_sync(partial(database._database.read, _read_sqlite))
        return Tables(found, database.now(), next(int(r["value"]) for r in found["counters"] if r["name"] == "epoch"))
    assert isinstance(database, PostgresDatabase)
    return await database.ask(lambda connection: _read_postgres(connection, database.now()))


def _read_sqlite(tx: Tx) -> Mapping[str, Sequence[Row]]:
    found = {}
    for (name,) in tx.rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = [column for (column,) in tx.rows("SELECT name FROM pragma_table_info(?)", [name])]
        rows = tx.rows(f'SELECT * FROM "{name}"')
        found[name] = [dict(zip(columns, map(_sized, row), strict=True)) for row in rows]
    return found


def _sized(value: Any) -> Any:
    return len(value) if isinstance(value, bytes) else value


_PORTION: Final = 40
"""Tables in one call of a function, which takes 100 arguments at most."""


async def _read_postgres(connection: AsyncConnection[Any], now: float) -> Tables:
    tables = await (await connection.execute(COLUMNS)).fetchall()
    parts = [
        sql.SQL("{}, (SELECT coalesce(json_agg(r), '[]') FROM (SELECT {} FROM {}) r)").format(
            sql.Literal(name), sql.SQL(", ").join(map(sql.SQL, columns)), sql.Identifier(name)
        )
        for name, columns in tables
    ]
    portions = [parts[n : n + _PORTION] for n in range(0, len(parts), _PORTION)]
    objects = [sql.SQL("json_build_object({})").format(sql.SQL(", ").join(portion)) for portion in portions]
    query = sql.SQL("SELECT (SELECT last_value FROM epochs), {}").format(sql.SQL(", ").join(objects))
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    epoch, *found = row
    return Tables({name: rows for portion in found for name, rows in portion.items()}, now, epoch)
