"""`affinity.integrations.web` with the real clients: `ai` and `@ag-ui/client` in Node, worker and web processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.node import NodeProgram, install, needs_node, running
from tests.support.web import holder_of, serve
from tests.support.worker_processes import Workers, open_workers

APP = "tests.integrations.web.chat_app:app"
SERVICE = "tests.integrations.web.chat_app:serve"
WORDS = " ".join(f"w{number}" for number in range(100))  # three seconds
WHOLE = f"you said {WORDS}"

pytestmark = [pytest.mark.slow, needs_node]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs in Node, and their packages."""
    return install(Path(__file__).parent / "clients", tmp_path_factory.mktemp("web_clients"))


BOTH = pytest.mark.parametrize("url", ["sqlite", "new"], indirect=True)
"""Of a test in which a worker is killed. What the clients make of a stream does not depend on the database."""


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database: an SQLite file by default."""
    is_postgres = getattr(request, "param", "sqlite") == "new"
    found: str = request.getfixturevalue("postgres_kept" if is_postgres else "sqlite_url")
    return found


@pytest.fixture
def workers(url: str) -> Iterator[Workers]:
    """Two workers on a fresh database."""
    with open_workers(url) as found:
        for name in ("one", "two"):
            found.start(name, APP)
        yield found


@pytest.fixture
def http(workers: Workers) -> Iterator[httpx.Client]:
    """A client of the service, which runs in a process of its own."""
    with serve(SERVICE, workers.url, "/api/chat/none/messages") as found:
        yield found


@pytest.fixture
def other(workers: Workers) -> Iterator[httpx.Client]:
    """A client of another process of the service."""
    with serve(SERVICE, workers.url, "/api/chat/none/messages") as found:
        yield found


@pytest.fixture
def ai(packages: Path) -> Iterator[NodeProgram]:
    """The chat of the AI SDK."""
    with running(packages, "ai_chat.mjs") as program:
        yield program


@pytest.fixture
def agent(packages: Path) -> Iterator[NodeProgram]:
    """The agent of AG-UI."""
    with running(packages, "ag_ui_agent.mjs") as program:
        yield program


def api(http: httpx.Client) -> str:
    return str(http.base_url).rstrip("/") + "/api/chat"


def stored(http: httpx.Client, chat: str) -> Any:
    return http.get(f"/api/chat/{chat}/messages").raise_for_status().json()["messages"]


def last(report: Any) -> Any:
    return report["messages"][-1]


def text(message: Any) -> str:
    return "".join([part["text"] for part in message["parts"] if part["type"] == "text"])


def parts(message: Any) -> list[Any]:
    """The parts without those that only divide, and without data of the client's own."""
    kept = ("type", "text", "toolCallId", "state", "input", "output", "errorText", "data")
    return [
        {key: part[key] for key in kept if key in part} for part in message["parts"] if part["type"] != "step-start"
    ]


def tool_part(message: Any, place: int = 0) -> Any:
    return [part for part in message["parts"] if part["type"].startswith("tool-")][place]


def assert_no_word_twice(seen: list[str], whole: str = WHOLE) -> None:
    """Each text that a page has shown is a beginning of the answer."""
    assert len(seen) > 5
    assert [shown for shown in seen if not whole.startswith(shown.rstrip())] == []


# -- the AI SDK


def test_a_chat_has_texts_reasoning_tools_data_and_the_same_messages_when_it_is_loaded(
    http: httpx.Client, ai: NodeProgram
) -> None:
    ai("open", api=api(http), id="ann")
    report = ai("send", text="hello there")
    assert (report["status"], report["error"]) == ("ready", None)
    assert text(last(report)) == "you said hello there"
    assert last(report)["metadata"]["usage"] == {"input_tokens": 3, "output_tokens": 4}
    thought = last(ai("send", text="think"))
    kinds = [part["type"] for part in thought["parts"]]
    assert kinds == ["step-start", "reasoning", "text"]
    looked = last(ai("send", text="look 7"))
    assert tool_part(looked)["output"] == {"order": "7", "status": "on its way"}
    assert text(looked).startswith("done ")
    spoilt = last(ai("send", text="spoil"))
    assert tool_part(spoilt)["errorText"] == "tool_execution_exception"
    mumbled = last(ai("send", text="mumble"))
    assert tool_part(mumbled)["state"] == "output-error"
    report = ai("send", text="rate")
    assert {"type": "data-rating.given", "data": {"stars": 5}} in parts(last(report))
    loaded = stored(http, "ann")
    assert [message["id"] for message in loaded] == [message["id"] for message in report["messages"]]
    assert [parts(message) for message in loaded if message["role"] == "assistant"] == [
        parts(message) for message in report["messages"] if message["role"] == "assistant"
    ]


