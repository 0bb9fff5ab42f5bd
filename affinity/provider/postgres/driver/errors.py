"""Translates psycopg's errors to classes of `affinity.errors`: by SQLSTATE, never by text, but for one gap in libpq.

The rule: an error is the environment's fault (`DatabaseFailure`, retried) unless its SQLSTATE is on the short list of
codes that speak of the data. A full disk must not fail an instance, and a code that is not listed must not either.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from affinity.errors import (
    AccessDenied,
    AffinityError,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    Duplicate,
    InvalidUrl,
    LockTimeout,
    PoolerRefused,
    ProviderError,
    ReadOnly,
    SchemaMismatch,
    StatementTimeout,
)
from affinity.provider.postgres.driver.target import Target
from affinity.provider.schema import HOW_TO_MIGRATE
from affinity.provider.urls import redact

logger: logging.Logger = logging.getLogger("affinity.provider")

FIRST_WRITE: Final = "session_states_pkey"
"""The constraint that the second of two first writes of one record violates: it must read the other's record and try
again. Only this row may be added by two workers that both act correctly.
"""

BATCH_REFUSED: Final = "ZT001"
"""SQLSTATE of our function `refuse`: a turn of the batch does not pass its fence."""

# The data's own fault, and nothing else: the list is short on purpose.
_DATA: Final[dict[str, type[ProviderError]]] = {
    "22": DataRefused,  # data exception: a value out of range, a NUL, text that is no JSON
    "23": DataRefused,  # a constraint of ours
    "54": DataRefused,  # over a limit of the program: an index row, a nesting
}
_BY_STATE: Final[dict[str, type[ProviderError]]] = {
    "23505": Duplicate,
    "2200H": DatabaseFailure,  # a sequence has reached its end: not the fault of the data
    "40001": Contention,  # serialization failure
    "40P01": Contention,  # deadlock
    "55P03": LockTimeout,
    BATCH_REFUSED: Contention,
    "57014": StatementTimeout,
    "57P01": ConnectionLost,  # terminated by an administrator
    "57P02": ConnectionLost,  # crash of the server
    "57P03": ConnectionLost,  # starting up, or shutting down
    "57P05": ConnectionLost,  # idle for too long
    "25P03": ConnectionLost,  # idle in a transaction for too long
    "0A000": ConnectionLost,  # `is_prepared_anew`, twice in a row: a new connection begins without statements
    "26000": ConnectionLost,  # the same
    "42P05": ConnectionLost,  # the same
    "25006": ReadOnly,  # a standby. The next connection attempt looks for the primary
    "3D000": AccessDenied,  # no such database
    "42501": AccessDenied,  # a right is missing
    "3F000": SchemaMismatch,  # no such schema
    "42P01": SchemaMismatch,  # no such table
    "42883": SchemaMismatch,  # no such function
    "42703": SchemaMismatch,  # no such column
}
_BY_CLASS: Final[dict[str, type[ProviderError]]] = {"08": ConnectionLost, "28": AccessDenied, **_DATA}

# "Not accepting commands to avoid wraparound" has the sqlstate of a limit too, and no data can help it.
_WRAPAROUND: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId"})

WITHOUT_POOLER: Final = (
    "connect to the PostgreSQL server itself, or to a pooler in session mode, or name one of these by ?direct= in the"
    " URL: prepared statements, LISTEN and the settings of a connection need a server session of their own"
)
"""Ends the message about a connection through a pooler."""

WRONG_ENCODING: Final = "use a database made by CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'"
"""Ends the message about a database that cannot store all text."""

_FATAL: Final = frozenset({"FATAL", "PANIC"})

_REMEDY: Final[dict[type[ProviderError], str]] = {
    AccessDenied: "check the user, the password, the database's name and the rights of that user",
    SchemaMismatch: HOW_TO_MIGRATE,
    PoolerRefused: WITHOUT_POOLER,
}

# libpq keeps the sqlstate of a refused connection to itself (PQconnectPoll has only a text), so that here, and nowhere
# else, the text must do. A server that speaks another language than English makes it a ConnectionLost: it is retried.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects|role .* does not exist"
    r"|database .* does not exist|permission denied for database|not permitted to log in|Peer authentication",
)
_POOLER: Final = "unsupported startup parameter"  # PgBouncer, of `options`; PostgreSQL itself knows that parameter

# How psycopg and libpq begin a message; the host is known.
_PHRASES: Final = re.compile(r"connection (?:failed|is bad): (?:connection to server … failed: )?")

# Options of the URL that libpq, or psycopg, looks at when it connects.
_WRONG_OPTION: Final = re.compile(r"^(?:invalid \S+ (?:value|number)\b|bad value for |definition of service )")

# How messages of libpq and PostgreSQL name users, hosts, addresses and files of a connection.
_NAMES: Final = re.compile(
    r"""(?:\ at|\ on\ socket)?\ "[^"]*"(?:\ \([^)]*\))?(?:,\ port\ \d+)?   # at "host" (address), port 5432
    |\ '[^']*'
    |\ \(?\d{1,3}(?:\.\d{1,3}){3}\)?
    |\ \(?[0-9a-fA-F]*(?::[0-9a-fA-F]*){2,}\)?""",
    re.VERBOSE,
)


def is_prepared_anew(error: psycopg.Error) -> bool:
    """Whether a prepared statement is gone (26000), belongs to another client (42P05), or was prepared before a
    migration changed the tables (0A000). Then nothing was executed.
    """
    said = error.diag
    return said.sqlstate in {"26000", "42P05"} or (
        said.sqlstate == "0A000" and said.source_function == "RevalidateCachedQuery"
    )


@contextmanager
def translated(target: Target) -> Iterator[None]:
    """Raise what psycopg raises within as an error of `affinity.errors`."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, target) from None


