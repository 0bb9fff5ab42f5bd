"""A turn with two tools, of which one is allowed by a person, with a crash at each commit, as a browser reads it."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from affinity.testing import Env, crash_matrix
from tests.integrations.web.chat_app import app, make
from tests.integrations.web.page import Chunk, Page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("any_url", ["sqlite", "new"], indirect=True),
]


async def read(http: httpx.AsyncClient, body: Chunk) -> Page:
    """The page at the end of a stream. Each text that it has shown on its way is a beginning of the last one."""
    response = await http.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    page, shown = Page(), []
    for event in response.text.split("\n\n"):
        page.read(event)
        shown.append(page.text.rstrip())
    assert page.is_done
    assert [text for text in shown if not page.text.startswith(text)] == []
    return page


async def chat(env: Env) -> dict[str, Any]:
    """Ask, and allow; then load the chat, by both protocols."""
    transport = httpx.ASGITransport(app=make(env.client))
    async with httpx.AsyncClient(transport=transport, base_url="http://chat.test") as http:
        said = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "both 7"}]}
        asked = await read(http, {"id": "ann", "messages": [said]})
        (request,) = [chunk for chunk in asked.other if chunk["type"] == "tool-approval-request"]
        approval = {"id": request["approvalId"], "approved": True}
        part = {"type": "tool-refund", "toolCallId": request["toolCallId"], "state": "approval-responded"}
        answer = {"id": asked.other[0]["messageId"], "role": "assistant", "parts": [{**part, "approval": approval}]}
        answered = await read(http, {"id": "ann", "messages": [said, answer]})
        messages = (await http.get("/api/chat/ann/messages")).json()["messages"]
        again = (await http.get("/api/chat/ann/ag-ui")).text
    return {"asked": asked, "answered": answered, "messages": messages, "again": again}


async def check(env: Env, found: dict[str, Any]) -> None:
    """The stream and the messages agree, and each call has one result."""
    user, assistant = found["messages"]
    calls = [part for part in assistant["parts"] if part["type"].startswith("tool-")]
    assert (user["id"], [call["type"] for call in calls]) == ("m1", ["tool-look", "tool-refund"])
    look, refund = calls
    assert look["output"] == {"order": "7", "status": "on its way"}
    is_known = refund["state"] == "output-available"
    assert is_known or refund["errorText"] == "outcome_unknown"  # its process ended while it ran
    said = "".join(part["text"] for part in assistant["parts"] if part["type"] == "text")
    assert found["asked"].text + found["answered"].text == said
    assert said == ("done 5 cents are on their way" if is_known else "it did not work")
    results = [chunk["toolCallId"] for page in ("asked", "answered") for chunk in found[page].other if is_result(chunk)]
    assert results == [look["toolCallId"], refund["toolCallId"]]
    assert found["again"].count("RUN_FINISHED") == 1


def is_result(chunk: Chunk) -> bool:
    return bool(chunk["type"].startswith("tool-output-"))


async def test_a_browser_sees_each_word_and_each_result_once(any_url: str) -> None:
    url = None if any_url.startswith("sqlite") else any_url
    matrix = await crash_matrix(app, chat, check, url=url, workers=2, kills=3)
    assert matrix.commits >= 8
