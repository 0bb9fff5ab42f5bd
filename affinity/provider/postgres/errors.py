"""The one edge at which psycopg's errors become ours: by sqlstate, never by text, but for one gap in libpq."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    Duplicate,
    ProviderError,
    SchemaMismatch,
)
from affinity.provider.postgres.target import Target
from affinity.provider.urls import redact

_BY_STATE: Final[dict[str, type[ProviderError]]] = {
    "40001": Contention,  # serialization failure
    "40P01": Contention,  # deadlock
    "55P03": Contention,  # lock timeout
    "57014": Contention,  # statement timeout: nothing was changed
    "ZT001": Contention,  # our own function `refuse`
    "23505": Duplicate,
    "57P01": ConnectionLost,  # terminated by an administrator
    "57P02": ConnectionLost,  # crash of the server
    "57P03": ConnectionLost,  # starting up, or shutting down
    "57P05": ConnectionLost,  # idle for too long
    "25P03": ConnectionLost,  # idle in a transaction for too long
    "25006": ConnectionLost,  # read only: a standby. The next connection attempt looks for the primary
    "53300": ConnectionLost,  # too many connections: there will be room
    "3D000": AccessDenied,  # no such database
    "42501": AccessDenied,  # a right is missing
    "3F000": SchemaMismatch,  # no such schema
    "42P01": SchemaMismatch,  # no such table
    "42883": SchemaMismatch,  # no such function
    "42703": SchemaMismatch,  # no such column
}
# Two first writes of one record: the one that came second must look at what the other wrote. Of all rows that must be
# new this is the only one that another worker may add in good faith.
_FIRST_WRITE: Final = "session_states_pkey"

_BY_CLASS: Final[dict[str, type[ProviderError]]] = {"08": ConnectionLost, "28": AccessDenied}

_REMEDY: Final[dict[type[ProviderError], str]] = {
    AccessDenied: "check the user, the password, the database's name and the rights of that user",
    SchemaMismatch: "run `affinity migrate`",
}

# libpq keeps the sqlstate of a refused connection to itself (PQconnectPoll has only a text), so that here, and nowhere
# else, the text must do. A server that speaks another language than English makes it a ConnectionLost: it is retried.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects|role .* does not exist"
    r"|database .* does not exist|permission denied for database|not permitted to log in|Peer authentication",
)


@contextmanager
def translated(target: Target) -> Iterator[None]:
    """Raise what psycopg raises within as an error of `affinity.errors`."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, target) from error


def translate(error: psycopg.Error, target: Target) -> ProviderError:
    """The error of ours that says the same, with the database's name and the remedy."""
    kind = _classify(error)
    text = redact(str(error)).strip() or type(error).__name__
    remedy = f"; {_REMEDY[kind]}" if kind in _REMEDY else ""
    return kind(f"{target.name}: {text}{remedy}")


def _classify(error: psycopg.Error) -> type[ProviderError]:
    state = error.sqlstate
    if state is not None and error.diag.sqlstate is not None:  # said by the server, not by psycopg of its own classes
        if state == "23505" and error.diag.constraint_name == _FIRST_WRITE:
            return Contention
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2]) or DatabaseFailure
    if isinstance(error, psycopg.OperationalError):
        return AccessDenied if _REFUSED.search(str(error)) else ConnectionLost
    return DatabaseFailure
