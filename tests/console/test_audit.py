"""The audit log of the console: each form that was sent leaves its entry, with the user of `access`."""

from __future__ import annotations

import re
from typing import Final

import httpx2 as httpx
import pytest

from affinity import Client
from affinity.audit import AuditEntry
from affinity.console import READ, Access
from affinity.console.actions import verbs
from affinity.console.requests import COOKIE, token_of
from tests.console.conftest import ORIGIN, Open, answer_form, fill, token
from tests.support.console_app import stays
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

DONE: Final[list[tuple[str, dict[str, str], str, str]]] = [
    ("resume", {"instance": "suspended"}, "resume", "suspended"),
    ("resume-matching", {"prefix": "suspended", "count": "1", "confirm": "1"}, "resume", "suspended"),
    ("start", {"name": "stays", "input": '"plain"', "id": "begun"}, "start", "begun"),
    ("rerun", {"instance": "shown", "id": "shown-2"}, "rerun", "shown"),
    ("rerun-matching", {"prefix": "spoilt", "count": "1", "confirm": "1"}, "rerun", "spoilt"),
    ("raise", {"instance": "stays", "name": "other", "data": '"tea"'}, "raise", "stays"),
    ("reset", {"instance": "spoilt", "confirm": "spoilt", "event": "2"}, "reset", "spoilt"),
    ("move", {"session": "s", "to": "one"}, "move", "s"),
    ("release", {"session": "s"}, "release", "s"),
    ("delete-record", {"session": "s", "confirm": "s"}, "delete", "s"),
    ("rebalance", {"what": "suspend"}, "suspend rebalancing", ""),
    ("drain", {"worker": "one", "confirm": "one"}, "drain", "one"),
    ("end-drain", {"worker": "one"}, "end drain", "one"),
    ("send", {"conversation": "talk", "text": "hello"}, "send", "talk"),
    ("ask", {"conversation": "talk", "text": "hello?"}, "ask", "talk"),
    ("fork", {"conversation": "talk", "new": "fork", "at": "1"}, "fork", "talk"),
    ("interrupt", {"conversation": "talk", "reason": "stop"}, "interrupt", "talk"),
    ("try-again", {"conversation": "talk"}, "resume", "talk"),
    ("terminate", {"conversation": "fork", "confirm": "fork"}, "terminate", "fork"),
    ("pause-schedule", {"schedule": "nightly", "reason": "later"}, "pause", "nightly"),
    ("resume-schedule", {"schedule": "nightly"}, "resume", "nightly"),
    ("trigger-schedule", {"schedule": "nightly", "confirm": "nightly"}, "trigger", "nightly"),
    ("set-limit", {"limit": "limit", "concurrency": "7"}, "set", "limit"),
    ("pause-limit", {"limit": "limit", "key": "key"}, "pause", "limit"),
    ("resume-limit", {"limit": "limit", "ramp": "10/s"}, "resume", "limit"),
    ("reset-limit", {"limit": "limit"}, "reset", "limit"),
    ("cancel", {"instance": "stays", "confirm": "stays", "reason": "enough"}, "cancel", "stays"),
    ("cancel-matching", {"prefix": "late", "count": "1", "confirm": "1"}, "cancel", "late"),
    ("delete", {"instance": "shown", "confirm": "shown"}, "delete", "shown"),
]
"""Forms, and the entry that each leaves: action and target. "answer" comes before them."""

REFUSED: Final[list[tuple[str, dict[str, str], int, str, str]]] = [
    ("resume", {"instance": "talk"}, 409, "resume", "InstanceNotSuspended"),
    ("resume", {"instance": "absent"}, 404, "resume", "UnknownInstance"),
    ("release", {"session": "absent"}, 409, "release", "not_held"),
    ("move", {"session": "absent", "to": "one"}, 409, "move", "not_held"),
    ("drain", {"worker": "absent", "confirm": "absent"}, 404, "drain", "UnknownWorker"),
    ("send", {"conversation": "absent", "text": "hello"}, 404, "send", "UnknownConversation"),
    ("cancel-matching", {"count": "0", "confirm": "0"}, 409, "cancel-matching", "Refused"),
]
"""Forms that change nothing, the status of the answer, and the entry that each leaves: action and outcome."""


