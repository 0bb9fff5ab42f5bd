"""Conversations on SQLite."""

from __future__ import annotations

from typing import Final

from affinity.provider.sqlite.parts import SqlitePart

PART: Final = SqlitePart(
    verbs={},
    awaits="""EXISTS (SELECT 1 FROM journals AS j
        WHERE j.journal_id = w.target_id AND j.session_id = w.awaited AND j.processed < w.seq)""",
)
