"""Servers that somebody else runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.servers.base import Offer, PostgresServer, StopMode

ENVIRONMENT: Final = "AFFINITY_TEST_POSTGRES_URL"


class ExternalServer(PostgresServer):
    """A server that somebody else runs; it cannot be stopped from here."""

    def __init__(self, url: str, major: int, *, fsync: bool) -> None:
        del fsync  # is what its administrator chose
        self._url = urlsplit(url)
        self.major = major

    def url(self, database: str | None = None) -> str:
        path = self._url.path if database is None else f"/{database}"
        return urlunsplit(self._url._replace(path=path))

    def start(self) -> None:
        raise NotImplementedError(f"the server of ${ENVIRONMENT} is not ours to start")

    def stop(self, mode: StopMode = "fast") -> None:
        raise NotImplementedError(f"the server of ${ENVIRONMENT} is not ours to stop")

    def close(self) -> None:
        """Leave it running."""
        self.disconnect()


def external() -> Iterator[Offer]:
    """Servers that the environment names; one that cannot be reached is an error, not a missing one."""
    for url in os.environ.get(ENVIRONMENT, "").split():
        with psycopg.connect(url) as connection:
            major = connection.info.server_version // 10_000
        yield Offer(major, f"${ENVIRONMENT}", partial(ExternalServer, url, major))
