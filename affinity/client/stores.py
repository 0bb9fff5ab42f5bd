"""The records of session state in a database, for code that is no activity."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from affinity.client.calls import insist
from affinity.provider import open_provider
from affinity.records import SessionStore
from affinity.session.retry import RetryingStore


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[SessionStore]:
    """The store of session records in the database at ``url``, for scripts and web handlers.

    ::

        async with open_store("sqlite:///affinity.db") as store, chats.open("chat-17", store=store) as chat:
            chat.title = "Tea"

    Calls are repeated as those of a `Client`: for a bounded time, and only where that does no harm.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied, SchemaMismatch: as `affinity.provider.open_provider`.
    """
    provider = await open_provider(url, application_name="affinity store")
    try:
        yield insistent(provider.states)
    finally:
        await provider.aclose()


def insistent(store: SessionStore) -> SessionStore:
    """The store, its calls repeated as those of a `Client`."""
    return RetryingStore(store, reading=insist, writing=partial(insist, twice=False))
