"""Reading payloads in portions that SQLite can gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from affinity.provider.sqlite.database import PORTION, Tx, to_json


def read_payloads(tx: Tx, sql: LiteralString, ids: Sequence[int]) -> dict[int, str]:
    """Payloads by row id; ``sql`` gathers them for ``:ids``."""
    found: dict[int, str] = {}
    for start in range(0, len(ids), PORTION):
        found |= tx.gather(sql, {"ids": to_json(ids[start : start + PORTION])})
    return found