def test_approvals_of_one_message_are_answered_together(http: httpx.Client, ai: NodeProgram) -> None:
    ai("open", api=api(http), id="ann")
    asked = last(ai("send", text="refund 500 700"))
    first, second = (tool_part(asked, place) for place in (0, 1))
    assert [part["state"] for part in (first, second)] == ["approval-requested"] * 2
    assert first["approval"]["requestReason"] == "pay 500 cents back"
    ai("approve", id=first["approval"]["id"], approved=True)
    report = ai("approve", id=second["approval"]["id"], approved=False, reason="too much")
    assert report["error"] is None
    answered = last(report)
    assert answered["id"] == asked["id"]
    assert tool_part(answered, 0)["output"] == "500 cents are on their way"
    assert tool_part(answered, 1)["state"] == "output-denied"
    assert len(report["messages"]) == 2
    assert text(stored(http, "ann")[-1]) == text(answered)
    assert [part["state"] for part in stored(http, "ann")[-1]["parts"] if part["type"].startswith("tool-")] == [
        "output-available",
        "output-denied",
    ]


def test_a_tool_that_the_browser_runs_gives_its_result(http: httpx.Client, ai: NodeProgram) -> None:
    ai("open", api=api(http), id="ann")
    report = ai("send", text="position")
    assert "position" in report["calls"]
    call = tool_part(last(report))
    assert call["state"] == "input-available"
    answered = ai("output", tool="position", toolCallId=call["toolCallId"], output={"city": "Oslo"})
    assert answered["error"] is None
    assert "Oslo" in text(last(answered))
    assert answered["messages"][-1]["id"] == report["messages"][-1]["id"]


def test_a_failed_answer_is_an_error_and_may_be_tried_again(http: httpx.Client, ai: NodeProgram) -> None:
    ai("open", api=api(http), id="ann")
    for report in (ai("send", text="fail"), ai("regenerate")):
        assert (report["status"], report["error"]) == ("error", "the answer has failed")
        assert [text(message) for message in report["messages"] if message["role"] == "assistant"] in ([], [""])
    answered = ai("send", text="hello")
    assert text(last(answered)) == "you said hello"
    assert ai("regenerate")["error"] is not None  # a journal keeps what was said


@BOTH
def test_a_killed_worker_takes_back_what_it_streamed(http: httpx.Client, workers: Workers, ai: NodeProgram) -> None:
    ai("open", api=api(http), id="ann")
    ai("begin", text=WORDS)
    ai("until", text="w9 ")
    holder_of(workers, "ann").send(signal.SIGKILL)
    report = ai("settled")
    assert (report["status"], text(last(report))) == ("ready", WHOLE)
    assert "" in report["seen"][3:]  # the chunk reset-step
    assert_no_word_twice(report["seen"])


@BOTH
def test_a_page_that_is_loaded_again_goes_on_from_another_process(
    http: httpx.Client, other: httpx.Client, workers: Workers, ai: NodeProgram
) -> None:
    """While its message is streamed, and the worker is killed."""
    ai("open", api=api(http), id="ann")
    ai("cut", after=20)
    ai("begin", text=WORDS)
    assert ai("settled")["status"] == "error"
    holder_of(workers, "ann").send(signal.SIGKILL)
    ai("cut")
    ai("open", api=api(other), id="ann", messages=stored(other, "ann"))
    report = ai("resume")
    assert (report["status"], text(last(report)), len(report["messages"])) == ("ready", WHOLE, 2)
    assert_no_word_twice(report["seen"])
    assert ai("resume")["messages"] == report["messages"]  # 204: nothing is under way


def test_a_stream_goes_on_at_its_place_however_often_it_is_cut(
    http: httpx.Client, other: httpx.Client, ai: NodeProgram
) -> None:
    """Behind each of its events once, in turn by two processes; each event comes once."""
    ai("open", api=api(http), id="bob")
    whole = last(ai("send", text="look 7"))
    ai("open", api=api(http), id="ann", replay=False)
    ai("cut", after=1)
    ai("begin", text="look 7")
    report = ai("settled")
    for number in range(200):
        if report["status"] == "ready":
            break
        ai("point", api=api((http, other)[number % 2]))
        ai("cut", after=1)
        report = ai("resume")
    assert [{**part, "toolCallId": ""} for part in parts(last(report))] == [
        {**part, "toolCallId": ""} for part in parts(whole)
    ]
    assert len(report["messages"]) == 2


