"""The journals of the worker's database, for an activity."""

from __future__ import annotations

from typing import cast

from affinity.conversation.journal import JournalAccess, JournalWrite
from affinity.orchestration import ActivityContext


def journals_in(ctx: ActivityContext) -> JournalAccess | None:
    """Return the journals of the worker's database; None in a context that a test makes."""
    return cast("JournalAccess | None", ctx._guests.get(JournalWrite.guest))
