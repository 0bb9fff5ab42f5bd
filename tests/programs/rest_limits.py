"""Rules at rest for limits: their counts are those of the work that waits or has slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.programs.slots import WAITING
from tests.programs.tables import Row, Rules, Tables, is_start, parsed

RULES: Final = Rules()


@RULES.of("limits")
def _limits(db: Tables) -> Iterator[str]:
    """Each is of the code of an app."""
    yield from (f"{row['name']!r} is of no code" for row in db.rows["limits"] if not (row["app"] and row["code"]))


@RULES.of("limit_keys")
def _limit_keys(db: Tables) -> Iterator[str]:
    """Each slot in use is that of work, or of work whose end no admission has counted yet; nothing waits at rest but at
    a limit that admits nothing.
    """
    lines = {row["line_id"]: _keys_of(row) for row in db.rows["limit_lines"]}
    held, waiting = Counter[int](), Counter[int]()
    for row in db.rows["limited_work"]:
        (waiting if row["admitted_at"] is None else held).update(lines[row["line_id"]])
    for row in db.rows["limit_keys"]:
        found, key = (row["in_use"], row["waiting"]), row["key_id"]
        if found != (held[key], waiting[key]):
            where = f"{row['limit_name']!r} of {row['key']!r}"
            yield f"{where} counts {found}: {held[key]} have slots, and {waiting[key]} wait"


def _keys_of(line: Row) -> Sequence[int]:
    """The keys of a line. On SQLite they are JSON, with the units of each."""
    keys: list[Any] = parsed(line["keys"])
    return [key[0] if isinstance(key, list) else key for key in keys]


@RULES.of("limit_lines")
def _limit_lines(db: Tables) -> Iterator[str]:
    """Each counts the work that waits in it."""
    waiting = Counter(row["line_id"] for row in db.rows["limited_work"] if row["admitted_at"] is None)
    for row in db.rows["limit_lines"]:
        if row["waiting"] != waiting[row["line_id"]]:
            yield f"line {row['line_id']} counts {row['waiting']}, and {waiting[row['line_id']]} wait"


@RULES.of("limit_line_keys")
def _limit_line_keys(db: Tables) -> Iterator[str]:
    """The keys of each line."""
    there = {(row["line_id"], key) for row in db.rows["limit_lines"] for key in _keys_of(row)}
    here = {(row["line_id"], row["key_id"]) for row in db.rows["limit_line_keys"]}
    yield from (f"line {line} has the key {key} in one of the two tables" for line, key in here ^ there)


@RULES.of("limited_work")
def _limited_work(db: Tables) -> Iterator[str]:
    """Of a row in the queue that waits, or was admitted; or of an instance."""
    queued = {_place(row): row for row in db.rows["worker_queue"] if row["limited"]}
    seen = set[Any]()
    for work in db.rows["limited_work"]:
        if work.get("is_freed"):
            continue
        seen.add(place := _place(work))
        if (row := queued.get(place)) is not None:
            if (work["admitted_at"] is None) != (row["route"] in WAITING):
                yield f"{place} was admitted at {work['admitted_at']}, and has the route {row['route']!r}"
        elif not is_start(work) or not db.is_live(work["instance_id"]):
            yield f"{place} is of no row in the queue, and of no instance that lives"
        elif work["admitted_at"] is None and not _is_shut(db, work):
            yield f"{work['instance_id']!r} waits to begin at limits that are free"
    for place, row in queued.items():
        if row["route"] not in {"gate", "blocked"} and place not in seen:
            yield f"{place} has the route {row['route']!r}, and is not known to wait or to have slots"


def _is_shut(db: Tables, work: Row) -> bool:
    """Whether one of the limits at which work waits is in use, admits nothing, or was changed by an operator."""
    line = next(row for row in db.rows["limit_lines"] if row["line_id"] == work["line_id"])
    limits = db.by("limits", "name")
    keys = [row for row in db.rows["limit_keys"] if row["key_id"] in _keys_of(line)]
    whole = [limits[row["limit_name"]] for row in keys]
    if any(row["in_use"] for row in keys) or any(row["concurrency"] == 0 for row in whole):
        return True
    return any(row["paused"] or parsed(row["changes"]) for row in (*keys, *whole))


def _place(row: Row) -> Any:
    """What identifies work: on SQLite the id of its row in the queue."""
    if "item_id" in row or "id" in row:
        return row.get("item_id", row.get("id"))
    return row["instance_id"], row["execution_id"], row["activity_id"]


@RULES.of("limit_charges")
def _limit_charges(db: Tables) -> Iterator[str]:
    """Of a declared limit."""
    declared = {row["name"] for row in db.rows["limits"]}
    yield from (
        f"{row['units']} units of {row['limit_name']!r}"
        for row in db.rows["limit_charges"]
        if row["limit_name"] not in declared
    )


@RULES.of("limit_admissions")
def _limit_admissions(db: Tables) -> Iterator[str]:
    """One row, which admissions lock; and no count of work had to be corrected."""
    if (count := len(db.rows["limit_admissions"])) != 1:
        yield f"{count} rows"
    yield from (f"{row['drifts']} counts were corrected" for row in db.rows["limit_admissions"] if row["drifts"])
