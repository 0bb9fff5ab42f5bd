"""`affinity.integrations.web` over HTTP: streams and their places, access, and requests that are refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request

from affinity import Client, Worker
from affinity.conversation import UserMessage
from affinity.errors import InvalidInput, InvalidOptions, UnknownConversation
from affinity.integrations.web import MAY_ALL, MAY_CHAT, MAY_READ, ChatAccess, create_chat
from affinity.integrations.web.turns import Place, read_place
from affinity.limits import MAX_REQUEST_BYTES
from tests.integrations.web.chat_app import SECRET, app, chats, make, others
from tests.integrations.web.page import Chunk, Page
from tests.support.web import holder_of, serve
from tests.support.worker_processes import PATIENCE, open_workers

APP = "tests.integrations.web.chat_app:app"
SERVICE = "tests.integrations.web.chat_app:serve"
WORDS = " ".join(f"w{number}" for number in range(60))

pytestmark = pytest.mark.anyio


def events_of(response: httpx.Response) -> Iterator[str]:
    """The events of a stream, each when it is whole."""
    rest = ""
    for text in response.iter_text():
        *events, rest = (rest + text).split("\n\n")
        yield from events


def message(text: str, id: str = "m1") -> Chunk:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def body(text: str, id: str = "m1", chat: str = "ann") -> Chunk:
    return {"id": chat, "messages": [message(text, id)]}


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    """Of a database with a worker."""
    async with Worker(app, url), Client(url) as found:
        yield found


@asynccontextmanager
async def opened(api: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://chat.test", timeout=PATIENCE) as http:
        yield http


@pytest.fixture
async def http(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    async with opened(make(client)) as found:
        yield found


async def page_of(http: httpx.AsyncClient, text: str, id: str = "m1", chat: str = "ann", **headers: str) -> Page:
    """What the stream of a message shows at its end."""
    response = await http.post("/api/chat", json=body(text, id, chat), headers=headers)
    assert response.status_code == 200, response.text
    return whole_page(response)


def whole_page(response: httpx.Response) -> Page:
    page = Page()
    for event in response.text.split("\n\n"):
        page.read(event)
    assert page.is_done
    return page


async def test_a_message_that_is_sent_again_is_one_message(http: httpx.AsyncClient) -> None:
    response = await http.post("/api/chat", json=body("hello"))
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert response.headers["content-type"].startswith("text/event-stream")
    again = await page_of(http, "hello")
    assert (whole_page(response).text, again.text) == ("you said hello", "you said hello")
    assert len((await http.get("/api/chat/ann/messages")).json()["messages"]) == 2
    refused = await http.post("/api/chat", json=body("another text"))
    assert (refused.status_code, "error" in refused.json()) == (409, True)


async def test_fastapi_and_mounts_have_the_same_routes(client: Client) -> None:
    chat = create_chat(chats, lambda request: client, access=lambda request: ChatAccess(MAY_CHAT))
    outer = Starlette()
    outer.mount("/shop", Starlette(routes=chat.routes("/chat")))
    for number, (api, path) in enumerate(((FastAPI(routes=chat.routes("/chat")), "/chat"), (outer, "/shop/chat"))):
        async with opened(api) as http:
            response = await http.post(path, json=body("hello", chat=f"c/{number}"))
            assert whole_page(response).text == "you said hello"
            assert (await http.get(f"{path}/c%2F{number}/messages")).status_code == 200


async def test_a_url_is_opened_with_the_first_request_and_closed_with_the_application(client: Client, url: str) -> None:
    chat = create_chat(chats, url, access=lambda request: ChatAccess(MAY_CHAT))
    api = Starlette(routes=chat.routes("/api/chat"))
    async with chat.lifespan(api), opened(api) as http:
        assert (await page_of(http, "hello")).text == "you said hello"
    await chat.aclose()


async def test_blocks_of_a_user_are_content(http: httpx.AsyncClient, client: Client) -> None:
    parts = [
        {"type": "text", "text": "see "},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
        {
            "type": "file",
            "mediaType": "application/pdf",
            "url": "data:application/pdf;base64,AAAA",
            "filename": "a.pdf",
        },
    ]
    sent = {"id": "ann", "messages": [{"id": "m1", "role": "user", "parts": parts}]}
    assert whole_page(await http.post("/api/chat", json=sent)).text.rstrip() == "you said see"
    (entry,) = await client.conversation(chats, "ann").history(kinds=[UserMessage])
    assert isinstance(entry.event, UserMessage)
    assert [block["type"] for block in entry.event.content if isinstance(block, dict)] == ["text", "image_url", "file"]
    (shown, _) = (await http.get("/api/chat/ann/messages")).json()["messages"]
    assert [part["type"] for part in shown["parts"]] == ["text", "file", "file"]
    assert shown["parts"][1]["mediaType"] == "image/png"


async def test_earlier_messages_come_in_pages_of_whole_turns(http: httpx.AsyncClient) -> None:
    for number, text in enumerate(("hello", "look 7", "think", "bye")):
        await page_of(http, text, f"m{number}")
    whole = (await http.get("/api/chat/ann/messages")).json()
    assert (len(whole["messages"]), whole["next"]) == (8, None)
    found: list[Chunk] = []
    query = "limit=20"
    for _ in range(10):
        page = (await http.get(f"/api/chat/ann/messages?{query}")).json()
        assert len(page["messages"]) in {2, 4}
        found = page["messages"] + found
        if page["next"] is None:
            break
        query = f"limit=20&before={page['next']}"
    assert found == whole["messages"]


async def test_errors_of_the_code_stay_on_the_server_unless_they_are_wanted(client: Client) -> None:
    for number, show in enumerate((False, True)):
        async with opened(make(client, show_errors=show)) as http:
            failed = await page_of(http, "fail", chat=f"f{number}")
            assert (failed.text, failed.types[-1]) == ("", "error")
            spoilt = await page_of(http, "spoil", chat=f"s{number}")
            shown = [json.dumps(chunk) for page in (failed, spoilt) for chunk in page.other]
            assert [SECRET in chunk for chunk in shown if "rror" in chunk] == [show] * 2
            run = {"threadId": f"f{number}", "runId": "r", "messages": []}
            events = (await http.post("/api/chat/ag-ui", json=run)).text
            assert (SECRET in events, "RUN_ERROR" in events) == (show, True)


async def test_a_chat_that_has_ended_ends_its_streams(client: Client, http: httpx.AsyncClient) -> None:
    await page_of(http, "refund 5")
    talk = client.conversation(chats, "ann")
    async with anyio.create_task_group() as tasks:
        pages: list[Page] = []

        async def read() -> None:
            pages.append(await page_of(http, WORDS, "m2"))

        tasks.start_soon(read)
        async with talk.events(follow=True) as feed:
            async for item in feed:
                if item.kind == "stream.part":
                    break
        await talk.terminate()
    assert pages[0].other[-1] == {"type": "abort", "reason": "the conversation has ended"}
    assert (await http.post("/api/chat", json=body("more", "m3"))).status_code == 409
    run = await http.post("/api/chat/ag-ui", json={"threadId": "ann", "runId": "r", "messages": []})
    assert '"outcome":{"type":"cancelled"}' in run.text


async def test_an_answer_is_stopped(http: httpx.AsyncClient, client: Client) -> None:
    async with anyio.create_task_group() as tasks:
        pages: list[Page] = []

        async def read() -> None:
            pages.append(await page_of(http, WORDS))

        tasks.start_soon(read)
        async with client.conversation(chats, "ann").events(follow=True) as feed:
            async for item in feed:
                if item.kind == "stream.part":
                    break
        assert (await http.delete("/api/chat/ann/stream")).status_code == 202
    assert pages[0].text == "I stop."


async def test_the_journal_comes_as_server_sent_events(client: Client, http: httpx.AsyncClient) -> None:
    await page_of(http, "hello")
    await client.conversation(chats, "ann").terminate()
    response = await http.get("/api/chat/ann/events")
    kinds = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert kinds[0] == "user.message"
    assert kinds[-1] == "end"
    assert "agent.message" in kinds
    last = [line.removeprefix("id: ") for line in response.text.splitlines() if line.startswith("id: ")][-1]
    again = await http.get("/api/chat/ann/events", headers={"Last-Event-ID": last})
    assert again.text == f"id: {last}\nevent: end\ndata: null\n\n"


async def test_a_browser_that_goes_away_is_no_error_and_is_answered_all_the_same(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The application returns as soon as the browser has gone: in a stream, or before its body is there."""
    api, talk = make(client), client.conversation(chats, "ann")
    path = {"path": "/api/chat", "raw_path": b"/api/chat", "query_string": b"", "root_path": ""}
    headers = [(b"content-type", b"application/json"), (b"host", b"chat.test")]
    scope = {"type": "http", "method": "POST", "http_version": "1.1", "scheme": "http", "headers": headers, **path}
    has_begun, bodies = anyio.Event(), list[bytes]()
    received = [{"type": "http.request", "body": json.dumps(body(WORDS)).encode(), "more_body": False}]

    async def receive() -> Chunk:
        if received:
            return received.pop()
        await has_begun.wait()
        return {"type": "http.disconnect"}

    async def send(sent: Any) -> None:
        bodies.append(sent.get("body", b""))
        if b"text-delta" in bodies[-1]:
            has_begun.set()

    with anyio.fail_after(PATIENCE):
        await api({**scope, "asgi": {"version": "3.0", "spec_version": "2.3"}}, receive, send)
        assert b"[DONE]" not in b"".join(bodies)
        await api({**scope, "asgi": {"version": "3.0"}}, receive, send)  # no body comes
        (entry,) = await talk.history(kinds=[UserMessage])
        assert (await talk.reply(entry.seq)).text == f"you said {WORDS}"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_stream_without_news_is_kept_alive(client: Client) -> None:
    async with opened(make(client, heartbeat=0.02)) as http:
        for response in (
            await http.post("/api/chat", json=body("think")),
            await http.post(
                "/api/chat/ag-ui",
                json={"threadId": "bob", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "think"}]},
            ),
        ):
            assert ": keep-alive\n\n" in response.text
        assert whole_page(await http.post("/api/chat", json=body("think"))).text == "42"
        await client.conversation(chats, "ann").terminate()
        assert "event: end" in (await http.get("/api/chat/ann/events")).text


