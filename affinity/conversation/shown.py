"""Conversations as pages and commands show them: what cannot be decoded says why, and the rest is shown."""

from __future__ import annotations

from affinity.conversation.events import EventTypes, JournalEvent, SpanError, UnknownEvent
from affinity.conversation.journal import JournalWake, Revisit
from affinity.conversation.views import EndedWake, PendingRevisit, revisit_of, wake_of
from affinity.errors import PayloadUnreadable
from affinity.records import copied


class ShownEventTypes(EventTypes):
    """Kinds of events. One that cannot be decoded has the reason in place of its fields."""

    def decode(self, kind: str, payload: str) -> JournalEvent:
        """See `EventTypes.decode`."""
        try:
            return super().decode(kind, payload)
        except PayloadUnreadable as error:
            return UnknownEvent(kind=kind, data={"unreadable": str(error)})


def shown_revisit(row: Revisit) -> PendingRevisit:
    """Return a later wake."""
    try:
        return revisit_of(row)
    except PayloadUnreadable as error:
        return copied(PendingRevisit, row, note=f"({error})")


def shown_wake(row: JournalWake) -> EndedWake:
    """Return an attempt of a wake."""
    try:
        return wake_of(row)
    except PayloadUnreadable as error:
        return copied(EndedWake, row, error=SpanError(type="error", message=f"({error})"))
