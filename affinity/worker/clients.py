"""The client of a worker, which its activities use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

from affinity.errors import ClientError
from affinity.provider.contract import Provider


class WorkerClient(Protocol):
    """A client on the provider of a worker: `affinity.Client`."""

    def _open_given(self) -> None:
        """Open it, on this event loop, without waiting."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        ...


class ClientMaker(Protocol):
    """Makes the clients of a worker. The kernel's worker knows no client."""

    def make(self, provider: Provider) -> WorkerClient:
        """Return a client on this provider, which is not open."""
        ...

    def to_sync(self, get: Callable[[], Any], loop: asyncio.AbstractEventLoop, thread: int) -> object:
        """Return the sync form of the client that ``get`` returns on this loop, which runs in this thread."""
        ...


class WorkerClients:
    """Opens the client at its first use. For the event loop of the worker, but for `get_sync_client`."""

    def __init__(self, maker: ClientMaker, provider: Provider, variables: Context) -> None:
        """The tasks of the client have copies of these context variables."""
        self._maker, self._provider, self._variables = maker, provider, variables
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._client: WorkerClient | None = None
        self._is_closed = False

    def get_client(self) -> Any:
        """Return the client, for code on the event loop.

        Raises:
            ClientError: the caller runs in a thread, or the worker has ended.
        """
        if threading.get_ident() != self._thread:
            raise ClientError("ctx.client is for async code: in a function that is not async, use ctx.sync_client")
        if self._is_closed:
            raise ClientError("the worker has ended, and its client with it")
        if self._client is None:
            client = self._maker.make(self._provider)
            self._variables.copy().run(client._open_given)
            self._client = client
        return self._client

    def get_sync_client(self) -> Any:
        """Return the sync form of the client, for code in threads.

        Raises:
            ClientError: the caller runs on the event loop, or the worker has ended.
        """
        if threading.get_ident() == self._thread:
            raise ClientError("ctx.sync_client is for code that is not async: in an async function, use ctx.client")
        return self._maker.to_sync(self.get_client, self._loop, self._thread)

    async def aclose(self) -> None:
        """Close the client, if it was used."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)