def translate(error: psycopg.Error, target: Target) -> ProviderError:
    """The matching error of `affinity.errors`, with the remedy.

    It has no names of users and hosts, since clients may read a message. The database's own message, which has them, is
    logged at level debug. For attempts to connect see `translate_refusal`.
    """
    logger.debug("PostgreSQL: %s", target.without_passwords(redact(str(error))))
    said = error.diag
    if said.sqlstate is None:  # by psycopg or libpq, not by the server
        kind = _classify_client_side(error)
        text = _without_names(str(error))
    else:
        kind = classify(
            said.sqlstate, severity=said.severity_nonlocalized, constraint=said.constraint_name, at=said.source_function
        )
        text = target.without_names(said.message_primary or "")
    error.args = (text,)  # it may be shown as the context of ours
    remedy = f"; {_REMEDY[kind]}" if kind in _REMEDY else ""
    code = f" ({said.sqlstate})" if said.sqlstate else ""
    return kind(f"PostgreSQL: {text or type(error).__name__}{code}{remedy}", said.sqlstate)


def translate_refusal(error: psycopg.Error, target: Target) -> AffinityError:
    """The matching error for an attempt to connect. It names hosts and ports, which an operator needs to find out why
    there is no connection, and neither user nor password.
    """
    translated = translate(error, target)
    text = _PHRASES.sub("", str(translated).removeprefix("PostgreSQL: "))
    if _WRONG_OPTION.search(text):
        return InvalidUrl(f"not a PostgreSQL URL: {text}")
    return type(translated)(f"cannot connect to PostgreSQL at {target.place(error.pgconn)}: {text}", translated.code)


def check_encoding(encoding: str | None, target: Target) -> None:
    """Refuse a database that cannot store all text.

    Raises:
        SchemaMismatch: its encoding is not UTF8.
    """
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"{target.name}: the encoding of the database is {encoding}, and affinity needs UTF8: {WRONG_ENCODING}"
        )


def unchangeable(error: psycopg.Error, target: Target) -> SchemaMismatch:
    """The error for a setting that this role may not change, and on which our statements rely."""
    return SchemaMismatch(
        f"{target.name}: {error.diag.message_primary}, which has a value with which affinity cannot work: take it"
        " back by ALTER ROLE … RESET or ALTER DATABASE … RESET",
        error.diag.sqlstate,
    )


def classify(
    state: str, *, severity: str | None = None, constraint: str | None = None, at: str | None = None
) -> type[ProviderError]:
    """The class for an error of the server; ``at`` is the server's function that raised it."""
    if severity in _FATAL:
        return ConnectionLost  # whatever it was, the connection is gone
    if state == "23505" and constraint == FIRST_WRITE:
        return Contention
    if at in _WRAPAROUND:
        return DatabaseFailure
    return _BY_STATE.get(state) or _BY_CLASS.get(state[:2]) or DatabaseFailure


def _classify_client_side(error: psycopg.Error) -> type[ProviderError]:
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        if _POOLER in str(error):
            return PoolerRefused
        return AccessDenied if _REFUSED.search(str(error)) else ConnectionLost
    if isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
        return DataRefused  # a value that cannot be sent
    return DatabaseFailure


def _without_names(text: str) -> str:
    return " ".join(_NAMES.sub(" …", text).split())
