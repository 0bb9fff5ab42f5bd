"""What the commands on sessions share: durations, instants and labels, filters, confirmation, progress."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import click

from affinity.errors import InvalidInput
from affinity.limits import check_id
from affinity.records import SessionFilter

R = TypeVar("R")

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_FIRST_SHOWN: Final = 1.0  # seconds until the first line of progress; each one later than the one before …
_SHOWN_EVERY: Final = 10.0  # … until there are so many seconds between two


class Duration(click.ParamType[float]):
    """A number with its unit, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration; give a number with its unit: 90s, 15m, 12h, 30d, 4w", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class Instant(click.ParamType[datetime]):
    """A date, or date and time, in ISO 8601; without an offset in local time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time; give 2026-07-31, or 2026-07-31T12:00:00+02:00", param, ctx)


class Label(click.ParamType[tuple[str, str]]):
    """``KEY=VALUE``."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):  # click converts what it has converted once more
            return value
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not a label; give KEY=VALUE", param, ctx)
        return key, text


class SessionId(click.ParamType[str]):
    """A whole session id: what names no session names no children, and holds nothing."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_id(value, "it")
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


_FILTERS: Final = (
    click.option("--kind", help="Only states of this kind."),
    click.option("--name", help="Only sessions of this name."),
    click.option("--label", "labels", multiple=True, type=Label(), help="Only with this label; may be repeated."),
    click.option("--participant", help="Only those in which this one takes part."),
    click.option("--parent", type=SessionId(), help="Only children of this session."),
    click.option("--orphaned", is_flag=True, help="Only those whose parent has no record."),
    click.option("--holder", type=SessionId(), help="Only sessions that this worker holds now."),
    click.option("--updated-after", type=Instant(), help="Only written after this."),
    click.option("--created-after", type=Instant(), help="Only begun after this."),
    click.option(
        "--schema-version",
        type=click.IntRange(0, 2**31 - 1),
        help="Only states written under this version of their schema.",
    ),
    click.option("--idle-for", type=Duration(), help="Only those not written for so long: 90s, 15m, 12h, 30d."),
)


def filters(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that say which records; `filter_of` takes them."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def filter_of(chosen: dict[str, Any]) -> SessionFilter:
    """The filter that the options of `filters` make."""
    return SessionFilter(**{**chosen, "labels": labels_of(chosen["labels"])})


def labels_of(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The labels that a record must have.

    Raises:
        click.UsageError: two of one key, which no record has.
    """
    labels = dict(given)
    if len(labels) < len(set(given)):
        raise click.UsageError("a session has one label of a key; give --label once for each")
    return labels


def confirm(question: str) -> None:
    """Go on only when the user says so; else the command ends, well.

    Raises:
        click.UsageError: nobody is there to be asked.
    """
    if not somebody_is_there():
        raise click.UsageError(f"{question} Nobody is at the terminal to ask: give --yes, or --dry-run to look first")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C at the question is Ctrl-C
        raise KeyboardInterrupt from None
    if not agreed:
        click.echo("nothing was changed", err=True)
        click.get_current_context().exit(0)


def somebody_is_there() -> bool:
    """Whether a question can be answered; a process may have been started without any stdin."""
    return sys.stdin is not None and sys.stdin.isatty()


class Progress:
    """Says on stderr how far long work has come, and, when it ends in the middle, how far it came.

    What is over within a second says nothing.
    """

    def __init__(self, done: str, *, hint: str = "") -> None:
        """Lines read "``done`` 5000"; ``hint`` follows the last one of work that did not come to its end."""
        self._count = 0
        self._done, self._hint = done, hint
        self._pause = _FIRST_SHOWN
        self._next = time.monotonic() + self._pause

    def __call__(self, count: int) -> None:
        self._count = count
        if (now := time.monotonic()) >= self._next:
            self._pause = min(self._pause * 1.5, _SHOWN_EVERY)
            self._next = now + self._pause
            click.echo(f"{self._done} {count} …", err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._count:
            click.echo(f"{self._done} {self._count} before it ended{self._hint}", err=True)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, as "1 record" or "2 records"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
