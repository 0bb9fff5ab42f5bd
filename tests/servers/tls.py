"""TLS in front of a server that has none: PostgreSQL in wheels is built without."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit, urlunsplit

import anyio
import trustme
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream
from anyio.from_thread import start_blocking_portal
from anyio.streams.tls import TLSStream

HOST: Final = "127.0.0.1"

_REQUEST: Final = struct.pack("!II", 8, 80877103)
"""PostgreSQL's SSLRequest: the first that a client says which wants TLS."""


class TlsFront:
    """Takes TLS connections, and no others, for the server at ``url``."""

    def __init__(self, url: str, directory: Path) -> None:
        authority = trustme.CA()
        self.authority = directory / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(HOST).configure_cert(self._context)
        self._url = urlsplit(url)
        self._port = 0

    def url(self, **settings: str | Path) -> str:
        """Where clients connect, with libpq's settings of how."""
        user = f"{self._url.netloc.rpartition('@')[0]}@" if "@" in self._url.netloc else ""
        netloc = f"{user}{HOST}:{self._port}"
        query = urlencode(settings)
        return urlunsplit(self._url._replace(netloc=netloc, query=query))

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Until cancelled."""
        async with await anyio.create_tcp_listener(local_host=HOST) as listener:
            self._port = listener.extra(SocketAttribute.local_port)  # noqa: S610 -- not Django's
            task_status.started()
            await listener.serve(self._connected)

    async def _connected(self, plain: SocketStream) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(plain)
            if await plain.receive(len(_REQUEST)) != _REQUEST:
                return
            await plain.send(b"S")
            with suppress(ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream, OSError):  # one of the two left
                client = await TLSStream.wrap(
                    plain, server_side=True, ssl_context=self._context, standard_compatible=False
                )
                server = await anyio.connect_tcp(self._url.hostname or HOST, self._url.port or 5432)
                await stack.enter_async_context(server)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_forward, client, server, tasks.cancel_scope)
                    tasks.start_soon(_forward, server, client, tasks.cancel_scope)


async def _forward(source: ByteReceiveStream, sink: ByteSendStream, both: anyio.CancelScope) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await sink.send(data)
    both.cancel()


@contextmanager
def tls_front(url: str, directory: Path) -> Iterator[TlsFront]:
    """A front of the server at ``url``, with the certificate of its authority in ``directory``."""
    front = TlsFront(url, directory)
    with start_blocking_portal() as portal:
        serving, _ = portal.start_task(front.serve)
        try:
            yield front
        finally:
            serving.cancel()