# -- access


async def test_a_user_sees_the_conversations_of_the_own_name_alone(http: httpx.AsyncClient, client: Client) -> None:
    ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
    assert (await page_of(http, "refund 5", chat="c1", **ann)).text == "Let me see."
    assert (await client.get_conversation("c1")).owner == "ann"
    (request,) = await client.conversation(chats, "c1").requests()
    part = {"type": "tool-refund", "state": "approval-responded", "toolCallId": "c"}
    answer = {
        "id": "a",
        "role": "assistant",
        "parts": [{**part, "approval": {"id": request.request_id, "approved": True}}],
    }
    resume = [{"interruptId": request.request_id, "status": "cancelled"}]
    calls: list[Callable[[], Any]] = [
        lambda: http.post("/api/chat", json=body("mine", "m2", "c1"), headers=bob),
        lambda: http.post("/api/chat", json={"id": "c1", "messages": [answer]}, headers=bob),
        lambda: http.get("/api/chat/c1/messages", headers=bob),
        lambda: http.get("/api/chat/c1/stream", headers=bob),
        lambda: http.delete("/api/chat/c1/stream", headers=bob),
        lambda: http.get("/api/chat/c1/ag-ui", headers=bob),
        lambda: http.post("/api/chat/ag-ui", json={"threadId": "c1", "runId": "r", "resume": resume}, headers=bob),
    ]
    for call in calls:
        assert (await call()).status_code == 404
    assert len(await client.conversation(chats, "c1").requests()) == 1
    assert (await http.get("/api/chat/c1/messages", headers=ann)).status_code == 200


