"""Listing records of session state, at a cost that does not grow with the number of records.

Parent, name, kind and schema version have indexes in the order of a listing, as has the time of the last write: a page
is read along one of them, and ends when it is full. Holder, label, beginning of the id and time of creation have
indexes in other orders. Up to `FEW` records that such an index finds are sorted. If it finds more, a page fills soon
along an index of the first kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from affinity.limits import MAX_ID_BYTES
from affinity.provider.rows import to_session_summary
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Row, Tx, to_json
from affinity.provider.sqlite.session_states import SQL
from affinity.provider.statements import load_statements, with_parts
from affinity.records import ChildCursor, SessionFilter, SessionSummary

LIST: Final = load_statements(__package__, "session_state_list.sql")["list_states"]
_BY_ID: Final = with_parts(LIST, frozenset({"rows", "by_id"}))

FEW: Final = 10_000
"""Records that are sorted in memory for one page, at most."""

IN_ORDER: Final = ("parent", "name", "kind", "schema_version")
"""Conditions with an index in the order of a listing; the first that is asked for is used, as it leaves the fewest."""

_AFTER_ANY_ID: Final = "\U0010ffff" * (MAX_ID_BYTES // 4 + 1)
"""Greater than every valid id. Behind a prefix, greater than every valid id that begins with the prefix."""


def list_states(tx: Tx, where: SessionFilter, limit: int) -> list[SessionSummary]:
    return [to_session_summary(row, instant) for row in _find(tx, where, {"rows", "limit"}, limit)]


def count_states(tx: Tx, where: SessionFilter) -> int:
    ((number,),) = _find(tx, where, {"number"})
    return int(number)


def list_children(tx: Tx, parents: Sequence[str], limit: int, after: ChildCursor | None) -> list[SessionSummary]:
    """See `SessionStore.children`; ``parents`` in order."""
    after_parent, after_time, after_id = after or ("", None, "")
    cursor = {
        "after_parent": after_parent,
        "after_time": after_time and after_time.timestamp(),
        "after_id": after_id,
        "limit": limit,
    }
    left = [parent for parent in parents if parent >= after_parent]
    return _by_id(tx, tx.gather(SQL["children"], {"parents": to_json(left), **cursor}))


def list_ancestors(tx: Tx, session_id: str, limit: int) -> list[SessionSummary]:
    """See `SessionStore.ancestors`."""
    return _by_id(tx, tx.gather(SQL["ancestors"], {"session_id": session_id, "limit": limit}))


def _by_id(tx: Tx, session_ids: Sequence[str]) -> list[SessionSummary]:
    """The records of some sessions, in that order."""
    rows = tx.rows(_BY_ID, {"now": tx.now, "session_ids": to_json(session_ids)})
    return [to_session_summary(row, instant) for row in rows]


def _find(tx: Tx, where: SessionFilter, parts: set[str], limit: int = 0) -> list[Row]:
    conditions = _conditions(tx, where)
    arguments = _arguments(tx, where, limit) | conditions
    session_ids = _find_few_ids(tx, where, arguments)
    path = _path(conditions) if session_ids is None else "by_id"
    statement = with_parts(LIST, frozenset({path, *parts, *conditions}))
    return tx.rows(statement, {**arguments, "session_ids": to_json(session_ids or [])})


def _path(conditions: dict[str, Any]) -> str:
    return next((f"by_{name}" for name in IN_ORDER if name in conditions), "by_age")


def _conditions(tx: Tx, where: SessionFilter) -> dict[str, Any]:
    """The values of a filter, by the name of their part in the statement."""
    updated_after, created_after, after = (
        None if at is None else at.timestamp()
        for at in (where.updated_after, where.created_after, where.after and where.after[0])
    )
    until = None if where.idle_for is None else round(tx.now - where.idle_for, 6)
    if until is not None and after is not None:
        # Of two upper bounds the index serves one, so only the lower of them is given: it implies the other.
        until, after = (None, after) if after <= until else (until, None)
    conditions = {
        "parent": where.parent,
        "name": where.name,
        "kind": where.kind,
        "schema_version": where.schema_version,
        "prefix": where.prefix or None,
        "created_after": created_after,
        "since": max((at for at in (updated_after, created_after) if at is not None), default=None),
        "until": until,
        "after": after,
        "labels": to_json(list(where.labels.items())) if where.labels else None,
        "participant": where.participant,
        "orphaned": where.orphaned or None,
        "heads": where.heads or None,
        "holder": where.holder,
    }
    return {name: wanted for name, wanted in conditions.items() if wanted is not None}


def _arguments(tx: Tx, where: SessionFilter, limit: int) -> dict[str, Any]:
    return {
        "now": tx.now,
        "limit": limit,
        "few": FEW,
        "prefix_end": (where.prefix or "") + _AFTER_ANY_ID,
        "after_id": where.after and where.after[1],
    }


def _find_few_ids(tx: Tx, where: SessionFilter, arguments: dict[str, Any]) -> list[str] | None:
    """All sessions that meet some condition, when they are few; None when no condition says so."""
    for statement, more in _narrowing(where):
        found: list[str] = tx.gather(SQL[statement], {**arguments, **more})
        if len(found) <= FEW:
            return found
    return None


def _narrowing(where: SessionFilter) -> Iterator[tuple[str, dict[str, str]]]:
    """Statements that find what meets one condition."""
    if where.holder is not None:
        yield "held_by", {}
    for key, value in where.labels.items():
        yield "labelled", {"key": key, "value": value}
    if where.participant is not None:
        yield "participating", {}
    if where.prefix:
        yield "beginning", {}
    if where.created_after is not None:
        yield "created", {}
    if where.orphaned:
        yield "orphans", {}
