"""Walks through the arguments and results of verbs, by their classes, and visits what the table names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from affinity.payloads.table import Encoded, all_records

_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Visit(Protocol):
    """Called for each value that the table names."""

    def __call__(self, encoded: Encoded, value: Any, scope: str | None) -> Any:
        """Return what takes its place."""
        ...


class _Field(NamedTuple):
    name: str
    encoded: Encoded | None


class _Plan(NamedTuple):
    """The fields of a class to look at."""

    scope: Any  # attrgetter, or None
    fields: Sequence[_Field]
    is_tuple: bool


@cache
def _plan(cls: type) -> _Plan | None:
    record = all_records().get(cls)
    if is_dataclass(cls):
        names = [column.name for column in fields(cls)]
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = [*cls._fields]
    else:
        return None
    known = {} if record is None else record.fields
    scope = attrgetter(record.scope) if record is not None and record.scope else None
    return _Plan(scope, [_Field(name, known.get(name)) for name in names], issubclass(cls, tuple))


def walk(value: Any, scope: str | None, visit: Visit) -> Any:
    """Return a value in which each payload is what ``visit`` has returned for it; the value itself if none differs.

    Args:
        value: an argument or a result: records, sequences and mappings of them. Keys of mappings that are texts are the
            scopes of their values.
        scope: the object that its payloads belong to, as far as no record names one.
        visit: is called for each payload.
    """
    cls = type(value)
    if cls in _LEAVES:
        return value
    if cls is list or cls is tuple:
        found = [walk(item, scope, visit) for item in value]
        return value if all(map(_is_same, found, value)) else cls(found)
    if cls is dict:
        walked = {key: walk(item, key if isinstance(key, str) else scope, visit) for key, item in value.items()}
        return value if all(map(_is_same, walked.values(), value.values())) else walked
    plan = _plan(cls)  # type: ignore[arg-type]  # a class is hashable
    if plan is None:
        return value
    if plan.scope is not None:
        scope = plan.scope(value)
    changes: dict[str, Any] = {}
    for name, encoded in plan.fields:
        own = getattr(value, name)
        if type(own) in _LEAVES and (encoded is None or own is None):
            continue
        new = walk(own, scope, visit) if encoded is None else visit_value(encoded, own, value, scope, visit)
        if new is not own:
            changes[name] = new
    if not changes:
        return value
    return value._replace(**changes) if plan.is_tuple else replace(value, **changes)


def visit_value(encoded: Encoded, value: Any, owner: Any, scope: str | None, visit: Visit) -> Any:
    """Visit a payload, or each of a sequence of payloads."""
    of = getattr(owner, encoded.scope) if encoded.scope else scope
    if isinstance(value, list | tuple):
        return [visit(encoded, item, of) for item in value]
    return visit(encoded, value, of)


def _is_same(new: object, old: object) -> bool:
    return new is old
