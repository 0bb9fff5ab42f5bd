"""How origins are kept on the rows of a history, also where releases took turns at it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from affinity.provider.contract import EventOrigin
from affinity.provider.postgres.operations import same_time
from affinity.provider.rows import OriginRow, to_origins
from affinity.records import ActivityRun

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=1)


def test_events_that_an_older_release_recorded_have_none() -> None:
    """They are not taken for events of the turn before; 4 and 5 are such."""
    rows = [OriginRow(1, NOON, 3, "a", None, None), OriginRow(6, LATER, 1, "b", None, None)]
    assert to_origins(rows, same_time) == [
        EventOrigin(1, NOON, "a", None),
        EventOrigin(2, NOON, "a", None),
        EventOrigin(3, NOON, "a", None),
        EventOrigin(6, LATER, "b", None),
    ]


def test_what_a_reset_cut_off_is_not_taken_for_its_own() -> None:
    """Event 3 was of the turn of event 2, and is of the reset now; the run is of event 2."""
    rows = [OriginRow(2, NOON, 9, "a", "b", 4), OriginRow(3, LATER, 1, None, None, None)]
    assert to_origins(rows, same_time) == [
        EventOrigin(2, NOON, "a", ActivityRun("b", 4)),
        EventOrigin(3, LATER, None, None),
    ]


def test_a_run_without_a_turn_has_no_origin() -> None:
    assert to_origins([OriginRow(2, None, None, None, "b", 4)], same_time) == []
