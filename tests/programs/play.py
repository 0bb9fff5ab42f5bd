"""A program that runs: its env, and the pauses of its clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import anyio
import anyio.to_thread

from affinity.errors import InvalidInput
from affinity.testing import Env
from tests.programs.calls import Calls
from tests.programs.program import Size
from tests.programs.rest import check_queues
from tests.programs.threads import SyncClient

STALL_TICKS: Final = 4
"""Commits and jumps for which a worker stands still."""

STEP_SECONDS: Final = 5.0
"""Real seconds of a step after which workers that stand still go on."""

LOOKS: Final = (1.25, 2.0)
"""Factor between the ticks of two looks at the queues, which take longer as the tables grow: of the first
`FIRST_TICKS`, and from then on.
"""

FIRST_TICKS: Final = 200


class Play:
    """The state that the areas of a running program share."""

    def __init__(self, env: Env, calls: Calls, *, has_faults: bool = False, size: Size = "any") -> None:
        self.env = env
        self.size: Size = size
        self.calls = calls
        """What the code of the program calls itself."""
        self.has_faults = has_faults
        """Whether workers crash, stand still or lose answers."""
        self.suspends = False
        """Whether a release runs with which instances cannot go on."""
        self.ticks = 0
        """Commits of the workers, and jumps of the clock, so far."""
        self._pauses: list[tuple[int, int, asyncio.Event]] = []  # due at this tick
        self._numbers = itertools.count()
        self._calls: list[asyncio.Task[None]] = []
        self._later: list[asyncio.Task[None]] = []
        self._is_over = False

    @cached_property
    def sync(self) -> SyncClient:
        """A client without an event loop of its own, for calls in threads."""
        return SyncClient(self.env)

    def worker(self, number: int) -> str | None:
        """The name of one of the workers that run; None: a rollout has taken the last one away."""
        workers = self.env.workers
        return workers[number % len(workers)] if workers else None

    async def pause(self, ticks: int) -> None:
        """Wait until the workers have made this many commits; a jump of the clock counts as one. It ends earlier when
        nothing runs and nothing is due. After `stop` it does not wait.
        """
        if ticks > 0 and not self._is_over:
            ended = asyncio.Event()
            self._pauses.append((self.ticks + ticks, next(self._numbers), ended))
            self._pauses.sort()
            await ended.wait()

    def later(self, ticks: int, what: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Do this in so many ticks; if it is about a worker, if that runs by then."""

        async def do() -> None:
            await self.pause(ticks)
            with suppress(InvalidInput):
                await what(*arguments)

        self._later.append(asyncio.ensure_future(do()))

    def start_call(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a call of a client that waits for what may not come: it is ended before the checks."""
        self._calls.append(asyncio.ensure_future(call))

    def tick(self) -> None:
        """A commit, or a jump."""
        self.ticks += 1
        while self._pauses and self._pauses[0][0] <= self.ticks:
            self._pauses.pop(0)[2].set()

    def tick_often(self) -> None:
        """End the pauses that a stall takes: another worker has what the one that stands still had."""
        for _ in range(STALL_TICKS):
            self.tick()

    async def drive(self) -> None:
        """Move the clock whenever nothing runs; where nothing is due, end the next pause. Runs until `stop`: a step
        that is cancelled may close the connection to the database.
        """
        look_at = 1.0
        while not self._is_over:
            if await self._step():
                self.tick()
                if self.ticks >= look_at:
                    look_at = self.ticks * LOOKS[self.ticks > FIRST_TICKS]
                    with self.env.freeze():  # the database may fail over: nothing is known of what is due
                        await check_queues(self.env)
            elif self._pauses:
                self.ticks = self._pauses[0][0] - 1
                self.tick()
            else:
                await asyncio.sleep(0.001)

    async def _step(self) -> bool:
        """A step of the env. Code may wait for a state that a worker has which stands still, and that a pause wakes."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_pauses)
            moved = await self.env.step()
            tasks.cancel_scope.cancel()
        return moved

    async def _end_pauses(self) -> None:
        while True:
            await anyio.sleep(STEP_SECONDS)
            self.tick_often()

    def stop(self) -> None:
        """End `drive` behind its present step."""
        self._is_over = True

    async def end(self) -> None:
        """End all pauses, and what was to be done later."""
        for _, _, ended in self._pauses:
            ended.set()
        self._pauses.clear()
        for task in self._later:
            await task

    async def close(self) -> None:
        """Close the sync client, if there is one."""
        if "sync" in vars(self):
            await anyio.to_thread.run_sync(self.sync.close)

    async def end_calls(self) -> None:
        """End the calls that are still waiting."""
        for call in self._calls:
            call.cancel()
        for ended in await asyncio.gather(*self._calls, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
