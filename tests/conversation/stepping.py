"""A conversation in an `Env`, for the tests of steps and runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import affinity
from affinity import RetryPolicy, Wake
from affinity.testing import Env
from tests.conversation.application import Handler, make

RETRY: Final = RetryPolicy(max_attempts=3, initial_interval=1.0)


@asynccontextmanager
async def talk_to(
    server: str | None, handler: Handler, *others: affinity.Conversations[Any], **options: Any
) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
    """A conversation with this handler."""
    chats, app = make(handler, **{"retry": RETRY, **options}), affinity.App("steps")
    for each in (chats, *others):
        app.include(each)
    async with Env(app, url=server) as env:
        yield env, env.client.conversation(chats, "c")


class Failing:
    """Raises for the first attempts of each wake."""

    def __init__(self, attempts: int = 1) -> None:
        self._attempts = attempts

    def __call__(self, wake: Wake) -> None:
        if wake.attempt <= self._attempts:
            raise ConnectionError("the model is busy")


async def texts(talk: affinity.ConversationHandle) -> list[str]:
    """Of the entries with a text, in order."""
    return [entry.event.text for entry in await talk.history() if hasattr(entry.event, "text")]
