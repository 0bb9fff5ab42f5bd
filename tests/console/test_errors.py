"""Failed attempts on the page of an instance; failures by name and class, and a search in their texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from affinity import (
    ActivityContext,
    App,
    Client,
    OrchestrationContext,
    PayloadCodec,
    RetryPolicy,
    RuntimeOptions,
    Worker,
)
from affinity.console import ALL, Access, create, hide_payloads
from affinity.encryption import Encryption
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("console-errors")


def refuse(attempt: int) -> None:
    raise ValueError(f"<refused> {attempt}")


@app.activity
async def charge(ctx: ActivityContext) -> None:
    refuse(ctx.attempt)


@app.orchestration
async def order(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(charge, retry=RetryPolicy(max_attempts=3, initial_interval=0.01))


@asynccontextmanager
async def failed_order(
    url: str,
    *,
    codec: PayloadCodec | None = None,
    key: PayloadCodec | None = None,
    instance_id: str = "o",
    **console: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """The console, when an order has failed; ``codec``: of the worker, and ``key``: of the console."""
    options = RuntimeOptions.make(poll_interval=0.05, drain_timeout=0.1, worker_node_id="w")
    async with Worker(app, url, options, codec=codec), Client(url, codec=codec) as client:
        await client.start(order, instance_id=instance_id)
        assert (await client.wait_finished(instance_id, timeout=20)).status == "failed"
    async with Client(url, codec=key) as client:
        made = create(client, access=lambda request: Access(ALL, "ann"), **console)
        transport = httpx.ASGITransport(app=made)
        async with httpx.AsyncClient(transport=transport, base_url="http://console.test") as http:
            yield http


async def test_each_failed_attempt_is_on_the_page_of_its_instance(sqlite_url: str) -> None:
    """With its error, and its stack as text: the frames of the application first. The last one is in the history."""
    async with failed_order(sqlite_url) as http:
        page = (await http.get("/instance", params={"id": "o"})).text
        assert "3 failed attempts" in page
        for attempt in (1, 2, 3):
            assert f"<h3>Attempt {attempt}, " in page
            assert f"ValueError: &lt;refused&gt; {attempt}" in page
            _, _, below = page.partition(f"<h3>Attempt {attempt}, ")
            assert "in refuse" in below.partition('<pre class="stack">')[2].partition("</pre>")[0]


async def test_redaction_hides_attempts(sqlite_url: str) -> None:
    """Their texts and their stacks, also from a search, which would tell what is in a text."""
    async with failed_order(sqlite_url, redact=hide_payloads) as http:
        page = (await http.get("/instance", params={"id": "o"})).text
        assert "3 failed attempts" in page
        assert "refused" not in page
        assert "in refuse" not in page
        for path in (
            "/",
            "/errors",
            "/errors?kind=activity&name=charge&error_type=ValueError",
            "/retries",
            "/instances",
        ):
            assert "refused" not in (await http.get(path)).text, path
        for text in ("refused", "hidden", "e"):
            assert 'href="/instance?id=o"' not in (await http.get("/errors", params={"text": text})).text
    async with failed_order(
        sqlite_url, redact=lambda kind, name, value: "-" if name == "charge" else value, instance_id="p"
    ) as http:
        found = (await http.get("/errors", params={"text": "refused"})).text
        assert found.count('href="/instance?id=p"') == 1
        assert '<td class="main"><span class="id"><a href="/instance?id=p"' in found


async def test_errors_are_grouped_with_the_instances_behind_them(sqlite_url: str) -> None:
    """On the overview, and on a page with a link from each group to its failures."""
    async with failed_order(sqlite_url) as http:
        link = '<a href="/errors?kind=activity&amp;name=charge&amp;error_type=ValueError'
        overview = (await http.get("/")).text
        assert f'{link}">ValueError in charge</a>: 3 since <time' in overview
        page = (await http.get("/errors")).text
        assert f'{link}&amp;span=hour">ValueError</a>' in page
        assert 'data-label="failures">3</td><td class="num" data-label="instances">1</td>' in page
        assert "ActivityFailed" in page
        where = {"kind": "activity", "name": "charge", "error_type": "ValueError", "span": "day"}
        of = (await http.get("/errors", params=where)).text
        assert of.count('href="/instance?id=o"') == 3
        assert of.count('class="status retried"') == 2
        assert "ActivityFailed" not in of


async def test_suspended_instances_are_among_the_errors(sqlite_url: str) -> None:
    """On the overview, in the groups with the last one's message, and in their list; at any time, with their text."""
    codec = Encryption({"k": bytes(32)})
    options = RuntimeOptions.make(poll_interval=0.05, drain_timeout=0.1, worker_node_id="w", unregistered_timeout=0.1)
    async with Client(sqlite_url, codec=codec) as client:
        async with Worker(app, sqlite_url, options, codec=codec):
            await client.start("unknown to all", instance_id="o")

            async def is_suspended() -> bool:
                return (await client.status("o")).status == "suspended"

            await until(is_suspended)
        made = create(client, access=lambda request: Access(ALL, "ann"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://console.test") as http:
            link = '<a href="/errors?kind=suspension&amp;name=unknown+to+all&amp;error_type=UnknownOrchestration'
            overview = (await http.get("/")).text
            assert f'{link}">UnknownOrchestration in unknown to all</a>: 1 suspended since <time' in overview
            page = (await http.get("/errors")).text
            assert f'{link}&amp;span=hour">UnknownOrchestration</a>' in page
            assert page.count('href="/instance?id=o"') == 2, "of the group, and in the list"
            assert page.count("no worker registers the orchestration") == 2
            where = {"kind": "suspension", "name": "unknown to all", "error_type": "UnknownOrchestration"}
            of = (await http.get("/errors", params={**where, "text": "NO WORKER"})).text
            assert of.count('class="status suspended"') == 1


async def test_encrypted_texts_are_searched_with_their_key_alone(sqlite_url: str) -> None:
    """Groups need no key, and a page without it says what it does not search."""
    codec = Encryption({"k": bytes(32)})
    for key, matches in ((codec, 1), (None, 0)):
        async with failed_order(sqlite_url, codec=codec, key=key) as http:
            assert 'ValueError in charge</a>: 3 since <time class="clock"' in (await http.get("/")).text
            found = (await http.get("/errors", params={"text": "refused> 2"})).text
            assert found.count('href="/instance?id=o"') == matches
            assert ("they are not searched" in found) == (key is None)


async def test_texts_of_errors_are_searched(sqlite_url: str) -> None:
    """The page says how far it has looked; a wrong address is refused."""
    async with failed_order(sqlite_url) as http:
        found = (await http.get("/errors", params={"text": "<REFUSED> 2"})).text
        assert found.count('href="/instance?id=o"') == 1
        assert "Looked at the newest 10,000 of this time" in found
        listed = await http.get("/instances", params={"status": "failed"})
        assert '<a href="/errors?span=day">' in listed.text
        assert "No failure fits" in (await http.get("/errors", params={"text": "nothing"})).text
        for bad in ({"span": "year"}, {"kind": "wake", "name": "x"}, {"name": "x"}, {"after": "x"}):
            assert (await http.get("/errors", params=bad)).status_code == 400
