"""The schedules: when each ticks, or why it does not."""

from __future__ import annotations

from typing import Any

from affinity.client import Client
from affinity.console.pages.base import ROWS, Query
from affinity.console.payloads import Payloads


async def schedules(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the schedules, by name."""
    rows = await client.schedules.list(after=query.get("after"), limit=ROWS)
    reasons = await client.schedules.explain([row.name for row in rows])
    return {
        "schedules": [(row, reasons[row.name]) for row in rows if row.name in reasons],
        "say": payloads.text,
        "more": rows[-1].name if len(rows) == ROWS else None,
    }
