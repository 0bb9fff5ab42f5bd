"""A store whose clock the test moves, with a manager of its records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from affinity import SessionManager, SessionStore
from affinity.provider.contract import Provider
from affinity.session import SessionFilter, SessionMetadata, SessionState
from affinity.session.codec import pack
from affinity.session.stores import MemorySessionStore


@dataclass
class ClockedStore:
    """A store whose clock the test moves."""

    store: SessionStore
    advance: Callable[[float], Awaitable[None]]
    provider: Provider | None = None
    manager: SessionManager = field(init=False)

    def __post_init__(self) -> None:
        self.manager = SessionManager(self.store)

    async def put(self, session_id: str, state: bytes = b"{}", *, schema_version: int = 1, **metadata: Any) -> None:
        """Write a record, a second after whatever was written before."""
        await self.advance(1.0)
        packed, encoding = pack(state)
        about = SessionMetadata(**metadata)
        new = SessionState(
            session_id=session_id, state=packed, encoding=encoding, schema_version=schema_version, metadata=about
        )
        await self.store.save(new)

    async def ids(self, **where: Any) -> list[str]:
        return [summary.session_id async for summary in self.manager.list(SessionFilter(**where))]

    async def lines(self, *session_ids: str) -> list[str]:
        return [line async for line in self.manager.export(session_ids or SessionFilter())]


def in_memory() -> ClockedStore:
    now = datetime(2026, 7, 31, tzinfo=UTC)

    async def advance(seconds: float) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)

    return ClockedStore(MemorySessionStore(clock=lambda: now), advance)
