"""MCP servers of agents, as a run has them: listings of tools are steps, and a server is connected when one needs it.

A call of a server is the step of its tool: see `copies`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from agents.mcp import MCPServer, MCPServerManager
from mcp import Tool

from affinity.integrations.agent_runs import Operation, current_number
from affinity.integrations.openai_agents.recording import StepsOfRun

_LISTING: Final = "tools"
"""Name of the steps of listings."""


class Servers:
    """The servers that a run has connected, until the stack is closed."""

    def __init__(self, run: StepsOfRun, stack: AsyncExitStack) -> None:
        self._run, self._stack = run, stack
        self._lock = anyio.Lock()
        self._open: set[MCPServer] = set()

    async def connect(self, servers: Iterable[MCPServer]) -> None:
        """Connect those of them that are not."""
        async with self._lock:
            for server in servers:
                if server not in self._open:
                    await self._stack.enter_async_context(_connected(server))
                    self._open.add(server)

    async def list_tools(self, server: MCPServer, context: Any, agent: Any) -> list[Tool]:
        """Return the tools of a server, by a step."""

        async def body() -> Any:
            await self.connect([server])
            tools = await server.list_tools(context, agent)
            return [tool.model_dump(mode="json", by_alias=True, exclude_unset=True) for tool in tools]

        operation = Operation(_LISTING, [str(current_number.get()), server.name], {})
        found, *_ = await self._run._record(operation, body, "the list of an MCP server's tools")
        return [Tool.model_validate(tool) for tool in found]


class RecordedServer:
    """A server whose listings are steps. All else is the server's."""

    def __init__(self, server: MCPServer, servers: Servers) -> None:
        self._server, self._servers = server, servers
        self._cached: list[Tool] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        """Return the tools that are recorded, or ask the server: once in a run, if it caches them."""
        if self._cached is not None:
            return self._cached
        tools = await self._servers.list_tools(self._server, run_context, agent)
        if getattr(self._server, "cache_tools_list", False):
            self._cached = tools
        return tools


@dataclass
class _Connection:
    """The connection of a server that the application has not connected. The runs of a process share it."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)


_connections: Final[WeakKeyDictionary[MCPServer, _Connection]] = WeakKeyDictionary()


@asynccontextmanager
async def _connected(server: MCPServer) -> AsyncIterator[None]:
    """Have a server connected in the block. A server that the application has connected is left as it is, and so is one
    without the attribute ``session``, by which the SDK's own servers say whether they are.
    """
    shared = _connections.setdefault(server, _Connection())
    async with shared.lock:
        is_shared = shared.users > 0 or getattr(server, "session", server) is None
        if is_shared and not shared.users:
            await shared.opened.enter_async_context(_manager_of(server))
        shared.users += is_shared
    try:
        yield
    finally:
        if is_shared:
            with anyio.CancelScope(shield=True):
                async with shared.lock:
                    shared.users -= 1
                    if not shared.users:
                        await shared.opened.aclose()


def _manager_of(server: MCPServer) -> MCPServerManager:
    """Return what connects a server and closes it, both in one task, as its transport wants it."""
    return MCPServerManager(
        [server],
        connect_timeout_seconds=None,  # the server has a timeout of its own
        strict=True,
        suppress_cancelled_error=False,
        connect_in_parallel=True,
    )
