"""Calls through a pooler that shares the sessions of the server among its clients, as PgBouncer in transaction mode.

A client keeps nothing in a session. A call is still one message and one transaction, which begins with its settings::

    SET isolation, read-write ► settings, for this transaction ► the statement ► the end of the transaction

The message ends as one to a session of its own does, so that what was cut on its way has locked no row. No statement
has a name: a pooler need not carry prepared statements, and none of another client is met. Several statements with one
snapshot each are a message of the simple protocol, with their settings in front.

A failover that the pooler hides
    The settings compare the server with the one whose timeline was read last: when it was started, and the table
    `timeline`. On another one they fail, and with them the transaction. Then the timeline is read on that server, as a
    new connection reads it, and the call is repeated. So no call has an effect on a server whose timeline is not known.

    A server that becomes the primary is met as a primary only: as a standby it refuses the transaction at its first
    statement.

States of one `SharedProtocol`, beside those of `WireProtocol`::

    idle ──a call, the server is not known──► asking              the timeline is asked for
    idle ──a call──► asking
    asking ──the reply, of the known server──► idle               `ended` is called: the rows, or the error
    asking ──refused by another server──► asking                  the timeline is asked for
    asking ──the timeline──► asking                               the call is sent, or sent again
    asking ──the timeline cannot be read──► idle                  `ended` is called: the error
    asking ──refused for the third time──► idle                   `ended` is called: an error of the connection
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, LiteralString

import psycopg
from psycopg.abc import AdaptContext
from psycopg.pq import DiagnosticField
from psycopg.types.datetime import TimestamptzBinaryLoader

from affinity.errors import ReadOnly
from affinity.provider.postgres.driver.arrays import Text, Texts
from affinity.provider.postgres.driver.timeline import TimelineCheck
from affinity.provider.postgres.driver.wire import (
    BINARY,
    Outcome,
    Params,
    Row,
    ServerConnection,
    Statement,
    WireProtocol,
)

# SET of these two lasts for the transaction, and warns of nothing; set_config() would come too late, with a snapshot.
_BEGIN: Final = (b"SET transaction_isolation TO 'read committed'", b"SET transaction_read_only TO off")

_SETTLE: Final = b"""
SELECT count(set_config(name, value, true)),
    concat(extract(epoch FROM pg_postmaster_start_time()), '/', to_regclass(%(table)b)::oid),
    1 / CASE WHEN concat(extract(epoch FROM pg_postmaster_start_time()), '/', to_regclass(%(table)b)::oid)
        <> %(known)b::text THEN 0 ELSE 1 END
FROM unnest(%(names)b::text[], %(values)b::text[]) AS wanted (name, value)
WHERE name LIKE '%%.%%' OR value <> current_setting(name, true)"""
"""Sets, for the transaction, what differs, and settings of our own; says which server this is; and fails on another one
than the known one, if there is one.
"""

_SETTLE_PACKED: Final = _SETTLE % {b"names": b"$1", b"values": b"$2", b"table": b"$3", b"known": b"$4"}

_SETTLE_TYPES: Final = [Texts.oid, Texts.oid, Text.oid, Text.oid]
_SETTLE_FORMATS: Final = [BINARY] * len(_SETTLE_TYPES)

_DIVISION_BY_ZERO: Final = b"22012"

_NOT_SUPPORTED: Final = b"0A000"
"""The answer of a standby to `_BEGIN`."""

_ATTEMPTS: Final = 3
"""Times that a call is sent while the pooler changes from server to server."""


class _OtherServer(psycopg.OperationalError):
    """The transaction was refused, since it was on another server."""


class _UtcLoader(TimestamptzBinaryLoader):
    """Times in UTC. The connection shows the time zone of the pooler, which is not that of our transactions."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid)


