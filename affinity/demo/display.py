"""Output of the demo: a line that is renewed while it runs, then the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.live import Live

LEASE_SECONDS: Final = 5.0  # of workers: shorter than the default, so that the survivors take over soon
RECOVERY_SLACK: Final = 2.0  # seconds after the lease within which the last orphaned session is to be served again
LINE_SECONDS: Final = 3.0  # between two lines where there is no terminal


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 session", "2 sessions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Display:
    """The output of a run while it runs."""

    def __init__(self, console: Console) -> None:
        self.say: Callable[..., None] = console.print
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
    """The result of a run; ``--json`` prints it under the same names."""

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
    differences: tuple[str, ...]  # from what must be; empty for a good run
    story: tuple[str, ...]  # what happened, in sentences
