"""A PostgreSQL server as tests see it, wherever it comes from."""

from __future__ import annotations

import signal
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Self

import psycopg
from psycopg import sql

StopMode = Literal["fast", "immediate"]

STARTUP: Final = 60.0
"""Seconds until a server that does not answer is given up."""

_SETTINGS: Final = {"max_connections": "300", "log_line_prefix": "%m [%p] %a "}
_UNSAFE: Final = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}  # the data may be in memory


class NoPostgres(RuntimeError):
    """There are not two major versions of PostgreSQL here; the message says what there is and how to get more."""


class PostgresServer(ABC):
    """A running server. One ``with`` statement, in which it may be stopped and started again.

    What stops or closes it calls `disconnect` first.
    """

    major: int
    _administrator: psycopg.Connection | None = None

    @abstractmethod
    def url(self, database: str = "postgres") -> str:
        """The URL of one of its databases, for a role that may do everything."""

    @abstractmethod
    def start(self) -> None:
        """Start it again, on the same port with the same data; returns when it accepts connections."""

    @abstractmethod
    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it: ``fast`` ends connections in order, ``immediate`` is a crash."""

    @abstractmethod
    def close(self) -> None:
        """Remove it with its data. Idempotent."""

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def create_database(self, template: str | None = None) -> str:
        """A new database, empty or a copy of ``template`` (without connections to it); returns its name."""
        name = f"test_{uuid.uuid4().hex}"
        how = sql.SQL("STRATEGY file_copy" if self.major >= 15 else "")  # half of the server's time for a new database
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template or "template0"), how))
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, and end the connections to it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def disconnect(self) -> None:
        """Close the connection that creates and drops databases; the next of them opens one."""
        if self._administrator is not None:
            self._administrator.close()
            self._administrator = None

    def _execute(self, statement: sql.Composed) -> None:
        if self._administrator is None:
            self._administrator = psycopg.connect(self.url(), autocommit=True)
        self._administrator.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Offer:
    """A server that could be started, or is there."""

    major: int
    origin: str
    _open: Callable[..., PostgresServer]

    def open(self, *, fsync: bool = False) -> PostgresServer:
        """Start it. Without ``fsync`` it is faster, and its data do not survive a crash of the machine."""
        return self._open(fsync=fsync)


def free_port() -> int:
    """A port that no process listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(*, fsync: bool) -> dict[str, str]:
    """Configuration of a server of ours."""
    return _SETTINGS if fsync else _SETTINGS | _UNSAFE


def stop_signal(mode: StopMode) -> signal.Signals:
    """The signal that ends a server in that way."""
    return signal.SIGINT if mode == "fast" else signal.SIGQUIT


def wait_until_ready(url: str, alive: Callable[[], bool], log: Callable[[], str] = str) -> None:
    """Return when the server accepts connections; raise `NoPostgres`, with its log, when it will not."""
    deadline = time.monotonic() + STARTUP
    while alive() and time.monotonic() < deadline:
        with suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=2):
            return
        time.sleep(0.02)  # a server has no way to call us when it is ready
    raise NoPostgres(f"the server at {url} does not accept connections\n{log()}")
