"""The time axis of an instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from affinity.client import Activity, HistoryRecord
from affinity.console.gantt import FOLD_WIDTH, LEAST_EQUAL, MAX_FOLDED, Gantt, gantt_of, is_failure, lines_of
from affinity.console.strip import WIDTH, color_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def activity(number: int, scheduled: float, started: float | None, ended: float | None, **fields: Any) -> Activity:
    return Activity(
        execution_id=1,
        activity_id=number,
        session_id=None,
        scheduled_at=at(scheduled),
        started_at=None if started is None else at(started),
        ended_at=None if ended is None else at(ended),
        **{"name": "work", "status": "completed", "worker_id": "w", **fields},
    )


def event(number: int, kind: str, seconds: float, **fields: Any) -> HistoryRecord:
    return HistoryRecord(event_id=number, type=kind, fields=fields, recorded_at=at(seconds))


def drawn(*activities: Activity, events: tuple[HistoryRecord, ...] = (), **options: Any) -> Gantt:
    chosen = {"ended": None, "now": at(10), **options}
    found = gantt_of(lines_of(activities, events), [one.recorded_at or NOON for one in events], **chosen)
    assert found is not None
    return found


def test_the_queue_and_the_run_are_two_bars() -> None:
    """The run has the colour of its worker; without a wait there is one bar; what goes on ends now."""
    gantt = drawn(
        activity(1, 0, 4, 10),
        activity(2, 0, 0, 5, worker_id="other"),
        activity(3, 5, None, None, status="queued", worker_id=None),
        activity(4, 0, 5, None, status="running"),
    )
    bars = [[(bar.style, bar.x, bar.width) for bar in line] for _, line in gantt.lines]
    assert bars == [
        [("queued", 0, 400), (f"run w{color_of('w')}", 400, 600)],
        [(f"run w{color_of('other')}", 0, 500)],
        [("queued", 500, 500)],
        [("queued", 0, 500), (f"run w{color_of('w')}", 500, 500)],
    ]
    assert gantt.lines[0][1][0].title == (
        "in the queue 4.000 s: 2026-01-01 12:00:00.000000 to 2026-01-01 12:00:04.000000 UTC"
    )
    assert gantt.folds == []


def test_long_idle_times_are_folded() -> None:
    """What comes before and behind keeps its scale, and the exact time is in the title. A timer is idle time, and an
    activity in the queue is none.
    """
    day = 86_400.0
    events = (event(2, "timer_created", 10, delay=day), event(3, "timer_fired", 10 + day, schedule_id=2))
    gantt = drawn(activity(1, 0, 0, 10), activity(4, 10 + day, 10 + day, 20 + day), events=events, now=at(20 + day))
    (first,), (timer,), (last,) = [bars for _, bars in gantt.lines]
    (fold,) = gantt.folds
    assert (fold.x, fold.width) == (first.width, FOLD_WIDTH)
    assert first.width == last.width == (WIDTH - FOLD_WIDTH) / 2
    assert (last.x, last.x + last.width) == (fold.x + fold.width, WIDTH)
    assert (timer.x, timer.width) == (fold.x, fold.width)
    assert fold.title.startswith("idle 86400.000 s: 2026-01-01 12:00:10")
    waits = drawn(activity(1, 0, day, 10 + day), now=at(10 + day))
    assert waits.folds == []


def test_short_idle_times_are_not_folded() -> None:
    assert drawn(activity(1, 0, 0, 100), activity(2, 110, 110, 200), now=at(200)).folds == []
    assert drawn(activity(1, 0, 0, 0.1), activity(2, 4, 4, 4.1), now=at(4.1)).folds == []


def test_many_folds_leave_room() -> None:
    days = [activity(n, n * 86_400, n * 86_400, n * 86_400 + 1) for n in range(100)]
    gantt = drawn(*days, now=at(99 * 86_400 + 1))
    assert len(gantt.folds) == 99
    assert round(sum(bar.width for bar in gantt.folds)) == MAX_FOLDED
    bars = [line[0] for _, line in gantt.lines]
    assert all(one.x + one.width <= other.x for one, other in pairwise(bars))


def test_waits_end_with_their_event() -> None:
    """The first wait for a name ends with its first event; an event that none awaits stands alone."""
    events = (
        event(1, "event_awaited", 0, name="go"),
        event(2, "event_awaited", 0, name="go"),
        event(3, "event_raised", 2, name="go"),
        event(4, "event_raised", 3, name="other"),
        event(5, "event_refused", 4, schedule_id=2, name="go"),
        event(6, "sub_orchestration_scheduled", 5, instance_id="child"),
        event(7, "sub_orchestration_failed", 6, schedule_id=6),
        event(8, "timer_created", 7, delay=3),
        event(9, "timer_cancelled", 8, schedule_id=8),
    )
    lines = lines_of([], events)
    assert [(one.kind, one.name, one.status, one.end) for one in lines] == [
        ("event", "go", "raised", at(2)),
        ("event", "go", "refused", None),
        ("event", "other", "raised", at(3)),
        ("child", "child", "failed", at(6)),
        ("timer", "timer of 3 s", "cancelled", at(8)),
    ]
    assert [one.event_id for one in events if is_failure(one)] == [5, 7]


def test_equal_lines_that_follow_each_other_are_one_row() -> None:
    """From a few on; others stand apart."""
    equal = [activity(n, n, n, n + 1, status="failed" if n == 3 else "completed") for n in range(1, LEAST_EQUAL + 1)]
    gantt = drawn(*equal, activity(20, 20, None, None, name="other"), activity(21, 21, 21, 22), now=at(30))
    assert [(len(group.lines), group.is_folded) for group in gantt.groups] == [(5, True), (1, False), (1, False)]
    first, other, _ = gantt.groups
    assert list(first.statuses.items()) == [("failed", 1), ("completed", 4)]
    assert (first.first.event_id, first.end, other.end) == (1, at(6), None)
    assert len(first.bars) == 5


def test_only_what_has_failed() -> None:
    """On the axis of all."""
    works, fails = activity(1, 0, 0, 5), activity(2, 5, 5, 10, status="failed")
    retried = activity(3, 0, None, None, status="queued", worker_id=None, last_error="ValueError: no")
    gantt = drawn(works, fails, retried, shown=lambda line: line.has_failed)
    assert [(line.event_id, bars[0].x) for line, bars in gantt.lines] == [(2, 500), (3, 0)]
    assert gantt_of([], [], ended=None) is None
