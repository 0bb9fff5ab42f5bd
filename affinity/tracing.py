"""Spans of OpenTelemetry for the work of clients and workers, and the trace contexts that are stored with that work.

A span is made, and a context is stored, only while the application has a tracer provider of the SDK. OpenTelemetry is
not imported here: the application that sets a provider has imported it.

A *trace context* is text: a W3C ``traceparent``, and behind a space the ``tracestate``, if there is one. It is stored
in the start of an instance and in an event (`affinity.orchestration.events`), and in the task of an activity
(`affinity.orchestration.wire`). Guests store it with their own records.

The span of an execution is exported when the execution has ended, and its parts name it as their parent before that.
So its id is derived from the names of the execution: any worker computes the same one, after a replay too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from affinity.records import frozen
from affinity.redaction import redacted, redacted_text
from affinity.telemetry import INSTANCE_ATTRIBUTE, SESSION_ATTRIBUTE, contained, tracing_api

__all__ = [
    "annotate",
    "rename",
    "usage_attributes",
]

LINK_SECONDS: Final = 60.0
"""A longer wait is no part of the trace in which the work was scheduled: the span has a link in place of the parent."""

MAX_LINKS: Final = 32
"""Of one span; further senders have no link."""

MAX_TRACESTATE: Final = 512
"""Characters, as W3C requires them to be propagated; a longer ``tracestate`` is not stored."""

ClientOperation: TypeAlias = Literal["start", "raise", "send", "ask", "wait"]

Attributes: TypeAlias = Mapping[str, str | bool | int | float]

_SCOPE: Final = "affinity"

_USAGE: Final = {
    "gen_ai.usage.input_tokens": ("input_tokens", "prompt_tokens"),
    "gen_ai.usage.output_tokens": ("output_tokens", "completion_tokens"),
}
"""Attributes, with their names in the answers of models."""


# -- whether it is in use


class _InUse(NamedTuple):
    """The application's tracer provider, and our tracers of it; None: it is not the SDK's."""

    provider: Any
    tracer: Any
    executions: Any
    """Makes spans with the ids that `_derived` has."""


class _DerivedIds:
    """An id generator as the SDK wants it, without its base class."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.next = (0, 0)
        """Trace and span of the next span."""

    def generate_trace_id(self) -> int:
        return self.next[0]

    def generate_span_id(self) -> int:
        return self.next[1]

    def is_trace_id_random(self) -> bool:
        """Samplers may take the bits of a random id for a random number; ours are as good, and say nothing of it."""
        return False


_derived: Final = _DerivedIds()
_last = _InUse(None, None, None)


def _in_use() -> _InUse | None:
    """None: the application traces nothing."""
    global _last  # noqa: PLW0603 -- a cache: a tracer is found once for each provider
    api = tracing_api()
    if api is None:
        return None
    with contained():
        if (provider := api.get_tracer_provider()) is not _last.provider:
            _last = _new_tracers(provider)
    return None if _last.tracer is None else _last


def _new_tracers(provider: Any) -> _InUse:
    tracer, executions = (provider.get_tracer(name) for name in (_SCOPE, f"{_SCOPE}.orchestration"))
    if not (hasattr(tracer, "id_generator") and hasattr(executions, "id_generator")):
        return _InUse(provider, None, None)
    executions.id_generator = _derived
    return _InUse(provider, tracer, executions)


def is_in_use() -> bool:
    """Whether the application has set a tracer provider of the SDK."""
    return tracing_api() is not None and _in_use() is not None


# -- contexts


def current_context() -> str | None:
    """The trace context of the calling code; None: it has none."""
    api, found = tracing_api(), None
    if api is not None:
        with contained():
            context = api.get_current_span().get_span_context()
            found = _write(context) if context.is_valid else None
    return found


def _write(context: Any) -> str:
    text = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    state = context.trace_state.to_header() if context.trace_state else ""
    return f"{text} {state}" if 0 < len(state) <= MAX_TRACESTATE else text


def _read(text: str | None) -> Any:
    """The span context of a stored text; None: there is none, or it is damaged."""
    api = tracing_api()
    traceparent, _, state = (text or "").partition(" ")
    try:
        _, trace_id, span_id, flags = traceparent.split("-")
        flag = api.TraceFlags(int(flags, 16))
        states = api.TraceState.from_header([state]) if state else None
        context = api.SpanContext(int(trace_id, 16), int(span_id, 16), True, flag, states)
    except ValueError:
        return None
    return context if context.is_valid else None


def _below(parent: Any) -> Any:
    """A context of OpenTelemetry in which this span context is the current one; None: no span is."""
    empty = sys.modules["opentelemetry.context"].Context()
    return empty if parent is None else tracing_api().set_span_in_context(tracing_api().NonRecordingSpan(parent), empty)


