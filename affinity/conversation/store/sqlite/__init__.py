"""Conversations on SQLite."""

from __future__ import annotations

from typing import Final

from affinity.provider.sqlite.parts import SqlitePart

PART: Final = SqlitePart(
    verbs={},
)
