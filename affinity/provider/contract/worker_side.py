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
from affinity.provider.contract.turns import Release, Suspend, Turn, TurnResult
from affinity.provider.contract.work_items import FetchOptions, Timeouts, WorkAbandon, WorkAck, WorkFetch, WorkLock
from affinity.provider.contract.workers import WorkerIdentity, WorkerLease


class WorkerProvider(ProviderConnection, Protocol):
    """The worker side of a provider."""

    async def register_worker(
        self, identity: WorkerIdentity, lease: float, labels: Mapping[str, str], *, resume: bool = False
    ) -> WorkerLease:
        """Take the worker's name and a lease of ``lease`` seconds.

        A new incarnation replaces whichever had the name, alive or not, and is given all sessions that the name holds
        by an unexpired session lock, each with a new epoch. With ``resume`` the same incarnation comes back after its
        lease lapsed: it keeps its sessions and their epochs as far as nobody took them. Clears draining.

        Raises:
            WorkerFenced: ``resume``, and another incarnation has taken the name since.
        """
        ...

    async def renew_worker(self, identity: WorkerIdentity, lease: float) -> WorkerLease | None:
        """Extend the worker lease. None when it has expired already: `register_worker` with ``resume`` is then the way.

        Raises:
            WorkerFenced: another incarnation has the name.
        """
        ...

    async def drain_worker(self, identity: WorkerIdentity) -> int:
        """Mark the worker as draining (it claims nothing any more, even when it asks) and free every session of it that
        has no work item locked by it; their items are re-marked. Idempotent: call again as work ends.

        Returns:
            The number of sessions that it still holds.
        """
        ...

    async def release_worker(self, identity: WorkerIdentity) -> None:
        """Leave: free all sessions and owned instances and end the lease. Work items still locked become free.
        Idempotent; does nothing when another incarnation has the name.
        """
        ...

    async def fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        """Lock up to ``limit`` visible work items to the caller, as many as fit into ``max_bytes`` and at least one;
        attempts + 1, but see `FetchOptions.uncounted_after`; touch or claim their sessions.

        Eligible, the oldest first over all kinds (by when they became visible): items of sessions that the caller holds
        (whatever their name); session-free items; items of sessions that nobody holds, which claims them, while the
        caller holds fewer than ``max_sessions``, is not draining and is alive: what was offered to it
        (``NewWorkItem.claim_here``), and what is anyone's. While other workers are alive and not draining, it gets
        about as many session-free items, and as many that are anyone's, as `limits.fair_share` says. Of all but the
        first kind, an item is passed over while its name, or what it `needs <WorkAbandon.needs>`, is not in ``names``
        and a worker has given it back as unknown less than ``unknown_after`` seconds ago.
        Every change of holder gives the session a new, greater epoch; the same incarnation that re-claims what nobody
        held in between keeps it. Nothing when the caller is not alive or is not the current incarnation.
        """
        ...

    async def renew_work_item_lock(
        self, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
    ) -> Sequence[bool]:
        """Extend live tokens that this worker's incarnation took, and touch their sessions as far as it holds them.
        False: the item is not ours any more (expired, taken, cancelled, finished) and nothing was extended.
        """
        ...

    async def check_work_item(self, locks: Sequence[WorkLock]) -> Sequence[bool]:
        """Whether each lock still has its token; reads only. How a worker learns of cancellation between renewals."""
        ...

    async def ack_work_item(
        self, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
    ) -> Sequence[bool]:
        """Remove items by live token, send their results to their instances, write the states that come with them,
        touch their sessions as far as the caller holds them. False: dead token, or a state that did not pass its fence
        (the token is then still live); nothing changed. The session may have moved: without a state, the work-item lock
        governs the result.
        """
        ...

    async def abandon_work_item(self, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
        """Give items back by live token. False: dead token, nothing changed."""
        ...

    async def begin_work_item(self, identity: WorkerIdentity, lock: WorkLock, attempt: int) -> bool:
        """Count a delivery that its fetch did not count (`FetchOptions.uncounted_after`), just before the item is
        handed to code: afterwards the item has had ``attempt`` deliveries. False: dead token, or another incarnation
        took it; nothing changed.
        """
        ...

    async def release_unknown_locks(
        self, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
    ) -> int:
        """Free every item that this incarnation has locked under a token that is not in ``known``; returns their
        number.

        For a worker that lost the reply of a fetch or commit: items may be locked to it that it has never heard of, and
        would otherwise wait for their lock to expire. The caller has no fetch and no commit in flight meanwhile. The
        lost delivery is not counted as an attempt, unless it is in ``delivered``: those were handed to code.
        """
        ...

    async def check_session(self, identity: WorkerIdentity, session_ids: Sequence[str]) -> Sequence[float | None]:
        """Seconds for which the caller's incarnation, if it is alive, holds each session by its session lock; None for
        those that it does not hold. Reads only.
        """
        ...

    async def release_idle_session(
        self, identity: WorkerIdentity, options: FetchOptions, *, min_idle: float, only_users: Mapping[str, str]
    ) -> Sequence[str]:
        """Free idle sessions of the caller's, for work that it could claim if it held fewer (`WorkFetch.crowded`) and
        that no worker has taken: in `OFFER_SECONDS` since it became visible, or, where the caller is alone, at all.

        Idle is a session without any item in the queue and without a hold (`SessionHold`) that lasts, that nothing has
        touched for ``min_idle`` seconds, or whose only user has ended: ``only_users`` names, by session, the instance
        that alone has used it, as far as the caller knows. Those whose user has ended go first, then the least recently
        touched; as many as there is work for, up to ``options.limit`` items. That work is offered to the caller, so
        that no other worker makes room for it too. Nothing when the caller is draining, not alive or not current.

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
        """Up to ``limit`` instances with visible messages that the caller owns, or takes because nobody does.

        ``names`` holds ``name`` and ``name@version`` of what the caller registers. An unowned instance is passed over
        while it is not among them (by name when its version is None, else by ``name@version``) and has been given back
        as unknown less than ``unknown_after`` seconds ago. While other workers are alive and not draining, one fetch
        takes as many unowned ones as `limits.fair_share` says. Messages in ``exclude`` (being worked on by the caller)
        are left out; an instance all of whose visible messages are excluded is not returned. At most `MAX_BATCH`
        messages an instance.

        ``max_bytes`` bounds the payloads, in UTF-8 bytes: a message is left behind when those before it have as many.
        So at least one comes. They are taken in rounds: the first message of each instance, then the second, and so on.
        An instance that gets none is not taken. What is left behind comes with the next fetch, in its order.

        A draining worker takes no new instance. Nothing when the caller is not alive or not current; ``fenced`` says
        that it is not.
        """
        ...

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts
    ) -> Sequence[TurnResult]:
        """Commit turns of distinct instances in one transaction: THE write of the hot loop. See `Turn` for what is
        checked.

        New work items are routed by who holds their session now. Those with ``lock_here`` are locked to the caller with
        a fresh token and attempt 1 when they are visible and either session-free or of a session that the caller holds
        and that the same transaction touched; a draining worker, or one whose lease has ended, locks nothing here.
        Those with ``claim_here`` that are visible and of a session that nobody holds are offered to the caller: its
        fetch may claim that session, nobody else's does before a sweep `OFFER_SECONDS` later.
        """
        ...

    async def release_instance(self, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
        """Give up the ownership of instances, or hand it over; their queued messages are re-marked."""
        ...

    async def suspend_instance(self, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> Sequence[bool]:
        """Suspend instances of the caller's, which loses their ownership. False: the fence did not hold, nothing
        changed. `Suspend.code` is remembered among those that have tried the instance at this point of its history.
        """
        ...

    async def retry_suspended(
        self, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int
    ) -> Sequence[str]:
        """Resume up to ``limit`` instances that were suspended with ``needs_code``, as the caller's own: those that it
        registers (``names`` as in `fetch_orchestration_item`) and that no worker of code version ``code`` has suspended
        at this point of their history since an operator resumed them last. None when the caller is draining, not alive
        or not current.

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
        """Repair stale marks in both queues and remove dead rows, at most once per ``interval`` seconds over all
        workers. Marks of a worker that is not alive come at once. For the rest, a call may look at a part of the queued
        sessions and of the session rows, and the next one, by whichever worker, goes on from there.

        Removes sessions that expired more than ``session_retention`` seconds ago, have no work and are not watched,
        holds whose time is over, and workers whose lease ended more than ``worker_retention`` seconds ago. Records of
        session state stay: they go only when they are deleted. A session with a watch that is committed while the sweep
        runs, before it removes the session's row, stays too.

        With ``retention``, it also does one step of `prune_instances`, for `SWEPT_STATUSES` and trees of at most
        `limits.PRUNE_TREE_EVENTS` events, from where the last sweep stopped, and one of `prune_histories`.
        """
        ...

    def hints(self, identity: WorkerIdentity) -> AbstractAsyncContextManager[HintSource]:
        """Subscribe to wake-up hints for this worker."""
        ...
