"""OpenTelemetry in worker processes, for ``--tracing``: spans are encoded for a collector, and dropped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

SWITCH: Final = "BENCH_TRACING"
"""Variable of the environment of a worker process."""


def start_if_enabled() -> None:
    """Set a tracer provider in this process, if the bench traces."""
    if SWITCH not in os.environ:
        return
    # Other runs measure what it costs that nothing of this is imported.
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Encoder(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Encoder()))
    trace.set_tracer_provider(provider)
