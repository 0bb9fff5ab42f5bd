"""Templates. All stored text is hostile: a model wrote it.

Every expression is escaped, and characters that are not printable, such as controls of the direction of text, are shown
as their escapes. Attributes stand in quotes. Scripts and styles are files: the policy of the pages allows no others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
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


def exact(value: object) -> Markup:
    """The value of an input, which is sent back: escaped, and no other change."""
    return escape(str(value))


def time_tag(at: datetime | None) -> Markup:
    """A time: exact here, and by the script relative, with the exact time of the browser's zone as its title."""
    if at is None:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S UTC"))


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
        "exact": exact,
        "short": short,
        "time": time_tag,
        "seconds": seconds,
        "ago": ago,
        "ms": milliseconds,
        "color": color_of,
    }
    made.globals |= {"query": query}
    return made


def render(template: str, values: Mapping[str, Any]) -> str:
    """The page; ``values`` are what the template names."""
    return _environment().get_template(template).render(values)