def _links(texts: Iterable[str | None]) -> Sequence[Any]:
    found = [context for text in dict.fromkeys(texts) if (context := _read(text)) is not None]
    return [tracing_api().Link(context) for context in found[:MAX_LINKS]]


# -- spans


class OpenSpan:
    """A span that is open; without effect where OpenTelemetry is not in use, or has failed."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        if self._span is not None:
            with contained():
                self._span.set_attributes(dict(attributes))


NO_SPAN: Final[AbstractContextManager[OpenSpan]] = nullcontext(OpenSpan())


@contextmanager
def _opened(start: Callable[[Any], Any]) -> Iterator[OpenSpan]:
    """A span around the block, which runs as it would without one, whatever the application's processors raise."""
    opening: Any = None
    span = OpenSpan()
    with contained():
        if (use := _in_use()) is not None:
            made = start(use.tracer)
            manager = tracing_api().use_span(made, end_on_exit=True)
            manager.__enter__()
            opening, span = manager, OpenSpan(made)
    try:
        yield span
    except BaseException as error:
        span.set({"error.type": type(error).__qualname__})
        with contained():
            if opening is not None:
                shown = redacted(error)
                opening.__exit__(type(shown), shown, error.__traceback__)
        raise
    with contained():
        if opening is not None:
            opening.__exit__(None, None, None)


def part_span(name: str, *, calls: bool = False) -> AbstractContextManager[OpenSpan]:
    """A span below the current one; ``calls``: of kind CLIENT, since it calls another service."""
    if not is_in_use():
        return NO_SPAN

    def start(tracer: Any) -> Any:
        kinds = tracing_api().SpanKind
        return tracer.start_span(name, kind=kinds.CLIENT if calls else kinds.INTERNAL)

    return _opened(start)


def annotate(attributes: Attributes) -> None:
    """Set attributes of the span of the calling code, if it has one."""
    if is_in_use():
        with contained():
            tracing_api().get_current_span().set_attributes(dict(attributes))


def rename(name: str) -> None:
    """Give the span of the calling code another name, if it has one."""
    if is_in_use():
        with contained():
            tracing_api().get_current_span().update_name(name)


def usage_attributes(usage: Mapping[str, int]) -> Attributes:
    """The usage of a model, under the names of the conventions, as far as they have one for it."""
    found: dict[str, str | bool | int | float] = {}
    for attribute, names in _USAGE.items():
        if known := [usage[name] for name in names if name in usage]:
            found[attribute] = sum(known)  # models may have different names for it
    return found


def client_span(operation: ClientOperation, *destinations: str, sends: bool = True) -> AbstractContextManager[OpenSpan]:
    """A span for the call of a client: of kind PRODUCER if it ``sends`` something, with the attributes of messaging;
    else INTERNAL. ``destinations``: the names of what it starts or sends.
    """
    if not is_in_use():
        return NO_SPAN
    name = destinations[0] if len(set(destinations)) == 1 else ""
    about = _messaging(operation, "send", name) if sends else {}
    if len(destinations) > 1:
        about["messaging.batch.message_count"] = len(destinations)

    def start(tracer: Any) -> Any:
        kind = tracing_api().SpanKind.PRODUCER if sends else tracing_api().SpanKind.INTERNAL
        return tracer.start_span(f"{operation} {name}".rstrip(), kind=kind, attributes=about)

    return _opened(start)


