"""The trace of a wake: spans as entries of the journal, and as OpenTelemetry spans when that is in use.

Each attempt of a wake is a trace of its own in OpenTelemetry, linked to the spans of the senders of its inputs.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from affinity.conversation.events import SpanError
from affinity.errors import ReportedError
from affinity.journal import NewEntry
from affinity.limits import truncate
from affinity.orchestration.failures import describe_error, stack_of
from affinity.telemetry import contained

TRACE_KINDS: Final = ("span.", "conversation.")
"""Beginnings of the kinds of entries that a wake has besides what its handler adds."""

WAKE_SPAN: Final = "wake"
"""Id of the span of a wake itself."""

_parent: ContextVar[str] = ContextVar("affinity.conversation.span", default=WAKE_SPAN)


def error_of(error: BaseException) -> SpanError:
    """The record of an exception in a span."""
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
    """How many were committed while the wake went on."""
    _count: int = 0

    def started(self, span: str = WAKE_SPAN, name: str = "", **more: Any) -> dict[str, Any]:
        """The fields of a `SpanStarted`, as of now."""
        return {
            "span": span,
            "name": name or self.name,
            "attempt": self.attempt,
            "worker": self.worker,
            "started_at": datetime.now(UTC),
            **more,
        }

    def completed(self, begun: Mapping[str, Any], clock: float, error: SpanError | None = None) -> dict[str, Any]:
        """The fields of the `SpanCompleted` of a span that began at ``clock``, monotonic."""
        fields = {name: begun[name] for name in ("span", "name", "attempt", "worker", "started_at")}
        fields["seconds"] = round(time.monotonic() - clock, 6)
        if error is not None:
            fields |= {"result": "error", "error": error}
        return fields

    def next_id(self) -> str:
        """An id for a span of a part of the wake."""
        self._count += 1
        return f"{WAKE_SPAN}.{self._count}"


def current_span() -> str:
    """The span of the calling code."""
    return _parent.get()


@contextmanager
def inside(span: str) -> Iterator[None]:
    """Spans that begin in the block are parts of this one."""
    token = _parent.set(span)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than it was entered in
            _parent.reset(token)


# -- OpenTelemetry


@cache
def _api() -> Any:
    with suppress(ModuleNotFoundError):
        return importlib.import_module("opentelemetry.trace")
    return None


def _is_in_use() -> bool:
    """Whether the application has set a tracer provider."""
    api = _api()
    return api is not None and getattr(api.get_tracer_provider(), "add_span_processor", None) is not None


def traceparent() -> str | None:
    """The W3C traceparent of the calling code's span; None when there is none."""
    api = _api()
    if api is None:
        return None
    with contained():
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return None


def root_span(name: str, attributes: dict[str, Any], senders: Iterable[str]) -> AbstractContextManager[None]:
    """An OpenTelemetry span without a parent, linked to the senders' spans. Does nothing without OpenTelemetry."""

    def options(api: Any) -> dict[str, Any]:
        empty = importlib.import_module("opentelemetry.context").Context()
        links = [link for text in senders if (link := _link(api, text)) is not None]
        return {"context": empty, "attributes": attributes, "links": links}

    return _span(name, options)


def part_span(name: str) -> AbstractContextManager[None]:
    """An OpenTelemetry span below the current one; without effect when it is not in use."""
    return _span(name, lambda _: {})


@contextmanager
def _span(name: str, options: Callable[[Any], dict[str, Any]]) -> Iterator[None]:
    """A span around the block, which runs as it would without one, whatever the application's processors raise."""
    span: Any = None
    with contained():
        if _is_in_use():
            opening = _api().get_tracer("affinity.conversation").start_as_current_span(name, **options(_api()))
            opening.__enter__()
            span = opening
    try:
        yield
    except BaseException as error:
        with contained():
            if span is not None:
                span.__exit__(type(error), error, error.__traceback__)
        raise
    with contained():
        if span is not None:
            span.__exit__(None, None, None)


def _link(api: Any, text: str) -> Any:
    try:
        _, trace_id, span_id, flags = text.split("-")
        context = api.SpanContext(int(trace_id, 16), int(span_id, 16), True, api.TraceFlags(int(flags, 16)))
    except ValueError:
        return None
    return api.Link(context) if context.is_valid else None
