"""The trace of a wake: spans as entries of the journal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from affinity.conversation.events import SpanError
from affinity.conversation.journal import NewEntry
from affinity.errors import ReportedError, decisive_error
from affinity.limits import truncate
from affinity.orchestration.failures import stack_of
from affinity.user_code import describe_error

TRACE_KINDS: Final = ("span.", "conversation.")
"""Beginnings of the kinds of entries that the conversation adds to a wake, beside the entries of its handler."""

CANCELLED: Final = "cancelled/"
"""Beginning of the event ids of entries that close the traces of cancelled wakes."""

WAKE_SPAN: Final = "wake"
"""Id of the span of a wake itself."""

CONVERSATION_ATTRIBUTE: Final = "gen_ai.conversation.id"

_parent: ContextVar[str] = ContextVar("affinity_conversation_span", default=WAKE_SPAN)


def error_of(error: BaseException) -> SpanError:
    """Return the record of an exception in a span."""
    error = decisive_error(error)
    if isinstance(error, ReportedError):
        name, message, stack = error.error_type, truncate(error.message), error.stack
    else:
        (name, message), stack = describe_error(error), stack_of(error)
    return SpanError(type=name, message=message, stack=stack)


@dataclass(eq=False)
class Trace:
    """The spans of one attempt of a wake."""

    name: str
    attempt: int
    worker: str
    entries: list[NewEntry] = field(default_factory=list)
    """Entries of the spans, in order; without other entries of the handler."""
    shown: int = 0
    """Number of spans that were committed while the wake ran."""
    _count: int = 0

    def started(self, span: str = WAKE_SPAN, name: str = "", **more: Any) -> dict[str, Any]:
        """Return the fields of a `SpanStarted` that begins now."""
        return {
            "span": span,
            "name": name or self.name,
            "attempt": self.attempt,
            "worker": self.worker,
            "started_at": datetime.now(UTC),
            **more,
        }

    def completed(self, begun: Mapping[str, Any], clock: float, error: SpanError | None = None) -> dict[str, Any]:
        """Return the fields of the `SpanCompleted` of a span that began at ``clock``, monotonic."""
        fields = {name: begun[name] for name in ("span", "name", "attempt", "worker", "started_at")}
        fields["seconds"] = round(time.monotonic() - clock, 6)
        if error is not None:
            fields |= {"result": "error", "error": error}
        return fields

    def next_id(self) -> str:
        """Return an id for a span of a part of the wake."""
        self._count += 1
        return f"{WAKE_SPAN}.{self._count}"


def current_span() -> str:
    """Return the span of the calling code."""
    return _parent.get()


@contextmanager
def inside(span: str) -> Iterator[None]:
    """Make the spans that begin in the block parts of this one."""
    token = _parent.set(span)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than it was entered in
            _parent.reset(token)
