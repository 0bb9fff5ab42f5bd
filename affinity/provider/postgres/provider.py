"""The PostgreSQL provider: opening, closing, and a table of the verbs, each with the function that carries it out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, LiteralString, Self

from affinity.limits import PROBE_AFTER
from affinity.provider.checks import log_warnings as log_warnings_of
from affinity.provider.parts import composed
from affinity.provider.postgres import (
    activity_waits,
    changes,
    failures,
    fetching,
    identity,
    instances,
    management,
    messages,
    moves,
    orchestrations,
    planned_moves,
    quotas,
    rebalancing,
    releasing,
    replies,
    reset,
    resources,
    retention,
    sessions,
    suspension,
    turns,
    values,
    waits,
    work_items,
    workers,
)
from affinity.provider.postgres import hints as hinting
from affinity.provider.postgres import sweep as sweeping
from affinity.provider.postgres.actions import acts
from affinity.provider.postgres.checks import check_server
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.migration import check_version, inspect_target, migrate_target
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import PostgresPart, parts
from affinity.provider.postgres.rights import change_rights
from affinity.provider.postgres.session_store import PostgresSessionStore
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.timeline import Timeline
from affinity.records import SessionStore

# The offset is in a sequence, in microseconds: the function is inlined like the real one, and prepared plans stay.
_ADVANCE: Final[LiteralString] = """
DO $do$
BEGIN
    PERFORM pg_advisory_xact_lock('clock()'::regprocedure::oid::bigint);
    IF to_regclass('clock_offset') IS NULL THEN
        CREATE SEQUENCE clock_offset MINVALUE -9000000000000000000;
        GRANT SELECT ON SEQUENCE clock_offset TO PUBLIC;
    END IF;
    IF (SELECT prosrc FROM pg_proc WHERE oid = 'clock()'::regprocedure) NOT LIKE '%%clock_offset%%' THEN
        CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
        AS $f$SELECT clock_timestamp() + coalesce(pg_sequence_last_value('clock_offset'), 0) * interval '1 us'$f$;
    END IF;
    PERFORM setval('clock_offset', coalesce(pg_sequence_last_value('clock_offset'), 0) + %(microseconds)s);
