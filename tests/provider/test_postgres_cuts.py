"""PostgreSQL: requests that arrive in part only, cut behind any byte."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
import pytest

from affinity.conversation.store.contract import journals_of
from affinity.provider.contract import Hint, OrchestrationItem
from affinity.provider.postgres import PostgresProvider, sweep
from affinity_conformance.providers.builders import message_ids, turn
from affinity_conformance.providers.conversation.driver import new_input
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import (
    administrator,
    hot_verbs,
    opened,
    registered,
    session_verbs,
    some_sessions,
    some_work,
)
from tests.servers.proxy import PATIENCE, ProxiedConnection, proxy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SEGMENT: Final = 1448
"""Bytes of a TCP segment in most networks."""

_NAME: Final = re.compile(rb"affinity_\d+")


def messages(sent: bytes) -> list[tuple[bytes, int]]:
    """The types of the protocol's messages, each with where it ends; the last one may be incomplete."""
    found, at = [], 0
    while at + 5 <= len(sent):
        kind = sent[at : at + 1]
        at += 1 + struct.unpack_from("!I", sent, at + 1)[0]
        found.append((kind, at))
    return found


def complete(sent: bytes) -> list[bytes]:
    """The types of the messages that have arrived wholly."""
    return [kind for kind, end in messages(sent) if end <= len(sent)]


