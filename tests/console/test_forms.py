"""Who may do what, and which forms are taken."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx2 as httpx
import pytest
from starlette.requests import Request

from affinity import Client, Rate
from affinity.console import ALL, NONE, READ, Access
from affinity.console.actions import verbs
from affinity.console.pages import pages
from affinity.conversation import AgentMessage, UserMessage
from tests.console.conftest import ORIGIN, Open, answer_form, fill, token
from tests.support.console_app import chats, stays
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("fields", "status"), [({}, 400), ({"sure": "yes"}, 303), ({"answer": "refuse"}, 303)])
async def test_what_is_dangerous_is_not_allowed_by_accident(
    client: Client, open_console: Open, fields: dict[str, str], status: int
) -> None:
    """The server checks it too."""
    await client.conversation(chats, "danger").ask(UserMessage("dangerously refund me"), timeout=20)
    async with open_console() as http:
        form = await answer_form(client, http, **fields)
        assert (await http.post("/do/answer", data=form, headers=ORIGIN)).status_code == status
    assert len(await client.requests()) == (1 if status == 400 else 0)


async def test_a_request_is_allowed_in_the_browser(
    client: Client, open_console: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "affinity.console")
    await fill(client, "plain")
    async with open_console() as http:
        form = await answer_form(client, http, reason="all right", back="/approvals?owner=plain")
        done = await http.post("/do/answer", data=form, headers=ORIGIN)
        assert (done.status_code, done.headers["location"]) == (303, "/approvals?owner=plain")
        assert "Nothing waits" in (await http.get("/approvals")).text
        again = await http.post("/do/answer", data=form, headers=ORIGIN)
        assert again.status_code == 409
        assert "is not answered" in again.text or "does not wait" in again.text or "not pending" in again.text
    talk = client.conversation(chats, "talk")

    async def said() -> bool:
        last = await talk.history(kinds=[AgentMessage], last=1)
        return isinstance(last[0].event, AgentMessage) and last[0].event.text == "allowed: True, all right"

    await until(said)
    assert "'ann': answer 'talk'" in caplog.text
    assert "was refused" in caplog.text


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"origin": "http://evil.test"}, {}, 403),
        ({"origin": "http://console.test.evil.test"}, {}, 403),
        (ORIGIN, {"token": ""}, 403),
        (ORIGIN, {"token": "0" * 64}, 403),
        (ORIGIN, {"answer": "perhaps"}, 400),
        (ORIGIN, {"conversation": ""}, 400),
        (ORIGIN, {"conversation": "absent"}, 404),
        (ORIGIN, {"reason": "x" * 2_000_000}, 413),
    ],
)
async def test_forms_that_are_refused(
    client: Client, open_console: Open, headers: dict[str, str], fields: dict[str, str], status: int
) -> None:
    """Nothing is answered: without the origin, or the token of the browser, or with wrong fields."""
    await fill(client, "plain")
    async with open_console() as http:
        form = await answer_form(client, http, **fields)
        assert (await http.post("/do/answer", data=form, headers=headers)).status_code == status
        http.cookies.clear()
        assert (await http.post("/do/answer", data=form, headers=ORIGIN)).status_code in {403, 413}
    assert len(await client.requests()) == 1


@pytest.mark.parametrize("back", ["https://evil.test/", "//evil.test", "/nowhere", "\\evil", "/\r\nx: y"])
async def test_a_form_leads_to_a_page_of_the_console(client: Client, open_console: Open, back: str) -> None:
    await fill(client, "plain")
    async with open_console() as http:
        form = await answer_form(client, http, back=back)
        done = await http.post("/do/answer", data=form, headers=ORIGIN)
        assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_an_origin_behind_a_proxy(client: Client, open_console: Open) -> None:
    await fill(client, "plain")
    async with open_console(origins=["https://ops.example"]) as http:
        form = await answer_form(client, http)
        done = await http.post("/do/answer", data=form, headers={"origin": "https://ops.example"})
        assert done.status_code == 303


async def test_without_access_there_is_nothing(client: Client, open_console: Open) -> None:
    async with open_console(access=lambda request: Access(NONE)) as http:
        for path in [*pages(), "/download?page=/&part=x"]:
            assert (await http.get(path)).status_code == 403
        for name in verbs():
            assert (await http.post(f"/do/{name}", headers=ORIGIN)).status_code == 403


async def test_readers_only_read(client: Client, open_console: Open) -> None:
    """At the endpoints, and no page has a form for them; this is the default."""
    await fill(client, "plain")
    chosen: dict[str, Any]
    for chosen in ({"access": lambda request: Access(READ)}, {}):
        async with open_console(**chosen) as writer:
            pass
    for access in (READ, frozenset({"answer"}) | READ, frozenset({"answer"})):
        async with open_console() as writer, open_console(access=lambda request, a=access: Access(a)) as http:
            key = await token(writer)
            http.cookies = writer.cookies
            form = await answer_form(client, writer) | {"token": key}
            targets = {verb.target: "stays" for verb in verbs().values()} | {"confirm": "stays", "to": "one"}
            for name, verb in verbs().items():
                if verb.needs in access and "read" in access:
                    continue
                done = await http.post(f"/do/{name}", data=form | targets, headers=ORIGIN)
                assert done.status_code == 403, name
            if "read" in access:
                for path in (
                    "/drain?worker=one",
                    "/schedules",
                    "/limits",
                    "/limit?name=limit",
                    "/sessions",
                    "/workers",
                    "/instance?id=stays",
                    "/session?id=s",
                ):
                    assert '<form method="post"' not in (await http.get(path)).text
                page = (await http.get("/approvals")).text
                assert ('action="/do/answer"' in page) is ("answer" in access)
    assert len(await client.requests()) == 1
    assert (await client.status("stays")).status == "running"


async def test_access_of_each_request(client: Client, open_console: Open) -> None:
    """It may be async, and sees the request."""

    async def access(request: Request) -> Access:
        return Access(ALL if request.headers.get("x-user") == "ann" else NONE, "ann")

    async with open_console(access=access) as http:
        assert (await http.get("/")).status_code == 403
        page = await http.get("/", headers={"x-user": "ann"})
        assert page.status_code == 200
        assert '<p class="user">ann' in page.text


async def test_limits_are_changed_paused_and_resumed(client: Client, open_console: Open) -> None:
    await fill(client, "plain")
    async with open_console() as http:
        key = await token(http)

        async def do(action: str, **fields: str) -> int:
            return (await http.post(f"/do/{action}", data={"token": key, **fields}, headers=ORIGIN)).status_code

        assert await do("set-limit", limit="absent", concurrency="1") == 404
        assert await do("set-limit", limit="limit") == 400
        assert await do("set-limit", limit="limit", concurrency="many") == 400
        assert await do("set-limit", limit="limit", concurrency="7", rate="600/60s") == 303
        assert await do("set-limit", limit="limit", key="key", concurrency="none") == 303
        limit, tenant = await client.limits.get("limit"), await client.limits.get_key("limit", "key")
        assert (limit.concurrency, limit.rate, tenant.concurrency) == (7, Rate(600, per=60), None)
        assert await do("pause-limit", limit="limit") == 303
        assert await do("pause-limit", limit="limit", key="key") == 303
        assert await do("resume-limit", limit="limit", ramp="soon") == 400
        assert await do("resume-limit", limit="limit", ramp="36/h") == 303
        limit, tenant = await client.limits.get("limit"), await client.limits.get_key("limit", "key")
        assert (limit.status, limit.ramp, tenant.paused) == ("open", 0.01, True)
        assert await do("reset-limit", limit="limit", key="key") == 303
        assert not (await client.limits.get_key("limit", "key")).paused


async def test_other_actions(client: Client, open_console: Open) -> None:
    """Each verb does what it says; the ones that hurt want the name once more."""
    await fill(client, "plain")
    async with open_console() as http:
        key = await token(http)

        async def do(action: str, **fields: str) -> int:
            return (await http.post(f"/do/{action}", data={"token": key, **fields}, headers=ORIGIN)).status_code

        assert await do("boil", worker="one") == 404
        assert await do("resume", instance="stays") == 409
        assert await do("resume", instance="suspended") == 303
        assert await do("move", session="s", to="nowhere") == 409
        assert await do("move", session="s", to="one") == 303
        assert await do("release", session="s") == 303
        assert await do("release", session="s") == 409
        for what, suspended in (("suspend", True), ("go on", False)):
            assert await do("rebalance", what=what) == 303
            assert (await client.load()).suspended is suspended
        assert await do("drain", worker="one", confirm="two") == 400
        assert not (await client.workers())[0].drain_wanted
        assert await do("drain", worker="one", confirm="one") == 303
        assert (await client.workers())[0].drain_wanted
        assert await do("end-drain", worker="one") == 303
        assert not (await client.workers())[0].drain_wanted
        assert await do("raise", instance="stays", name="other", data="tea") == 400
        assert await do("raise", instance="stays", name="other", data='"tea"') == 303
        assert await do("delete", instance="stays", confirm="stays") == 409
        assert await do("pause-schedule", schedule="absent") == 404
        assert await do("trigger-schedule", schedule="nightly") == 400
        assert await do("trigger-schedule", schedule="nightly", confirm="nightly") == 303
        assert await do("resume-schedule", schedule="nightly") == 303
        assert (await client.schedules.show("nightly")).state == "active"
        assert await do("pause-schedule", schedule="nightly", reason="by hand") == 303
        assert (await client.schedules.show("nightly")).note == "by hand"
        assert await do("delete-record", session="s", confirm="s") == 303
        assert await client.session_store.load("s") is None
        assert await do("delete-record", session="s", confirm="s") == 404
        assert await do("reset", instance="spoilt", confirm="spoilt") == 400
        preview = (await http.get("/reset?id=spoilt&event=2")).text
        assert "begins with the events 1 to 2 of 4" in preview
        assert "<dt>Run again now</dt><dd>spoil</dd>" in " ".join(preview.split())
        assert re.findall(r"<td class=\"main\">((?:orchestration|activity)_\w+)</td>", preview) == [
            "activity_failed",
            "orchestration_failed",
        ]
        assert await do("reset", instance="spoilt", confirm="spoilt", event="2", seen="1/3") == 409
        assert await do("reset", instance="spoilt", confirm="spoilt", event="2", seen="1/4") == 303
        assert (await client.wait_finished("spoilt", 20)).execution_id == 2
        assert await do("delete", instance="spoilt", confirm="spoilt") == 303
        assert await do("cancel", instance="stays") == 400
        assert await do("cancel", instance="stays", confirm="stays", reason="enough") == 303
        assert (await client.wait_finished("stays", 20)).status == "cancelled"


async def test_actions_on_conversations(client: Client, open_console: Open) -> None:
    await fill(client, "plain")
    talk = client.conversation(chats, "talk")
    async with open_console() as http:
        key = await token(http)

        async def do(action: str, **fields: str) -> httpx.Response:
            form = {"token": key, "conversation": "talk", **fields}
            return await http.post(f"/do/{action}", data=form, headers=ORIGIN)

        assert (await do("send", text="")).status_code == 400
        assert (await do("send", text="hello")).status_code == 303

        async def said() -> bool:
            last = await talk.history(kinds=[AgentMessage], last=1)
            return isinstance(last[0].event, AgentMessage) and last[0].event.text == "hello"

        await until(said)
        assert (await do("ask", text="and now?")).status_code == 303
        page = (await http.get("/conversation?id=talk")).text
        assert page.count(">and now?</pre>") == 2  # the message, and the reply: the form has waited for it
        wake = re.findall(r'href="(/wake[^"]+)"', page.split("<h2>Wakes")[1])[0].replace("&amp;", "&")
        trace = " ".join((await http.get(wake)).text.split())
        assert '<td><span class="status done">done</span></td>' in trace
        assert trace.count('<rect class="run w') == 1
        assert ">and now?</pre>" in trace
        assert (await do("interrupt", reason="stop")).status_code == 303
        assert await talk.requests() == []
        forked = await do("fork", new="fork & more", at="1")
        assert (forked.status_code, forked.headers["location"]) == (303, "/conversation?id=fork+%26+more")
        page = (await http.get(forked.headers["location"])).text
        assert "fork up to 1" in page
        assert 'id=fork+%26+more">fork &amp; more</a>' in (await http.get("/conversation?id=talk")).text
        assert page.count('id="s-') == 1
        assert (await do("fork", new="talk")).status_code == 409
        assert (await do("try-again")).status_code == 303  # there is nothing to try: nothing happens
        assert (await do("terminate")).status_code == 400
        assert (await do("terminate", confirm="talk")).status_code == 303
        assert await talk.status() == "terminated"
        assert (await do("send", text="hello")).status_code == 409


async def test_all_instances_of_a_list(client: Client, open_console: Open) -> None:
    """They are counted first; more than were counted are not touched."""
    for n in range(3):
        await client.start("unknown to all", instance_id=f"batch-{n}")
        await client.start(stays, "plain", instance_id=f"batch-stays-{n}")
    await client.start("unknown to all", instance_id="other")
    await client.start(stays, "plain", instance_id="other-stays")

    async def all_suspended() -> bool:
        return len((await client.list_instances(status=["suspended"]).page()).items) == 4

    await until(all_suspended)
    async with open_console() as http:
        page = (await http.get("/instances?prefix=batch-&count=yes")).text
        assert "Cancel 3" in page
        assert "Resume 3" in page
        found = re.search(r'name="token" value="([0-9a-f]+)"', page)
        assert found is not None
        form = {"token": found[1], "prefix": "batch-", "count": "3", "confirm": "3"}

        async def do(action: str, **fields: str) -> httpx.Response:
            return await http.post(f"/do/{action}", data={**form, **fields}, headers=ORIGIN)

        assert (await do("cancel-matching", confirm="2")).status_code == 400
        assert (await do("cancel-matching", count="2", confirm="2")).status_code == 409
        assert (await do("resume-matching", status="failed")).status_code == 303  # of which none is suspended
        before = {each.instance_id: each.updated_at for each in await client.list_instances()}
        done = await do("resume-matching")
        assert (done.status_code, done.headers["location"]) == (303, "/instances?prefix=batch-")
        await until(all_suspended)  # again, as there is still no code
        after = {each.instance_id: each.updated_at for each in await client.list_instances()}
        assert {name for name, at in after.items() if at != before[name]} == {"batch-0", "batch-1", "batch-2"}
        assert (await do("cancel-matching")).status_code == 303
        for n in range(3):
            assert (await client.wait_finished(f"batch-stays-{n}", 20)).status == "cancelled"
    assert (await client.status("other-stays")).status in {"pending", "running"}


async def test_requests_of_other_kinds(client: Client, open_console: Open) -> None:
    """A result is given as JSON; what only the application can answer has no form."""
    talk = client.conversation(chats, "talk")
    await talk.ask(UserMessage("ask in other ways"), timeout=20)
    async with open_console() as http:
        page = (await http.get("/approvals")).text
        assert page.count('action="/do/answer"') == 1
        assert "Its application takes the answer." in page
        (request,) = await client.requests(kinds=["agent.custom_tool_use"])
        form = {"token": await token(http), "conversation": "talk", "request": request.request_id, "answer": "result"}
        assert (await http.post("/do/answer", data={**form, "result": "hot"}, headers=ORIGIN)).status_code == 400
        done = await http.post("/do/answer", data={**form, "result": '{"degrees": 80}'}, headers=ORIGIN)
        assert done.status_code == 303

    async def said() -> bool:
        last = await talk.history(kinds=[AgentMessage], last=1)
        return bool(last) and isinstance(last[0].event, AgentMessage) and "'degrees': 80" in last[0].event.text

    await until(said)
