"""What the commands share: the database option, JSON arguments, exit codes, and output for people and for scripts."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from pydantic_core import to_json
from rich.console import Console
from rich.table import Table

from affinity.errors import AffinityError, InvalidInput, NotSerializable, ProviderError, WaitTimeout
from affinity.orchestration.codec import read_json
from affinity.provider import has_password
from affinity.worker.options import check_environment

R = TypeVar("R")

DEFAULT_URL: Final = "sqlite:///affinity.db"
"""In the working directory: the embedded default."""

FAILED, MISUSED, NO_DATABASE, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 130

URL_IS_VISIBLE: Final = (
    "Warning: the password in --url can be read by every user of this machine (`ps`): put the URL into AFFINITY_URL, or"
    " the password into ~/.pgpass"
)

SIGNALLED: Final = 128
"""Plus the number of the signal: the exit code of a process that a signal ended, by the shell's custom."""

_PIPE_WIDTH: Final = 250
"""Columns of a table that goes to a file or a pipe, where nothing says how wide it may be."""

_CELL: Final = 100
"""Characters of a value in a table; ``--json`` shows all of it."""


def exit_code(error: AffinityError) -> int:
    """What the process returns for an error; the meaning is told by ``affinity --help``."""
    if isinstance(error, InvalidInput):
        return MISUSED
    if isinstance(error, ProviderError):
        return NO_DATABASE
    return TIMED_OUT if isinstance(error, WaitTimeout) else FAILED


# --- arguments --------------------------------------------------------------------------------------------------------


class JsonText(click.ParamType[Any]):
    """A JSON value: the text itself, ``@FILE``, or ``-`` for stdin."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return read_json(_text_of(str(value)))
        except (NotSerializable, OSError, UnicodeDecodeError) as error:
            self.fail(f"{error}; give JSON text, @FILE, or - for stdin", param, ctx)


def _text_of(value: str) -> str:
    if value == "-":
        return sys.stdin.read()
    return Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value


@dataclass(frozen=True, slots=True)
class Shell:
    """What a command was told beside its own arguments."""

    url: str = field(repr=False)  # may hold a password
    as_json: bool

    def show(self, document: Any, text: Callable[[], None]) -> None:
        """Print ``document`` as JSON for a script, or have ``text`` print for people."""
        if self.as_json:
            click.echo(to_json(document, indent=2))
        else:
            text()


def check_call(url: str | None) -> None:
    """Refuse environment variables that are misspelt, and warn of a password in the ``--url`` of the command line.

    Raises:
        InvalidOptions: as `check_environment`.
    """
    check_environment()
    if url and has_password(url):
        click.echo(URL_IS_VISIBLE, err=True)


class Command(click.Command):
    """A command whose help keeps the line breaks of its examples."""

    def __init__(self, name: str | None, *, help: str | None = None, **rest: Any) -> None:
        super().__init__(name, help=keep_examples(help), **rest)


def keep_examples(text: str | None) -> str | None:
    """Tell click not to fill the paragraphs of a help text that have indented lines."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{paragraph}" if "\n  " in paragraph else paragraph for paragraph in paragraphs)


def command(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command ``--url`` and ``--json``, and call it with a `Shell` before its own arguments."""

    @click.option("--url", help=f"The database  [default: $AFFINITY_URL, else {DEFAULT_URL}]")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for scripts.")
    @click.pass_context
    @functools.wraps(function)
    def called(ctx: click.Context, /, *, url: str | None, as_json: bool, **arguments: Any) -> R:
        check_call(url or ctx.obj)
        chosen = url or ctx.obj or os.environ.get("AFFINITY_URL") or DEFAULT_URL
        return function(Shell(chosen, as_json), **arguments)

    return called


# --- output for people ------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under their columns; without rows, say ``empty`` on stderr."""
    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*map(cell, row))
    if not grid.row_count:
        click.echo(empty, err=True)
        return
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    # What is printed comes from the database: nothing in it is markup.
    Console(width=width, markup=False, emoji=False, highlight=False).print(grid)


def pairs(values: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line; what is None is left out."""
    shown = [(name, value) for name, value in values if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {printable(value)}")


def cell(value: object) -> str:
    """A value as one short line."""
    text = printable(value).replace("\n", " ")
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def printable(value: object) -> str:
    """A value as text that cannot do anything to a terminal."""
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
