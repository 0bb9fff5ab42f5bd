"""A codec for tests: it hides nothing from an attacker, and forgets no path."""

from __future__ import annotations

import re
from typing import Final

from affinity.errors import PayloadUnreadable
from affinity.payloads.check_values import FIELD
from affinity.payloads.contract import PayloadContext
from affinity.payloads.frames import read_frame
from affinity.records import FRAME
from tests.payloads.memory import STORE

_MASK: Final = 0x5A


class XorCodec:
    """Every byte is changed. Behind the bytes stands the context, which is compared.

    Args:
        mask: of the bytes; another one is another key.
        reads_plain: whether plain payloads are accepted.
    """

    def __init__(self, mask: int = _MASK, *, reads_plain: bool = False) -> None:
        self._mask = mask
        self._reads_plain = reads_plain

    @property
    def label(self) -> str:
        """Names the mask."""
        return f"xor {self._mask}"

    @property
    def reads_plain(self) -> bool:
        """As given."""
        return self._reads_plain

    async def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the bytes, changed."""
        return bytes(byte ^ self._mask for byte in (*data, *self._tail(context)))

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the bytes as they were.

        Raises:
            PayloadUnreadable: they were encoded for another context, or with another mask.
        """
        found, tail = bytes(byte ^ self._mask for byte in data), self._tail(context)
        if not found.endswith(tail):
            raise PayloadUnreadable(f"it was not encoded by this codec for {context.field} of {context.scope!r}")
        return found[: len(found) - len(tail)]

    def _tail(self, context: PayloadContext) -> bytes:
        return "\0".join(("", *context)).encode()


class FormerKeyLost(XorCodec):
    """Reads what workers write now, the check value, and has not the key of the payloads: as after a rotation that left
    out the former key too early.
    """

    def __init__(self) -> None:
        super().__init__(7)
        self._other = XorCodec()

    async def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """As `XorCodec`, the check value so that `XorCodec()` can read it."""
        if context.field == FIELD:
            return await self._other.encode(data, context)
        return await super().encode(data, context)

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """As `XorCodec`, with another mask for the check value."""
        if context.field == FIELD:
            return await self._other.decode(data, context)
        return await super().decode(data, context)


CODEC: Final = XorCodec()
"""For the environment."""

_IN_JSON: Final = re.compile(rf'"({re.escape(FRAME)}[^"]*)"')


def plain(stored: str) -> str:
    """Return a JSON text, such as of an event or a message, as it was before `CODEC` has encoded it, or before it went
    to the blob store.
    """
    return _IN_JSON.sub(lambda found: _decoded(found[1]), stored)


def _decoded(frame: str) -> str:
    """Return the JSON text in a frame, which is in front of the context."""
    found = read_frame(frame)
    body = STORE.payload(found.reference) if found.reference else found.body
    if not found.label:
        return body.decode()
    text = bytes(byte ^ _MASK for byte in body).decode()
    return text.rsplit("\0", len(PayloadContext._fields))[0]
