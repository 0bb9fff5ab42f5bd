"""What people see while it runs: a table that moves on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_SECONDS: Final = 3.0
"""Between two lines where there is no terminal."""

BAR_WIDTH: Final = 40

_STYLES: Final = {"alive": "green", "killed": "bold red", "no lease": "yellow", "gone": "red"}


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


class Display(Protocol):
    """Where a run shows itself."""

    def show(self, view: View) -> None:
        """The run is now like this."""
        ...

    def say(self, text: str) -> None:
        """Something has happened."""
        ...


class Lines:
    """One line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = -LINE_SECONDS

    def show(self, view: View) -> None:
        """Print a line when the last one is old enough."""
        if time.monotonic() - self._shown >= LINE_SECONDS:
            self._shown = time.monotonic()
            self._console.print(_line(view))

    def say(self, text: str) -> None:
        """Print it."""
        self._console.print(text)


class LiveTable:
    """A table that stays in its place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, view: View) -> None:
        """Redraw."""
        self._live.update(_table(view), refresh=True)

    def say(self, text: str) -> None:
        """Print it above the table."""
        self._live.console.print(text)


@contextmanager
def open_display(console: Console) -> Iterator[Display]:
    """The display that fits the console."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live)


def counted(number: int, noun: str) -> str:
    """Words like "1 session", "2 sessions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _line(view: View) -> str:
    held = ", ".join(f"{worker.name} {_state(worker)}" for worker in view.workers)
    return f"{view.elapsed:5.1f} s  {view.turns}/{view.total} turns, {counted(view.migrated, 'session')} moved; {held}"


def _state(worker: WorkerView) -> str:
    return counted(worker.sessions, "session") if worker.state == "alive" else worker.state


def _table(view: View) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("WORKER")
    table.add_column("PID", justify="right")
    table.add_column("STATE")
    table.add_column("SESSIONS", justify="right")
    table.add_column("TURNS", justify="right")
    for worker in view.workers:
        state = Text(worker.state, style=_STYLES[worker.state])
        table.add_row(worker.name, str(worker.pid), state, str(worker.sessions), str(worker.turns))
    return Group(table, _progress(view))


def _progress(view: View) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    text = f"{view.turns}/{view.total} turns, {counted(view.migrated, 'session')} moved, {view.elapsed:.0f} s"
    row.add_row(ProgressBar(total=view.total, completed=view.turns, width=BAR_WIDTH), text)
    return row
