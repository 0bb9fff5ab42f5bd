"""Checks of a server, its database and a role.

`check_server` asks on a connection of a worker. `check_target`, for `affinity check`, connects by itself: also where a
worker is refused, and it looks for more, such as whether notifications arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, LiteralString

import psycopg
from psycopg import AsyncConnection

from affinity.errors import AffinityError, ConnectionLost, PoolerRefused, ProviderError
from affinity.limits import MAX_CLOCK_SKEW
from affinity.provider.checks import HOW_TO_CONNECT, CheckResult, check_schema, error, ok, warning
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.errors import WITHOUT_POOLER, WRONG_ENCODING, translate
from affinity.provider.postgres.driver.poolers import open_another, open_connection, receives, settle
from affinity.provider.postgres.driver.target import COLD, MARKER, Target
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.migration import RunStatement, inspect_connected
from affinity.provider.postgres.rights import ROLE_KINDS, privileges_of
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "checks.sql")

_TESTED: Final = range(15, 19)
"""The major versions of PostgreSQL that affinity is tested on."""

_WORKER_CONNECTIONS: Final = 5
"""Connections of a worker, with the one that it needs for a moment when it starts."""

_NAMES: Final = 5
"""Missing rights that a result names."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """A row of the statement `facts`, and what else was asked."""

    version_number: int
    version: str
    encoding: str
    is_standby: bool
    synchronous_commit: str
    has_synchronous_standby: bool
    connections: int
    connected: int
    has_autovacuum: bool
    autovacuum_naptime: int
    isolation: str
    role: str
    is_superuser: bool
    has_schema: bool
    is_owner: bool
    may_create: bool
    shows_timeline: bool
    keeps_settings: bool
    pid: int
    clock: float
    skew: float = 0.0
    """Seconds by which the server's clock is ahead of this machine's."""
    known_pid: int | None = None
    """Process id of the server session, as the connection knows it."""
    missing: Sequence[tuple[str, str, str]] | None = None
    """Kind of role, object, privilege; None: not asked."""
    notifies: bool | None = None
    """Whether a notification arrives; None: not asked."""
    schema: CheckResult | None = None

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler is between the connection and the server."""
        return not self.keeps_settings or self.known_pid not in (None, self.pid)


async def check_server(ask: RunStatement, target: Target) -> list[CheckResult]:
    """Look at a server over an open connection of a worker. To one that refuses the question there is a warning: a
    worker starts all the same.

    Raises:
        ConnectionLost: there is no connection any more.
    """
    try:
        return _results(await _ask_facts(ask, target))
    except ConnectionLost:
        raise
    except ProviderError as caught:
        return [warning("catalogues", f"what the server is cannot be asked: {caught}", "ask with affinity check")]


async def check_target(target: Target) -> list[CheckResult]:
    """Look at a server over connections of our own, without a change of it; and whether the direct URL and the other
    one lead to one database.
    """
    results = await _check_sessions(target.with_sessions)
    return results if target.direct is None else [*results, await _check_direct(target, target.direct)]


async def _check_sessions(target: Target) -> list[CheckResult]:
    async with AsyncExitStack() as stack:
        try:
            conninfo = target.connect("affinity check", COLD)
            connection = await stack.enter_async_context(await open_connection(target, conninfo))
            other = await stack.enter_async_context(await open_another(connection, target, conninfo))
            facts = await _look(connection, other, target)
        except ProviderError as caught:
            return [error("connection", str(caught), HOW_TO_CONNECT)]
        except psycopg.Error as caught:
            return [error("connection", str(translate(caught, target)), HOW_TO_CONNECT)]
    return [ok("connection", target.place(connection.pgconn)), *_results(facts)]


async def _check_direct(target: Target, direct: Target) -> CheckResult:
    found = []
    for each in (target, direct):
        async with aclosing(Connections(each, "affinity check", one_connection=True, needs_sessions=False)) as links:
            try:
                found.append(await links.misc.run_once(_SQL["place"]))
            except ProviderError as caught:
                return error("direct", str(caught), HOW_TO_CONNECT)
    if found[0] != found[1]:
        return error(
            "direct",
            "the URL and its direct URL lead to different databases, or servers",
            "name one database, on the primary, in both",
        )
    return ok("direct", "clients go through the pooler, and workers past it")


def _results(facts: _Facts) -> list[CheckResult]:
    return [result for check in CHECKS if (result := check(facts)) is not None]


