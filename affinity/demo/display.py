"""Output of the demo: a line that is renewed while it runs, then the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

LEASE_SECONDS: Final = 5.0  # of workers: shorter than the default, so that the survivors take over soon
RECOVERY_SLACK: Final = 2.0  # seconds after the lease within which the last orphaned session is to be served again
LINE_SECONDS: Final = 3.0  # between two lines where there is no terminal
MAX_DIFFERENCES: Final = 20  # that are printed; of the others only their number


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 session", "2 sessions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Display:
    """The output of a run while it runs."""

    def __init__(self, console: Console) -> None:
        self.say = console.print
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next_line = 0.0

    def opened(self) -> AbstractContextManager[object]:
        """A context in which `show` works on a terminal."""
        return self._live or nullcontext()

    def show(self, progress: str) -> None:
        """Show how far the run is: on a terminal in one place, else in a new line every few seconds."""
        if self._live is not None:
            self._live.update(progress, refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self.say(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
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
class DemoOutcome:
    """How a run ended."""

    report: DemoReport
    differences: tuple[str, ...]  # from what must be; empty for a good run
    story: tuple[str, ...]  # what happened, in sentences


def print_summary(console: Console, outcome: DemoOutcome) -> None:
    """Print what happened, what was verified, and what is wrong."""
    console.print("\n".join(outcome.story))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    for value, meaning in _rows(outcome.report):
        table.add_row(value, meaning)
    console.print(table)
    print_differences(console, outcome)
    if not outcome.differences:
        text = "Every transcript is complete, in order, without duplicates, and the history agrees."
        console.print(text, style="bold green")


def print_differences(console: Console, outcome: DemoOutcome) -> None:
    """Print what differs from the data set."""
    for difference in outcome.differences[:MAX_DIFFERENCES]:
        console.print(difference, style="red")
    if (more := len(outcome.differences) - MAX_DIFFERENCES) > 0:
        console.print(f"and {more} more differences", style="red")


def _rows(report: DemoReport) -> Iterator[tuple[str, str]]:
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
        late = ", later than it should be" if report.recovery_seconds > LEASE_SECONDS + RECOVERY_SLACK else ""
        bound = f"bound: {LEASE_SECONDS:g} s worker lease + {RECOVERY_SLACK:g} s"
        meaning = f"from the kill until the last orphaned session was served again ({bound}){late}"
        yield f"{report.recovery_seconds:.1f} s", meaning
