"""Reading a whole history, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from affinity.provider.contract import HistoryCursor, HistoryPage, Provider


async def history_pages(
    read: Callable[[HistoryCursor], Awaitable[HistoryPage]], at: HistoryCursor
) -> AsyncIterator[Sequence[str]]:
    """The events behind a cursor, oldest first, a page at a time."""
    more = True
    while more:
        page = await read(at)
        yield page.events
        at = at._replace(after=at.after + len(page.events))
        more = page.more


async def read_whole_history(provider: Provider, instance_id: str, execution_id: int) -> list[str]:
    """All events of one execution, oldest first: for histories that are known to fit into memory."""

    async def read(at: HistoryCursor) -> HistoryPage:
        (page,) = await provider.read_history([at])
        return page

    pages = history_pages(read, HistoryCursor(instance_id, execution_id))
    return [event async for events in pages for event in events]
