"""Instances as workers see them: ownership with messages, histories, hand-over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
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
from affinity.provider.postgres.operations import Operations, caller_params, split
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "orchestrations.sql")

_WINDOW: Final = 16
"""Messages looked at for each instance asked for; more of the same instance come with it anyhow."""


class _FetchRow(NamedTuple):
    """What the rows of ``fetch`` have in common; behind it, a `_MessageRow`."""

    more: bool
    next_due: float | None
    left: bool | None
    fenced: bool


class _MessageRow(NamedTuple):
    """A message, with its instance."""

    instance_id: str
    generation: Generation
    execution_id: int
    name: str
    version: str | None
    event_count: int
    claims: int
    unknown_for: float | None
    session_id: str | None
    message_id: int
    payload: str


class OrchestrationOperations(Operations):
    """`fetch_orchestration_item`, `read_history` and `release_instance`."""

    async def fetch_orchestration_item(
        self,
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
        rows = await self._connections.fetch.run(_SQL["fetch"], params)
        (more, next_due, left, fenced), found = split(_FetchRow, rows)
        messages = map(_MessageRow._make, found)
        items = [_item(list(group)) for _, group in groupby(messages, attrgetter("instance_id"))]
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
        self, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES
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
        rows = await self._connections.quick.run(_SQL["read_history"], params)
        found: list[list[str]] = [[] for _ in cursors]
        for n, event, _ in rows:
            found[n - 1].append(event)
        last, _, total = rows[-1] if rows else (0, "", 0)
        return [
            HistoryPage(events=events, more=len(events) == MAX_PAGE_EVENTS or (n >= last and total >= max_bytes))
            for n, events in enumerate(found, 1)
        ]

    async def release_instance(self, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
        if not releases:
            return
        params = {
            **caller_params(identity),
            "instance": Texts(release.instance_id for release in releases),
            "receiver": Texts(release.to for release in releases),
            "unknown": Bools(release.unknown for release in releases),
            "reroute": Int8(MAX_REROUTE),
        }
        await self._connections.quick.run(_SQL["release"], params)


def _item(rows: Sequence[_MessageRow]) -> OrchestrationItem:
    first = rows[0]
    return OrchestrationItem(
        instance_id=first.instance_id,
        generation=first.generation,
        execution_id=first.execution_id,
        name=first.name,
        version=first.version,
        event_count=first.event_count,
        claims=first.claims,
        unknown_for=first.unknown_for,
        messages=[QueuedMessage(row.message_id, row.payload) for row in rows],
        session_id=first.session_id,
    )
