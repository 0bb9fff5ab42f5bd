"""The verbs that operators call: resume, reset, delete, prune, list, count, limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from affinity.provider.contract.connection import ProviderConnection
from affinity.provider.contract.failures import FailureFilter, FailureGroups, FailureRecord
from affinity.provider.contract.instances import Deletion, Resumption
from affinity.provider.contract.management import (
    EventOrigin,
    ExecutionInfo,
    InstanceCounts,
    InstanceSize,
    QueueStatistics,
    Quotas,
    StatusCounts,
    TreeMember,
    WaitingWork,
)
from affinity.provider.contract.retention import HistoryPruning, InstancePruning
from affinity.provider.contract.sessions import (
    MoveFilter,
    PlannedMove,
    PlanOutcome,
    SessionMove,
    SessionRelease,
    SessionUse,
)
from affinity.provider.contract.turns import Reset
from affinity.provider.contract.work_items import QueuePart, WorkItemInfo
from affinity.provider.contract.workers import RegisteredCode, WorkerDemand, WorkerInfo


class AdministrationProvider(ProviderConnection, Protocol):
    """The administration side of a provider."""

    async def release_session(self, session_ids: Sequence[str]) -> Sequence[SessionRelease]:
        """Free sessions, whichever worker holds them. "busy": the holder has locked a work item of the session; nothing
        changed. Otherwise the session lock ends now, even if a `SessionHold` lasts, and any worker may fetch its items;
        the next claim by another incarnation gives it a new epoch.
        """
        ...

    async def move_session(self, moves: Sequence[PlannedMove]) -> Sequence[PlanOutcome]:
        """Plan moves of sessions; see `PlannedMove`. Each session is named once in a call. A second plan for a session
        replaces the first, unless it is an offer.
        """
        ...

    async def set_drain_wanted(self, worker_id: str, *, wanted: bool) -> bool:
        """Drain a worker, alive or not, without ending it. The worker, and each process that registers its name, is
        draining until a call with ``wanted=False``. Returns False if the worker does not exist.
        """
        ...

    async def resume_instance(self, instance_ids: Sequence[str]) -> Sequence[Resumption]:
        """Let suspended instances continue, on any worker; the code versions that have tried them are forgotten."""
        ...

    async def reset_instance(self, reset: Reset) -> bool:
        """Open an instance again at an earlier point; see `Reset`. False: the fence did not hold, nothing changed."""
        ...

    async def delete_instance(
        self, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True
    ) -> Sequence[Deletion]:
        """Remove finished instances, or with ``force`` any, with all their rows, holds and watches.

        With ``tree``, each goes with its children and theirs, all or none: "running" when one of them has not ended,
        and ``force`` is not given. A parent that stays gets `NewInstance.on_deleted` as a message for a child that had
        not ended.
        """
        ...

    async def prune_instances(
        self, status: frozenset[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
    ) -> InstancePruning:
        """Do one step of removing instances that ended more than ``older_than`` seconds ago with one of these statuses
        (of `FINISHED`), oldest first, as `delete_instance` removes them.

        A child goes with its parent, never before it. A tree stays while a member of it has not ended for that long.
        Rows that another transaction is changing are passed over. A step reads `limits.PRUNE_WINDOW` ended instances
        that ended after ``after``, and removes trees up to about `limits.PRUNE_EVENTS` events, at least one tree. The
        step may end after `limits.PRUNE_STEP_SECONDS`. With ``dry_run`` it returns the rows that it
        would remove, and removes nothing.
        """
        ...

    async def prune_histories(
        self, older_than: float, *, instance_id: str | None = None, dry_run: bool = False
    ) -> HistoryPruning:
        """Do one step of removing histories of former executions, and old keys of messages with their replies.

        An execution is a former one if ``continue_as_new``, a reset or a restart ended it more than ``older_than``
        seconds ago. A step removes at most `limits.PRUNE_EVENTS` events, the latest of a history first, and may end
        after `limits.PRUNE_STEP_SECONDS`. A key is old if its message was sent, or answered, so long ago. With
        ``dry_run`` it removes nothing, and counts all of the histories. ``instance_id``: of this instance only.
        """
        ...

    async def measure_instance(self, instance_id: str) -> InstanceSize | None:
        """Return what the database keeps of an instance, or None if there is none. Reads all of it."""
        ...

    async def read_origins(self, instance_id: str, execution_id: int) -> Sequence[EventOrigin]:
        """Return the origins of the events of one execution, oldest first. Events keep their origins in a reset."""
        ...

    async def list_work_items(self, instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
        """Return the work items of an instance, oldest activity first."""
        ...

    async def list_failed_attempts(self, instance_id: str, execution_id: int, limit: int) -> Sequence[FailureRecord]:
        """Return the failed attempts of the activities of one execution, with their stacks: the last ``limit``, oldest
        first. They are kept as long as the history of the execution, or, without a stack, as long as a sweep's
        `Retention.failures` says.
        """
        ...

    async def list_failures(self, where: FailureFilter, limit: int) -> Sequence[FailureRecord]:
        """Return one page of failures, newest first, without their stacks. Instances that are suspended are among them
        until they go on, whatever ``where.seconds``.
        """
        ...

    async def group_failures(self, seconds: float, limit: int, *, most: int) -> FailureGroups:
        """Count the failures of the last ``seconds``, and all instances that are suspended, by kind, name and class;
        return ``limit`` groups. Each count stops at ``most``, and groups are looked for among the first
        `limits.MAX_FAILURE_GROUPS`, and as many of suspensions.
        """
        ...

    async def list_queue(self, part: QueuePart, limit: int) -> Sequence[WorkItemInfo]:
        """Return the work items of a part of the queue that can be fetched first. Delayed ones are looked for among ten
        times as many that can be fetched later, of each route.
        """
        ...

    async def list_executions(
        self, instance_id: str, limit: int, *, before: int | None = None
    ) -> Sequence[ExecutionInfo]:
        """Return one page of the executions of an instance whose histories are kept, and of the current execution;
        newest first. The next page is ``before`` the last execution id seen.
        """
        ...

    async def list_tree(self, instance_id: str, limit: int) -> Sequence[TreeMember]:
        """Return an instance, its children and theirs, in any order; at most ``limit``, the nearest to the instance."""
        ...

    async def measure_queues(self, limit: int) -> QueueStatistics:
        """Count rows in the queues, up to ``limit`` of each kind; a count reads at most so many rows of an index."""
        ...

    async def sample_waiting_work(self, limit: int) -> Sequence[WaitingWork]:
        """Count work that waits for any worker, by kind, name and tag, among the ``limit`` oldest rows of each route.

        Such work is visible, unlocked work items whose session, if any, has no holder; and visible messages of
        instances without an owner. Items with a session and items without one may be counted in separate records.
        """
        ...

    async def count_instances(self, limit: int, *, after: str | None = None) -> InstanceCounts:
        """Count one page of ``limit`` instances by status, in the order of their ids, after the id ``after``."""
        ...

    async def count_statuses(self, limit: int) -> StatusCounts:
        """Count the instances of each status, up to ``limit``, from indexes, of which a multiple of the limit is read.

        A smaller number may be a lower bound, and the result says so: of pending and running instances beside more than
        twice the limit that have not ended, and of completed ones beside more than twice the limit of failed or
        cancelled ones.
        """
        ...

    async def list_session_moves(
        self, where: MoveFilter, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionMove]:
        """Return one page of ``limit`` moves in the order of their epochs.

        With ``after``, the first moves after that epoch; else the last moves, with ``before`` the last before that
        epoch. A move may be committed a moment after a move with a greater epoch.
        """
        ...

    async def list_session_uses(self, session_id: str, *, limit: int = 100) -> Sequence[SessionUse]:
        """Return what uses a session: the holds that last, the work in the queue, running work first, the work for it
        that waits at a limited gate, longest first, and the watches; at most ``limit`` of each kind.
        """
        ...

    async def list_workers(self) -> Sequence[WorkerInfo]:
        """Return worker rows by id, alive or not. The sessions of each are counted while the database has fewer than
        `limits.SCRAPE_COUNT`; else they are the number that the worker last reported (`get_load`), 0 before.
        """
        ...

    async def list_code(self) -> Sequence[RegisteredCode]:
        """Return the code that workers have, once for all workers that registered the same: live workers, and others
        whose rows stay.
        """
        ...

    async def desired_workers(self) -> WorkerDemand:
        """Return the number of workers that the sessions need: those that are held, or have work and no holder. Work
        that is visible later, and work without a session, does not count. While no worker reports how many sessions it
        may hold, 100 is assumed.
        """
        ...

    async def suspend_rebalancing(self, *, suspended: bool) -> None:
        """Stop workers from offering sessions to other workers, or let them offer again. Earlier offers stay."""
        ...

    async def get_quotas(self) -> Quotas:
        """Return the limits of the database."""
        ...

    async def set_quotas(self, limits: Quotas) -> None:
        """Replace all limits. They apply to instances created and messages sent from then on. Instances and messages of
        turns are counted and not refused.
        """
        ...
