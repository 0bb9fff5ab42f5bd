"""A prototype of cells: several ordinary databases behind one client. The decision 0033 says what it leaves open.

It is no part of the product: it shows what routing by the id of a root costs, and what happens to running work when a
cell is added.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import affinity


def rendezvous(root_id: str, cells: Sequence[str]) -> str:
    """Return the cell of an id: the one with the highest score. A cell more takes ids from all others, and no id goes
    from one of the others to another.
    """
    return max(cells, key=lambda cell: hashlib.blake2b(f"{cell}\0{root_id}".encode(), digest_size=8).digest())


class Cells:
    """Clients of several databases, each a cell with a name.

    Attributes:
        exceptions: cells of ids that are not where their hash says. They win.
    """

    def __init__(self, clients: Mapping[str, affinity.Client], exceptions: Mapping[str, str]) -> None:
        self.clients = clients
        self.exceptions = dict(exceptions)

    def cell_of(self, root_id: str) -> str:
        """Return the name of the cell in which this root, and everything below it, is."""
        return self.exceptions.get(root_id) or rendezvous(root_id, [*self.clients])

    def client_of(self, root_id: str) -> affinity.Client:
        """Return the client of that cell, for all calls that name the root."""
        return self.clients[self.cell_of(root_id)]

    async def start(self, name: Any, data: Any, root_id: str) -> None:
        """Start an orchestration in its cell. Its id has to be known before: it decides where."""
        await self.client_of(root_id).start(name, data, instance_id=root_id)

    async def list(self) -> list[affinity.Instance]:
        """Return the instances of all cells, the newest first. It is no snapshot: each cell is read at its own time."""
        found = [one for client in self.clients.values() async for one in client.list_instances()]
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    async def exceptions_for(self, cells: Sequence[str]) -> dict[str, str]:
        """Return the exceptions that keep running roots where they are when these are the cells."""
        return {
            one.instance_id: cell
            for cell, client in self.clients.items()
            async for one in client.list_instances()
            if one.parent_id is None and not one.finished and rendezvous(one.instance_id, cells) != cell
        }


@asynccontextmanager
async def open_cells(urls: Mapping[str, str], exceptions: Mapping[str, str] | None = None) -> AsyncIterator[Cells]:
    """Open a client for each cell."""
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(affinity.Client(url)) for name, url in urls.items()}
        yield Cells(clients, exceptions or {})
