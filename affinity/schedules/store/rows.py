"""Rows of ``schedules`` of either engine as records, and records as values of a row."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any, Final

from affinity.provider.rows import to_record
from affinity.schedules.store.contract import ScheduleRow

to_schedule: Final = partial(to_record, ScheduleRow)


def schedule_values(row: ScheduleRow) -> dict[str, Any]:
    """Return a schedule as JSON values, for a statement that writes it; times are Unix seconds."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: value.timestamp() if isinstance(value, datetime) else value for name, value in values.items()}
