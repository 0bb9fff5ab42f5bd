"""The value that names a blob: large data outside the database, in inputs, results, events and states."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias, runtime_checkable

from pydantic_core import core_schema

from affinity.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

MARK: Final = "affinity-blob:1:"
"""The beginning of each reference to a blob, wherever it is stored: the collection of unused blobs finds them by it."""

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_REFERENCE: Final = re.compile(f"{MARK}([0-9a-f]{{64}}):(0|[1-9][0-9]{{0,18}})")
_PATTERN: Final = f"^{_REFERENCE.pattern}$"


BlobSource: TypeAlias = bytes | os.PathLike[str] | IO[bytes] | AsyncIterable[bytes]
"""What a blob is made from: its bytes, the path of a file, an open file, or parts of bytes. A `str` is none: it could
be a path or a text.
"""

BlobPath: TypeAlias = str | os.PathLike[str]
"""The path of a file that is written."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Large data that is kept outside the database, up to `limits.MAX_BLOB_BYTES`.

    `Client.put_blob` and `ActivityContext.put_blob` return one; ``open_blob`` reads it as a stream. It is a small value
    of inputs, results, events and states, in JSON a string. A blob is kept while a row of the database names it. It
    never changes.
    """

    digest: str
    """Of what is stored: 64 hexadecimal digits. With encryption two blobs of one content differ."""

    size: int
    """Bytes of its content."""

    def __post_init__(self) -> None:
        if not isinstance(self.digest, str) or not _DIGEST.fullmatch(self.digest):
            raise InvalidInput("the digest of a Blob has 64 hexadecimal digits: only put_blob makes one")
        if type(self.size) is not int or not 0 <= self.size < 10**19:
            raise InvalidInput("the size of a Blob is an integer from 0")

    def __str__(self) -> str:
        return f"{MARK}{self.digest}:{self.size}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the blob of a text, as `str` and JSON have it.

        Raises:
            InvalidInput: it is none.
        """
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise InvalidInput(f"a Blob in JSON is a string {MARK}digest:size, as put_blob has returned it")
        return cls(found[1], int(found[2]))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        of_text = core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema(strict=True))
        return core_schema.json_or_python_schema(
            json_schema=of_text,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), of_text]),
            serialization=core_schema.to_string_ser_schema(),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "pattern": _PATTERN}


@runtime_checkable
class OpensBlobs(Protocol):
    """A guest's object for activities that keeps blobs."""

    async def put(self, source: BlobSource) -> Blob:
        """Keep the data of a source."""
        ...

    def open(self, blob: Blob) -> AsyncIterator[bytes]:
        """Return the data of a blob in parts."""
        ...

    async def save(self, blob: Blob, path: BlobPath) -> None:
        """Write the data of a blob to a file."""
        ...


def find_blobs(text: str) -> set[Blob]:
    """Return the blobs that a text names."""
    return {Blob(found[1], int(found[2])) for found in _REFERENCE.finditer(text)} if MARK in text else set()


def digests_in(text: str) -> set[str]:
    """Return the digests of the blobs that a text names."""
    return {found[1] for found in _REFERENCE.finditer(text)} if MARK in text else set()
