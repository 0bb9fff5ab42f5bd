"""The options of conversations for workers: the retention of conversations and of their entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from affinity.limits import MAX_QUOTA
from affinity.worker.options import GuestOptions, RetentionSeconds


class ConversationOptions(GuestOptions):
    """The times for which workers keep unused conversations, and the entries of others. Durations are seconds."""

    journal_retention: RetentionSeconds | None = None
    """Entries of journals are removed after this long, unless a wake, a pending request or a fork needs them; none:
    with their journal. See docs/run/retention.md#retention.
    """
    journal_max_entries: int | None = Field(default=None, ge=0, le=MAX_QUOTA)
    """Entries kept of one journal; older ones are removed likewise."""
    journal_max_bytes: int | None = Field(default=None, ge=0, le=MAX_QUOTA)
    """Bytes of payloads kept of one journal; older entries are removed likewise."""
    conversation_retention: RetentionSeconds | None = None
    """Conversations are removed, with their records, this long after their last event, if they have ended or only wait
    for another message; none: never. See docs/run/retention.md#sessions-and-conversations.
    """

    @property
    def retention_of_guests(self) -> Mapping[str, Any]:
        """Add the bounds of journals."""
        bounds = {
            "resting": self.conversation_retention,
            "age": self.journal_retention,
            "entries": self.journal_max_entries,
            "size": self.journal_max_bytes,
        }
        found = {name: bound for name, bound in bounds.items() if bound is not None}
        return {**super().retention_of_guests, **({"conversation": found} if found else {})}
