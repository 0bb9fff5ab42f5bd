"""The OpenTelemetry span of an attempt of a wake, with the attributes of the conventions for generative AI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from affinity.conversation.trace import CONVERSATION_ATTRIBUTE
from affinity.conversation.wake import Wake
from affinity.telemetry import SESSION_ATTRIBUTE
from affinity.tracing import (
    NO_SPAN,
    Attempt,
    OpenSpan,
    attempt_span,
    current_attempt,
    usage_attributes,
)


def wake_span(
    kind: str, wake: Wake, senders: Sequence[str | None], elapsed: float
) -> AbstractContextManager[OpenSpan | None]:
    """Return the span around the handler of a wake.

    Args:
        kind: of the conversation.
        wake: before it begins.
        senders: trace contexts of its inputs.
        elapsed: seconds of its attempts that have failed, with the pauses.
    """
    attempt = current_attempt()
    return NO_SPAN if attempt is None else _span_of(attempt, kind, wake, senders, elapsed)


@contextmanager
def _span_of(attempt: Attempt, kind: str, wake: Wake, senders: Sequence[str | None], elapsed: float) -> Iterator[None]:
    attributes: Mapping[str, str | int] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": kind,
        CONVERSATION_ATTRIBUTE: wake.conversation_id,
        SESSION_ATTRIBUTE: wake.conversation_id,
        "affinity.wake_id": wake.id,
        "affinity.attempt": wake.attempt,
    }
    traced = [sender for sender in senders if sender is not None]
    name = f"invoke_agent {kind}"
    with attempt_span(attempt, name=name, senders=traced, waited=elapsed, attributes=attributes) as span:
        try:
            yield
        finally:
            span.set(usage_attributes(wake.usage))