def _check_version(facts: _Facts) -> CheckResult:
    major, found = facts.version_number // 10_000, f"PostgreSQL {facts.version}"
    if major < _TESTED.start:
        return error("version", found, f"use PostgreSQL {_TESTED.start} or later")
    if major not in _TESTED:
        tested = f"{_TESTED.start} to {_TESTED[-1]}"
        remedy = f"affinity is tested on PostgreSQL {tested}: use one of these, or a later affinity"
        return warning("version", f"{found} is newer than this affinity", remedy)
    return ok("version", found)


def _check_pooler(facts: _Facts) -> CheckResult | None:
    if facts.notifies is None:
        return None
    if not facts.is_pooled:
        return ok("pooler", "none")
    if facts.notifies:
        return ok("pooler", "in between, in session mode: each connection has a server session of its own")
    return error(
        "pooler",
        "a pooler in between shares the sessions of the server: clients work through it, workers do not",
        WITHOUT_POOLER,
    )


def _check_primary(facts: _Facts) -> CheckResult:
    if facts.is_standby:
        return error(
            "primary",
            "the server is a standby: clients can read from it, and workers refuse it",
            "name the primary, or all servers and target_session_attrs=read-write",
        )
    return ok("primary", "yes")


def _check_role(facts: _Facts) -> CheckResult | None:
    if facts.missing is None:
        return None
    name = facts.role
    if facts.is_superuser:
        return ok("role", f"{name} is a superuser")
    if facts.has_schema:
        return ok("role", f"{name} owns the schema") if facts.is_owner else _check_granted(name, facts.missing)
    if facts.may_create:
        return ok("role", f"{name} may create the schema")
    remedy = f"GRANT CREATE ON DATABASE … TO {name}; or migrate as another role"
    return error("role", f"{name} may not create the schema", remedy)


def _check_granted(role: str, missing: Sequence[tuple[str, str, str]]) -> CheckResult:
    grant = f"affinity migrate --grant-worker {role}, as the owner of the schema"
    lacking = {kind for kind, *_ in missing}
    for kind in ("worker", "client", "reader", "scaler"):
        if kind not in lacking:
            workers = "" if kind == "worker" else f"; a worker needs {grant}"
            return ok("role", f"{role} has the rights of a {kind}{workers}")
    rights = [f"{privilege} on {name or 'the schema'}" for kind, name, privilege in missing if kind == "worker"]
    more = f" and {len(rights) - _NAMES} more" if len(rights) > _NAMES else ""
    return error("role", f"{role} lacks rights of a worker: {', '.join(rights[:_NAMES])}{more}", grant)


def _check_schema(facts: _Facts) -> CheckResult | None:
    return facts.schema


def _check_encoding(facts: _Facts) -> CheckResult:
    if facts.encoding != "UTF8":
        return error("encoding", f"{facts.encoding}, and affinity needs UTF8", WRONG_ENCODING)
    return ok("encoding", "UTF8")


def _check_notifications(facts: _Facts) -> CheckResult | None:
    if facts.notifies is None:
        return None
    if not facts.notifies:
        return warning(
            "listen",
            "no notification arrives: workers and clients find what others have done by asking again",
            "connect to the primary itself, on which LISTEN works",
        )
    return ok("listen", "notifications arrive")


def _check_timeline(facts: _Facts) -> CheckResult:
    if facts.shows_timeline:
        return ok("timeline", "visible")
    return warning(
        "timeline",
        "the server hides its timeline from the owner of the schema: a failover that loses commits is not noticed",
        "let the owner execute pg_control_system, pg_current_wal_lsn, pg_current_wal_flush_lsn and pg_walfile_name, or"
        " stop all workers before a failover or a restore",
    )


def _check_clock(facts: _Facts) -> CheckResult:
    away = f"{abs(facts.skew):.1f} s {'ahead of' if facts.skew > 0 else 'behind'} this machine's"
    if abs(facts.skew) > MAX_CLOCK_SKEW:
        return warning(
            "clock",
            f"the server's clock is {away}: leases and timers go by the server's, times in logs by this one's",
            "synchronise the clocks of both machines",
        )
    return ok("clock", away if abs(facts.skew) > 0.1 else "as this machine's")  # noqa: PLR2004 -- shown digit


