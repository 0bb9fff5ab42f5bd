"""Common parts of the suite's themes: a fixture for an empty store, and helpers that write and read records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import anyio
import pytest

from affinity import SessionStore
from affinity.errors import Contention
from affinity.session import SessionFilter, SessionMetadata, SessionRecord, SessionState

_Result = TypeVar("_Result")

EVERYTHING: Final = SessionFilter()
PAGE: Final = 1_000
"""More records than any test writes."""


class StoreHarness(Protocol):
    """An empty set of records, for one test."""

    async def open(self) -> SessionStore:
        """One more store object on the same records, as another process would have. The harness closes it."""
        ...

    async def advance(self, seconds: float) -> None:
        """Move the store's clock forward, for every store object; a stopped clock runs again."""
        ...

    async def stop_clock(self) -> None:
        """Stop the store's clock, so that all writes before the next `advance` have the same time."""
        ...

    async def aclose(self) -> None:
        """Close the store objects and remove the records."""
        ...


class StoreRules:
    """One theme of the suite. Its tests need a fixture ``harness``, which the class that runs them defines."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop to run on; the tests of a store for another one override it."""
        return "asyncio"

    @pytest.fixture
    async def store(self, harness: StoreHarness) -> SessionStore:
        """A store without records."""
        return await harness.open()


def state(
    session_id: str = "s", content: bytes = b"state", *, schema_version: int = 1, **metadata: Any
) -> SessionState:
    """A state with this content; the keywords are fields of its metadata."""
    return SessionState(
        session_id=session_id, state=content, schema_version=schema_version, metadata=SessionMetadata(**metadata)
    )


async def loaded(store: SessionStore, session_id: str = "s") -> SessionRecord:
    """The session's record, which must exist."""
    record = await store.load(session_id)
    assert record is not None, session_id
    return record


async def ids(store: SessionStore, where: SessionFilter = EVERYTHING) -> list[str]:
    """The session ids of a listing, in its order."""
    return [row.session_id for row in await store.list(where, PAGE)]


def plain(metadata: SessionMetadata) -> tuple[object, ...]:
    """The metadata in types that compare equal, whichever containers hold it."""
    about = metadata
    return (about.kind, about.name, about.parent, dict(about.labels), about.message_count, list(about.participants))


async def concurrently(*calls: Callable[[], Awaitable[_Result]]) -> list[_Result]:
    """Run calls concurrently, as `retried`; their results in the order of the calls."""
    results: dict[int, _Result] = {}

    async def run(index: int, call: Callable[[], Awaitable[_Result]]) -> None:
        results[index] = await retried(call)

    async with anyio.create_task_group() as group:
        for index, call in enumerate(calls):
            group.start_soon(run, index, call)
    return [results[index] for index in range(len(calls))]


async def retried(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Repeat the call while it raises `Contention`."""
    while True:
        with suppress(Contention):  # nothing was changed
            return await call()
