"""The wire protocol on one open connection: libpq's non-blocking calls, driven by callbacks of the event loop.

States of one `WireProtocol`::

    idle ──`execute`, `pipeline`, `simple_query`──► asking ──reply──► idle `ended` is called: the rows, or the error
    asking ──a statement is prepared, at its first use──► asking           now it is executed
    asking ──the reply, and another statement is behind──► asking          `answered` is called: the rows
    idle ──`forget_statements`──► asking ──the reply──► asking             the call that follows is sent
    asking ──the reply, and the connection broke──► unusable               `ended` is called: the rows, or the error
    asking ──the connection broke, or a COPY wants to begin──► unusable    `ended` is called: the error
    any ──`detach`──► unusable                                               neither is called any more
    idle ──the connection broke, while it is listened to──► unusable         `lost` is called

Invariants
    * It is asked while it is `idle`, and not again before `ended`.
    * A reply is read to its end before `ended` is called, so that an error leaves the connection usable.
    * The message that executes a statement is followed by the end of its transaction and by nothing else, and several
      statements are one message: what was cut on its way has locked no row.
    * Two statements that are sent without a wait (libpq's pipeline mode) each have an end of their own, so they are two
      transactions. The second begins when the first has ended, well or not. Both are prepared before either is sent; if
      one cannot be, neither is. The first has ended when its end is read: an error may come behind its rows. `answered`
      is called for rows only. An error of the first is passed to `ended`, also when the connection breaks before the
      second ends.
    * The server is never asked to stop: it would end the wait for a synchronous standby too, and a transaction that no
      standby has would be committed.
    * While there is more to send, we read too: neither side waits for the other with both sockets full.
    * A broken connection is an error of a call. What arrives between calls, also the end, stays unread until the next
      call, which raises the server's own message; and a closed socket does not keep the event loop busy.
    * After `listen`, data between calls is read: notifications are passed on, and the end of the connection is reported
      immediately. Notifications that come with a reply are passed on before `answered` or `ended` is called.

psycopg connects, converts values and names errors. Its cursors would do the rest too, at three times the cost: a
cursor, a generator, a lock, a reader and a timer for each statement.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Final, LiteralString, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from affinity.provider.postgres.driver.arrays import Packed

Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Mapping[str, Any]
Statement: TypeAlias = tuple[LiteralString, Params]
Outcome: TypeAlias = list[list[Row]] | Exception
"""The rows of each statement, or why there are none."""

Notified: TypeAlias = Callable[[str, str], None]
"""Receives the channel and the payload of a notification."""

_Packed: TypeAlias = Sequence[Buffer | None]
_Formats: TypeAlias = Sequence[int]

_PLACEHOLDER: Final = re.compile(r"%\((?P<name>\w+)\)s|%%")
# As libpq's numbers: a look-up of an enumeration's member takes longer than the comparison.
_IDLE: Final = int(TransactionStatus.IDLE)
_ACTIVE: Final = int(TransactionStatus.ACTIVE)
BINARY: Final = int(Format.BINARY)
_AUTO: Final = PyFormat.AUTO
_TUPLES: Final = int(ExecStatus.TUPLES_OK)
_DONE: Final = frozenset({int(ExecStatus.COMMAND_OK), int(ExecStatus.EMPTY_QUERY)})
_FAILED: Final = int(ExecStatus.FATAL_ERROR)
_SYNC: Final = int(ExecStatus.PIPELINE_SYNC)
_COPY: Final = frozenset({int(ExecStatus.COPY_IN), int(ExecStatus.COPY_OUT), int(ExecStatus.COPY_BOTH)})


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A statement with the server's placeholders, and the parameters of each: columns come last."""

    query: bytes
    others: tuple[str, ...]
    columns: tuple[str, ...]
    types: tuple[int, ...]  # of the columns
    formats: tuple[int, ...]  # of the columns