async def test_what_a_user_may_not_is_refused(http: httpx.AsyncClient) -> None:
    await page_of(http, "hello")
    reader = {"x-user": "reader"}
    assert (await http.get("/api/chat/ann/messages", headers=reader)).status_code == 200
    for response in (
        await http.post("/api/chat", json=body("hello", "m2"), headers=reader),
        await http.delete("/api/chat/ann/stream", headers=reader),
        await http.get("/api/chat/ann/events", headers=reader),
        await http.post(
            "/api/chat/ag-ui",
            json={"threadId": "ann", "runId": "r", "resume": [{"interruptId": "x", "status": "cancelled"}]},
            headers=reader,
        ),
    ):
        assert (response.status_code, response.json()) == (403, {"error": "you may not do this"})
    broken = await http.get("/api/chat/ann/messages", headers={"x-user": "broken"})
    assert broken.status_code == 500
    assert SECRET not in broken.text
    nobody = await http.get("/api/chat/ann/messages", headers={"x-user": "nobody"})
    assert (nobody.status_code, nobody.json()) == (401, {"error": "log in"})
    assert nobody.headers["www-authenticate"] == "Basic"


async def test_a_message_that_is_refused_begins_no_conversation(http: httpx.AsyncClient, client: Client) -> None:
    ann = {"x-user": "ann"}
    wrong = {"id": "m", "role": "user", "parts": [{"type": "source-url"}]}
    assert (await http.post("/api/chat", json={"id": "c1", "messages": [wrong]}, headers=ann)).status_code == 422
    run = {"threadId": "c1", "runId": "r", "messages": [{"id": "m", "role": "user", "content": ""}]}
    assert (await http.post("/api/chat/ag-ui", json=run, headers=ann)).status_code == 422
    with pytest.raises(UnknownConversation):
        await client.get_conversation("c1")


