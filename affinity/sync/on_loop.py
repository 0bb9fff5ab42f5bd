"""The sync form of a client that another owner has opened, such as a worker for its activities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from affinity.composed.client import Client as AsyncClient
from affinity.errors import ClientError
from affinity.sync.loop import LoopThread
from affinity.sync.proxies import Client
from affinity.sync.proxy import Proxy


class _Opened:
    """In place of an `Opening`: the client is opened on its loop at the first call, and its owner closes it."""

    def __init__(self, get: Callable[[], AsyncClient], loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self._get = get
        self._loop = LoopThread()
        self._loop._started = loop, thread

    def open(self) -> AsyncClient:
        """Return the client."""
        found: AsyncClient = self._loop.run(self._get)
        return found

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function, async or not, that is called on the loop."""
        return self._loop.run(function, *args)

    def close(self) -> None:
        """Refuse it."""
        raise ClientError("this client is the worker's, which closes it when it ends")


def client_on(get: Callable[[], AsyncClient], loop: asyncio.AbstractEventLoop, thread: int) -> Client:
    """Return the sync form of the client that ``get`` returns on this loop, which runs in this thread."""
    client = Client.__new__(Client)
    Proxy.__init__(client, _Opened(get, loop, thread), None)  # type: ignore[arg-type]
    return client
