"""Traces of orchestrations and their activities: which spans there are, and how they hang together."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from affinity import (
    ActivityContext,
    App,
    Client,
    Event,
    OrchestrationContext,
    RetryPolicy,
    RuntimeOptions,
    Worker,
    sync,
    telemetry,
)
from affinity.orchestration.events import EventRaised, OrchestrationStarted
from affinity.orchestration.wire import encode_event, without_trace
from affinity.testing import Env, replay
from affinity.tracing import ExecutionName, execution_context
from tests.support.rows import all_rows
from tests.support.span_exporter import lines_of, traced

pytestmark = pytest.mark.anyio

CONTEXT: Final = re.compile(r'"+trace"+:"+00-')  # PostgreSQL doubles quotes in the text of a row

app = App("tracing")
Question = Event("question", str, reply=str)


@app.activity
async def double(ctx: ActivityContext, number: int) -> int:
    with trace.get_tracer("tests").start_as_current_span("inside"):
        return 2 * number


class Stage:
    """Where a test waits for an activity, and the activity for the test."""

    begun = anyio.Event()
    free = anyio.Event()


stage = Stage()


@pytest.fixture(autouse=True)
def _fresh_stage() -> None:
    stage.begun, stage.free = anyio.Event(), anyio.Event()


@app.activity
async def pause(ctx: ActivityContext, attempts: int) -> str:
    """Waits for the test, in its first attempts."""
    stage.begun.set()
    if ctx.attempt <= attempts:
        await stage.free.wait()
    return ctx.worker_id


@app.activity
async def fail_once(ctx: ActivityContext) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return ctx.attempt


@app.orchestration
async def alone(ctx: OrchestrationContext, number: int) -> int:
    return await ctx.schedule_activity(double, number)


@app.orchestration
async def fan_out(ctx: OrchestrationContext, numbers: int) -> int:
    children = [ctx.schedule_sub_orchestration(alone, each) for each in range(numbers)]
    return sum(await ctx.gather(*children))


@app.orchestration
async def pausing(ctx: OrchestrationContext, session_id: str) -> tuple[str, str]:
    on_session = ctx.schedule_activity(pause, 1).on_session(session_id)
    return await ctx.gather(on_session, ctx.schedule_activity(pause, 1))


@app.orchestration
async def retrying(ctx: OrchestrationContext, pause: float) -> int:
    retry = RetryPolicy(initial_interval=pause, max_interval=pause)
    return await ctx.schedule_activity(fail_once, retry=retry)


@app.orchestration
async def again(ctx: OrchestrationContext, left: int) -> int:
    await ctx.schedule_activity(double, left)
    if left:
        ctx.continue_as_new(left - 1)
    return left


@app.orchestration
async def answering(ctx: OrchestrationContext, session_id: str) -> str:
    while True:
        question = await ctx.schedule_wait(Question)
        if question.data == "end":
            return "ended"
        number = await ctx.schedule_activity(double, len(question.data)).on_session(session_id)
        question.reply(str(number))
        await ctx.schedule_activity(double, 0).on_session(session_id)


@app.orchestration
async def failing(ctx: OrchestrationContext) -> None:
    await ctx.schedule_timer(1.0)
    raise ValueError("no more")


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with traced() as found:
        yield found


def named(spans: InMemorySpanExporter, name: str) -> Sequence[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_fan_out_is_one_trace(spans: InMemorySpanExporter) -> None:
    """From the caller's span to the spans in activities of sub-orchestrations, on two workers."""
    async with Env(app, workers=2) as env:
        with trace.get_tracer("tests").start_as_current_span("request"):
            run = await env.client.start(fan_out, 2)
            assert await run.wait() == 2
    found = spans.get_finished_spans()
    assert len({span.context.trace_id for span in found}) == 1
    request, *lines = lines_of([span for span in found if span.name != "wait"])
    assert request == "INTERNAL request"
    child = [
        "      INTERNAL execute alone",
        "        CONSUMER run double",
        "          INTERNAL inside",
    ]
    assert lines == ["  PRODUCER start fan_out", "    INTERNAL execute fan_out", *child, *child]
    (execution,) = named(spans, "execute fan_out")
    assert about(execution) == {
        "affinity.instance_id": run.instance_id,
        "affinity.execution_id": 1,
        "affinity.orchestration": "fan_out",
        "affinity.orchestration_version": "1.0.0",
        "affinity.worker_id": about(execution)["affinity.worker_id"],
        "affinity.outcome": "completed",
    }
    (start,) = named(spans, "start fan_out")
    assert about(start) == {
        "messaging.system": "affinity",
        "messaging.operation.name": "start",
        "messaging.operation.type": "send",
        "messaging.destination.name": "fan_out",
        "affinity.instance_id": run.instance_id,
    }


