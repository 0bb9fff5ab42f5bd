"""The pages of limits: how full each is, what waits there, and its keys; and the actions of their forms."""

from __future__ import annotations

from typing import Any, Final

from affinity.console.actions import Form, Verb
from affinity.console.pages.base import ROWS, Page, Query, required
from affinity.console.payloads import Payloads
from affinity.flow.client import LimitBounds, LimitCalls
from affinity.flow.words import NONE, parse_ramp, parse_rate, parse_slots, rate_text


async def limits(client: LimitCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return all limits, by name."""
    return {"limits": await client.limits.list(), "say": payloads.text, "rate": rate_text, "none": NONE}


async def limit(client: LimitCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return one limit, with a page of its keys."""
    found = await client.limits.get(required(query, "name"))
    page = None
    if found.keyed:
        page = await client.limits.keys(found.name).page(query.get("after"), limit=ROWS)
    return {
        "limit": found,
        "say": payloads.text,
        "of_keys": [] if page is None else page.items,
        "more": None if page is None else page.next,
        "rate": rate_text,
        "none": NONE,
    }


async def _set_limit(client: LimitCalls, form: Form) -> str:
    bounds = LimitBounds()
    if slots := form.get("concurrency", "").strip():
        bounds["concurrency"] = parse_slots(slots)
    if rate := form.get("rate", "").strip():
        bounds["rate"] = parse_rate(rate)
    return (await client.limits.set(form["limit"], key=_key(form), **bounds)).status


async def _pause_limit(client: LimitCalls, form: Form) -> str:
    return (await client.limits.pause(form["limit"], key=_key(form))).status


async def _resume_limit(client: LimitCalls, form: Form) -> str:
    ramp = parse_ramp(text) if (text := form.get("ramp", "").strip()) else None
    return (await client.limits.resume(form["limit"], key=_key(form), ramp=ramp)).status


async def _reset_limit(client: LimitCalls, form: Form) -> str:
    return (await client.limits.reset(form["limit"], key=_key(form))).status


def _key(form: Form) -> str | None:
    return form.get("key") or None


PAGES: Final = (
    Page("/limits", "Limits", "flow/limits.html", limits, is_in_menu=True),
    Page("/limit", "Limit", "flow/limit.html", limit),
)

VERBS: Final = {
    "set-limit": Verb("limit", "limit", _set_limit),
    "pause-limit": Verb("limit", "limit", _pause_limit),
    "resume-limit": Verb("limit", "limit", _resume_limit),
    "reset-limit": Verb("limit", "limit", _reset_limit),
}
