"""The views of `examples/sync/django_site.py`, by Django's test client."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import django
import pytest
from django.test import Client

from affinity import sync
from tests.support.worker_processes import ROOT
from tests.sync.conftest import working


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "examples" / "sync"))
    site = importlib.import_module("django_site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", site.__name__)
        django.setup()
        yield site
    sys.path.remove(str(ROOT / "examples" / "sync"))


@pytest.fixture
def site(module: Any, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The site on a database of this test's own, with a worker."""
    with working(sqlite_url, module.app), sync.Client(sqlite_url) as client:
        monkeypatch.setattr(module, "client", client)
        yield module


def test_a_chat_over_http(site: Any) -> None:
    http = Client(raise_request_exception=False)
    assert http.post("/chats/ann").json() == {"outcome": "created"}
    assert http.post("/chats/ann").json() == {"outcome": "running"}
    said = [http.post("/chats/ann/messages", {"text": "hi"}, headers={"Idempotency-Key": "m-1"}) for _ in range(2)]
    assert [each.json() for each in said] == [{"reply": "you said 'hi'"}] * 2
    assert http.post("/chats/ann/messages", {"text": "bye"}).json() == {"reply": "you said 'bye'"}
    assert site.client.wait("ann", timeout=30) == 2
    refused = http.post("/chats/ann/messages", {"text": "hi"})
    assert (refused.status_code, "ended" in refused.json()["error"]) == (409, True)
    assert http.post("/chats/bob/messages", {"text": "hi"}).status_code == 404


def test_requests_in_threads_share_the_client(site: Any) -> None:
    """As in a server with threads; none of their changes of one record is lost."""
    barrier = threading.Barrier(4)

    def rename(n: int) -> str:
        barrier.wait()
        former: str = Client().post("/chats/ann/title", {"title": str(n)}).json()["former"]
        return former

    with ThreadPoolExecutor(4) as threads:
        formers = [*threads.map(rename, range(4))]
    record = site.client.session_store.load("ann")
    assert record.version == 4
    with site.titles.open_sync("ann", store=site.client.session_store) as title:
        assert sorted([*formers, title.text]) == ["", "0", "1", "2", "3"]