async def test_a_replay_on_another_worker_makes_no_span_again(spans: InMemorySpanExporter) -> None:
    """All turns begin with a replay, and the last ones are on another worker: the ids are the same, each once."""
    async with Env(app, workers=2, always_replay=True) as env:
        run = await env.client.start(answering, "s")
        assert await run.ask(Question("abc")) == "6"
        (held,) = await env.client.sessions()
        await env.crash(held.worker_id, restart=False)
        assert await run.ask(Question("abcd")) == "8"
        await run.raise_event(Question("end"))
        assert await run.wait() == "ended"
    assert [len(named(spans, name)) for name in ("execute answering", "start answering", "ask question")] == [1, 1, 2]
    (execution,) = named(spans, "execute answering")
    asks = named(spans, "ask question")
    parents = [span.parent.span_id if span.parent else None for span in named(spans, "run double")]
    # What serves an ask is in its trace; what comes after the reply is in the trace of the execution. The first one
    # after the takeover is apart.
    assert parents == [asks[0].context.span_id, execution.context.span_id, None, execution.context.span_id]
    assert {link.context.span_id for link in execution.links} >= {each.context.span_id for each in asks}


async def test_after_a_crash_the_attempt_is_apart_and_says_why(spans: InMemorySpanExporter) -> None:
    async with Env(app) as env:
        run = await env.client.start(pausing, "s")
        await stage.begun.wait()
        await env.crash(0)
        assert await run.wait() == ("worker-0", "worker-0")
    (execution,) = named(spans, "execute pausing")
    ended = [span for span in named(spans, "run pause") if about(span).get("error.type") != "CancelledError"]
    on_session = next(span for span in ended if "affinity.session_epoch" in about(span))
    other = next(span for span in ended if "affinity.session_epoch" not in about(span))
    for attempt in ended:
        assert attempt.parent is None
        assert [link.context.span_id for link in attempt.links] == [execution.context.span_id]
        assert about(attempt)["affinity.attempt"] == 2
        assert about(attempt)["affinity.worker_id"] == "worker-0"
    assert other.events == ()
    (moved,) = on_session.events
    assert moved.name == "affinity.session.moved"
    assert dict(moved.attributes or {}) == {
        "affinity.move.reason": "restart",
        "affinity.move.from": "worker-0",
        "affinity.move.epoch": about(on_session)["affinity.session_epoch"],
    }


async def test_the_first_attempt_after_a_move_says_why_and_is_apart_unless_the_session_was_free(
    spans: InMemorySpanExporter,
) -> None:
    async with Env(app, workers=2) as env:
        run = await env.client.start(answering, "s")
        await run.ask(Question("one"))
        (held,) = await env.client.sessions()
        other = "worker-1" if held.worker_id == "worker-0" else "worker-0"
        await env.move("s", other)
        await run.ask(Question("two"))
        await env.advance(310.0)  # its lock has ended; the row is there still
        await env.crash(other, restart=False)
        await run.ask(Question("three"))
        await run.raise_event(Question("end"))
        await run.wait()
    moved = [
        ((event.attributes or {})["affinity.move.reason"], span.parent is None, len(span.links))
        for span in named(spans, "run double")
        for event in span.events
    ]
    assert moved == [("moved", True, 1), ("idle_expired", False, 0)]


