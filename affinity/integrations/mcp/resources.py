"""Clients of MCP servers as resources of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeAlias

from mcp import Client as McpClient
from mcp import StdioServerParameters

from affinity import Resource

McpServer: TypeAlias = StdioServerParameters | str
"""A command that speaks the protocol over its standard input and output, or the URL of a server."""


def server_resource(
    server: McpServer | Callable[[str], McpServer], *, name: str | None = None, **options: Any
) -> Resource[McpClient]:
    """Return a resource: an open client of an MCP server, one for each session, on the worker that holds it.

    ::

        files = server_resource(lambda session: StdioServerParameters(command="files", args=[session]), name="files")


        @app.activity
        async def read(ctx: ActivityContext, path: str) -> str:
            opening = sessions.open(ctx)
            async with opening:
                client = await opening.resource(files)
                found = await client.call_tool("read", {"path": path})
                return found.content[0].text

    The client, and with it a command, ends with the session's stay in the process: when it moves, is evicted, or the
    worker drains. Its next use opens another one, where the session is then. What the server keeps in memory goes with
    it. After an activity has failed, the next one opens another client too.

    Args:
        server: a command, or a URL; or a function that returns one for the id of a session.
        name: by which metrics and pages show how long it takes to open.
        options: of `mcp.Client`, such as ``read_timeout_seconds``.
    """
    kept: dict[int, _Kept] = {}  # by the identity of the client

    async def open_client(session_id: str) -> McpClient:
        found = server(session_id) if callable(server) else server
        one = _Kept(McpClient(found, **options))
        await one.open()
        kept[id(one.client)] = one
        return one.client

    async def close_client(session_id: str, client: McpClient) -> None:
        await kept.pop(id(client)).close()

    return Resource(open=open_client, close=close_client, on_error="dispose", name=name)


class _Kept:
    """An open client. One task opens and closes it, since its cancel scopes belong to a task."""

    def __init__(self, client: McpClient) -> None:
        self.client = client
        self._closing = asyncio.Event()
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None]

    async def open(self) -> None:
        """Open it.

        Raises:
            Exception: of the client, which is closed then.
        """
        # Of no activity: its variables end with it, and the client stays.
        self._task = asyncio.get_running_loop().create_task(self._keep(), context=Context())
        try:
            await asyncio.wait([self._task, self._is_open], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._task.cancel()
            raise
        if not self._is_open.done():
            await self._task

    async def close(self) -> None:
        """Close it."""
        self._closing.set()
        await self._task

    async def _keep(self) -> None:
        async with self.client:
            self._is_open.set_result(None)
            await self._closing.wait()
