"""The mapping between a state and the narrower record that is kept of it: by functions, or by the names of fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from affinity.errors import InvalidOptions

S = TypeVar("S")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Projection(Generic[S]):
    """Both directions."""

    to_record: Callable[[S], Any]
    from_record: Callable[[Any], S]


def projection_of(
    state: type[S],
    record: type[Any] | None,
    to_record: Callable[[S], Any] | None,
    from_record: Callable[[Any], S] | None,
) -> Projection[S] | None:
    """The mapping that these options of `Sessions` mean; None without a record. A direction without a function maps
    fields of the same name, at any depth; others take their defaults.

    Raises:
        InvalidOptions: functions without a record; or a direction without a function, of types without fields, without
            a common one, or with a required one that has no source.
    """
    if record is None:
        if to_record is not None or from_record is not None:
            raise InvalidOptions("to_record and from_record lead to a narrower type and back: name it as record=")
        return None
    return Projection(
        to_record=to_record or _by_name(state, record, "to_record", _fields(state, "to_record")),
        from_record=from_record or _by_name(record, state, "from_record", _kept(record)),
    )


def _by_name(source: type[Any], target: type[Any], direction: str, given: Iterable[str]) -> Callable[[Any], Any]:
    """Makes a ``target`` of the fields of a ``source``; ``given`` are those of its fields that have values."""
    wanted, sources = _fields(target, direction), set(given)
    if missing := sorted(name for name, required in wanted.items() if required and name not in sources):
        raise InvalidOptions(
            f"{target.__name__!r} cannot be made of {source.__name__!r} by the names of fields: nothing gives its "
            f"required {', '.join(missing)}; give defaults, or {direction}="
        )
    common = sources & wanted.keys()
    if not common:
        raise InvalidOptions(f"{source.__name__!r} and {target.__name__!r} have no field in common: give {direction}=")
    adapter = TypeAdapter(target)

    def convert(value: Any) -> Any:
        fields = {name: getattr(value, name) for name in common}
        return adapter.validate_python(fields, from_attributes=True, by_alias=False, by_name=True)

    return convert


def _fields(declared: Any, direction: str) -> dict[str, bool]:
    """The fields of a type that can be given to it, and whether they must be."""
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        return {name: field.is_required() for name, field in declared.model_fields.items()}
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        no_default = (dataclasses.MISSING, dataclasses.MISSING)
        given = [field for field in dataclasses.fields(declared) if field.init]
        return {field.name: (field.default, field.default_factory) == no_default for field in given}
    raise InvalidOptions(
        f"{declared!r} is no pydantic model and no dataclass, so that it has no fields to go by: give {direction}="
    )


def _kept(record: type[Any]) -> list[str]:
    """Of the fields of a record those that are written."""
    names = _fields(record, "from_record")
    if not issubclass(record, BaseModel):
        return list(names)
    return [name for name in names if record.model_fields[name].exclude is not True]
