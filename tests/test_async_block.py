"""A block for `async with` says so if it is opened with `with`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import affinity
from affinity import App, Client, Worker, migrate
from affinity.errors import AffinityError

URL = "sqlite:///never_opened.db"


@pytest.mark.parametrize("make", [lambda: Client(URL), lambda: Worker(App(), URL)])
def test_a_plain_with_names_the_remedy(make: Callable[[], Any]) -> None:
    block = make()
    with pytest.raises(TypeError, match=f"{type(block).__name__} is opened with `async with`"), block:
        pass


async def test_a_state_that_is_not_opened_names_the_remedy(sqlite_url: str) -> None:
    """Its block gives the state: `chats.open(ctx).text` has none."""
    states: Any = affinity.Sessions(dict, kind="states")
    with pytest.raises(AttributeError, match=r"no attribute 'text': .*`async with chats.open\(ctx\) as chat`"):
        _ = states.open("s", store=affinity.MemorySessionStore()).text
    with pytest.raises(AttributeError, match=r"no attribute 'text': .*`with chats.open_sync\(ctx\) as chat`"):
        _ = states.open_sync("s", store=affinity.MemorySessionStore()).text


@pytest.mark.anyio
async def test_an_object_that_is_open_is_not_opened_again(sqlite_url: str) -> None:
    """The inner block would close what the outer one uses. A client may be opened again when it is closed."""
    await migrate(sqlite_url)
    client = Client(sqlite_url)
    for _ in range(2):
        async with client:
            with pytest.raises(AffinityError, match="open already: use it, or make another Client"):
                await client.__aenter__()
            await client.start("anything")
    worker = Worker(App(), sqlite_url)
    async with worker:
        with pytest.raises(AffinityError, match="opened before: make another Worker"):
            await worker.__aenter__()
    with pytest.raises(AffinityError, match="opened before: make another Worker"):
        await worker.__aenter__()
