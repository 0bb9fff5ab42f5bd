"""Codecs of session state, the compression of its bytes, overrides of its fields, and the mapping to a narrower record.

Decoding has two steps, bytes to plain form to state, so that migrations can change the plain form.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import from_json, to_json

from affinity.errors import InvalidOptions, PayloadTooLarge, problem_of
from affinity.limits import COMPRESS_STATE_ABOVE, MAX_STATE_BYTES, count_non_finite
from affinity.readback import ReadBack, conform, find_loss
from affinity.records import StateEncoding
from affinity.user_code import as_error

S = TypeVar("S")

MATCHED: Final = 16
MATCHED_LATER: Final = 64
"""The first `MATCHED` writes of a codec, and later one in this number, compare the whole state with what is read."""


class StateCodec(Protocol[S]):
    """Converts a state to bytes and back. ``build(parse(dump(state)))`` equals the state, without its scratch fields.

    Equal states should give equal bytes: a state is not written again if the store has equal bytes. The methods run on
    the event loop.

    A codec may also have ``read(raw) -> state``, which does ``parse`` and ``build`` in one step where nothing is
    migrated. Bytes that are about to be written are read back first, to refuse a state that could not be loaded.

    With ``match(state, raw, read) -> (state, has_changed)`` a codec compares what was read: it raises if something of
    the state is lost, and returns the state in the form that was read, and whether it had another one. With
    ``is_certain(raw) -> bool`` it says first that this state need not be compared. ``may_change`` says whether states
    of different form may have equal bytes.
    """

    def dump(self, state: S, /) -> bytes:
        """The state as bytes. Errors are raised as `NotSerializable` at the end of the block that changed the state."""
        ...

    def parse(self, raw: bytes, /) -> Any:
        """The plain form, which migrations take and return: usually a dict."""
        ...

    def build(self, plain: Any, /) -> S:
        """The state from its plain form."""
        ...


class JsonCodec(Generic[S]):
    """JSON by pydantic: the fields of a model, a dataclass or a TypedDict under their own names, or any other type.

    Fields with ``exclude=True`` are scratch: they are never written and start from their default. Reading a state back
    validates it like any input, including values that code has assigned to a model that does not validate assignments.

    A state that would be read back as another one is refused: fields of a subclass, the value of a secret, NaN and
    infinity (unless the model says how they are written: ``ser_json_inf_nan``). Where JSON has only a near form, as for
    a datetime under ``Any``, the state has that form from the write on.
    """

    def __init__(self, declared: type[S]) -> None:
        """A codec of one type.

        Raises:
            InvalidOptions: the type has no JSON form, or a scratch field without a default.
        """
        try:
            self._adapter: TypeAdapter[S] = TypeAdapter(declared)
            fields = sorted(set(_scratch_without_default(self._adapter.core_schema)))
            self._read_back = ReadBack(self._adapter.core_schema)
            self._has_floats = _may_have_floats(self._adapter.core_schema)
        except Exception as error:
            raise InvalidOptions(f"the state {declared!r} has no JSON form: {error}; give a codec") from error
        if fields:
            raise InvalidOptions(
                f"the state {declared!r} has scratch fields without a default: {', '.join(fields)}; "
                "a hydrate could not fill them"
            )
        self._matches = 0

    def dump(self, state: S, /) -> bytes:
        raw = self._adapter.dump_json(state, round_trip=True, warnings="error")
        if self._has_floats and b"null" in raw:  # pydantic writes it for None, and for NaN
            self._check_null(state, raw)
        return raw

    def parse(self, raw: bytes, /) -> Any:
        return from_json(raw)

    def build(self, plain: Any, /) -> S:
        # JSON has its own rules (a date is a string, a tuple a list), also when strict
        return self.read(to_json(plain, inf_nan_mode="constants"))

    def read(self, raw: bytes, /) -> S:
        """``build(parse(raw))`` in one step."""
        return self._adapter.validate_json(raw, by_alias=True, by_name=True)

    @property
    def may_change(self) -> bool:
        """Whether some states have a near form only."""
        return self._read_back.is_open

    def is_certain(self, raw: bytes, /) -> bool:
        """Whether the next state, which was written as these bytes and read from them, need not be compared."""
        self._matches += 1
        return not self._is_sample and self._read_back.is_certain(raw, fits=True)

    def match(self, state: S, raw: bytes, read: S, /) -> tuple[S, bool]:
        """The state in the form that was read from ``raw``, changed in place as far as possible, and whether it had
        another one.

        The first states are compared as a whole, and later one in `affinity.session.codec.MATCHED_LATER`; others if
        something can be lost.

        Raises:
            ValueError: something of the state is not read back; the message has its place.
        """
        if not self._is_sample and state == read:
            return state, False
        if (loss := find_loss(state, read)) is not None:
            raise ValueError(loss)
        return conform(state, read, thorough=self._is_sample)

    @property
    def _is_sample(self) -> bool:
        return self._matches <= MATCHED or not self._matches % MATCHED_LATER

    def _check_null(self, state: S, raw: bytes) -> None:
        plain = self._plain(state)
        written = to_json(plain, inf_nan_mode="constants", bytes_mode="hex", serialize_unknown=True)
        if b"NaN" not in written and b"Infinity" not in written:  # nearly all states: counting takes some times as long
            return
        found = count_non_finite(plain)
        if found and count_non_finite(self._plain(read := self.read(raw))) < found:
            raise ValueError(find_loss(state, read) or "NaN and infinity are not JSON numbers")

    def _plain(self, state: S) -> Any:
        return self._adapter.dump_python(state, round_trip=True, warnings=False)


def scratch(default: Any = ..., *, default_factory: Any = None) -> Any:
    """A field of a pydantic model that is not stored: it starts from its default at each hydrate.

    The same as ``Field(default, exclude=True)``.
    """
    if default_factory is not None:
        return Field(default_factory=default_factory, exclude=True)
    return Field(default, exclude=True)


def _scratch_without_default(schema: Any, name: str = "") -> Iterator[str]:
    """Names of fields, at any depth, that are never written and are required."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from _scratch_without_default(part)
    if not isinstance(schema, dict):
        return
    if schema.get("serialization_exclude") is True and _is_required(schema):
        yield schema.get("name", name)
    for key, part in schema.items():
        if key != "metadata":
            yield from _scratch_without_default(part, key)


