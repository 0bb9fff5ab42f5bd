"""Conversations whose wakes run on the lease of another one, over long times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import affinity
from affinity.conversation import UserMessage
from affinity.testing import Env
from tests.conversation.application import Chat, make

KEEPS = 200
"""Seconds between two messages that keep a session with its worker: less than `RuntimeOptions.session_lock_timeout`."""


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Of an `Env`; None: SQLite."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_shared")


@asynccontextmanager
async def an_env(server: str | None) -> AsyncIterator[tuple[Env, affinity.Conversations[Chat]]]:
    chats, app = make(), affinity.App("homes")
    app.include(chats)
    async with Env(app, url=server) as env:
        yield env, chats


async def test_a_fork_beside_goes_on_after_a_long_pause(server: str | None) -> None:
    """The row of its own session is removed in it, with an epoch that its record has, and that is greater than the one
    of its home, which stays where it is.
    """
    async with an_env(server) as (env, chats):
        source = env.client.conversation(chats, "source")
        await source.ask(UserMessage("1"))
        fork = await source.fork("fork", beside=True)
        await fork.ask(UserMessage("2"))
        before = [one.epoch async for one in env.client.sessions() if one.session_id == "source"]
        for _ in range(10):
            await env.advance(KEEPS)
            await source.ask(UserMessage("still here"))
        held = {one.session_id: one.epoch async for one in env.client.sessions()}
        assert ("fork" in held, held["source"]) == (False, before[0])
        assert (await fork.ask(UserMessage("3"))).text == "re: 3"
