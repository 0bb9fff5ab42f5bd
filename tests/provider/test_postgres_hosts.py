"""Several hosts in the URL, of which some are silent, refuse, or are standbys."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from affinity.errors import ConnectionLost
from affinity.provider.postgres.driver import attempts
from affinity.provider.postgres.driver.attempts import HOST_PATIENCE
from affinity.provider.postgres.driver.connections import Connection
from affinity.provider.postgres.driver.target import HOT, Target
from tests.servers.base import free_port
from tests.servers.proxy import Proxy, proxy

pytestmark = [pytest.mark.anyio, pytest.mark.driver]

SOON: Final = HOST_PATIENCE + 3.0
"""Seconds within which there is a connection: less than libpq waits for one host, on a busy machine too."""


@pytest.fixture(params=["new"])
def postgres_age(request: pytest.FixtureRequest) -> str:
    """What is tested is on this side of the wire."""
    age: str = request.param
    return age


@pytest.fixture
def silent() -> Iterator[str]:
    """A host that takes connections and never says a word, as a machine that stands still does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refusing() -> str:
    """A host without a server."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def two(postgres_database: str) -> Iterator[tuple[Proxy, Proxy]]:
    """Two ways to one server, which count connections."""
    with ExitStack() as stack:
        yield stack.enter_context(proxy(postgres_database)), stack.enter_context(proxy(postgres_database))


def place(url: str) -> str:
    """Host and port."""
    return urlsplit(url).netloc.rpartition("@")[2]


def several(database: str, hosts: Sequence[str], options: str = "target_session_attrs=read-write") -> str:
    """The URL of the database on these hosts."""
    return f"postgresql://postgres@{','.join(hosts)}{urlsplit(database).path}?{options}"


async def connect(url: str) -> float:
    """Connect and ask; the seconds that it takes."""
    begun = time.monotonic()
    connection = Connection(Target.parse(url), "affinity hosts", HOT)
    try:
        assert await connection.run("SELECT 1") == [(1,)]
    finally:
        await connection.aclose()
    return time.monotonic() - begun


@pytest.mark.parametrize("attributes", ["any", "read-write", "prefer-standby"])
async def test_a_silent_host_delays_little(postgres_database: str, silent: str, attributes: str) -> None:
    """For which libpq would wait for 10 s, at each connection: longer than many a lease."""
    hosts = [silent, place(postgres_database)]
    assert await connect(several(postgres_database, hosts, f"target_session_attrs={attributes}")) < SOON


async def test_a_silent_address_of_a_name_delays_little(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with two addresses is as two hosts."""
    url = urlsplit(postgres_database)
    with socket.create_server(("127.0.0.2", url.port or 0)):
        loop = asyncio.get_running_loop()
        resolve = loop.getaddrinfo

        async def both(host: Any, *arguments: Any, **options: Any) -> Any:
            if host != "database.example":
                return await resolve(host, *arguments, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in ("127.0.0.2", "127.0.0.1")]

        monkeypatch.setattr(type(loop), "getaddrinfo", lambda _, *rest, **options: both(*rest, **options))
        assert await connect(several(postgres_database, [f"database.example:{url.port}"])) < SOON


async def test_the_next_host_is_tried_immediately_when_one_refuses(
    postgres_database: str, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "HOST_PATIENCE", 60.0)
    assert await connect(several(postgres_database, [refusing, place(postgres_database)])) < SOON


async def test_the_first_host_that_answers_is_taken(postgres_database: str, two: tuple[Proxy, Proxy]) -> None:
    one, other = two
    url = several(postgres_database, [place(one.url), place(other.url)])
    for _ in range(3):
        await connect(url)
    assert (len(one.lines), len(other.lines)) == (3, 0)


async def test_the_host_of_the_last_connection_is_tried_first(
    postgres_database: str, two: tuple[Proxy, Proxy], refusing: str
) -> None:
    """An old primary that comes back takes connections until it knows of its successor."""
    one, other = two
    hosts = [place(one.url), place(other.url)]
    one.loses_new = True
    await connect(several(postgres_database, hosts))
    one.loses_new = False
    lines = len(one.lines)
    await connect(several(postgres_database, hosts))
    assert len(one.lines) == lines
    await connect(several(postgres_database, hosts, "target_session_attrs=any"))
    assert len(one.lines) == lines + 1


async def test_a_random_host_is_taken_where_the_url_says_so(
    postgres_database: str, two: tuple[Proxy, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    monkeypatch.setattr(random, "shuffle", list.reverse)
    await connect(several(postgres_database, [place(one.url), place(other.url)], "load_balance_hosts=random"))
    assert (len(one.lines), len(other.lines)) == (0, 1)


async def test_no_host_answers(postgres_database: str, silent: str, refusing: str) -> None:
    """The error names all hosts; the silent one is waited for no longer than the URL says."""
    url = several(postgres_database, [silent, refusing], "connect_timeout=2")
    with pytest.raises(ConnectionLost) as caught:
        await connect(url)
    assert all(each in str(caught.value) for each in (silent, refusing))


async def test_a_call_that_is_given_up_leaves_no_attempt(silent: str) -> None:
    """Of neither host."""
    before = asyncio.all_tasks()
    call = asyncio.create_task(connect(several("/app", [silent, silent])))
    await asyncio.sleep(2 * HOST_PATIENCE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert asyncio.all_tasks() == before


async def test_hosts_and_ports_of_other_numbers_are_libpq_s_to_refuse() -> None:
    """Nothing is guessed."""
    with pytest.raises(ConnectionLost, match="port"):
        await connect("postgresql:///app?host=a,b,c&port=1,2")
