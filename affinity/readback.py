"""Whether a value that is written as JSON is read back as it was given.

Pydantic writes some values without an error that no reader gets back: of an instance of a subclass only the fields of
the declared class, of a secret its mask, a number of more digits than a parser takes, two keys of a dict as one text.
So what is written is read, and compared with what was given. `ReadBack.is_certain` spares that for the types whose
values cannot change on the way.

A value that has no JSON form of its own may have a near one, where no type says what to make of it: under ``Any`` a
datetime is read as text, a set as a list. That is no loss.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, time
from enum import Enum
from functools import lru_cache
from math import isfinite, isnan
from typing import Any, Final, TypeAlias, TypeVar, cast

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import from_json, to_json

from affinity.errors import problem_of
from affinity.user_code import as_error, pass_interrupt

__all__ = [
    "json_of",
]

T = TypeVar("T")

MAX_DIGITS: Final = 4300
"""Digits of a number, more than which no parser of JSON here takes."""

_LONG_NUMBER: Final = re.compile(f"[0-9]{{{MAX_DIGITS + 1}}}")
_LONG_NUMBER_BYTES: Final = re.compile(_LONG_NUMBER.pattern.encode())

_SECRETS: Final = (Secret, SecretStr, SecretBytes)
_SEQUENCES: Final = (list, tuple, deque)
_SETS: Final = (set, frozenset)


class ReadBack:
    """What is known of the values of one type.

    Args:
        schema: the core schema of pydantic.
    """

    __slots__ = ("_classes", "_floats", "is_open", "is_plain", "takes_iterators")

    def __init__(self, schema: Any) -> None:
        self._classes: list[type] = []  # of models and dataclasses
        self._floats = False
        self.is_open: bool = not self._is_closed(schema)
        """Values may change on the way, as far as is known."""
        self.is_plain: bool = not (self.is_open or self._floats or self._classes)
        """Of a text without null, `is_certain` looks at its length alone."""
        self.takes_iterators: bool = self.is_open or _takes_iterators(schema)
        """An iterator may stand for a value."""

    def is_certain(self, text: str | bytes, *, fits: bool = False) -> bool:
        """Whether the value that was written as this text, without a warning of pydantic's, is read back as it was.

        Args:
            text: JSON.
            fits: it has been read as this type. Pydantic writes null for a None of any type.
        """
        if self.is_open or ((self._floats or not fits) and (b"null" if isinstance(text, bytes) else "null") in text):  # type: ignore[operator]
            return False
        for one in self._classes:
            if one.__subclasses__():  # an instance of one may have more fields
                return False
        return len(text) <= MAX_DIGITS or not _has_long_number(text)

    def _is_closed(self, schema: Any) -> bool:
        """Whether each value of this schema is read back as it was, but for what `is_certain` looks at."""
        kind = schema["type"]
        if kind not in _PARTS or schema.keys() - _PARTS[kind] - _ANYWHERE:
            return False
        if kind in {"model", "dataclass"}:
            if schema.get("custom_init") or schema.get("post_init") or schema.get("config", {}).keys() - _HARMLESS:
                return False
            self._classes.append(schema["cls"])
        self._floats |= kind == "float"
        if kind == "dict" and schema.get("keys_schema", {}).get("type") not in {"str", "int"}:
            return False  # two keys may have one text
        if schema.get("computed_fields") or not schema.get("init", True):
            return False
        return all(map(self._is_closed, _parts_of(schema)))


_ANYWHERE: Final = frozenset({"type", "ref", "metadata"})
_FIELD: Final = frozenset({"schema", "validation_alias", "serialization_alias", "frozen"})
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("str", "int", "bool", "float", "none", "bytes"), frozenset()),
    **dict.fromkeys(("list", "set", "frozenset"), frozenset({"items_schema"})),
    "tuple": frozenset({"items_schema", "variadic_item_index"}),
    "dict": frozenset({"keys_schema", "values_schema"}),
    "nullable": frozenset({"schema"}),
    "default": frozenset({"schema", "default", "default_factory", "default_factory_takes_data", "copy_default"}),
    "definitions": frozenset({"schema", "definitions"}),
    "definition-ref": frozenset({"schema_ref"}),
    "model": frozenset({"cls", "schema", "custom_init", "root_model", "config", "generic_origin"}),
    "model-fields": frozenset({"fields", "model_name", "computed_fields"}),
    "model-field": _FIELD,
    "dataclass": frozenset({"cls", "schema", "fields", "post_init", "frozen", "slots", "config", "generic_origin"}),
    "dataclass-args": frozenset({"fields", "dataclass_name", "computed_fields", "collect_init_only"}),
    "dataclass-field": _FIELD | {"name", "kw_only", "init"},
}
"""Types of pydantic-core's schemas whose values cannot change, with the keys that they may have: another one, such as a
constraint, a serializer or an excluded field, may change that.
"""

_NO_ITERATORS: Final = frozenset({"str", "int", "bool", "float", "none", "bytes", "model", "dataclass"})

_HARMLESS: Final = frozenset(
    {"title", "frozen", "validate_assignment", "validate_by_name", "validate_by_alias", "populate_by_name"}
)
"""Settings of a model that change nothing on the way."""


def _takes_iterators(schema: Mapping[str, Any]) -> bool:
    while schema["type"] in {"nullable", "default"}:
        schema = schema["schema"]
    return schema["type"] not in _NO_ITERATORS or bool(schema.get("root_model"))


def _parts_of(schema: Mapping[str, Any]) -> Iterator[Any]:
    kind = schema["type"]
    if kind in {"list", "set", "frozenset", "tuple", "dict"}:  # without a schema, items may be anything
        for name in ("keys_schema", "values_schema") if kind == "dict" else ("items_schema",):
            part = schema.get(name, {"type": "any"})
            yield from part if isinstance(part, list) else [part]
        return
    if "schema" in schema:
        yield schema["schema"]
    yield from schema.get("definitions", ())
    if kind in {"model-fields", "dataclass-args"}:
        fields = schema["fields"]
        yield from fields.values() if isinstance(fields, dict) else fields


def _has_long_number(text: str | bytes) -> bool:
    """Whether the text has a row of more than `MAX_DIGITS` digits: each such row has one at a multiple of that."""
    for at in range(MAX_DIGITS, len(text), MAX_DIGITS):
        if text[at : at + 1].isdigit():
            start, end = at - MAX_DIGITS, at + MAX_DIGITS + 1
            if isinstance(text, bytes):
                found = _LONG_NUMBER_BYTES.search(text, start, end) is not None
            else:
                found = _LONG_NUMBER.search(text, start, end) is not None
            if found:
                return True
    return False


def json_of(value: Any) -> tuple[str, Any]:
    """Return a value of no declared type as JSON text, and in the form in which a reader gets it.

    Raises:
        ValueError: it has no JSON form, or would lose something.
    """
    text = to_json(value, inf_nan_mode="null")
    read = from_json(text)
    if (reason := find_loss(value, read)) is not None:
        raise ValueError(reason)
    return text.decode(), read


# --- one-shot iterables -----------------------------------------------------------------------------------------------


def is_one_shot(value: Any) -> bool:
    """Whether the value is used up when its items are read: a generator, a map, an iterator."""
    return _is_iterator(type(value))  # type: ignore[arg-type]  # a class can be hashed


@lru_cache(maxsize=4096)  # of a model's class, an attribute that it has not costs several microseconds
def _is_iterator(kind: type[Any]) -> bool:
    return hasattr(kind, "__next__")


def find_part(value: Any, is_wanted: Callable[[Any], bool]) -> str | None:
    """The place of the first such part of a value; empty: the value itself; None: there is none."""
    if is_wanted(value):
        return ""
    if isinstance(value, Mapping):
        parts = [(f"[{key!r:.40}]", part) for key, part in value.items()]
    elif isinstance(value, (*_SEQUENCES, *_SETS)):
        parts = [(f"[{index}]", part) for index, part in enumerate(value)]
    else:
        parts = [(f".{name}", part) for name, part in _fields_of(value).items()]
    for place, part in parts:
        if (found := find_part(part, is_wanted)) is not None:
            return place + found
    return None


# --- comparing --------------------------------------------------------------------------------------------------------


def find_loss(given: Any, read: Any) -> str | None:
    """What of ``given`` is not in ``read``, with its place, or what its class has raised; None: nothing is lost."""
    try:
        found = _loss(given, read)
    except BaseException as error:  # of a class of the application
        return problem_of(as_error(error))
    if found is None:
        return None
    place, _, reason = found.partition(_REASON)
    place = place.removeprefix(".")
    return f"{place}: {reason}" if place else reason


_REASON: Final = "\0"  # between the place and the reason


def _loss(given: Any, read: Any) -> str | None:
    if type(given) is type(read) and _equal(given, read):
        return None
    if isinstance(given, Enum) and not isinstance(read, Enum):
        return _loss(given.value, read)
    if isinstance(given, BaseModel) or _is_dataclass(given):
        return _loss_of_fields(given, read)
    for kinds, compare in _COMPARE:
        if isinstance(given, kinds):
            return compare(given, read)
    return _loss_of_scalar(given, read)


def _equal(given: Any, read: Any) -> bool:
    return _compare(given, read) is True


def _compare(given: Any, read: Any) -> bool | None:
    """Whether the two are equal; None: they cannot be compared."""
    try:
        return bool(given == read)
    except BaseException as error:  # of the application, or of a library whose values compare item by item
        pass_interrupt(error)
        return None


def _loss_of_fields(given: Any, read: Any) -> str | None:
    fields = _fields_of(given)
    if isinstance(read, BaseModel) or _is_dataclass(read):
        there = _fields_of(read)
        if type(read) is not type(given):
            return _loss_of_class(given, read, [name for name in fields if name not in there])
    elif isinstance(
        read, dict
    ):  # where any value may stand; a serializer of its own may have left out what is not there
        there = read
        fields = {name: part for name, part in fields.items() if name in there}
    else:
        return _loss(fields["root"], read) if "root" in fields else None
    for name, part in fields.items():
        found = _loss(part, there[name]) if name in there else f"{_REASON}it is not read back"
        if found is not None:
            return f".{name}{found}"
    return None


def _loss_of_class(given: Any, read: Any, lost: Sequence[str]) -> str:
    without = f", without {', '.join(lost)}" if lost else ""
    return (
        f"{_REASON}{type(given).__name__} is read back as {type(read).__name__}{without}: declare a union of the"
        " classes that it may have"
    )


def _loss_of_items(given: Mapping[Any, Any], read: Any) -> str | None:
    if not isinstance(read, Mapping):
        return None  # its own form
    if len(read) != len(given):
        texts = [str(key) for key in given]
        twice = [text for text in texts if texts.count(text) > 1]
        if twice:
            return f"[{twice[0]!r:.40}]{_REASON}JSON has one key for several: its keys are text"
        missing = [key for key in given if key not in read]
        place = f"[{missing[0]!r:.40}]" if missing else ""
        return f"{place}{_REASON}it is read back with other keys"
    for (key, part), (name, there) in zip(given.items(), read.items(), strict=True):  # in the order of the text
        if (found := _loss(part, read.get(key, there))) is not None:
            return f"[{key!r:.40}]{found}"
        if isinstance(key, str) and key not in read:  # of other keys, the text is a near form
            return f"[{key!r:.40}]{_REASON}it is read back as {name!r:.40}"
    return None


def _loss_of_sequence(given: Any, read: Any) -> str | None:
    if not isinstance(read, (*_SEQUENCES, *_SETS)):
        return None  # its own form
    if len(read) != len(given):
        return f"{_REASON}of {len(given)} items {len(read)} are read back"
    if isinstance(read, _SETS):
        same = not isinstance(given, _SETS) or _equal(given, read)
        return None if same else f"{_REASON}other items are read back"
    for index, (part, there) in enumerate(zip(given, read, strict=True)):
        if (found := _loss(part, there)) is not None:
            return f"[{index}]{found}"
    return None


def _loss_of_float(given: float, read: Any) -> str | None:
    if isfinite(given) or (isnan(given) and isinstance(read, float) and isnan(read)):
        return None if isnan(given) else _loss_of_scalar(given, read)
    return None if read == given else f"{_REASON}{_NOT_FINITE}"


def _loss_of_secret(given: Any, read: Any) -> str | None:
    return None if _equal(given, read) else f"{_REASON}the value of a {type(given).__name__} is not written"


def _loss_of_scalar(given: Any, read: Any) -> str | None:
    if _compare(given, read) is not False or is_one_shot(given) or type(given).__eq__ is _IDENTITY:
        return None  # equal, or nothing that can be compared
    is_cut = isinstance(given, type(read)) and type(read) not in _JSON  # a date that was a datetime
    if is_cut or isinstance(read, type(given)) or type(given) in _JSON:
        return f"{_REASON}{given!r:.80} is read back as {read!r:.80}"
    return None


_NOT_FINITE: Final = "NaN and infinity are not JSON numbers"
_IDENTITY: Final[Any] = object.__eq__
_JSON: Final = frozenset({str, int, float, bool, type(None), list, dict})
_COMPARE: Final[Sequence[tuple[Any, Callable[[Any, Any], str | None]]]] = (
    (float, _loss_of_float),
    (_SECRETS, _loss_of_secret),
    (Mapping, _loss_of_items),
    ((*_SEQUENCES, *_SETS), _loss_of_sequence),
)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a model or a dataclass that it writes, by name; no private attributes, and no excluded ones."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        own = {name: part for name, part in vars(value).items() if name in fields and not fields[name].exclude}
        return own | (value.__pydantic_extra__ or {})
    if _is_dataclass(value):
        names = [name for name in _written_fields(cast(Any, type(value))) if hasattr(value, name)]
        return {name: getattr(value, name) for name in names}
    return {}


@lru_cache(maxsize=1024)
def _written_fields(kind: Any) -> Sequence[str]:
    """The fields of a dataclass that are written."""
    names = [field.name for field in dataclasses.fields(kind)]
    try:
        excluded = set(_excluded_fields(TypeAdapter(kind).core_schema, kind))
    except Exception:  # no type of pydantic's, which stands where any value may
        return names
    return [name for name in names if name not in excluded]


def _excluded_fields(schema: Any, kind: Any) -> Iterator[str]:
    """The fields of a dataclass that its schema leaves out."""
    if schema["type"] == "dataclass" and schema["cls"] is kind:
        fields = schema["schema"].get("fields", ())
        yield from [field["name"] for field in fields if field.get("serialization_exclude")]
    for part in schema.get("definitions", ()):
        yield from _excluded_fields(part, kind)


# --- taking the form of what was read ---------------------------------------------------------------------------------


def conform(given: T, read: T, *, thorough: bool) -> tuple[T, bool]:
    """Return ``given`` in the form that is read back, and whether it had another one: it is changed in place as far as
    possible.

    Args:
        given: of which nothing is lost in ``read``.
        read: what is read back.
        thorough: look also into what is equal: a ``defaultdict`` equals the dict that is read.
    """
    conforming = _Conforming(thorough)
    return conforming(given, read), conforming.has_changed


class _Conforming:
    """Gives values the form that is read back."""

    def __init__(self, thorough: bool) -> None:
        self._thorough = thorough
        self.has_changed = False

    def __call__(self, given: Any, read: Any) -> Any:
        """The value in this form."""
        if type(given) is type(read):
            new = given if not self._thorough and _equal(given, read) else self._conform(given, read)
        else:
            new = read
        self.has_changed |= new is not given
        return new

    def _conform(self, given: Any, read: Any) -> Any:
        if isinstance(given, BaseModel) or _is_dataclass(given):
            _conform_fields(given, read, self)
            return given
        for kinds, conform_kind in _CONFORM:
            if isinstance(given, kinds):
                return conform_kind(given, read, self)
        return given


ConformPart: TypeAlias = Callable[[Any, Any], Any]


def _conform_fields(given: Any, read: Any, part: ConformPart) -> None:
    there = _fields_of(read)
    extra = (given.__pydantic_extra__ or {}) if isinstance(given, BaseModel) else {}
    for name, value in _fields_of(given).items():
        new = part(value, there[name])
        if new is value:
            continue
        if name in extra:
            extra[name] = new
        elif isinstance(given, BaseModel):
            given.__dict__[name] = new  # as it is read: its validators have seen it
        else:
            object.__setattr__(given, name, new)


def _conform_dict(given: Any, read: Any, part: ConformPart) -> Any:
    if type(given) is not dict or list(given) != list(read):
        return read
    for key, value in read.items():
        given[key] = part(given[key], value)
    return given


def _conform_list(given: Any, read: Any, part: ConformPart) -> Any:
    if type(given) is not list:
        return read
    given[:] = list(map(part, given, read))
    return given


def _conform_tuple(given: Any, read: Any, part: ConformPart) -> Any:
    return given if all(one is other for one, other in zip(map(part, given, read), given, strict=True)) else read


def _conform_time(given: Any, read: Any, _: ConformPart) -> Any:
    return given if type(given.tzinfo) is type(read.tzinfo) else read


_CONFORM: Final[Sequence[tuple[Any, Callable[[Any, Any, ConformPart], Any]]]] = (
    (dict, _conform_dict),
    (list, _conform_list),
    (tuple, _conform_tuple),
    (_SETS, lambda given, read, _: given if given == read else read),
    ((datetime, time), _conform_time),
)
