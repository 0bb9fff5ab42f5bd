"""Connections: as few as possible, and so many that a slow listing never delays a commit.

A worker's loop has three (`Connections`): for commits and nothing else; for fetches, hints and short calls; for long
calls. Its lease renewer and each client have one for all.

States of one `Connection`::

    closed ──first call──► connecting ──► open ──call──► busy ──reply, or an error that the database reports──► open
    connecting, busy ──failed, or the connection broke──► closed     ConnectionLost; the next call connects again
    busy ──a prepared statement is gone, or no longer fits──► busy   the call is repeated, with new prepared statements
    busy ──reply, and the connection broke──► closed                 the reply; the next call connects again
    busy ──reply, and a hint is behind──► answered                   the caller has it; the connection is not free
    answered ──the hint has ended, well or not──► open               its error is ignored
    answered ──a prepared statement is gone──► answered              the hint is repeated, with new prepared statements
    answered ──the connection broke, or `CALL_TIMEOUT`──► closed     the next call connects again
    connecting ──silent for ``probe_after``──► connecting            a second attempt beside it; the first to end counts
    connecting, busy ──`CALL_TIMEOUT`──► closed                      ConnectionLost
    busy, answered ──a probe says that no answer will come──► closed ConnectionLost; the next call connects again
    connecting, busy ──its caller is cancelled──► abandoned
    abandoned ──connected, or reply──► open
    abandoned ──`CANCELLED_CALL_TIMEOUT`──► closed                   the server ends by itself what it has begun
    open ──no call for ``idle_timeout``──► closed                    the next call connects again
    open ──it broke, while it is listened to──► closed               the subscriptions learn of it immediately

Invariants
    * One call at a time on a connection; calls wait for each other in order.
    * A call belongs to the connection, not to the task that awaits it. The task may be cancelled, and then ends
      immediately: a silent network does not delay a task that has a deadline. A call that was not sent is then never
      sent; a call that was sent runs to its end, so that no connection is left in the middle of a reply.
    * A call is one message to the server, in autocommit. A client that is paused at any moment holds no lock.
    * A hint behind a call is a message of its own, sent with it, and a transaction of its own: it is executed also if
      the call fails, and its outcome changes nothing for the call. A call that is repeated is repeated with it.
    * A call runs under its settings (`HOT` or `COLD`): where the call before had others, they are changed first, by a
      message of their own.
    * Silence alone ends no call before `CALL_TIMEOUT`. After ``probe_after`` seconds without a byte, a short call is
      asked about on a new connection (`_PROBE`). A server session that works or waits for a lock is slow, and the call
      goes on. One that waits for its client, seen twice, or is gone, shows that the request or the reply was lost. The
      probe then ends that session first, so that it executes nothing later. A probe without an answer is an outage: it
      changes nothing.
    * Attempts to connect are spread over time (`Attempts`); when one fails, so do all calls that wait for it.

No task, lock or timer is made for a call that is answered in time: it is sent by its caller, or by the reply to the
call before it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, LiteralString, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection

from affinity.errors import ConnectionLost, PoolerRefused, ProviderError, ReadOnly
from affinity.limits import PROBE_AFTER
from affinity.provider.contract import BRIEFLY
from affinity.provider.postgres.driver.attempts import Attempts, first_connection
from affinity.provider.postgres.driver.calls import CALL_TIMEOUT, Calls
from affinity.provider.postgres.driver.errors import check_encoding, is_prepared_anew, translate, unchangeable
from affinity.provider.postgres.driver.poolers import open_connection, open_shared, use_session
from affinity.provider.postgres.driver.shared import SharedProtocol
from affinity.provider.postgres.driver.target import BRIEF, COLD, HOT, MARKER, PIN, PINNED, Target
from affinity.provider.postgres.driver.timeline import TimelineCheck
from affinity.provider.postgres.driver.wire import Outcome, Row, ServerConnection, Statement, WireProtocol
from affinity.provider.timeline import Timeline
from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.provider")

NO_LISTEN: Final = frozenset({"0A000", "42501", "42601"})
"""SQLSTATEs with which a server that has no LISTEN refuses it: feature not supported, no right, syntax error."""

_REFUSED: Final = "%s refuses LISTEN (%s): work is found by polling alone, which takes longer (poll_interval)"

_SHARED: Final = (
    "a pooler shares the sessions of PostgreSQL: this client finds changes by asking once a second; with the"
    " server's own URL in ?direct= it is notified"
)

T = TypeVar("T")

Sharing: TypeAlias = Literal["refused", "allowed", "known"]
"""Whether a connection may go through a pooler that shares the sessions of the server; or does so, and need not ask."""

Check: TypeAlias = Callable[[AsyncConnection[Row]], Awaitable[None]]

CANCELLED_CALL_TIMEOUT: Final = 2.0
"""Seconds for a call to end after its caller was cancelled."""

CLOSE_TIMEOUT: Final = 1.0
"""Seconds for an attempt to connect to notice that it is given up."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds without a turn after which a worker closes its connection for commits. To connect again costs some
milliseconds.
"""

# A session that waits for a standby (SyncRep) is not ended: its transaction would be committed on the primary alone.
_WAITS_FOR_US: Final[LiteralString] = """
SELECT coalesce(wait_event IN ('ClientRead', 'ClientWrite'), false)
FROM pg_stat_activity
WHERE pid = %(pid)s AND application_name = %(name)s AND usename = session_user AND datname = current_database()"""
"""Whether a server session waits for its client; no row: it is gone."""

# Of one row the state is read before the wait: of a session that has ended its work in between, the row has the old
# state with the new wait. So the wait was read before too, by `_WAITS_FOR_US`, in an earlier transaction.
# For a second after the end of a statement, its reply may be under way.
_PROBE: Final[LiteralString] = """
SELECT CASE WHEN wait_event IN ('ClientRead', 'ClientWrite')
                 AND (state_change < clock_timestamp() - interval '1 s') IS NOT FALSE
            THEN pg_terminate_backend(pid) END IS NULL
