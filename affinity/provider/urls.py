"""Database URLs: ``sqlite:///relative/or//absolute/path`` and ``postgresql://…`` (libpq's syntax, several hosts
too).
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from affinity.errors import InvalidUrl

_PASSWORD = re.compile(r"(password=)('[^']*'|[^&\s]+)", re.IGNORECASE)
_USER = re.compile(r"://.*@")


def redact(url: str) -> str:
    """The URL without user and password, for logs. A password may hold any character: all up to the last @ goes.

    No error message has a URL in it, not even so.
    """
    return _USER.sub("://***@", _PASSWORD.sub(r"\1***", url))


def has_password(url: str) -> bool:
    """Whether the URL of a PostgreSQL database contains a password."""
    user = _USER.search(url)
    return _PASSWORD.search(url) is not None or (user is not None and ":" in user[0][len("://") :])


def sqlite_path(url: str) -> Path | None:
    """The file of an ``sqlite`` URL, None for PostgreSQL; refuses everything else."""
    parts = None
    with suppress(ValueError):  # its text quotes the URL, and so perhaps a password
        parts = urlsplit(url)
    if parts is None or (parts.scheme in {"postgresql", "postgres"} and _is_ambiguous(url)):
        raise InvalidUrl(
            "the database's URL is malformed: quote special characters in its user and password, such as @ by %40 and"
            " / by %2F"
        )
    if parts.scheme in {"postgresql", "postgres"}:
        return None
    if parts.scheme != "sqlite":
        raise InvalidUrl("use sqlite:///path or postgresql://user@host/database")
    if parts.netloc or len(parts.path) < len("/x") or parts.query or parts.fragment:
        raise InvalidUrl("an SQLite URL is sqlite:///relative/path or sqlite:////absolute/path, and nothing more")
    path = unquote(parts.path[1:])
    if path.startswith((":memory:", "file:")):
        raise InvalidUrl(
            "SQLite needs a file: a database in memory belongs to one connection, and workers and clients would each"
            " have one of their own; use a file in a temporary directory"
        )
    return Path(path)


def _is_ambiguous(url: str) -> bool:
    """Whether libpq would take a part of a password, one with an @, a / or a ?, for a host, a port or a database."""
    authority, _, path = url.partition("://")[2].partition("/")
    user = authority.rpartition("@")[0]
    return "@" in user or "?" in user or "@" in path.partition("?")[0]