def test_actions_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidOptions, match="no such action"):
        ChatAccess({"write"})  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match="takes a set"):
        ChatAccess("read")  # type: ignore[arg-type]
    assert not ChatAccess({"converse"}).may("converse")
    assert MAY_READ < MAY_CHAT < MAY_ALL


# -- requests that are refused


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"id": 5, "messages": []}', 422),
        (b'{"id": "a", "messages": []}', 422),
        (b'{"id": "a", "messages": [5]}', 422),
        (b'{"id": "a", "messages": [{"role": "judge"}]}', 422),
        (b'{"id": "a", "messages": [{"id": "m", "role": "user", "parts": []}]}', 422),
        (b'{"id": "a", "messages": [{"role": "user", "parts": [{"type": "text", "text": "no id"}]}]}', 422),
        (b'{"id": "a", "messages": [{"id": "m", "role": "user", "parts": [{"type": "source-url"}]}]}', 422),
        (b'{"id": "a", "messages": [{"id": "m", "role": "assistant", "parts": []}]}', 422),
        (b'{"id": "", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}]}', 422),
    ],
)
async def test_a_body_that_is_no_message_is_refused(http: httpx.AsyncClient, content: bytes, status: int) -> None:
    response = await http.post("/api/chat", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, [*response.json()]) == (status, ["error"])


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"threadId": "a", "runId": "r", "messages": [{"id": "m", "role": "user", "content": ""}]},
        {"threadId": "a", "runId": "r", "messages": [{"id": "m", "role": "user", "content": [{"type": "video"}]}]},
        {"threadId": "ann", "runId": "r", "messages": [{"id": "m", "role": "tool", "content": "x"}]},
        {"threadId": "ann", "runId": "r", "resume": [{"interruptId": "x", "status": "resolved", "payload": 5}]},
        {"threadId": "ann", "runId": "r", "resume": [{"interruptId": "x", "status": "perhaps"}]},
    ],
)
async def test_a_run_that_is_none_is_refused(http: httpx.AsyncClient, run: Chunk) -> None:
    await page_of(http, "hello")
    response = await http.post("/api/chat/ag-ui", json=run)
    assert (response.status_code, [*response.json()]) == (422, ["error"])


async def test_answers_that_nothing_waits_for_are_refused(http: httpx.AsyncClient) -> None:
    await page_of(http, "hello")
    part = {
        "type": "tool-x",
        "state": "approval-responded",
        "toolCallId": "c",
        "approval": {"id": "x", "approved": True},
    }
    posted = {"id": "ann", "messages": [{"id": "a", "role": "assistant", "parts": [part]}]}
    assert (await http.post("/api/chat", json=posted)).status_code == 409
    assert (await http.post("/api/chat", json={**posted, "id": "none"})).status_code == 404
    for name in ("x", "\ud800"):
        resume = [{"interruptId": name, "status": "cancelled"}]
        run = {"threadId": "ann", "runId": "r", "resume": resume}
        content, json_type = json.dumps(run), {"content-type": "application/json"}
        assert (await http.post("/api/chat/ag-ui", content=content, headers=json_type)).status_code == 409
    again = {**body("hello"), "trigger": "regenerate-message"}
    assert (await http.post("/api/chat", json=again)).status_code == 409


