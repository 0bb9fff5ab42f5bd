"""Typed JSON payloads, by the annotations of a function, through pydantic.

A value is written as its declared type. A value of another type that converts to it (a dict for a model, a tuple for a
list) is converted first. A value that does not convert, that JSON cannot represent, or that would be read back as
another one (`affinity.readback`), raises ``NotSerializable`` with the name of the value, its declared type, and the
place.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import lru_cache
from typing import Any, Final

from pydantic import PydanticSchemaGenerationError, TypeAdapter
from pydantic_core import from_json

from affinity.errors import InvalidApp, NotSerializable, problem_of
from affinity.limits import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, check_depth, check_payload
from affinity.readback import MAX_DIGITS, ReadBack, find_loss, find_part, is_one_shot
from affinity.records import FRAME, raise_unreadable
from affinity.user_code import as_error, pass_interrupt


class Codec:
    """JSON text of one declared type, in both directions.

    Args:
        declared: the type; ``Any`` takes any value that JSON can represent.
        what: the name of the value, for messages ("result of activity 'reply'").
        limit: of the text, in UTF-8 bytes.

    Raises:
        InvalidApp: pydantic has no schema for the type.
    """

    __slots__ = ("_adapter", "_is_plain", "_limit", "_read_back", "_short", "_takes_iterators", "declared", "what")

    def __init__(self, declared: Any, what: str, limit: int = MAX_PAYLOAD_BYTES) -> None:
        self.declared: Any = declared
        self.what: str = what
        self._limit = limit
        self._short = min(MAX_PAYLOAD_DEPTH, limit // 4)  # a character has at most four bytes
        try:
            self._adapter, self._read_back = _adapter(declared)
        except BaseException as error:
            raise InvalidApp(f"{what}: {_type_name(declared)} has no JSON form: {error}") from error
        self._is_plain = self._read_back.is_plain
        self._takes_iterators = self._read_back.takes_iterators

    def encode(self, value: Any) -> str:
        """Return ``value`` as JSON text.

        Raises:
            NotSerializable: it does not fit the declared type, JSON cannot represent it, a reader would get another
                value, or would take it for an encoded payload.
            PayloadTooLarge: the text is over the limit, or nested too deep.
        """
        if self._takes_iterators and is_one_shot(value):  # its items can be read once
            value, text = self._encode_converted(value)
        else:
            try:  # not `dump_json`, which passes on a dozen options, in every turn
                text = self._adapter.serializer.to_json(value, warnings="error").decode()
            except BaseException as error:
                pass_interrupt(error)
                self._refuse_unread(value)
                value, text = self._encode_converted(value)
        if text.startswith(_FRAMED):
            raise self._refusal(f"a text that begins with {FRAME!r} would be taken for an encoded payload")
        if len(text) > self._short:  # a shorter one is neither too deep nor too large
            self._check_size(text)
        if self._is_plain and "null" not in text and len(text) <= MAX_DIGITS:
            return text
        return text if self._read_back.is_certain(text) else self._checked(value, text)

    def decode(self, text: str) -> Any:
        """Return the value that JSON ``text`` stands for.

        Raises:
            NotSerializable: the text is not JSON, or does not fit the declared type.
        """
        try:
            return self._adapter.validator.validate_json(text, by_alias=True, by_name=True)
        except BaseException as error:  # the type may be the application's
            raise_unreadable(text)
            raise self._refusal(problem_of(as_error(error))) from error

    def _encode_converted(self, value: Any) -> tuple[Any, str]:
        try:
            converted = self._adapter.validate_python(value)
            return converted, self._adapter.dump_json(converted, warnings="error").decode()
        except BaseException as error:
            raise self._refusal(f"got {_type_name(type(value))}: {problem_of(as_error(error))}") from error

    def _refuse_unread(self, value: Any) -> None:
        """Refuse a value of which a part was not awaited; or is an iterator, whose items may be used up by the try."""
        for kind, remedy in _NOT_VALUES:
            try:
                place = find_part(value, kind)
            except BaseException as error:  # the value contains itself, or a class of the application has raised it
                pass_interrupt(error)
                return
            if place is not None:
                raise self._refusal(f"{place.removeprefix('.') or 'value'}: {remedy}")

    def _check_size(self, text: str) -> None:
        check_payload(check_depth(text, self.what), self.what, self._limit)

    def _checked(self, value: Any, text: str) -> str:
        """The text, or another one from which the value is read back as it was given."""
        loss = self._find_loss(value, text)
        if loss is None:
            return text
        try:  # without computed fields, and with JSON within JSON
            text = self._adapter.dump_json(value, round_trip=True, warnings="error").decode()
        except BaseException as error:
            pass_interrupt(error)
            raise self._refusal(loss) from None
        if self._find_loss(value, text) is not None:
            raise self._refusal(loss)
        self._check_size(text)
        return text

    def _find_loss(self, value: Any, text: str) -> str | None:
        try:
            read = self._adapter.validator.validate_json(text, by_alias=True, by_name=True)
        except BaseException as error:
            return problem_of(as_error(error))
        return find_loss(value, read)

    def _refusal(self, problem: str) -> NotSerializable:
        return NotSerializable(f"{self.what} must be {_type_name(self.declared)}: {problem}")


_FRAMED: Final = f'"{FRAME}'
_NOT_VALUES: Final = (
    (is_one_shot, "an iterator can be read once: make it a list"),
    (inspect.isawaitable, "it has no value before it is awaited: await it first"),
)


def read_json(text: str) -> Any:
    """Parse JSON text that belongs to no declared type.

    Raises:
        NotSerializable: it is not JSON, or no text at all.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError) as error:
        raise_unreadable(text)
        raise NotSerializable(f"not JSON: {error}") from error


def _adapter(declared: Any) -> tuple[TypeAdapter[Any], ReadBack]:
    """The adapter of a type, cached: a schema takes milliseconds to build, and some types are passed with each call."""
    try:
        return _shared_adapter(declared, repr(declared))
    except TypeError:  # a type that cannot be hashed
        return _new_adapter(declared)


@lru_cache(maxsize=1024)
def _shared_adapter(declared: Any, text: str) -> tuple[TypeAdapter[Any], ReadBack]:
    # The text is part of the key: unions of the same types are equal, and their order matters to pydantic.
    return _new_adapter(declared)


def _new_adapter(declared: Any) -> tuple[TypeAdapter[Any], ReadBack]:
    _refuse_lost_attributes(declared)
    try:
        adapter = TypeAdapter(declared)
    except PydanticSchemaGenerationError as error:
        plain = str(error).partition(". ")[0]  # behind it, what authors of such types may do
        raise ValueError(f"{plain}: make it a dataclass or a pydantic model") from error
    return adapter, ReadBack(adapter.core_schema)


def _refuse_lost_attributes(declared: Any) -> None:
    """Refuse a dataclass whose attributes are no fields, since none of them has an annotation."""
    if not dataclasses.is_dataclass(declared) or dataclasses.fields(declared):
        return
    lost = [name for name, value in vars(declared).items() if not (name.startswith("_") or _is_part_of_class(value))]
    if lost:
        raise ValueError(f"{lost[0]!r} has no annotation, so that it is no field: write {lost[0]}: int = ..., or so")


def _is_part_of_class(value: object) -> bool:
    return callable(value) or hasattr(value, "__get__")


def _type_name(declared: Any) -> str:
    return declared.__qualname__ if isinstance(declared, type) else str(declared).replace("typing.", "")
