"""The sync client in a program: its calls are made in threads, from code with an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio.to_thread

import affinity.sync
from affinity import Client
from affinity.sync.loop import Opening
from affinity.sync.proxy import Proxy
from affinity.testing import Env


class SyncClient(affinity.sync.Client):
    """Of the database of an env, whose clock it has."""

    def __init__(self, env: Env) -> None:
        Proxy.__init__(cast(Any, self), Opening(_opened(env), env._database.url), Client(""))


@asynccontextmanager
async def _opened(env: Env) -> AsyncIterator[Client]:
    provider = await env._database.open(one_connection=True)
    try:
        async with Client.from_provider(await env._with_payloads(provider)) as client:
            yield client
    finally:
        await provider.aclose()


class InThread:
    """The methods of an object with a sync form, to be awaited."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            return await anyio.to_thread.run_sync(partial(_call, getattr(self._of, name), *args, **named))

        return call


def _call(method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call it; all rows of a listing, as its async form returns them when it is awaited."""
    found = method(*args, **named)
    return list(found) if isinstance(found, affinity.sync.Pages) else found