def _messaging(operation: str, kind: str, destination: str) -> dict[str, str | bool | int | float]:
    about: dict[str, str | bool | int | float] = {
        "messaging.system": "affinity",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    return about | {"messaging.destination.name": destination} if destination else about


# -- attempts of activities


@frozen(kw_only=True)
class SessionMoveEvent:
    """Why the session of an attempt has come to its worker."""

    reason: str
    attributes: Attributes
    is_takeover: bool
    """The work was scheduled for another holder: the attempt is apart from the trace in which it was scheduled."""


@frozen(kw_only=True)
class Attempt:
    """An attempt of an activity, as its worker knows it before it begins."""

    name: str
    scheduled_in: str | None
    """Trace context."""
    queue_time: float
    """Seconds since it was queued."""
    is_interrupted: bool
    """An attempt before it did not come to an end: its process, or its lease, has."""
    move: SessionMoveEvent | None
    """Of the first attempt since the session has come here."""
    attributes: Attributes


_attempt: ContextVar[Attempt | None] = ContextVar("affinity.attempt", default=None)

enter_attempt: Final = _attempt.set
"""Leave the span of an attempt to the code in the current task, which knows more of it: it calls `attempt_span`."""


def current_attempt() -> Attempt | None:
    """The attempt whose span is left to the calling code."""
    return _attempt.get()


def attempt_span(
    attempt: Attempt | None,
    *,
    name: str | None = None,
    senders: Sequence[str] = (),
    waited: float = 0.0,
    attributes: Attributes | None = None,
) -> AbstractContextManager[OpenSpan]:
    """The span of an attempt, of kind CONSUMER. Its parent is the context in which the attempt was scheduled. In place
    of the parent it has a link if it waited for over `LINK_SECONDS`, or came after a takeover or an interruption.

    Args:
        attempt: without one there is no span.
        name: of the span.
        senders: trace contexts of its inputs: the first one counts as the one in which it was scheduled; the others are
            links.
        waited: seconds before it was queued.
        attributes: more of them.
    """
    if attempt is None or not is_in_use():
        return NO_SPAN
    first, *others = senders or (attempt.scheduled_in,)
    is_apart = attempt.queue_time + waited > LINK_SECONDS or attempt.is_interrupted
    if attempt.move is not None:
        is_apart = is_apart or attempt.move.is_takeover
    about = _messaging("run", "process", attempt.name) | {"affinity.queue_time": attempt.queue_time}
    about |= {**attempt.attributes, **(attributes or {})}

    def start(tracer: Any) -> Any:
        span = tracer.start_span(
            name or f"run {attempt.name}",
            context=_below(None if is_apart else _read(first)),
            kind=tracing_api().SpanKind.CONSUMER,
            links=_links([first, *others] if is_apart else others),
            attributes=about,
        )
        if (move := attempt.move) is not None:
            span.add_event("affinity.session.moved", {"affinity.move.reason": move.reason, **move.attributes})
        return span

    return _opened(start)


# -- executions


@frozen(kw_only=True)
class ExecutionName:
    """Names one execution of an instance."""

    instance_id: str
    generation: str
    """Of the instance: another one may have the same id later."""
    execution_id: int
    started_in: str | None
    """Trace context in which it was started; of a later execution than the first, of the one before."""

    @property
    def parent(self) -> str | None:
        """The trace context of the span's parent. A later execution has a trace of its own, with a link: otherwise the
        trace of an orchestration that goes on forever would.
        """
        return self.started_in if self.execution_id == 1 else None


class _Ids(NamedTuple):
    trace_id: int
    span_id: int


def _ids(of: ExecutionName) -> _Ids:
    """The ids of an execution's span; the first one counts where it has no parent."""
    digest = sha256(f"{of.execution_id}\n{of.generation}\n{of.instance_id}".encode()).digest()
    return _Ids(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)


def execution_context(of: ExecutionName) -> str | None:
    """The trace context of an execution's span, which may not be exported yet; None: OpenTelemetry is not in use."""
    found = None
    if (use := _in_use()) is not None:
        with contained():
            found = _write(_span_context(of, use.executions))
    return found


def _span_context(of: ExecutionName, tracer: Any) -> Any:
    api, ids, parent = tracing_api(), _ids(of), _read(of.parent)
    if parent is not None:
        return api.SpanContext(parent.trace_id, ids.span_id, False, parent.trace_flags, parent.trace_state)
    is_sampled = tracer.sampler.should_sample(None, ids.trace_id, "execute").decision.is_sampled()
    flags = api.TraceFlags(api.TraceFlags.SAMPLED if is_sampled else api.TraceFlags.DEFAULT)
    return api.SpanContext(ids.trace_id, ids.span_id, False, flags)


@frozen(kw_only=True)
class ExecutionEnd:
    """An execution that has ended."""

    of: ExecutionName
    name: str
    """Of the orchestration."""
    version: str
    session_id: str | None
    labels: Attributes
    """The labels that are shown."""
    worker_id: str
    began: float
    """Unix seconds of the database, as its end."""
    ended: float
    outcome: str
    error: tuple[str, str] | None
    """Type and message, if it has failed."""
    senders: Sequence[str]
    """Trace contexts of the events that it has received."""


@contained()
def record_execution(end: ExecutionEnd) -> None:
    """Export the span of an execution that has ended; once, by the worker that has committed its end."""
    if (use := _in_use()) is None:
        return
    api, of = tracing_api(), end.of
    about: dict[str, str | bool | int | float] = {
        INSTANCE_ATTRIBUTE: of.instance_id,
        "affinity.execution_id": of.execution_id,
        "affinity.orchestration": end.name,
        "affinity.orchestration_version": end.version,
        "affinity.worker_id": end.worker_id,
        "affinity.outcome": end.outcome,
        **end.labels,
    }
    if end.session_id is not None:
        about[SESSION_ATTRIBUTE] = end.session_id
    former = [of.started_in] if of.parent is None else []
    with _derived.lock:
        _derived.next = _ids(of)
        span = use.executions.start_span(
            f"execute {end.name}",
            context=_below(_read(of.parent)),
            links=_links([*former, *end.senders]),
            attributes=about,
            start_time=_nanoseconds(end.began),
        )
    if end.error is not None:
        kind, message = end.error
        span.set_attribute("error.type", kind)
        span.set_status(api.Status(api.StatusCode.ERROR, f"{kind}: {redacted_text(message)}"))
    span.end(_nanoseconds(max(end.began, end.ended)))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
