"""How far the rounds of a measurement are, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console

from affinity.cli.progress import has_bars


@contextmanager
def rounds_shown(total: int) -> Iterator[Callable[[], None]]:
    """Gives a function that is called behind each measurement, of which there are so many: a bar on stderr moves.

    It is drawn at these calls alone, so that it takes no time from what is measured. Elsewhere than on a terminal there
    is none.
    """
    if not has_bars():
        yield lambda: None
        return
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        measured = bar.add_task("measured", total=total)
        bar.refresh()

        def advance() -> None:
            bar.update(measured, advance=1, refresh=True)

        yield advance


def say(line: str) -> None:
    """Write a line to stderr, above the bar if there is one: `sys.stderr` is the bar's meanwhile."""
    print(line, file=sys.stderr)
