"""The reason why a wait of an `Env` does not end, in one sentence."""

from __future__ import annotations

from typing import Final

from affinity.client import HistoryRecord
from affinity.composed.client import Client
from affinity.errors import ClientError
from affinity.limits import MAX_PAGE

SHOWN: Final = 5
"""Instances that a failed test prints."""

SHOWN_EVENTS: Final = 40
"""Events of each, the last ones."""

MAX_LINE: Final = 200


async def explain(client: Client, instance_id: str) -> str:
    """The reason why an instance, or a conversation, waits, as `affinity.explain` says it; or how it has ended."""
    try:
        found = await client.explain(instance_id)
        if found is not None:
            return found.sentence
        return f"{instance_id!r} is {(await client.status(instance_id)).status}"
    except ClientError as error:
        return str(error)


async def describe(client: Client) -> str:
    """The instances, running ones first: their histories, and what they wait for."""
    page = await client.list_instances().page(limit=MAX_PAGE)
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
