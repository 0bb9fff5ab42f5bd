"""Failures of the last hour or day, and suspended instances: by name and class of the error, each, and by texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, get_args

from affinity.composed.client import Client
from affinity.console.pages.base import ROWS, Query, given
from affinity.console.payloads import Payloads
from affinity.errors import InvalidInput
from affinity.limits import MAX_FAILURES_SEARCHED
from affinity.provider.contract import FailureGroups, FailureKind

SPANS: Final = {"hour": 3600.0, "day": 86_400.0}
"""Seconds."""

FEW: Final = 5
"""Groups on the overview."""

COUNTED: Final = 1_000
"""Where their counts stop there: the overview is read again each second."""

CONDITIONS: Final = ("kind", "name", "error_type", "text")


async def errors(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """The groups of the time; with conditions the failures that fit, newest first."""
    span = query.get("span") or "hour"
    if span not in SPANS:
        raise InvalidInput("span is hour or day")
    where = given(query, *CONDITIONS)
    if (kind := where.get("kind")) is not None and kind not in get_args(FailureKind):
        raise InvalidInput(f"kind is one of {', '.join(get_args(FailureKind))}")
    groups = None if where else await client.failure_groups(seconds=SPANS[span], limit=ROWS)
    conditions: dict[str, Any] = {"seconds": SPANS[span], **where}
    page = await client.failures(**conditions).page(query.get("after") or None, limit=ROWS)
    is_encrypted = False
    if "text" in where:
        sample = await client.failures(seconds=SPANS[span]).page(limit=ROWS)
        is_encrypted = not all(each.is_readable for each in sample.items)
        # A hit would tell what a hidden text says.
        shown = [one for one in page.items if payloads.text("error", one.name, one.error) == one.error]
        page = replace(page, items=shown, next=page.next if shown or not payloads.redacts else None)
    return {
        "groups": groups,
        "page": page,
        "span": span,
        "where": {name: where.get(name, "") for name in CONDITIONS},
        "is_filtered": bool(where),
        "looked_at": MAX_FAILURES_SEARCHED,
        "is_encrypted": is_encrypted,
        "say": payloads.text,
    }


async def last_hour(client: Client) -> FailureGroups:
    """The groups of the last hour with the most failures, behind those of suspended instances."""
    return await client.failure_groups(seconds=SPANS["hour"], limit=FEW, most=COUNTED)
