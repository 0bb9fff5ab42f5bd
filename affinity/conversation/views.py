"""Views of a conversation for clients, beside its events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from affinity.conversation.events import EventTypes, JournalEvent, SpanError
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.journal import EndOutcome, JournalWake, Request, Revisit
from affinity.records import copied, frozen, parse_stored, raise_unreadable


@frozen(kw_only=True)
class PendingRevisit:
    """A later wake that was requested."""

    key: str
    due_at: datetime
    priority: int
    reason: str
    note: Any  # JSON
    wake_id: str | None  # that requested it


@frozen(kw_only=True)
class EndedWake:
    """An attempt of a wake that has ended. It has processed the inputs with base < number <= processed."""

    wake_id: str
    attempt: int  # from 1
    seq: int  # number of its last entry
    base: int  # up to this number all inputs were processed before it
    read: int  # number of the last input that it was given
    processed: int  # up to this number all are processed behind it; ``base``: it has processed no input
    outcome: EndOutcome
    reason: str  # its stop reason: see `ConversationIdle`; empty unless the outcome is "done"
    error: SpanError | None


@frozen(kw_only=True)
class DeadLetter:
    """An input that a wake was given which has failed for good: later wakes have gone on behind it."""

    seq: int  # its number
    event: JournalEvent
    error: SpanError  # of the wake
    failed_at: datetime  # when it was set aside
    retried_as: int | None  # its number as it was sent again; None: it was not


def request_of(
    request: Request, types: EventTypes, conversation_id: str, conversation_kind: str
) -> PendingRequest[JournalEvent]:
    """Return the view of a row."""
    event = types.decode(request.kind, request.payload)
    labels = dict(request.labels)
    about = {"conversation_id": conversation_id, "conversation_kind": conversation_kind}
    return copied(PendingRequest, request, event=event, labels=labels, **about)


def wake_of(wake: JournalWake) -> EndedWake:
    """Return a row as a view."""
    raise_unreadable(wake.error)
    error = None if wake.error is None else SpanError.model_validate_json(wake.error)
    return copied(EndedWake, wake, error=error)


def revisit_of(revisit: Revisit) -> PendingRevisit:
    """Return a row as a view."""
    return copied(PendingRevisit, revisit, note=parse_stored(revisit.note))
