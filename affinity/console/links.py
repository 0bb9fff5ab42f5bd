"""Links from pages to other systems of the operator, such as logs and traces: addresses with names in braces."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from affinity.errors import InvalidOptions

NAMES: Final = (
    *("instance_id", "execution_id", "session_id", "worker_id", "name", "trace_id"),
    *("activity_id", "attempt", "conversation_id", "wake_id", "since", "until", "since_ms", "until_ms"),
)
"""Names that an address may have in braces. Times are in UTC, as 2026-01-31T12:00:00Z or in milliseconds since 1970;
`until` of what has not ended is up to five minutes ahead. `trace_id` is that of the trace in which an instance was
started.
"""

_AHEAD: Final = timedelta(minutes=5)


class Links:
    """The links that an operator has configured."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        """``templates``: addresses by the text of their link.

        Raises:
            InvalidOptions: an address is not absolute, has a name that does not exist, or has one in place of its host.
        """
        self._templates = {text: (template, _names_of(text, template)) for text, template in templates.items()}

    def of(self, *needs: str, **values: object) -> Sequence[tuple[str, str]]:
        """Return text and address of each link whose names have values, and which has all names that it ``needs``."""
        known = {name: quote(str(value), safe="") for name, value in values.items() if value not in {None, ""}}
        return [
            (text, template.format_map(known))
            for text, (template, names) in self._templates.items()
            if names.issuperset(needs) and names <= known.keys()
        ]


def span_of(since: datetime | None, until: datetime | None = None) -> dict[str, object]:
    """Return the values of the four names of times. Without ``until`` it is a full five minutes in the future, so that
    a page does not change each second.
    """
    if since is None:
        return {}
    if until is None:
        now = datetime.now(UTC)
        until = now + _AHEAD - (now - datetime.min.replace(tzinfo=UTC)) % _AHEAD
    until += timedelta(seconds=1)  # what was logged in its last second
    times = {"since": since.astimezone(UTC), "until": until.astimezone(UTC)}
    return {
        **{name: at.strftime("%Y-%m-%dT%H:%M:%SZ") for name, at in times.items()},
        **{f"{name}_ms": int(at.timestamp() * 1000) for name, at in times.items()},
    }


def trace_id_of(context: object) -> str | None:
    """Return the id of the trace in a trace context, a W3C ``traceparent``; None: it is none."""
    parts = str(context or "").split("-")
    return parts[1] if len(parts) >= 3 else None  # noqa: PLR2004


def _names_of(text: str, template: str) -> frozenset[str]:
    """Return the names in braces.

    Raises:
        InvalidOptions: see `Links`.
    """
    about = f"the link {text!r:.80}"
    try:
        parts = [*string.Formatter().parse(template)]
    except ValueError as error:
        raise InvalidOptions(f"{about}: {error}") from None
    first = parts[0][0] if parts else ""
    scheme, _, rest = first.partition("://")
    if scheme not in {"http", "https"} or not {*"/?"} & {*rest}:
        raise InvalidOptions(f"{about} has no address such as https://logs.example/?q={{instance_id}}")
    for _, name, spec, conversion in parts:
        if name is not None and (name not in NAMES or spec or conversion):
            raise InvalidOptions(f"{about}: {{{name}}} is none of the names {', '.join(NAMES)}")
    return frozenset(name for _, name, _, _ in parts if name is not None)
