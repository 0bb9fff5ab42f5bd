"""What a wait of an `Env` waits for, in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from affinity.client import Client, HistoryRecord
from affinity.errors import ClientError
from affinity.limits import MAX_PAGE
from affinity.provider.contract import FINISHED

SHOWN: Final = 5
"""Instances that a failed test prints."""

SHOWN_EVENTS: Final = 40
"""Events of each, the last ones."""

MAX_LINE: Final = 200

_BEGIN = {
    "activity_scheduled": "activity",
    "sub_orchestration_scheduled": "sub-orchestration",
    "timer_created": "a timer",
}
"""The types of events that begin something which ends by an event with their number."""


async def explain(client: Client, instance_id: str) -> str:
    """What an instance, or a conversation, waits for: "instance 'x' waits for event 'paid'".

    The place for a call of `affinity.explain`, which knows locks, routes and requests too.
    """
    try:
        instance = await client.status(instance_id)
        if instance.status in FINISHED:
            return f"instance {instance_id!r} is {instance.status}"
        if (why := instance.suspension) is not None:
            return f"instance {instance_id!r} is suspended: {why.error_type}: {why.message}"
        waits = _outstanding(await client.history(instance_id))
        (requests,) = await client.journals.requests([instance_id])
    except ClientError as error:
        return str(error)
    waits += [f"the answer to request {one.request_id!r}" for one in requests]
    return f"instance {instance_id!r} waits for {' and '.join(waits) or 'a worker'}"


def _outstanding(records: Sequence[HistoryRecord]) -> list[str]:
    ended = {record.fields.get("schedule_id") for record in records}
    found: dict[str, None] = {}
    raised = Counter(record.fields["name"] for record in records if record.type == "event_raised")
    for record in records:
        if record.event_id in ended:
            continue
        if record.type == "event_awaited":
            name = record.fields["name"]
            raised[name] -= 1
            if raised[name] < 0:
                found[f"event {name!r}"] = None
        elif record.type in _BEGIN:
            name = record.fields.get("name")
            found[_BEGIN[record.type] + ("" if name is None else f" {name!r}")] = None
    return list(found)


async def describe(client: Client) -> str:
    """The instances, those that have not ended first: their histories, and what they wait for."""
    page = await client.list_page(limit=MAX_PAGE)
    instances = sorted(page.items, key=lambda each: each.finished)
    lines = [f"{len(instances)} instances; by the virtual clock:"] if len(instances) > SHOWN else []
    for instance in instances[:SHOWN]:
        lines += [await explain(client, instance.instance_id)]
        history = await client.history(instance.instance_id)
        if len(history) > SHOWN_EVENTS:
            lines.append(f"  … {len(history) - SHOWN_EVENTS} events before")
        lines += [_line(record) for record in history[-SHOWN_EVENTS:]]
    return "\n".join(lines)


def _line(record: HistoryRecord) -> str:
    at = "" if record.recorded_at is None else f"{record.recorded_at:%Y-%m-%d %H:%M:%S} "
    fields = ", ".join(f"{name}={value!r}" for name, value in record.fields.items() if value not in (None, "", False))
    return f"  {record.event_id:>4} {at}{record.type} {fields}"[:MAX_LINE]
