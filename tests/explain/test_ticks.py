"""What a schedule waits for, as a sentence: from rows, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from affinity.provider.contract import Incarnation, WorkerInfo
from affinity.schedules.reasons import explain_schedule
from affinity.schedules.store.contract import ScheduleRow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROW = ScheduleRow(name="nightly", generation="g", spec="{}", next_due=NOW + timedelta(hours=1))
WORKER = WorkerInfo(
    worker_id="w", incarnation=Incarnation("w-1"), alive=True, draining=False, expires_in=9.0, started_at=NOW,
    sessions=0, labels={}, capacity=10, code_version="1", code_since=NOW, registered={},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "workers", "sentence", "late"),
    [
        ({}, [WORKER], "ticks next at 2026-03-01 13:00:00 UTC", None),
        ({"note": "'i': finished"}, [WORKER], "ticks next at 2026-03-01 13:00:00 UTC ('i': finished)", None),
        ({"next_due": NOW - timedelta(seconds=1)}, [WORKER], "ticks next at 2026-03-01 11:59:59 UTC", None),
        ({"next_due": NOW - timedelta(seconds=60)}, [WORKER], "is late: its tick was due at 2026-03-01 11:59", 60.0),
        ({"next_due": NOW - timedelta(seconds=60)}, [], "does not tick: no worker is alive", 60.0),
        ({}, [replace(WORKER, draining=True)], "does not tick: no worker is alive that does not drain", None),
        ({"paused": "operator", "note": "migration", "next_due": None}, [], "is paused (migration): `affinity", None),
        ({"paused": "undeclared", "next_due": None}, [WORKER], "is paused: declare it again", None),
        ({"queued": NOW, "running": "i"}, [WORKER], "waits with the tick of 2026-03-01 12:00:00 UTC", None),
        ({"next_due": None}, [], "has no more ticks", None),
    ],
)
def test_a_schedule_says_why_it_ticks_or_not(
    changes: dict[str, Any], workers: list[WorkerInfo], sentence: str, late: float | None
) -> None:
    found = explain_schedule(replace(ROW, **changes), workers, NOW)
    assert found.sentence.startswith(f"schedule 'nightly' {sentence}")
    assert found.late_seconds == late
