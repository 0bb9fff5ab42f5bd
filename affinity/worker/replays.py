"""Replaying instances from their histories: in pages, and beside everything else that the worker does.

States of one `Replay`::

    waiting ──its round──► reading ──a page, and there may be more──► waiting, behind the others
       │                     └──the last page, or an error──► over: `done` is called
       └──`remove`: the instance is given up──► over: nothing is called

A round reads the next page of each instance that waits, until the pages have ``max_bytes`` together. Instances that
received no page are first in the next round; the others are behind them. So a short history waits for at most one page
of a long one, and the memory in use does not depend on the number or the length of the histories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import anyio.lowlevel

from affinity.errors import DatabaseChanged, NotSerializable, OrchestrationUnreadable
from affinity.orchestration.engine import Execution
from affinity.orchestration.wire import decode_event
from affinity.provider.contract import HistoryCursor, HistoryPage, InstanceValue
from affinity.records import raise_unreadable
from affinity.tasks import call_without_task
from affinity.worker.retry import is_retryable

ROUND: Final = 200
"""Histories that one round reads of: as many as one fetch brings instances."""

SLICE: Final = 200
"""Events that are replayed in one step of the event loop: a few milliseconds."""

Read: TypeAlias = Callable[[Sequence[HistoryCursor]], Awaitable[Sequence[HistoryPage]]]
ReadValues: TypeAlias = Callable[[Collection[str]], Awaitable[Sequence[InstanceValue]]]


@dataclass(slots=True, eq=False)
class Replay:
    """The replay of one execution, to the end of its history."""

    execution: Execution
    done: Callable[[Exception | None], None]
    """Receives None at the end of the history, or the error that prevents the replay."""
    is_suspect: bool
    """Whether worker after worker took the instance and committed no turn of it."""
    lacks_values: bool = False
    """Whether former executions may have left values that it has not read yet."""
    events: int = 0
    """Number of events that were read."""
    size: int = 0
    """Characters of these events."""

    @property
    def cursor(self) -> HistoryCursor:
        """Where the next page begins."""
        return HistoryCursor(self.execution.instance_id, self.execution.execution_id, self.events)


class Replays:
    """The executions that are being replayed.

    Args:
        read: the next pages of some histories, as `Provider.read_history` gives them.
        written: waits until what was submitted is written: before an instance runs that may end this process.
        read_values: the values of some instances, as `Provider.get_values` gives them; for replays that lack them.
    """

    def __init__(
        self, read: Read, written: Callable[[], Awaitable[None]], read_values: ReadValues | None = None
    ) -> None:
        self._read = read
        self._read_values = read_values
        self._written = written
        self._waiting: dict[Replay, None] = {}
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_suspect(self) -> bool:
        """Whether one of them may end this process: `Replay.is_suspect`."""
        return any(replay.is_suspect for replay in self._waiting)

    def add(self, replay: Replay) -> None:
        """Begin a replay."""
        replay.execution.begin_replay()
        self._waiting[replay] = None
        self._arrived.set()

    def remove(self, replay: Replay) -> None:
        """Forget the replay of an instance that is given up."""
        self._waiting.pop(replay, None)

    async def arrived(self) -> None:
        """Wait until there is something to replay."""
        await self._arrived.wait()

    async def take_round(self) -> None:
        """Read the next page of each, and replay it.

        Raises:
            ProviderError: the database does not answer; no replay is lost.
        """
        if any(replay.is_suspect and not replay.events for replay in self._waiting):
            await self._written()
        wanted = list(islice(self._waiting, ROUND))
        if lacking := [replay for replay in wanted if replay.lacks_values]:
            await self._take_values(lacking)
            wanted = [replay for replay in wanted if replay in self._waiting]
        for replay, page in zip(wanted, await self._pages(wanted), strict=True):
            if isinstance(page, Exception):
                self._end(replay, OrchestrationUnreadable(f"its history cannot be read: {page}"), page)
            elif page.events or not page.more:
                await self._replay(replay, page)
        if not self._waiting:
            self._arrived.clear()

    async def _take_values(self, replays: Sequence[Replay]) -> None:
        """Read the values of their instances; end the replay of one that the database or its driver cannot read."""
        assert self._read_values is not None
        try:
            found = await self._read_values([replay.execution.instance_id for replay in replays])
        except Exception as error:
            if is_retryable(error) or isinstance(error, DatabaseChanged):
                raise
            if len(replays) > 1:
                for replay in replays:
                    await self._take_values([replay])
            else:
                self._end(replays[0], OrchestrationUnreadable(f"its values cannot be read: {error}"), error)
            return
        values: dict[str, dict[str, str]] = {}
        for each in found:
            values.setdefault(each.instance_id, {})[each.key] = each.value
        for replay in replays:
            mine = values.get(replay.execution.instance_id, {})
            try:
                for text in mine.values():
                    raise_unreadable(text)
            except NotSerializable as error:
                self._end(replay, OrchestrationUnreadable(f"its values cannot be read: {error}"), error)
                continue
            replay.lacks_values = False
            replay.execution.accept_values(mine)

    async def _pages(self, replays: Sequence[Replay]) -> Sequence[HistoryPage | Exception]:
        """The next page of each; for one that the database or its driver cannot read, the error in its place."""
        if not replays:
            return []
        try:
            return await self._read([replay.cursor for replay in replays])
        except Exception as error:
            if is_retryable(error) or isinstance(error, DatabaseChanged):
                raise
            if len(replays) == 1:
                return [error]
        return [page for replay in replays for page in await self._pages([replay])]

    async def _replay(self, replay: Replay, page: HistoryPage) -> None:
        for start in range(0, len(page.events), SLICE):
            if start:
                await anyio.lowlevel.checkpoint()
            if replay not in self._waiting:
                return
            try:
                _take_events(replay, page.events[start : start + SLICE])
            except Exception as error:
                self._end(replay, error)
                return
        if replay not in self._waiting:
            return
        if page.more:
            self._waiting[replay] = self._waiting.pop(replay)
            return
        self._finish(replay)

    def _finish(self, replay: Replay) -> None:
        try:
            call_without_task(replay.execution.end_replay)
        except Exception as error:
            self._end(replay, error)
        else:
            self._end(replay, None)

    def _end(self, replay: Replay, error: Exception | None, cause: Exception | None = None) -> None:
        if replay in self._waiting:
            del self._waiting[replay]
            if error is not None and cause is not None:
                error.__cause__ = cause
            replay.done(error)


def _take_events(replay: Replay, texts: Sequence[str]) -> None:
    """Replay the next events.

    Raises:
        OrchestrationUnreadable: one of them is not as this version knows it.
    """
    events = []
    for text in texts:
        replay.events += 1
        replay.size += len(text)
        try:
            events.append(decode_event(text))
        except NotSerializable as error:
            raise OrchestrationUnreadable(f"event {replay.events} cannot be read: {error}") from error
    call_without_task(replay.execution.replay_page, events)
