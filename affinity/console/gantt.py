"""The time axis of an instance: what it has scheduled, and when each part waited and ran. Idle time is folded.

Time is idle while no activity is queued or runs, and nothing is recorded. A long idle time takes a short piece of the
axis, which each line marks; its title has the exact times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby, pairwise
from typing import Final

from affinity.client import Activity, HistoryRecord
from affinity.console.strip import WIDTH, color_of

LEAST_IDLE: Final = 5.0
"""Seconds; a shorter idle time is not folded."""

IDLE_SHARE: Final = 0.2
"""Nor is an idle time that is shorter than this share of all other time."""

FOLD_WIDTH: Final = 30.0
MAX_FOLDED: Final = 300.0
"""Units of the axis that a folded time takes, and all of them together."""

MAX_LINES: Final = 100

LEAST_EQUAL: Final = 5
"""Lines of one name that are one row."""

LEAST_WIDTH: Final = 2.0
"""Units of a bar at least."""

_RUN: Final = frozenset({"activity", "span"})

FAILED: Final = frozenset({"failed", "refused"})
"""Statuses of lines, and ends of the types of events, that are failures."""

_BEGINS: Final[Mapping[str, tuple[str, str]]] = {
    "timer_created": ("timer", "delay"),
    "event_awaited": ("event", "name"),
    "sub_orchestration_scheduled": ("child", "instance_id"),
}
"""Events that begin a line: its kind, and the field that names it."""

_ENDS: Final[Mapping[str, str]] = {
    "timer_fired": "fired",
    "timer_cancelled": "cancelled",
    "event_await_cancelled": "cancelled",
    "event_refused": "refused",
    "event_accepted": "raised",
    "sub_orchestration_completed": "completed",
    "sub_orchestration_failed": "failed",
    "sub_orchestration_cancelled": "cancelled",
}
"""Events that end a line, and its status then. After a refused event the line goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttLine:
    """One activity, timer, awaited event, raised event or child; or a span of a wake."""

    kind: str  # "activity", "timer", "event", "child" or "span"
    name: str
    event_id: int  # of its beginning
    begin: datetime
    started: datetime | None = None  # of an activity: when the last attempt began to run
    end: datetime | None = None  # None: it goes on
    status: str
    attempt: int | None = None
    worker_id: str | None = None  # that runs it, or has
    activity: Activity | None = None

    @property
    def has_failed(self) -> bool:
        """Or an attempt of it has."""
        return self.status in FAILED or (self.activity is not None and self.activity.last_error is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttBar:
    """A piece of a line."""

    x: float
    width: float
    style: str  # class of the style sheet
    title: str


@dataclass(frozen=True, slots=True)
class GanttGroup:
    """Lines of one kind and name that follow each other."""

    lines: Sequence[tuple[GanttLine, Sequence[GanttBar]]]

    @property
    def is_folded(self) -> bool:
        """Whether they are one row, which opens."""
        return len(self.lines) >= LEAST_EQUAL

    @property
    def first(self) -> GanttLine:
        """The line that began first."""
        return self.lines[0][0]

    @property
    def bars(self) -> Sequence[GanttBar]:
        """The bars of all lines: first those behind the others."""
        return sorted((bar for _, bars in self.lines for bar in bars), key=lambda bar: bar.style != "queued")

    @property
    def statuses(self) -> Mapping[str, int]:
        """Numbers of lines by status, failed ones first."""
        counts = Counter(line.status for line, _ in self.lines)
        return dict(sorted(counts.items(), key=lambda item: item[0] not in FAILED))

    @property
    def end(self) -> datetime | None:
        """When the last line ended; None: one goes on."""
        ends = [line.end for line, _ in self.lines]
        return None if None in ends else max(end for end in ends if end is not None)


@dataclass(frozen=True, slots=True)
class Gantt:
    """Lines with their bars, in the order of their beginnings, and the times that are folded."""

    lines: Sequence[tuple[GanttLine, Sequence[GanttBar]]]  # the last `MAX_LINES` of them
    count: int  # of all that are wanted
    folds: Sequence[GanttBar]
    begin: datetime
    end: datetime

    @property
    def groups(self) -> Sequence[GanttGroup]:
        """The lines, in groups."""
        return [
            GanttGroup([*lines]) for _, lines in groupby(self.lines, key=lambda shown: (shown[0].kind, shown[0].name))
        ]


def is_failure(event: HistoryRecord) -> bool:
    """Whether the event says that something has failed."""
    return event.type.rpartition("_")[2] in FAILED


def lines_of(activities: Iterable[Activity], events: Iterable[HistoryRecord]) -> list[GanttLine]:
    """What an execution has scheduled, in the order of its history."""
    found: dict[int, GanttLine] = {one.activity_id: line for one in activities if (line := _line_of(one)) is not None}
    awaited: dict[str, list[int]] = {}
    for event in events:
        if event.recorded_at is None:
            continue
        if event.type in _BEGINS:
            found[event.event_id] = line = _begun(event, event.recorded_at)
            if line.kind == "event":
                awaited.setdefault(line.name, []).append(event.event_id)
        elif event.type == "event_raised":
            _raise(event, event.recorded_at, found, awaited)
        elif (status := _ENDS.get(event.type)) is not None and (key := event.fields.get("schedule_id")) in found:
            found[key] = replace(found[key], status=status, end=None if status == "refused" else event.recorded_at)
    return [found[key] for key in sorted(found)]


def _line_of(one: Activity) -> GanttLine | None:
    if one.scheduled_at is None:
        return None
    return GanttLine(
        kind="activity",
        name=one.name,
        event_id=one.activity_id,
        begin=one.scheduled_at,
        started=one.started_at,
        end=one.ended_at,
        status=one.status,
        attempt=one.attempt,
        worker_id=one.worker_id,
        activity=one,
    )


def _begun(event: HistoryRecord, at: datetime) -> GanttLine:
    kind, field = _BEGINS[event.type]
    name = str(event.fields.get(field))
    text = f"timer of {name} s" if kind == "timer" else name
    return GanttLine(kind=kind, name=text, event_id=event.event_id, begin=at, status="waits")


def _raise(event: HistoryRecord, at: datetime, found: dict[int, GanttLine], awaited: dict[str, list[int]]) -> None:
    """An event ends the first wait for its name; without one it has a line of its own."""
    name = str(event.fields.get("name"))
    waits = [key for key in awaited.get(name, ()) if found[key].end is None]
    if waits:
        found[waits[0]] = replace(found[waits[0]], status="raised", end=at)
    else:
        found[event.event_id] = GanttLine(
            kind="event", name=name, event_id=event.event_id, begin=at, end=at, status="raised"
        )


# -- the axis


def gantt_of(
    lines: Sequence[GanttLine],
    instants: Iterable[datetime],
    *,
    ended: datetime | None,
    shown: Callable[[GanttLine], bool] | None = None,
    now: datetime | None = None,
) -> Gantt | None:
    """The bars of lines. None: there are none.

    Args:
        lines: of one execution.
        instants: when something was recorded; the time between them is idle unless an activity covers it.
        ended: when the execution has ended; None: it goes on.
        shown: the lines that are wanted; None: all.
        now: the end of what goes on; by default the time.
    """
    if not lines:
        return None
    last = max(line.end or line.started or line.begin for line in lines)
    end = max(ended or now or datetime.now(UTC), last)
    begin = min(line.begin for line in lines)
    busy = [(line.begin, line.end or end) for line in lines if line.kind in _RUN]
    axis = _Axis(begin, end, busy, instants)
    found = lines if shown is None else [line for line in lines if shown(line)]
    bars = [(line, _bars(line, axis, end)) for line in found[-MAX_LINES:]]
    return Gantt(bars, len(found), axis.folds, begin, end)


class _Axis:
    """Places of times, with idle times folded."""

    def __init__(
        self, begin: datetime, end: datetime, busy: Iterable[tuple[datetime, datetime]], instants: Iterable[datetime]
    ) -> None:
        self._begin = begin
        intervals = sorted([*busy, *((at, at) for at in instants if begin <= at <= end), (end, end)])
        gaps: list[tuple[float, float]] = []
        until = begin
        for since, to in intervals:
            if since > until:
                gaps.append((self._seconds(until), self._seconds(since)))
            until = max(until, to)
        whole = self._seconds(end)
        idle = [gap for gap in gaps if gap[1] - gap[0] > LEAST_IDLE]
        rest = whole - sum(to - since for since, to in idle)
        folded = [gap for gap in idle if gap[1] - gap[0] > IDLE_SHARE * rest]
        self._set_scale(whole, folded)
        self.folds: list[GanttBar] = [self._fold(*gap) for gap in folded]

    def _set_scale(self, whole: float, folded: Sequence[tuple[float, float]]) -> None:
        """Breakpoints in seconds, and their places."""
        each = min(FOLD_WIDTH, MAX_FOLDED / len(folded)) if folded else 0.0
        left = max(whole - sum(to - since for since, to in folded), 0.001)
        scale = (WIDTH - each * len(folded)) / left
        points = [0.0, *(edge for gap in folded for edge in gap), max(whole, 0.001)]
        widths = [each if n % 2 else (to - since) * scale for n, (since, to) in enumerate(pairwise(points))]
        self._points, self._places = points, [0.0, *accumulate(widths)]

    def _seconds(self, at: datetime) -> float:
        return (at - self._begin).total_seconds()

    def place(self, at: datetime) -> float:
        """The place of a time."""
        return self._place(self._seconds(at))

    def _place(self, seconds: float) -> float:
        n = min(max(bisect_right(self._points, seconds) - 1, 0), len(self._points) - 2)
        since, to = self._points[n], self._points[n + 1]
        share = (seconds - since) / (to - since) if to > since else 0.0
        return self._places[n] + min(max(share, 0.0), 1.0) * (self._places[n + 1] - self._places[n])

    def _fold(self, since: float, to: float) -> GanttBar:
        begin, end = self._begin + timedelta(seconds=since), self._begin + timedelta(seconds=to)
        x = self._place(since)
        return GanttBar(
            x=round(x, 2), width=round(self._place(to) - x, 2), style="fold", title=_title("idle", begin, end)
        )


def _bars(line: GanttLine, axis: _Axis, end: datetime) -> list[GanttBar]:
    until = line.end or end
    if line.kind not in _RUN:
        return [_bar(axis, line.kind, line.begin, until, line.kind if line.end else f"{line.kind}, goes on")]
    if line.kind == "activity" and line.started is None:
        return [_bar(axis, "queued", line.begin, until, "in the queue")]
    started = line.started or line.begin
    waits = [_bar(axis, "queued", line.begin, started, "in the queue")] if started > line.begin else []
    style = "run" if line.worker_id is None else f"run w{color_of(line.worker_id)}"
    return [*waits, _bar(axis, style, started, until, "runs" if line.end is None else "ran")]


def _bar(axis: _Axis, style: str, since: datetime, until: datetime, what: str) -> GanttBar:
    x = min(axis.place(since), WIDTH - LEAST_WIDTH)
    width = max(axis.place(until) - x, LEAST_WIDTH)
    return GanttBar(x=round(x, 2), width=round(width, 2), style=style, title=_title(what, since, until))


def _title(what: str, since: datetime, until: datetime) -> str:
    seconds = (until - since).total_seconds()
    return f"{what} {seconds:.3f} s: {since:%Y-%m-%d %H:%M:%S.%f} to {until:%Y-%m-%d %H:%M:%S.%f} UTC"