async def test_what_is_too_large_or_of_another_kind_is_refused(http: httpx.AsyncClient, client: Client) -> None:
    json_type = {"content-type": "application/json"}
    large = b'"' + b"x" * MAX_REQUEST_BYTES + b'"'
    assert (await http.post("/api/chat", content=large, headers=json_type)).status_code == 413
    event = "x" * (MAX_REQUEST_BYTES // 2)
    assert (await http.post("/api/chat", json=body(event))).status_code == 413
    assert (await http.post("/api/chat", content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
    await client.conversation(others, "other").ask(UserMessage("hello"), timeout=PATIENCE)
    assert (await http.get("/api/chat/other/messages")).status_code == 404
    assert (await http.post("/api/chat", json=body("hello", chat="other"))).status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 405),
        ("PUT", "/ann/stream", 405),
        ("POST", "/ann/messages", 405),
        ("GET", "/none/messages", 404),
        ("GET", "/none/stream", 404),
        ("GET", "/none/ag-ui", 404),
        ("GET", "/none/events", 404),
        ("DELETE", "/none/stream", 404),
        ("GET", f"/{'x' * 300}/messages", 422),
        ("GET", "/ann/messages?before=x", 422),
        ("GET", f"/ann/messages?before={'9' * 19}", 422),
        ("GET", "/ann/messages?limit=0", 422),
        ("GET", "/ann/messages?limit=1001", 422),
        ("GET", "/ann/stream", 204),
        ("GET", "/ann/stream?after=x", 422),
        ("GET", "/ann/stream?after=1~1--~0~x", 422),
        ("GET", "/ann/stream?after=99~1--~0~0", 410),
        ("GET", "/ann/stream?after=4~1--~0~0", 410),
        ("GET", f"/ann/stream?after={'9' * 19}~1--~0~0", 422),
        ("GET", "/ann/stream?after=1~1--~0~999", 410),
        ("GET", "/ann/stream?after=1~1--~0~1@ff-x", 410),
        ("GET", "/ann/events?after=x", 422),
    ],
)
async def test_each_refusal_has_its_status(http: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    await page_of(http, "hello")
    response = await http.request(method, f"/api/chat{path}")
    assert response.status_code == status, response.text
    assert status == 204 or [*response.json()] == ["error"]
    assert status != 405 or response.headers["allow"]


async def test_a_reader_of_the_journal_whose_place_is_gone_begins_again(http: httpx.AsyncClient) -> None:
    """An `EventSource` that is refused does not connect again."""
    await page_of(http, "hello")
    response = await http.get("/api/chat/ann/events?after=999")
    assert (response.status_code, response.text) == (200, "id: 0\nevent: reset\ndata: null\n\n")


def test_a_place_is_read_as_it_was_written() -> None:
    place = Place(inputs=(3, 17), state="1pt", skip=2, position="17@a-b.1025.3.wäke ~1")
    assert str(place).isascii()
    assert read_place(str(place)) == place
    for text in ("", "1", "1~1--~0", "1~3--~0~0", "a~1--~0~0", "1~1--~0~a\nb", ",".join(["1"] * 101) + "~1--~0~0"):
        with pytest.raises(InvalidInput):
            read_place(text)


def test_a_missing_library_is_one_clear_sentence() -> None:
    code = "import sys; sys.modules['starlette'] = None\nimport affinity.integrations.web"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert "needs Starlette: pip install 'affinity-workflows[web]'" in done.stderr


def test_a_heartbeat_is_positive() -> None:
    def anyone(request: Request) -> ChatAccess:
        return ChatAccess(MAY_CHAT)

    with pytest.raises(InvalidOptions, match="heartbeat"):
        create_chat(chats, "sqlite:///none.db", access=anyone, heartbeat=0)


# -- processes


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_service_cost_no_word_and_repeat_none(url: str) -> None:
    """A page reads a stream; its worker is killed, then the process of the service; another one goes on."""
    page = Page()
    with open_workers(url) as workers:
        for name in ("one", "two"):
            workers.start(name, APP)
        with serve(SERVICE, url, "/api/chat/none/messages") as second:
            with serve(SERVICE, url, "/api/chat/none/messages") as first:
                with first.stream("POST", "/api/chat", json=body(WORDS)) as response:
                    for event in events_of(response):
                        page.read(event)
                        if "w9" in page.text.split():
                            break
                holder_of(workers, "ann").send(signal.SIGKILL)
            assert f"you said {WORDS}".startswith(page.text.rstrip())
            assert page.place is not None
            shown = [page.text]
            headers = {"Last-Event-ID": page.place}
            with second.stream("GET", "/api/chat/ann/stream", headers=headers) as response:
                assert response.status_code == 200
                for event in events_of(response):
                    page.read(event)
                    shown.append(page.text)
    assert page.is_done
    assert page.text == f"you said {WORDS}"
    assert [text for text in shown if not f"you said {WORDS}".startswith(text.rstrip())] == []
    assert "" in shown
    assert page.types.count("start") == page.types.count("finish") == 1