@pytest.mark.parametrize(("pause", "is_apart"), [(5.0, False), (90.0, True)])
async def test_a_retry_is_apart_if_the_activity_has_waited_for_over_a_minute(
    spans: InMemorySpanExporter, pause: float, is_apart: bool
) -> None:
    async with Env(app) as env:
        run = await env.client.start(retrying, pause)
        assert await run.wait() == 2
    (execution,) = named(spans, "execute retrying")
    first, second = named(spans, "run fail_once")
    assert about(first)["error.type"] == "ValueError"
    assert not first.status.is_ok
    assert first.parent is not None
    assert first.parent.span_id == execution.context.span_id
    assert (second.parent is None) == is_apart
    assert [link.context.span_id for link in second.links] == ([execution.context.span_id] if is_apart else [])
    assert about(second)["affinity.attempt"] == 2
    assert about(second)["affinity.queue_time"] == pytest.approx(pause, abs=1.0)


async def test_each_execution_has_its_trace_with_a_link_to_the_one_before(spans: InMemorySpanExporter) -> None:
    async with Env(app, always_replay=True) as env:
        run = await env.client.start(again, 2)
        await run.wait()
    executions = named(spans, "execute again")
    assert [about(each)["affinity.outcome"] for each in executions] == ["continued", "continued", "completed"]
    assert len({each.context.trace_id for each in executions}) == 3
    for before, after in pairwise(executions):
        assert after.parent is None
        assert [link.context.span_id for link in after.links] == [before.context.span_id]
    parents = [span.parent and (span.parent.trace_id, span.parent.span_id) for span in named(spans, "run double")]
    assert parents == [(each.context.trace_id, each.context.span_id) for each in executions]


async def test_a_failure_and_its_time_are_in_the_span_of_the_execution(spans: InMemorySpanExporter) -> None:
    async with Env(app) as env:
        run = await env.client.start(failing)
        await env.client.wait_finished(run.instance_id)
    (execution,) = named(spans, "execute failing")
    assert execution.status.description == "ValueError: no more"
    assert about(execution)["error.type"] == "ValueError"
    assert execution.end_time is not None
    assert execution.start_time is not None
    assert (execution.end_time - execution.start_time) / 1e9 == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("flags", [TraceFlags.SAMPLED, TraceFlags.DEFAULT])
async def test_tracestate_and_sampling_of_the_caller_reach_the_activity(
    spans: InMemorySpanExporter, flags: int
) -> None:
    caller = SpanContext(1, 2, True, TraceFlags(flags), TraceState([("vendor", 'a"b')]))
    async with Env(app) as env:
        with trace.use_span(NonRecordingSpan(caller)):
            run = await env.client.start(alone, 1)
        await run.wait()
    found = [*named(spans, "start alone"), *named(spans, "execute alone"), *named(spans, "run double")]
    assert len(found) == (3 if flags else 0)
    for span in found:
        assert span.context.trace_id == 1
        assert span.context.trace_state.get("vendor") == 'a"b'


def test_an_execution_without_a_caller_is_sampled_once_for_all_its_parts() -> None:
    """As one that a schedule, or a client without OpenTelemetry, has started; on any worker, and after a replay."""
    name = ExecutionName(instance_id="i", generation="g", execution_id=1, started_in=None)
    for sampler, flags in ((ALWAYS_ON, "01"), (ALWAYS_OFF, "00")):
        with traced(TracerProvider(sampler=sampler)):
            context = execution_context(name)
            assert context is not None
            assert context.endswith(f"-{flags}")
            assert context == execution_context(replace(name))
            assert context != execution_context(replace(name, generation="h"))
    assert execution_context(name) is None


