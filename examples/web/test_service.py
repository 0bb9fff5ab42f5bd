"""The service as a browser sees it, with a worker in the same process. Run with ``pytest examples/web``."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from service import create


@pytest.fixture
def http(tmp_path: Path) -> Iterator[TestClient]:
    """The service on a database of this test's own."""
    with TestClient(create(f"sqlite:///{tmp_path / 'test.db'}", with_worker=True)) as http:
        yield http


def test_a_chat_from_its_start_to_its_end(http: TestClient) -> None:
    """To start it again is no error: the id is the user's."""
    assert http.put("/chats/ann").json() == {"outcome": "created"}
    assert http.put("/chats/ann").json() == {"outcome": "running"}
    for text, key in [("hello", "1"), ("hello", "1"), ("bye", "2")]:  # what is sent again is said once
        sent = http.post("/chats/ann/messages", json={"text": text}, headers={"Idempotency-Key": key})
        assert sent.json() == {"reply": f"you said {text!r}"}
    assert http.get("/chats/ann/result").json() == {"replies": ["you said 'hello'", "you said 'bye'"]}
    assert http.get("/chats/ann").json()["status"] == "completed"


def test_what_cannot_be(http: TestClient) -> None:
    """Errors of the client are answers of the service."""
    assert http.get("/chats/bob").status_code == 404
    http.put("/chats/ann")
    http.post("/chats/ann/messages", json={"text": "bye"})
    http.get("/chats/ann/result")
    assert http.post("/chats/ann/messages", json={"text": "hello?"}).status_code == 409
