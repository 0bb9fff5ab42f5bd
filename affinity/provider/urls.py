"""Database URLs: ``sqlite:///relative/or//absolute/path``, ``postgresql://…`` (libpq's syntax, several hosts too), and
those of other providers.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from affinity.errors import InvalidUrl

MALFORMED: Final = (
    "the database's URL is malformed: quote special characters in its user and password, such as @ by %40 and / by %2F"
)

_PASSWORD = re.compile(r"(password=)('[^']*'|[^&\s]+)", re.IGNORECASE)
_DIRECT = re.compile(r"([?&]direct=)[^&\s]*", re.IGNORECASE)  # a URL with a user and a password of its own, quoted
_USER = re.compile(r"://.*@")


def redact(url: str) -> str:
    """Return the URL without user and password, for logs. A password may hold any character: all up to the last @ goes.

    Error messages have no URL in them, not even a redacted one.
    """
    return _USER.sub("://***@", _PASSWORD.sub(r"\1***", _DIRECT.sub(r"\1***", url)))


def has_password(url: str) -> bool:
    """Return whether the URL contains a password."""
    if (direct := _DIRECT.search(url)) is not None:
        plain = _DIRECT.sub("", url)
        return has_password(plain) or has_password(unquote(direct[0].partition("=")[2]))
    user = _USER.search(url)
    return _PASSWORD.search(url) is not None or (user is not None and ":" in user[0][len("://") :])


def scheme_of(url: str) -> str:
    """Return the scheme of the URL in lower case, "" if it has none.

    Raises:
        InvalidUrl: it is malformed.
    """
    return _split(url).scheme


def sqlite_path(url: str) -> Path | None:
    """Return the file of an ``sqlite`` URL; None: the URL has another scheme.

    Raises:
        InvalidUrl: it is malformed, or names no file.
    """
    parts = _split(url)
    if parts.scheme != "sqlite":
        return None
    if parts.netloc or len(parts.path) < len("/x") or parts.query or parts.fragment:
        raise InvalidUrl("an SQLite URL is sqlite:///relative/path or sqlite:////absolute/path, and nothing more")
    path = unquote(parts.path[1:])
    if path.startswith((":memory:", "file:")):
        raise InvalidUrl(
            "SQLite needs a file: a database in memory belongs to one connection, and workers and clients would each"
            " have one of their own; use a file in a temporary directory"
        )
    return Path(path)


def _split(url: object) -> SplitResult:
    if not isinstance(url, str):
        raise InvalidUrl(f"the database's URL must be a text, as sqlite:///affinity.db, not {type(url).__qualname__}")
    with suppress(ValueError):  # its text quotes the URL, and so perhaps a password
        return urlsplit(url)
    raise InvalidUrl(MALFORMED)
