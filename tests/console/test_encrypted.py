"""The console of an encrypted database: with the key, and without it."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2 as httpx
import pytest
from anyio.to_thread import run_sync

from affinity import Client, RuntimeOptions, Worker, migrate
from affinity.cli import main
from affinity.console import ALL, Access, create
from affinity.console.pages import pages
from affinity.console.payloads import Payloads, show_all
from affinity.conversation import UserMessage
from affinity.conversation.page.live import SaidNow, SaidPieces
from affinity.errors import OrchestrationFailed
from affinity.flow.store.contract import LimitClosing, LimitSpec, limits_of
from affinity.payloads import PayloadCodec
from tests.console.conftest import ORIGIN, token
from tests.console.crawling import crawl
from tests.payloads.xor import CODEC
from tests.support.cli_runner import new_runner
from tests.support.console_app import app, chats, keeps, shows, spoils, stays
from tests.support.limits import declare
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MARK = "s3cret"
HIDDEN = "encrypted, xor 90"
WITH_PAYLOADS = {
    "/instance?id=shown": "result",
    "/instance?id=spoilt": "error",
    "/instance?id=stays": "input",
    "/instance?id=keeps": "a value",
    "/instances": "errors",
    "/session?id=s": "state",
    "/conversation?id=talk": "entries",
    "/conversations": "titles",
    "/approvals": "requests",
    "/schedules": "the reason of the pause",
    "/limit?name=limit": "the reason why it is closed",
    "/audit": "the reason of the cancellation",
}
"""Pages that show texts of users, and which."""

NEED_A_KEY: list[tuple[str, dict[str, str]]] = [
    ("raise", {"instance": "stays", "name": "go", "data": '"tea"'}),
    ("cancel", {"instance": "stays", "confirm": "stays", "reason": "enough"}),
    ("reset", {"instance": "spoilt", "confirm": "spoilt", "event": "2"}),
    ("send", {"conversation": "talk", "text": "hello"}),
    ("ask", {"conversation": "talk", "text": "hello?"}),
    ("interrupt", {"conversation": "talk", "reason": "stop"}),
    ("fork", {"conversation": "talk", "new": "fork", "at": "1"}),
    ("pause-schedule", {"schedule": "nightly", "reason": "later"}),
    ("trigger-schedule", {"schedule": "nightly", "confirm": "nightly"}),
]
"""Forms that write or copy texts of users."""


async def fill(client: Client) -> None:
    """Make one of each kind, with the mark in each field that is encoded, and in no other one."""
    text = "." * 100 + MARK  # the first ones are the name of a record, which is in the clear
    await (await client.start(shows, text, instance_id="shown", for_session="s")).wait(20)
    with pytest.raises(OrchestrationFailed):
        await (await client.start(spoils, MARK, instance_id="spoilt")).wait(20)
    await (await client.start(keeps, MARK, instance_id="keeps")).wait(20)
    for name in ("stays", "cancelled"):
        await client.start(stays, MARK, instance_id=name)
    await client.start("unknown to all", MARK, instance_id="suspended")
    await client.schedules.create("nightly", stays, input=MARK, every=3600)
    await client.schedules.pause("nightly", MARK)
    await declare(client._provider, LimitSpec(name="limit", concurrency=0))
    await limits_of(client._provider).close_limits([LimitClosing(limit="limit", seconds=3600.0, reason=MARK)])
    talk = client.conversation(chats, "talk")
    await talk.ask(UserMessage(MARK), timeout=20, title=MARK)
    await talk.ask(UserMessage("slowly"), timeout=20)
    with client.acting_as("ann"):
        await client.cancel("cancelled", reason=MARK)

    async def is_suspended() -> bool:
        return (await client.status("suspended")).status == "suspended"

    await until(is_suspended)


@asynccontextmanager
async def browser(url: str, codec: PayloadCodec | None) -> AsyncIterator[httpx.AsyncClient]:
    async with Client(url, codec=codec) as client:
        transport = httpx.ASGITransport(app=create(client, access=lambda request: Access(ALL, "ann")))
        async with httpx.AsyncClient(transport=transport, base_url="http://console.test") as http:
            yield http


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A database with a worker that has the key."""
    url = f"sqlite:///{tmp_path}/affinity.db"
    await migrate(url)
    options = RuntimeOptions(poll_interval=0.1, worker_node_id="one", unregistered_timeout=0.2, drain_timeout=0.1)
    async with Worker(app, url, options, codec=CODEC), Client(url, codec=CODEC) as client:
        await fill(client)
        yield url


@pytest.mark.slow
async def test_pages_with_the_key_and_without(url: str) -> None:
    """No page fails, and without the key none has a text of users: each says that it is encrypted, and with which."""
    async with browser(url, CODEC) as http:
        shown = {page: (await http.get(page)).text for page in WITH_PAYLOADS}
    assert [page for page, text in shown.items() if MARK not in text or HIDDEN in text] == []
    async with browser(url, None) as http:
        found = {address: answer.text for address, answer in (await crawl(http, "/")).items()}
    assert {urlsplit(address).path for address in found} >= {*pages()}
    assert [page for page in WITH_PAYLOADS if HIDDEN not in found[page]] == []
    assert [page for page, text in found.items() if MARK in text] == []


async def test_forms_without_the_key(url: str) -> None:
    """What writes a text of users is refused, and the answer says what is missing; the rest is done."""
    async with browser(url, None) as http:
        given = {"token": await token(http, "/instance?id=stays")}
        for name, form in NEED_A_KEY:
            answer = await http.post(f"/do/{name}", data={**given, **form}, headers=ORIGIN)
            said = html.unescape(answer.text)
            assert 400 <= answer.status_code < 500, (name, answer.status_code, said[:500])
            assert re.search(r"AFFINITY_CODEC|encrypted, xor 90", said), (name, said[-1000:])
        done = await http.post("/do/release", data={**given, "session": "s"}, headers=ORIGIN)
        assert done.status_code == 303


async def test_commands_without_the_key(url: str) -> None:
    """They show the rest, and say what is encrypted."""
    for command in (
        "show keeps",
        "show spoilt",
        "history keeps",
        "list",
        "audit",
        "conversation show talk",
        "conversation list",
        "conversation events talk",
        "conversation requests",
        "schedules list",
    ):
        result = await run_sync(new_runner().invoke, main, [*command.split(), "--url", url])
        assert (result.exit_code, MARK in result.output) == (0, False), (command, result.output)
        assert HIDDEN in result.output, (command, result.output)


async def test_the_text_that_is_said_now_without_the_key(url: str) -> None:
    """The page says once that it is encrypted; the feed is not read again and again."""
    said = SaidNow(lambda: Payloads(show_all))
    async with Client(url) as plain, Client(url, codec=CODEC) as client:
        with anyio.fail_after(30):
            async with said.follow(plain, {"id": "talk"}) as pieces:
                assert isinstance(pieces, SaidPieces)
                while not (feed := said._found["talk"]).text:
                    await client.conversation(chats, "talk").ask(UserMessage("slowly"), timeout=20)
                await feed.task
                shown = [piece async for piece in pieces.during(0.2)]
    assert len(shown) == 1
    assert HIDDEN in shown[0]
