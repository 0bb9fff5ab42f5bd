"""`examples/chat_api` over real HTTP: a server process and two workers; one is killed while it streams."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import httpx2 as httpx
import pytest

import affinity
from affinity.conversation import UserMessage
from examples.chat_api.chat import app, chats
from tests.support.web import ServerEvent, events_of, holder_of, post, serve, until
from tests.support.worker_processes import PATIENCE, Workers, open_workers

APP = "examples.chat_api.chat:app"

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
    with serve("examples.chat_api.service:create", workers.url, "/chats/unknown") as found:
        yield found


def events(http: httpx.Client, chat: str, after: str | None = None) -> Iterator[ServerEvent]:
    """The events of a chat as they come."""
    headers = {} if after is None else {"Last-Event-ID": after}
    with http.stream("GET", f"/chats/{chat}/events", headers=headers) as response:
        yield from events_of(response)


def test_a_question_has_one_answer_however_often_it_is_sent(http: httpx.Client) -> None:
    first, again = (post(http, "/chats/ann/ask", text="hello there", id="m-1") for _ in range(2))
    assert first["text"] == "you said 'hello there'"
    assert again == first
    assert http.get("/chats/ann").json() == {"status": "idle"}


def test_what_cannot_be_is_refused(http: httpx.Client) -> None:
    assert http.get("/chats/bob").status_code == 404
    assert http.get("/chats/bob/events").status_code == 404
    bodies: list[Any] = [{}, [], "x", None, {"text": 5}, {"text": "hi", "id": 5}]
    for body in bodies:
        assert http.post("/chats/bob/messages", json=body).status_code == 422
    post(http, "/chats/ann/ask", text="hello")
    assert http.post("/chats/ann/requests/none", json={"allowed": True}).status_code == 409
    assert http.post("/chats/ann/requests/none", json={"allowed": "perhaps"}).status_code == 422


@pytest.mark.slow
def test_a_reader_that_comes_back_goes_on_where_it_was(http: httpx.Client) -> None:
    post(http, "/chats/ann/messages", text="one two three four five six seven eight")
    before = until(events(http, "ann"), "stream.part")
    after = until(events(http, "ann", before[-1].id), "conversation.idle")
    parts = [event.data["number"] for event in (*before, *after) if event.kind == "stream.part"]
    assert parts == list(range(1, len(parts) + 1))
    seqs = [event.data["seq"] for event in (*before, *after) if "seq" in event.data]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.slow
def test_a_reader_of_a_deleted_chat_begins_again(http: httpx.Client) -> None:
    post(http, "/chats/dan/ask", text="hello")
    assert list(events(http, "dan", after="1000")) == [ServerEvent("0", "reset", None)]


def test_positions_that_are_none_are_refused_and_an_empty_one_is_the_beginning(http: httpx.Client) -> None:
    post(http, "/chats/eve/ask", text="hello")
    for given in ("x", "-1", "1.2", "9" * 30, "1.1.1."):
        assert http.get("/chats/eve/events", headers={"Last-Event-ID": given}).status_code == 422
    assert until(events(http, "eve", after=""), "user.message")[0].id.partition("@")[0] == "1"


def test_readers_of_a_chat_see_the_same_until_it_is_deleted(http: httpx.Client, workers: Workers) -> None:
    post(http, "/chats/fay/ask", text="hello")
    readers = [events(http, "fay"), events(http, "fay")]
    first, second = [until(each, "conversation.idle") for each in readers]
    assert first == second
    _do(workers, lambda talk: talk.delete())
    assert [[*each] for each in readers] == [[ServerEvent("0", "reset", None)]] * 2
    assert http.get("/chats/fay/events", headers={"Last-Event-ID": "0"}).status_code == 404


def test_the_stream_of_a_chat_that_has_ended_says_so(http: httpx.Client, workers: Workers) -> None:
    post(http, "/chats/fay/ask", text="hello")
    _do(workers, lambda talk: talk.terminate())
    *_, last, end = events(http, "fay")
    assert end == ServerEvent(last.id, "end", None)
    assert [*events(http, "fay", after=end.id)] == [end]


def test_what_is_no_amount_is_an_answer_too(http: httpx.Client) -> None:
    assert "invalid_tool_arguments" in post(http, "/chats/ann/ask", text="refund everything")["text"]


def _do(workers: Workers, work: Callable[[affinity.ConversationHandle], Awaitable[object]]) -> None:
    async def run() -> None:
        async with affinity.Client(workers.url) as client:
            await work(client.conversation(chats, "fay"))

    anyio.run(run)


@pytest.mark.slow
def test_a_killed_worker_costs_the_stream_and_not_the_answer(http: httpx.Client, workers: Workers) -> None:
    text = " ".join(f"w{n}" for n in range(120))  # six seconds
    post(http, "/chats/ann/messages", text=text)
    stream = events(http, "ann")
    seen = until(stream, "stream.part")
    holder_of(workers, "ann").send(signal.SIGKILL)
    seen += until(stream, "conversation.idle")
    kinds = [event.kind for event in seen]
    assert kinds.count("agent.message") == 1
    (message,) = [event for event in seen if event.kind == "agent.message"]
    assert message.data["event"]["content"] == f"you said {text!r}"
    retracted = [event.data["replaced"] for event in seen if event.kind == "stream.retracted"]
    assert retracted == [False, True]
    seqs = [event.data["seq"] for event in seen if "seq" in event.data]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_person_allows_what_the_model_wants_to_do(http: httpx.Client) -> None:
    reply = post(http, "/chats/ann/ask", text="refund 500")
    assert reply["requires_action"]
    assert http.get("/chats/ann").json() == {"status": "requires_action"}
    (request,) = http.get("/chats/ann/requests").json()
    assert request["arguments"] == {"cents": 500}
    seq = post(http, f"/chats/ann/requests/{request['id']}", allowed=True)["seq"]
    said = until(events(http, "ann", str(seq)), "agent.message")[-1]
    assert said.data["event"]["content"] == "500 cents are on their way"
    second = http.post(f"/chats/ann/requests/{request['id']}", json={"allowed": False})
    assert second.status_code == 409


@pytest.mark.slow
def test_a_cancelled_answer_is_not_given(http: httpx.Client) -> None:
    post(http, "/chats/ann/messages", text=" ".join(["word"] * 200))
    stream = events(http, "ann")
    until(stream, "stream.part")
    post(http, "/chats/ann/cancel")
    rest = until(stream, "agent.message")
    assert rest[-1].data["event"]["content"] == "I stop."
    assert "stream.retracted" in [event.kind for event in rest]


@pytest.mark.anyio
async def test_a_question_behind_a_cancellation_is_answered(any_url: str) -> None:
    await affinity.migrate(any_url)
    async with affinity.Client(any_url) as client:
        talk = client.conversation(chats, "ann")
        await talk.send(UserMessage("one"))
        await talk.interrupt(cancel_running=True)
        seq = await talk.send(UserMessage("two"))
        async with affinity.Worker(app, any_url):
            assert (await talk.reply(seq, timeout=PATIENCE)).text == "you said 'two'"
