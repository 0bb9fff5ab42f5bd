"""The instances, one instance with what it waits for, and what a reset of it would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from affinity.client import HistoryRecord, Instance
from affinity.composed.client import Client
from affinity.console.gantt import MAX_LINES, Gantt, GanttLine, gantt_of, is_failure, lines_of
from affinity.console.links import span_of, trace_id_of
from affinity.console.pages.base import (
    ROWS,
    SUFFIX,
    Query,
    Waiting,
    given,
    label_of,
    list_of,
    name_conditions,
    number,
    required,
    single,
    time_of,
)
from affinity.console.payloads import Payload, Payloads
from affinity.console.rendering import counted
from affinity.errors import InvalidInput, PayloadUnreadable
from affinity.provider.contract import FINISHED, RARE_STATUSES, FailureRecord, InstanceStatus

EVENTS: Final = 100
"""Events on a page."""

MAX_READ: Final = 2_000
"""Events of an instance whose time axis is shown: it is made from its history."""

MAX_ATTEMPTS: Final = 10
"""The last failed attempts of one activity on a page; and the last activities with some, beside the time axis."""

MAX_MATCHING: Final = 1_000
"""Instances that one action on a list changes."""

LOOKED_AT: Final = 10_000
"""Instances that are looked at for a condition that no index has."""

TOGETHER: Final[Mapping[str, Collection[InstanceStatus]]] = {
    "cancel": ["pending", "running"],
    "resume": ["suspended"],
    "rerun": ["completed", "failed", "cancelled"],
}
"""The statuses of the instances that an action on a list changes. One that is suspended ends when it goes on."""

_FAILURES: Final = frozenset({"failed", "suspended"})

STATUSES: Final = ("pending", "running", "suspended", *sorted(FINISHED))

FILTERS: Final = (
    *("status", "name", "version", "prefix", "label", "session_id", "reason", "since", "before"),
    *("behind", "sort", "within"),
)

SORTS: Final[Mapping[str, str]] = {
    "-started": "newest first",
    "started": "oldest first",
    "-ended": "ended last, first",
    "ended": "ended first, first",
    "-duration": "took longest",
    "duration": "took shortest",
}
"""The orders of the list. The first one is the default."""

WITHIN: Final[Mapping[str, timedelta]] = {
    **{"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)},
}
"""Times back from now within which instances were created."""

BEHIND: Final = ("conversations", "others")
"""Instances of conversations, and all others."""


MAX_WAITING: Final = 100
"""Suspended instances that the menu counts."""


async def suspended(client: Client) -> Waiting:
    """The suspended instances."""
    page = await client.list_instances(status=["suspended"]).page(limit=MAX_WAITING)
    number = len(page.items)
    title = counted(number, "instance is suspended", "instances are suspended", MAX_WAITING)
    return Waiting(number, title, MAX_WAITING)


def conditions(query: Query) -> dict[str, Any]:
    """The conditions of a list.

    Raises:
        InvalidInput: there is no such status, or a time or a label is none.
    """
    where: dict[str, Any] = given(query, *FILTERS)
    where |= {"status": list_of(query, "status", STATUSES)} if where.pop("status", None) else {}
    where |= {"sort": single(query, "sort", SORTS)} if where.pop("sort", None) else {}
    if where.pop("behind", None):
        where |= name_conditions(is_conversation=single(query, "behind", BEHIND) == "conversations")
    if label := where.pop("label", None):
        where["labels"] = dict(label_of(part) for part in label.split(","))
    where |= {f"created_{name}": time_of(query, name) for name in ("since", "before") if where.pop(name, None)}
    if where.pop("within", None):
        where["created_since"] = datetime.now(UTC) - WITHIN[single(query, "within", WITHIN)]
    return where | ({"most": LOOKED_AT} if _looks(query) or query.get("sort", "").endswith("duration") else {})


def _looks(query: Query) -> bool:
    """Whether there is a condition that no index has, and none that one has."""
    by_end = query.get("sort", "").endswith("ended")
    statuses = list_of(query, "status", STATUSES)
    wanted = any(query.get(name) for name in ("name", "version", "behind")) or not RARE_STATUSES.issuperset(statuses)
    if by_end:  # which is the only index that it reads
        return wanted or any(query.get(name) for name in FILTERS if name != "sort")
    return wanted and not any(query.get(name) for name in ("session_id", "prefix", "label"))


async def matching(client: Client, query: Query, status: Collection[InstanceStatus]) -> Sequence[str]:
    """The ids of instances that fit and have one of these statuses, at most `MAX_MATCHING`."""
    where = conditions(query)
    wanted = [each for each in status if each in where.get("status", status)]
    if not wanted:
        return []
    where.pop("sort", None)
    if {*wanted} & FINISHED and "name_suffix" not in where:  # a conversation begins with a message
        where |= name_conditions(is_conversation=False)
    page = await client.list_instances(**{**where, "status": wanted}).page(limit=MAX_MATCHING)
    return [each.instance_id for each in page.items]


async def instances(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the instances that fit, newest first; with ``count`` how many an action on the list would change."""
    page = await client.list_instances(**conditions(query)).page(query.get("after") or None, limit=ROWS)
    counts, sort = {}, query.get("sort") or "-started"
    if query.get("count"):
        counts = {name: len(await matching(client, query, status)) for name, status in TOGETHER.items()}
    return {
        "page": page,
        "statuses": STATUSES,
        "chosen": list_of(query, "status", STATUSES),
        "sorts": SORTS,
        "behind": BEHIND,
        "within": WITHIN,
        "by_end": sort.endswith("ended"),
        "newest": sort.startswith("-"),
        "sampled": LOOKED_AT if sort.endswith("duration") else None,
        "filters": given(query, *FILTERS),
        "looked_at": LOOKED_AT if _looks(query) and len(page.items) < ROWS else None,
        "counts": counts,
        "most": MAX_MATCHING,
        "together": {
            "cancel": ("cancel", "Cancel", "cancelled"),
            "resume": ("resume", "Resume", "resumed"),
            "rerun": ("start", "Run again", "run again"),
        },
        "say": payloads.text,
    }


