"""The chart of moves: which bars stand where."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from affinity.console.chart import HEIGHT, STEP, STEPS, chart_of
from affinity.console.strip import WIDTH
from affinity.provider.contract import MoveReason, SessionMove

NOW = datetime(2026, 3, 1, 12, 2, 30, tzinfo=UTC)


def move(reason: MoveReason, ago: timedelta) -> SessionMove:
    return SessionMove(
        session_id="s", from_worker="a", to_worker="b", epoch=1, reason=reason, moved_at=NOW - ago, queued=0,
        hydrate_seconds=None, hydrate_bytes=None,
    )  # fmt: skip


def test_moves_stand_in_their_five_minutes_on_top_of_each_other() -> None:
    """The highest step has the whole height; what is older than an hour is left out."""
    minute = timedelta(minutes=1)
    moves = [move("moved", 61 * minute), move("drained", 50 * minute), *[move("moved", minute)] * 3]
    chart = chart_of([*moves, move("drained", minute)], NOW)
    assert chart.begin == datetime(2026, 3, 1, 11, 5, tzinfo=UTC)
    assert chart.highest == 4
    assert [(reason, count) for reason, _, count in chart.reasons] == [("moved", 3), ("drained", 2)]
    drained, bottom, top = sorted(chart.bars, key=lambda bar: (bar.x, -bar.y))
    assert (drained.reason, drained.count, drained.at) == ("drained", 1, chart.begin + STEP)
    assert (bottom.at, top.at) == (NOW.replace(minute=0, second=0), NOW.replace(minute=0, second=0))
    assert bottom.height + top.height == HEIGHT
    assert (bottom.y + bottom.height, top.y, top.y + top.height) == (HEIGHT, 0, bottom.y)
    assert WIDTH * (STEPS - 1) / STEPS <= top.x < top.x + top.width <= WIDTH
    assert bottom.color != top.color


def test_without_moves_there_are_no_bars() -> None:
    assert chart_of([], NOW).bars == []