FROM pg_stat_activity
WHERE pid = %(pid)s AND application_name = %(name)s AND usename = session_user AND datname = current_database()"""
"""Whether a server session is still at work; no row: it is gone. One that is not at work is ended."""


class Subscriber(Protocol):
    """Receives the notifications that come on a connection."""

    def receive(self, channel: str, payload: str) -> None:
        """A notification, of any subscriber of the connection."""
        ...

    def end(self, error: Exception) -> None:
        """The connection ended, and the subscription with it."""
        ...


@dataclass(slots=True, eq=False)
class _WireCall:
    ask: Callable[[WireProtocol], None]
    settings: Mapping[str, str]
    reply: asyncio.Future[list[list[Row]]]  # cancelled before there is an answer: the caller was
    behind: Statement | None
    is_short: bool  # silence may end it
    harmless: Collection[str] = ()  # SQLSTATEs behind which the connection is kept
    is_repeated: bool = False


class Connection(Calls):
    """One connection, made when it is first needed and again after it broke. For one event loop."""

    def __init__(
        self,
        target: Target,
        application_name: str,
        settings: Mapping[str, str],
        check: Check | None = None,
        *,
        attempts: Attempts | None = None,
        idle_timeout: float | None = None,
        probe_after: float = math.inf,
        sharing: Sharing = "refused",
        line: Callable[[], TimelineCheck | None] = lambda: None,
    ) -> None:
        """``check`` is awaited with each new connection; the calls that need the connection raise its errors.
        ``probe_after``: seconds of silence after which a short call is asked about on a new connection. ``line``: takes
        the place of ``check`` where a pooler shares the sessions of the server.
        """
        self._name = application_name
        self._target = target
        self._check = check
        self._sharing = sharing
        self._line = line
        self._settings = self._current_settings = settings
        self._attempts = attempts or Attempts()
        self._idle_timeout = idle_timeout
        self._idle_alarm: asyncio.TimerHandle | None = None
        self._subscribers: list[Subscriber] = []
        self._deaf: WireProtocol | None = None  # the last one on which the server refused LISTEN
        self._conninfo = target.connect(application_name, settings)
        self._waiting: deque[_WireCall] = deque()
        self._current: _WireCall | None = None  # the call that has the connection, or for which it is made
        self._began = -math.inf  # the loop's time at which the last call began
        self._until = 0.0  # the loop's time at which the current call is given up
        self._alarm: asyncio.TimerHandle | None = None  # one for many calls: it looks at `_until` when it rings
        self._probe_after = probe_after
        self._probing: asyncio.Task[None] | None = None
        self._protocol: WireProtocol | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # attempts to connect, also given up ones
        self._closed = False

    async def aclose(self) -> None:
        """Close for good. Calls that are under way are given up. Idempotent."""
        await _wait_for(self.close())

    def close(self) -> Collection[asyncio.Task[Any]]:
        """As `aclose`, without a wait: the attempts to connect that have yet to notice that they are given up."""
        self._closed = True
        given_up = [*self._waiting] if self._current is None else [self._current, *self._waiting]
        self._current = None
        self._waiting.clear()
        for call in given_up:
            if not call.reply.done():
                call.reply.set_exception(ConnectionLost(f"{self._target.name}: the provider was closed"))
        if self._alarm is not None:
            self._alarm.cancel()
        if self._probing is not None:
            self._probing.cancel()
        self._drop(ConnectionLost(f"{self._target.name}: the provider was closed"))
        return self._tasks.copy()

    # -- notifications

    @property
    def is_free(self) -> bool:
        """Whether it is open and a call would be sent immediately."""
        return self._current is None and self._protocol is not None

    @property
    def _is_deaf(self) -> bool:
        """Whether the server refuses LISTEN on the connection that there is. A later one may be to another server."""
        return self._deaf is not None and self._deaf is self._protocol

    async def subscribe(self, channels: Sequence[str], subscriber: Subscriber) -> None:
        """Listen to these channels. A subscription ends with the connection, or by `unsubscribe`. Where the server
        refuses LISTEN, or a pooler shares its sessions, it receives nothing until then; the server is asked once for
        each connection.
        """
        self._subscribers.append(subscriber)
        if self._is_deaf:
            return
        asked: WireProtocol | None = None

        def ask(protocol: WireProtocol) -> None:
            nonlocal asked
            asked = protocol
            protocol.listen(channels, self._notified, self._lost)

        try:
            await self._call(ask, harmless=NO_LISTEN)
        except ProviderError as error:
            is_shared = asked is not None and asked.is_shared and asked is self._protocol
            if (state := error.code) not in NO_LISTEN and not is_shared:
                raise
            if self._deaf is None and is_shared:
                logger.warning(_SHARED)
            elif self._deaf is None:
                logger.warning(_REFUSED, self._target.name, state)
            self._deaf = asked
        else:
            self._deaf = None

    async def unsubscribe(self, subscriber: Subscriber) -> None:
        """End a subscription. After the last one the server sends nothing more."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
            if not self._subscribers and self._protocol is not None and not self._is_deaf:
                await self.simple_query("UNLISTEN *")

    def _notified(self, channel: str, payload: str) -> None:
        for subscriber in self._subscribers:
            subscriber.receive(channel, payload)

    def _lost(self, error: Exception) -> None:
        """The connection ended between two calls."""
        self._drop(translate(error, self._target) if isinstance(error, psycopg.Error) else error)

    # -- one call

    async def _call(
        self,
        ask: Callable[[WireProtocol], None],
        settings: Mapping[str, str] | None = None,
        behind: Statement | None = None,
        *,
        is_short: bool = True,
        harmless: Collection[str] = (),
    ) -> list[list[Row]]:
        if self._closed:
            raise ConnectionLost(f"{self._target.name}: the provider is closed")
        reply = asyncio.get_running_loop().create_future()
        wanted = settings or self._settings
        if wanted is HOT and BRIEFLY.get():
            wanted = BRIEF
        call = _WireCall(ask, wanted, reply, behind, is_short, harmless)
        self._waiting.append(call)
        if self._current is None:
            self._go_on()
        try:
            return await call.reply
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def _abandon(self, call: _WireCall) -> None:
        """The caller was cancelled. A call that has begun may end, and its outcome is ignored."""
        if call is self._current:
            self._until = min(self._until, asyncio.get_running_loop().time() + CANCELLED_CALL_TIMEOUT)
            self._set_alarm()
        elif not call.reply.cancelled():
            call.reply.exception()  # an error that came at the same moment: read, so that asyncio does not warn

    def _go_on(self) -> None:
        """Start the next call that waits."""
        while self._waiting and self._current is None:
            call = self._waiting.popleft()
            if call.reply.done():
                continue
            self._current = call
            self._began = asyncio.get_running_loop().time()
            self._until = self._began + CALL_TIMEOUT
            if self._alarm is None:
                self._set_alarm()
            if self._protocol is None:
                self._connecting = self._spawn(self._connect())
            else:
                self._ask(call, self._protocol)

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(self._attempts.pause())
            patience = min(self._probe_after, CALL_TIMEOUT)
            connection = await first_connection(lambda: self._spawn(self._attempt()), patience)
        except Exception as error:
            self._connecting = None
            self._attempts.failed()
            self._end_all(error)
        else:
            self._connecting = None
            self._attempts.succeeded()
            self._protocol = self._begin_on(connection)
            self._current_settings = self._settings
            self._close_when_idle()
            call = self._current
            assert call is not None
            if call.reply.done():
                self._current = None
            else:
                self._ask(call, self._protocol)
        self._go_on()

    def _begin_on(self, connection: ServerConnection) -> WireProtocol:
        if connection.shared is None:
            return WireProtocol(connection, self._ended, self._answered)
        self._sharing = "known"
        return SharedProtocol(
            connection,
            self._ended,
            self._answered,
            fixed=connection.shared,
            settings=self._settings,
            table=f'"{self._target.schema}".timeline',
            line=self._line,
        )

    async def _attempt(self) -> ServerConnection:
        return await _connect_checked(self._target, self._conninfo, self._check, self._sharing)

    def _ask(self, call: _WireCall, protocol: WireProtocol) -> None:
        try:
            if call.settings is self._current_settings:
                call.ask(protocol)
            else:
                self._current_settings = call.settings
                protocol.change(call.settings, then=partial(call.ask, protocol))
        except Exception as error:  # the connection's error, or a value that cannot be sent
            self._end(error)

    def _end_all(self, error: Exception) -> None:
        """No connection could be made: fail the current call and the waiting ones."""
        waiting = [*self._waiting]
        self._waiting.clear()
        self._end(error)
        for call in waiting:
            self._current = call
            self._end(error)

    def _answered(self, rows: list[list[Row]]) -> None:
        """The current call has its reply, and its hint is under way."""
        call = self._current
        assert call is not None
        assert call.behind is not None
        statement, params = call.behind
        call.ask = lambda protocol: protocol.execute(statement, params)
        if not call.reply.done():
            call.reply.set_result(rows)

    def _ended(self, outcome: Outcome) -> None:
        self._end(outcome)
        self._go_on()

    def _end(self, outcome: Outcome) -> None:
        """The current call is over, cancelled or not."""
        call = self._current
        assert call is not None
        if isinstance(outcome, psycopg.Error):
            if self._repeat(call, outcome):
                return
            outcome = translate(outcome, self._target)
        self._current = None
        # An open connection may be useless, for example to a server that is now a standby. And only an idle one is
        # kept: any other is in the middle of a reply.
        is_useless = isinstance(outcome, ConnectionLost | ReadOnly) and outcome.code not in call.harmless
        if is_useless or (self._protocol is not None and not self._protocol.idle):
            self._drop(outcome)
        if call.reply.done():
            return
        if isinstance(outcome, Exception):
            call.reply.set_exception(outcome)
        else:
            call.reply.set_result(outcome)

    def _repeat(self, call: _WireCall, error: psycopg.Error) -> bool:
        """Repeat a call once that executed nothing: its prepared statement is gone, or no longer fits the tables."""
        protocol = self._protocol
        if call.is_repeated or call.reply.cancelled() or protocol is None or not is_prepared_anew(error):
            return False
        if not protocol.idle:
            return False
        call.is_repeated = True
        protocol.forget_statements(then=partial(call.ask, protocol))
        return True

    # -- the end of a connection

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        at, now = self._silent_from() + self._probe_after, loop.time()
        if at <= now:  # a probe has begun, or the call may take long
            at = now + self._probe_after
        self._alarm = loop.call_at(min(self._until, at), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        call, protocol = self._current, self._protocol
        if call is None:
            return  # the next call sets it
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            what = (
                f"cannot connect to {self._target.name} at {self._target.place()}"
                if protocol is None
                else self._target.name
            )
            self._ended(ConnectionLost(f"{what}: no answer within {CALL_TIMEOUT:g} s"))
            return
        is_due = now - self._silent_from() >= self._probe_after and (self._probing is None or self._probing.done())
        if (
            is_due
            and protocol is not None
            and not protocol.is_shared
            and any(each.is_short for each in (call, *self._waiting))
        ):
            self._probing = self._spawn(self._probe(protocol))
        self._set_alarm()

    def _silent_from(self) -> float:
        return self._began if self._protocol is None else max(self._began, self._protocol.moved_at)

    async def _probe(self, protocol: WireProtocol) -> None:
        """Ask on a new connection whether the server still works on the current call."""
        silent_from = self._silent_from()

        def is_silent() -> bool:
            return self._protocol is protocol and self._silent_from() == silent_from

        if not await self._is_dead(protocol, is_silent):
            return
        silence, server, name = (
            asyncio.get_running_loop().time() - silent_from,
            self._target.name,
            protocol.server_session[1],
        )
        logger.warning(
            "%s: no answer for %.1f s, while a new connection is answered: %s is dead, and made again",
            server,
            silence,
            name,
        )
        self._ended(
            ConnectionLost(
                f"{server}: no answer for {silence:.1f} s, while a new connection is answered: this connection is dead,"
                " and it is unknown whether the call took effect"
            )
        )

    async def _is_dead(self, protocol: WireProtocol, is_silent: Callable[[], bool]) -> bool:
        """Ask on a new connection whether the server still works on a call; end a session that waits for us.

        Args:
            protocol: of the call.
            is_silent: whether the call has had no byte since then.

        Returns:
            Whether no answer will come. False after an outage, of which a probe knows nothing.
        """
        probe = Connection(self._target, f"{self._name} probe", self._settings)
        pid, name = protocol.server_session
        session = {"pid": pid, "name": name}
        try:
            async with asyncio.timeout(self._probe_after):
                found = await probe.run_once(_WAITS_FOR_US, session)
                # To connect may have taken long: the answer may have come meanwhile.
                if found == [(False,)] or not is_silent():
                    return False
                found = await probe.run_once(_PROBE, session)
        except (ProviderError, TimeoutError):
            return False
        finally:
            await probe.aclose()
        return found != [(True,)] and is_silent()

    def _drop(self, why: Outcome) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        protocol, self._protocol = self._protocol, None
        if protocol is None:
            return
        self._attempts.lost()
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
        protocol.detach()
        protocol.close()
        error = (
            why
            if isinstance(why, ConnectionLost)
            else ConnectionLost(f"{self._target.name}: the connection was closed")
        )
        subscribers, self._subscribers = self._subscribers, []
        for subscriber in subscribers:
            subscriber.end(error)

    def _close_when_idle(self) -> None:
        """Look again when the last call that is known is so old; not at each call."""
        if self._idle_timeout is not None:
            if self._idle_alarm is not None:
                self._idle_alarm.cancel()
            loop = asyncio.get_running_loop()
            at = max(self._began, loop.time() - self._idle_timeout / 2) + self._idle_timeout
            self._idle_alarm = loop.call_at(at, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._idle_alarm = None
        if self._protocol is None or self._idle_timeout is None:
            return
        is_idle = self._current is None and not self._subscribers
        if is_idle and asyncio.get_running_loop().time() >= self._began + self._idle_timeout:
            protocol, self._protocol = self._protocol, None
            protocol.detach()
            protocol.close()
        else:
            self._close_when_idle()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Role(Calls):
    """Calls of one kind: each on the first of some connections that is free, or behind the calls of the first."""

    def __init__(
        self, connections: Sequence[Connection], settings: Mapping[str, str], *, is_short: bool = True
    ) -> None:
        self._connections = connections
        self._settings = settings
        self._is_short = is_short

    def _call(
        self,
        ask: Callable[[WireProtocol], None],
        settings: Mapping[str, str] | None = None,
        behind: Statement | None = None,
        *,
        is_short: bool = True,
    ) -> Awaitable[list[list[Row]]]:
        free = (each for each in self._connections if each.is_free)
        connection = next(free, self._connections[0])
        return connection._call(ask, settings or self._settings, behind, is_short=self._is_short)


class Connections:
    """The connections of one provider: three, or one for all.

    Of three, a worker that is idle has two: the connection for commits is closed (`IDLE_TIMEOUT`).

    Nothing waits behind a long call: commits have a connection of their own, and short calls share the connection of
    the fetches. Nor does a hint arrive late there: a worker that waits for a hint fetches nothing.
    """

    def __init__(
        self,
        target: Target,
        application_name: str,
        *,
        one_connection: bool = False,
        needs_sessions: bool = True,
        probe_after: float = PROBE_AFTER,
    ) -> None:
        """``needs_sessions``: go to the direct URL. Without, all but LISTEN goes through a pooler, of any kind."""
        direct = None if needs_sessions else target.direct
        target = target.with_sessions if needs_sessions else target
        self.target: Target = target
        sharing: Sharing = "refused" if needs_sessions else "allowed" if direct is None else "known"
        self.timeline: TimelineCheck = TimelineCheck(None)
        self._is_migrated = False  # before, the function of the check does not exist
        self._misses_hints = False
        self.application_name = application_name
        attempts = Attempts()

        def connection(name: str, settings: Mapping[str, str], idle_timeout: float | None = None) -> Connection:
            return Connection(
                target,
                name,
                settings,
                self._check,
                attempts=attempts,
                idle_timeout=idle_timeout,
                probe_after=probe_after,
                sharing=sharing,
                line=lambda: self.timeline if self._is_migrated else None,
            )

        self.commit: Connection
        self.fetch: Connection
        if one_connection:
            self.commit = self.fetch = slow = connection(application_name, HOT)
        else:
            self.commit = connection(f"{application_name} commit", HOT, IDLE_TIMEOUT)  # turns and acks
            self.fetch = connection(f"{application_name} fetch", HOT)  # and notifications
            slow = connection(f"{application_name} misc", COLD)
        self.listening: Connection = self.fetch  # to hints
        if direct is not None:
            self.listening = Connection(
                direct, f"{application_name} hints", HOT, idle_timeout=IDLE_TIMEOUT, probe_after=probe_after
            )
        self._all = {self.commit, self.fetch, slow, self.listening}
        # Leases, give-backs, histories, hints, what a client asks.
        self.quick: Role = Role((self.fetch, slow), HOT)
        # Session states on their own: one of them may take seconds.
        self.states: Role = Role((slow, self.fetch), HOT)
        # Single rows: resources, moves, what an administrator sets.
        self.rows: Role = Role((slow,), COLD)
        # What may take long: listings, the sweep; deletions.
        self.misc: Role = Role((slow,), COLD, is_short=False)
        self.deletions: Role = Role((slow, self.fetch), HOT, is_short=False)

    async def follow(self, timeline: Timeline | None) -> None:
        """Refuse any other timeline than this one from now on.

        Raises:
            DatabaseChanged: the database has another one already.
        """
        self.timeline = TimelineCheck(timeline)
        self.timeline.check(await self.misc.run(self.timeline.question, self.timeline.known))
        self._is_migrated = True

    async def subscribe(self, channels: Sequence[str], subscriber: Subscriber) -> None:
        """See `Connection.subscribe`. That the direct URL of a client fails, while its calls succeed, is logged once.

        Raises:
            ProviderError: there is no subscription.
        """
        try:
            await self.listening.subscribe(channels, subscriber)
        except ProviderError as error:
            if self.listening is not self.fetch and not self._misses_hints:
                logger.warning(
                    "no notifications over the direct URL, so changes are found by asking: %s", redacted(error)
                )
                self._misses_hints = True
            raise
        self._misses_hints = False

    async def _check(self, connection: AsyncConnection[Row]) -> None:
        if self._is_migrated:
            await self.timeline.check_connection(connection)

    async def aclose(self) -> None:
        """Close all, also where the caller is cancelled. Idempotent."""
        await _wait_for({task for connection in self._all for task in connection.close()})


async def _wait_for(attempts: Collection[asyncio.Task[Any]]) -> None:
    if attempts:
        _, late = await asyncio.wait(attempts, timeout=CLOSE_TIMEOUT)
        for task in late:
            task.cancel()


async def connect(target: Target, conninfo: str) -> ServerConnection:
    """A connection in autocommit that prepares each statement at its first use, receives binary values, and has the
    settings `PINNED`. It has a server session of its own, also through a pooler (`driver.poolers`).

    Raises:
        InvalidUrl: the URL has an option that libpq cannot use.
        ConnectionLost, AccessDenied, PoolerRefused: there is no connection.
        SchemaMismatch: the database has an encoding, or a setting, with which this code cannot work.
        ReadOnly: a standby through a pooler.
    """
    connection = await open_connection(target, conninfo)
    connection.prepared_max = None
    try:
        check_encoding(connection.info.parameter_status("server_encoding"), target)
        known = connection.info.backend_pid
        (name, kept), (names, values) = MARKER, ([*PINNED], [*PINNED.values()])
        params = {"names": names, "values": values, "marker": name, "kept": kept, "pid": known}
        ((pid, found, _),) = await (await connection.execute(PIN, params, prepare=False)).fetchall()
        connection.server_pid = pid
        if pid != known or found != kept:
            await use_session(connection, target, conninfo)
    except psycopg.errors.InsufficientPrivilege as error:
        connection.pgconn.finish()
        raise unchangeable(error, target) from None
    except BaseException:
        connection.pgconn.finish()
        raise
    return connection


async def connect_shared(target: Target, conninfo: str) -> ServerConnection:
    """A connection through a pooler that shares the sessions of the server, for a `SharedProtocol`.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied, PoolerRefused, SchemaMismatch: as `connect`.
    """
    connection = await open_shared(target, conninfo)
    try:
        check_encoding(connection.info.parameter_status("server_encoding"), target)
    except BaseException:
        connection.pgconn.finish()
        raise
    return connection


async def _connect_checked(target: Target, conninfo: str, check: Check | None, sharing: Sharing) -> ServerConnection:
    if sharing == "known":
        return await connect_shared(target, conninfo)
    try:
        connection = await connect(target, conninfo)
    except PoolerRefused:
        if sharing == "refused":
            raise
        return await connect_shared(target, conninfo)
    if check is not None:
        try:
            await check(connection)
        except BaseException:
            connection.pgconn.finish()
            raise
    return connection
