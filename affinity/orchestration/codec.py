"""Typed JSON payloads, by the annotations of a function, through pydantic.

A value is written as its declared type. A value of another type that converts to it (a dict for a model, a tuple for a
list) is converted first. A value that does not convert, or that JSON cannot represent, raises ``NotSerializable`` with
the name of the value and its declared type. NaN and the infinities are refused: JSON has no such numbers, and pydantic
would write null.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from affinity.errors import InvalidApp, NotSerializable, problem_of
from affinity.limits import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, check_depth, check_payload, count_non_finite
from affinity.user_code import as_error, call_sync


class Codec:
    """JSON text of one declared type, in both directions.

    Args:
        declared: the type; ``Any`` takes any value that JSON can represent.
        what: the name of the value, for messages ("result of activity 'reply'").
        limit: of the text, in UTF-8 bytes.

    Raises:
        InvalidApp: pydantic has no schema for the type.
    """

    __slots__ = ("_adapter", "_limit", "_short", "declared", "what")

    def __init__(self, declared: Any, what: str, limit: int = MAX_PAYLOAD_BYTES) -> None:
        self.declared: Any = declared
        self.what: str = what
        self._limit = limit
        self._short = min(MAX_PAYLOAD_DEPTH, limit // 4)  # a character has at most four bytes
        try:
            self._adapter = _adapter(declared)
        except BaseException as error:
            raise InvalidApp(f"{what}: {_type_name(declared)} has no JSON form: {error}") from error

    def encode(self, value: Any) -> str:
        """Return ``value`` as JSON text.

        Raises:
            NotSerializable: it does not fit the declared type, or JSON cannot represent it.
            PayloadTooLarge: the text is over the limit, or nested too deep.
        """
        try:  # not `dump_json`, which passes on a dozen options, in every turn
            text = self._adapter.serializer.to_json(value, warnings="error").decode()
        except BaseException:
            value, text = self._encode_converted(value)
        if len(text) > self._short:  # a shorter one is neither too deep nor too large
            check_payload(check_depth(text, self.what), self.what, self._limit)
        if "null" in text:  # pydantic writes it for a None of any type, and for NaN
            self._check_null(value, text)
        return text

    def decode(self, text: str) -> Any:
        """Return the value that JSON ``text`` stands for.

        Raises:
            NotSerializable: the text is not JSON, or does not fit the declared type.
        """
        try:
            return self._adapter.validator.validate_json(text)
        except BaseException as error:  # the type may be the application's
            raise self._refusal(problem_of(as_error(error))) from error

    def _encode_converted(self, value: Any) -> tuple[Any, str]:
        try:
            converted = self._adapter.validate_python(value)
            return converted, self._adapter.dump_json(converted, warnings="error").decode()
        except BaseException as error:
            raise self._refusal(f"got {_type_name(type(value))}: {problem_of(as_error(error))}") from error

    def _check_null(self, value: Any, text: str) -> None:
        if count_non_finite(call_sync(self._adapter.dump_python, value)):
            raise self._refusal("NaN and infinity are not JSON numbers")
        self.decode(text)

    def _refusal(self, problem: str) -> NotSerializable:
        return NotSerializable(f"{self.what} must be {_type_name(self.declared)}: {problem}")


def read_json(text: str) -> Any:
    """Parse JSON text that belongs to no declared type.

    Raises:
        NotSerializable: it is not JSON, or no text at all.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError) as error:
        raise NotSerializable(f"not JSON: {error}") from error


def _adapter(declared: Any) -> TypeAdapter[Any]:
    """The adapter of a type, cached: a schema takes milliseconds to build, and some types are passed with each call."""
    try:
        return _shared_adapter(declared, repr(declared))
    except TypeError:  # a type that cannot be hashed
        return TypeAdapter(declared)


@lru_cache(maxsize=1024)
def _shared_adapter(declared: Any, text: str) -> TypeAdapter[Any]:
    # The text is part of the key: unions of the same types are equal, and their order matters to pydantic.
    return TypeAdapter(declared)


def _type_name(declared: Any) -> str:
    return declared.__qualname__ if isinstance(declared, type) else str(declared).replace("typing.", "")
