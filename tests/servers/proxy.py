"""A network between a test's connections and PostgreSQL that holds, inspects and resets them as the test says."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit, urlunsplit

HOST: Final = "127.0.0.1"
PATIENCE: Final = 30.0
"""Seconds after which a test that waits for something on the wire is broken."""

_CHUNK: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: to close is to reset."""


class ProxiedConnection:
    """One connection through the proxy: two sockets, and what happens to what comes."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.startup = b""  # the first that the client sent; it has its application_name
        self.resets = False  # the next reply comes with a reset
        self.was_reset = threading.Event()
        self.loses_requests = False  # without a word; the server hears of no end either
        self.loses_replies = False

    def close(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Proxy:
    """In front of the server at ``url``. Connections are told apart by their ``application_name``."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._listener = socket.create_server((HOST, 0))
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._closed = False
        self.inspect: Callable[[ProxiedConnection, bytes], bytes] | None = (
            None  # what the client sent; what of it goes on now
        )
        self.lines: list[ProxiedConnection] = []
        self.loses_new = False  # as `lose`, for the connections to come
        _start(self._accept)

    @property
    def url(self) -> str:
        """Where clients connect instead."""
        user = f"{self._url.netloc.rpartition('@')[0]}@" if "@" in self._url.netloc else ""
        return urlunsplit(self._url._replace(netloc=f"{user}{HOST}:{self._listener.getsockname()[1]}"))

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify_all()
            for line in self.lines:
                line.close()

    # -- what a test says

    def hold(self, name: str) -> None:
        """Nothing comes back on these connections and on their probes, of now and of later, until `let_go`; nothing is
        lost.
        """
        with self._changed:
            self._held.add(name)

    def let_go(self, name: str) -> None:
        """Let come what was held."""
        with self._changed:
            self._held.discard(name)
            self._changed.notify_all()

    def lose(self, *, only_replies: bool = False) -> None:
        """The connections of now pass nothing on any more and stay open, as behind a firewall that lost its table.
        Later ones work.
        """
        for line in self.lines:
            line.loses_requests |= not only_replies
            line.loses_replies = True

    # -- the threads

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((self._url.hostname or HOST, self._url.port or 5432))
                except OSError:
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = ProxiedConnection(client, server)
                line.loses_requests = line.loses_replies = self.loses_new
                with self._changed:
                    self.lines.append(line)
                    if self._closed:
                        line.close()
                        return
                _start(self._ask, line)
                _start(self._answer, line)

    def _ask(self, line: ProxiedConnection) -> None:
        with suppress(OSError):
            while data := _received(line.client):
                if not line.startup:
                    line.startup = data if b"application_name" in data else b""  # before: whether to encrypt
                elif self.inspect is not None:
                    data = self.inspect(line, data)
                if not line.loses_requests:
                    line.server.sendall(data)
            if line.loses_requests or line.loses_replies:
                return
            line.server.shutdown(socket.SHUT_WR)

    def _answer(self, line: ProxiedConnection) -> None:
        with suppress(OSError):
            while data := _received(line.server):
                with self._changed:
                    self._changed.wait_for(lambda: not any(_is(line, name) for name in self._held))
                if line.loses_replies:
                    continue
                last = line.resets  # asked before it is sent: then the test may go on
                line.client.sendall(data)
                if last:
                    _until_received(line.client)  # data on its way would be lost
                    line.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    line.client.shutdown(socket.SHUT_RD)  # wakes the other thread, which still has the socket
                    line.client.close()
                    line.was_reset.set()
                    return
            if not line.loses_replies:
                line.client.shutdown(socket.SHUT_WR)


def _received(sender: socket.socket) -> bytes:
    """What comes next; nothing at the end: it is a reset where the other end has not read all that it was sent."""
    try:
        return sender.recv(_CHUNK)
    except ConnectionResetError:
        return b""


def _until_received(sender: socket.socket) -> None:
    """Until the other end has acknowledged all that was sent."""
    while any(fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4))):
        time.sleep(0.001)


def _is(line: ProxiedConnection, name: str) -> bool:
    return any(f"\0{each}\0".encode() in line.startup for each in (name, f"{name} probe"))


def _start(work: object, *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]


@contextmanager
def proxy(url: str) -> Iterator[Proxy]:
    """A proxy in front of the server at ``url``."""
    between = Proxy(url)
    try:
        yield between
    finally:
        between.close()
