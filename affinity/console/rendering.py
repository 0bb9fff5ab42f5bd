"""Templates. All stored text is hostile: a model wrote it.

Every expression is escaped, and characters that are not printable, such as controls of the direction of text, are shown
as their escapes. Attributes stand in quotes. Scripts and styles are files: the policy of the pages allows no others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup, escape

from affinity.console.strip import color_of
from affinity.guests import guests_with

SHORT: Final = 160
"""Characters of a value in a table."""

LONGEST: Final = 128 * 1024
"""Characters of any text on a page."""

_zone: ContextVar[tzinfo | None] = ContextVar("zone", default=None)
"""Of exact times; None: times are relative."""

_SUSPECT: Final = re.compile(r"[^\t\n\x20-\x7e]")
_STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


def visible(value: object) -> object:
    """A value of an expression: text without characters that are not printable."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _SUSPECT.sub(_escape, value[:LONGEST])
    return value


def _escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else repr(found[0])[1:-1]


def short(value: object, most: int = SHORT) -> str:
    """Text of a cell."""
    text = "" if value is None else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def count(number: int, more: bool = False) -> str:
    """A number of things, with a plus if there are, or may be, more."""
    return f"{number:,}{'+' if more else ''}"


def exact(value: object) -> Markup:
    """The value of an input, which is sent back: escaped, and no other change."""
    return escape(str(value))


def time_tag(at: datetime | None) -> Markup:
    """A time: in UTC, and by the script relative, with the time in the browser's zone as its title; exact in a zone if
    the page is rendered for one.
    """
    if at is None:
        return Markup("")
    if (zone := _zone.get()) is not None:
        return Markup('<time class="exact" datetime="{}">{}</time>').format(at.isoformat(), exact_time(at, zone))
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S UTC"))


def exact_time(at: datetime, zone: tzinfo) -> str:
    """A time to the millisecond with its offset, as logs have it."""
    text = at.astimezone(zone).isoformat(sep=" ", timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z" if zone is UTC else text


def clock_tag(at: datetime) -> Markup:
    """A time of the day: exact here, and by the script in the browser's zone."""
    return Markup('<time class="clock" datetime="{}">{}</time>').format(
        at.isoformat(), at.strftime("%Y-%m-%d %H:%M UTC")
    )


def seconds(value: float | None) -> str:
    """A duration."""
    if value is None:
        return ""
    whole = round(abs(value))
    if whole < 60:  # noqa: PLR2004
        return f"{value:.1f} s"
    minutes, hours = divmod(whole // 60, 60)[::-1]
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def ago(value: float | None) -> Markup:
    """The time so many seconds ago."""
    return time_tag(None if value is None else datetime.now(UTC) - timedelta(seconds=round(value)))


def milliseconds(value: float | None) -> str:
    """A short duration, given in seconds."""
    return "" if value is None else f"{value * 1000:.1f} ms"


def middle(value: object, most: int = 40) -> str:
    """An id of a cell: its beginning and its end, which tell it from others."""
    text = "" if value is None else str(value)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


def one_line(text: str) -> str:
    """The beginning of a text in one line, without the marks around a JSON object."""
    line = " ".join(text[: 4 * SHORT].split())
    return line.removeprefix("{ ").removesuffix(" }").replace('"', "")


def counted(number: int, singular: str, plural: str, most: int | None = None) -> str:
    """A number with its noun: "1 request", "1,200 requests"; with a plus sign from ``most`` on, where counts stop."""
    more = "+" if most is not None and number >= most else ""
    return f"{number:,}{more} {singular if number == 1 and not more else plural}"


def words(value: str) -> str:
    """A name of the code, such as a status, as words."""
    return value.replace("_", " ")


def query(**values: object) -> str:
    """A query string of the values that are there."""
    return urlencode({name: str(value) for name, value in values.items() if value not in {None, ""}})


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Content and type of a file for browsers."""
    kind = _STATIC.get(name)
    return None if kind is None else ((files(__package__) / "static" / name).read_bytes(), kind)


@cache
def static_version() -> str:
    """Changes with each change of these files, so that browsers may keep them."""
    digest = hashlib.sha256()
    for name in _STATIC:
        digest.update(static_file(name)[0])  # type: ignore[index]  # it is one of them
    return digest.hexdigest()[:12]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=ChoiceLoader(
            [
                PackageLoader("affinity.console"),
                PrefixLoader({guest: PackageLoader(f"affinity.{guest}", "") for guest in guests_with("page")}),
            ]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": count,
        "exact": exact,
        "short": short,
        "time": time_tag,
        "clock": clock_tag,
        "seconds": seconds,
        "ago": ago,
        "ms": milliseconds,
        "color": color_of,
        "middle": middle,
        "one_line": one_line,
        "words": words,
    }
    icon = files(__package__) / "static" / "icon.svg"
    made.globals |= {"query": query, "counted": counted, "icon": Markup(icon.read_text(encoding="utf-8"))}  # noqa: S704 -- our own file
    return made


def render(template: str, values: Mapping[str, Any], zone: tzinfo | None = None) -> str:
    """The page; ``values`` are what the template names. With ``zone`` it has exact times."""
    token = _zone.set(zone)
    try:
        return _environment().get_template(template).render(values)
    finally:
        _zone.reset(token)
