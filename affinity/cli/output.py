"""Output for people: tables, pairs, durations, and text that is safe on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import click
from pydantic_core import to_json
from rich.console import Console
from rich.table import Table

_PIPE_WIDTH: Final = 250
"""Columns of a table that goes to a file or a pipe, which have no width of their own."""

_CELL: Final = 100
"""Characters of a value in a table; ``--json`` shows all of it."""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under their columns; without rows, print ``empty`` on stderr."""
    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*map(cell, row))
    if not grid.row_count:
        click.echo(empty, err=True)
        return
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    # The printed values come from the database: nothing in them is markup.
    Console(width=width, markup=False, emoji=False, highlight=False).print(grid)


def pairs(values: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line, without None."""
    shown = [(name, value) for name, value in values if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {printable(value)}")


def cell(value: object) -> str:
    """A value as one short line."""
    text = printable(value).replace("\n", " ")
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def printable(value: object) -> str:
    """A value as text without control characters."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    text = str(value)
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def compact(value: Any) -> str:
    """A JSON value as one line of JSON."""
    return to_json(value).decode()


def seconds(value: float) -> str:
    """A duration for people: "0.4 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(abs(value))
    sign = "-" if value < 0 else ""
    if whole < 60:  # noqa: PLR2004
        return f"{value:.1f} s"
    if whole < 3600:  # noqa: PLR2004
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, as "1 record" or "2 records"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
