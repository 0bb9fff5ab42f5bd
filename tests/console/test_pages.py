"""The pages: what they show, that all stored text is hostile, that they work under a prefix and read once for all."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from affinity import Client, Start
from affinity.client.inspection import Inspection
from affinity.console import ALL, READ, Access, create, hide_payloads, recent
from affinity.console.pages import pages
from affinity.console.pages.base import ROWS
from affinity.console.payloads import MAX_SHOWN
from affinity.conversation import UserMessage
from affinity.errors import InvalidOptions
from affinity.session import SessionMetadata, SessionState
from tests.console.conftest import Open, fill
from tests.console.crawling import Tags, crawl
from tests.support.console_app import chats, fans, retries
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "javascript:alert(1)//</pre></main>",
    "{{ 7 * 7 }}{% raw %}&lt;b&gt;",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "https://evil.test/?a=b&c=d#e\n\tdata: x\n\nevent: gone",
    "x" * 700_000,
]
"""Texts that a model, or somebody who talks to it, may write."""


async def test_all_pages_can_be_reached_and_say_what_they_are_about(client: Client, open_console: Open) -> None:
    await fill(client, "plain")
    async with open_console() as http:
        found = await crawl(http, "/")
        assert {urlsplit(address).path for address in found} >= {*pages()}
        instance = found["/instance?id=stays"].text
        assert "&#39;stays&#39; waits for the event &#39;go&#39;" in instance
        assert "start a worker that registers it" in found["/instance?id=suspended"].text
        assert "ValueError: plain" in found["/instances"].text
        assert str(2**63 + 1) in found["/instance?id=shown"].text
        session = found["/session?id=s"].text
        assert "session &#39;s&#39; is held by worker &#39;one&#39;" in session
        assert len(re.findall(r"<rect class=\"w\d\" x=\"[\d.]+\" y=\"4\" width=\"[\d.]+\"", session)) == 1
        assert '<a href="/session?id=child">child</a>' in session
        assert "<dt>box</dt><dd>box-1</dd>" in found["/session?id=child"].text
        assert '<a href="/session?id=s">s</a>' in found["/session?id=child"].text
        assert "1 request waits for an answer" in found["/"].text
        assert "1 instance is suspended" in found["/"].text
        assert "has the tag &#39;plain&#39;: start one with `--tag plain`" in found["/"].text
        assert '<rect class="w' in found["/"].text
        assert re.search(r"\?worker=one\">[12] / \d+</a>", found["/workers"].text)
        drain = found["/drain?worker=one"].text
        assert "worker &#39;one&#39; holds " in drain
        assert "and no other worker has room for one" in drain
        assert '<a class="cell w' in found["/sessions"].text
        assert (
            "schedule &#39;nightly&#39; is paused (plain): `affinity schedules resume nightly`"
            in found["/schedules"].text
        )
        assert "plain" in found["/approvals"].text
        assert '<a href="/limit?name=limit">limit</a>' in found["/limits"].text
        limit = " ".join(found["/limit?name=limit"].text.split())
        assert "<dt>Slots</dt><dd>0 for each key</dd>" in limit
        assert "<dt>Waiting</dt><dd>1, the oldest since" in limit
        assert "<tr><td>key</td>" in limit
        assert "for limit &#39;limit&#39; of &#39;key&#39;: it is closed until" in found["/instance?id=limited"].text


@pytest.mark.slow_cases("sqlite-[2-5]")
@pytest.mark.nightly_cases("new")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_stored_text_is_only_text(client: Client, open_console: Open, text: str) -> None:
    """In all fields of all pages: no tag, no attribute, no character that changes the direction of text; and a page
    stays small.
    """
    id_text = re.sub(r"[\x00-\x1f]", "", text)[:60]
    await fill(client, text, prefix=id_text)
    async with open_console() as http:
        found = await crawl(http, "/")
        assert len(found) > len(pages())
        for address, answer in found.items():
            if "/static/" in address or "/download?" in address:
                continue
            assert len(answer.content) < 1_000_000
            shown = re.sub(r'<input [^>]*value="[^"]*"', "", answer.text)  # which is sent back as it is
            assert not [c for c in shown if not (c.isprintable() or c in "\n\t")], address
            page = Tags(answer.text)
            assert [a.get("src", "")[:15] for tag, a in page.tags if tag == "script"] == ["/static/console"]  # type: ignore[index]
            assert {tag for tag, _ in page.tags}.isdisjoint({"img", "style", "iframe", "b"})
            for _, attributes in page.tags:
                assert not [name for name in attributes if name.startswith("on") or name == "style"]
            assert all(
                urlsplit(link).scheme == urlsplit(link).netloc == "" for link in page.links("href", "src", "action")
            ), address


async def test_what_an_answer_allows_the_browser(client: Client, open_console: Open) -> None:
    async with open_console() as http:
        for path in ("/", "/static/console.js", "/nowhere", "/instance?id=absent", "/instance"):
            headers = (await http.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
        assert (await http.get("/")).headers["cache-control"] == "no-store"
        sizes = [len((await http.get(path)).content) for path in ("/", "/static/console.js", "/static/console.css")]
        assert sum(sizes) < 100_000


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/instance?id=absent", 404),
        ("/session?id=absent", 404),
        ("/conversation?id=absent", 404),
        ("/instance", 400),
        ("/instances?status=boiling", 400),
        ("/instances?after=x", 400),
        ("/records?after=x", 400),
        ("/sessions?after=a%00b", 400),
        ("/sessions?worker=%00", 400),
        ("/schedules?after=%00", 400),
        ("/limit", 400),
        ("/limit?name=absent", 404),
        ("/limit?name=%00", 400),
        ("/instances?prefix=%00", 400),
        ("/instance?id=%00", 400),
        ("/records?label=a%3Db", 200),
        ("/records?updated_after=soon", 400),
        ("/records?idle_for=x", 400),
        ("/records?orphaned=yes&heads=yes&idle_for=5&schema_version=1&updated_after=2026-07-31T12:00", 200),
        ("/drain", 400),
        ("/drain?worker=absent", 404),
        ("/conversation?id=absent&before=x", 400),
        ("/download?page=/instances&part=nothing", 404),
        ("/download?page=nowhere", 404),
        ("/static/../app.py", 404),
        ("/do/answer", 405),
        ("/instances?page=1&part=2&self=3&from=4", 200),
    ],
)
async def test_addresses_that_are_wrong(client: Client, open_console: Open, address: str, status: int) -> None:
    if "before=x" in address:
        await fill(client, "plain", prefix="absent-")
        address = address.replace("absent", "absent-talk")
    async with open_console() as http:
        assert (await http.get(address)).status_code == status


async def test_lists_have_pages_and_filters(client: Client, open_console: Open) -> None:
    """Each row of a list is on one of its pages, once."""
    names = [f"s-{n:03}" for n in range(ROWS + 5)]
    await client.start_many([Start("unknown to all", instance_id=name) for name in names])
    manager = client.session_manager
    for name in names:
        about = SessionMetadata(kind="note", labels={"odd": str(int(name[-1]) % 2)})
        await client.session_store.save(SessionState(session_id=name, state=b"{}", metadata=about))
    assert await manager.count() == len(names)
    async with open_console() as http:
        for path, link in (("/instances", "instance"), ("/records", "session"), ("/sessions", "session")):
            seen: list[str] = []
            address: str | None = path
            while address is not None:
                page = (await http.get(address)).text
                seen += re.findall(rf'<span class="id"><a href="/{link}\?id=(s-\d+)"', page)
                address = next((a["href"] for _, a in Tags(page).tags if a.get("rel") == "next"), None)
            assert sorted(seen) == names, path
        odd = (await http.get("/records?label=odd%3D1&prefix=s-00")).text
        found = re.findall(r'<span class="id"><a href="/session\?id=(s-\d+)"', odd)
        assert found == ["s-009", "s-007", "s-005", "s-003", "s-001"]


async def test_instances_are_found_by_version_and_time(client: Client, open_console: Open) -> None:
    await client.start_many([Start("unknown to all", instance_id=name, version=name) for name in ("1.0", "2.0")])
    at = (await client.status("1.0")).created_at
    async with open_console() as http:
        for query, names in (
            ("version=1.0", ["1.0"]),
            (f"since={(at - timedelta(minutes=1)):%Y-%m-%dT%H:%M}", ["1.0", "2.0"]),
            (f"before={(at - timedelta(minutes=1)):%Y-%m-%dT%H:%M}", []),
            (f"since={(at + timedelta(minutes=2)):%Y-%m-%dT%H:%M}", []),
        ):
            page = (await http.get(f"/instances?{query}")).text
            assert sorted(re.findall(r'<span class="id"><a href="/instance\?id=([^"]+)"', page)) == names, query
        assert (await http.get("/instances?since=noon")).status_code == 400


async def test_equal_activities_are_one_row_and_a_reset_needs_no_number(client: Client, open_console: Open) -> None:
    """Each line of the axis leads to a reset to before it, and the form names these points."""
    await client.start(fans, "plain", instance_id="fan")

    async def waits() -> bool:
        found = await client.explain("fan")
        return found is not None and found.code == "event"

    await until(waits)
    async with open_console() as http:
        page = (await http.get("/instance?id=fan")).text
        assert re.search(r'<details id="g-\d+"><summary>25 \S <strong>note</strong>\s+<span class="status', page)
        assert page.count("<strong>note</strong>") == 1
        assert "reset to before it" in page
        event = re.findall(r'<option value="(\d+)">before go, event \d+</option>', page)
        assert len(event) == 1
        preview = (await http.get(f"/reset?id=fan&event={event[0]}")).text
        assert "Events that are dropped" in preview
    async with open_console(access=lambda request: Access(READ)) as http:
        assert "reset to before it" not in (await http.get("/instance?id=fan")).text


async def test_what_is_tried_again_and_what_waits_otherwise(client: Client, open_console: Open) -> None:
    """The menu counts what is tried again."""
    async with open_console() as http:
        page = (await http.get("/retries")).text
        assert "No activity has failed and is tried again." in page
        assert "No activity waits at a limit." in page
        await client.start(retries, "not yet", instance_id="again")

        async def has_failed() -> bool:
            return bool(await client.queued_activities("retried"))

        await until(has_failed)
    async with open_console() as http:
        page = (await http.get("/retries?part=retried")).text
        assert "ValueError: not yet" in page
        assert '/instance?id=again"' in page
        assert 'title="1 activity is tried again">1</span>' in page
        assert (await http.get("/retries?part=x")).status_code == 400


def ids_of(page: str) -> list[str]:
    """The instances of a list, in its order."""
    return re.findall(r'<td class="main"><span class="id"><a href="/instance\?id=([^"]+)"', page)


async def test_instances_in_several_orders(client: Client, open_console: Open) -> None:
    """Of several statuses, by the time of the end, apart from those of conversations, of the last hours; a view is an
    address in the menu.
    """
    await fill(client, "plain")
    views = {"<failed>": "/instances?status=failed&status=suspended&within=24h"}
    async with open_console(views=views) as http:
        for query, names in (
            ("status=failed&status=suspended", ["suspended", "spoilt"]),
            ("status=failed,suspended&within=1h&sort=started", ["spoilt", "suspended"]),
            ("sort=-ended", ["spoilt", "shown"]),
            ("sort=ended&status=completed", ["shown"]),
            ("behind=conversations", ["talk"]),
            ("behind=others&status=failed&status=completed", ["spoilt", "shown"]),
        ):
            page = (await http.get(f"/instances?{query}")).text
            assert ids_of(page) == names, query
            assert '<a href="/instances?status=failed&amp;status=suspended&amp;within=24h">&lt;failed&gt;</a>' in page
        longest = (await http.get("/instances?sort=-duration")).text
        assert sorted(ids_of(longest)) == ["shown", "spoilt"]
        assert "Among the 10,000 that ended last" in longest
        assert 'class="wide"><span class="worker' in longest
        for wrong in ("sort=x", "within=2h", "behind=x", "status=failed,x"):
            assert (await http.get(f"/instances?{wrong}")).status_code == 400, wrong
    for address in ("/nowhere", "https://evil.test/", "instances"):
        with pytest.raises(InvalidOptions, match="'v'"):
            create(client, views={"v": address})


async def test_only_failures_of_an_instance(client: Client, open_console: Open) -> None:
    await fill(client, "plain")
    async with open_console() as http:
        whole, failed = [(await http.get(f"/instance?id=spoilt{more}")).text for more in ("", "&failures=yes")]
    for page in (whole, failed):
        assert page.count('<rect class="run w') == 1
        assert "ValueError: plain" in page
    types = [re.findall(r"<td class=\"main\">((?:orchestration|activity)_\w+)</td>", page) for page in (whole, failed)]
    assert types[0] == ["orchestration_started", "activity_scheduled", "activity_failed", "orchestration_failed"]
    assert types[1] == ["activity_failed", "orchestration_failed"]
    assert "<h2>Input</h2>" in whole


async def test_what_a_conversation_shows(client: Client, open_console: Open) -> None:
    """Calls of tools with arguments and results, later wakes, and the usage of models; also in the list."""
    talk = client.conversation(chats, "talk")
    await talk.ask(UserMessage("use a tool"), timeout=20)
    await talk.ask(UserMessage("slowly"), timeout=20)
    async with open_console() as http:
        page = " ".join((await http.get("/conversation?id=talk")).text.split())
        assert "<strong>boil</strong>" in page
        assert "&#34;litres&#34;: 2" in page
        assert re.search(r"agent.tool_result <strong>boil</strong>.*?&#34;degrees&#34;: 100", page)
        assert re.search(r"<h2>Later wakes</h2>.*<td>tea</td>.*drink it", page)
        assert "<dt>Usage</dt><dd>tokens 7</dd>" in page
        for query, is_there in (("status=waiting", True), ("status=failed", False), ("before=2020-01-01T00:00", False)):
            page = (await http.get(f"/conversations?{query}")).text
            assert ("<td>tokens 7</td>" in page) is is_there, query
            assert ('/conversation?id=talk"' in page) is is_there


async def test_requests_that_expire_come_first(client: Client, open_console: Open) -> None:
    for text in ("never", "soon"):
        await client.conversation(chats, text).ask(UserMessage(text), timeout=20)
    async with open_console() as http:
        page = (await http.get("/approvals")).text
        assert "Nothing waits" in (await http.get("/approvals?kind=agent.custom_tool_use")).text
        assert "Nothing waits" not in (await http.get("/approvals?kind=agent.tool_confirmation")).text
    assert re.findall(r'<article class="request" id="r-(\w+)-', page) == ["soon", "never"]
    assert "Refused automatically at <time" in page


async def test_under_a_prefix(client: Client) -> None:
    """Mounted in another application: all links stay below the prefix."""
    await fill(client, "plain")
    outer = Starlette(routes=[Mount("/ops/affinity", app=create(client, access=lambda request: Access(ALL)))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://site.test") as http:
        found = await crawl(http, "/ops/affinity/")
        assert len(found) > len(pages())
        assert all(address.startswith("/ops/affinity/") for address in found)


async def test_a_console_opens_its_own_client(kept_url: str) -> None:
    """With the first request; and closes it."""
    console = create(kept_url)
    async with console, httpx.AsyncClient(transport=httpx.ASGITransport(app=console), base_url="http://x") as http:
        assert "No worker is alive" in (await http.get("/")).text
        opened = console._client
    assert opened is not None
    assert opened._stack is None


# -- values


async def test_values_are_redacted_cut_and_downloaded(client: Client, open_console: Open) -> None:
    text = "secret" + "y" * MAX_SHOWN
    await fill(client, text)
    async with open_console() as http:
        page = (await http.get("/instance?id=shown")).text
        link = next(each for each in Tags(page).links("href") if "part=output" in each)
        whole = await http.get(link)
        assert whole.headers["content-disposition"].startswith("attachment")
        assert whole.json() == {text: text, "number": 2**63 + 1}

    seen: set[tuple[str, str]] = set()

    def redact(kind: str, name: str, value: object) -> object:
        seen.add((kind, name))
        return "redacted"

    async with open_console(redact=redact) as http:
        await crawl(http, "/")
        assert (await http.get(link)).text == "redacted"
    kinds = {kind for kind, _ in seen}
    assert kinds >= {"input", "output", "custom_status", "event", "entry", "request", "state", "error", "sentence"}
    assert {("output", "shows"), ("entry", "user.message"), ("request", "agent.tool_confirmation")} <= seen


async def test_a_record_is_exported_as_the_command_does(client: Client, open_console: Open) -> None:
    """One line, which can be imported; not with hidden values, of which an import would make a state."""
    await fill(client, "plain")
    async with open_console() as http:
        link = next(each for each in Tags((await http.get("/session?id=s")).text).links("href") if "jsonl" in each)
        found = await http.get(link)
        assert 'filename="session.jsonl"' in found.headers["content-disposition"]
        assert [found.text] == [line async for line in client.session_manager.export(["s"])]
    async with open_console(redact=hide_payloads) as http:
        assert "affinity sessions export" in (await http.get("/session?id=s")).text
        assert (await http.get(link)).status_code == 404


async def test_no_value_is_shown(client: Client, open_console: Open) -> None:
    await fill(client, "secret", prefix="p-")
    await client.journals.describe("p-talk", "chat", {"title": "t", "owner": "o", "labels": {}})
    talk = client.conversation(chats, "p-talk")
    await talk.ask(UserMessage("secretly again"), timeout=20)
    with client.acting_as("ann", source="admin"):  # each reason that a person gives
        await client.schedules.pause("p-nightly", "secret")
        await talk.interrupt(reason="secret")
        await (await talk.fork("p-fork")).terminate(reason="secret")
        await client.cancel("p-stays", "secret")
    async with open_console(redact=hide_payloads) as http:
        for address, answer in (await crawl(http, "/")).items():
            # The name of a record, which its application makes searchable, is no payload; nor of an orchestration.
            name = ">secret</td>" if address in {"/records", "/schedules"} else "<dt>Name</dt><dd>secret</dd>"
            assert "secret" not in answer.text.replace(name, "", 1), address


# -- reads


async def test_many_browsers_are_one_read(client: Client, open_console: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    plain = Inspection.list_instances

    def counted(self: Inspection, **where: object) -> object:
        nonlocal reads
        reads += 1
        return plain(self, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(Inspection, "list_instances", counted)
    monkeypatch.setattr(recent, "SECONDS", 600.0)
    async with open_console() as http:
        for _ in range(20):
            await http.get("/instances")
        assert reads == 2  # for the page, and for the menu
        await http.get("/instances?status=failed")
        assert reads == 3


async def test_the_counts_of_the_overview_agree(
    client: Client, open_console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside more instances than are counted: what is listed is counted, and a number that is no total has a plus."""
    await fill(client, "plain")
    await client.start_many([Start("shows", "x", delay=3600.0) for _ in range(40)])
    monkeypatch.setattr("affinity.client.inspection.SCRAPE_COUNT", 8)
    async with open_console() as http:
        page = (await http.get("/")).text
    numbers = dict(re.findall(r'status=(\w+)">\w+</a></dt>\s*<dd>([^<]*)</dd>', page))
    assert (numbers["suspended"], numbers["failed"], numbers["cancelled"], numbers["pending"]) == ("1", "1", "0", "8+")
    assert ">1 instance is suspended</a>" in page
    assert "spoilt" in page
