"""The audit log: who did what."""

from __future__ import annotations

from typing import Any

from affinity.composed.client import Client
from affinity.console.pages.base import ROWS, Query, given, time_of
from affinity.console.payloads import Payloads


async def audit(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the audit log, newest first."""
    where: dict[str, Any] = given(query, "user", "action", "target", "source")
    where |= {name: time_of(query, name) for name in given(query, "since", "until")}
    if outcome := query.get("outcome"):
        where["succeeded"] = outcome == "done"
    return {
        "page": await client.audit(**where).page(query.get("after") or None, limit=ROWS),
        "say": payloads.text,
    }
