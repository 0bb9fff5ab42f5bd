"""Types of the arguments and options of commands: JSON, durations, instants, labels, session ids, limits."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic_core import from_json

from affinity.errors import InvalidInput
from affinity.limits import check_id

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # not generic before click 8.4

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)


class Parsed(ParamType):
    """A type whose values a function parses: it raises ValueError or InvalidInput with a message for the user."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # click converts a value that it has converted already once more
            return value
        try:
            return self._parse(value)
        except (ValueError, InvalidInput) as error:
            self.fail(str(error), param, ctx)


def _json(text: str) -> Any:
    try:
        return from_json(_content(text), allow_inf_nan=False)
    except (OSError, UnicodeDecodeError) as error:
        problem: object = error
    except ValueError as error:
        problem = f"not JSON: {error}"
    raise ValueError(f"{problem}; give JSON text, @FILE, or - for stdin")


def _content(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration; give a number with its unit: 90s, 15m, 12h, 30d, 4w")
    return float(found[1]) * _UNITS[found[2]]


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time; give 2026-07-31, or 2026-07-31T12:00:00+02:00") from None


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not a label; give KEY=VALUE")
    return key, value


def _limit(text: str) -> int:
    if text == "none":
        return 0
    if not text.isdecimal() or not text.isascii() or not int(text[:20]):
        raise ValueError(f"{text!r} is neither a number from 1 nor `none`")
    return int(text)


JSON: Final = Parsed("json", _json)
"""A JSON value: the text itself, ``@FILE``, or ``-`` for stdin."""

DURATION: Final = Parsed("duration", _duration)
"""A number with its unit, as seconds."""

INSTANT: Final = Parsed("time", _instant)
"""A date, or date and time, in ISO 8601; without an offset in local time."""

LABEL: Final = Parsed("key=value", _label)
"""``KEY=VALUE``, as a pair."""

SESSION_ID: Final = Parsed("id", lambda text: check_id(text, "it"))
"""A whole session id."""

LIMIT: Final = Parsed("number|none", _limit)
"""A number from 1, or ``none``, which is 0 here."""


def labels_of(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The labels that a row must have.

    Raises:
        click.UsageError: two of one key, which no row has.
    """
    labels = dict(given)
    if len(labels) < len(set(given)):
        raise click.UsageError("there is one label of a key; give --label once for each")
    return labels


FORCE: Final = click.option("--force", is_flag=True, help="Even if no live worker has code for it, or takes the value.")
