"""The conditions of a listing, as callers name them: `list_instances(status="failed", name="review")`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from affinity.errors import InvalidInput
from affinity.limits import several

_ALIKE: Final = 0.5
"""From this similarity on (of `difflib`) one name is taken for another one that is misspelt."""


def conditions_of(where: Mapping[str, Any], conditions: type) -> dict[str, Any]:
    """Return the conditions without those that are None, and with a list for each that takes one or several texts.

    Args:
        where: as the caller gave them.
        conditions: the `TypedDict` that names them, with their types.

    Raises:
        InvalidInput: there is no such condition, or no such value.
    """
    types = _types_of(conditions)
    if unknown := next((name for name in where if name not in types), None):
        similar = difflib.get_close_matches(unknown, types, 1, _ALIKE)
        hint = "".join(f", did you mean {name!r}?" for name in similar)
        raise InvalidInput(f"there is no condition {unknown!r}{hint or '.'} There are {', '.join(types)}")
    return {name: _checked(name, value, types[name]) for name, value in where.items() if value is not None}


@cache
def _types_of(conditions: type) -> Mapping[str, Any]:
    return get_type_hints(conditions)


def _checked(name: str, value: Any, kind: Any) -> Any:
    allowed = [*dict.fromkeys(_literals_in(kind))]
    if any(get_origin(part) is Collection for part in (kind, *get_args(kind))):
        return several(value, name, allowed)
    if allowed and value not in allowed:
        raise InvalidInput(f"{name} = {value!r:.80}: must be one of {', '.join(allowed)}")
    return value


def _literals_in(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _literals_in(part)
