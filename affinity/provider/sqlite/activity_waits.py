"""Activities that wait for instances: who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, LiteralString

from affinity.limits import MAX_WAITS_READ
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import parts
from affinity.provider.statements import load_statements, with_conditions
from affinity.records import ActivityWait, WaitEdge

SQL: Final = load_statements(__package__, "activity_waits.sql")


def begin(tx: Tx, wait: ActivityWait) -> None:
    tx.run(SQL["begin"], {**wait._asdict(), "now": tx.now})


def end(tx: Tx, wait_id: int) -> None:
    tx.run(SQL["end"], {"wait_id": wait_id})


def remove(tx: Tx) -> None:
    tx.run(SQL["remove_ended"], {"now": tx.now})


def read(tx: Tx, instance_id: str) -> Sequence[WaitEdge]:
    rows = tx.rows(_read(), {"instance_id": instance_id, "now": tx.now, "limit": MAX_WAITS_READ})
    return [WaitEdge(*row) for row in rows]


@cache
def _read() -> LiteralString:
    return with_conditions(SQL["read"], [part.awaits for part in parts().values() if part.awaits is not None])