async def instance(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """One instance: the sentence, its time axis, its events, and its tree; with ``failures`` only what has failed."""
    instance_id = required(query, "id")
    found = await client.status(instance_id)
    waits_for = None if found.finished else await client.explain(instance_id)
    only_failed = bool(query.get("failures"))
    whole = await client.history(instance_id) if found.event_count <= MAX_READ else None
    listed = whole if whole is None or not only_failed else [each for each in whole if is_failure(each)]
    count = found.event_count if listed is None else len(listed)
    after = max(0, (number(query, "from") or count - EVENTS + 1) - 1)
    events = await _events(client, instance_id, after) if listed is None else listed[after : after + EVENTS]
    tree = await client.tree(instance_id, limit=ROWS)
    values = await _set_values(client, instance_id)
    gantt = None if whole is None else await _gantt(client, found, whole, only_failed=only_failed)
    failed = await client.failed_attempts(instance_id, execution_id=found.execution_id)
    attempts = _attempts(failed, () if whole is None else whole, payloads)
    on_axis = set() if gantt is None else {line.event_id for line, _ in gantt.lines}
    return {
        "instance": found,
        "attempts": attempts,
        "other_attempts": [key for key in attempts if key not in on_axis][-MAX_ATTEMPTS:],
        "waits_for": waits_for,
        "sentence": "" if waits_for is None else payloads.text("sentence", waits_for.code, waits_for.sentence),
        "only_failed": only_failed,
        "gantt": gantt,
        "points": _points(gantt),
        "conversation": found.name.endswith(SUFFIX),
        "most_lines": MAX_LINES,
        "say": payloads.text,
        "is_long": whole is None,
        "events": [_event(each, payloads) for each in events],
        "first": after + 1,
        "later": after + EVENTS + 1 if after + EVENTS < count else None,
        "per_page": EVENTS,
        "about": _about(found, whole or await _events(client, instance_id, 0, 1)),
        "span_of": span_of,
        "nodes": [each for each in tree.nodes if each.depth and (not only_failed or each.status in _FAILURES)],
        "truncated": tree.truncated,
        "values": {
            key: payloads.show(f"value-{n}", "value", key, value) for n, (key, value) in enumerate(values.items())
        },
        **_values(found, whole or await _events(client, instance_id, 0, 10), payloads),
    }


@dataclass(frozen=True, slots=True)
class Attempts:
    """The failed attempts of one activity."""

    name: str
    last: Sequence[tuple[FailureRecord, Payload]]
    earlier: int  # that are left out


def _attempts(
    failed: Iterable[FailureRecord], history: Sequence[HistoryRecord], payloads: Payloads
) -> Mapping[int, Attempts]:
    """The failed attempts of each activity. The stack of one that was not repeated is in the history."""
    ended = [each.fields for each in history if each.type == "activity_failed"]
    stacks = {fields["schedule_id"]: fields.get("stack") for fields in ended}
    of = defaultdict[int, list[FailureRecord]](list)
    for each in failed:
        of[each.activity_id].append(each)

    def show(one: FailureRecord) -> Payload:
        message = one.error.removeprefix(f"{one.error_type}: ")
        stack = one.stack if one.is_retried else stacks.get(one.activity_id)
        error = {"type": one.error_type, "message": message, "stack": stack}
        return payloads.error(f"attempt-{one.activity_id}-{one.attempt}", one.name, error)

    return {
        key: Attempts(
            found[0].name, [(one, show(one)) for one in found[-MAX_ATTEMPTS:]], max(0, len(found) - MAX_ATTEMPTS)
        )
        for key, found in sorted(of.items())
    }


def _about(found: Instance, first: Sequence[HistoryRecord]) -> dict[str, object]:
    """Values for links to other systems; ``first``: the beginning of the history."""
    started = next((each.fields for each in first if each.type == "orchestration_started"), {})
    return {
        "instance_id": found.instance_id,
        "execution_id": found.execution_id,
        "name": found.name,
        "session_id": found.session_id,
        "worker_id": found.owner,
        "trace_id": trace_id_of(started.get("trace")),
        **span_of(found.created_at, found.updated_at if found.finished else None),
    }


async def reset(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """What a reset of an instance to an event would do: what is kept, what is dropped, and what runs again."""
    instance_id, event = required(query, "id"), number(query, "event")
    if event is None:
        raise InvalidInput("name the last event that counts")
    try:
        preview = await client.preview_reset(instance_id, to_event=event)
    except PayloadUnreadable as error:
        return {"instance": await client.status(instance_id), "event": event, "unreadable": str(error)}
    dropped = await _events(client, instance_id, preview.kept)
    return {
        "instance": await client.status(instance_id),
        "event": event,
        "preview": preview,
        "unreadable": "",
        "dropped": [_event(each, payloads) for each in dropped],
        "later": preview.event_count - preview.kept - len(dropped),
    }


async def _gantt(
    client: Client, found: Instance, history: Sequence[HistoryRecord], *, only_failed: bool
) -> Gantt | None:
    lines = lines_of(await client.activities(found.instance_id), history)
    instants = [each.recorded_at for each in history if each.recorded_at is not None]
    ended = found.updated_at if found.finished else None
    return gantt_of(lines, instants, ended=ended, shown=(lambda line: line.has_failed) if only_failed else None)


async def _set_values(client: Client, instance_id: str) -> Mapping[str, Any]:
    try:
        return await client.values(instance_id)
    except PayloadUnreadable as error:
        return {"*": f"({error})"}


def _points(gantt: Gantt | None) -> Sequence[tuple[int, GanttLine]]:
    """Points of a reset: the last events before what the time axis shows, newest first."""
    lines = [] if gantt is None else [line for line, _ in gantt.lines if line.event_id > 1]
    return [(line.event_id - 1, line) for line in reversed(lines)][:ROWS]


async def _events(client: Client, instance_id: str, after: int, limit: int = EVENTS) -> Sequence[HistoryRecord]:
    events: list[HistoryRecord] = []
    async for each in client.history(instance_id, after=after):
        events.append(each)
        if len(events) == limit:
            break
    return events


def _event(event: HistoryRecord, payloads: Payloads) -> tuple[HistoryRecord, Payload]:
    name = str(event.fields.get("name") or event.type)
    return event, payloads.show(f"event-{event.event_id}", "event", name, dict(event.fields))


def _values(found: Instance, first: Sequence[HistoryRecord], payloads: Payloads) -> dict[str, Payload | None]:
    """The values of an instance that the application has made; ``first``: the beginning of its history."""
    error = None if found.error is None else {**found.error._asdict(), "stack": found.error_stack}
    why = found.suspension
    values = {
        "input": next((each.fields.get("input") for each in first if each.type == "orchestration_started"), None),
        "custom_status": found.custom_status,
        "output": found.output if found.status == "completed" else None,
        "error": error if why is None else {"type": why.error_type, "message": why.message, "code": why.code},
    }
    shown = {
        name: None if value is None else payloads.show(name, name, found.name, value)
        for name, value in values.items()
        if name != "error"
    }
    failed = values["error"]
    return shown | {"error": None if failed is None else payloads.error("error", found.name, failed)}
