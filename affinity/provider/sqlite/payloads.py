"""Reading payloads in portions that SQLite can gather, as many as fit into a number of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, LiteralString

from affinity.provider.sqlite.driver.transaction import PORTION, Tx, to_json
from affinity.provider.statements import load_statements

OF_ITEMS: Final = load_statements(__package__, "payloads.sql")["payloads"]
OF_MESSAGES: Final = OF_ITEMS.replace("worker_queue", "orchestrator_queue")
REPLIES: Final = OF_ITEMS.replace("worker_queue", "message_keys").replace("q.payload", "q.reply")

FIRST_PORTION: Final = 16
"""Rows of the first portion. SQLite reads a text to know its size: 32 MB, if all of these have the largest size."""


def portions() -> Iterator[int]:
    """Numbers of rows of the portions of a read. The first portion is enough for nearly all reads."""
    yield FIRST_PORTION
    while True:
        yield PORTION


def read_payloads(tx: Tx, sql: LiteralString, ids: Sequence[int], max_bytes: int) -> dict[int, str]:
    """Payloads by row id, in order, until they have ``max_bytes``; ``sql`` gathers them for ``:ids``."""
    found: dict[int, str] = {}
    start = 0
    for portion in portions():
        if start >= len(ids) or max_bytes <= 0:
            break
        rows = tx.gather(sql, {"ids": to_json(ids[start : start + portion]), "max_bytes": max_bytes})
        found |= {row_id: payload for row_id, payload, _ in rows}
        max_bytes -= max(total for *_, total in rows)
        start += portion
    return found
