"""The page of trends: four charts of the last hour or day, of all or of one name, and the counts of each name."""

from __future__ import annotations

from typing import Any, Final, cast, get_args

from affinity.console.actions import Verb
from affinity.console.pages.base import ROWS, Card, Page, Query
from affinity.console.payloads import Payloads
from affinity.errors import InvalidInput, InvalidOptions
from affinity.trends.charts import charts_of
from affinity.trends.client import TrendCalls
from affinity.trends.store.contract import TrendKind

_SPANS: Final = {"hour": (3600.0, 60), "day": (86_400.0, 96)}
"""Seconds, and points."""


async def trends(client: TrendCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Read the charts of a name, or of all, and the counts of each name in the last hour."""
    name, kind, span = query.get("name") or None, query.get("kind") or "orchestration", query.get("span") or "hour"
    if kind not in get_args(TrendKind) or span not in _SPANS:
        raise InvalidInput("kind is orchestration or activity, and span is hour or day")
    seconds, points = _SPANS[span]
    found = await client.trends(name, kind=cast(TrendKind, kind), seconds=seconds, points=points)
    return {
        "trends": found,
        "charts": charts_of(found),
        "span": span,
        "names": await client.trends_by_name(limit=ROWS),
        "most": ROWS,
    }


async def last_hour(client: TrendCalls) -> dict[str, Any] | None:
    """Read the charts of all orchestrations; None: the provider keeps none."""
    try:
        found = await client.trends()
    except InvalidOptions:
        return None
    return {"trends": found, "charts": charts_of(found)}


PAGES: Final = (
    Page("/trends", "Trends", "trends/page.html", trends, is_in_menu=True, card=Card(last_hour, "trends/card.html")),
)

VERBS: Final[dict[str, Verb]] = {}
