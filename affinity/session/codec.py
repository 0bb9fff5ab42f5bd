"""Codecs of session state, and the compression of its bytes.

Decoding has two steps, bytes to plain form to state, so that migrations can change the plain form.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import Field, TypeAdapter
from pydantic_core import from_json, to_json

from affinity.errors import InvalidOptions, PayloadTooLarge
from affinity.limits import COMPRESS_STATE_ABOVE, MAX_STATE_BYTES
from affinity.records import StateEncoding

S = TypeVar("S")


class StateCodec(Protocol[S]):
    """Converts a state to bytes and back. ``build(parse(dump(state)))`` equals the state, without its scratch fields.

    Equal states should give equal bytes: a state whose bytes equal those in the store is not written again. The methods
    run on the event loop.

    A codec may also have ``read(raw) -> state``, which does ``parse`` and ``build`` in one step where nothing is
    migrated. It is also called with bytes that are about to be written, to refuse a state that could not be read back.
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
    """

    def __init__(self, declared: type[S]) -> None:
        """A codec of one type.

        Raises:
            InvalidOptions: the type has no JSON form, or a scratch field without a default.
        """
        try:
            self._adapter: TypeAdapter[S] = TypeAdapter(declared)
            fields = sorted(set(_scratch_without_default(self._adapter.core_schema)))
        except Exception as error:
            raise InvalidOptions(f"the state {declared!r} has no JSON form: {error}; give a codec") from error
        if fields:
            raise InvalidOptions(
                f"the state {declared!r} has scratch fields without a default: {', '.join(fields)}; "
                "a hydrate could not fill them"
            )

    def dump(self, state: S, /) -> bytes:
        return self._adapter.dump_json(state, round_trip=True, warnings="error")

    def parse(self, raw: bytes, /) -> Any:
        return from_json(raw, allow_inf_nan=False)

    def build(self, plain: Any, /) -> S:
        return self.read(
            to_json(plain)
        )  # JSON has its own rules (a date is a string, a tuple a list), also when strict

    def read(self, raw: bytes, /) -> S:
        """``build(parse(raw))`` in one step."""
        return self._adapter.validate_json(raw, by_alias=True, by_name=True)


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
