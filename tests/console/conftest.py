"""A database with something of each kind in it, and a browser without a screen: a client that reads HTML."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest

from affinity import Client, RuntimeOptions, Worker
from affinity.conversation import UserMessage
from affinity.errors import OrchestrationFailed
from affinity.flow.store.contract import LimitClosing, LimitSpec, limits_of
from affinity.session import SessionMetadata, SessionState
from tests.support.console_app import app, chats, needs, shows, spoils, stays
from tests.support.limits import declare, wait_at
from tests.support.waiting import until

if TYPE_CHECKING:  # tests are skipped, and this file is not, where neither is installed
    import httpx2 as httpx

Open: TypeAlias = "Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]"

TEXT = "plain"

ORIGIN = {"origin": "http://console.test"}


async def fill(client: Client, text: str, prefix: str = "") -> None:
    """Make one of each kind, with this text in each field that code of an application gives."""
    session, line = f"{prefix}s", " ".join(text[:100].split())
    await (await client.start(shows, text, instance_id=f"{prefix}shown", for_session=session)).wait(20)
    about = SessionMetadata(parent=session, labels={"affinity.resource/box": "box-1"})
    await client.session_store.save(SessionState(session_id=f"{prefix}child", state=b"{}", metadata=about))
    with pytest.raises(OrchestrationFailed):
        await (await client.start(spoils, text, instance_id=f"{prefix}spoilt")).wait(20)
    await client.start(stays, text, instance_id=f"{prefix}stays")
    await client.start(needs, line, instance_id=f"{prefix}needs")
    await client.schedules.create(f"{prefix}nightly", line, every=3600)
    await client.schedules.pause(f"{prefix}nightly", text[:1000].replace("\0", ""))
    provider, limit = client._provider, f"{prefix}limit"
    await declare(provider, LimitSpec(name=limit, keyed=True, concurrency=0))
    await wait_at(provider, limit, f"{prefix}limited", key=f"{prefix}key")
    await limits_of(provider).close_limits([LimitClosing(limit=limit, seconds=3600.0, reason=text.replace("\0", ""))])
    await client.start("unknown to all", text[:100], instance_id=f"{prefix}suspended")
    talk = client.conversation(chats, f"{prefix}talk")
    titles = {"title": line, "owner": line, "labels": {"team": line}}
    await talk.ask(UserMessage(text), timeout=20, **titles)  # type: ignore[arg-type]

    async def is_suspended() -> bool:
        return (await client.status(f"{prefix}suspended")).status == "suspended"

    async def waits() -> bool:
        found = await client.explain(f"{prefix}stays")
        return found is not None and found.code == "event"

    await until(is_suspended)
    await until(waits)


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    """Of a database with a worker."""
    options = RuntimeOptions(poll_interval=0.1, worker_node_id="one", unregistered_timeout=0.2, drain_timeout=0.1)
    async with Worker(app, kept_url, options), Client(kept_url) as client:
        yield client


@pytest.fixture
def open_console(client: Client) -> Open:
    """Opens a console over the client, with these arguments of `create`; by default all may do all."""
    import httpx2 as httpx

    from affinity.console import ALL, Access, create

    @asynccontextmanager
    async def opened(**options: object) -> AsyncIterator[httpx.AsyncClient]:
        chosen: dict[str, object] = {"access": lambda request: Access(ALL, "ann"), **options}
        console = create(client, **chosen)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app=console)
        async with httpx.AsyncClient(transport=transport, base_url="http://console.test") as http:
            yield http

    return opened


async def token(http: httpx.AsyncClient, address: str = "/approvals") -> str:
    """The token of the forms of a browser, which has the cookie from now on."""
    found = re.search(r'name="token" value="([0-9a-f]+)"', (await http.get(address)).text)
    assert found is not None
    return found[1]


async def answer_form(client: Client, http: httpx.AsyncClient, **fields: str) -> dict[str, str]:
    request = (await client.requests())[0]
    form = {"conversation": request.conversation_id, "request": request.request_id, "answer": "allow"}
    return {"token": await token(http), **form, **fields}