async def entries(client: Client) -> list[AuditEntry]:
    return [each async for each in client.audit()]


async def test_each_form_leaves_one_entry(client: Client, open_console: Open) -> None:
    """Of the action that took effect, and of the one that was refused; none where the form itself is wrong."""
    await fill(client, "plain")
    await client.start(stays, "plain", instance_id="late")
    assert {"answer", *(name for name, *_ in DONE)} == verbs().keys()
    async with open_console() as http:
        key = await token(http)

        async def do(name: str, fields: dict[str, str]) -> tuple[int, list[AuditEntry]]:
            before = len(await entries(client))
            done = await http.post(f"/do/{name}", data={"token": key, **fields}, headers=ORIGIN)
            found = await entries(client)
            return done.status_code, found[: len(found) - before]

        status, (answered,) = await do("answer", await answer_form(client, http, reason="all right"))
        assert (status, answered.action, answered.target, answered.details["allowed"]) == (303, "answer", "talk", True)
        assert answered.details["reason"] == "all right"
        for name, fields, action, target in DONE:
            status, (*others, entry) = await do(name, fields)
            assert (status, entry.user, entry.source) == (303, "ann", "console"), name
            assert [each.kind for each in others] == (["session"] if name == "delete-record" else []), "of its family"
            assert (entry.action, entry.target) == (action, target), name
            assert entry.succeeded or name == "try-again", (name, entry.outcome)  # it may run, or be at rest
            if name == "resume":
                await until(lambda: is_suspended(client))
        for name, fields, wanted, action, outcome in REFUSED:
            status, (entry,) = await do(name, fields)
            assert (status, entry.user, entry.succeeded) == (wanted, "ann", False), name
            assert (entry.action, entry.outcome) == (action, outcome), name
        assert await do("drain", {"worker": "one", "confirm": "two"}) == (400, [])
        assert await do("cancel", {}) == (400, [])
    (cancelled,) = [each for each in await entries(client) if each.action == "cancel" and each.target == "stays"]
    assert cancelled.details == {"reason": "enough"}
    assert not any("tea" in str(each.details) or "hello" in str(each.details) for each in await entries(client))


async def is_suspended(client: Client) -> bool:
    return (await client.status("suspended")).status == "suspended"


async def test_the_page_shows_and_filters(client: Client, open_console: Open) -> None:
    """Newest first, page by page; what is in an entry was said by a user, and is hostile."""
    hostile = "<script>alert(1)</script>\u202e"
    with client.acting_as(hostile[:25], source="mail"):
        for n in range(60):
            await client.start("unknown to all", instance_id=f"i{n}")
        await client.cancel("i7", reason=hostile)
    async with open_console(access=lambda request: Access(READ, "eve")) as http:
        assert (
            await http.post("/do/cancel", data={"token": await form_token(http)}, headers=ORIGIN)
        ).status_code == 403
        page = (await http.get("/audit")).text
        assert 'href="/audit" aria-current="page"' in page
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
        assert "not allowed" in page
        older = re.search(r'href="(/audit\?[^"]*after=[^"]*)" rel="next"', page)
        assert older is not None
        assert "i0</a>" in (await http.get(older[1].replace("&amp;", "&"))).text

        async def rows(**query: str) -> int:
            return (await http.get("/audit", params=query)).text.count("<tr><td>")

        assert await rows(target="i7") == 2
        assert await rows(action="cancel", user=hostile[:25]) == 1
        assert await rows(outcome="refused", source="console", user="eve") == 1
        assert await rows(since="2020-01-01T00:00", target="i8") == 1
        assert await rows(until="2020-01-01T00:00") == 0
        assert (await http.get("/audit?since=yesterday")).status_code == 400
        assert (await http.get("/audit?after=x")).status_code == 400


async def form_token(http: httpx.AsyncClient) -> str:
    """Of a reader, whose pages have no form."""
    await http.get("/")
    return token_of(http.cookies[COOKIE])
