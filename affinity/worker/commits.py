"""A worker's writes of turns and work items, each kind in a group commit of its own (`GroupCommit`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from affinity.errors import ProviderError, SessionWriteConflict
from affinity.provider.contract import (
    Placed,
    Release,
    Suspend,
    Turn,
    TurnResult,
    WorkAbandon,
    WorkAck,
    WorkItem,
    WorkLock,
)
from affinity.records import CommitPart, StateWrite
from affinity.redaction import redacted
from affinity.worker.committer import GroupCommit
from affinity.worker.lease import lock_timeouts
from affinity.worker.results import StagedResult, requeue_after_conflict
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.turns import BuiltTurn

logger: logging.Logger = logging.getLogger("affinity.worker")


class Commits(WorkerPart):
    """Queues turns, acks, abandons, releases and suspensions for the next batch of their kind."""

    def __init__(self, services: WorkerServices) -> None:
        super().__init__(services)
        self._timeouts = lock_timeouts(services.options)
        self._notified: set[str] = set()  # instances with a turn in flight whose change has been notified
        self.limited: set[WorkLock] = set()
        """Locks of items in hand that have a limited gate."""
        self.on_gates: Callable[[bool], None] = _ignore
        """Called after a commit that brings work to a gate (True), or lets other work pass one; set by the worker."""
        health, metrics, most = services.health, services.metrics, services.options.max_batch_bytes
        self.turns: GroupCommit[Turn, TurnResult] = GroupCommit(
            self._write_turns, health, max_weight=most, observe=metrics.batch("turn")
        )
        self._acks = GroupCommit(
            self._write_acks, health, idempotent=True, max_weight=most, observe=metrics.batch("ack")
        )
        self._parts = GroupCommit(self._write_acks, health, max_weight=most, observe=metrics.batch("part"))
        self._abandons = GroupCommit(self._write_abandons, health, idempotent=True, observe=metrics.batch("abandon"))
        self._releases = GroupCommit(self._write_releases, health, idempotent=True, observe=metrics.batch("release"))
        suspend = partial(self._provider.suspend_instance, self._identity)
        self._suspends = GroupCommit(suspend, health, idempotent=True, observe=metrics.batch("suspend"))
        # Turns may queue the others when they settle, so they are first: `flush`.
        self.groups: Sequence[GroupCommit[Any, Any]] = (
            self.turns,
            self._acks,
            self._parts,
            self._abandons,
            self._releases,
            self._suspends,
        )

    @property
    def size(self) -> int:
        """Approximate bytes of turns and results that wait to be written."""
        return self.turns.weight + self._acks.weight

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return all(commits.is_idle for commits in self.groups)

    def unwritten_locks(self) -> list[WorkLock]:
        """Locks of work that has ended, and whose outcome is not written yet."""
        ended = [lock for turn in self.turns.unwritten for lock in turn.acks]
        ended += [ack.lock for ack in self._acks.unwritten]
        ended += [abandon.lock for abandon in self._abandons.unwritten]
        return ended

    async def flush(self) -> None:
        """Wait until all that was submitted is written."""
        for commits in self.groups:
            await commits.flushed()

    async def flush_in_time(self) -> None:
        """Wait until all that was submitted is written, for ``work_item_lock_timeout`` at most."""
        with anyio.move_on_after(self._timeouts.work_item_lock):
            await self.flush()

    # -- submitting

    def submit_turn(self, built: BuiltTurn, done: Callable[[TurnResult | ProviderError], None]) -> None:
        """Commit a turn with the next batch."""
        turn, asked, gated = built.turn, 0, False
        for item in turn.work_items:
            asked += item.lock_here
            if item.gate is not None:
                gated = True
        ended = [lock for lock in turn.acks if lock in self.limited] if self.limited else ()
        self._state.reserved_slots += asked
        term = self._lease.term

        def settled(result: TurnResult | ProviderError) -> None:
            self._state.reserved_slots -= asked
            if isinstance(result, ProviderError):
                self._state.locks_uncertain = True
            else:
                if result.lost_acks:
                    self._lease.note_delivered(result.lost_acks)
                if term != self._lease.term:
                    result = self._without_work(result)
            if ended:
                self._end_limited(ended)
            if gated and (isinstance(result, ProviderError) or _waits_at_gates(turn, result)):
                self.on_gates(True)
            if turn.instance_id in self._notified:
                self._notified.discard(turn.instance_id)
                with self._notifier.changes_notified(_lone_change([turn])):
                    done(result)
            else:
                done(result)

        weight = 2 * built.size  # an input is in the history and in its work item
        for write in turn.states:
            weight += len(write.new.state)
        for part in turn.parts:
            weight += part.size
        self.turns.submit(turn, settled, weight)

    def _without_work(self, result: TurnResult) -> TurnResult:
        """Return the reply to a turn of a former lease. Its work goes back: its session may have another holder now."""
        for place in result.placed:
            if place.item is not None:
                self.submit_abandon(WorkAbandon(lock=place.item.lock, count_attempt=False))
        return replace(result, placed=[Placed(None, place.holder, place.parked) for place in result.placed])

    def submit_ack(self, ack: WorkAck, staged: StagedResult | None = None, *, ordered: bool = False) -> None:
        """Send a result as a message to its instance, whose coroutine is not in memory here.

        After the result of an ``ordered`` item, the next item of its session is fetched.
        """

        def done(result: bool | ProviderError) -> None:
            if ack.lock in self.limited:
                self._end_limited([ack.lock])
            self._notifier.on_memory_freed()
            self._notifier.on_rest()
            if result is True:
                self._notifier.hint_owner(ack.lock.key.instance_id)
                if ordered:
                    self._notifier.notify_fetcher()
            else:
                self._lease.note_delivered([ack.lock])
            if staged is not None:
                staged.settle(result is True)
            if result is False and (ack.state or ack.parts):  # the token is dead, or the store has newer ones
                self.submit_abandon(requeue_after_conflict(ack.lock))

        self._acks.submit(ack, done, len(ack.message or "") + _size(ack.state, ack.parts))

    async def commit_part(self, lock: WorkLock, state: StateWrite | None, parts: Sequence[CommitPart]) -> None:
        """See `ActivityContext._commit_now`."""
        answer: asyncio.Future[bool | ProviderError] = asyncio.get_running_loop().create_future()

        def done(result: bool | ProviderError) -> None:
            if not answer.done():  # else the activity was cancelled
                answer.set_result(result)

        ack = WorkAck(lock=lock, message=None, state=state, parts=parts)
        self._parts.submit(ack, done, _size(state, parts))
        result = await answer
        if isinstance(result, ProviderError) and not result.retryable:
            raise result
        if result is not True:
            session_id = parts[0].session_id if parts else state.new.session_id if state else ""
            why = "a part of its activity's result was refused" if result is False else f"it is not known: {result}"
            raise SessionWriteConflict(session_id, None, None, why)

    def submit_abandon(self, abandon: WorkAbandon) -> None:
        """Give a work item back to the queue."""

        def done(result: bool | ProviderError) -> None:
            if result is not True and abandon.count_attempt:
                self._lease.note_delivered([abandon.lock])
            if abandon.lock in self.limited:
                self._end_limited([abandon.lock])
            self._notifier.hint(None)

        self._abandons.submit(abandon, done)

    def _end_limited(self, locks: Sequence[WorkLock]) -> None:
        self.limited.difference_update(locks)
        self.on_gates(False)

    def submit_release(self, release: Release, done: Callable[[], None]) -> None:
        """Give an instance up; ``done`` is called when that is written, or refused for good."""

        def written(_: object) -> None:
            done()
            self._notifier.hint(release.to)

        self._releases.submit(release, written)

    def submit_suspend(self, suspend: Suspend, done: Callable[[bool], None]) -> None:
        """Suspend an instance; ``done`` receives whether it was suspended: False also after an error."""
        self._suspends.submit(suspend, lambda result: done(result is True))

    async def count_delivery(self, item: WorkItem, pause: float) -> bool:
        """Count the delivery of an item that is about to run alone; False when its lock is lost. ``pause``: seconds
        until it comes again, if this process ends.
        """
        count = partial(self._provider.begin_work_item, self._identity, item.lock, item.attempts, pause=pause)
        try:
            return await self._health.retry(count)
        except ProviderError as error:
            logger.warning("activity %s cannot be counted: %s", item.name, redacted(error))
            return False

    # -- writing

    async def _write_turns(self, turns: Sequence[Turn]) -> Sequence[TurnResult]:
        notify = _lone_change(turns)
        commit = self._provider.commit_turn(self._identity, turns, self._timeouts, notify=notify)
        results = await self._lease.calls.watch("turns", commit)
        if notify:
            self._notified.add(turns[0].instance_id)
        return results

    async def _write_acks(self, acks: Sequence[WorkAck]) -> Sequence[bool]:
        ack = self._provider.ack_work_item(self._identity, acks, self._timeouts)
        return await self._lease.calls.watch("acks", ack)

    async def _write_abandons(self, abandons: Sequence[WorkAbandon]) -> Sequence[bool]:
        abandon = self._provider.abandon_work_item(self._identity, abandons)
        return await self._lease.calls.watch("abandons", abandon)

    async def _write_releases(self, releases: Sequence[Release]) -> Sequence[None]:
        await self._lease.calls.watch("releases", self._provider.release_instance(self._identity, releases))
        return [None] * len(releases)


def _ignore(_: bool) -> None:
    """Do nothing: no guest opens gates."""


def _waits_at_gates(turn: Turn, result: TurnResult) -> bool:
    """Return whether new work of a turn may wait at a gate: what was locked with the commit has passed it."""
    if not result.committed:
        return False
    placed = zip(turn.work_items, result.placed, strict=True)
    return any(place.item is None for item, place in placed if item.gate is not None and item.gate.limited)


def _size(state: StateWrite | None, parts: Sequence[CommitPart]) -> int:
    """Return the approximate bytes of the writes of a result."""
    return (len(state.new.state) if state else 0) + sum([part.size for part in parts])


def _lone_change(turns: Sequence[Turn]) -> Sequence[str]:
    """Return the session that a lone turn with a single part changes; empty for other batches.

    `Notifier` sends the notices of larger batches: it joins notices, and does not use the connection for commits.
    """
    return [turns[0].parts[0].session_id] if len(turns) == 1 and len(turns[0].parts) == 1 else ()
