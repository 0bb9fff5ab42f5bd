"""Output of the demo: progress while it runs (a table on a terminal, else lines), then the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from affinity.demo.plan import LEASE_SECONDS, RECOVERY_SLACK

LINE_SECONDS: Final = 3.0
"""Between two lines where there is no terminal."""

BAR_WIDTH: Final = 40

MAX_DIFFERENCES: Final = 20
"""Differences that are printed; of the others only their number."""

_STYLES: Final = {"alive": "green", "killed": "bold red", "no lease": "yellow", "gone": "red"}


# --- while it runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker as it is now."""

    name: str
    pid: int
    state: str  # a key of `_STYLES`
    sessions: int  # held
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The run as it is now."""

    elapsed: float
    workers: Sequence[WorkerView]
    turns: int
    total: int
    migrated: int  # sessions that have been on more than one worker

    @property
    def progress(self) -> str:
        """Turns and moves, in words."""
        return f"{self.turns}/{self.total} turns, {counted(self.migrated, 'session')} moved"


@dataclass(frozen=True, slots=True)
class Display:
    """The output of a run while it runs."""

    show: Callable[[View], None]
    say: Callable[[str], None]


@contextmanager
def open_display(console: Console) -> Iterator[Display]:
    """The display that fits the console."""
    if not console.is_terminal:
        yield Display(_line_printer(console), console.print)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Display(lambda view: live.update(_table(view), refresh=True), live.console.print)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 session", "2 sessions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _line_printer(console: Console) -> Callable[[View], None]:
    shown = -LINE_SECONDS

    def show(view: View) -> None:
        nonlocal shown
        if time.monotonic() - shown >= LINE_SECONDS:
            shown = time.monotonic()
            console.print(f"{view.elapsed:5.1f} s  {view.progress}; {', '.join(map(_held, view.workers))}")

    return show


def _held(worker: WorkerView) -> str:
    return f"{worker.name} {counted(worker.sessions, 'session') if worker.state == 'alive' else worker.state}"


def _table(view: View) -> RenderableType:
    table = Table("WORKER", box=None, header_style="bold", pad_edge=False)
    for column in ("PID", "STATE", "SESSIONS", "TURNS"):
        table.add_column(column, justify="left" if column == "STATE" else "right")
    for worker in view.workers:
        state = Text(worker.state, style=_STYLES[worker.state])
        table.add_row(worker.name, str(worker.pid), state, str(worker.sessions), str(worker.turns))
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=view.total, completed=view.turns, width=BAR_WIDTH)
    row.add_row(bar, f"{view.progress}, {view.elapsed:.0f} s")
    return Group(table, row)


# --- at the end -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The numbers of a run; the names are those of ``--json``."""

    provider: str
    workers: int
    sessions: int
    turns: int
    killed_workers: int
    migrated_sessions: int
    hydrations: int
    turns_off_holder: int
    lost_turns: int
    duplicated_results: int
    transcripts_verified: int
    recovery_seconds: float | None  # None: no worker was killed
    turns_per_second: float
    states_agreed: int  # sessions whose state and history agree
    refused_writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    report: Report
    good: bool
    differences: tuple[str, ...]
    story: tuple[str, ...]  # what happened, in sentences


def print_summary(console: Console, outcome: Outcome) -> None:
    """Print what happened, what was verified, and what is wrong."""
    for sentence in outcome.story:
        console.print(sentence)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    for value, meaning in _rows(outcome.report):
        table.add_row(value, meaning)
    console.print(table)
    print_differences(console, outcome)
    if outcome.good:
        console.print(
            "Every transcript is complete, in order, without duplicates, and the history agrees.",
            style="bold green",
        )


def print_differences(console: Console, outcome: Outcome) -> None:
    """Print what differs from the data set."""
    for difference in outcome.differences[:MAX_DIFFERENCES]:
        console.print(difference, style="red")
    if len(outcome.differences) > MAX_DIFFERENCES:
        console.print(f"and {len(outcome.differences) - MAX_DIFFERENCES} more differences", style="red")


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    yield f"{report.transcripts_verified}/{report.sessions}", "transcripts equal to the data set"
    yield f"{report.states_agreed}/{report.sessions}", "states that agree with the history of their session"
    yield str(report.turns), f"turns, {report.turns_per_second:.0f} a second on {report.provider}"
    yield str(report.lost_turns), "turns lost"
    yield str(report.duplicated_results), "results recorded twice"
    yield str(report.turns_off_holder), "turns on a worker that did not hold the session"
    yield str(report.migrated_sessions), "sessions moved to another worker"
    yield str(report.hydrations), "transcripts read from the database: a session's first turn, and after a move"
    yield str(report.refused_writes), "writes of a transcript refused, or never confirmed"
    if report.recovery_seconds is not None:
        bound = f"{LEASE_SECONDS:g} s worker lease + {RECOVERY_SLACK:g} s"
        late = "" if report.recovery_seconds <= LEASE_SECONDS + RECOVERY_SLACK else ", later than it should be"
        meaning = f"from the kill until the last orphaned session was served again (bound: {bound}){late}"
        yield f"{report.recovery_seconds:.1f} s", meaning
