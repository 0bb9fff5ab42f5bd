"""The page of a session says what uses it and what was started for it; the stack of an error is text."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import anyio
import httpx2 as httpx
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.console import ALL, Access, create, hide_payloads
from affinity.console.stacks import stack_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("console-sessions")


@app.activity
async def works(ctx: ActivityContext) -> None:
    await anyio.sleep(300)


@app.activity
async def quick(ctx: ActivityContext) -> None:
    """End."""


@app.orchestration
async def uses(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(works).on_session("s")


@app.orchestration
async def holds(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(quick).on_session("s")
    await ctx.schedule_wait("go", hold_session="s", hold_for=3_000)


@app.orchestration
async def watches(ctx: OrchestrationContext) -> None:
    await ctx.schedule_session_moved("s")


@app.orchestration
async def idles(ctx: OrchestrationContext) -> None:
    await ctx.schedule_wait("go")


@app.orchestration
async def fails(ctx: OrchestrationContext) -> None:
    raise ValueError("first line\nsecond <line>")


@asynccontextmanager
async def opened(client: Client, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    console = create(client, access=lambda request: Access(ALL, "ann"), **options)
    transport = httpx.ASGITransport(app=console)
    async with httpx.AsyncClient(transport=transport, base_url="http://console.test") as http:
        yield http


async def test_the_page_of_a_session_names_what_uses_it(kept_url: str) -> None:
    """Holds, work and watches, which need not be of instances that were started for the session, and the other way
    round; a session that is only named has a page too.
    """
    options = RuntimeOptions.make(poll_interval=0.1, drain_timeout=0.1, worker_node_id="w")
    async with Worker(app, kept_url, options), Client(kept_url) as client:
        for main in (holds, uses, watches):
            await client.start(main, instance_id=main.__name__)
        await client.start(idles, instance_id="label", for_session="s")
        await client.start(idles, instance_id="other", for_session="only-named")

        async def all_use_it() -> bool:
            return {use.kind for use in await client.session_uses("s")} == {"hold", "work", "watch"}

        await until(all_use_it)
        async with opened(client) as http:
            page = await http.get("/session?id=s")
            used, _, started = page.text.partition("Instances started for it")
            for name, use in (("holds", "holds it"), ("uses", "runs on it"), ("watches", "watches its moves")):
                row = next(row for row in used.split("</tr>") if f'href="/instance?id={name}"' in row)
                assert f"<td>{use}</td>" in row
            assert "label" not in used.partition("What uses it now")[2]
            assert "whose <code>for_session</code> names it: 1." in started
            named = await http.get("/session?id=only-named")
            assert named.status_code == 200
            assert "instances were started for it" in named.text
            assert "No instance has work on it, holds it, or watches it." in named.text
            assert (await http.get("/session?id=unknown")).status_code == 404
            assert 'href="/session?id=only-named"' in (await http.get("/instance?id=other")).text


async def test_a_stack_is_text_with_the_frames_of_the_application_first(kept_url: str) -> None:
    options = RuntimeOptions.make(poll_interval=0.1, drain_timeout=0.1)
    async with Worker(app, kept_url, options), Client(kept_url) as client:
        await client.start(fails, instance_id="i")
        await client.wait_finished("i", 30)
        async with opened(client) as http:
            text = unescape((await http.get("/instance?id=i")).text)
        assert "ValueError: first line\nsecond <line>" in text
        own = re.search(r'<pre class="stack">(.*?)</pre>', text, re.DOTALL)
        assert own is not None
        assert f'File "{__file__}"' in own[1]
        assert "Traceback" not in own[1]
        assert text.index('<pre class="stack">') < text.index("Traceback (most recent call last)")
        async with opened(client, redact=hide_payloads) as http:
            hidden = (await http.get("/instance?id=i")).text
        assert "first line" not in hidden
        assert "Traceback" not in hidden


def test_frames_of_libraries_are_folded() -> None:
    text = """Traceback (most recent call last):
  File "/srv/shop/orders.py", line 7, in charge
    await bank.pay(order)
          ^^^^^^^^
  File "/usr/lib/python3.11/asyncio/tasks.py", line 1, in run
    run()
  File "/srv/.venv/lib/python3.11/site-packages/httpx/client.py", line 9, in send
    raise Refused
httpx.Refused: no

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/bank.py", line 3, in pay
    raise Late from error
  File "/app/affinity/orchestration/engine.py", line 3, in drive
    step()
shop.Late: too late
"""
    found = stack_of(text)
    assert found.own == (
        '  File "/srv/shop/orders.py", line 7, in charge\n    await bank.pay(order)\n          ^^^^^^^^\n'
        '  File "/srv/shop/bank.py", line 3, in pay\n    raise Late from error'
    )
    assert (found.whole, found.folded) == (text, 3)
    assert (stack_of("killed").own, stack_of("").folded) == ("", 0)
