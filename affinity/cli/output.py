"""Output for people: tables, pairs, times, durations, and text that is safe on a terminal."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
from pydantic_core import to_json
from rich.cells import cell_len, set_cell_size

from affinity.cli.terminal import is_terminal

_IDS: Final = frozenset(
    [
        "CONVERSATION",
        "FROM",
        "HOLDER",
        "HOME",
        "INSTANCE",
        "KEY",
        "LIMIT",
        "MOVES TO",
        "NEXT",
        "OWNER",
        "PARENT",
        "REQUEST",
        "SCHEDULE",
        "SESSION",
        "TARGET",
        "TO",
        "WORKER",
    ]
)
"""Columns with other commands, or arguments of them: their values are never cut."""

_CELL: Final = 100
"""Characters of any other value in a table; ``--json`` shows all of it."""

_NARROW: Final = 24
"""Columns down to which it is cut further so that a row fits on one line of a terminal."""

_GAP: Final = "  "

_RECENT: Final = 30 * 86_400
"""Seconds; of a time further away the date is shown."""

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under their columns; without rows, print ``empty`` on stderr.

    On a terminal that is too narrow long values are cut, but no ids, and columns that do not fit go to further lines.
    """
    texts = [[_text(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    if not texts:
        click.echo(empty, err=True)
        return
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    lines = [range(len(widths))]
    if is_terminal():
        widths, lines = _layout(columns, widths, shutil.get_terminal_size().columns)
    click.secho(_line(columns, widths, lines), bold=True)
    for row in texts:
        click.echo(_line(row, widths, lines))


def _text(column: str, value: object) -> str:
    return printable(value) if column in _IDS else cell(value)


def _layout(columns: Sequence[str], widths: Sequence[int], room: int) -> tuple[list[int], list[range]]:
    """How wide each column is, and which columns are on each line of a row; lines after the first are indented."""
    found = _limited(columns, widths, _NARROW)
    spare = room - sum(found) - len(_GAP) * (len(found) - 1)
    if spare < 0:
        found = _limited(columns, widths, room - len(_GAP))
        return found, _wrapped(found, room)
    for place, wanted in enumerate(widths):
        more = min(spare, wanted - found[place])
        found[place] += more
        spare -= more
    return found, [range(len(found))]


def _limited(columns: Sequence[str], widths: Sequence[int], limit: int) -> list[int]:
    return [width if name in _IDS else min(width, limit) for name, width in zip(columns, widths, strict=True)]


def _wrapped(widths: Sequence[int], room: int) -> list[range]:
    lines, first, used = [], 0, widths[0]
    for place, width in enumerate(widths[1:], start=1):
        used += len(_GAP) + width
        if used > room:
            lines.append(range(first, place))
            first, used = place, len(_GAP) + width
    return [*lines, range(first, len(widths))]


def _line(row: Sequence[str], widths: Sequence[int], lines: Sequence[range]) -> str:
    first, *others = (_GAP.join(_fitted(row[place], widths[place]) for place in line).rstrip() for line in lines)
    return "\n".join([first, *(_GAP + text for text in others if text)])


def _fitted(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def pairs(values: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line; without None."""
    shown = [(name, value) for name, value in values if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
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
        return relative(value)
    text = str(value)
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def argument(text: str) -> str:
    """An id as the last argument of a command that a person copies into a shell."""
    if printable(text) == text:
        quoted = shlex.quote(text)
    else:  # bash, zsh and ksh read these escapes
        quoted = "$'" + "".join(c if c.isprintable() and c not in "'\\" else f"\\U{ord(c):08x}" for c in text) + "'"
    return f"-- {quoted}" if text.startswith("-") else quoted


def relative(time: datetime) -> str:
    """A time for people: "12 s ago", "in 3 min", and a date when it is far away."""
    away = (time - datetime.now(UTC)).total_seconds()
    if abs(away) > _RECENT:
        return time.astimezone().date().isoformat()
    unit, size = next((each for each in _UNITS if abs(away) >= each[1]), ("s", 1))
    number = round(abs(away) / size)
    return f"in {number} {unit}" if away > 0 else f"{number} {unit} ago"


def clock(time: datetime) -> str:
    """A time in a log of events, in local time: of today without the date."""
    local = time.astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return f"{local:{'' if today else '%Y-%m-%d '}%H:%M:%S}.{local.microsecond // 1000:03}"


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


def resource_times(loads: Mapping[str, float]) -> str | None:
    """How long each resource took to load, the slowest first: "model 5.0 s, index 0.1 s"; None: none was loaded."""
    slowest = sorted(loads.items(), key=lambda load: -load[1])
    return ", ".join(f"{name} {seconds(took)}" for name, took in slowest) or None


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, as "1 record" or "2 records"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
