"""What a run has shown, for scripts and for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from affinity.demo.plan import LEASE_SECONDS, RECOVERY_SLACK

SHOWN: Final = 20
"""Differences that are printed; after these, only their number."""


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
    recovery_seconds: float | None  # None: nobody was killed
    turns_per_second: float
    states_agreed: int  # sessions whose state and history tell the same
    refused_writes: int

    def as_json(self) -> dict[str, Any]:
        """One object."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    report: Report
    good: bool
    differences: tuple[str, ...]
    story: tuple[str, ...]  # what happened, in sentences


def print_summary(console: Console, outcome: Outcome) -> None:
    """Print what happened, what it proves, and what is wrong."""
    for sentence in outcome.story:
        console.print(sentence)
    console.print(_facts(outcome.report))
    print_differences(console, outcome)
    if outcome.good:
        console.print(
            "Every transcript is complete, in order, with nothing in it twice, and the history says the same.",
            style="bold green",
        )


def print_differences(console: Console, outcome: Outcome) -> None:
    """Print what is not as the data set has it."""
    for difference in outcome.differences[:SHOWN]:
        console.print(difference, style="red")
    if len(outcome.differences) > SHOWN:
        console.print(f"and {len(outcome.differences) - SHOWN} more differences", style="red")


def _facts(report: Report) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for value, meaning in _rows(report):
        table.add_row(value, meaning)
    return table


def _rows(report: Report) -> Iterable[tuple[str, str]]:
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
