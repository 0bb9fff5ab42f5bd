"""OpenTelemetry in this process, with its spans in memory."""

from __future__ import annotations

from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from affinity.telemetry import SESSION_ATTRIBUTE


@cache
def exporter() -> InMemorySpanExporter:
    """Where all spans of the process go; the SDK takes one provider in a process's life."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    return spans


def session_of(span: ReadableSpan) -> object:
    """The session that the span carries."""
    return (span.attributes or {}).get(SESSION_ATTRIBUTE)
