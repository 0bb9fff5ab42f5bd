"""Instances as workers see them: ownership with messages, histories, hand-over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from psycopg.types.numeric import Int8

from affinity.limits import MAX_BATCH, MAX_BATCH_BYTES, MAX_PAGE_EVENTS, MAX_REROUTE, MIN_SHARE, SHARE_DIVISOR
from affinity.provider.contract import (
    Generation,
    HistoryCursor,
    HistoryPage,
    OrchestrationFetch,
    OrchestrationItem,
    QueuedMessage,
    Release,
    WorkerIdentity,
)
from affinity.provider.postgres.driver.arrays import Bools, Ints, Texts
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.postgres.operations import Database, caller_params, columns
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "orchestrations.sql")

_WINDOW: Final = 16
"""Messages that are looked at for each wanted instance. A taken instance brings its further messages too."""


class _SearchRow(NamedTuple):
    """The first columns of a row of ``fetch``; a `_TakenRow` and a `QueuedMessage` follow."""

    more: bool
    next_due: float | None
    left: bool | None
    fenced: bool


class _TakenRow(NamedTuple):
    """The columns of an `OrchestrationItem`, without its messages."""

    instance_id: str
    generation: Generation
    execution_id: int
    name: str
    version: str | None
    event_count: int
    claims: int
    unknown_for: float | None
    session_id: str | None
    value_bytes: int


_FACTS, _INSTANCE, _MESSAGE = columns(_SearchRow, _TakenRow, QueuedMessage)
_instance_id: Final = itemgetter(_INSTANCE.start)


async def fetch_orchestration_item(
    db: Database,
    identity: WorkerIdentity,
    *,
    limit: int,
    names: Collection[str],
    unknown_after: float,
    exclude: Collection[int] = (),
    max_bytes: int = MAX_BATCH_BYTES,
) -> OrchestrationFetch:
    params = {
        **caller_params(identity),
        "limit": Int8(limit),
        "rounds": Int8(SHARE_DIVISOR),
        "least": Int8(MIN_SHARE),
        "scan": Int8(limit * _WINDOW),
        "names": Texts(names),
        "unknown_after": float(unknown_after),
        "exclude": Ints(exclude),
        "messages": Int8(MAX_BATCH),
        "max_bytes": Int8(max_bytes),
        "reroute": Int8(MAX_REROUTE),
    }
    rows = await db.connections.fetch.run(_SQL["fetch"], params)
    more, next_due, left, fenced = _SearchRow._make(rows[0][_FACTS])
    items = [_item(list(group)) for id_, group in groupby(rows, _instance_id) if id_ is not None]
    if items and (more or left):
        next_due = 0.0
    return OrchestrationFetch(
        items=items,
        claim_lost=more and not items,
        next_due=None if next_due is None else max(0.0, next_due),
        unclaimed_remaining=bool(items and left),
        fenced=fenced and not items,
    )


async def read_history(
    db: Database, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES
) -> Sequence[HistoryPage]:
    if not cursors:
        return []
    params = {
        "instance": Texts(cursor.instance_id for cursor in cursors),
        "execution": Ints(cursor.execution_id for cursor in cursors),
        "after": Ints(cursor.after for cursor in cursors),
        "page": Int8(MAX_PAGE_EVENTS),
        "max_bytes": Int8(max_bytes),
    }
    rows = await db.connections.quick.run(_SQL["read_history"], params)
    found: list[list[str]] = [[] for _ in cursors]
    for n, event, _ in rows:
        found[n - 1].append(event)
    last, _, total = rows[-1] if rows else (0, "", 0)
    return [
        HistoryPage(events=events, more=len(events) == MAX_PAGE_EVENTS or (n >= last and total >= max_bytes))
        for n, events in enumerate(found, 1)
    ]


async def release_instance(db: Database, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
    if not releases:
        return
    params = {
        **caller_params(identity),
        "instance": Texts(release.instance_id for release in releases),
        "receiver": Texts(release.to for release in releases),
        "unknown": Bools(release.unknown for release in releases),
        "reroute": Int8(MAX_REROUTE),
    }
    await db.connections.quick.run(_SQL["release"], params)


def _item(rows: Sequence[Row]) -> OrchestrationItem:
    return OrchestrationItem(
        **_TakenRow._make(rows[0][_INSTANCE])._asdict(),
        messages=[QueuedMessage._make(row[_MESSAGE]) for row in rows],
    )
