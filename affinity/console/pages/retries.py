"""The activities that are tried again, and those that wait for something else than a worker."""

from __future__ import annotations

from typing import Any, Final

from affinity.composed.client import Client
from affinity.console.pages.base import ROWS, Query, Waiting, single
from affinity.console.payloads import Payloads
from affinity.console.rendering import counted
from affinity.provider.contract import QueuePart

MAX_WAITING: Final = 100
"""Activities that the menu counts."""

MAX_PARKED: Final = 1_000
"""Parked activities that are counted."""

TITLES: Final[dict[QueuePart, str]] = {
    "retried": "Tried again",
    "delayed": "Delayed",
    "blocked": "Behind other ordered work",
    "limited": "At a limit",
}
"""The parts of the page, in its order."""


async def retried(client: Client) -> Waiting:
    """The activities that are tried again."""
    number = len(await client.queued_activities("retried", limit=MAX_WAITING))
    title = counted(number, "activity is tried again", "activities are tried again", MAX_WAITING)
    return Waiting(number, title, MAX_WAITING)


async def retries(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """The activities of each part of the queue that are due first, or of one part; with the most failures first."""
    parts = [single(query, "part", TITLES)] if query.get("part") else [*TITLES]
    rows = {part: await client.queued_activities(part, limit=ROWS) for part in parts}
    return {
        "parts": [
            (part, TITLES[part], sorted(found, key=lambda item: (-item.failures, item.visible_at)))
            for part, found in rows.items()
        ],
        "titles": TITLES,
        "most": ROWS,
        "parked": (await client.statistics(limit=MAX_PARKED, every_instance=False)).parked,
        "most_parked": MAX_PARKED,
        "say": payloads.text,
    }
