"""The client's calls that only read: instances, sessions, workers, queues and limits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack, cast, get_args

import anyio

from affinity.client.activities import Activity, ActivityList
from affinity.client.calls import retry, unknown_instance
from affinity.client.conditions import conditions_of
from affinity.client.exports import document_parts, keep_named_blobs
from affinity.client.failures import FailureCalls
from affinity.client.moves import follow_moves
from affinity.client.views import (
    ExecutionSummary,
    HistoryRecord,
    Instance,
    InstanceTree,
    WorkStatistics,
    execution_of,
    instance_of,
    record_of,
    tree_of,
)
from affinity.errors import (
    Explanation,
    InvalidInput,
    InvalidOptions,
    SessionNotFound,
    UnknownInstance,
    UnknownWorker,
    WaitTimeout,
)
from affinity.explain import (
    DrainPreview,
    SessionLife,
    UnservedWork,
    drain_preview,
    explain,
    session_life,
    unserved_work,
)
from affinity.limits import (
    MAX_COUNT,
    MAX_HISTORY_EVENTS,
    MAX_PAGE,
    MAX_PAGE_EVENTS,
    SCRAPE_COUNT,
    check_condition,
    check_id,
    check_labels,
    check_limit,
)
from affinity.orchestration.codec import read_json
from affinity.paging import Page, PageIterator, Pages, next_cursor, read_cursor, read_number, uninterrupted
from affinity.payloads import has_codec, stored_by
from affinity.provider.contract import (
    FINISHED,
    EventOrigin,
    ExecutionInfo,
    FleetLoad,
    HistoryCursor,
    HistoryPage,
    InstanceFilter,
    InstanceInfo,
    InstanceOrder,
    InstanceSize,
    InstanceStatus,
    MoveFilter,
    MoveReason,
    QueuePart,
    Quotas,
    SessionInfo,
    SessionMove,
    SessionUse,
    WorkerDemand,
    WorkerInfo,
    WorkItemInfo,
)
from affinity.records import Labels, copied
from affinity.redaction import redacted

_READINGS: Final = 3
"""Attempts to read the activities of an execution that does not end meanwhile."""

logger: logging.Logger = logging.getLogger("affinity.client")

EXPLAIN_SECONDS: Final = 3.0
"""Seconds for which a wait whose time is over reads the reason, at most."""


InstanceSort: TypeAlias = Literal["started", "-started", "ended", "-ended", "duration", "-duration"]
"""The order of a listing of instances: by the time of their start, of their end, or between the two; with a minus sign
the newest or the longest first. "ended" and "duration" list only instances that have ended.
"""


class InstanceConditions(TypedDict, total=False):
    """The instances to list; all conditions hold."""

    status: InstanceStatus | Collection[InstanceStatus]
    """This one, or any of these; empty: all."""
    name: str | None
    """Name of the orchestration."""
    prefix: str | None
    """Beginning of the instance id."""
    parent_id: str | None
    """The instance that they are sub-orchestrations of."""
    reason: str | None
    """The reason for which they are suspended: `Suspension.error_type`."""
    session_id: str | None
    """The session for which they, or their parents, were started."""
    version: str | None
    """Version of the orchestration."""
    name_suffix: str | None
    """Ending of the name of the orchestration; ".conversation" is that of the instances of conversations."""
    without_suffix: Collection[str] | None
    """The name of the orchestration ends with none of these."""
    labels: Labels | None
    """They have all of these labels."""
    created_since: datetime | None
    """Begun at this time or later; with a time zone."""
    created_before: datetime | None
    """Begun before this time."""
    most: int | None
    """Look at so many of the first ones, up to `limits.MAX_COUNT`: no index has names, versions and all statuses. With
    labels, or only rare statuses, these are the first that have them.
    """


class InstanceSelection(InstanceConditions, total=False):
    """The instances to list, and their order."""

    sort: InstanceSort
    """``"-started"``, the default: newest first; ``"started"``: oldest first; ``"-ended"``, ``"ended"``: by the time of
    their end. ``"-duration"``, ``"duration"``: those that took longest or shortest, among the ``most`` that ended last,
    by default `limits.SCRAPE_COUNT`; this listing has one page. A restart does not change the start of an instance.
    """


class MoveConditions(TypedDict, total=False):
    """The moves of sessions to list; all conditions hold."""

    session_id: str | None
    worker_id: str | None
    """From this worker or to it."""
    reason: MoveReason | None


def filter_of(where: Mapping[str, Any], conditions: type = InstanceSelection) -> InstanceFilter:
    """Return the filter of these conditions.

    Raises:
        InvalidInput: see `Inspection.list_instances`.
    """
    checked = conditions_of(where, conditions)
    if "labels" in checked:
        checked["labels"] = check_labels(checked["labels"])
    if "most" in checked:
        check_limit(checked["most"], MAX_COUNT, "most")
    sort: InstanceSort = checked.pop("sort", "-started")
    order = cast(InstanceOrder, sort.removeprefix("-"))
    if order == "duration":
        checked.setdefault("most", SCRAPE_COUNT)
    return InstanceFilter(**checked, order=order, oldest_first=not sort.startswith("-"))


class Inspection(FailureCalls):
    """Calls that show instances, sessions and workers."""

    # -- instances

    async def status(self, instance_id: str) -> Instance:
        """Return the instance as it is now.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidId: the id is refused.
        """
        return instance_of(await self._present(instance_id))

    async def measure(self, instance_id: str) -> InstanceSize:
        """Return what the database keeps of an instance: events, messages, queued work and values, with their bytes. It
        reads all of it.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidId: the id is refused.
        """
        check_id(instance_id, "instance id")
        size = await retry(partial(self._provider.measure_instance, instance_id))
        if size is None:
            raise unknown_instance(instance_id)
        return size

    async def explain(self, instance_id: str) -> Explanation | None:
        """Return the reason why an instance waits: a sentence and a code; None: it has ended. Reads its
        history, its queued work and the workers, and the same of the instance that it waits for.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidId: the id is refused.
        """
        return await self._explain(instance_id)

    async def _explain(self, instance_id: str, *, queued: bool = False) -> Explanation | None:
        """As `explain`; ``queued``: of the start that waits for the end of the present run."""
        await self._present(instance_id)
        return await retry(partial(explain, self._provider, instance_id, queued=queued))

    async def _wait_timeout(self, instance_id: str, message: str) -> WaitTimeout:
        """Return the error of a wait whose time is over, with the reason of the wait, if it is known in time."""
        found = None
        with anyio.move_on_after(EXPLAIN_SECONDS):
            try:
                found = await explain(self._provider, instance_id)
            except Exception as error:  # a row that cannot be read, too: the time is over in any case
                logger.debug("what instance %s waits for is not known: %r", instance_id, redacted(error))
        return WaitTimeout(message, found)

    def history(self, instance_id: str, *, execution_id: int | None = None, after: int = 0) -> Pages[HistoryRecord]:
        """List the events of one execution of an instance, oldest first. At most `limits.MAX_BATCH_BYTES` are read at a
        time, so a page may have fewer events than its limit, and not be the last. A history may be too large to be in
        memory as a whole.

        Args:
            instance_id: the instance.
            execution_id: by default the execution that is current when the reading begins.
            after: only events behind this one.

        Raises:
            InvalidId: the id is refused.
            UnknownInstance: by the first read; no instance has this id.
        """
        check_id(instance_id, "instance id")
        known: dict[int, EventOrigin] = {}

        async def first() -> HistoryCursor:
            execution = (await self.status(instance_id)).execution_id if execution_id is None else execution_id
            return HistoryCursor(instance_id, execution, after)

        async def read(cursor: str | None, limit: int) -> Page[HistoryRecord]:
            at = await first() if cursor is None else HistoryCursor(instance_id, *_read_place(cursor))
            page = await self._read_page(at)
            events = page.events[:limit]
            last = at.after + len(events)
            if last not in known:
                origins = await retry(partial(self._provider.read_origins, instance_id, at.execution_id))
                known.update({origin.event_id: origin for origin in origins})
            records = [record_of(n, text, known.get(n)) for n, text in enumerate(events, at.after + 1)]
            has_more = page.more or len(events) < len(page.events)
            return Page(items=records, next=f"{at.execution_id}/{last}" if has_more else None)

        return Pages(read, largest=MAX_PAGE_EVENTS)

    @uninterrupted
    async def iter_export(
        self, instance_id: str, *, execution_id: int | None = None, decode: bool = True
    ) -> AsyncIterator[str]:
        """Yield the text of `export_history` in pieces, for a history that may be too large to be in memory as a whole:
        at most `limits.MAX_BATCH_BYTES` are read at a time.

        Raises:
            UnknownInstance, InvalidInput, BlobStoreFailed: see `export_history`; at any piece.
        """
        identity = await retry(self._provider.read_identity)
        if identity.encoded and decode and not has_codec(self._provider):
            raise InvalidOptions("the payloads are encoded: give the client a codec, or name it in AFFINITY_CODEC")
        is_stored = identity.encoded and not decode
        info = await self._present(instance_id)
        kept = [row.execution_id async for row in self._iter_executions(instance_id) if row.event_count]
        wanted = [number for number in reversed(kept) if execution_id in {None, number}]
        if not wanted:
            which = "" if execution_id is None else f" of execution {execution_id}"
            raise InvalidInput(f"instance {instance_id!r} has no events{which}")
        shown = await self._stored_info(instance_id) if is_stored else info
        read = partial(self._export_page, is_stored)
        async for part in document_parts(shown, wanted, read, identity.name if is_stored else None):
            yield part
        if (await self._present(instance_id)).generation != info.generation:
            raise UnknownInstance(f"instance {instance_id!r} was replaced by another one meanwhile: export it again")

    async def export_history(
        self, instance_id: str, *, execution_id: int | None = None, decode: bool = True
    ) -> dict[str, Any]:
        """Return the history of an instance as a JSON document, with its payloads, for `affinity.testing.replay`: all
        executions that are kept, or only one. `affinity history ID --export FILE` writes the same. The blobs that it
        names are kept, as by `Client.keep_blobs`.

        Args:
            instance_id: the instance.
            execution_id: only this one.
            decode: False: payloads that a codec has encoded stay encoded, and large ones in the blob store. It needs no
                codec; `replay` needs it, and the blob store.

        Raises:
            UnknownInstance: no instance has this id, or it was replaced meanwhile.
            InvalidInput: the id is refused, or there are no events.
            InvalidOptions: there is no codec to decode with.
            BlobStoreFailed: the blob store fails.
        """
        parts = [part async for part in self.iter_export(instance_id, execution_id=execution_id, decode=decode)]
        return cast(dict[str, Any], read_json("".join(parts)))

    def _iter_executions(self, instance_id: str) -> AsyncIterator[ExecutionInfo]:
        """Iterate over all executions that are kept, newest first."""

        async def read(before: int) -> tuple[Sequence[ExecutionInfo], int | None]:
            rows = await retry(partial(self._provider.list_executions, instance_id, MAX_PAGE, before=before or None))
            return rows, rows[-1].execution_id if len(rows) == MAX_PAGE else None

        return PageIterator(read, 0)

    async def _export_page(self, is_stored: bool, at: HistoryCursor) -> HistoryPage:
        """The next events; with ``is_stored``, with their payloads as they are stored."""
        provider = stored_by(self._provider) if is_stored else self._provider
        (page,) = await retry(partial(provider.read_history, [at]))
        await keep_named_blobs(self._provider, page.events)
        return page

    async def _stored_info(self, instance_id: str) -> InstanceInfo:
        """The row of an instance, with its payloads as they are stored."""
        (info,) = await retry(partial(stored_by(self._provider).get_instance, [instance_id]))
        if info is None:
            raise unknown_instance(instance_id)
        return info

    async def _read_page(self, at: HistoryCursor) -> HistoryPage:
        (page,) = await retry(partial(self._provider.read_history, [at]))
        return page

    async def executions(
        self, instance_id: str, *, limit: int = 100, before: int | None = None
    ) -> Sequence[ExecutionSummary]:
        """Return the executions of an instance whose histories are kept, and the current one; newest first.

        Args:
            instance_id: the instance.
            limit: executions at most, from 1 to `limits.MAX_PAGE`.
            before: only executions before this one, which is the last of the page before.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidInput: the id is refused, or a limit out of range.
        """
        check_limit(limit)
        instance = await self._present(instance_id)
        rows = await retry(partial(self._provider.list_executions, instance_id, limit, before=before))
        return [execution_of(row, instance) for row in rows]

    async def activities(self, instance_id: str) -> Sequence[Activity]:
        """Return the activities of an instance's current execution, in the order in which they were scheduled.

        Each has its state: ended and how, running, or waiting for a worker or its next attempt, and why. Reads the
        history of the execution. An activity that is parked until a message comes is not listed.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidId: the id is refused.
        """
        return (await self.activities_and_refusals(instance_id))[0]

    async def activities_and_refusals(self, instance_id: str) -> tuple[Sequence[Activity], Sequence[HistoryRecord]]:
        """Return `activities`, and the events that fit no wait of the execution, in one reading of the history.

        Raises:
            UnknownInstance: no instance has this id, or it was replaced meanwhile.
            InvalidId: the id is refused.
        """
        for _ in range(_READINGS):
            before = await self._present(instance_id)
            found = ActivityList(before.execution_id)
            async for record in self.history(instance_id, execution_id=before.execution_id):
                found.add(record)
            rows = await retry(partial(self._provider.list_work_items, instance_id, MAX_HISTORY_EVENTS))
            after = await self._present(instance_id)
            if after.generation != before.generation:
                raise UnknownInstance(f"instance {instance_id!r} was replaced by another one meanwhile: read it again")
            has_ended = after.execution_id != before.execution_id or after.status in FINISHED
            if has_ended == (before.status in FINISHED):  # else its last results may be missing
                break
        return found.all(rows, finished=has_ended), found.refused

    async def queued_activities(self, part: QueuePart, *, limit: int = 100) -> Sequence[WorkItemInfo]:
        """Return the activities of all instances in a part of the queue, those that are due first: "retried" ones,
        which have failed and are tried again, also the ones that run; the other ones that are "delayed"; those
        "blocked" by another activity of an ordered session; those "limited", which wait at a limit.

        Args:
            part: of the queue.
            limit: activities at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: there is no such part, or a limit out of range.
        """
        check_limit(limit)
        if part not in get_args(QueuePart):
            raise InvalidInput(f"part = {part!r:.80}: must be one of {', '.join(get_args(QueuePart))}")
        return await retry(partial(self._provider.list_queue, part, limit))

    async def tree(self, instance_id: str, *, limit: int = MAX_PAGE) -> InstanceTree:
        """Return an instance with its sub-orchestrations and theirs.

        Args:
            instance_id: the instance at the root.
            limit: instances at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownInstance: no instance has this id.
            InvalidInput: the id is refused, or a limit out of range.
        """
        check_limit(limit)
        root = check_id(instance_id, "instance id")
        members = await retry(partial(self._provider.list_tree, root, limit + 1))
        if not members:
            raise unknown_instance(root)
        return tree_of(root, members, limit)

    async def statistics(self, *, limit: int = MAX_COUNT, every_instance: bool = True) -> WorkStatistics:
        """Return the number of instances of each status, the work in the queues, and the age of the oldest work.

        Args:
            limit: where each count of the queues stops, from 1 to `limits.MAX_COUNT`.
            every_instance: count all instances, by pages; False: of each status at most `limits.SCRAPE_COUNT`, which
                takes milliseconds in a large database; `WorkStatistics.at_least` has the statuses with more.

        Raises:
            InvalidInput: a limit out of range.
        """
        check_limit(limit, MAX_COUNT)
        queues = await retry(partial(self._provider.measure_queues, limit))
        if not every_instance:
            found = await retry(partial(self._provider.count_statuses, SCRAPE_COUNT))
            return copied(WorkStatistics, queues, instances=found.counts, at_least=found.at_least)
        page = await retry(partial(self._provider.count_instances, SCRAPE_COUNT))
        counts: Counter[InstanceStatus] = Counter(page.counts)
        while page.after is not None:
            page = await retry(partial(self._provider.count_instances, SCRAPE_COUNT, after=page.after))
            counts.update(page.counts)
        instances = {status: counts[status] for status in get_args(InstanceStatus)}
        return copied(WorkStatistics, queues, instances=instances, at_least=())

    def list_instances(self, **where: Unpack[InstanceSelection]) -> Pages[Instance]:
        """List instances, newest first, as in ``list_instances(labels={"tenant": "acme"}, status="failed")``.

        A page takes the time of its length by one label, by parent, by session and by each of the statuses "suspended",
        "failed" and "cancelled", by the time of the start, and, sorted so and whatever the conditions, by the time of
        the end; other conditions are looked up in the rows that these give.

        Args:
            where: conditions; see `affinity.client.inspection.InstanceSelection`.

        Raises:
            InvalidInput: a condition, a status or an order that does not exist, a label that is refused, or a text
                that no store can keep.
        """
        filtered = filter_of(where)

        async def read(after: str | None, limit: int) -> Page[Instance]:
            if after is not None and filtered.order == "duration":
                raise InvalidInput("a listing by duration has one page")
            wanted = filtered if after is None else replace(filtered, after=read_cursor(after))
            rows = await retry(partial(self._provider.list_instances, wanted, limit))
            items = [*map(instance_of, rows)]
            if filtered.order == "duration":
                return Page(items=items, next=None)
            at = "updated_at" if filtered.by_end else "created_at"
            return Page(items=items, next=next_cursor(rows, limit, at, "instance_id"))

        return Pages(read)

    async def count_instances(self, **where: Unpack[InstanceConditions]) -> Mapping[InstanceStatus, int]:
        """Count the instances that meet conditions, by status: of each status that any of them has. It works in steps,
        so that the numbers of a large database are of slightly different moments.

        Args:
            where: conditions; see `list_instances`. Without any, all instances are counted.

        Raises:
            InvalidInput: see `list_instances`.
        """
        wanted: InstanceFilter | None = filter_of(where, InstanceConditions)
        counts: Counter[InstanceStatus] = Counter()
        while wanted is not None:
            page = await retry(partial(self._provider.count_matching, wanted, SCRAPE_COUNT))
            counts.update(page.counts)
            wanted = None if page.after is None else replace(wanted, after=page.after)
        return {status: counts[status] for status in get_args(InstanceStatus) if counts[status]}

    # -- sessions and workers

    def sessions(self, *, worker_id: str | None = None) -> Pages[SessionInfo]:
        """List the sessions that have a row, by id, with their present or last holder.

        Args:
            worker_id: only sessions that this worker holds, or was the last to hold.

        Raises:
            InvalidInput: a text that no store can keep.
        """
        check_condition(worker_id, "worker_id")

        async def read(after: str | None, limit: int) -> Page[SessionInfo]:
            check_condition(after, "after")
            rows = await retry(partial(self._provider.list_sessions, worker_id=worker_id, after=after, limit=limit))
            return Page(items=rows, next=rows[-1].session_id if len(rows) == limit else None)

        return Pages(read)

    async def session_moves(
        self, *, after: int | None = None, before: int | None = None, limit: int = 100, **where: Unpack[MoveConditions]
    ) -> Sequence[SessionMove]:
        """Moves of sessions with their reasons, in the order of their epochs: with ``after`` the first ones after that
        epoch, otherwise the last ones.

        Args:
            after: an epoch; the last one of a page gives the next page.
            before: an epoch; the first one of a page gives the page before.
            limit: moves at most, from 1 to `limits.MAX_PAGE`.
            where: conditions; see `affinity.client.inspection.MoveConditions`.

        Raises:
            InvalidInput: a limit out of range, ``after`` together with ``before``, a condition or reason that does not
                exist, or a text that no store can keep.
        """
        check_limit(limit)
        if after is not None and before is not None:
            raise InvalidInput("after and before contradict each other: give one of them")
        wanted = MoveFilter(**conditions_of(where, MoveConditions))
        return await retry(partial(self._provider.list_session_moves, wanted, after=after, before=before, limit=limit))

    def follow_session_moves(
        self, *, after: int | None = None, poll_interval: float = 1.0, **where: Unpack[MoveConditions]
    ) -> AsyncIterator[SessionMove]:
        """Yield each move once, as it happens; without end. The cost of its hydrate comes later: see `session_moves`.

        Args:
            after: begin after this epoch; None: with the next move.
            poll_interval: seconds between two looks.
            where: conditions; see `affinity.client.inspection.MoveConditions`.
        """
        return follow_moves(lambda: self._provider, MoveFilter(**where), after, poll_interval)

    async def session_life(self, session_id: str, *, limit: int = 100) -> SessionLife:
        """The last holders of a session, why it came to each and what that has cost, and who holds it now, in one
        sentence.

        Args:
            session_id: the session.
            limit: holders at most, from 1 to `limits.MAX_PAGE` - 1.

        Raises:
            SessionNotFound: it has neither a lease nor a move.
            InvalidInput: the id is refused, or a limit out of range.
        """
        check_limit(limit, MAX_PAGE - 1)
        found = await retry(partial(session_life, self._provider, check_id(session_id, "session id"), limit))
        if found.now is None and not found.holdings:
            raise SessionNotFound(f"no worker has held the session {session_id!r}, as far as is known")
        return found

    async def session_uses(self, session_id: str, *, limit: int = 100) -> Sequence[SessionUse]:
        """Return what uses a session now: the waits that hold it, the activities that run on it or are queued for it,
        and the orchestrations that watch its moves; each with its instance. Work for it that waits at a limit is
        "limited".

        Args:
            session_id: the session.
            limit: uses of each kind at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: the id is refused, or a limit out of range.
        """
        check_limit(limit)
        check_id(session_id, "session id")
        return await retry(partial(self._provider.list_session_uses, session_id, limit=limit))

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return all workers by id, alive or not. The sessions that each holds are counted while the database has
        fewer than `limits.SCRAPE_COUNT`; else their number is the last report of the worker, not older than about
        ``rebalance_interval``.
        """
        return await retry(self._provider.list_workers)

    async def desired_workers(self) -> WorkerDemand:
        """Return the number of workers that the sessions need: those that are held, or wait for a holder. Work without
        a session is not counted: keep at least one worker for it.
        """
        return await retry(self._provider.desired_workers)

    async def drain_preview(self, worker_id: str, *, limit: int = 100) -> DrainPreview:
        """Preview `drain_worker`: return the sessions that the worker holds, and the workers that may take them.

        Args:
            worker_id: the worker.
            limit: sessions at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            UnknownWorker: no worker has this name.
            InvalidInput: the id is refused, or a limit out of range.
        """
        check_limit(limit)
        found = await retry(partial(drain_preview, self._provider, check_id(worker_id, "worker id"), limit))
        if found is None:
            raise UnknownWorker(f"there is no worker {worker_id!r}")
        return found

    async def unserved_work(self, *, limit: int = 100) -> Sequence[UnservedWork]:
        """Return waiting work that no live worker takes, because no worker has its code or its tag, all that have them
        drain, or none is alive.

        Args:
            limit: how many of the oldest rows of each queue are looked at, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: a limit out of range.
        """
        check_limit(limit)
        workers = await self.workers()
        return await retry(partial(unserved_work, self._provider, workers, limit))

    async def load(self) -> FleetLoad:
        """Return how full the live workers are, by their last reports, and whether rebalancing is suspended."""
        return await retry(self._provider.get_load)

    async def quotas(self) -> Quotas:
        """Return the limits of this database; off by default."""
        return await retry(self._provider.get_quotas)


def _read_place(cursor: str) -> tuple[int, int]:
    """Return the execution and the event of a cursor of a history."""
    execution_id, _, after = cursor.partition("/")
    return read_number(execution_id, cursor), read_number(after, cursor)
