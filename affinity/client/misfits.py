"""Checks of values against the JSON Schemas that workers registered.

A worker reads JSON as pydantic does, which converts "5" to an integer, for one. What it may convert is no misfit here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_TIMES: Final = {"date", "date-time", "duration", "time"}
"""Formats of texts that are read from numbers too."""

_READERS: Final = {kind: TypeAdapter(type) for kind, type in (("integer", int), ("number", float), ("boolean", bool))}


def find_misfit(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return what a worker with this schema refuses in a JSON value, with the place; None: nothing that shows."""
    from jsonschema.exceptions import best_match

    with suppress(Exception):  # a schema, or a pattern in it, that only pydantic knows
        found = best_match(_validator(to_json(schema)).iter_errors(value))
        if found is not None:
            place = ".".join(map(str, found.absolute_path))
            return f"{place}: {found.message}" if place else str(found.message)
    return None


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Validator:
    # Imported here: it takes as long as all of `affinity.client`, and few programs need it.
    from jsonschema import Draft202012Validator, validators
    from pydantic_core import from_json
    from referencing import Registry

    # With types that are read leniently, a value may fit two alternatives.
    rules = {"type": _check_type, "oneOf": Draft202012Validator.VALIDATORS["anyOf"]}
    lenient = validators.extend(Draft202012Validator, rules)
    found: Validator = lenient(from_json(schema), registry=Registry())  # which reads no address
    return found


def _check_type(_: Any, types: str | list[str], value: Any, schema: Mapping[str, Any]) -> Iterator[Exception]:
    from jsonschema import ValidationError as Misfit

    wanted = [types] if isinstance(types, str) else types
    if not any(_may_be(kind, value, schema) for kind in wanted):
        yield Misfit(f"{value!r:.80} is not of type {' or '.join(map(repr, wanted))}")


def _may_be(kind: str, value: Any, schema: Mapping[str, Any]) -> bool:
    match kind:
        case "null":
            return value is None
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str) or (isinstance(value, int | float) and schema.get("format") in _TIMES)
    try:
        _READERS[kind].validate_json(to_json(value))
    except ValidationError:
        return False
    return True
