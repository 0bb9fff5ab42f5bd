"""What is encoded of schedules."""

from __future__ import annotations

from typing import Final

from affinity.payloads.table import Encoded, PayloadPart, Record
from affinity.schedules.store.contract import ScheduleRow

PART: Final = PayloadPart(
    records={
        ScheduleRow: Record(
            scope="name",
            fields={
                "spec": Encoded("object", "schedules.spec", name="schedule"),
                "note": Encoded("text", "schedules.note", name="schedule_note"),
            },
        ),
    },
    metadata={
        "names and versions of code, and classes of errors": "schedules.app schedules.code schedules.name",
        "random names, and the place of the server": "schedules.generation",
        "words of affinity": "schedules.paused",
        "an id, by which rows are found and ordered": "schedules.running",
    },
)
