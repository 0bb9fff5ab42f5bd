"""Keys of messages, so that an instance gets one message of each, and the replies to these messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from affinity.limits import MAX_BATCH_BYTES, PRUNE_WINDOW
from affinity.provider.contract import KeyState, MessageKey, Turn
from affinity.provider.rows import to_key_state
from affinity.provider.sqlite.driver.transaction import PORTION, Tx, to_json
from affinity.provider.sqlite.payloads import REPLIES, read_payloads
from affinity.provider.statements import load_statements

OF_ONE: Final = "WHERE instance_id = :instance_id AND "
"""In place of the beginning of a condition: for one instance."""

SQL: Final = load_statements(__package__, "replies.sql")


def find_known(tx: Tx, keys: Sequence[MessageKey]) -> set[MessageKey]:
    """The keys under which their instances have got a message."""
    return {MessageKey(*known) for known in tx.gather(SQL["known"], {"keys": to_json(keys)})}


def add(tx: Tx, keys: Iterable[tuple[MessageKey, str]]) -> None:
    """Note new keys, each with the generation of its instance."""
    tx.many(SQL["add"], [(key.instance_id, generation, key.key) for key, generation in keys], {"now": tx.now})


def reply(tx: Tx, turns: Sequence[Turn]) -> None:
    """Store the replies of turns."""
    rows = [(turn.instance_id, turn.generation, *each) for turn in turns for each in turn.replies]
    tx.many(SQL["reply"], rows, {"now": tx.now})


def read(tx: Tx, keys: Sequence[MessageKey], *, max_bytes: int = MAX_BATCH_BYTES) -> list[KeyState | None]:
    rows: dict[int, list[Any]] = {}
    for start in range(0, len(keys), PORTION):
        found = tx.gather(SQL["states"], {"keys": to_json(keys[start : start + PORTION])})
        rows |= {start + place: row for place, *row in found}
    answered = [row_id for *_, row_id, is_answered in rows.values() if is_answered]
    texts = read_payloads(tx, REPLIES, answered, max_bytes)
    states: list[KeyState | None] = [None] * len(keys)
    for place, (*instance, row_id, is_answered) in rows.items():
        states[place] = to_key_state((*instance, row_id is not None, bool(is_answered), texts.get(row_id)))
    return states


def forget(tx: Tx, cutoff: float, instance_id: str | None = None) -> bool:
    """Remove keys that are old, a bounded number, of all instances or one; whether there may be more."""
    at = {"cutoff": cutoff, "window": PRUNE_WINDOW}
    if instance_id is None:
        return tx.run(SQL["forget"], at) == PRUNE_WINDOW
    of_one = SQL["forget"].replace("WHERE updated_at", OF_ONE + "updated_at")
    return tx.run(of_one, {**at, "instance_id": instance_id}) == PRUNE_WINDOW
