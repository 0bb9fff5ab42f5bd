"""The page of schedules: when each ticks, or why it does not; and the actions of its forms."""

from __future__ import annotations

from typing import Any, Final

from affinity.console.actions import Form, Verb
from affinity.console.pages.base import ROWS, Page, Query
from affinity.console.payloads import Payloads
from affinity.schedules.client import ScheduleCalls


async def schedules(client: ScheduleCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Return a page of the schedules, by name."""
    rows = await client.schedules.list(after=query.get("after"), limit=ROWS)
    reasons = await client.schedules.explain([row.name for row in rows])
    return {
        "schedules": [(row, reasons[row.name]) for row in rows if row.name in reasons],
        "say": payloads.text,
        "more": rows[-1].name if len(rows) == ROWS else None,
    }


async def _pause_schedule(client: ScheduleCalls, form: Form) -> str:
    return (await client.schedules.pause(form["schedule"], form.get("reason", ""))).state


async def _resume_schedule(client: ScheduleCalls, form: Form) -> str:
    return (await client.schedules.resume(form["schedule"])).state


async def _trigger_schedule(client: ScheduleCalls, form: Form) -> str:
    return await client.schedules.trigger(form["schedule"])


PAGES: Final = (Page("/schedules", "Schedules", "schedules/page.html", schedules, is_in_menu=True),)

VERBS: Final = {
    "pause-schedule": Verb("schedule", "schedule", _pause_schedule),
    "resume-schedule": Verb("schedule", "schedule", _resume_schedule),
    "trigger-schedule": Verb("schedule", "schedule", _trigger_schedule, confirmed=True),
}
