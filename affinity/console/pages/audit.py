"""The audit log: who did what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from affinity.client import Client
from affinity.console.pages.base import ROWS, Query, given
from affinity.console.payloads import Payloads
from affinity.errors import InvalidInput


async def audit(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the audit log, newest first."""
    where: dict[str, Any] = given(query, "user", "action", "target", "source")
    where |= {name: _time(text, name) for name, text in given(query, "since", "until").items()}
    if outcome := query.get("outcome"):
        where["succeeded"] = outcome == "done"
    return {"page": await client.audit_page(**where, after=query.get("after") or None, limit=ROWS)}


def _time(text: str, name: str) -> datetime:
    """A time as the page's form gives it, in UTC, or with an offset.

    Raises:
        InvalidInput: it is none.
    """
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name} is no time, as in 2026-07-31T12:00") from None
