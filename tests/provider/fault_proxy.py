"""A proxy that understands PostgreSQL's protocol as far as where a request and its reply end, and spoils one of them.

An error is reported in the server's place, as the reply to a request that the server never sees. A connection is cut
after the server has done what it was asked. So each request of a verb can meet a fault, also one that prepares.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict

from affinity.provider.postgres import PostgresProvider
from affinity_conformance.providers import Fault

STATES: Final[dict[Fault, str]] = {
    "disk_full": "53100",
    "io_error": "58030",
    "out_of_memory": "53200",
    "read_only": "25006",
    "statement_timeout": "57014",
    "serialization_failure": "40001",
    "deadlock": "40P01",
}

ENCRYPTION: Final = frozenset({80877103, 80877104})  # requests for TLS and GSSAPI
CANCEL: Final = 80877102
READY: Final = b"Z" + struct.pack("!ic", 5, b"I")


def report(state: str, severity: str = "ERROR") -> bytes:
    """An error of the server."""
    fields = [b"S" + severity.encode(), b"V" + severity.encode(), b"C" + state.encode(), b"Minjected"]
    body = b"\0".join(fields) + b"\0\0"
    return b"E" + struct.pack("!i", 4 + len(body)) + body


@dataclass(eq=False)
class _Passage:
    """One connection of the client, and the one to the server behind it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    cut: Fault | None = None  # the reply that comes is the last
    reply: bytearray = field(default_factory=bytearray)

    def close(self) -> None:
        self.client.close()
        self.server.close()


class FaultProxy:
    """Connections to a server; the next request or connection may meet a fault."""

    def __init__(self, url: str) -> None:
        conninfo = conninfo_to_dict(url.partition("?")[0])
        self.met = True
        self._target = url
        self._host, self._port = str(conninfo["host"]), int(conninfo["port"] or 5432)
        self._fault: Fault = "disk_full"
        self._after = 0
        self._passages: set[_Passage] = set()

    async def __aenter__(self) -> Self:
        self._proxy = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._proxy.close()
        for passage in self._passages:
            passage.close()

    @property
    def url(self) -> str:
        """The URL of the database, by way of the proxy."""
        port = self._proxy.sockets[0].getsockname()[1]
        return f"{self._target}{'&' if '?' in self._target else '?'}host=127.0.0.1&port={port}"

    def inject(self, fault: Fault, after: int) -> None:
        """See `affinity_conformance.providers.harness.FaultyProvider`."""
        self._fault, self._after, self.met = fault, after, False
        if fault == "too_many_connections":
            for passage in self._passages:
                passage.close()

    def _meets(self, *faults: Fault) -> bool:
        """Whether the fault befalls what has just come, as far as it is one of these."""
        if self.met or self._fault not in faults:
            return False
        self._after -= 1
        self.met = self._after < 0
        return self.met

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            start = await self._start(reader, client)
            if struct.unpack_from("!i", start, 4)[0] != CANCEL and self._meets("too_many_connections"):
                client.write(report("53300", "FATAL"))
                await client.drain()
            else:
                await self._pass(start, reader, client)
        client.close()

    @staticmethod
    async def _start(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> bytes:
        """The startup message of a connection, once encryption is refused."""
        while True:
            size = await reader.readexactly(4)
            start = size + await reader.readexactly(struct.unpack("!i", size)[0] - 4)
            if struct.unpack_from("!i", start, 4)[0] not in ENCRYPTION:
                return start
            client.write(b"N")

    async def _pass(self, start: bytes, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        replies, server = await asyncio.open_connection(self._host, self._port)
        passage = _Passage(client, server)
        self._passages.add(passage)
        server.write(start)
        backwards = asyncio.create_task(self._pass_back(replies, passage))
        try:
            request = b""
            while True:
                message = await _message(reader)
                request += message
                if message[:1] in b"SQ" and self._meets(*STATES):
                    client.write(report(STATES[self._fault]) + READY)
                elif message[:1] in b"SQ":
                    if self._meets("cut_before_reply", "cut_in_reply", "cut_after_reply"):
                        passage.cut = self._fault
                    server.write(request)
                elif message[:1] in b"pX":
                    server.write(request)
                else:
                    continue
                request = b""
        finally:
            passage.close()
            await asyncio.gather(backwards, return_exceptions=True)
            self._passages.discard(passage)

    @staticmethod
    async def _pass_back(replies: asyncio.StreamReader, passage: _Passage) -> None:
        try:
            while True:
                message = await _message(replies)
                if passage.cut is None:
                    passage.client.write(message)
                    continue
                passage.reply += message
                if message[:1] == b"Z":
                    share = {"cut_before_reply": 0.0, "cut_in_reply": 0.5}.get(passage.cut, 1.0)
                    passage.client.write(bytes(passage.reply[: int(len(passage.reply) * share)]))
                    return
        finally:
            passage.close()


class FaultyPostgres:
    """A provider that reaches its server through the proxy."""

    def __init__(self, proxy: FaultProxy, provider: PostgresProvider) -> None:
        self.provider = provider
        self.inject = proxy.inject
        self._proxy = proxy

    @classmethod
    async def open(cls, url: str) -> Self:
        """A provider on the database at ``url``, and the proxy in between."""
        proxy = await FaultProxy(url).__aenter__()
        return cls(proxy, await PostgresProvider.open(proxy.url))

    @property
    def met(self) -> bool:
        """See `affinity_conformance.providers.harness.FaultyProvider`."""
        return self._proxy.met

    async def aclose(self) -> None:
        """See `affinity_conformance.providers.harness.FaultyProvider`."""
        await self.provider.aclose()
        await self._proxy.__aexit__()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack_from("!i", head, 1)[0] - 4)
