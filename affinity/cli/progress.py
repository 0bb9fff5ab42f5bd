"""How far long work has come: on a terminal a bar, elsewhere lines."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Final, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_FIRST_SHOWN: Final = 1.0  # seconds until something is shown; each pause between lines is longer than the one before …
_SHOWN_EVERY: Final = 10.0  # … up to this


class Progress:
    """Reports on stderr how far long work has come, and how far it came when it fails.

    Work that takes less than a second reports nothing.
    """

    def __init__(self, done: str, *, total: int | None = None, hint: str = "") -> None:
        """Lines read "``done`` 5000", or "``done`` 5000 of 9000" where the ``total`` is known; ``hint`` follows the
        last one of work that did not come to its end.
        """
        self._count = 0
        self._done, self._hint = done, hint
        self._total = total
        self._pause = _FIRST_SHOWN
        self._next = time.monotonic() + self._pause
        self._bar: _Bar | None = None
        self._is_over = False

    def __call__(self, count: int) -> None:
        self._count = count
        if (now := time.monotonic()) < self._next or self._is_over:
            return
        if has_bars():
            self._next = now + _BAR_EVERY
            self._bar = self._bar or _Bar(self._done, self._total)
            self._bar.move(count)
            return
        self._pause = min(self._pause * 1.5, _SHOWN_EVERY)
        self._next = now + self._pause
        of = "" if self._total is None else f" of {self._total}"
        click.echo(f"{self._done} {count}{of} …", err=True)

    def close(self) -> None:
        """Show nothing more: the work has ended, or other work is shown now."""
        self._is_over = True
        if self._bar is not None:
            self._bar.close()

    async def tick(self) -> None:
        """Report the last count too while a step takes long."""
        while True:
            await asyncio.sleep(max(self._next - time.monotonic(), 0.01))
            self(self._count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if error is not None and self._count:
            click.echo(f"{self._done} {self._count} before it ended{self._hint}", err=True)


_BAR_EVERY: Final = 0.1
"""Seconds between two counts of a bar."""


class _Bar:
    """A bar of rich, which is gone when the work has ended."""

    def __init__(self, done: str, total: int | None) -> None:
        self._shown = _new_bar(is_full=total is not None)
        self._task = self._shown.add_task(done, total=total)
        self._shown.start()

    def move(self, count: int) -> None:
        self._shown.update(self._task, completed=count)

    def close(self) -> None:
        self._shown.stop()


def _new_bar(*, is_full: bool) -> RichProgress:
    from rich import progress  # it takes long to import, and few commands take long
    from rich.console import Console

    columns: list[progress.ProgressColumn] = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    if is_full:
        columns += [progress.MofNCompleteColumn(), progress.TimeRemainingColumn()]
    else:
        columns += [progress.TextColumn("{task.completed}"), progress.TimeElapsedColumn()]
    return progress.Progress(*columns, console=Console(stderr=True), transient=True)


def has_bars() -> bool:
    """Whether stderr is a terminal on which a line can be written again."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}
