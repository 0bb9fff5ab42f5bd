"""The registry of providers by URL scheme, and the calls that take a URL.

The providers of SQLite and PostgreSQL are built in. Another one is the entry point in the group `GROUP` that has the
name of the scheme, and leads to a `Backend`. A provider is imported when a URL asks for it: an embedded user needs no
libpq. Metadata of distributions is read only for a scheme that is not built in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Final

from affinity.errors import InvalidUrl, ProviderError
from affinity.limits import PROBE_AFTER
from affinity.provider.backend import Backend, CheckingBackend, OpenOptions
from affinity.provider.checks import HOW_TO_CONNECT, CheckResult, check_schema, error
from affinity.provider.contract import Provider
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.timeline import Timeline
from affinity.provider.urls import scheme_of

GROUP: Final = "affinity.providers"
"""The group of entry points by which distributions register providers."""


def _sqlite() -> Backend:
    from affinity.provider.sqlite import backend

    return backend


def _postgres() -> Backend:
    from affinity.provider.postgres import backend

    return backend


_BUILT_IN: Final[Mapping[str, Callable[[], Backend]]] = {
    "postgres": _postgres,
    "postgresql": _postgres,
    "sqlite": _sqlite,
}


def find_backend(url: str) -> Backend:
    """Return what serves URLs of this scheme.

    Raises:
        InvalidUrl: the URL is malformed, or no installed distribution registers its scheme, or what one registers
            cannot be used.
    """
    scheme = scheme_of(url)
    built_in = _BUILT_IN.get(scheme)
    return _load(scheme) if built_in is None else built_in()


@cache
def _load(scheme: str) -> Backend:
    """Return the backend that a distribution registers."""
    from importlib.metadata import entry_points  # takes longer than opening an SQLite file

    registered = entry_points(group=GROUP)
    named = [point for point in registered if point.name == scheme]
    if not named:
        # Not the scheme itself: without its beginning, a URL has a user there.
        known = ", ".join(sorted({*_BUILT_IN, *(point.name for point in registered)}))
        raise InvalidUrl(
            "no provider serves the scheme of this URL: use sqlite:///path or postgresql://user@host/database, or"
            f" install a package that registers the scheme; known schemes: {known}"
        )
    if len(named) > 1:
        packages = ", ".join(sorted(point.dist.name if point.dist else point.value for point in named))
        raise InvalidUrl(f"several packages register a provider for {scheme}: uninstall all but one of {packages}")
    try:
        backend = named[0].load()
    except Exception as error:
        raise InvalidUrl(f"the provider for {scheme} ({named[0].value}) cannot be imported: {error!r}") from error
    if not isinstance(backend, Backend):
        raise InvalidUrl(f"the provider for {scheme} ({named[0].value}) is not an affinity.provider.Backend")
    return backend


async def open_provider(
    url: str,
    *,
    application_name: str = "affinity",
    timeline: Timeline | None = None,
    one_connection: bool = False,
    as_client: bool = False,
    probe_after: float = PROBE_AFTER,
    log_warnings: bool = False,
) -> Provider:
    """Connect to the database of ``url``; its schema must be up to date (`migrate`).

    Args:
        url: ``sqlite:///path``, or ``postgresql://…``, where ``?schema=name`` chooses another schema than ``affinity``;
            or a URL of another scheme that an installed package registers. With ``direct=`` and a quoted URL the first
            one leads to a pooler that shares the sessions of PostgreSQL: workers go past it, clients only to listen.
        application_name: shown in PostgreSQL's activity view.
        timeline: of a worker: from now on the provider refuses any other database, or line of its history, than the one
            that this names, or that it finds first.
        one_connection: all calls share one connection to PostgreSQL, and wait for each other there. By default there
            are up to three, for the loop of a worker.
        as_client: PostgreSQL checks that what is started, sent and appended is what a client may say. That needs the
            rights of a client; without it these calls need the rights of a worker.
        probe_after: seconds without a byte from PostgreSQL after which a short call is asked about on a new connection.
            If the server answers there, and does not work on the call, the call raises `ConnectionLost`.
        log_warnings: log the warnings of `check_database`, as a worker does that starts.

    Raises:
        DatabaseChanged: the database has another timeline than ``timeline``.
        InvalidUrl: no provider for the URL, or it is malformed.
        ConnectionLost: the database cannot be reached.
        AccessDenied: it refuses the credentials.
        PoolerRefused: a worker reaches it through a connection pooler that is not in session mode.
        SchemaMismatch: it was never migrated, or is too old or too new for this code; or its encoding is not UTF8.
    """
    options = OpenOptions(
        application_name=application_name,
        timeline=timeline,
        one_connection=one_connection,
        as_client=as_client,
        probe_after=probe_after,
        log_warnings=log_warnings,
    )
    return await find_backend(url).open(url, options)


async def migrate(url: str, progress: Progress = log_progress) -> tuple[int, int]:
    """Bring the schema up to date, under a lock; safe while workers run, and when many start together.

    It waits while another transaction has a table locked, in short attempts that block no other transaction. Sequences
    that are behind their tables, as after some restores, are moved past them, and a new timeline begins.

    Args:
        url: as for `affinity.provider.open_provider`.
        progress: receives a line at each step, and while it waits; by default they are logged.

    Returns:
        The schema version before and after.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
        SchemaMismatch: the database is too new for this code.
    """
    return await find_backend(url).migrate(url, progress)


async def inspect_schema(url: str) -> SchemaReport:
    """Return the schema's state, and the migrations that `migrate` would apply; nothing is changed.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
    """
    return await find_backend(url).inspect_schema(url)


async def check_database(url: str) -> Sequence[CheckResult]:
    """Return what workers will find at this database: version, rights, a pooler in between, settings, schema. Nothing
    is changed. A database that cannot be reached is a result too.

    Raises:
        InvalidUrl: no provider for the URL, or it is malformed.
    """
    backend = find_backend(url)
    if isinstance(backend, CheckingBackend):
        return await backend.check(url)
    try:
        return [check_schema(await backend.inspect_schema(url), may_migrate=True)]
    except ProviderError as caught:
        return [error("connection", str(caught), HOW_TO_CONNECT)]


async def change_rights(
    url: str,
    *,
    clients: Collection[str] = (),
    workers: Collection[str] = (),
    scalers: Collection[str] = (),
    readers: Collection[str] = (),
    revoke: Collection[str] = (),
) -> None:
    """Give roles of PostgreSQL the rights of a client, of a worker that may not migrate, of an autoscaler, or of a
    reader, and no others; or take all rights in the schema away. A later `migrate` gives these roles their rights to
    what it adds. Idempotent.

    Args:
        url: of a migrated database, for the role that migrates.
        clients: roles that start instances, send them events, cancel them, and read.
        workers: roles that run workers, and administer instances and session records.
        scalers: roles that read the view ``desired_workers``.
        readers: roles that read all that a client reads, and write nothing, as for a console.
        revoke: roles that lose their rights.

    Raises:
        InvalidOptions: SQLite has no roles; or a role is named twice, is not there, or owns the schema.
        InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
        SchemaMismatch: the database was never migrated.
    """
    roles = {"clients": clients, "workers": workers, "scalers": scalers, "readers": readers}
    await find_backend(url).change_rights(url, **roles, revoke=revoke)
