"""OpenTelemetry in this process, with its spans in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from affinity.telemetry import SESSION_ATTRIBUTE


@cache
def provider() -> TracerProvider:
    """One for all tests: a tracer of a module finds its provider once."""
    return TracerProvider()


@cache
def _exporter() -> InMemorySpanExporter:
    spans = InMemorySpanExporter()
    provider().add_span_processor(SimpleSpanProcessor(spans))
    return spans


@contextmanager
def traced(by: TracerProvider | None = None) -> Iterator[InMemorySpanExporter]:
    """OpenTelemetry is in use in the block; the spans of `provider` go to what it gives. The SDK takes one provider in
    a process's life, and other tests assert what happens without one.
    """
    spans = _exporter()
    spans.clear()
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = by or provider()
    try:
        yield spans
    finally:
        trace._TRACER_PROVIDER = before


def lines_of(spans: Sequence[ReadableSpan]) -> list[str]:
    """A line for each span, in the order of their begins, below their parents: kind, name, links, events, status."""
    names = {span.context.span_id: span.name for span in spans}
    found: list[str] = []

    def add(span: ReadableSpan, depth: int) -> None:
        links = "".join(f" ~{names.get(link.context.span_id, '?')}" for link in span.links)
        events = "".join(f" !{event.name}" for event in span.events)
        error = "" if span.status.is_ok or span.status.is_unset else " ERROR"
        found.append(f"{'  ' * depth}{span.kind.name} {span.name}{links}{events}{error}")
        for child in ordered:
            if child.parent is not None and child.parent.span_id == span.context.span_id:
                assert child.context.trace_id == span.context.trace_id
                add(child, depth + 1)

    ordered = sorted(spans, key=lambda each: each.start_time or 0)
    for each in ordered:
        if each.parent is None or each.parent.span_id not in names:
            add(each, 0)
    return found


def session_of(span: ReadableSpan) -> object:
    """The session that the span carries."""
    return (span.attributes or {}).get(SESSION_ATTRIBUTE)
