"""The PostgreSQL provider: opening, closing, and all operations in one class."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, LiteralString

from affinity.limits import PROBE_AFTER
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.fetching import FetchOperations
from affinity.provider.postgres.hints import HintOperations
from affinity.provider.postgres.instances import InstanceOperations
from affinity.provider.postgres.journal_admin import JournalAdministration
from affinity.provider.postgres.journals import JournalOperations
from affinity.provider.postgres.lineage import LineageOperations
from affinity.provider.postgres.management import ManagementOperations
from affinity.provider.postgres.messages import MessageOperations
from affinity.provider.postgres.migration import check_version, inspect_target, migrate_target
from affinity.provider.postgres.moves import MoveOperations
from affinity.provider.postgres.orchestrations import OrchestrationOperations
from affinity.provider.postgres.planned_moves import PlannedMoveOperations
from affinity.provider.postgres.quotas import QuotaOperations
from affinity.provider.postgres.rebalancing import RebalancingOperations
from affinity.provider.postgres.releasing import ReleaseOperations
from affinity.provider.postgres.replies import ReplyOperations
from affinity.provider.postgres.reset import ResetOperations
from affinity.provider.postgres.resources import ResourceOperations
from affinity.provider.postgres.rights import change_rights
from affinity.provider.postgres.sessions import SessionOperations
from affinity.provider.postgres.streams import StreamOperations
from affinity.provider.postgres.suspension import SuspensionOperations
from affinity.provider.postgres.sweep import SweepOperations
from affinity.provider.postgres.turns import TurnOperations
from affinity.provider.postgres.waits import WaitOperations
from affinity.provider.postgres.work_items import WorkItemOperations
from affinity.provider.postgres.workers import WorkerOperations
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.timeline import Timeline

# The offset is a literal in the function, so that it is inlined like the real one, and plans stay the same.
_ADVANCE: Final[LiteralString] = """
DO $do$
DECLARE total float8;
BEGIN
    CREATE TABLE IF NOT EXISTS clock_offset (seconds float8 NOT NULL);
    LOCK TABLE clock_offset;
    INSERT INTO clock_offset SELECT 0 WHERE NOT EXISTS (SELECT FROM clock_offset);
    UPDATE clock_offset SET seconds = seconds + %(seconds)s RETURNING seconds INTO total;
    EXECUTE format(
        $f$CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
        AS 'SELECT clock_timestamp() + %%s * interval ''1 s'''$f$, total);
END $do$"""


class PostgresProvider(
    WorkerOperations,
    FetchOperations,
    WorkItemOperations,
    WaitOperations,
    OrchestrationOperations,
    TurnOperations,
    SessionOperations,
    ReleaseOperations,
    MoveOperations,
    PlannedMoveOperations,
    SuspensionOperations,
    ResetOperations,
    SweepOperations,
    HintOperations,
    MessageOperations,
    ReplyOperations,
    InstanceOperations,
    ManagementOperations,
    QuotaOperations,
    RebalancingOperations,
    JournalOperations,
    StreamOperations,
    JournalAdministration,
    LineageOperations,
    ResourceOperations,
):
    """PostgreSQL, 15 to 18: the engine for N worker replicas. Implements `affinity.provider.contract.Provider`.

    How it keeps the contract:

    * An operation is one statement in autocommit: one round trip, and a paused client holds no lock. Where a single
      snapshot cannot be right (claim, registration, drain), it is several statements in one message.
    * READ COMMITTED, and row locks taken in one order everywhere: the caller's ``workers`` row, then ``instances``,
      ``worker_queue``, ``sessions``, ``session_states``, ``journals``, each by key. A statement that locks rows out of
      that order skips locked ones.
    * A condition that decides is in the ``WHERE`` of the statement that locks or writes its row. After a lock wait
      PostgreSQL checks it again, with the row and the time as they are then.
    """

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        application_name: str = "affinity",
        timeline: Timeline | None = None,
        one_connection: bool = False,
        probe_after: float = PROBE_AFTER,
    ) -> PostgresProvider:
        """Connect to a migrated database.

        Args:
            url: libpq's syntax, several hosts too; ``schema=name`` chooses another schema than ``affinity``.
            application_name: shown in ``pg_stat_activity``; of several connections with the role of each.
            timeline: see `affinity.provider.open_provider`; each connection compares it, and each renewal.
            one_connection: see `affinity.provider.open_provider`.
            probe_after: see `affinity.provider.open_provider`.

        Raises:
            DatabaseChanged: the database has another timeline than ``timeline``.
            InvalidUrl: it is malformed, or the schema is not a plain identifier.
            ConnectionLost: the server cannot be reached.
            AccessDenied: it refuses the credentials, or the database is unknown.
            PoolerRefused: it is reached through a pooler that does not pass on the settings of a connection.
            SchemaMismatch: never migrated, or too old or too new for this code.
        """
        target = Target.parse(url)
        connections = Connections(target, application_name, one_connection=one_connection, probe_after=probe_after)
        try:
            await check_version(connections.misc.run_once, connections.target)
            await connections.follow(timeline)
        except BaseException:
            await connections.aclose()
            raise
        return cls(connections)

    @classmethod
    async def migrate(cls, url: str, progress: Progress = log_progress) -> tuple[int, int]:
        """Bring the schema up to date; safe while workers run, and when many do it at the same time.

        Returns:
            The schema version before and after.

        Raises:
            InvalidUrl, ConnectionLost, AccessDenied: as for `open`.
            SchemaMismatch: the database is too new for this code.
        """
        return await migrate_target(Target.parse(url), "affinity", progress)

    @classmethod
    async def inspect_schema(cls, url: str) -> SchemaReport:
        """The schema's state, and the migrations that `migrate` would apply; nothing is changed.

        Raises:
            InvalidUrl, ConnectionLost, AccessDenied: as for `open`.
        """
        return await inspect_target(Target.parse(url))

    @classmethod
    async def change_rights(
        cls,
        url: str,
        *,
        clients: Collection[str] = (),
        workers: Collection[str] = (),
        scalers: Collection[str] = (),
        revoke: Collection[str] = (),
    ) -> None:
        """See `affinity.provider.change_rights`. Needs the rights of the role that migrated."""
        await change_rights(
            Target.parse(url), "affinity", clients=clients, workers=workers, scalers=scalers, revoke=revoke
        )

    @property
    def dialect(self) -> str:
        """``postgresql``."""
        return "postgresql"

    @property
    def timeline(self) -> str:
        """Of the last new connection: each asks before its first call."""
        return self._connections.timeline.token

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        await self._connections.aclose()

    async def advance_clock(self, seconds: float) -> None:
        """Move the clock of this schema, for all its users. For tests only."""
        await self._connections.misc.simple_query(_ADVANCE, {"seconds": float(seconds)})
