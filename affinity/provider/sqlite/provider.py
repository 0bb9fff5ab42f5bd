"""The SQLite provider: opening, closing, and a table of the verbs, each with its operation on a connection's thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar
from weakref import WeakMethod

import anyio.to_thread

from affinity.actions import ActionCall, actors_on, targets_of
from affinity.errors import ConnectionLost, DatabaseChanged
from affinity.provider.contract import (
    NO_RETENTION,
    ChangeWatch,
    FleetLoad,
    Hint,
    HintSource,
    Retention,
    Sweep,
    TakenSession,
    Timeouts,
    Turn,
    TurnResult,
    WorkerIdentity,
    WorkerLease,
)
from affinity.provider.parts import composed
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.sqlite import (
    activity_waits,
    changes,
    failures,
    fetching,
    hints,
    identity,
    management,
    moves,
    old_data,
    orchestrations,
    planned_moves,
    quotas,
    rebalancing,
    releasing,
    replies,
    resources,
    sessions,
    suspension,
    values,
    waits,
    work_items,
    workers,
)
from affinity.provider.sqlite import instances as stored
from affinity.provider.sqlite import reset as resetting
from affinity.provider.sqlite import retention as pruning
from affinity.provider.sqlite import sweep as sweeping
from affinity.provider.sqlite.actions import run_action
from affinity.provider.sqlite.driver.clock import Clock
from affinity.provider.sqlite.driver.database import MAX_WAIT, Database, connect
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.messages import create_all, send_all
from affinity.provider.sqlite.migration import check_schema, inspect, migrate, unmigrated
from affinity.provider.sqlite.parts import Access, SqlitePart, parts
from affinity.provider.sqlite.session_store import SqliteSessionStore
from affinity.provider.sqlite.turns import commit
from affinity.provider.sqlite.verbs import acts, looks_first, reads, writes
from affinity.provider.timeline import SeenTimeline, Timeline
from affinity.records import DurableResource, SessionStore

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", hints.Subscription, changes.ChangeSubscription)


def _call_weakly(method: WeakMethod[Callable[[], None]]) -> None:
    """Call a method, unless its object was dropped."""
    if (call := method()) is not None:
        call()


class SqliteProvider:
    """A `Provider` on one SQLite file, for the processes of one machine.

    Two threads serve it, each with a connection of its own: one for operations that write or may write, and one for
    operations that only read, so that a read never waits behind an fsync. Made by `open`.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make the object from the class with the verbs of the guests."""
        return object.__new__(composed(cls, _parts))

    def __init__(self, path: Path, writer: Database, reader: Database, timeline: Timeline | SeenTimeline) -> None:
        self._timeline = timeline
        self._path = path.resolve()
        self._inode = self._path.stat().st_ino
        self._waiting = 0
        self._subscriptions: set[hints.Subscription] = set()
        self._watches: set[changes.ChangeSubscription] = set()
        self._writer = DatabaseThread(
            writer, "affinity-sqlite-write", partial(_call_weakly, WeakMethod(self._on_foreign_commit))
        )
        self._reader = DatabaseThread(reader, "affinity-sqlite-read")
        self.states: SessionStore = SqliteSessionStore(self._writer, self._reader, self.database)

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
            SchemaMismatch: it was never migrated, is too old or too new for this code, or not a SQLite database.
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
        """Create the file if need be and bring its schema up to date. Return the version before and after.

        Raises:
            ConnectionLost: its directory is missing.
            SchemaMismatch: it is too new for this code, or not a SQLite database.
        """
        return await anyio.to_thread.run_sync(partial(migrate, path, progress=progress))

    @classmethod
    async def inspect_schema(cls, path: Path) -> SchemaReport:
        """Return the schema's state, and the migrations that `migrate` would apply; nothing is changed.

        Raises:
            SchemaMismatch: the file is not a SQLite database.
        """
        return await anyio.to_thread.run_sync(inspect, path)

    @property
    def dialect(self) -> str:
        """``sqlite``."""
        return "sqlite"

    @property
    def timeline(self) -> str:
        """Token of the database at the last call that only read; for a worker, at the last call that wrote."""
        return self._timeline.token or ""

    @property
    def database(self) -> str:
        """The file: a copy has the same token."""
        return f"{self._inode} {self._path}"

    def __del__(self) -> None:
        for thread in (getattr(self, "_writer", None), getattr(self, "_reader", None)):
            if thread is not None:
                thread.end()

    async def aclose(self) -> None:
        """Finish the calls that were made and close both connections. Idempotent."""
        with anyio.CancelScope(shield=True):
            await self._reader.aclose()
            await self._writer.aclose()

    # -- workers

    register_worker: Final = writes(workers.register)

    async def renew_worker(
        self, identity: WorkerIdentity, lease: float, labels: Mapping[str, str] | None = None
    ) -> WorkerLease | None:
        self._check_file()
        return await self._write(workers.renew, identity, lease, labels)

    drain_worker: Final = writes(workers.drain)
    release_worker: Final = writes(workers.release)

    # -- work items

    fetch_work_item: Final = looks_first(fetching.fetch)
    renew_work_item_lock: Final = writes(work_items.renew)
    check_work_item: Final = reads(work_items.check)
    ack_work_item: Final = writes(work_items.ack)
    abandon_work_item: Final = writes(work_items.abandon)
    release_unknown_locks: Final = writes(work_items.release_unknown_locks)
    begin_work_item: Final = writes(work_items.begin)

    # -- sessions

    report_session_moves: Final = writes(moves.report)
    release_session: Final = acts("release_session", "session", releasing.release)
    release_idle_session: Final = writes(releasing.release_idle)

    # -- orchestrations

    fetch_orchestration_item: Final = looks_first(orchestrations.fetch)
    read_history: Final = reads(orchestrations.read_histories)

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, *, notify: Collection[str] = ()
    ) -> Sequence[TurnResult]:
        results = await self._write(commit, identity, turns, timeouts)
        await self.notify_changes(notify)
        return results

    release_instance: Final = writes(orchestrations.release)
    suspend_instance: Final = writes(suspension.suspend)
    retry_suspended: Final = writes(suspension.retry)
    end_waits: Final = looks_first(waits.end_waits)

    # -- repair and hints

    async def sweep(
        self,
        *,
        interval: float,
        session_retention: float,
        worker_retention: float,
        retention: Retention = NO_RETENTION,
    ) -> Sweep:
        """Sweep. Old data is removed in separate transactions, so that other writers come in between."""
        sweep = partial(sweeping.sweep, session_retention=session_retention, worker_retention=worker_retention)
        done = await self._write(partial(sweep, interval=interval))
        if not done.swept or retention == NO_RETENTION:
            return done
        access = Access(self._write, self._read)
        old = await old_data.remove_old(access, retention)
        return replace(done, **{**old, "backlog": done.backlog or bool(old["backlog"])})

    def hints(self, identity: WorkerIdentity) -> AbstractAsyncContextManager[HintSource]:
        return self._subscribed(hints.Subscription(self._path, identity.worker_id, self._watch), self._subscriptions)

    async def notify_workers(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        """Hand hints to the workers of this process; workers of other processes see the commit itself. There are few:
        all are notified, which is cheaper than to look up the owners of instances.
        """
        hints.send(self._path, workers)
        if owners_of:
            hints.send(self._path, {None: Hint()})

    def watch_changes(self) -> AbstractAsyncContextManager[ChangeWatch]:
        return self._subscribed(changes.ChangeSubscription(self._path, self._watch), self._watches)

    async def notify_changes(self, session_ids: Collection[str], *, minor: bool = False) -> None:
        """Notify the subscribers of this process; subscribers of other processes see the commit itself."""
        if session_ids:
            changes.send_changes(self._path, dict.fromkeys(session_ids, not minor))

    # -- the client

    create_instance: Final = acts("create_instance", "instance", create_all)
    restart_instance: Final = acts("restart_instance", "instance", stored.restart_instances)
    send_message: Final = acts("send_message", "instance", send_all)
    get_replies: Final = reads(replies.read)
    list_waiting_tags: Final = reads(waits.list_waiting_tags)
    get_values: Final = reads(values.read)
    get_instance: Final = reads(stored.get_instances)
    list_instances: Final = reads(stored.list_instances)
    count_matching: Final = reads(stored.count_matching)
    read_origins: Final = reads(management.read_origins)
    list_work_items: Final = reads(management.list_work_items)
    list_queue: Final = reads(management.list_queue)
    measure_instance: Final = reads(management.measure_instance)
    list_failed_attempts: Final = reads(failures.list_attempts)
    list_failures: Final = reads(failures.list_page)
    group_failures: Final = reads(failures.group)
    list_executions: Final = reads(management.list_executions)
    list_tree: Final = reads(management.list_tree)
    measure_queues: Final = reads(management.measure_queues)
    sample_waiting_work: Final = reads(management.sample_waiting_work)
    count_instances: Final = reads(management.count_instances)
    count_statuses: Final = reads(management.count_statuses)
    resume_instance: Final = acts("resume_instance", "instance", suspension.resume)
    reset_instance: Final = acts("reset_instance", "instance", resetting.reset)
    delete_instance: Final = acts("delete_instance", "instance", stored.delete_instances)
    prune_instances: Final = acts("prune_instances", "", pruning.prune_instances)
    prune_histories: Final = acts("prune_histories", "", pruning.prune_histories)
    move_session: Final = acts("move_session", "session", planned_moves.plan)

    async def take_session(
        self, identity: WorkerIdentity, session_ids: Sequence[str], *, max_sessions: int, session_lock: float
    ) -> Sequence[TakenSession]:
        if not session_ids:
            return []
        return await self._write(
            planned_moves.take, identity, session_ids, max_sessions=max_sessions, session_lock=session_lock
        )

    set_drain_wanted: Final = acts("set_drain_wanted", "worker", workers.set_drain_wanted)
    list_sessions: Final = reads(sessions.list_sessions)
    list_session_moves: Final = reads(moves.list_page)
    list_session_uses: Final = reads(moves.list_uses)
    list_workers: Final = reads(workers.list_workers)
    list_code: Final = reads(workers.list_code)
    desired_workers: Final = reads(workers.measure_demand)

    async def get_load(self, identity: WorkerIdentity | None = None, *, held: int = 0) -> FleetLoad:
        run = self._read if identity is None else self._write
        return await run(rebalancing.get_load, identity, held)

    suspend_rebalancing: Final = acts("suspend_rebalancing", "", rebalancing.suspend)
    get_quotas: Final = reads(quotas.get)
    read_identity: Final = reads(identity.read)
    mark_encoded: Final = writes(identity.mark_encoded)
    mark_offloaded: Final = writes(identity.mark_offloaded)
    set_quotas: Final = acts("set_quotas", "", quotas.set_all)

    # -- resources

    begin_resource: Final = writes(resources.begin)
    set_resource_handle: Final = writes(resources.set_handle)
    get_resource: Final = reads(resources.get)

    async def take_unused_resources(
        self, names: Collection[str], *, limit: int, seconds: float
    ) -> Sequence[DurableResource]:
        if not await self._read(resources.find_unused, names, limit):
            return []  # without the lock of a writer
        return await self._write(resources.take_unused, names, limit, seconds)

    find_unused_resources: Final = reads(resources.find_others)
    remove_resources: Final = writes(resources.remove)

    # -- activities that wait

    begin_wait: Final = writes(activity_waits.begin)
    end_wait: Final = writes(activity_waits.end)
    get_waits: Final = reads(activity_waits.read)

    # -- how

    @asynccontextmanager
    async def _subscribed(self, subscription: S, among: set[S]) -> AsyncIterator[S]:
        await self._writer.call(Database.changed)  # only later commits are news
        subscription.open()
        among.add(subscription)
        try:
            yield subscription
        finally:
            among.discard(subscription)
            subscription.close()

    def _check_file(self) -> None:
        """Our connections stay with the file that they have opened, even when another one has its name now."""
        try:
            inode = self._path.stat().st_ino
        except OSError as error:
            raise ConnectionLost(f"the database file is gone: {error.strerror}") from error
        if inode != self._inode:
            raise DatabaseChanged("the database is another file than the one that was opened")

    async def _write(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.call(Database.write, operation, *args, **kwargs)

    async def _act(
        self, name: str, kind: str, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        actors = actors_on(self.database)
        if actors is None:
            return await self._write(operation, *args, **kwargs)
        call = ActionCall(name, kind, targets_of(args))
        return await run_action(self._writer, actors, call, lambda tx: operation(tx, *args, **kwargs))

    async def _read(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reader.call(Database.read, operation, *args, **kwargs)

    def _watch(self, change: int) -> None:
        self._waiting += change
        self._writer.watch(self._waiting > 0)

    def _on_foreign_commit(self) -> None:
        for subscription in self._subscriptions:
            subscription.receive(Hint())
        for watch in self._watches:
            watch.receive({})


def _parts() -> Iterable[SqlitePart]:
    return parts().values()


def _open(
    path: Path, clock: Clock, max_wait: float, timeline: Timeline | None = None, seen: SeenTimeline | None = None
) -> Database:
    if not path.exists() and path.parent.is_dir():
        raise unmigrated(path)
    connection: Final = connect(path)
    try:
        check_schema(connection, path)
        database = Database(connection, clock, max_wait=max_wait, timeline=timeline, seen=seen)
        database.read(lambda _: None)  # notes the timeline
    except BaseException:
        connection.close()
        raise
    return database
