"""The instances, and one instance with what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from affinity.client import Activity, Client, HistoryRecord, Instance
from affinity.console.pages.base import ROWS, Query, given, number, required
from affinity.console.payloads import Payload, Payloads
from affinity.console.strip import WIDTH, color_of
from affinity.errors import InvalidInput
from affinity.provider.contract import FINISHED, InstanceStatus
from affinity.records import frozen

EVENTS: Final = 100
"""Events on a page."""

MAX_READ: Final = 2_000
"""Events of an instance whose activities are listed: they are read from its history."""

MAX_BARS: Final = 100
"""Activities that are shown, the last ones."""

MAX_MATCHING: Final = 1_000
"""Instances that one action on a list changes."""

TOGETHER: Final[Mapping[str, Collection[InstanceStatus]]] = {
    "cancel": ["pending", "running"],
    "resume": ["suspended"],
}
"""The statuses of the instances that an action on a list changes. One that is suspended ends when it goes on."""

STATUSES: Final = ("pending", "running", "suspended", *sorted(FINISHED))


@frozen()
class ActivityBar:
    """An activity on the time axis of its instance."""

    activity: Activity
    x: float
    width: float
    color: int | None  # of its worker; None: no worker has it


FILTERS: Final = ("status", "name", "prefix", "session_id", "reason")


def conditions(query: Query) -> dict[str, Any]:
    """The conditions of a list.

    Raises:
        InvalidInput: there is no such status.
    """
    where: dict[str, Any] = given(query, *FILTERS)
    if status := where.pop("status", None):
        if status not in STATUSES:
            raise InvalidInput(f"there is no status {status!r:.40}")
        where["status"] = [status]
    return where


async def matching(client: Client, query: Query, status: Collection[InstanceStatus]) -> Sequence[str]:
    """The ids of instances that fit and have one of these statuses, at most `MAX_MATCHING`."""
    where = conditions(query)
    wanted = [each for each in status if each in where.get("status", status)]
    if not wanted:
        return []
    page = await client.list_page(**{**where, "status": wanted}, limit=MAX_MATCHING)
    return [each.instance_id for each in page.items]


async def instances(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the instances that fit, newest first; with ``count`` how many an action on the list would change."""
    page = await client.list_page(**conditions(query), after=query.get("after") or None, limit=ROWS)
    counts = {}
    if query.get("count"):
        counts = {name: len(await matching(client, query, status)) for name, status in TOGETHER.items()}
    return {
        "page": page,
        "statuses": STATUSES,
        "filters": given(query, *FILTERS),
        "counts": counts,
        "most": MAX_MATCHING,
        "say": payloads.text,
    }


async def instance(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """One instance: the sentence, its activities, its events, and its tree."""
    instance_id = required(query, "id")
    found = await client.status(instance_id)
    waits_for = None if found.finished else await client.explain(instance_id)
    first = number(query, "from")
    after = max(0, found.event_count - EVENTS) if first is None else max(0, first - 1)
    read_all = found.event_count <= MAX_READ
    activities = await client.activities(instance_id) if read_all else []
    return {
        "instance": found,
        "waits_for": waits_for,
        "sentence": "" if waits_for is None else payloads.text("sentence", waits_for.code, waits_for.sentence),
        "bars": _bars(activities[-MAX_BARS:]),
        "all_activities": read_all and len(activities) <= MAX_BARS,
        "events": [_event(each, payloads) for each in await _events(client, instance_id, after)],
        "first": after + 1,
        "per_page": EVENTS,
        "tree": await client.tree(instance_id, limit=ROWS),
        **_values(found, payloads),
    }


async def _events(client: Client, instance_id: str, after: int) -> Sequence[HistoryRecord]:
    events: list[HistoryRecord] = []
    async for each in client.iter_history(instance_id, after=after):
        events.append(each)
        if len(events) == EVENTS:
            break
    return events


def _event(event: HistoryRecord, payloads: Payloads) -> tuple[HistoryRecord, Payload]:
    name = str(event.fields.get("name") or event.type)
    return event, payloads.show(f"event-{event.event_id}", "event", name, dict(event.fields))


def _values(found: Instance, payloads: Payloads) -> dict[str, Payload | None]:
    """The values of an instance that the application has made."""
    error = None if found.error is None else {**found.error._asdict(), "stack": found.error_stack}
    why = found.suspension
    values = {
        "custom_status": found.custom_status,
        "output": found.output if found.status == "completed" else None,
        "error": error if why is None else {"type": why.error_type, "message": why.message, "code": why.code},
    }
    return {
        name: None if value is None else payloads.show(name, name, found.name, value) for name, value in values.items()
    }


def _bars(activities: Sequence[Activity]) -> Sequence[ActivityBar]:
    """The activities from their scheduling to their end, on the axis from the first to the last of these times."""
    times = [at for one in activities for at in (one.scheduled_at, one.ended_at) if at is not None]
    if not times:
        return []
    begin, end = min(times), max(times)
    scale = WIDTH / max((end - begin).total_seconds(), 0.001)
    found = []
    for one in activities:
        since, until = one.scheduled_at or begin, one.ended_at or end
        width = max((until - since).total_seconds() * scale, 2.0)
        x = min((since - begin).total_seconds() * scale, WIDTH - 2.0)
        color = None if one.worker_id is None else color_of(one.worker_id)
        found.append(ActivityBar(one, round(x, 2), round(width, 2), color))
    return found