@pytest.mark.parametrize("is_traced", [False, True])
async def test_contexts_are_stored_only_where_a_tracer_is_in_use(kept_url: str, is_traced: bool) -> None:
    """With the start, the work, the event and the messages that are on their way."""
    with traced() if is_traced else nullcontext():
        async with Client(kept_url) as client:
            run = await client.start(pausing, "s")
            await run.raise_event("never", 1)
            queued = all_rows(kept_url)
            async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)):
                await stage.begun.wait()
                running = all_rows(kept_url)
                stage.free.set()
                await run.wait(timeout=30)
            (start, raised) = (queued.count("orchestration_started"), queued.count("event_raised"))
    assert (start, raised) == (1, 1)
    assert len(CONTEXT.findall(queued)) == (2 if is_traced else 0)
    assert len(CONTEXT.findall(running)) == (4 if is_traced else 0)
    assert ("trace" in queued + running) == is_traced


async def test_an_exported_history_is_the_same_with_and_without(spans: InMemorySpanExporter) -> None:
    """It has no contexts, and a replay needs none."""
    async with Env(app) as env:
        run = await env.client.start(answering, "s")
        await run.ask(Question("ab"))
        await run.raise_event(Question("end"))
        await run.wait()
        stored = await env.client.history(run.instance_id)
        document = await env.client.export_history(run.instance_id)
    assert [each.type for each in stored if "trace" in each.fields] == ["orchestration_started", *["event_raised"] * 2]
    assert "trace" not in str(document)
    assert replay(app, document) == len(stored)
    hostile = ',"trace":"x"}'
    for trace_of in (None, '00-1-2-03 a="\\"'):
        start = OrchestrationStarted("o", "1", f'"{hostile[1:-1]}"', custom_status=hostile[1:], trace=trace_of)
        event = EventRaised("e", '{"trace":"x"}', "k", trace=trace_of, asked=trace_of is not None)
        assert without_trace(encode_event(start)) == encode_event(replace(start, trace=None))
        assert without_trace(encode_event(event)) == encode_event(replace(event, trace=None, asked=False))


class Broken(Sampler):
    """Fails wherever the SDK asks it."""

    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no sample")

    def get_description(self) -> str:
        return "broken"


async def test_opentelemetry_that_fails_fails_no_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "_reported", set())
    with traced(TracerProvider(sampler=Broken())):
        async with Env(app) as env:
            run = await env.client.start(retrying, 1.0)
            await run.raise_event("never")
            assert await run.wait() == 2
    assert [each.levelname for each in caplog.records if "OpenTelemetry" in each.getMessage()] == ["WARNING"]


def test_calls_of_the_sync_client_are_in_the_trace_of_the_calling_thread(
    sqlite_url: str, spans: InMemorySpanExporter
) -> None:
    with sync.Client(sqlite_url) as client, trace.get_tracer("tests").start_as_current_span("request") as request:
        client.start("alone", 1)
    (start,) = named(spans, "start alone")
    assert start.parent is not None
    assert start.parent.span_id == request.get_span_context().span_id


class Receiver(BaseHTTPRequestHandler):
    """The end of a collector that takes traces over HTTP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


async def test_a_collector_receives_the_spans_over_http() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.requests = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        provider = TracerProvider(resource=Resource({"service.name": "shop"}))
        exporter = OTLPSpanExporter(
            f"http://127.0.0.1:{server.server_port}/v1/traces", compression=Compression.NoCompression
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
        with traced(provider):
            async with Env(app) as env:
                run = await env.client.start(alone, 1)
                await run.wait()
        await anyio.to_thread.run_sync(provider.shutdown)
        server.shutdown()
        thread.join()
    received = [
        (resource.resource.attributes[0].value.string_value, scope.scope.name, span)
        for path, body in server.requests  # type: ignore[attr-defined]
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name != "inside"
    ]
    assert {(service, scope) for service, scope, _ in received} == {
        ("shop", "affinity"),
        ("shop", "affinity.orchestration"),
    }
    by_name = {span.name: span for _, _, span in received}
    assert sorted(by_name) == ["execute alone", "run double", "start alone", "wait"]
    start, execution, attempt = (by_name[name] for name in ("start alone", "execute alone", "run double"))
    assert execution.parent_span_id == start.span_id
    assert attempt.parent_span_id == execution.span_id
    assert {start.trace_id, execution.trace_id, attempt.trace_id} == {start.trace_id}
    assert attempt.kind == attempt.SPAN_KIND_CONSUMER