def test_an_answer_that_is_under_way_is_given_from_the_beginning_of_its_message(
    http: httpx.Client, workers: Workers, ai: NodeProgram
) -> None:
    ai("open", api=api(http), id="ann")
    asked = last(ai("send", text="refund 500"))
    ai("cut", after=3)
    assert ai("approve", id=tool_part(asked)["approval"]["id"], approved=True)["status"] == "error"
    ai("cut")
    ai("open", api=api(http), id="ann", messages=stored(http, "ann"))
    report = ai("resume")
    message = last(report)
    assert report["error"] is None
    assert message["id"] == asked["id"]
    assert tool_part(message)["state"] == "output-available"
    assert text(message) == "Let me see.done 500 cents are on their way"


# -- AG-UI


def said(report: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in report["messages"]]


def test_runs_of_ag_ui_have_texts_reasoning_tools_and_a_state(http: httpx.Client, agent: NodeProgram) -> None:
    agent("open", base=api(http), thread="ann")
    report = agent("send", id="m1", text="hello there")
    assert report["error"] is None
    assert said(report) == [("user", "hello there"), ("assistant", "you said hello there")]
    assert report["state"] == {"messages": 1}
    for number, message in enumerate(("think", "look 7", "spoil", "rate"), 2):
        report = agent("send", id=f"m{number}", text=message)
        assert report["error"] is None
    assert ("reasoning", "hm ") in said(report)
    assert ("tool", '{"order":"7","status":"on its way"}') in said(report)
    (call,) = [m["toolCalls"][0] for m in report["messages"] if m.get("toolCalls") and "look" in str(m)]
    assert call["function"] == {"name": "look", "arguments": '{"order": "7"}'}
    assert "CUSTOM" in report["states"]
    agent("open", base=api(http), thread="ann")
    loaded = agent("connect")
    assert (loaded["error"], said(loaded)) == (None, said(report))
    assert [m["id"] for m in loaded["messages"]] == [m["id"] for m in report["messages"]]


def test_interrupts_of_ag_ui_are_requests(http: httpx.Client, agent: NodeProgram) -> None:
    agent("open", base=api(http), thread="ann")
    report = agent("send", id="m1", text="refund 500 700")
    first, second = report["interrupts"]
    assert (first["reason"], first["message"]) == ("agent.tool_confirmation", "pay 500 cents back")
    entries = [
        {"interruptId": first["id"], "status": "resolved", "payload": {"allowed": True}},
        {"interruptId": second["id"], "status": "cancelled"},
    ]
    report = agent("resume", entries=entries)
    assert (report["error"], report["interrupts"]) == (None, [])
    results = [content for role, content in said(report) if role == "tool"]
    assert results == ["500 cents are on their way", "refused"]
    report = agent("send", id="m2", text="position")
    (asked,) = report["interrupts"]
    payload = {"city": "Oslo"}
    report = agent("resume", entries=[{"interruptId": asked["id"], "status": "resolved", "payload": payload}])
    assert report["error"] is None
    assert "Oslo" in said(report)[-1][1]


@BOTH
def test_a_snapshot_takes_back_what_a_killed_worker_streamed(
    http: httpx.Client, workers: Workers, agent: NodeProgram
) -> None:
    agent("open", base=api(http), thread="ann")
    agent("send", id="m1", text="hello")
    agent("begin", id="m2", text=WORDS)
    agent("until", text="w9 ")
    holder_of(workers, "ann").send(signal.SIGKILL)
    report = agent("ended")
    assert report["error"] is None
    assert said(report)[2:] == [("user", WORDS), ("assistant", WHOLE)]
    assert "MESSAGES_SNAPSHOT" in report["states"]
    assert_no_word_twice([shown.partition("|")[2] for shown in report["seen"]])


@pytest.mark.parametrize("way", ["again", "connect"])
def test_a_run_that_was_cut_off_goes_on_from_another_process(
    http: httpx.Client, other: httpx.Client, workers: Workers, agent: NodeProgram, way: str
) -> None:
    """By the same messages, or by a page that was loaded again; while the worker is killed."""
    agent("open", base=api(http), thread="ann")
    agent("cut", after=20)
    agent("begin", id="m1", text=WORDS)
    report = agent("ended")
    assert report["error"] is not None
    holder_of(workers, "ann").send(signal.SIGKILL)
    agent("cut")
    agent("open", base=api(other), thread="ann", messages=report["messages"] if way == "again" else [])
    report = agent(way)
    assert report["error"] is None
    assert said(report) == [("user", WORDS), ("assistant", WHOLE)]
    assert_no_word_twice(report["seen"])
