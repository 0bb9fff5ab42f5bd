"""`examples/support_desk` over real HTTP: a server process and two workers, which are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.web import ServerEvent, events_of, holder_of, post, serve, until
from tests.support.worker_processes import PATIENCE, Workers, open_workers

APP = "examples.support_desk.desk:app"

pytestmark = pytest.mark.parametrize(
    "any_url", ["sqlite", pytest.param("new", marks=(pytest.mark.slow, pytest.mark.nightly))], indirect=True, ids=str
)


@pytest.fixture
def workers(any_url: str) -> Iterator[Workers]:
    """Two workers on a fresh database."""
    with open_workers(any_url) as found:
        for name in ("one", "two"):
            found.start(name, APP)
        yield found


@pytest.fixture
def http(workers: Workers) -> Iterator[httpx.Client]:
    """A client of the service, which runs in a process of its own."""
    with serve("examples.support_desk.service:create", workers.url, "/tickets") as found:
        yield found


@contextmanager
def said(http: httpx.Client, ticket: str, text: str, id: str, after: str = "") -> Iterator[Iterator[ServerEvent]]:
    """The events that answer a message."""
    headers = {"Last-Event-ID": after} if after else {}
    body = {"text": text, "id": id, "customer": "ann"}
    with http.stream("POST", f"/tickets/{ticket}/messages", json=body, headers=headers) as response:
        assert response.is_success
        yield events_of(response)


def reply(http: httpx.Client, ticket: str, text: str, id: str) -> Any:
    with said(http, ticket, text, id) as stream:
        return until(stream, "reply")[-1].data


def messages(http: httpx.Client, ticket: str) -> list[str]:
    return [each["text"] for each in http.get(f"/tickets/{ticket}").json()["messages"] if each["by"] == "agent"]


def test_a_message_is_answered_with_what_the_tools_do(http: httpx.Client) -> None:
    with said(http, "t1", "where is order 17?", "m1") as stream:
        seen = until(stream, "reply")
    kinds = [each.kind for each in seen]
    assert kinds.index("agent.tool_use") < kinds.index("agent.tool_result") < kinds.index("agent.message")
    assert "on its way" in seen[-1].data["text"]
    assert reply(http, "t1", "where is order 17?", "m1") == seen[-1].data
    with said(http, "t1", "where is order 17?", "m1", seen[-2].id) as stream:
        assert [each.kind for each in stream] == ["reply"]
    assert post(http, "/tickets/t1/rating", stars=5) == {"text": "Thank you!"}
    assert http.post("/tickets/t1/rating", json={"stars": 9}).status_code == 422
    (ticket,) = http.get("/tickets", params={"customer": "ann"}).json()["tickets"]
    assert (ticket["conversation_id"], ticket["title"]) == ("t1", "where is order 17?")
    assert http.get("/tickets", params={"customer": "bob"}).json()["tickets"] == []


def test_a_large_refund_is_in_the_inbox_until_a_person_decides(http: httpx.Client, workers: Workers) -> None:
    """The workers are killed while it waits; it is paid once it is allowed."""
    with ExitStack() as stack:
        inbox = events_of(stack.enter_context(http.stream("GET", "/inbox")))
        assert reply(http, "t1", "5000 cents, please", "m1")["stop_reason"] == "requires_action"
        asked = until(inbox, "asked")[-1].data
        assert (asked["conversation_id"], asked["owner"], asked["event"]["arguments"]) == ("t1", "ann", {"cents": 5000})
        assert http.get("/tickets/t1").json()["status"] == "requires_action"
        for worker in workers.running():
            worker.send(signal.SIGKILL)
        workers.start("three", APP)
        assert "waits" not in reply(http, "t1", "how are you?", "m2")["text"]  # it is answered meanwhile
        post(http, f"/tickets/t1/requests/{asked['request_id']}", allowed=True)
        assert until(inbox, "gone")[-1].data["request_id"] == asked["request_id"]
        second = http.post(f"/tickets/t1/requests/{asked['request_id']}", json={"allowed": False})
        assert second.status_code == 409
    with said(http, "t1", "thanks", "m3") as stream:
        until(stream, "reply")
    paid = [each for each in messages(http, "t1") if "5000 cents are on their way" in each]
    assert len(paid) == 1


def test_a_small_refund_needs_no_person(http: httpx.Client) -> None:
    assert "500 cents are on their way" in reply(http, "t1", "500 cents, please", "m1")["text"]


def test_a_killed_worker_costs_the_stream_and_not_the_answer(http: httpx.Client, workers: Workers) -> None:
    text = f"{'word ' * 400}"
    with said(http, "t1", f"order {text.replace(' ', '_')}", "m1") as stream:
        seen = until(stream, "agent.tool_result")
        holder_of(workers, "t1").send(signal.SIGKILL)
        seen += until(stream, "reply")
    kinds = [each.kind for each in seen]
    assert kinds.count("agent.message") == kinds.count("agent.tool_result") == 1


def test_what_a_child_finds_is_told_though_its_worker_is_killed(http: httpx.Client, workers: Workers) -> None:
    assert reply(http, "t1", "look up tea", "m1")["text"] == "A colleague looks it up."
    for worker in workers.running():
        worker.send(signal.SIGKILL)
    workers.start("three", APP)
    end = time.monotonic() + PATIENCE
    while "I have looked: tea is in stock" not in messages(http, "t1"):
        assert time.monotonic() < end, http.get("/tickets/t1").json()
        time.sleep(0.1)
    assert http.get("/tickets/t1").json()["status"] in {"idle", "waiting"}