class ServerConnection(AsyncConnection[Row]):
    """A connection, and the process id of its server session: a pooler gives another number to its clients."""

    server_pid: int = 0
    shared: Mapping[str, str] | None = None
    """The settings of each transaction, where a pooler gives each transaction another server session."""


_Key: TypeAlias = tuple[_Shape, tuple[int, ...] | None]
"""A statement, and the types of its other values: they are part of the prepared statement."""


class WireProtocol:
    """Asks one thing at a time, and calls ``ended`` when it has the answer; ``answered`` before, when the first of two
    statements has ended well. Bound to the running event loop.
    """

    is_shared = False
    """Whether the server session may be another one in each call: then none can be asked about, or listens."""

    def __init__(
        self,
        connection: ServerConnection,
        ended: Callable[[Outcome], None],
        answered: Callable[[list[list[Row]]], None],
    ) -> None:
        self._connection = connection
        self._ended = ended
        self._answered = answered
        self._pgconn = connection.pgconn
        self._socket = self._pgconn.socket  # libpq forgets it when the connection breaks
        self._loop = asyncio.get_running_loop()
        self._listening = False
        self._transformer = Transformer(connection)
        self._shapes: dict[LiteralString, _Shape] = {}
        self._names: dict[_Key, bytes] = {}  # of statements that the server has prepared
        # A pooler that is configured anew may give us the session of another client, with statements of its own.
        is_pooled = connection.server_pid != connection.pgconn.backend_pid
        self._prefix = b"affinity_%b_" % secrets.token_hex(4).encode() if is_pooled else b"affinity_"
        self._numbers = count()
        self._then: Callable[[], None] | None = None  # the next request of the same call
        self._results: list[PGresult] = []
        self._ends = 0  # of transactions that are still to come, in pipeline mode
        self._failure: Exception | None = None  # of the first of two statements
        self._notified: Notified | None = None
        self._lost: Callable[[Exception], None]
        self.moved_at: float = self._loop.time()
        """The loop's time at which bytes last came in or went out after a wait."""

    @property
    def server_session(self) -> tuple[int, str]:
        """The process id and the ``application_name`` that the server knows this connection by."""
        name = self._pgconn.parameter_status(b"application_name")
        return self._connection.server_pid, (name or b"").decode()

    @property
    def idle(self) -> bool:
        """Whether it may be asked something: open, and not in the middle of anything."""
        return self._pgconn.transaction_status == _IDLE

    @property
    def asking(self) -> bool:
        """Whether the server is at work on something."""
        return self._pgconn.transaction_status == _ACTIVE

    # -- asking: raises psycopg's errors, or the error of a value; then `ended` is not called

    def execute(self, statement: LiteralString, params: Params | None = None) -> None:
        """One statement, prepared at its first use. Its values are received in binary."""
        key, packed, formats = self._packed(statement, params or {})
        name = self._names.get(key)
        if name is not None:
            self._pgconn.send_query_prepared(name, packed, formats, BINARY)
            self._sent()
        else:
            self._prepare(key, then=partial(self.execute, statement, params))

    def execute_both(self, first: Statement, behind: Statement) -> None:
        """Two statements, as `execute`; the second is sent without waiting for the reply to the first."""
        requests = [self._packed(*each) for each in (first, behind)]
        for key, *_ in requests:
            if key not in self._names:
                self._prepare(key, then=partial(self.execute_both, first, behind))
                return
        self._pgconn.enter_pipeline_mode()
        self._ends = len(requests)
        for key, packed, formats in requests:
            self._pgconn.send_query_prepared(self._names[key], packed, formats, BINARY)
            self._pgconn.pipeline_sync()
        self._sent()

    def _packed(self, statement: LiteralString, params: Params) -> tuple[_Key, _Packed, _Formats]:
        """Values in wire format: columns are packed already, psycopg packs the others and names their types."""
        shape = self._shapes.get(statement)
        if shape is None:
            shape = self._shapes[statement] = _shape(statement, params)
        values = [params[name] for name in shape.others]
        packed = self._transformer.dump_sequence(values, [_AUTO] * len(values))
        formats = [*(self._transformer.formats or ()), *shape.formats]
        return (shape, self._transformer.types), [*packed, *[params[name].packed for name in shape.columns]], formats

    def _prepare(self, key: _Key, then: Callable[[], None]) -> None:
        shape, types = key
        name = b"%b%d" % (self._prefix, next(self._numbers))
        self._pgconn.send_prepare(name, shape.query, [*(types or ()), *shape.types])
        self._sent(then=partial(self._prepared, key, name, then))

    def _prepared(self, key: _Key, name: bytes, then: Callable[[], None]) -> None:
        self._names[key] = name
        then()

    def pipeline(self, statements: Sequence[LiteralString], params: Params) -> None:
        """Several statements in one message and one transaction, prepared at their first use, each with a snapshot of
        its own. Their values, which are not columns, are literals in the text.

        The server begins none before it has all: were each a message of its own, it would keep what the first has
        locked for as long as the rest does not arrive.
        """
        commands = []
        for statement in statements:
            key, *_ = self._packed(statement, params)
            name = self._names.get(key)
            if name is None:
                self._prepare(key, then=partial(self.pipeline, statements, params))
                return
            values = b",".join([self._literal(params[each]) for each in key[0].others])
            commands.append(b"EXECUTE %s (%s)" % (name, values) if values else b"EXECUTE %s" % name)
        self._pgconn.send_query(b";".join(commands))
        self._sent()

    def simple_query(self, statements: LiteralString, params: Params | None = None) -> None:
        """Several statements in one message: only PostgreSQL's simple protocol takes them, with values in the text."""
        if params is None:
            text = statements.encode()
        else:
            template, names = _template(statements)
            text = template % {name: self._literal(params[name.decode()]) for name in names}
        self._send_text(text)

    def _send_text(self, text: bytes) -> None:
        self._pgconn.send_query(text)
        self._sent()

    def forget_statements(self, then: Callable[[], None]) -> None:
        """Drop all that is prepared, here and at the server; ``then`` asks again."""
        self._names.clear()
        self._pgconn.send_query(b"DEALLOCATE ALL")
        self._sent(then)

    def listen(self, channels: Sequence[str], notified: Notified, lost: Callable[[Exception], None]) -> None:
        """Ask for the notifications of these channels; they come from now on, until the connection ends."""
        self._notified, self._lost = notified, lost
        self._pgconn.send_query(";".join(f'LISTEN "{channel}"' for channel in channels).encode())
        self._sent()

    def change(self, settings: Mapping[str, str], then: Callable[[], None]) -> None:
        """Change settings of the connection, which are ours; ``then`` asks."""
        self._pgconn.send_query(";".join(f"SET {name} = '{value}'" for name, value in settings.items()).encode())
        self._sent(then)

    def _literal(self, value: Any) -> bytes:
        return b"NULL" if value is None else self._transformer.as_literal(value)

    def _sent(self, then: Callable[[], None] | None = None) -> None:
        self._results = []
        self._failure = None
        self._then = then
        if self._pgconn.flush():
            self._loop.add_writer(self._socket, self._writable)
        if not self._listening:
            self._listening = True
            self._listen()

    # -- answers

    def _writable(self) -> None:
        self.moved_at = self._loop.time()
        try:
            if not self._pgconn.flush():
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._ended(error)

    def _readable(self) -> None:
        self.moved_at = self._loop.time()
        if not self.asking:
            self._read_between_calls()
            return
        outcome: Outcome | None
        try:
            outcome = self._read()
            if outcome is None:
                self._loop.call_soon(self._listen)
                return
            self._notice_end()
            if self._then is not None:
                self._then()
                return
        except Exception as error:
            self._notice_end()
            outcome = error
        self._pass_on()
        self._ended(outcome)

    def _read_between_calls(self) -> None:
        if self._notified is None:  # it is for the next call
            self._listening = False
            self._loop.remove_reader(self._socket)
            return
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            self._lost(error)
        else:
            self._pass_on()
            self._loop.call_soon(self._listen)

    def _pass_on(self) -> None:
        while self._notified is not None and (notice := self._pgconn.notifies()) is not None:
            self._notified(notice.relname.decode(), notice.extra.decode())

    def _notice_end(self) -> None:
        """A reset may have come with the reply. uvloop would call no reader any more, and the next call would wait for
        its deadline; libpq notes it, so that the connection is not `idle`.
        """
        with suppress(psycopg.OperationalError):
            self._pgconn.consume_input()

    def _listen(self) -> None:
        """Once more whenever there is more to come: after an error of the socket uvloop calls a reader once, and then
        never. The server's last words come with such an error, and are not all that there is to read.
        """
        if self._listening:
            self._loop.remove_reader(self._socket)
            self._loop.add_reader(self._socket, self._readable)

    def _read(self) -> list[list[Row]] | None:
        """Take the bytes that have come; the whole reply, or None while more is to come."""
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
        except psycopg.OperationalError:
            self._rows()  # raises the message that the server may have sent before it closed
            raise
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if not self._ends or not self.asking:
                    return self._rows()
            elif result.status == _SYNC:
                self._ends -= 1
                if not self._ends:
                    pgconn.exit_pipeline_mode()
                    return self._rows()
                self._end_first()
            else:
                self._results.append(result)
                if result.status in _COPY:  # it would come again and again
                    return self._rows()
        return None

    def _end_first(self) -> None:
        try:
            rows = self._rows()
        except Exception as error:
            self._failure = error
        else:
            self._pass_on()
            self._answered(rows)

    def _rows(self) -> list[list[Row]]:
        results, self._results = self._results, []
        if self._failure is not None:
            raise self._failure
        return [self._load(result) for result in results]

    def _load(self, result: PGresult) -> list[Row]:
        status = result.status
        if status == _TUPLES:
            if not result.nfields:
                return []
            self._transformer.set_pgresult(result)
            rows = self._transformer.load_rows(0, result.ntuples, tuple)
            self._transformer.set_pgresult(None)  # it may be large
            return rows
        if status in _DONE:
            return []
        if status == _FAILED:
            raise error_from_result(result)
        raise psycopg.InternalError(f"unexpected reply: {ExecStatus(status).name}")

    # -- the end

    def detach(self) -> None:
        """Send and read nothing more."""
        self._listening = False
        with suppress(OSError):  # libpq has closed the socket of a broken connection
            self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)

    def close(self) -> None:
        """Close immediately, whatever the server is doing. To be muted before."""
        self._pgconn.finish()  # psycopg's own close() does no more


def _shape(statement: LiteralString, params: Params) -> _Shape:
    """A name is a column in every call, or in none.

    To be kept: psycopg looks for the placeholders at every call, a third of a millisecond for a statement as long as a
    commit.
    """
    names = dict.fromkeys(found["name"] for found in _PLACEHOLDER.finditer(statement) if found["name"] is not None)
    columns = tuple(name for name in names if isinstance(params[name], Packed))
    others = tuple(name for name in names if name not in columns)
    numbers = {name: f"${number}" for number, name in enumerate(others + columns, 1)}
    query = _PLACEHOLDER.sub(lambda found: numbers[found["name"]] if found["name"] is not None else "%", statement)
    types = tuple(params[name].oid for name in columns)
    return _Shape(query.encode(), others, columns, types, (Format.BINARY,) * len(columns))


@cache
def _template(text: LiteralString) -> tuple[bytes, frozenset[bytes]]:
    """The text as Python's ``%`` takes it for bytes, and the names that it wants."""
    names = frozenset(found["name"].encode() for found in _PLACEHOLDER.finditer(text) if found["name"] is not None)
    return _PLACEHOLDER.sub(lambda found: found[0][:-1] + ("b" if found["name"] else "%"), text).encode(), names
