"""An MCP server over HTTP for tests: a tool that ships a parcel, and one that a person has to approve."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from mcp.server import MCPServer

from tests.support.worker_processes import PATIENCE


@dataclass
class McpShop:
    """A server that runs, and what its tools have done."""

    url: str = ""
    effects: Counter[str] = field(default_factory=Counter)


@contextmanager
def served_shop() -> Iterator[McpShop]:
    """Run the server in a thread."""
    shop = McpShop()
    server = MCPServer("shop")

    @server.tool()
    def ship(parcel: int) -> str:
        shop.effects[f"ship {parcel}"] += 1
        return f"shipped {parcel}"

    @server.tool()
    def refund(cents: int) -> str:
        shop.effects[f"refund {cents}"] += 1
        return f"refunded {cents}"

    web = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="error"))
    thread = threading.Thread(target=web.run)
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not web.started:
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.01)
        shop.url = f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}/mcp"
        yield shop
    finally:
        web.should_exit = True
        thread.join(PATIENCE)
