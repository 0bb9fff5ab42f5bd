"""Fetching work items, and claiming their sessions if no worker holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final, LiteralString, NamedTuple, TypeAlias

from psycopg.types.numeric import Int8

from affinity.errors import Contention, ProviderError
from affinity.limits import MAX_BATCH, MAX_REROUTE, MIN_SHARE, SHARE_DIVISOR
from affinity.provider.contract import (
    MAX_ASSIGNED,
    NEWER_SECONDS,
    NO_TAGS,
    FetchOptions,
    Token,
    WaitFailure,
    WorkerIdentity,
    WorkFetch,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.operations import Database, caller_params, columns, present
from affinity.provider.postgres.parts import prefetches
from affinity.provider.postgres.work_items import lengths
from affinity.provider.rows import not_negative
from affinity.provider.statements import load_statements, with_guests, with_parts
from affinity.records import constructor

_SQL: Final = load_statements(__package__, "fetching.sql")
CLAIM_ALONE: Final = _SQL["claim_alone"]
_PARTS: Final = {False: frozenset({"plain"}), True: frozenset({"tagged"})}
_FETCH: Final = {tagged: with_parts(_SQL["fetch"], kept) for tagged, kept in _PARTS.items()}
_CLAIM: Final = {tagged: (CLAIM_ALONE, with_parts(_SQL["claim"], kept | {"claim"})) for tagged, kept in _PARTS.items()}
"""By whether the caller has tags."""

_SHARES: Final = {
    "rounds": Int8(SHARE_DIVISOR),
    "least": Int8(MIN_SHARE),
    "count": Int8(MAX_BATCH),
    "most_assigned": Int8(MAX_ASSIGNED),
}

_work_item: Final = constructor(WorkItem)

_Unheld: TypeAlias = int | list[int]
"""Items of sessions that no worker holds; of a worker with tags by route, in the order of its routes."""


class _FetchRow(NamedTuple):
    """The first columns of a row of ``fetch``; an `ItemRow` follows."""

    offered: int
    unheld: _Unheld
    raced: bool
    next_due: float | None
    left: bool | None
    cut: bool
    size: int | None  # bytes of all items
    more: bool
    crowded: bool | None
    workers: int
    draining: bool
    assigned: list[str] | None
    outdated: bool


class _OwnRow(NamedTuple):
    """The first columns of a row of ``fetch_own``; the columns of prefetches and an `ItemRow` follow."""

    raced: bool
    waiting: int


class ItemRow(NamedTuple):
    """A work item that a statement has locked."""

    n: int  # in the order of the answer
    instance_id: str
    execution_id: int
    activity_id: int
    token: str
    name: str
    payload: str
    session_id: str | None
    epoch: int | None
    attempts: int
    failures: int
    unknown_for: float | None
    queued_for: float
    ordered: bool
    limited: bool
    tag: str | None = None  # read for workers with tags
    failure: WaitFailure | None = None  # of ``end_waits``


_FACTS, _ITEM = columns(_FetchRow, ItemRow)


async def fetch_work_item(db: Database, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    """Fetch with one statement, unless there is a session to claim: a claim needs a snapshot taken after a lock."""
    if options.only_own:
        return await _fetch_own(db, identity, options)
    params = {**caller_params(identity), **_choices(options), **_SHARES, "token": db.token(identity)}
    statement = _FETCH[options.tags != NO_TAGS]
    rows = await db.connections.fetch.run(statement, {**params, "names": Texts(options.names)})
    fetch = _FetchRow._make(rows[0][_FACTS])
    found = WorkFetch(
        items=[to_work_item(ItemRow(*item)) for item in present(rows, _ITEM)],
        claim_lost=bool(fetch.raced),
        next_due=not_negative(fetch.next_due),
        unclaimed_remaining=bool(fetch.left),
        limit_reached=fetch.more,
        crowded=bool(fetch.crowded),
        workers=fetch.workers,
        draining=fetch.draining,
        assigned=fetch.assigned or (),
        outdated=fetch.outdated,
    )
    room = options.max_bytes - int(fetch.size or 0)
    if (fetch.offered or _is_any_unheld(fetch.unheld)) and room > 0:
        found = await _with_claims(db, identity, replace(options, max_bytes=room), found, fetch)
    full = len(found.items) >= options.limit
    return replace(
        found,
        next_due=None if found.items else found.next_due,
        limit_reached=fetch.cut or (found.limit_reached and full),
    )


async def _fetch_own(db: Database, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    """See `FetchOptions.only_own`."""
    params = {**caller_params(identity), **_choices(options), "token": db.token(identity)}
    wanted = [guest for guest, names in options.prefetch.items() if names and guest in prefetches()]
    params |= {"names": Texts(options.names)}
    for guest in wanted:
        params |= prefetches()[guest].params(options.prefetch[guest])
    rows = await db.connections.fetch.run(_own_statement(options.tags != NO_TAGS, tuple(wanted)), params)
    raced, waiting = _OwnRow._make(rows[0][: len(_OwnRow._fields)])
    item_at = len(_OwnRow._fields) + sum([prefetches()[guest].width for guest in wanted])
    rows = [row for row in rows if row[item_at] is not None]
    items = [to_work_item(ItemRow(*row[item_at:])) for row in rows]
    return WorkFetch(
        items=items,
        claim_lost=raced,
        next_due=None,
        limit_reached=waiting > len(items),
        prefetched=_read_prefetched(wanted, items, rows),
    )


@cache
def _own_statement(tagged: bool, wanted: tuple[str, ...]) -> LiteralString:
    """Return the statement ``fetch_own`` with the prefetches of these guests."""
    found = [prefetches()[guest] for guest in wanted]
    return with_guests(
        with_parts(_SQL["fetch_own"], _PARTS[tagged]),
        columns="".join([f"    {prefetch.columns},\n" for prefetch in found]).rstrip("\n"),
        tables="\n".join([prefetch.tables for prefetch in found]),
    )


def _read_prefetched(
    wanted: Sequence[str], items: Sequence[WorkItem], rows: Sequence[Row]
) -> dict[str, dict[str, object]]:
    """Return the prefetched values of the items, by guest and instance."""
    prefetched: dict[str, dict[str, object]] = {}
    start = len(_OwnRow._fields)
    for guest in wanted:
        prefetch = prefetches()[guest]
        end = start + prefetch.width
        found = [prefetch.read(row[start:end]) for row in rows]
        with_items = zip(items, found, strict=True)
        prefetched[guest] = {item.lock.key.instance_id: value for item, value in with_items if value is not None}
        start = end
    return prefetched


async def _with_claims(
    db: Database, identity: WorkerIdentity, options: FetchOptions, found: WorkFetch, fetch: _FetchRow
) -> WorkFetch:
    """Return the result of the fetch: the found items, and the items of the sessions that were chosen to be claimed."""
    try:
        claimed, raced = await _claim(db, identity, options, fetch)
    except ProviderError as error:
        if error.maybe_done or not (found.items or isinstance(error, Contention)):
            raise
        return replace(found, claim_lost=True)  # the found items are locked to us already
    items = [*found.items, *claimed]
    return replace(found, items=items, claim_lost=raced or (found.claim_lost and not items))


async def _claim(
    db: Database, identity: WorkerIdentity, options: FetchOptions, fetch: _FetchRow
) -> tuple[list[WorkItem], bool]:
    """Claim sessions for the chosen numbers of items; returns their items, and whether a claim was lost."""
    params = {
        **caller_params(identity),
        **_choices(options),
        "names": list(options.names),
        "offered": Int8(fetch.offered),
        "unheld": Int8(fetch.unheld) if isinstance(fetch.unheld, int) else fetch.unheld,
        "outdated": fetch.outdated,
        "token": db.token(identity),
        "reroute": Int8(MAX_REROUTE),
    }
    *_, rows = await db.connections.fetch.pipeline(_CLAIM[options.tags != NO_TAGS], params)
    ((raced, *_), *_) = rows
    return [to_work_item(ItemRow(n, *item)) for _, n, *item in rows if n is not None], bool(raced)


def _is_any_unheld(unheld: _Unheld) -> bool:
    return unheld > 0 if isinstance(unheld, int) else any(unheld)


def _choices(options: FetchOptions) -> Params:
    tags = options.tags
    routes: Params = {} if tags == NO_TAGS else {"free": tags.routes("free"), "new": tags.routes("new")}
    return {
        **routes,
        **lengths(options.timeouts),
        "limit": Int8(options.limit),
        "max_bytes": Int8(options.max_bytes),
        "max_sessions": Int8(options.max_sessions),
        "unknown_after": float(options.unknown_after),
        "uncounted_after": Int8(options.uncounted_after),
        "newer_seconds": NEWER_SECONDS,
        "pack": options.pack,
    }


def to_work_item(row: ItemRow) -> WorkItem:
    """Return the item as a record of the contract."""
    return _work_item(
        lock=WorkLock(WorkKey(row.instance_id, row.execution_id, row.activity_id), Token(row.token)),
        name=row.name,
        payload=row.payload,
        session_id=row.session_id,
        session_epoch=row.epoch,
        attempts=row.attempts,
        failures=row.failures,
        unknown_for=row.unknown_for,
        queued_for=row.queued_for,
        ordered=row.ordered,
        limited=row.limited,
        session_tag=row.tag,
    )
