"""What clients see of a conversation, beside its events."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal, TypeAlias

from affinity.conversation.events import EventTypes, JournalEvent
from affinity.journal import JournalPage, Request, Revisit
from affinity.provider.contract import FINISHED, InstanceInfo
from affinity.records import frozen

ConversationStatus: TypeAlias = Literal["idle", "running", "rescheduling", "requires_action", "failed", "terminated"]
"""``running``: a wake runs, or inputs wait for one. ``rescheduling``: a wake has failed, and runs again later.
``requires_action``: it waits for an answer. ``failed``: a wake has failed for good; the next input tries again.
"""


@frozen(kw_only=True)
class PendingRequest:
    """A request that waits for an answer."""

    request_id: str
    event: JournalEvent  # a `RequestEvent`, unless this code does not know its kind
    wake_id: str | None  # that made it
    created_at: datetime
    expires_at: datetime | None  # then it counts as refused


@frozen(kw_only=True)
class PendingRevisit:
    """A later wake that was requested."""

    key: str
    due_at: datetime
    priority: int
    reason: str
    note: Any  # JSON
    wake_id: str | None  # that requested it


def request_of(request: Request, types: EventTypes) -> PendingRequest:
    """A row as a view."""
    return PendingRequest(
        request_id=request.request_id,
        event=types.decode(request.kind, request.payload),
        wake_id=request.wake_id,
        created_at=request.created_at,
        expires_at=request.expires_at,
    )


def revisit_of(revisit: Revisit) -> PendingRevisit:
    """A row as a view."""
    return PendingRevisit(
        key=revisit.key,
        due_at=revisit.due_at,
        priority=revisit.priority,
        reason=revisit.reason,
        note=json.loads(revisit.note),
        wake_id=revisit.wake_id,
    )


def status_of(page: JournalPage, instance: InstanceInfo | None, *, runs: bool, waits: bool) -> ConversationStatus:
    """The status, from what is stored; it is not stored itself.

    Args:
        page: of the journal: of its inputs that wait for a wake.
        instance: of the conversation; None: an operator has deleted it, and the next event creates it again.
        runs: a wake does; it is not between two attempts.
        waits: a request is pending.
    """
    if page.closed or (instance is not None and instance.status in FINISHED):
        return "terminated"
    if instance is None:
        return "idle"
    if instance.status == "suspended":
        return "failed"
    if runs:
        return "running"
    for custom in ("failed", "rescheduling"):
        if instance.custom_status == f'"{custom}"':
            return custom
    return "running" if page.entries else "requires_action" if waits else "idle"
