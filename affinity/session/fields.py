"""What the caller gives explicitly, folded onto a loaded state: those fields are replaced, all others stay.

A list is replaced whole, never joined with the one that is there, so folding twice is the same as once.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from affinity.errors import InvalidOptions
from affinity.session.callbacks import problem_of

S = TypeVar("S")


class FieldOverrides(Generic[S]):
    """Folds onto states of one type: a pydantic model or a dataclass; others have no fields to tell apart."""

    def __init__(self, declared: type[S]) -> None:
        self._declared: Any = declared

    def values(self, given: S | Mapping[str, Any] | None) -> dict[str, Any]:
        """The fields that ``given`` sets explicitly, as values of their types.

        Raises:
            InvalidOptions: the state has no fields, or not these, or not with such values; or nobody can tell which
                fields of ``given`` were set, as in a dataclass.
        """
        if given is None:
            return {}
        if isinstance(given, BaseModel) and self._is_model and isinstance(given, self._declared):
            return {name: getattr(given, name) for name in given.model_fields_set}
        if not isinstance(given, Mapping) or not (self._is_model or self._is_dataclass):
            raise InvalidOptions(
                f"given = {type(given).__name__} for a state of {self._declared!r}: it must be such a pydantic model, "
                "or a mapping of fields for a pydantic model or dataclass"
            )
        return {name: self._value(name, value) for name, value in given.items()}

    def onto(self, state: S, values: Mapping[str, Any]) -> S:
        """The state with these fields replaced: the same object, unless it is frozen.

        Raises:
            InvalidOptions: a validator of the whole state refuses them; it may be half changed.
        """
        if not values:
            return state
        fields = copy.deepcopy(dict(values))  # what the caller keeps must not change with the state
        try:
            if self._is_frozen:
                return self._replaced(state, fields)
            for name, value in fields.items():
                setattr(state, name, value)
        except Exception as error:
            raise InvalidOptions(f"the state does not take what is given: {problem_of(error)}") from error
        return state

    def new(self, values: Mapping[str, Any]) -> S:
        """A state that has only these, besides its defaults.

        Raises:
            InvalidOptions: it needs more.
        """
        try:
            values = copy.deepcopy(dict(values))
            if self._is_model:
                return typing.cast(S, self._declared.model_validate(values, by_alias=True, by_name=True))
            return typing.cast(S, self._declared(**values))
        except Exception as error:
            raise InvalidOptions(
                f"a new state of {self._declared!r} cannot be made of its defaults: {problem_of(error)}; give initial="
            ) from error

    @property
    def _is_model(self) -> bool:
        return isinstance(self._declared, type) and issubclass(self._declared, BaseModel)

    @property
    def _is_dataclass(self) -> bool:
        return isinstance(self._declared, type) and dataclasses.is_dataclass(self._declared)

    @property
    def _is_frozen(self) -> bool:
        if self._is_model:
            return bool(self._declared.model_config.get("frozen"))
        return bool(self._declared.__dataclass_params__.frozen)

    def _replaced(self, state: Any, fields: dict[str, Any]) -> S:
        new = state.model_copy(update=fields) if self._is_model else dataclasses.replace(state, **fields)
        return typing.cast(S, new)

    def _value(self, name: str, value: Any) -> Any:
        fields = self._fields()
        if name not in fields:
            raise InvalidOptions(f"given = {{{name!r}: ...}}: the state {self._declared!r} has no such field")
        try:
            return TypeAdapter(fields[name]).validate_python(value)
        except Exception as error:
            raise InvalidOptions(f"given[{name!r}] does not fit the state: {problem_of(error)}") from error

    def _fields(self) -> dict[str, Any]:
        if self._is_model:
            return {name: field.rebuild_annotation() for name, field in self._declared.model_fields.items()}
        hints = typing.get_type_hints(self._declared, include_extras=True)
        return {field.name: hints[field.name] for field in dataclasses.fields(self._declared)}


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
