"""The SQLite provider: the operations of the contract, each run on the thread of a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import anyio.to_thread

from affinity.errors import ConnectionLost, DatabaseChanged
from affinity.journal import (
    Appended,
    CreationResult,
    JournalAppend,
    JournalCreation,
    JournalFilter,
    JournalInfo,
    JournalLineage,
    JournalPage,
    JournalPruning,
    JournalQuery,
    JournalRetention,
    PendingWork,
    StreamPart,
)
from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import (
    NO_RETENTION,
    Deletion,
    Delivery,
    EndedWaits,
    EventOrigin,
    ExecutionInfo,
    FetchOptions,
    FleetLoad,
    Hint,
    HintSource,
    HistoryCursor,
    HistoryPage,
    HistoryPruning,
    InstanceCounts,
    InstanceFilter,
    InstanceInfo,
    InstancePruning,
    KeyState,
    MessageKey,
    MoveFilter,
    MoveReason,
    MoveReport,
    NewInstance,
    NewMessage,
    OrchestrationFetch,
    PlannedMove,
    PlanOutcome,
    QueueStatistics,
    Quotas,
    Release,
    Reset,
    Restart,
    Resumption,
    Retention,
    SessionInfo,
    SessionMove,
    SessionRelease,
    Suspend,
    Sweep,
    TakenSession,
    Timeouts,
    TreeMember,
    Turn,
    TurnResult,
    WorkAbandon,
    WorkAck,
    WorkerDemand,
    WorkerIdentity,
    WorkerInfo,
    WorkerLease,
    WorkerProfile,
    WorkFetch,
    WorkItemInfo,
    WorkLock,
)
from affinity.provider.contract.journal_side import JournalWatch
from affinity.provider.listing import list_portions
from affinity.provider.repeats import refuse_other_events
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.sqlite import (
    fetching,
    hints,
    journal_admin,
    journals,
    lineage,
    management,
    moves,
    orchestrations,
    planned_moves,
    quotas,
    rebalancing,
    releasing,
    replies,
    resources,
    sessions,
    streams,
    suspension,
    waits,
    work_items,
    workers,
)
from affinity.provider.sqlite import instances as stored
from affinity.provider.sqlite import reset as resetting
from affinity.provider.sqlite import retention as pruning
from affinity.provider.sqlite import sweep as sweeping
from affinity.provider.sqlite.driver.clock import Clock, instant
from affinity.provider.sqlite.driver.database import MAX_WAIT, Database, connect
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.provider.sqlite.driver.transaction import Row, Tx
from affinity.provider.sqlite.messages import create_all, send_all
from affinity.provider.sqlite.migration import check_schema, inspect, migrate, unmigrated
from affinity.provider.sqlite.session_store import SqliteSessionStore
from affinity.provider.sqlite.tokens import Tokens
from affinity.provider.sqlite.turns import commit
from affinity.provider.timeline import SeenTimeline, Timeline
from affinity.records import ActivityKey, DurableResource, SessionStore

P = ParamSpec("P")
T = TypeVar("T")


class SqliteProvider:
    """A `Provider` on one SQLite file, for the processes of one machine.

    Two threads serve it, each with a connection of its own: one for what writes or may come to write, and one for
    what only reads, which so never waits behind an fsync. Made by `open`.
    """

    def __init__(self, path: Path, writer: Database, reader: Database, timeline: Timeline | SeenTimeline) -> None:
        self._timeline = timeline
        self._path = path.resolve()
        self._inode = self._path.stat().st_ino
        self._tokens = Tokens()
        self._waiting = 0
        self._subscriptions: set[hints.Subscription] = set()
        self._watches: set[hints.JournalSubscription] = set()
        self._writer = DatabaseThread(writer, "affinity-sqlite-write", self._on_foreign_commit)
        self._reader = DatabaseThread(reader, "affinity-sqlite-read")
        self._states = SqliteSessionStore(self._writer, self._reader)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock | None = None,
        max_wait: float = MAX_WAIT,
        timeline: Timeline | None = None,
    ) -> SqliteProvider:
        """Open a file whose schema is up to date.

        Args:
            path: of the database file.
            clock: shared by the providers of one test, to move time; the machine's when left out.
            max_wait: seconds that a call waits for other writers before it raises `Contention`.
            timeline: see `affinity.provider.open_provider`; every transaction that writes compares it.

        Raises:
            ConnectionLost: its directory is missing.
            SchemaMismatch: it was never migrated, is too old or too new for this code, or is no SQLite database.
        """
        followed = timeline or SeenTimeline()
        seen = followed if isinstance(followed, SeenTimeline) else None
        opened = partial(_open, path, clock or Clock(), max_wait)
        writer = await anyio.to_thread.run_sync(opened, timeline)
        try:
            reader = await anyio.to_thread.run_sync(partial(opened, seen=seen))
        except BaseException:
            writer.close()
            raise
        return cls(path, writer, reader, followed)

    @classmethod
    async def migrate(cls, path: Path, progress: Progress = log_progress) -> tuple[int, int]:
        """Create the file if need be and bring its schema up to date; the version before and after.

        Raises:
            ConnectionLost: its directory is missing.
            SchemaMismatch: it is too new for this code, or no SQLite database.
        """
        return await anyio.to_thread.run_sync(partial(migrate, path, progress=progress))

    @classmethod
    async def inspect_schema(cls, path: Path) -> SchemaReport:
        """The schema's state, and the migrations that `migrate` would apply; nothing is changed.

        Raises:
            SchemaMismatch: it is no SQLite database.
        """
        return await anyio.to_thread.run_sync(inspect, path)

    @property
    def dialect(self) -> str:
        """``sqlite``."""
        return "sqlite"

    @property
    def timeline(self) -> str:
        """Of the last call that has only read; of a worker, of the last one that has written."""
        return self._timeline.token or ""

    async def aclose(self) -> None:
        """Finish the calls that were made and close both connections. Idempotent."""
        with anyio.CancelScope(shield=True):
            await self._reader.aclose()
            await self._writer.aclose()

    # -- workers

    async def register_worker(
        self,
        identity: WorkerIdentity,
        lease: float,
        labels: Mapping[str, str],
        *,
        resume: bool = False,
        profile: WorkerProfile,
    ) -> WorkerLease:
        return await self._write(workers.register, identity, lease, labels, resume=resume, profile=profile)

    async def renew_worker(self, identity: WorkerIdentity, lease: float) -> WorkerLease | None:
        self._check_file()
        return await self._write(workers.renew, identity, lease)

    async def drain_worker(
        self, identity: WorkerIdentity, *, restarts: bool = False, if_wanted: bool = False
    ) -> int | None:
        return await self._write(workers.drain, identity, restarts=restarts, if_wanted=if_wanted)

    async def release_worker(self, identity: WorkerIdentity, *, restart_grace: float = 0.0) -> None:
        await self._write(workers.release, identity, restart_grace=restart_grace)

    # -- work items

    async def fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        return await self._writer.call(fetching.fetch, self._tokens, identity, options)

    async def renew_work_item_lock(
        self, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
    ) -> Sequence[bool]:
        return await self._write(work_items.renew, identity, locks, timeouts)

    async def check_work_item(self, locks: Sequence[WorkLock]) -> Sequence[bool]:
        return await self._read(work_items.check, locks)

    async def ack_work_item(
        self, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
    ) -> Sequence[bool]:
        return await self._write(work_items.ack, identity, acks, timeouts)

    async def abandon_work_item(self, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
        return await self._write(work_items.abandon, identity, items)

    async def release_unknown_locks(
        self, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
    ) -> int:
        return await self._write(work_items.release_unknown_locks, identity, known, delivered)

    async def begin_work_item(self, identity: WorkerIdentity, lock: WorkLock, attempt: int) -> bool:
        return await self._write(work_items.begin, identity, lock, attempt)

    # -- sessions

    @property
    def states(self) -> SessionStore:
        return self._states

    async def report_session_moves(self, reports: Sequence[MoveReport]) -> Sequence[MoveReason | None]:
        return await self._write(moves.report, reports)

    async def release_session(self, session_ids: Sequence[str]) -> Sequence[SessionRelease]:
        return await self._write(releasing.release, session_ids)

    async def release_idle_session(
        self, identity: WorkerIdentity, options: FetchOptions, *, min_idle: float, only_users: Mapping[str, str]
    ) -> Sequence[str]:
        return await self._write(releasing.release_idle, identity, options, min_idle=min_idle, only_users=only_users)

    # -- orchestrations

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
        options = orchestrations.InstanceFetchOptions(
            limit=limit, names=names, unknown_after=unknown_after, exclude=exclude, max_bytes=max_bytes
        )
        return await self._writer.call(orchestrations.fetch, identity, options)

    async def read_history(
        self, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[HistoryPage]:
        return await self._read(orchestrations.read_histories, cursors, max_bytes)

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, *, notify: Collection[str] = ()
    ) -> Sequence[TurnResult]:
        results = await self._write(commit, self._tokens, identity, turns, timeouts)
        await self.notify_journals(notify)
        return results

    async def release_instance(self, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
        await self._write(orchestrations.release, identity, releases)

    async def suspend_instance(self, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> Sequence[bool]:
        return await self._write(suspension.suspend, identity, suspends)

    async def retry_suspended(
        self, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int
    ) -> Sequence[str]:
        return await self._write(suspension.retry, identity, names=names, code=code, limit=limit)

    async def end_waits(
        self, identity: WorkerIdentity, *, limit: int, tag_timeout: float | None, item_lock: float
    ) -> EndedWaits:
        end = partial(waits.end_waits, limit=limit, tag_timeout=tag_timeout, item_lock=item_lock)
        return await self._writer.call(end, self._tokens, identity)

    # -- repair and hints

    async def sweep(
        self,
        *,
        interval: float,
        session_retention: float,
        worker_retention: float,
        retention: Retention = NO_RETENTION,
    ) -> Sweep:
        return await self._write(
            sweeping.sweep,
            interval=interval,
            session_retention=session_retention,
            worker_retention=worker_retention,
            retention=retention,
        )

    def hints(self, identity: WorkerIdentity) -> AbstractAsyncContextManager[HintSource]:
        return self._subscribe(identity)

    async def notify_workers(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        """Hand hints to the workers of this process; workers of other processes see the commit itself. There are few:
        all are notified, which is cheaper than to look up the owners of instances.
        """
        hints.send(self._path, workers)
        if owners_of:
            hints.send(self._path, {None: Hint()})

    # -- the client

    async def create_instance(self, instances: Sequence[NewInstance]) -> Sequence[bool]:
        return await self._write(create_all, instances)

    async def restart_instance(self, restarts: Sequence[Restart]) -> Sequence[bool]:
        return await self._write(stored.restart_instances, restarts)

    async def send_message(self, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
        return await self._write(send_all, messages)

    async def get_replies(
        self, keys: Sequence[MessageKey], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[KeyState | None]:
        return await self._read(replies.read, keys, max_bytes)

    async def get_instance(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        return await self._read(stored.get_instances, instance_ids)

    async def list_instances(self, where: InstanceFilter, limit: int) -> Sequence[InstanceInfo]:
        return await self._read(stored.list_instances, where, limit)

    async def read_origins(self, instance_id: str, execution_id: int) -> Sequence[EventOrigin]:
        return await self._read(management.read_origins, instance_id, execution_id)

    async def list_work_items(self, instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
        return await self._read(management.list_work_items, instance_id, limit)

    async def list_executions(
        self, instance_id: str, limit: int, *, before: int | None = None
    ) -> Sequence[ExecutionInfo]:
        return await self._read(management.list_executions, instance_id, limit, before)

    async def list_tree(self, instance_id: str, limit: int) -> Sequence[TreeMember]:
        return await self._read(management.list_tree, instance_id, limit)

    async def measure_queues(self, limit: int) -> QueueStatistics:
        return await self._read(management.measure, limit)

    async def count_instances(self, limit: int, *, after: str | None = None) -> InstanceCounts:
        return await self._read(management.count_instances, limit, after)

    async def resume_instance(self, instance_ids: Sequence[str]) -> Sequence[Resumption]:
        return await self._write(suspension.resume, instance_ids)

    async def reset_instance(self, reset: Reset) -> bool:
        return await self._write(resetting.reset, reset)

    async def delete_instance(
        self, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True
    ) -> Sequence[Deletion]:
        return await self._write(stored.delete_instances, instance_ids, force=force, tree=tree)

    async def prune_instances(
        self, status: frozenset[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
    ) -> InstancePruning:
        run = self._read if dry_run else self._write
        return await run(pruning.prune_instances, status, older_than, after=after, dry_run=dry_run)

    async def prune_histories(self, older_than: float, *, dry_run: bool = False) -> HistoryPruning:
        run = self._read if dry_run else self._write
        return await run(pruning.prune_histories, older_than, dry_run=dry_run)

    async def move_session(self, moves: Sequence[PlannedMove]) -> Sequence[PlanOutcome]:
        return await self._write(planned_moves.plan, moves)

    async def take_session(
        self, identity: WorkerIdentity, session_ids: Sequence[str], *, max_sessions: int, session_lock: float
    ) -> Sequence[TakenSession]:
        if not session_ids:
            return []
        return await self._write(
            planned_moves.take, identity, session_ids, max_sessions=max_sessions, session_lock=session_lock
        )

    async def set_drain_wanted(self, worker_id: str, *, wanted: bool) -> bool:
        return await self._write(workers.set_drain_wanted, worker_id, wanted=wanted)

    async def list_sessions(
        self, session_ids: Collection[str] | None = None, *, after: str | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        return await self._read(sessions.list_sessions, session_ids, after, limit)

    async def list_session_moves(
        self, where: MoveFilter, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionMove]:
        return await self._read(moves.list_page, where, after, before, limit)

    async def list_workers(self) -> Sequence[WorkerInfo]:
        return await self._read(workers.list_workers)

    async def desired_workers(self) -> WorkerDemand:
        return await self._read(workers.measure_demand)

    async def get_load(self, identity: WorkerIdentity | None = None, *, held: int = 0) -> FleetLoad:
        run = self._read if identity is None else self._write
        return await run(rebalancing.get_load, identity, held)

    async def suspend_rebalancing(self, *, suspended: bool) -> None:
        await self._write(rebalancing.suspend, suspended=suspended)

    async def get_quotas(self) -> Quotas:
        return await self._read(quotas.get)

    async def set_quotas(self, limits: Quotas) -> None:
        await self._write(quotas.set_all, limits)

    # -- resources

    async def begin_resource(
        self, resource_id: str, name: str, activity: ActivityKey, *, held: str | None
    ) -> DurableResource:
        return await self._write(resources.begin, resource_id, name, activity, held)

    async def set_resource_handle(self, resource_id: str, handle: str) -> bool:
        return await self._write(resources.set_handle, resource_id, handle)

    async def get_resource(self, resource_id: str) -> DurableResource | None:
        return await self._read(resources.get, resource_id)

    async def take_unused_resources(
        self, names: Collection[str], *, limit: int, seconds: float
    ) -> Sequence[DurableResource]:
        if not await self._read(resources.find_unused, names, limit):
            return []  # without the lock of a writer
        return await self._write(resources.take_unused, names, limit, seconds)

    async def find_unused_resources(self, *, without: Collection[str], limit: int) -> Sequence[DurableResource]:
        return await self._read(resources.find_others, without, limit)

    async def remove_resources(self, resource_ids: Collection[str]) -> None:
        await self._write(resources.remove, resource_ids)

    # -- journals

    async def append_journal(
        self, appends: Sequence[JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
    ) -> Sequence[Appended]:
        appended = await self._write(journals.append, appends)
        await self.notify_workers(notify or {})
        return await refuse_other_events(self.read_journal, appends, appended)

    async def get_pending(
        self, session_ids: Sequence[str], *, limit: int, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[PendingWork | None]:
        return await self._read(journals.get_pending, session_ids, limit, max_bytes)

    async def read_journal(
        self, queries: Sequence[JournalQuery], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[JournalPage | None]:
        return await self._read(journals.read, queries, max_bytes)

    async def write_stream(self, parts: Sequence[StreamPart]) -> None:
        await self._writer.call(Database.write_unsynced, streams.write, parts)
        await self.notify_journals({part.session_id for part in parts}, only_inputs=True)

    async def create_journals(self, creations: Sequence[JournalCreation]) -> Sequence[CreationResult]:
        return await self._write(lineage.create, creations)

    async def get_lineage(self, session_id: str) -> Sequence[JournalLineage]:
        return await self._read(lineage.get, session_id)

    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
        await self._write(streams.retract, session_id, journal_id, wake_id, attempt)
        await self.notify_journals([session_id])

    async def list_journals(self, where: JournalFilter, limit: int) -> Sequence[JournalInfo]:
        async def read(where: JournalFilter, window: int, limit: int) -> Sequence[Row]:
            return await self._read(journal_admin.list_journals, where, window, limit)

        return await list_portions(read, where, limit, instant)

    async def delete_journal(self, session_ids: Sequence[str]) -> Sequence[bool]:
        return await self._write(journal_admin.delete_journals, session_ids)

    async def prune_journals(
        self, retention: JournalRetention, *, limit: int, after: int = 0, dry_run: bool = False
    ) -> JournalPruning:
        """It looks for journals without the lock that writers need."""
        find = journal_admin.find_prunable
        found = await self._read(find, retention, after, each=None if dry_run else 1)
        if dry_run or not (found.entries or found.abandoned):
            return JournalPruning(entries=sum(found.entries.values()), after=found.after)
        return await self._write(journal_admin.prune, found, retention, limit, after)

    def watch_journals(self) -> AbstractAsyncContextManager[JournalWatch]:
        return self._watch_journals()

    async def notify_journals(self, session_ids: Collection[str], *, only_inputs: bool = False) -> None:
        """Readers of other processes see the commit that the hint is about."""
        if session_ids:
            hints.send_journals(self._path, dict.fromkeys(session_ids, not only_inputs))

    # -- how

    def _check_file(self) -> None:
        """Our connections stay with the file that they have opened, even when another one has its name now."""
        try:
            inode = self._path.stat().st_ino
        except OSError as error:
            raise ConnectionLost(f"the database file is gone: {error.strerror}") from error
        if inode != self._inode:
            raise DatabaseChanged("the database is another file than the one that was opened")

    async def _write(self, operation: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.call(Database.write, operation, *args, **kwargs)

    async def _read(self, operation: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reader.call(Database.read, operation, *args, **kwargs)

    @asynccontextmanager
    async def _subscribe(self, identity: WorkerIdentity) -> AsyncIterator[HintSource]:
        await self._writer.call(Database.changed)  # only later commits are news
        subscription = hints.Subscription(self._path, identity.worker_id, self._watch)
        subscription.open()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            subscription.close()

    @asynccontextmanager
    async def _watch_journals(self) -> AsyncIterator[JournalWatch]:
        await self._writer.call(Database.changed)  # only later commits are news
        subscription = hints.JournalSubscription(self._path, self._watch)
        subscription.open()
        self._watches.add(subscription)
        try:
            yield subscription
        finally:
            self._watches.discard(subscription)
            subscription.close()

    def _watch(self, change: int) -> None:
        self._waiting += change
        self._writer.watch(self._waiting > 0)

    def _on_foreign_commit(self) -> None:
        for subscription in self._subscriptions:
            subscription.receive(Hint())
        for watch in self._watches:
            watch.receive({})


def _open(
    path: Path, clock: Clock, max_wait: float, timeline: Timeline | None = None, seen: SeenTimeline | None = None
) -> Database:
    if not path.exists() and path.parent.is_dir():
        raise unmigrated(path)
    connection = connect(path)
    try:
        check_schema(connection, path)
        database = Database(connection, clock, max_wait=max_wait, timeline=timeline, seen=seen)
        database.read(lambda _: None)  # notes the timeline
    except BaseException:
        connection.close()
        raise
    return database
