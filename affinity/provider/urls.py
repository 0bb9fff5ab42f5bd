"""Database URLs: ``sqlite:///relative/or//absolute/path`` and ``postgresql://…`` (libpq's syntax, several hosts too)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from affinity.errors import InvalidUrl
from affinity.provider.contract import Provider

_PASSWORD = re.compile(r"(://[^:/@]*):[^@]*@|(password=)[^&\s]*", re.IGNORECASE)


def redact(url: str) -> str:
    """The URL without its password, for logs and messages."""
    return _PASSWORD.sub(lambda found: f"{found[1]}:***@" if found[1] else f"{found[2]}***", url)


async def open_provider(url: str, *, application_name: str = "affinity") -> Provider:
    """Connect to the database of ``url``; its schema must be up to date (`migrate`).

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``; ``?schema=name`` (PostgreSQL) chooses another schema than ``affinity``.
        application_name: shown in PostgreSQL's activity view.

    Raises:
        InvalidUrl: no provider for the URL, or it is malformed.
        ConnectionLost: the database cannot be reached.
        AccessDenied: it refuses the credentials.
        SchemaMismatch: it was never migrated, or by newer code.
    """
    return await _backend(url, "open_provider")(application_name)


async def migrate(url: str) -> tuple[int, int]:
    """Bring the schema up to date, under a lock; safe when many workers start at once.

    Returns:
        The schema version before and after.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `open_provider`.
        SchemaMismatch: the database is newer than this code.
    """
    return await _backend(url, "migrate")()


