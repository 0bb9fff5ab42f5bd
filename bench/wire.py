"""Counts what a process says to PostgreSQL, without asking the process or the server: a proxy on the wire.

A statement is counted when the server says that it is complete, which it does for each statement of a message.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit, urlunsplit

COMPLETED: Final = ord("C")
"""The type of the server's CommandComplete message."""

ENCRYPTION_REQUESTS: Final = frozenset({80877103, 80877104})
"""Codes of SSLRequest and GSSENCRequest, answered here with a no: what is encrypted cannot be counted."""

CHUNK: Final = 1 << 16


class Wire:
    """A proxy in front of a server."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._count = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        """Where clients connect instead."""
        user = f"{self._url.netloc.rpartition('@')[0]}@" if "@" in self._url.netloc else ""
        port = self._listener.getsockname()[1]
        return urlunsplit(self._url._replace(netloc=f"{user}127.0.0.1:{port}"))

    @property
    def statements(self) -> int:
        """Statements completed so far."""
        with self._lock:
            return self._count

    def close(self) -> None:
        """Cut all connections."""
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        with suppress(OSError):
            greeting = _greeting(client)
            server = socket.create_connection((self._url.hostname or "127.0.0.1", self._url.port or 5432))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(one)
            server.sendall(greeting)
            self._start(self._forward, client, server)
            self._answer(server, client)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(CHUNK):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        counter = Messages()
        while data := server.recv(CHUNK):
            completed = counter.feed(data)
            with self._lock:
                self._count += completed  # before the client hears of it, and may look
            client.sendall(data)
        client.shutdown(socket.SHUT_WR)


class Messages:
    """Finds the message boundaries in what a server sends."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0

    def feed(self, data: bytes) -> int:
        """The number of statements that ``data`` completes."""
        completed = 0
        self._rest += data
        while True:
            skipped = min(self._skip, len(self._rest))
            self._rest, self._skip = self._rest[skipped:], self._skip - skipped
            if len(self._rest) < 5:  # noqa: PLR2004 -- a type and a length
                return completed
            kind, length = struct.unpack_from("!BI", self._rest)
            completed += kind == COMPLETED
            self._skip = 1 + length


def _greeting(client: socket.socket) -> bytes:
    """The start-up message, after every wish for encryption was declined."""
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!II", head)
        if code not in ENCRYPTION_REQUESTS:
            return head + _exactly(client, length - 8)
        client.sendall(b"N")


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := source.recv(size - len(data))):
            raise ConnectionError("the client went away")
        data += more
    return data


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """A proxy in front of the server at ``url``."""
    proxy = Wire(url)
    try:
        yield proxy
    finally:
        proxy.close()
