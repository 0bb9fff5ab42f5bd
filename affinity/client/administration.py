"""The client's calls for operators: inspect, list, resume, reset, release, delete and prune."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Literal, TypeAlias, get_args

import anyio

from affinity.client.background import ClientBase
from affinity.client.calls import (
    PruneProgress,
    batches,
    check_age,
    check_deletion,
    check_quotas,
    check_resumption,
    no_progress,
    retry,
    unknown_instance,
)
from affinity.client.moves import follow_moves
from affinity.client.resets import build_reset, cut_history
from affinity.client.views import (
    ExecutionSummary,
    HistoryRecord,
    Instance,
    InstanceTree,
    Page,
    PendingActivity,
    WorkStatistics,
    activity_of,
    cursor_of,
    execution_of,
    instance_of,
    read_cursor,
    record_of,
    tree_of,
)
from affinity.errors import Contention, InvalidInput, ProviderError, UnknownWorker
from affinity.limits import MAX_COUNT, MAX_PAGE, MAX_RETENTION_SECONDS, SCRAPE_COUNT, check_id
from affinity.provider.contract import (
    FINISHED,
    FleetLoad,
    Hint,
    HistoryCursor,
    HistoryPage,
    InstanceFilter,
    InstanceStatus,
    MoveFilter,
    MoveReason,
    PlannedMove,
    Quotas,
    Resumption,
    SessionInfo,
    SessionMove,
    SessionRelease,
    WorkerDemand,
    WorkerInfo,
)
from affinity.provider.history import history_pages

MOVE_SECONDS: Final = 60.0
"""For how long a move by hand waits for running work of its session, unless another time is given."""

MOVE_POLL_SECONDS: Final = 0.1
"""Between two looks at a session that is to move."""

SessionMoveOutcome: TypeAlias = Literal["planned", "moved", "given_up", "not_held", "unavailable"]

MAX_RESETS: Final = 20
"""Attempts to reset an instance that takes a turn between the reading of its history and the reset."""

EndedStatus: TypeAlias = Literal["completed", "failed", "cancelled"]

COMPLETED: Final[tuple[EndedStatus, ...]] = ("completed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedInstances:
    """What `Client.prune` removed, or would remove."""

    roots: int  # instances without a parent
    instances: int  # they, and all their sub-orchestrations


class Administration(ClientBase):
    """Calls of operators on instances, sessions and workers."""

    # -- looking

    async def status(self, instance_id: str) -> Instance:
        """The instance as it is now.

        Raises:
            UnknownInstance: there is none.
            InvalidId: the id is refused.
        """
        return instance_of(await self._present(instance_id))

    async def history(self, instance_id: str, *, execution_id: int | None = None) -> Sequence[HistoryRecord]:
        """The events of one execution of an instance, oldest first; by default of the current one. See `iter_history`
        for a history that may be too large to be in memory as a whole.

        Raises:
            UnknownInstance: there is none.
            InvalidId: the id is refused.
        """
        return [record async for record in self.iter_history(instance_id, execution_id=execution_id)]

    async def iter_history(
        self, instance_id: str, *, execution_id: int | None = None, after: int = 0
    ) -> AsyncIterator[HistoryRecord]:
        """As `history`, read page by page: at most `limits.MAX_BATCH_BYTES` at a time. ``after``: the last event that
        is not wanted.

        Raises:
            UnknownInstance, InvalidId: as for `history`.
        """
        execution = (await self.status(instance_id)).execution_id if execution_id is None else execution_id
        origins = await retry(partial(self._provider.read_origins, instance_id, execution))
        known = {origin.event_id: origin for origin in origins}
        event_ids = count(after + 1)
        async for texts in history_pages(self._read_page, HistoryCursor(instance_id, execution, after)):
            for text, event_id in zip(texts, event_ids, strict=False):
                yield record_of(event_id, text, known.get(event_id))

    async def _read_page(self, at: HistoryCursor) -> HistoryPage:
        (page,) = await retry(partial(self._provider.read_history, [at]))
        return page

    async def executions(
        self, instance_id: str, *, limit: int = 100, before: int | None = None
    ) -> Sequence[ExecutionSummary]:
        """The executions of an instance whose histories are kept, and the current one; newest first.

        Args:
            instance_id: the instance.
            limit: executions at most, from 1 to `limits.MAX_PAGE`.
            before: only those before this one: the last of the page before.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: the id is refused, or a limit out of range.
        """
        _check_limit(limit, MAX_PAGE)
        instance = await self._present(instance_id)
        rows = await retry(partial(self._provider.list_executions, instance_id, limit, before=before))
        return [execution_of(row, instance) for row in rows]

    async def activities(self, instance_id: str, *, limit: int = 100) -> Sequence[PendingActivity]:
        """Activities of an instance that have no result yet, oldest first: which run, which wait for a worker, which
        wait for their next attempt, and why.

        Args:
            instance_id: the instance.
            limit: activities at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: the id is refused, or a limit out of range.
        """
        _check_limit(limit, MAX_PAGE)
        await self._present(instance_id)
        rows = await retry(partial(self._provider.list_work_items, instance_id, limit))
        return [activity_of(row) for row in rows]

    async def tree(self, instance_id: str, *, limit: int = MAX_PAGE) -> InstanceTree:
        """An instance with its sub-orchestrations and theirs.

        Args:
            instance_id: the instance at the root.
            limit: instances at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: the id is refused, or a limit out of range.
        """
        _check_limit(limit, MAX_PAGE)
        root = check_id(instance_id, "instance id")
        members = await retry(partial(self._provider.list_tree, root, limit + 1))
        if not members:
            raise unknown_instance(root)
        return tree_of(root, members, limit)

    async def statistics(self, *, limit: int = MAX_COUNT) -> WorkStatistics:
        """How many instances there are of each status, what is in the queues, and how long the oldest work has waited.

        Args:
            limit: where each count of the queues stops, from 1 to `limits.MAX_COUNT`. Instances are all counted, by
                pages.

        Raises:
            InvalidInput: a limit out of range.
        """
        _check_limit(limit, MAX_COUNT)
        queues = await retry(partial(self._provider.measure_queues, limit))
        counts: Counter[InstanceStatus] = Counter()
        page = await retry(partial(self._provider.count_instances, SCRAPE_COUNT))
        counts.update(page.counts)
        while page.after is not None:
            page = await retry(partial(self._provider.count_instances, SCRAPE_COUNT, after=page.after))
            counts.update(page.counts)
        return WorkStatistics(
            instances={status: counts[status] for status in get_args(InstanceStatus)},
            work_items=queues.work_items,
            messages=queues.messages,
            oldest_work_item=queues.oldest_work_item,
            oldest_message=queues.oldest_message,
            waiting_sessions=queues.waiting_sessions,
        )

    async def list_page(
        self,
        *,
        status: Collection[InstanceStatus] = (),
        name: str | None = None,
        prefix: str | None = None,
        parent_id: str | None = None,
        reason: str | None = None,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Some instances, newest first.

        Args:
            status: any of these; empty: all.
            name: of the orchestration.
            prefix: of the instance id.
            parent_id: the instance that they are sub-orchestrations of.
            reason: for which they are suspended: `Suspension.error_type`.
            session_id: that they were started with, or their parents.
            after: `Page.next` of the page before.
            limit: instances on the page, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: a limit out of range, or a cursor that is none.
        """
        _check_limit(limit, MAX_PAGE)
        cursor = None if after is None else read_cursor(after)
        where = InstanceFilter(
            status=status,
            name=name,
            prefix=prefix,
            parent_id=parent_id,
            reason=reason,
            session_id=session_id,
            after=cursor,
        )
        rows = await retry(partial(self._provider.list_instances, where, limit))
        return Page(items=[*map(instance_of, rows)], next=cursor_of(rows[-1]) if len(rows) == limit else None)

    async def list_instances(
        self,
        *,
        status: Collection[InstanceStatus] = (),
        name: str | None = None,
        prefix: str | None = None,
        parent_id: str | None = None,
        reason: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Instance]:
        """All instances that fit, newest first, read page by page; see `list_page`."""
        after: str | None = None
        while True:
            page = await self.list_page(
                status=status,
                name=name,
                prefix=prefix,
                parent_id=parent_id,
                reason=reason,
                session_id=session_id,
                after=after,
                limit=MAX_PAGE,
            )
            for instance in page.items:
                yield instance
            if (after := page.next) is None:
                return

    async def sessions(self) -> AsyncIterator[SessionInfo]:
        """All sessions that have a row, by id, with their present or last holder; read page by page."""
        after: str | None = None
        while True:
            rows = await retry(partial(self._provider.list_sessions, after=after, limit=MAX_PAGE))
            for row in rows:
                yield row
            if len(rows) < MAX_PAGE:
                return
            after = rows[-1].session_id

    async def session_moves(
        self,
        *,
        session_id: str | None = None,
        worker_id: str | None = None,
        reason: MoveReason | None = None,
        after: int | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[SessionMove]:
        """Moves of sessions with their reasons, in the order of their epochs: with ``after`` the first ones after that
        epoch, otherwise the last ones.

        Args:
            session_id: of one session.
            worker_id: from this worker or to it.
            reason: with this reason.
            after: an epoch; the last one of a page gives the next page.
            before: an epoch; the first one of a page gives the page before.
            limit: moves at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: a limit out of range, or ``after`` together with ``before``.
        """
        _check_limit(limit, MAX_PAGE)
        if after is not None and before is not None:
            raise InvalidInput("after and before contradict each other: give one of them")
        where = MoveFilter(session_id=session_id, worker_id=worker_id, reason=reason)
        page = partial(self._provider.list_session_moves, where, after=after, before=before, limit=limit)
        return await retry(page)

    def follow_session_moves(
        self,
        *,
        session_id: str | None = None,
        worker_id: str | None = None,
        reason: MoveReason | None = None,
        after: int | None = None,
        poll_interval: float = 1.0,
    ) -> AsyncIterator[SessionMove]:
        """Each move once, as it happens; without end. What its hydrate costs is not known yet: see `session_moves`.

        Args:
            session_id: of one session.
            worker_id: from this worker or to it.
            reason: with this reason.
            after: begin after this epoch; None: with the next move.
            poll_interval: seconds between two looks.
        """
        where = MoveFilter(session_id=session_id, worker_id=worker_id, reason=reason)
        return follow_moves(self._provider, where, after, poll_interval)

    async def workers(self) -> Sequence[WorkerInfo]:
        """All workers by id, alive or not."""
        return await retry(self._provider.list_workers)

    async def desired_workers(self) -> WorkerDemand:
        """How many workers the sessions need that are held, or wait for a holder. Work without a session is not
        counted: keep at least one worker for it.
        """
        return await retry(self._provider.desired_workers)

    async def load(self) -> FleetLoad:
        """How full the live workers are, as they said last, and whether rebalancing is suspended."""
        return await retry(self._provider.get_load)

    async def suspend_rebalancing(self, *, suspended: bool = True) -> None:
        """Have no worker offer sessions to others any more, or (False) again. Offers that were made stay, while their
        sessions are idle.
        """
        await retry(partial(self._provider.suspend_rebalancing, suspended=suspended))

    async def quotas(self) -> Quotas:
        """The limits of this database; off by default."""
        return await retry(self._provider.get_quotas)

    async def set_quotas(self, quotas: Quotas) -> None:
        """Replace all limits of this database, for all clients and workers. On PostgreSQL only the role that migrated
        may do so.

        Raises:
            InvalidOptions: a limit is no integer from 1 to `limits.MAX_QUOTA`.
            AccessDenied: this role may not set limits.
        """
        await retry(partial(self._provider.set_quotas, check_quotas(quotas)))

    # -- suspended instances

    async def resume(self, instance_id: str) -> None:
        """Resume a suspended instance: a worker takes it, and repeats the step at which it was suspended.

        Raises:
            UnknownInstance, InstanceNotSuspended: nothing was changed.
            InvalidId: the id is refused.
            ConnectionLost: it may or may not have been resumed.
        """
        (resumption,) = await self.resume_many([instance_id])
        check_resumption(instance_id, resumption)

    async def resume_many(self, instance_ids: Iterable[str]) -> Sequence[Resumption]:
        """Resume instances in few round trips: for each "resumed", "unknown" or "not_suspended".

        Raises:
            InvalidId: an id is refused; nothing was changed.
            ConnectionLost: some may have been resumed.
        """
        wanted = [check_id(instance_id, "instance id") for instance_id in instance_ids]
        return [resumption for batch in batches(wanted) for resumption in await self._resume(batch)]

    async def _resume(self, batch: Sequence[str]) -> Sequence[Resumption]:
        resumptions = await retry(partial(self._provider.resume_instance, batch), idempotent=False)
        self._waker.wake()
        return resumptions

    async def reset(self, instance_id: str, *, to_event: int) -> int:
        """Open an instance again, a finished one too, at an earlier event of its present execution.

        A new execution begins with the events up to this one; the former one stays readable, by its number. If a step
        of the code continues after the event, the whole step is repeated. What is outstanding at that point is
        scheduled anew: activities run again, unless they had ended before. External events that came later come again.
        Session state is not rewound, nor is anything else that activities have done. See docs/learn/orchestrations.md.

        Args:
            instance_id: the instance.
            to_event: the last event that counts, from 1: see `history`.

        Returns:
            The number of the new execution.

        Raises:
            UnknownInstance: there is none.
            InvalidInput: there is no such event, or an event before it cannot be read.
            Contention: in every attempt, the instance took a turn after its history was read.
        """
        for _ in range(MAX_RESETS):
            info = await self._present(instance_id)
            pages = history_pages(self._read_page, HistoryCursor(instance_id, info.execution_id))
            texts = [text async for page in pages for text in page]
            if len(texts) != info.event_count:
                continue
            cut = cut_history(texts, to_event, info.execution_id)
            children = dict(zip(cut.children, await self._look_up(cut.children), strict=True))
            reset = build_reset(info, cut, children)
            if await retry(partial(self._provider.reset_instance, reset), idempotent=False):
                self._waker.wake()
                return info.execution_id + 1
        raise Contention(f"instance {instance_id!r} took a turn in every attempt to reset it: try again")

    # -- sessions

    async def release_session(self, session_id: str) -> SessionRelease:
        """Release a session before its lock expires, on any worker: any worker may claim it then, and its holder
        has room for another one. Its saved state stays; its holder evicts its state in memory within
        about ten seconds. A wait that holds the session (``hold_session``) does not keep it.

        Returns:
            "released"; "busy", when its holder runs work of it, or is about to: nothing was changed; or "not_held".

        Raises:
            InvalidId: the id is refused.
            ConnectionLost: it may or may not have been released.
        """
        wanted = [check_id(session_id, "session id")]
        (release,) = await retry(partial(self._provider.release_session, wanted), idempotent=False)
        self._waker.wake()
        return release

    # -- removing

    async def move_session(
        self, session_id: str, to: str, *, within: float = MOVE_SECONDS, wait: bool = False
    ) -> SessionMoveOutcome:
        """Move a session from its holder to another worker, without failing an activity.

        What runs of the session ends on the holder and is committed; nothing new of it starts there. Then the other
        worker takes the session with its waiting work; it is warned before, so that it can hydrate ahead
        (`SessionListener.on_assigned`). If running work does not end in time, or the other worker does not take the
        session, it stays where it is and goes on there. A second call replaces the first.

        Args:
            session_id: the session.
            to: id of the worker.
            within: seconds in which running work must end, up to `limits.MAX_RETENTION_SECONDS`.
            wait: return when the session has moved, or when the move was given up.

        Returns:
            "planned", without ``wait``; "moved", also if the worker holds it already; "given_up"; "not_held", if no
            worker holds it: then any worker takes it with its next work; or "unavailable", if the worker named is not
            alive or takes no work.

        Raises:
            InvalidInput: an id is refused, or a time is out of range.
            ConnectionLost: the move may or may not have been planned.
        """
        if not 0 < within <= MAX_RETENTION_SECONDS:
            raise InvalidInput(f"within = {within!r}: must be seconds, more than 0")
        plan = PlannedMove(
            session_id=check_id(session_id, "session id"), to=check_id(to, "worker id"), within=float(within)
        )
        (outcome,) = await retry(partial(self._provider.move_session, [plan]))
        if outcome == "planned":
            with suppress(ProviderError):  # only a hint
                await self._provider.wake({to: Hint()})
            return await self.await_session_move(session_id, to) if wait else "planned"
        return "moved" if outcome == "at_target" else "not_held" if outcome == "not_held" else "unavailable"

    async def await_session_move(self, session_id: str, to: str) -> SessionMoveOutcome:
        """Wait for the end of a planned move: "moved" or "given_up".

        Raises:
            InvalidId: an id is refused.
        """
        check_id(session_id, "session id")
        while True:
            (found,) = await retry(partial(self._provider.get_session, [session_id]))
            if found is None or found.worker_id == to:
                return "given_up" if found is None else "moved"
            if found.next_worker != to:
                return "given_up"
            await anyio.sleep(MOVE_POLL_SECONDS)

    # -- workers

    async def drain_worker(self, worker_id: str) -> None:
        """Drain a worker without ending it: it takes nothing new, finishes what runs, and gives its sessions up as
        their work ends. It stays registered, and drains again after a restart, until `resume_worker`.

        Raises:
            UnknownWorker: there is none of this name.
            InvalidId: the id is refused.
        """
        await self._set_drain_wanted(worker_id, wanted=True)

    async def resume_worker(self, worker_id: str) -> None:
        """Let a worker take work again after `drain_worker`.

        Raises:
            UnknownWorker: there is none of this name.
            InvalidId: the id is refused.
        """
        await self._set_drain_wanted(worker_id, wanted=False)

    async def _set_drain_wanted(self, worker_id: str, *, wanted: bool) -> None:
        name = check_id(worker_id, "worker id")
        if not await retry(partial(self._provider.set_drain_wanted, name, wanted=wanted)):
            raise UnknownWorker(f"there is no worker {name!r}")
        with suppress(ProviderError):  # only a hint: it learns it with its next renewal
            await self._provider.wake({name: Hint()})

    # -- deleting

    async def delete(self, instance_id: str, *, force: bool = False, keep_children: bool = False) -> None:
        """Remove a finished instance with its history, or with ``force`` any; and with it its sub-orchestrations and
        theirs, unless ``keep_children``. A parent that still waits for it gets `OrchestrationFailed`.

        Raises:
            UnknownInstance: there is none.
            InstanceNotFinished: it is running, or one that goes with it, and ``force`` is not given.
            InvalidId: the id is refused.
        """
        wanted = [check_id(instance_id, "instance id")]
        delete = partial(self._provider.delete_instance, wanted, force=force, tree=not keep_children)
        (deletion,) = await retry(delete, idempotent=False)
        check_deletion(instance_id, deletion)
        self._waker.wake()  # a parent may have got a message

    async def prune(
        self,
        *,
        older_than: float,
        status: Collection[EndedStatus] = COMPLETED,
        dry_run: bool = False,
        progress: PruneProgress = no_progress,
    ) -> PrunedInstances:
        """Remove instances that ended long ago, each with its history and its sub-orchestrations, oldest first.

        A sub-orchestration goes with its parent and never before it. A tree stays while a member of it has not ended
        for that long: running and suspended ones are never removed. It goes in steps: one that ends in the middle
        leaves what it has done, and may be started again.

        Args:
            older_than: seconds since the end, by the database's clock.
            status: how they ended.
            dry_run: change nothing.
            progress: called after each step with the number of instances so far.

        Raises:
            InvalidInput: an age or a status is out of range.
        """
        check_age(older_than)
        wanted = frozenset(status)
        if not wanted or not wanted <= FINISHED:
            raise InvalidInput(f"status = {sorted(wanted)!r}: name some of {', '.join(sorted(FINISHED))}")
        roots = instances = 0
        step = partial(self._provider.prune_instances, wanted, older_than, dry_run=dry_run)
        pruned = await retry(step)
        while True:
            roots, instances = roots + pruned.roots, instances + pruned.instances
            progress(instances)
            if pruned.after is None:
                return PrunedInstances(roots=roots, instances=instances)
            pruned = await retry(partial(step, after=pruned.after))

    async def prune_histories(
        self, *, older_than: float, dry_run: bool = False, progress: PruneProgress = no_progress
    ) -> int:
        """Remove the histories of former executions: those after which ``continue_as_new``, or a reset, began another
        one, more than ``older_than`` seconds ago. Instances continue, and keep the history of their present execution.
        In steps, as `prune`.

        Returns:
            The number of executions whose history was removed, or would be.

        Raises:
            InvalidInput: the age is out of range.
        """
        check_age(older_than)
        executions, more = 0, True
        while more:
            pruned = await retry(partial(self._provider.prune_histories, older_than, dry_run=dry_run))
            executions, more = executions + pruned.executions, pruned.limit_reached
            progress(executions)
        return executions


def _check_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise InvalidInput(f"limit = {limit!r}: must be from 1 to {most}")