def _is_required(field: dict[str, Any]) -> bool:
    return field["schema"]["type"] != "default" and bool(field.get("required", True))


_FLOATLESS: Final = frozenset({
    "bool", "bytes", "date", "datetime", "dataclass", "dataclass-args", "dataclass-field", "default", "definition-ref",
    "definitions", "dict", "enum", "frozenset", "int", "list", "literal", "model", "model-field", "model-fields",
    "none", "nullable", "set", "str", "tagged-union", "time", "timedelta", "tuple", "typed-dict", "typed-dict-field",
    "union", "uuid",
})  # fmt: skip
"""Types of pydantic-core's schemas whose values are no floats; a dump refuses a float in their place."""

_ITEMS: Final = {"dict": "values_schema", "list": "items_schema", "set": "items_schema", "frozenset": "items_schema"}
"""Containers whose items may be anything, unless there is a schema for them."""


def _may_have_floats(schema: Any) -> bool:
    """Whether a value of this schema may have a float at any depth, as far as is known."""
    if isinstance(schema, list | tuple):
        return any(map(_may_have_floats, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type", "model")
    if kind not in _FLOATLESS or schema.get("extra_fields_behavior") == "allow":
        return True
    if kind in _ITEMS and _ITEMS[kind] not in schema:
        return True
    for key, part in schema.items():
        parts = part.values() if key in {"fields", "choices"} and isinstance(part, dict) else [part]
        if key not in {"metadata", "default"} and any(map(_may_have_floats, parts)):
            return True
    return False


# --- compression ------------------------------------------------------------------------------------------------------

_LEVEL: Final = 1  # saves most of the space in a fraction of the time: a state is packed after every activity
_SAMPLE: Final = 64 * 1024  # bytes


def pack(state: bytes) -> tuple[bytes, StateEncoding]:
    """The bytes to store, and their encoding. Compresses above `limits.COMPRESS_STATE_ABOVE`, if that saves space.

    Raises:
        PayloadTooLarge: more than `limits.MAX_STATE_BYTES`, which `unpack` would refuse.
    """
    if len(state) > MAX_STATE_BYTES:
        raise PayloadTooLarge(
            f"the state has {len(state)} bytes, over the limit of {MAX_STATE_BYTES}: keep large data elsewhere"
        )
    if len(state) <= COMPRESS_STATE_ABOVE or not _is_compressible(state[:_SAMPLE]):
        return state, "plain"
    packed = zlib.compress(state, _LEVEL)
    return (packed, "zlib") if len(packed) < len(state) else (state, "plain")


def _is_compressible(sample: bytes) -> bool:
    """Whether compression saves space: a saved model cache, or an image, does not shrink."""
    return len(zlib.compress(sample, _LEVEL)) < 0.9 * len(sample)


def unpack(state: bytes, encoding: str) -> bytes:
    """The bytes of a state that `pack` has packed.

    Raises:
        ValueError: the encoding is unknown, the bytes are damaged, or they would grow over `limits.MAX_STATE_BYTES`.
    """
    if encoding == "plain":
        return state
    if encoding != "zlib":
        raise ValueError(f"the state is packed as {encoding!r}, which this version of affinity does not know")
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(state, MAX_STATE_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"the packed state is damaged: {error}") from None
    if len(plain) > MAX_STATE_BYTES:
        raise ValueError(f"the packed state grows over the limit of {MAX_STATE_BYTES} bytes")
    if not reader.eof or reader.unused_data:
        raise ValueError("the packed state is damaged: it does not end where it should")
    return plain


# --- fields -----------------------------------------------------------------------------------------------------------


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
        except BaseException as error:
            problem = problem_of(as_error(error))
            raise InvalidOptions(f"the state does not accept the overrides: {problem}") from error
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
        except BaseException as error:
            problem = problem_of(as_error(error))
            raise InvalidOptions(
                f"a new state of {self._declared!r} cannot be made of its defaults: {problem}; give initial="
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
        except BaseException as error:
            problem = problem_of(as_error(error))
            raise InvalidOptions(f"overrides[{name!r}] does not fit the state: {problem}") from error

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
        InvalidOptions: functions without a record; or a record with a field that the state lacks, without
            ``to_record``; or a direction without a function that needs one: a type has no fields, the types have none
            in common, a common field has two types, or a required field has no source.
    """
    if record is None:
        if to_record is not None or from_record is not None:
            raise InvalidOptions("to_record and from_record convert to a narrower type and back: name it as record=")
        return None
    projection = Projection(
        to_record=to_record or _by_name(state, record, "to_record", _fields(state, "to_record")),
        from_record=from_record or _by_name(record, state, "from_record", _stored_fields(record)),
    )
    if to_record is None and (lacking := sorted(_fields(record, "to_record").keys() - _fields(state, "to_record"))):
        raise InvalidOptions(
            f"{record.__name__!r} has fields that {state.__name__!r} lacks: {', '.join(lacking)}; "
            "take them out, or give to_record="
        )
    return projection


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
    theirs, ours = _types(source), _types(target)
    wide, narrow = (theirs, ours) if direction == "to_record" else (ours, theirs)
    if other := sorted(name for name in common if not _is_kept(wide[name], narrow[name])):
        pairs = ", ".join(f"{name} ({_shown(theirs[name])}, {_shown(ours[name])})" for name in other)
        raise InvalidOptions(
            f"{source.__name__!r} and {target.__name__!r} have fields of one name and two types: {pairs}; "
            f"make them the same, or give {direction}="
        )
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


def _types(declared: Any) -> dict[str, Any]:
    """The types of the fields, without the constraints on their values."""
    if _is_model(declared):
        return {name: field.annotation for name, field in declared.model_fields.items()}
    return typing.get_type_hints(declared)


def _is_kept(wide: Any, narrow: Any) -> bool:
    """Whether a record keeps values of one type as the other.

    The types are equal, or differ only in models: the record's model has some of the fields.
    """
    if wide == narrow or Any in (wide, narrow):
        return True
    if (_is_model(wide) or _is_dataclass(wide)) and (_is_model(narrow) or _is_dataclass(narrow)):
        all_types, kept = _types(wide), _types(narrow)
        return kept.keys() <= all_types.keys() and all(_is_kept(all_types[name], kept[name]) for name in kept)
    parts, others = typing.get_args(wide), typing.get_args(narrow)
    return (
        typing.get_origin(wide) is not None
        and typing.get_origin(wide) == typing.get_origin(narrow)
        and len(parts) == len(others)
        and all(map(_is_kept, parts, others))
    )


def _shown(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared)


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
