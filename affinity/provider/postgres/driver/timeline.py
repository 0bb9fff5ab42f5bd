"""The timeline of a PostgreSQL database: see `affinity.provider.timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from psycopg import AsyncConnection

from affinity.errors import ReadOnly
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.timeline import SeenTimeline, Timeline

ESTABLISH: Final[LiteralString] = (
    "SELECT current_token, reached, database FROM establish_timeline(%(known_token)s::text, %(known_reached)s::bigint)"
)
"""The query of a worker. It begins a new timeline if the database is behind the point that the worker has seen. Its one
row is for `TimelineCheck.check`; its parameters are `TimelineCheck.known`.
"""

READ: Final[LiteralString] = "SELECT current_token, reached, database FROM read_timeline()"
"""The query of a client."""


class TimelineCheck:
    """Asks a database, and compares its answer with the timeline that is followed, if any.

    A client follows none, and keeps the one that it has seen. The first connection after a failover, of a worker or of
    a client, begins the new timeline.
    """

    def __init__(self, timeline: Timeline | None) -> None:
        self._timeline = timeline
        self._seen = SeenTimeline()
        self._database = ""

    @property
    def database(self) -> str:
        """See `affinity.provider.contract.ProviderConnection.database`."""
        return self._database

    @property
    def token(self) -> str:
        """Token of the database at the last new connection."""
        return (self._timeline or self._seen).token or ""

    @property
    def question(self) -> LiteralString:
        """The query of a new connection."""
        return READ if self._timeline is None else ESTABLISH

    @property
    def known(self) -> Params:
        """The parameters with the timeline as it is known before the call."""
        seen = self._timeline
        return {"known_token": seen.token if seen else None, "known_reached": seen.reached if seen else 0}

    @property
    def reached(self) -> int:
        """How far the database is known to be."""
        return self._seen.reached

    def check(self, rows: Sequence[Row], before: int = 0) -> None:
        """Take the answer; ``before``: `reached` when it was asked.

        Raises:
            DatabaseChanged: it is not of the timeline that is followed.
            ReadOnly: it is of a standby, which may be promoted while the connection lasts.
        """
        ((token, reached, database),) = rows
        if self._timeline is None:
            self._seen.note(token, reached, before)
            self._database = database
            return
        if reached is None:
            raise ReadOnly("the server is a standby: target_session_attrs=read-write finds the primary")
        self._timeline.check(token, reached)
        self._database = database

    async def check_connection(self, connection: AsyncConnection[Row]) -> None:
        """Ask on a connection that is not used otherwise yet.

        Raises:
            DatabaseChanged, ReadOnly: as `check`.
        """
        before = self.reached
        self.check(await (await connection.execute(self.question, self.known, prepare=False)).fetchall(), before)
