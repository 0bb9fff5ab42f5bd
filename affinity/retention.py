"""Options of workers that remove whole sessions: their records, and their conversations."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from affinity.limits import MAX_RETENTION_SECONDS

RetentionSeconds = Annotated[float, Field(gt=0, le=MAX_RETENTION_SECONDS, allow_inf_nan=False)]


class SessionRetention(BaseModel):
    """How long workers keep sessions that nothing uses. Durations are seconds."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    record_retention: RetentionSeconds | None = None
    """Session records are removed this long after their last write, unless the session is held, has queued work or a
    conversation, or was named at the start of an instance that has not ended; none: never. See
    docs/run/retention.md#sessions-and-conversations.
    """
    conversation_retention: RetentionSeconds | None = None
    """Conversations are removed, with their records, this long after their last event, if they have ended or only wait
    for another message; none: never. See docs/run/retention.md#sessions-and-conversations.
    """

    @property
    def resting_retention(self) -> float | None:
        """The retention of journals at rest, with their instances and records."""
        return self.conversation_retention
