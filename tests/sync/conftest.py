"""A worker on an event loop in a thread of its own, beside code that has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from anyio.from_thread import start_blocking_portal

from affinity import App, Worker, sync
from tests.sync.application import app


@contextmanager
def working(url: str, app: App = app) -> Iterator[None]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Worker(app, url)):
        yield


@pytest.fixture
def url(kept_url: str) -> Iterator[str]:
    """Of a database that a worker works for."""
    with working(kept_url):
        yield kept_url


@pytest.fixture
def file_url(sqlite_url: str) -> Iterator[str]:
    """Of an SQLite file that a worker works for."""
    with working(sqlite_url):
        yield sqlite_url


@pytest.fixture
def client(file_url: str) -> Iterator[sync.Client]:
    with sync.Client(file_url) as client:
        yield client
