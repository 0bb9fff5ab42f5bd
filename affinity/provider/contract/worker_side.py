"""The verbs that workers call: leases, work items, turns, repair."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract.connection import ProviderConnection
from affinity.provider.contract.hints import HintSource
from affinity.provider.contract.instances import OrchestrationFetch
from affinity.provider.contract.retention import NO_RETENTION, Retention, Sweep
from affinity.provider.contract.sessions import IdleSession, MoveReason, MoveReport, TakenSession
from affinity.provider.contract.turns import Release, Suspend, Turn, TurnResult
from affinity.provider.contract.work_items import (
    EndedWaits,
    FetchOptions,
    Timeouts,
    WorkAbandon,
    WorkAck,
    WorkFetch,
    WorkLock,
)
from affinity.provider.contract.workers import WorkerIdentity, WorkerLease, WorkerProfile
from affinity.records import ActivityWait, ResourceStore


class WorkerProvider(ProviderConnection, ResourceStore, Protocol):
    """The worker side of a provider."""

    async def register_worker(
        self,
        identity: WorkerIdentity,
        lease: float,
        labels: Mapping[str, str],
        *,
        resume: bool = False,
        profile: WorkerProfile,
    ) -> WorkerLease:
        """Take the worker's name and a lease of ``lease`` seconds.

        A new incarnation replaces the former holder of the name, alive or not. It gets the sessions that the name holds
        by an unexpired session lock, as far as it takes their work by its tags, each with a new epoch. With ``resume``
        the same incarnation returns after its lease has expired: it keeps the sessions, and their epochs, that no other
        worker has claimed. Clears draining, unless an operator drains the worker (`set_drain_wanted`).

        The row stores the profile, and the time since which the version of its code is deployed: the latest time of
        live workers of this version, or of the name itself; else now. It is also now when the name had another version
        with a later time: after a rollback the older version counts as the newest.

        Raises:
            WorkerFenced: ``resume``, and another incarnation has taken the name since.
        """
        ...

    async def renew_worker(
        self, identity: WorkerIdentity, lease: float, labels: Mapping[str, str] | None = None
    ) -> WorkerLease | None:
        """Extend the worker lease, and replace the labels of its row; without labels they stay. Returns None when the
        lease has expired: call `register_worker` with ``resume``.

        Raises:
            WorkerFenced: another incarnation has the name.
        """
        ...

    async def drain_worker(
        self, identity: WorkerIdentity, *, restarts: bool = False, if_wanted: bool = False
    ) -> int | None:
        """Mark the worker as draining, so that it claims nothing, and free its sessions that have no work item locked
        by it; their items are rerouted. Idempotent: call again as work ends.

        With ``restarts`` the sessions are left to the next start of the worker. But if there is a newer version of its
        app, as many are freed as live workers of the newest version have room for: sessions with work first, then the
        last used.

        Returns:
            The number of sessions that it still holds. None: the caller is not current, or ``if_wanted`` is set and no
            operator drains the worker now (`set_drain_wanted`); nothing changed.
        """
        ...

    async def release_worker(self, identity: WorkerIdentity, *, restart_grace: float = 0.0) -> None:
        """End the lease; free all sessions, owned instances and locked work items. Idempotent; does nothing when
        another incarnation has the name.

        With ``restart_grace`` the sessions stay with the name for so many seconds, and go to the incarnation that
        registers under it in that time. Until then the incarnation in their rows, and in the worker's row, is
        `WorkerIdentity.left`, which takes nothing. All else is freed; so are the sessions, if an operator drains the
        worker (`set_drain_wanted`).
        """
        ...

    async def list_waiting_tags(self, limit: int) -> Sequence[str]:
        """Return tags of queued work, locked or not: all, or ``limit`` of them; for a worker that takes work with any
        tag (`limits.ANY_TAG`). Reads only.
        """
        ...

    async def fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        """Lock up to ``limit`` visible work items to the caller, as many as fit into ``max_bytes``, at least one.

        Counts an attempt of each, but see `FetchOptions.uncounted_after`. Touches or claims their sessions.

        Items of three kinds are eligible, in the order in which they became visible over all kinds:

        1. items of sessions that the caller holds, whatever their name, unless a `PlannedMove` gives them to another;
        2. session-free items;
        3. items of sessions that no worker holds, if they are offered to the caller (``NewWorkItem.claim_here``) or to
           no worker. The fetch claims their sessions, while the caller holds fewer than ``max_sessions``, is not
           draining and is alive. A session whose items do not fit is not claimed.

        While live workers that do not drain run a newer version of the caller's app (`register_worker`), take all the
        work that it takes (`WorkerTags`), and one of them has room for a session, the caller is
        `outdated <WorkFetch.outdated>`. Then it takes of kind 3 only items that are offered to it, and items that have
        been visible for `NEWER_SECONDS`, of sessions that have been free for as long.

        While other workers are alive and not draining, the caller gets about `limits.fair_share` of kind 2, and of the
        part of kind 3 that is offered to no worker. An item of kind 2 or 3 is passed over while its name, or the name
        that it `needs <WorkAbandon.needs>`, is not in ``names`` and a worker has given it back as unknown less than
        ``unknown_after`` seconds ago. Of kinds 2 and 3, the caller gets items by the tags of `FetchOptions.tags`.

        With ``pack`` the caller leaves work of kind 3 that is offered to no worker to workers of its set, in the same
        way: to a worker that runs the same code, is alive, does not drain, has a lower ordinal, and holds fewer
        sessions than its capacity. Workers are of one set when their ids differ only in the number at their end, which
        is the ordinal.

        With `FetchOptions.only_own` only kind 1 is eligible.

        Every change of holder gives the session a new, greater epoch; an incarnation that claims again what no worker
        has held in between keeps the epoch. Empty when the caller is not alive or is not the current incarnation.
        """
        ...

    async def renew_work_item_lock(
        self, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
    ) -> Sequence[bool]:
        """Extend live tokens of the caller's incarnation, and touch their sessions, as far as it holds them.

        False: the caller no longer has the item (expired, taken, cancelled, finished), and nothing was extended: an
        expired lock does not come back.
        """
        ...

    async def check_work_item(self, locks: Sequence[WorkLock]) -> Sequence[bool]:
        """Return for each lock whether it still has its token. Reads only. Finds cancellations between two renewals."""
        ...

    async def ack_work_item(
        self, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
    ) -> Sequence[bool]:
        """Remove items by live token, send their results to their instances, and write the states and parts that
        come with them. Touches their sessions, as far as the caller holds them.

        False: dead token, or a state or part that did not pass its fence (the token is then still live); nothing
        changed. The session may have moved: without a state or part, only the lock of the work item decides.
        """
        ...

    async def abandon_work_item(self, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
        """Give items back by live token. False: dead token, nothing changed."""
        ...

    async def begin_work_item(self, identity: WorkerIdentity, lock: WorkLock, attempt: int, *, pause: float) -> bool:
        """Count a delivery that its fetch did not count (`FetchOptions.uncounted_after`), just before its code runs:
        afterwards the item has had ``attempt`` deliveries, however often the call is repeated. If its worker ends
        before the item does, the item is delivered again ``pause`` seconds from now at the earliest, behind others;
        given back without a delay, it is visible immediately. False: dead token, or another incarnation took the item;
        nothing changed.
        """
        ...

    async def release_unknown_locks(
        self, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
    ) -> int:
        """Free every item that this incarnation has locked under a token that is not in ``known``; returns their
        number.

        For a worker that lost the reply of a fetch or commit: items may be locked to it under tokens that it does not
        know, and would otherwise wait for their lock to expire. The caller has no fetch and no commit in flight
        meanwhile. The lost delivery is not counted as an attempt, unless it is in ``delivered``: its code may have run.
        """
        ...

    async def end_waits(
        self, identity: WorkerIdentity, *, limit: int, tag_timeout: float | None, item_lock: float
    ) -> EndedWaits:
        """Attend to up to ``limit`` items of each kind that have waited for as long as they may, whichever worker holds
        their sessions.

        An item whose ``fail_after`` has passed is locked to the caller for ``item_lock`` seconds; this does not count
        as an attempt. With a ``tag_timeout``, the same happens to an item that has waited so many seconds for a worker
        with its tag, if no such worker was alive in that time.

        When ``takeover_after`` of an item has passed, its session is freed (reason ``holder_busy``), if nothing of it
        runs, no move of it is planned, and another worker takes its work and has room (`WorkerProfile.capacity`). If
        not, the verb tries again after ``takeover_after``.

        Nothing happens when the caller is not alive or not current.
        """
        ...

    async def begin_wait(self, wait: ActivityWait) -> None:
        """Note that an activity waits, while its work item is locked by its worker. It may be repeated."""
        ...

    async def end_wait(self, wait_id: int) -> None:
        """Remove the note. A sweep removes the notes of activities that no longer run."""
        ...

    async def report_session_moves(self, reports: Sequence[MoveReport]) -> Sequence[MoveReason | None]:
        """Add the reported costs of hydrates to their moves. If a move has several reports, the first with a cost
        counts.

        Returns:
            The reason of each move; None where no move of that epoch exists (any longer).
        """
        ...

    async def take_session(
        self, identity: WorkerIdentity, session_ids: Sequence[str], *, max_sessions: int, session_lock: float
    ) -> Sequence[TakenSession]:
        """Claim sessions that are planned to move to the caller (`PlannedMove`), each with a new epoch.

        A session is left out while its holder has an item of it locked. The items of a claimed session are routed to
        the caller, and the next fetch takes them. A hold lasts. Nothing happens while the caller holds
        ``max_sessions``, is draining, not alive or replaced.
        """
        ...

    async def release_idle_session(
        self, identity: WorkerIdentity, options: FetchOptions, *, order: Sequence[IdleSession]
    ) -> Sequence[str]:
        """Free sessions of the caller that are at rest, for work that it could claim if it held fewer
        (`WorkFetch.crowded`).

        It is any such work while no other worker of the caller's app has room, as many sessions as they hold and may
        hold (`WorkerProfile.capacity`); else what no worker has taken for `OFFER_SECONDS` since it became visible. As
        many sessions are freed as there is work for, the oldest first, up to ``options.limit`` items. That work is
        offered to the caller, so that no other worker frees sessions for it too.

        A session is at rest when it has no item in the queue and no hold (`SessionHold`) that lasts. Sessions whose
        only user has ended are freed first, then those that are not in ``order``, then the others in ``order``. Those
        that are ``in_use`` come last, and only for work that is visible for `OFFER_SECONDS`. Nothing happens when the
        caller is draining, not alive or not current.

        Returns:
            The ids of the sessions that were freed.
        """
        ...

    async def fetch_orchestration_item(
        self,
        identity: WorkerIdentity,
        *,
        limit: int,
        names: Collection[str],
        unknown_after: float,
        exclude: Collection[int] = (),
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> OrchestrationFetch:
        """Return up to ``limit`` instances with visible messages that the caller owns, or takes because no worker owns
        them.

        ``names`` holds ``name`` and ``name@version`` of the orchestrations that the caller registers. An unowned
        instance is passed over while it is not among them (without a version by name, else by ``name@version``) and has
        been given back as unknown less than ``unknown_after`` seconds ago. While other workers are alive and not
        draining, one fetch takes at most `limits.fair_share` of the unowned instances. Messages in ``exclude`` (the
        caller processes them) are left out; an instance all of whose visible messages are excluded is not returned. At
        most `MAX_BATCH` messages per instance. Messages stay in the queue until a turn that consumed them commits.

        ``max_bytes`` bounds the payloads, in UTF-8 bytes: once the read messages have so many, no more are read; at
        least one is. They are read in rounds: the first message of each instance, then the second, and so on. An
        instance without any is not taken. The rest comes with the next fetch, in its order.

        A draining worker takes no new instance. Empty when the caller is not alive or not current (``fenced``).
        """
        ...

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, *, notify: Collection[str] = ()
    ) -> Sequence[TurnResult]:
        """Commit turns of distinct instances in one transaction: the write of the hot loop. `Turn` describes the fence.

        New work items are routed by the holder of their session at that moment.

        A visible item with ``lock_here`` is locked to the caller, with a fresh token and attempt 1, if it is
        session-free, or if the caller holds its session, without a `PlannedMove`, and the same transaction touched it.
        A draining worker, or a worker whose lease has ended, locks nothing here.

        A visible item with ``claim_here``, of a session that no worker holds, is offered to the caller: its fetch may
        claim that session; no other worker does before a sweep `OFFER_SECONDS` later.

        An applied turn appends ``history`` and, beside the events, the time, the caller and ``runs``; removes
        ``consumed`` messages and acked items; touches the sessions of acks; adds items, messages and instances; removes
        cancelled activities, whichever worker runs them, and cancelled timers; writes ``states`` and ``parts``;
        begins and ends holds and watches. ``continued`` starts the next execution with event count 0; a finished status
        removes all queue rows of the instance. A work item or timer that a turn queues and also cancels is not queued;
        a message to a child that it creates arrives after the child's start.

        After the transaction the subscribers of the sessions in ``notify`` are notified, as by `notify_changes`: also
        when turns are refused. The call need not wait for that, and does not fail when it fails.
        """
        ...

    async def release_instance(self, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
        """Give up the ownership of instances, or hand it over; their queued messages are rerouted."""
        ...

    async def suspend_instance(self, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> Sequence[bool]:
        """Suspend instances that the caller owns; it loses their ownership. False: the fence did not hold, nothing
        changed. `Suspend.code` is stored among the code versions that have tried this point of the history. The verb
        reads no event and no message, so that it works when they are unreadable.
        """
        ...

    async def retry_suspended(
        self, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int
    ) -> Sequence[str]:
        """Resume, owned by the caller, up to ``limit`` instances that were suspended with ``needs_code``.

        The caller registers them (``names`` as in `fetch_orchestration_item`), and no worker of code version ``code``
        has suspended them at this point of their history since an operator last resumed them. None when the caller is
        draining, not alive or not current.

        Returns:
            The ids of the instances that were resumed.
        """
        ...

    async def sweep(
        self,
        *,
        interval: float,
        session_retention: float,
        worker_retention: float,
        retention: Retention = NO_RETENTION,
    ) -> Sweep:
        """Repair stale routes in both queues and remove dead rows, at most once per ``interval`` seconds over all
        workers. Each call repairs all routes to workers that are not alive. For the rest, a call may check a part of
        the queued sessions and of the session rows; the next call, of any worker, continues from there.

        Removes sessions that expired more than ``session_retention`` seconds ago, have no work and are not watched,
        holds whose time is over, and workers whose lease ended more than ``worker_retention`` seconds ago; the row of a
        worker with a name of its own that an operator drains stays for `limits.DRAINED_RETENTION_SECONDS`. It never
        removes a session that a watch committed during the sweep names.

        With ``retention`` it also removes old data, in transactions of their own, each of which ends after about
        `limits.PRUNE_STEP_SECONDS`: one step for each kind, from where the last sweep ended.

        - instances: as `prune_instances`, for `SWEPT_STATUSES` and trees of at most `limits.PRUNE_TREE_EVENTS` events.
        - histories: as `prune_histories`. Moves: the oldest rows. Guests: as each says.
        - records: as a deletion of the session store with ``idle_only``. A record that a guest needs stays, and one
          whose session is held by a `NewHold`, or was named at the start of an instance that has not ended. What has to
          stay is looked at again with the next round, see `rounds`.
        """
        ...

    def hints(self, identity: WorkerIdentity) -> AbstractAsyncContextManager[HintSource]:
        """Subscribe to hints for this worker."""
        ...