@dataclass
class Requests:
    """Gathers what clients send into whole requests, and tries each out before it goes on."""

    try_out: Callable[[ProxiedConnection, list[bytes], bytes], None]
    _parts: defaultdict[ProxiedConnection, bytes] = field(default_factory=lambda: defaultdict(bytes))
    _prepared: defaultdict[ProxiedConnection, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    _one_trial: threading.Lock = field(default_factory=threading.Lock)
    errors: list[BaseException] = field(default_factory=list)

    async def through(self, provider: PostgresProvider, verbs: list[Callable[[], Awaitable[object]]]) -> None:
        """Call them, and raise what was found, also of the hints behind them."""
        for verb in verbs:
            await verb()
            await _until_hints_have_ended(provider)
            for error in self.errors:
                raise error

    def inspect(self, line: ProxiedConnection, data: bytes) -> bytes:
        """Forward whole requests, each for itself. A hint is behind another request."""
        sent = self._parts.pop(line, b"") + data
        ends = [end for kind, end in messages(sent) if kind in (b"S", b"Q", b"X") and end <= len(sent)]
        for start, end in pairwise([0, *ends]):
            self._inspect(line, sent[start:end])
        whole = ends[-1] if ends else 0
        if whole < len(sent):
            self._parts[line] = sent[whole:]
        return sent[:whole]

    def _inspect(self, line: ProxiedConnection, sent: bytes) -> None:
        known = self._prepared[line]
        if sent[:1] != b"X" and not self.errors:
            try:
                with self._one_trial:  # the call after a hint does not wait for it, and a trial ends all that is open
                    self.try_out(line, [known[name] for name in _NAME.findall(sent) if name in known], sent)
            except BaseException as error:
                self.errors.append(error)
        if sent[:1] == b"P" and (name := _NAME.search(sent)):  # else it is of one use only
            known[name[0]] = sent


class RawConnection:
    """A connection that sends what a test gives, byte by byte, and no more."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pid = 0

    def start(self, startup: bytes) -> None:
        """Begin a session. Apart, since it may fail: then there is something to close."""
        self.pid = struct.unpack("!I", self.ask(startup)[b"K"][:4])[0]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, request: bytes) -> dict[bytes, bytes]:
        """The messages of the reply by their types."""
        self.send(request)
        reply = {}
        while b"Z" not in reply:
            kind, length = struct.unpack("!cI", self._receive(5))
            reply[kind] = self._receive(length - 4)
        assert b"E" not in reply, reply
        return reply

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the server has closed the connection"
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


_ONE_USE = [b"P", b"B", b"D", b"E", b"S"]


@dataclass
class Trial:
    """Sends every beginning of a request that a network may cut it to, and looks what the server makes of it."""

    address: tuple[str, int]
    admin: psycopg.Connection[Any]
    sweep: Callable[[], None]
    held: int = 0  # beginnings with which a transaction began

    def __call__(self, line: ProxiedConnection, prepared: list[bytes], request: bytes) -> None:
        kinds = complete(request)
        # What has locked rows is followed by nothing but the five bytes that end its transaction.
        assert b"E" not in kinds or kinds[-2:] == [b"E", b"S"], kinds
        # The first statement of a connection is used once: it is prepared and executed in one message.
        assert kinds.count(b"E") + kinds.count(b"Q") + kinds.count(b"P") == 1 or kinds == _ONE_USE, kinds
        ends = {end for _, end in messages(request)} | set(range(SEGMENT, len(request), SEGMENT))
        for size in sorted(ends - {len(request)}):
            self._cut(line, prepared, request[:size])
        with self._client(line, prepared) as client:
            client.send(request[:-1])
        self._until_gone(client.pid)

    def _cut(self, line: ProxiedConnection, prepared: list[bytes], beginning: bytes) -> None:
        with self._client(line, prepared) as client:
            client.send(beginning)
            begun = complete(beginning)
            if not begun:  # the server waits for the rest of the one message
                assert not self._is_open(client.pid)
                return
            self.held += 1
            self._until(partial(self._is_open, client.pid))
            if b"E" not in begun:
                assert not self._has_written(client.pid)
            self.sweep()
            self._until_gone(client.pid)

    @contextmanager
    def _client(self, line: ProxiedConnection, prepared: list[bytes]) -> Iterator[RawConnection]:
        with closing(RawConnection(self.address)) as client:
            client.start(line.startup)
            for each in prepared:
                client.ask(each)
            yield client

    def _is_open(self, pid: int) -> bool:
        found = self._activity(pid)
        return found is not None and found[0]

    def _has_written(self, pid: int) -> bool:
        found = self._activity(pid)
        return found is not None and found[1]

    def _activity(self, pid: int) -> Any:
        question = """SELECT wait_event = 'ClientRead' AND xact_start IS NOT NULL, backend_xid IS NOT NULL
            FROM pg_stat_activity WHERE pid = %s"""
        return self.admin.execute(question, [pid]).fetchone()

    def _until_gone(self, pid: int) -> None:
        self._until(lambda: self._activity(pid) is None)

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE / 2  # a call waits meanwhile
        while not holds():
            assert time.monotonic() < deadline, "the transaction is not as it should be"
            self.admin.execute("SELECT pg_sleep(0.002)")


@pytest.mark.slow
async def test_no_transaction_stays_open_whichever_byte_is_the_last_to_arrive(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of each verb is cut at every segment and after every message. Only the last few bytes matter, and a
    connection that does not send them is ended by the next sweep of any worker.
    """
    monkeypatch.setattr(sweep, "HALF_SENT", 0.0)
    loop = asyncio.get_running_loop()
    where = urlsplit(postgres_migrated)
    with proxy(postgres_migrated) as network, administrator(postgres_migrated) as admin:
        # A call waits for its trials, silent: it is not to be taken for lost, and repeated.
        patient = await PostgresProvider.open(network.url, probe_after=PATIENCE)
        async with aclosing(patient) as provider, opened(postgres_migrated) as sweeper:
            peer = await registered(provider)
            trial = Trial((where.hostname or "", where.port or 0), admin, partial(_sweep, sweeper, loop))
            requests = Requests(trial)
            network.inspect = requests.inspect
            await requests.through(provider, hot_verbs(peer, await some_work(peer)))
            await requests.through(provider, session_verbs(peer, await some_sessions(peer)))
            await requests.through(provider, verbs_with_hints(peer, await peer.own("n")))
    assert trial.held


def verbs_with_hints(peer: Peer, at: OrchestrationItem) -> list[Callable[[], Awaitable[object]]]:
    """A hint follows each of them, twice, since it is prepared the first time."""

    async def append() -> None:
        await journals_of(peer.provider).append_journal([new_input()], notify={"a": Hint()})

    async def commit(event_count: int) -> None:
        step = turn(replace(at, event_count=event_count), consumed=message_ids(at))
        (result,) = await peer.commit(step, notify=["s"])
        assert result.committed

    return [partial(commit, 0), partial(commit, 1), append, append]  # on a busy machine an append takes a minute


async def _until_hints_have_ended(provider: PostgresProvider) -> None:
    """A verb returns before the hint behind it, whose trial would otherwise go on while all is closed."""
    while any(each._current is not None for each in provider.connections._all):
        await asyncio.sleep(0.001)


def _sweep(provider: PostgresProvider, loop: asyncio.AbstractEventLoop) -> None:
    verb: Awaitable[Any] = provider.sweep(interval=0, session_retention=1000, worker_retention=1000)
    asyncio.run_coroutine_threadsafe(verb, loop).result(PATIENCE)  # type: ignore[arg-type]
