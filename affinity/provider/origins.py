"""How origins of events are kept: one for each turn, on the row of its first event, so that a turn costs no more by its
number of events. What differs from that, the run of an activity, stands on the event's own row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from affinity.provider.contract import EventOrigin
from affinity.records import ActivityRun


class OriginRow(NamedTuple):
    """The columns of a row of ``history`` that has any of them."""

    event_id: int
    recorded_at: datetime | None  # None: with the rows before it
    recorded_events: int | None  # events of the turn, from this one on
    recorded_by: str | None
    run_by: str | None
    attempt: int | None


def origins_of(rows: Iterable[OriginRow]) -> list[EventOrigin]:
    """The origin of each event that has one; ``rows`` come in the order of the events."""
    kept = list(rows)
    runs = {row.event_id: ActivityRun(row.run_by, row.attempt) for row in kept if row.run_by and row.attempt}
    turns = [row for row in kept if row.recorded_at is not None]
    ends = [*(row.event_id for row in turns[1:]), sys.maxsize]  # a reset may have cut a turn off, and taken its place
    return [
        EventOrigin(event_id, row.recorded_at, row.recorded_by, runs.get(event_id))
        for row, end in zip(turns, ends, strict=False)
        if row.recorded_at is not None
        for event_id in range(row.event_id, min(row.event_id + (row.recorded_events or 1), end))
    ]
