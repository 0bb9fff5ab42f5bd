"""A codec of two keys, for the environment of commands: it reads both, and writes with the later one."""

from __future__ import annotations

import os
from typing import Final

import anyio

from affinity.errors import PayloadUnreadable
from affinity.payloads.contract import PayloadContext
from tests.payloads.xor import XorCodec

PAUSE: Final = "AFFINITY_TEST_CODEC_PAUSE"
"""Environment variable: seconds for which a payload of the former key is decoded."""


class Rotating(XorCodec):
    """Reads what `XorCodec` has written, and writes with another mask."""

    def __init__(self) -> None:
        super().__init__(7)
        self._former = XorCodec()

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """As `XorCodec`, with both masks."""
        try:
            return await super().decode(data, context)
        except PayloadUnreadable:
            await anyio.sleep(float(os.environ.get(PAUSE, "0")))
            return await self._former.decode(data, context)


codec: Final = Rotating()
other: Final = XorCodec(9)