def _check_durability(facts: _Facts) -> CheckResult:
    if facts.synchronous_commit == "off":
        return warning(
            "durability",
            "synchronous_commit is off: a crash of the server can lose results that it has acknowledged",
            "set it to on for the server, the database and the role",
        )
    standby = "a synchronous standby" if facts.has_synchronous_standby else "no synchronous standby"
    return ok("durability", f"synchronous_commit is {facts.synchronous_commit}; {standby}")


def _check_connections(facts: _Facts) -> CheckResult:
    room = max(0, facts.connections - facts.connected)
    found = f"{facts.connected} of {facts.connections} in use: room for {room // _WORKER_CONNECTIONS} workers"
    if room < _WORKER_CONNECTIONS:
        return warning(
            "connections",
            f"{found}, each of which needs {_WORKER_CONNECTIONS}",
            "raise max_connections, or the limit of the role or the database, or use fewer processes",
        )
    return ok("connections", found)


def _check_vacuum(facts: _Facts) -> CheckResult:
    if not facts.has_autovacuum:
        return warning(
            "vacuum",
            "autovacuum is off: tables grow, and every call gets slower",
            "set autovacuum and track_counts to on",
        )
    return ok("vacuum", f"autovacuum looks every {facts.autovacuum_naptime} s")


def _check_isolation(facts: _Facts) -> CheckResult:
    ours = "" if facts.isolation == "read committed" else " by default; connections of affinity set read committed"
    return ok("isolation", f"{facts.isolation}{ours}")


CHECKS: Final[tuple[Callable[[_Facts], CheckResult | None], ...]] = (
    _check_version,
    _check_pooler,
    _check_primary,
    _check_role,
    _check_schema,
    _check_encoding,
    _check_notifications,
    _check_timeline,
    _check_clock,
    _check_durability,
    _check_connections,
    _check_vacuum,
    _check_isolation,
)
"""All checks, in the order in which they are shown."""


# -- asking


async def _ask_facts(ask: RunStatement, target: Target) -> _Facts:
    marker, kept = MARKER
    before = time.time()
    (row,) = await ask(_SQL["facts"], {"schema": target.schema, "marker": marker, "kept": kept})
    return replace(_Facts(*row), skew=row[-1] - (before + time.time()) / 2)


async def _look(connection: AsyncConnection[Row], other: AsyncConnection[Row], target: Target) -> _Facts:
    ask = partial(_ask, connection)
    facts = await _ask_facts(ask, target)
    facts = replace(
        facts, known_pid=connection.info.backend_pid, notifies=await _notifies(connection, other, facts.pid)
    )
    if facts.is_pooled and facts.notifies:
        await settle(connection, target, target.connect("affinity check", COLD))
    return replace(
        facts,
        missing=await _ask_missing(ask, target, facts.version_number),
        schema=await _inspect(connection, target, facts),
    )


async def _ask_missing(ask: RunStatement, target: Target, server_version: int) -> list[tuple[str, str, str]]:
    wanted = [(kind, *each) for kind in ROLE_KINDS for each in privileges_of(kind, server_version)]
    columns = map(list, zip(*wanted, strict=True))
    names = ("role_kinds", "kinds", "names", "privileges")
    rows = await ask(_SQL["missing"], {"schema": target.schema, **dict(zip(names, columns, strict=True))})
    return [(kind, name, privilege) for kind, name, privilege in rows]


async def _notifies(connection: AsyncConnection[Row], other: AsyncConnection[Row], pid: int) -> bool:
    try:
        return await receives(connection, other, pid)
    except psycopg.Error:
        if connection.broken or other.broken:
            raise
        return False


async def _inspect(connection: AsyncConnection[Row], target: Target, facts: _Facts) -> CheckResult | None:
    """The state of the schema. None: without its settings the connection may see the tables of another one, or the
    role may not look, of which `_check_role` speaks.
    """
    try:
        report = await inspect_connected(connection, target)
    except (PoolerRefused, psycopg.errors.InsufficientPrivilege):
        return None
    except AffinityError as caught:
        return error("schema", str(caught), None)
    except psycopg.Error as caught:
        return error("schema", str(translate(caught, target)), None)
    return check_schema(report, may_migrate=facts.is_owner or (not facts.has_schema and facts.may_create))


async def _ask(connection: AsyncConnection[Row], statement: LiteralString, params: Params | None = None) -> list[Row]:
    return await (await connection.execute(statement, params, prepare=False)).fetchall()
