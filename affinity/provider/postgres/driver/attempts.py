"""Attempts to connect: when, to which host, and when a second one beside the first."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from affinity.provider.postgres.driver.wire import ServerConnection

FIRST_PAUSE: Final = 0.1
"""Longest time in seconds from the loss of a connection to the first attempt to connect again."""

LONGEST_PAUSE: Final = 1.0
"""Longest time in seconds between two attempts to connect."""

HOST_PATIENCE: Final = 0.5
"""Seconds without an answer of a host after which the next one is tried beside it. A machine that is off, or stands
still, refuses nothing; and a lease may be shorter than the time for which libpq waits for one host.
"""

_FIT: Final = {"read-write", "primary"}
"""Values of target_session_attrs with which a host that has become a standby is passed over."""

_LAST: Final[dict[str, str]] = {}
"""The host and address that this process connected to last, by the hosts of the URL."""


class Attempts:
    """Times at which the connections of one provider try to connect.

    The first time immediately; after a loss or a failure, after a random time. So the connections of many workers do
    not come back at the same moment.
    """

    def __init__(self) -> None:
        self._failures: int | None = None

    def pause(self) -> float:
        """Seconds to wait before an attempt."""
        if self._failures is None:
            return 0.0
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 16))
        return random.uniform(longest / 2 if self._failures else 0.0, longest)  # noqa: S311 -- jitter, not a secret

    def failed(self) -> None:
        """An attempt failed."""
        self._failures = (self._failures or 0) + 1

    def lost(self) -> None:
        """A connection broke."""
        self._failures = self._failures or 0

    def succeeded(self) -> None:
        """Note that a connection was made."""
        self._failures = None


async def first_connection(begin: Callable[[], asyncio.Task[ServerConnection]], patience: float) -> ServerConnection:
    """A new connection, or the error when no attempt connects. A connection may die before its first answer without a
    word: after ``patience`` seconds a second attempt begins beside the first, and the one that connects first counts.
    """
    attempts = [begin()]
    try:
        done, _ = await asyncio.wait(attempts, timeout=patience)
        if not done:
            attempts.append(begin())
        while True:
            done, _ = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                attempts.remove(ended)
                if not attempts or _has_connected(ended):
                    return ended.result()
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_close_unused)


def _has_connected(attempt: asyncio.Task[ServerConnection]) -> bool:
    return not attempt.cancelled() and attempt.exception() is None


def _close_unused(attempt: asyncio.Task[ServerConnection]) -> None:
    """Close the connection of an attempt that is not needed any more."""
    if _has_connected(attempt):
        attempt.result().pgconn.finish()


async def connect_to_a_host(conninfo: str, **options: Any) -> ServerConnection:
    """A new connection to the first host, in the order of the URL, that is fit and answers. Behind a host that fails,
    the next one is tried immediately; beside one that is silent, after `HOST_PATIENCE`.

    Where a primary is asked for, the host of the last connection of this process is tried before the others: beside the
    primary that a failover has made, the old one may take connections too, until it knows.

    Raises:
        psycopg.Error: no host is fit; of the last one, with the words of each.
    """
    params = conninfo_to_dict(conninfo)
    hosts = await _each_host(params)
    if len(hosts) == 1:
        return await ServerConnection.connect(conninfo, **options)
    name = ",".join(map(_place, hosts))
    if params.get("target_session_attrs") in _FIT:
        hosts.sort(key=lambda each: _place(each) != _LAST.get(name))
    number, connection = await _first_fit([make_conninfo("", **each) for each in hosts], options)
    _LAST[name] = _place(hosts[number])
    return connection


async def _first_fit(urls: Sequence[str], options: dict[str, Any]) -> tuple[int, ServerConnection]:
    """The number of the URL, and its connection."""
    tried: list[asyncio.Task[ServerConnection]] = []
    running: set[asyncio.Task[ServerConnection]] = set()
    found: asyncio.Task[ServerConnection] | None = None
    try:
        while running or len(tried) < len(urls):
            if len(tried) < len(urls):
                tried.append(asyncio.create_task(ServerConnection.connect(urls[len(tried)], **options)))
                running.add(tried[-1])
            patience = HOST_PATIENCE if len(tried) < len(urls) else None
            done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            found = next(filter(_has_connected, done), None)
            if found is not None:
                return tried.index(found), found.result()
    finally:
        unused = [each for each in tried if each is not found]
        for each in unused:
            each.cancel()
            each.add_done_callback(_close_unused)
        if running:
            await asyncio.wait(unused)
    errors = [each.exception() for each in tried]
    last = errors[-1]
    assert last is not None
    if isinstance(last, psycopg.Error):
        last = type(last)("\n".join(dict.fromkeys(map(str, errors))), pgconn=last.pgconn)
    raise last


async def _each_host(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Options for each host, and for each address of a host, in the order in which they are tried. One: libpq's to
    refuse, or to find in the environment.
    """
    hosts, addresses, ports = (str(params.get(key) or "").split(",") for key in ("host", "hostaddr", "port"))
    number = max(len(hosts), len(addresses))
    if any(len(each) not in (1, number) for each in (hosts, addresses, ports)) or not any(hosts):
        return [dict(params)]
    hosts, addresses, ports = (each * number if len(each) == 1 else each for each in (hosts, addresses, ports))
    found = [
        {**params, "host": host or None, "hostaddr": resolved or None, "port": port or None}
        for host, address, port in zip(hosts, addresses, ports, strict=True)
        for resolved in ([address] if address else await _addresses(host))
    ]
    if params.get("load_balance_hosts") == "random":
        random.shuffle(found)
    if params.get("target_session_attrs") == "prefer-standby":
        found = [*({**each, "target_session_attrs": "standby"} for each in found), *found]
    return found


def _place(host: Mapping[str, Any]) -> str:
    return " ".join(str(host.get(key) or "") for key in ("host", "hostaddr", "port"))


async def _addresses(host: str) -> list[str]:
    """Of a name; one that has none is for libpq to refuse."""
    if not host or host.startswith("/"):
        return [""]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return [""]
    return [*dict.fromkeys(str(each[4][0]) for each in found)]
