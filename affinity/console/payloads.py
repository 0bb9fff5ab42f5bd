"""Values of the application on pages: redacted first, then as indented JSON, cut, with a download of the whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from affinity.console.callbacks import call
from affinity.console.stacks import Stack, stack_of
from affinity.errors import UnknownEntry

MAX_SHOWN: Final = 64 * 1024
"""Characters of one value on a page."""

MAX_PAGE_SHOWN: Final = 256 * 1024
"""Characters of all values of one page; values beyond are cut at `MIN_SHOWN`."""

MIN_SHOWN: Final = 200

Redact: TypeAlias = Callable[[str, str, Any], Any]
"""Called with the kind of a value, the name that it belongs to, and the value as plain JSON; returns what is shown in
its place. Kinds, with their names:

- "input", "output", "custom_status" of an instance: the orchestration.
- "value" that an instance has set: its key.
- "error" of an instance or a wake: the orchestration, or the class of the error.
- "event", fields of an event of a history: the activity or event, else the type of the entry.
- "entry", "request" of a conversation: its kind.
- "revisit", the note and the reason of a later wake, and "stream", what is said now: the kind of the conversation.
- "detail", a name, a number or a reason in the audit log: its name there, such as "reason".
- "state", the record of a session: its kind.
- "sentence", what an instance, waiting work or a schedule waits for, or why a limit is closed, which may name an error:
  its code, the state of the schedule, or the name of the limit.
"""

_OF_ERROR: Final = frozenset({"type", "message", "stack"})

HIDDEN: Final = "(hidden)"


def show_all(kind: str, name: str, value: Any) -> Any:
    """The value as it is."""
    return value


def hide_payloads(kind: str, name: str, value: Any) -> Any:
    """Hide each value: of a sentence, which may name an error, its code is shown; else that there is a value. Details
    of the audit log are shown, but for reasons, which people write.
    """
    if kind == "detail" and name != "reason":
        return value
    return f"({name})" if kind == "sentence" else HIDDEN


@dataclass(frozen=True, slots=True)
class Payload:
    """A value on a page."""

    part: str  # its name in the download of the page
    text: str
    cut: bool  # ``text`` is only the beginning
    stack: Stack | None = None  # of an error, apart from its text


class Payloads:
    """The values of one page."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._left = MAX_PAGE_SHOWN
        self._parts: dict[str, Any] = {}

    @property
    def redacts(self) -> bool:
        """Whether a value may be shown otherwise than it is."""
        return self._redact is not show_all

    def text(self, kind: str, name: str, value: object) -> str:
        """A short text that may hold data, such as the message of an error."""
        return str(call("redact", self._redact, kind, name, value))

    def show(self, part: str, kind: str, name: str, value: Any) -> Payload:
        """The value for the page; ``part`` names it among the values of the page."""
        self._parts[part] = value = call("redact", self._redact, kind, name, value)
        text = pretty(value)
        most = max(MIN_SHOWN, min(MAX_SHOWN, self._left))
        self._left -= min(most, len(text))
        return Payload(part, text[:most], len(text) > most)

    def error(self, part: str, name: str, value: Mapping[str, Any]) -> Payload:
        """An error for the page: ``type``, ``message`` and ``stack`` as text, and what else it has as JSON."""
        shown = self.show(part, "error", name, dict(value))
        found = self._parts[part]
        if not isinstance(found, dict) or not isinstance(found.get("message"), str):
            return shown  # redacted
        rest = {key: each for key, each in found.items() if key not in _OF_ERROR and each not in (None, "", [], {}, ())}
        text = f"{found.get('type', 'error')}: {found['message']}" + (f"\n{pretty(rest)}" if rest else "")
        trace = found.get("stack")
        stack = stack_of(trace[:MAX_SHOWN]) if isinstance(trace, str) and trace else None
        return Payload(part, text[:MAX_SHOWN], len(text) > MAX_SHOWN, stack)

    def offer(self, part: str, text: Callable[[], str]) -> None:
        """A download of what the page does not show: it is made when it is asked for."""
        self._parts[part] = text

    def has(self, part: str) -> bool:
        """Whether the page has this part."""
        return part in self._parts

    def shows_all(self, part: str, value: Any) -> bool:
        """Whether the part is this value, with nothing redacted."""
        return bool(self._parts[part] == value)

    def whole(self, part: str) -> str:
        """The value without a cut, as JSON.

        Raises:
            UnknownEntry: the page has no value of this name.
        """
        if part not in self._parts:
            raise UnknownEntry(part, "the page has no such value any more")
        value = self._parts[part]
        return value() if callable(value) else pretty(value)


def pretty(value: Any) -> str:
    """Indented JSON; a text as it is. Numbers are exact."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
