"""How a state becomes bytes and is made from them again, in three steps, so that migrations can come between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from pydantic import Field, TypeAdapter
from pydantic_core import from_json, to_json

from affinity.errors import InvalidOptions

S = TypeVar("S")


class StateCodec(Protocol[S]):
    """Bytes of a state. ``build(parse(dump(state)))`` is the state again, without what is scratch.

    The same state should give the same bytes: a state whose bytes are those in the store is not written again. The
    methods run on the event loop.

    A codec may also have ``read(raw) -> state``, which does ``parse`` and ``build`` at once where nothing is migrated.
    It is then called with what is about to be written, too: a state that could not be read back is refused in time.
    """

    def dump(self, state: S, /) -> bytes:
        """The state as bytes. What it raises is raised where the state was changed, as `NotSerializable`."""
        ...

    def parse(self, raw: bytes, /) -> Any:
        """The plain form, which migrations get and return: usually a dict."""
        ...

    def build(self, plain: Any, /) -> S:
        """The state from its plain form."""
        ...


class JsonCodec(Generic[S]):
    """JSON by pydantic: the fields of a model, a dataclass or a TypedDict under their own names, or any other type.

    Fields with ``exclude=True`` are scratch: they are never written and start from their default. Reading a state back
    checks it as any input: also what the code has set on a model that does not validate assignments.
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
        """See `StateCodec`."""
        return self._adapter.dump_json(state, round_trip=True, warnings="error")

    def parse(self, raw: bytes, /) -> Any:
        """See `StateCodec`."""
        return from_json(raw, allow_inf_nan=False)

    def build(self, plain: Any, /) -> S:
        """See `StateCodec`."""
        return self.read(
            to_json(plain)
        )  # JSON has its own rules (a date is a string, a tuple a list), also when strict

    def read(self, raw: bytes, /) -> S:
        """``build(parse(raw))`` in one step."""
        return self._adapter.validate_json(raw, by_alias=True, by_name=True)


def scratch(default: Any = ..., *, default_factory: Any = None) -> Any:
    """A field of a pydantic model that lives in memory only: it is not kept, and starts from its default.

    The same as ``Field(default, exclude=True)``.
    """
    if default_factory is not None:
        return Field(default_factory=default_factory, exclude=True)
    return Field(default, exclude=True)


def _scratch_without_default(schema: Any, name: str = "") -> Iterator[str]:
    """Names of fields, at any depth, that are never written and cannot be left out."""
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
