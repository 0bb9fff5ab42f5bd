"""How origins of events are kept: one for each turn, on the row of its first event, so that a turn costs no more by its
number of events. What differs from that, the run of an activity, stands on the event's own row.
"""

from __future__ import annotations

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
    found: dict[int, EventOrigin] = {}
    for row in rows:
        if row.recorded_at is not None:
            # The tail of a turn that was cut by a reset belongs to the reset, whose row comes later and replaces it.
            for event_id in range(row.event_id, row.event_id + (row.recorded_events or 1)):
                found[event_id] = EventOrigin(event_id, row.recorded_at, row.recorded_by, None)
        if row.run_by is not None and row.attempt is not None and row.event_id in found:
            run = ActivityRun(row.run_by, row.attempt)
            found[row.event_id] = found[row.event_id]._replace(run=run)
    return [found[event_id] for event_id in sorted(found)]