END $do$"""


class PostgresProvider(Database):
    """PostgreSQL, 15 to 18: the engine for N worker replicas. Implements `affinity.provider.contract.Provider`.

    How it keeps the contract:

    * An operation is one statement in autocommit: one round trip, and a paused client holds no lock. Where a single
      snapshot cannot be right (claim, registration, drain), it is several statements in one message.
    * While an actor is stated, the statement of a verb that users call (`acts`) includes the shares of guests.
    * READ COMMITTED, and row locks taken in one order everywhere: the caller's ``workers`` row, then ``instances``,
      ``worker_queue``, ``sessions``, ``session_states``, and the rows of guests, each by key. A statement that locks
      rows out of that order skips locked ones.
    * A condition that decides is in the ``WHERE`` of the statement that locks or writes its row. After a lock wait
      PostgreSQL checks it again, with the row and the time as they are then.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make the object from the class with the verbs of the guests."""
        return object.__new__(composed(cls, _parts))

    def __init__(self, connections: Connections, *, as_client: bool = False) -> None:
        super().__init__(connections, as_client=as_client)
        self.states: SessionStore = PostgresSessionStore(connections)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        application_name: str = "affinity",
        timeline: Timeline | None = None,
        one_connection: bool = False,
        as_client: bool = False,
        probe_after: float = PROBE_AFTER,
        log_warnings: bool = False,
    ) -> PostgresProvider:
        """Connect to a migrated database.

        Args:
            url: libpq's syntax, several hosts too; ``schema=name`` chooses another schema than ``affinity``;
                ``direct=URL``, quoted, leads past a pooler that shares the sessions of the server.
            application_name: shown in ``pg_stat_activity``; of several connections with the role of each.
            timeline: see `affinity.provider.open_provider`; each connection compares it, and each renewal.
            one_connection: see `affinity.provider.open_provider`.
            as_client: see `affinity.provider.open_provider`.
            probe_after: see `affinity.provider.open_provider`.
            log_warnings: see `affinity.provider.open_provider`.

        Raises:
            DatabaseChanged: the database has another timeline than ``timeline``.
            InvalidUrl: it is malformed, or the schema is not a plain identifier.
            ConnectionLost: the server cannot be reached.
            AccessDenied: it refuses the credentials, or the database is unknown.
            PoolerRefused: it is reached through a pooler that is not in session mode; not with ``one_connection`` and
                without ``timeline``, as of a client.
            SchemaMismatch: never migrated, or too old or too new for this code.
        """
        target = Target.parse(url)
        connections = Connections(
            target,
            application_name,
            one_connection=one_connection,
            needs_sessions=not one_connection or timeline is not None,  # a client and a store need none
            probe_after=probe_after,
        )
        target = connections.target
        try:
            await check_version(connections.misc.run_once, target)
            await connections.follow(timeline)
            if log_warnings:
                log_warnings_of(target.name, await check_server(connections.misc.run_once, target))
        except BaseException:
            await connections.aclose()
            raise
        return cls(connections, as_client=as_client)

    @classmethod
    async def migrate(cls, url: str, progress: Progress = log_progress) -> tuple[int, int]:
        """Bring the schema up to date; safe while workers run, and when many do it at the same time.

        Returns:
            The schema version before and after.

        Raises:
            InvalidUrl, ConnectionLost, AccessDenied: see `open`.
            SchemaMismatch: the database is too new for this code.
        """
        return await migrate_target(Target.parse(url).with_sessions, "affinity", progress)

    @classmethod
    async def inspect_schema(cls, url: str) -> SchemaReport:
        """Return the schema's state, and the migrations that `migrate` would apply; nothing is changed.

        Raises:
            InvalidUrl, ConnectionLost, AccessDenied: see `open`.
        """
        return await inspect_target(Target.parse(url).with_sessions)

    @classmethod
    async def change_rights(
        cls,
        url: str,
        *,
        clients: Collection[str] = (),
        workers: Collection[str] = (),
        scalers: Collection[str] = (),
        readers: Collection[str] = (),
        revoke: Collection[str] = (),
    ) -> None:
        """See `affinity.provider.change_rights`. Needs the rights of the role that migrated."""
        roles = {"clients": clients, "workers": workers, "scalers": scalers, "readers": readers}
        await change_rights(Target.parse(url).with_sessions, "affinity", **roles, revoke=revoke)

    @property
    def dialect(self) -> str:
        """``postgresql``."""
        return "postgresql"

    @property
    def timeline(self) -> str:
        """Token of the database at the last new connection: each connection reads it before its first call."""
        return self.connections.timeline.token

    @property
    def database(self) -> str:
        """The name in the database, and where it stands: a copy has the same name, and stands elsewhere."""
        return self.connections.timeline.database

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        await self.connections.aclose()

    async def advance_clock(self, seconds: float) -> None:
        """Move the clock of this schema, for all its users. For tests only."""
        await self.connections.misc.simple_query(_ADVANCE, {"microseconds": round(seconds * 1e6)})

    # -- workers

    register_worker: Final = workers.register_worker
    renew_worker: Final = workers.renew_worker
    drain_worker: Final = workers.drain_worker
    release_worker: Final = workers.release_worker

    # -- work items

    fetch_work_item: Final = fetching.fetch_work_item
    renew_work_item_lock: Final = work_items.renew_work_item_lock
    check_work_item: Final = work_items.check_work_item
    ack_work_item: Final = work_items.ack_work_item
    abandon_work_item: Final = work_items.abandon_work_item
    release_unknown_locks: Final = work_items.release_unknown_locks
    begin_work_item: Final = work_items.begin_work_item

    # -- sessions

    report_session_moves: Final = moves.report_session_moves
    release_session: Final = acts("session", releasing.release_session)
    release_idle_session: Final = releasing.release_idle_session

    # -- orchestrations

    fetch_orchestration_item: Final = orchestrations.fetch_orchestration_item
    read_history: Final = orchestrations.read_history
    commit_turn: Final = turns.commit_turn
    release_instance: Final = orchestrations.release_instance
    suspend_instance: Final = suspension.suspend_instance
    retry_suspended: Final = suspension.retry_suspended
    end_waits: Final = waits.end_waits

    # -- repair and hints

    sweep: Final = sweeping.sweep
    hints: Final = hinting.hints
    notify_workers: Final = hinting.notify_workers
    watch_changes: Final = changes.watch_changes
    notify_changes: Final = changes.notify_changes

    # -- the client

    create_instance: Final = acts("instance", messages.create_instance)
    restart_instance: Final = acts("instance", messages.restart_instance)
    send_message: Final = acts("instance", messages.send_message)
    get_replies: Final = replies.get_replies
    list_waiting_tags: Final = waits.list_waiting_tags
    get_values: Final = values.get_values
    get_instance: Final = instances.get_instance
    list_instances: Final = instances.list_instances
    count_matching: Final = instances.count_matching
    read_origins: Final = management.read_origins
    list_work_items: Final = management.list_work_items
    list_queue: Final = management.list_queue
    measure_instance: Final = management.measure_instance
    list_failed_attempts: Final = failures.list_failed_attempts
    list_failures: Final = failures.list_failures
    group_failures: Final = failures.group_failures
    list_executions: Final = management.list_executions
    list_tree: Final = management.list_tree
    measure_queues: Final = management.measure_queues
    sample_waiting_work: Final = management.sample_waiting_work
    count_instances: Final = management.count_instances
    count_statuses: Final = management.count_statuses
    resume_instance: Final = acts("instance", suspension.resume_instance)
    reset_instance: Final = acts("instance", reset.reset_instance)
    delete_instance: Final = acts("instance", instances.delete_instance)
    prune_instances: Final = acts("", retention.prune_instances)
    prune_histories: Final = acts("", retention.prune_histories)
    move_session: Final = acts("session", planned_moves.move_session)
    take_session: Final = planned_moves.take_session
    set_drain_wanted: Final = acts("worker", workers.set_drain_wanted)
    list_sessions: Final = sessions.list_sessions
    list_session_moves: Final = moves.list_session_moves
    list_session_uses: Final = moves.list_session_uses
    list_workers: Final = workers.list_workers
    list_code: Final = workers.list_code
    desired_workers: Final = workers.desired_workers
    get_load: Final = rebalancing.get_load
    suspend_rebalancing: Final = acts("", rebalancing.suspend_rebalancing)
    get_quotas: Final = quotas.get_quotas
    read_identity: Final = identity.read_identity
    mark_encoded: Final = identity.mark_encoded
    mark_offloaded: Final = identity.mark_offloaded
    set_quotas: Final = acts("", quotas.set_quotas)

    # -- resources

    begin_resource: Final = resources.begin_resource
    set_resource_handle: Final = resources.set_resource_handle
    get_resource: Final = resources.get_resource
    take_unused_resources: Final = resources.take_unused_resources
    find_unused_resources: Final = resources.find_unused_resources
    remove_resources: Final = resources.remove_resources

    # -- activities that wait

    begin_wait: Final = activity_waits.begin_wait
    end_wait: Final = activity_waits.end_wait
    get_waits: Final = activity_waits.get_waits


def _parts() -> Iterable[PostgresPart]:
    return parts().values()
