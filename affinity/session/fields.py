"""The fields of a state: values that override those of a loaded state, and the mapping to a narrower record by name."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from affinity.errors import InvalidOptions, problem_of

S = TypeVar("S")


class FieldOverrides(Generic[S]):
    """Replaces fields of states of one type, which is a pydantic model or a dataclass; other types have no fields.

    A list is replaced as a whole, so applying the same overrides twice equals applying them once.
    """

    def __init__(self, declared: type[S]) -> None:
        self._declared: Any = declared

    def values(self, overrides: S | Mapping[str, Any] | None) -> dict[str, Any]:
        """The fields that ``overrides`` sets explicitly, validated and converted to their types.

        Raises:
            InvalidOptions: the state has no fields, or not these, or not with such values; or ``overrides`` does not
                record which of its fields were set, as a dataclass does not.
        """
        if overrides is None:
            return {}
        if isinstance(overrides, BaseModel) and _is_model(self._declared) and isinstance(overrides, self._declared):
            return {name: getattr(overrides, name) for name in overrides.model_fields_set}
        if not isinstance(overrides, Mapping) or not (_is_model(self._declared) or _is_dataclass(self._declared)):
            raise InvalidOptions(
                f"overrides = {type(overrides).__name__} for a state of {self._declared!r}: it must be such a pydantic "
                "model, or a mapping of fields for a pydantic model or dataclass"
            )
        return {name: self._value(name, value) for name, value in overrides.items()}

    def apply(self, state: S, values: Mapping[str, Any]) -> S:
        """The state with these fields replaced: the same object, unless its type is frozen.

        Raises:
            InvalidOptions: a validator of the whole state refuses the values; some fields may be changed already.
        """
        if not values:
            return state
        fields = copy.deepcopy(dict(values))  # the caller keeps the originals
        try:
            if self._is_frozen:
                return self._replace(state, fields)
            for name, value in fields.items():
                setattr(state, name, value)
        except Exception as error:
            raise InvalidOptions(f"the state does not accept the overrides: {problem_of(error)}") from error
        return state

    def new(self, values: Mapping[str, Any]) -> S:
        """A state made of these values and of defaults.

        Raises:
            InvalidOptions: a required field is missing.
        """
        try:
            values = copy.deepcopy(dict(values))
            if _is_model(self._declared):
                return typing.cast(S, self._declared.model_validate(values, by_alias=True, by_name=True))
            return typing.cast(S, self._declared(**values))
        except Exception as error:
            raise InvalidOptions(
                f"a new state of {self._declared!r} cannot be made of its defaults: {problem_of(error)}; give initial="
            ) from error

    @property
    def _is_frozen(self) -> bool:
        if _is_model(self._declared):
            return bool(self._declared.model_config.get("frozen"))
        return bool(self._declared.__dataclass_params__.frozen)

    def _replace(self, state: Any, fields: dict[str, Any]) -> S:
        new = state.model_copy(update=fields) if _is_model(self._declared) else dataclasses.replace(state, **fields)
        return typing.cast(S, new)

    def _value(self, name: str, value: Any) -> Any:
        types = self._field_types()
        if name not in types:
            raise InvalidOptions(f"overrides = {{{name!r}: ...}}: the state {self._declared!r} has no such field")
        try:
            return TypeAdapter(types[name]).validate_python(value)
        except Exception as error:
            raise InvalidOptions(f"overrides[{name!r}] does not fit the state: {problem_of(error)}") from error

    def _field_types(self) -> dict[str, Any]:
        if _is_model(self._declared):
            return {name: field.rebuild_annotation() for name, field in self._declared.model_fields.items()}
        hints = typing.get_type_hints(self._declared, include_extras=True)
        return {field.name: hints[field.name] for field in dataclasses.fields(self._declared)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Projection(Generic[S]):
    """The two functions that convert a state to its narrower record and back."""

    to_record: Callable[[S], Any]
    from_record: Callable[[Any], S]


def projection_of(
    state: type[S],
    record: type[Any] | None,
    to_record: Callable[[S], Any] | None,
    from_record: Callable[[Any], S] | None,
) -> Projection[S] | None:
    """The projection that these options of `Sessions` define; None without a record. A direction without a function
    maps fields of the same name, at any depth; the other fields get their defaults.

    Raises:
        InvalidOptions: functions without a record; or a direction without a function, where one of the types has no
            fields, or they have none in common, or a required field has no source.
    """
    if record is None:
        if to_record is not None or from_record is not None:
            raise InvalidOptions("to_record and from_record convert to a narrower type and back: name it as record=")
        return None
    return Projection(
        to_record=to_record or _by_name(state, record, "to_record", _fields(state, "to_record")),
        from_record=from_record or _by_name(record, state, "from_record", _stored_fields(record)),
    )


def _by_name(source: type[Any], target: type[Any], direction: str, available: Iterable[str]) -> Callable[[Any], Any]:
    """A function that makes a ``target`` from a ``source``, of whose fields ``available`` have values."""
    wanted, sources = _fields(target, direction), set(available)
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
    """The fields that the constructor of a type takes, and whether each is required."""
    if _is_model(declared):
        return {name: field.is_required() for name, field in declared.model_fields.items()}
    if _is_dataclass(declared):
        no_default = (dataclasses.MISSING, dataclasses.MISSING)
        fields = [field for field in dataclasses.fields(declared) if field.init]
        return {field.name: (field.default, field.default_factory) == no_default for field in fields}
    raise InvalidOptions(f"{declared!r} is neither a pydantic model nor a dataclass: give {direction}=")


def _stored_fields(record: type[Any]) -> list[str]:
    """The fields of a record type that are written."""
    names = _fields(record, "from_record")
    if not issubclass(record, BaseModel):
        return list(names)
    return [name for name in names if record.model_fields[name].exclude is not True]


def _is_model(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel)


def _is_dataclass(declared: Any) -> bool:
    return isinstance(declared, type) and dataclasses.is_dataclass(declared)
