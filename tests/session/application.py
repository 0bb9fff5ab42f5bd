"""An application around the session cache, which writes down what the cache asks of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from affinity import SessionCache
from affinity.session.state_cache import SessionContext


@dataclass
class LeaseContext:
    """An activity context, as far as the cache looks at one."""

    session_id: str | None = "a"
    session_epoch: int | None = 1


@dataclass(eq=False)
class State:
    session_id: str
    number: int
    turns: int = 0


@dataclass
class Application:
    """Callbacks that write down what the cache asked for."""

    made: list[State] = field(default_factory=list)
    saved: list[tuple[str, int]] = field(default_factory=list)
    disposed: Counter[int] = field(default_factory=Counter)
    now: float = 0.0

    async def hydrate(self, session_id: str) -> State:
        await anyio.lowlevel.checkpoint()
        self.made.append(State(session_id, len(self.made) + 1))
        return self.made[-1]

    async def checkpoint(self, session_id: str, state: State) -> None:
        await anyio.lowlevel.checkpoint()
        self.saved.append((session_id, state.turns))

    async def dispose(self, session_id: str, state: State) -> None:
        assert session_id == state.session_id
        self.disposed[state.number] += 1
        await anyio.lowlevel.checkpoint()

    def cache(self, *, max_sessions: int = 100, idle_timeout: float | None = 10.0) -> SessionCache[State]:
        return SessionCache(
            hydrate=self.hydrate,
            checkpoint=self.checkpoint,
            dispose=self.dispose,
            max_sessions=max_sessions,
            idle_timeout=idle_timeout,
            timer=lambda: self.now,
        )


@asynccontextmanager
async def used(cache: SessionCache[State], lease: SessionContext) -> AsyncIterator[State]:
    """A use by another task, for as long as the block lasts."""
    leave, entered, states = anyio.Event(), anyio.Event(), []

    async def user() -> None:
        async with cache.use(lease) as state:
            states.append(state)
            entered.set()
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(user)
        await entered.wait()
        try:
            yield states[0]
        finally:
            leave.set()


async def visit(
    cache: SessionCache[State], session_id: str = "a", epoch: int = 1, *, error: Exception | None = None
) -> State:
    async with cache.use(LeaseContext(session_id, epoch)) as state:
        state.turns += 1
        if error is not None:
            raise error
    return state


def noisy_cache(log: list[str], *, max_sessions: int = 100) -> SessionCache[str]:
    def hydrate(session_id: str) -> str:
        log.append(f"hydrate {session_id}")
        return session_id

    def dispose(session_id: str, _: str) -> None:
        log.append(f"dispose {session_id}")

    return SessionCache(hydrate=hydrate, dispose=dispose, max_sessions=max_sessions)
