"""The client's calls for operators: resume, reset, release, move, drain, delete and prune."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias, Unpack, cast

import anyio

from affinity.actions import action
from affinity.batching import batches
from affinity.client.calls import (
    PruneProgress,
    check_deletion,
    check_quotas,
    check_resumption,
    no_progress,
    retry,
)
from affinity.client.inspection import Inspection, InstanceConditions
from affinity.client.resets import Cut, ResetPreview, build_reset, cut_history, preview_of
from affinity.errors import Contention, InvalidInput, ProviderError, UnknownWorker
from affinity.limits import MAX_PAGE, MAX_RETENTION_SECONDS, check_age, check_id, several
from affinity.provider.contract import (
    FINISHED,
    Hint,
    HistoryCursor,
    InstanceStatus,
    PlannedMove,
    Quotas,
    Reset,
    Resumption,
    SessionRelease,
)
from affinity.provider.history import history_pages

MOVE_SECONDS: Final = 60.0
"""Seconds that a move by hand waits for running work of its session, unless another time is given."""

MOVE_POLL_SECONDS: Final = 0.1
"""Seconds between two looks at a session that is to move."""

SessionMoveOutcome: TypeAlias = Literal["planned", "moved", "given_up", "not_held", "unavailable"]

MAX_RESETS: Final = 20
"""Attempts to reset an instance that takes a turn between the reading of its history and the reset."""

EndedStatus: TypeAlias = Literal["completed", "failed", "cancelled"]

COMPLETED: Final[tuple[EndedStatus, ...]] = ("completed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedInstances:
    """The result of `Client.prune`: instances that it removed, or would remove."""

    roots: int  # instances without a parent
    instances: int  # they, and all their sub-orchestrations


_SUSPENDED: Final[tuple[InstanceStatus, ...]] = ("suspended",)


class Administration(Inspection):
    """Calls of operators that change instances, sessions and workers."""

    # -- suspended instances

    @action("resume", "instance", "instance_id")
    async def resume(self, instance_id: str) -> None:
        """Resume a suspended instance: a worker takes it, and repeats the step at which it was suspended.

        Raises:
            UnknownInstance, InstanceNotSuspended: nothing was changed.
            InvalidId: the id is refused.
            ConnectionLost: it may or may not have been resumed.
        """
        (resumption,) = await self.resume_many([instance_id])
        check_resumption(instance_id, resumption)

    @action("resume", "instance")
    async def resume_many(self, instance_ids: Iterable[str]) -> Sequence[Resumption]:
        """Resume instances in few round trips: return for each "resumed", "unknown" or "not_suspended".

        Raises:
            InvalidId: an id is refused; nothing was changed.
            ConnectionLost: some may have been resumed.
        """
        wanted = [check_id(instance_id, "instance id") for instance_id in instance_ids]
        return [resumption for batch in batches(wanted) for resumption in await self._resume(batch)]

    async def _resume(self, batch: Sequence[str]) -> Sequence[Resumption]:
        resumptions = await retry(partial(self._provider.resume_instance, batch), idempotent=False)
        self._hints.notify_all()
        return resumptions

    async def resume_instances(self, **where: Unpack[InstanceConditions]) -> int:
        """Resume the suspended instances that meet conditions, and return how many were resumed. It works in steps,
        newest first: an interrupted call keeps its progress, and may be repeated.

        Args:
            where: conditions but the status; see `list_instances`.

        Raises:
            InvalidInput: see `list_instances`; or a status is among the conditions, or there is no condition.
            ConnectionLost: some may have been resumed.
        """
        return await self._change_each("resume_instances", where, _SUSPENDED, self._resume_batch)

    async def _resume_batch(self, batch: Sequence[str]) -> int:
        return sum(resumption == "resumed" for resumption in await self.resume_many(batch))

    async def _change_each(
        self,
        call: str,
        where: InstanceConditions,
        status: Collection[InstanceStatus],
        change: Callable[[Sequence[str]], Awaitable[int]],
    ) -> int:
        """Change the instances of these statuses that meet conditions, page by page; return how many were changed.

        Raises:
            InvalidInput: see `list_instances`; or a status is among the conditions, or there is no condition.
        """
        if where.get("status") is not None:  # also an empty one: it would mean all
            raise InvalidInput(f"{call} is about instances that are {' or '.join(status)}: leave out the status")
        if not any(value is not None and value != {} for key, value in where.items() if key != "most"):
            raise InvalidInput(f"{call} without a condition is about all instances: give prefix='' to mean that")
        found = self.list_instances(**cast(InstanceConditions, {**where, "status": status}))
        if where.get("most") is not None:  # known before any is changed, so that others do not take their places
            ids = [instance.instance_id async for instance in found]
            return sum([await change(ids[at : at + MAX_PAGE]) for at in range(0, len(ids), MAX_PAGE)])
        changed, page = 0, await found.page(limit=MAX_PAGE)
        while True:
            changed += await change([instance.instance_id for instance in page.items])
            if page.next is None:
                return changed
            page = await found.page(page.next, limit=MAX_PAGE)

    @action("reset", "instance", "instance_id", "to_event")
    async def reset(self, instance_id: str, *, to_event: int) -> int:
        """Open an instance again, a finished one too, at an earlier event of its present execution.

        A new execution begins with the events up to this one; the former one stays readable, by its number. If a step
        of the code continues after the event, the whole step is repeated.

        - Activities without a result by then run again, with another ``execution_id``. Session state is not rewound,
          nor is anything else that activities have done.
        - Timers keep their time; one that has fired since fires immediately.
        - Later external events come again, in order. Those that no turn had read when the instance failed are gone:
          send them again, with other keys.
        - Sub-orchestrations scheduled by then stay; one that has ended answers again. Reset a failed child before its
          parent. Later ones are asked to cancel; their ids stay taken until they are deleted.
        - Holds of sessions end.
        - An instance that was started with ``limits`` keeps its places if it has not ended. One that has ended runs
          again without them.

        Args:
            instance_id: the instance.
            to_event: the last event that counts, from 1: see `history`.

        Returns:
            The number of the new execution.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidInput: the event does not exist, or an event before it cannot be read.
            Contention: in every attempt, the instance took a turn after its history was read.
        """
        for _ in range(MAX_RESETS):
            reset, _ = await self._plan_reset(instance_id, to_event)
            if await retry(partial(self._provider.reset_instance, reset), idempotent=False):
                self._hints.notify_all(cancel=True)
                return reset.execution_id + 1
        raise _busy_instance(instance_id)

    async def preview_reset(self, instance_id: str, *, to_event: int) -> ResetPreview:
        """Preview `reset`: return the part that it would keep, and the part that would happen again. Changes nothing.

        Raises:
            UnknownInstance, InvalidInput, Contention: see `reset`.
        """
        return preview_of(*await self._plan_reset(instance_id, to_event))

    async def _plan_reset(self, instance_id: str, to_event: int) -> tuple[Reset, Cut]:
        for _ in range(MAX_RESETS):
            info = await self._present(instance_id)
            pages = history_pages(self._read_page, HistoryCursor(instance_id, info.execution_id))
            texts = [text async for page in pages for text in page]
            if len(texts) == info.event_count:
                cut = cut_history(texts, to_event, info.execution_id)
                children = dict(zip(cut.children, await self._look_up(cut.children), strict=True))
                return build_reset(info, cut, children), cut
        raise _busy_instance(instance_id)

    # -- sessions

    @action("release", "session", "session_id")
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
        self._hints.notify_all()
        return release

    @action("move", "session", "session_id", "to")
    async def move_session(
        self, session_id: str, to: str, *, within: float = MOVE_SECONDS, wait: bool = False
    ) -> SessionMoveOutcome:
        """Move a session from its holder to another worker, without failing an activity.

        Running work of the session ends on the holder and is committed; nothing new of it starts there. Then the other
        worker takes the session with its waiting work. It is notified before, so that it can hydrate ahead
        (`affinity.orchestration.app.AssignmentListener.on_assigned`). If running work does not end in time, or the
        other worker does not take the session, the session stays where it is and goes on there. A second call replaces
        the first.

        Args:
            session_id: the session.
            to: id of the worker.
            within: seconds in which running work must end, up to `limits.MAX_RETENTION_SECONDS`.
            wait: return when the session has moved, or when the move was given up.

        Returns:
            - "planned": the call did not ``wait``.
            - "moved": the worker holds it, maybe already before.
            - "given_up": it stays where it is.
            - "not_held": no worker holds it; any worker takes it with its next work.
            - "unavailable": the named worker is not alive or takes no work.

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
                await self._provider.notify_workers({to: Hint()})
            return await self.await_session_move(session_id, to) if wait else "planned"
        return "moved" if outcome == "at_target" else "not_held" if outcome == "not_held" else "unavailable"

    async def await_session_move(self, session_id: str, to: str) -> SessionMoveOutcome:
        """Wait for the end of a planned move: "moved" or "given_up".

        Raises:
            InvalidId: an id is refused.
        """
        check_id(session_id, "session id")
        while True:
            found = next(iter(await retry(partial(self._provider.list_sessions, [session_id]))), None)
            if found is None or found.worker_id == to:
                return "given_up" if found is None else "moved"
            if found.next_worker != to:
                return "given_up"
            await anyio.sleep(MOVE_POLL_SECONDS)

    # -- workers and limits

    @action("suspend rebalancing", "", "", "suspended")
    async def suspend_rebalancing(self, *, suspended: bool = True) -> None:
        """Stop workers from offering sessions to other workers, or let them offer again (False). Earlier offers stay
        while their sessions are idle.
        """
        await retry(partial(self._provider.suspend_rebalancing, suspended=suspended))

    @action("drain", "worker", "worker_id")
    async def drain_worker(self, worker_id: str) -> None:
        """Drain a worker without ending it: it takes nothing new, finishes what runs, and gives its sessions up as
        their work ends. It stays registered, and drains again after a restart, until `resume_worker`.

        Raises:
            UnknownWorker: no worker has this name.
            InvalidId: the id is refused.
        """
        await self._set_drain_wanted(worker_id, wanted=True)

    @action("end drain", "worker", "worker_id")
    async def resume_worker(self, worker_id: str) -> None:
        """Let a worker take work again after `drain_worker`.

        Raises:
            UnknownWorker: no worker has this name.
            InvalidId: the id is refused.
        """
        await self._set_drain_wanted(worker_id, wanted=False)

    async def _set_drain_wanted(self, worker_id: str, *, wanted: bool) -> None:
        name = check_id(worker_id, "worker id")
        if not await retry(partial(self._provider.set_drain_wanted, name, wanted=wanted)):
            raise UnknownWorker(f"there is no worker {name!r}")
        with suppress(ProviderError):  # only a hint: it learns it with its next renewal, or when it looks
            await self._provider.notify_workers({name: Hint(cancel=not wanted)})

    @action("set quotas", "", "")
    async def set_quotas(self, quotas: Quotas) -> None:
        """Replace all limits of this database, for all clients and workers. On PostgreSQL only the role that migrated
        may do so.

        Raises:
            InvalidOptions: a limit is not an integer from 1 to `limits.MAX_QUOTA`.
            AccessDenied: this role may not set limits.
        """
        await retry(partial(self._provider.set_quotas, check_quotas(quotas)))

    # -- deleting

    @action("delete", "instance", "instance_id", "force", "keep_children")
    async def delete(self, instance_id: str, *, force: bool = False, keep_children: bool = False) -> None:
        """Remove a finished instance with its history, or with ``force`` any; and with it its sub-orchestrations and
        theirs, unless ``keep_children``. A parent that still waits for it gets `OrchestrationFailed`.

        Raises:
            UnknownInstance: no instance has this id.
            InstanceNotFinished: it, or an instance that goes with it, is running, and ``force`` is not given.
            InvalidId: the id is refused.
        """
        wanted = [check_id(instance_id, "instance id")]
        delete = partial(self._provider.delete_instance, wanted, force=force, tree=not keep_children)
        (deletion,) = await retry(delete, idempotent=False)
        check_deletion(instance_id, deletion)
        self._hints.notify_all(cancel=True)  # a parent may have got a message, too

    @action("prune", "instance", "", "older_than")
    async def prune(
        self,
        *,
        older_than: float,
        status: EndedStatus | Collection[EndedStatus] = COMPLETED,
        dry_run: bool = False,
        progress: PruneProgress = no_progress,
    ) -> PrunedInstances:
        """Remove instances that ended long ago, each with its history and its sub-orchestrations, oldest first.

        A sub-orchestration goes with its parent and never before it. A tree stays while a member of it has not ended
        for that long: running and suspended instances are never removed. It works in steps: an interrupted call keeps
        its progress, and may be repeated.

        Args:
            older_than: seconds since the end, by the database's clock.
            status: how they ended; one, or several.
            dry_run: change nothing.
            progress: called after each step with the number of instances so far.

        Raises:
            InvalidInput: an age or a status is out of range.
        """
        check_age("older_than", older_than)
        wanted = frozenset(several(status, "status", sorted(FINISHED)))
        if not wanted:
            raise InvalidInput(f"status: name some of {', '.join(sorted(FINISHED))}")
        roots = instances = 0
        step = partial(self._provider.prune_instances, wanted, older_than, dry_run=dry_run)
        pruned = await retry(step)
        while True:
            roots, instances = roots + pruned.roots, instances + pruned.instances
            progress(instances)
            if pruned.after is None:
                return PrunedInstances(roots=roots, instances=instances)
            pruned = await retry(partial(step, after=pruned.after))

    @action("prune histories", "instance", "", "older_than")
    async def prune_histories(
        self,
        *,
        older_than: float,
        instance_id: str | None = None,
        dry_run: bool = False,
        progress: PruneProgress = no_progress,
    ) -> int:
        """Remove the histories of former executions, in steps as `prune` does.

        A former execution ended with ``continue_as_new`` or with a reset, more than ``older_than`` seconds ago.
        Instances continue, and keep the history of their present execution.

        Args:
            older_than: seconds since the end of an execution, by the database's clock; 0: all former ones.
            instance_id: only of this instance; None: of all.
            dry_run: change nothing.
            progress: called after each step with the number of executions so far.

        Returns:
            The number of executions whose history was removed, or would be.

        Raises:
            InvalidInput: the age is out of range, or the id is refused.
        """
        check_age("older_than", older_than)
        if instance_id is not None:
            check_id(instance_id, "instance id")
        executions, more = 0, True
        while more:
            pruned = await retry(
                partial(self._provider.prune_histories, older_than, instance_id=instance_id, dry_run=dry_run)
            )
            executions, more = executions + pruned.executions, pruned.limit_reached
            progress(executions)
        return executions


def _busy_instance(instance_id: str) -> Contention:
    return Contention(f"instance {instance_id!r} took a turn in every attempt to reset it: try again")