class SharedProtocol(WireProtocol):
    """As `WireProtocol`, on a session of the server that is another one in each call.

    Args:
        connection: to the pooler.
        ended: see `WireProtocol`.
        answered: see `WireProtocol`.
        fixed: settings of each transaction.
        settings: of the next call, until `change`.
        table: the table `timeline`, as SQL names it.
        line: the timeline that is followed; None: not yet.
    """

    is_shared = True

    def __init__(
        self,
        connection: ServerConnection,
        ended: Callable[[Outcome], None],
        answered: Callable[[list[list[Row]]], None],
        *,
        fixed: Mapping[str, str],
        settings: Mapping[str, str],
        table: str,
        line: Callable[[], TimelineCheck | None],
    ) -> None:
        connection.adapters.register_loader("timestamptz", _UtcLoader)
        super().__init__(connection, self._came, self._came_first)
        self._report, self._report_first = ended, answered
        self._fixed = fixed
        self._table = table
        self._line = line
        self._server = ""  # of the last transaction
        self._known: str | None = None  # the server whose timeline was read last
        self._asked: tuple[TimelineCheck, int] | None = None  # the timeline, and how far it was: it is asked for
        self._attempts = 0
        self._send: Callable[[], None]  # sends the call
        self._send_behind: Callable[[], None]
        self._use(settings)

    # -- asking

    def execute(self, statement: LiteralString, params: Params | None = None) -> None:
        self._begin(partial(self._send_all, [(statement, params or {})]))

    def execute_both(self, first: Statement, behind: Statement) -> None:
        self._send_behind = partial(self._send_all, [behind])
        self._begin(partial(self._send_all, [first, behind]))

    def _begin(self, send: Callable[[], None]) -> None:
        self._send, self._attempts = send, 0
        line = self._line()
        if line is not None and self._known is None:
            self._ask_timeline(line)
        else:
            send()

    def _send_all(self, statements: Sequence[Statement]) -> None:
        """A transaction of each statement, which has no name."""
        requests = [self._packed(*each) for each in statements]  # raises the error of a value
        self._pgconn.enter_pipeline_mode()
        for (shape, types), packed, formats in requests:
            for command in _BEGIN:
                self._pgconn.send_query_params(command, None)
            known = None if self._known is None else self._known.encode()
            self._pgconn.send_query_params(
                _SETTLE_PACKED, [*self._settings, self._table.encode(), known], _SETTLE_TYPES, _SETTLE_FORMATS, BINARY
            )
            self._pgconn.send_query_params(shape.query, packed, [*(types or ()), *shape.types], formats, BINARY)
            self._pgconn.pipeline_sync()
        self._ends = len(statements)
        self._sent()

    def pipeline(self, statements: Sequence[LiteralString], params: Params) -> None:
        self.simple_query(";".join(statements), params)

    def _send_text(self, text: bytes) -> None:
        self._begin(partial(self._send_settled, text))

    def _send_settled(self, text: bytes) -> None:
        words = {b"names": self._names_text, b"values": self._values_text}
        settle = _SETTLE % {**words, b"table": self._literal(self._table), b"known": self._literal(self._known)}
        super()._send_text(b";".join([*_BEGIN, settle, text]))

    def forget_statements(self, then: Callable[[], None]) -> None:
        then()

    def listen(self, channels: Sequence[str], notified: object, lost: object) -> None:
        """Refuse: the notifications would come to whoever has that session then.

        Raises:
            NotSupportedError: always.
        """
        raise psycopg.NotSupportedError("LISTEN needs a server session of its own")

    def change(self, settings: Mapping[str, str], then: Callable[[], None]) -> None:
        self._use(settings)
        then()

    def _use(self, settings: Mapping[str, str]) -> None:
        wanted = {**self._fixed, **settings}
        names, values = [*wanted], [*wanted.values()]
        self._settings = [Texts(names).packed, Texts(values).packed]
        self._names_text, self._values_text = self._literal(names), self._literal(values)

    # -- answers

    def _rows(self) -> list[list[Row]]:
        if len(self._results) > len(_BEGIN):
            settled = self._results[len(_BEGIN)]
            if settled.error_field(DiagnosticField.SQLSTATE) == _DIVISION_BY_ZERO:
                raise _OtherServer("the pooler changes between servers")
        if any(begun.error_field(DiagnosticField.SQLSTATE) == _NOT_SUPPORTED for begun in self._results[: len(_BEGIN)]):
            raise ReadOnly("PostgreSQL: the pooler leads to a standby", "25006")
        rows = super()._rows()
        if len(rows) > len(_BEGIN):  # else the connection broke before
            ((_, self._server, _),) = rows[len(_BEGIN)]
        return rows[len(_BEGIN) + 1 :]

    def _came_first(self, rows: list[list[Row]]) -> None:
        self._send = self._send_behind
        self._report_first(rows)

    def _came(self, outcome: Outcome) -> None:
        try:
            self._go_on(outcome)
        except Exception as error:
            self._report(error)

    def _go_on(self, outcome: Outcome) -> None:
        asked, self._asked = self._asked, None
        line = self._line()
        if asked is not None and not isinstance(outcome, Exception):
            line, before = asked
            line.check(outcome[0], before)
            self._known = self._server
            self._send()
        elif isinstance(outcome, _OtherServer) and line is not None and self._attempts < _ATTEMPTS:
            self._known = None
            self._ask_timeline(line)
        else:
            self._report(outcome)

    def _ask_timeline(self, line: TimelineCheck) -> None:
        self._attempts += 1
        self._asked = line, line.reached
        self._send_all([(line.question, line.known)])
