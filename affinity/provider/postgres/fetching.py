"""Fetching work items, and claiming their sessions if no worker holds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

from psycopg.types.numeric import Int8

from affinity.errors import Contention, ProviderError
from affinity.journal import Entry, PendingWork
from affinity.limits import MAX_BATCH, MAX_FETCHED_INPUT, MAX_REROUTE, MIN_SHARE, SHARE_DIVISOR
from affinity.provider.contract import (
    MAX_ASSIGNED,
    NEWER_SECONDS,
    NO_TAGS,
    FetchOptions,
    Token,
    WorkerIdentity,
    WorkFetch,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.operations import Operations, caller_params
from affinity.provider.postgres.work_items import lengths
from affinity.provider.rows import not_negative
from affinity.provider.statements import load_statements, without

_SQL: Final = load_statements(__package__, "fetching.sql")
CLAIM_ALONE: Final = _SQL["claim_alone"]
_FETCH: Final = {tagged: without(_SQL["fetch"], part) for tagged, part in ((False, "tagged"), (True, "plain"))}
_FETCH_OWN: Final = {False: without(_SQL["fetch_own"], "tagged"), True: _SQL["fetch_own"]}
_CLAIM: Final = {
    tagged: (CLAIM_ALONE, without(_SQL["claim"], part)) for tagged, part in ((False, "tagged"), (True, "plain"))
}
"""By whether the caller has tags."""

_SHARES: Final = {
    "rounds": Int8(SHARE_DIVISOR),
    "least": Int8(MIN_SHARE),
    "count": Int8(MAX_BATCH),
    "most_assigned": Int8(MAX_ASSIGNED),
}


_Unheld: TypeAlias = int | list[int]
"""Items of sessions that no worker holds; of a worker with tags by route, in the order of its routes."""


class FetchOperations(Operations):
    """`fetch_work_item`."""

    async def fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        """One statement, unless there is a session to claim: that needs a snapshot taken after a lock."""
        if options.only_own:
            return await self._fetch_own(identity, options)
        params = {**caller_params(identity), **_choices(options), **_SHARES, "token": self._token(identity)}
        statement = _FETCH[options.tags != NO_TAGS]
        rows = await self._connections.fetch.run(statement, {**params, "names": Texts(options.names)})
        *facts, draining, assigned, outdated = rows[0][:13]
        offered, unheld, raced, next_due, left, cut, size, more, crowded, workers = facts
        found = WorkFetch(
            items=[to_work_item(row[14:]) for row in rows if row[13] is not None],
            claim_lost=bool(raced),
            next_due=not_negative(next_due),
            unclaimed_remaining=bool(left),
            limit_reached=more,
            crowded=bool(crowded),
            workers=workers,
            draining=draining,
            assigned=assigned or (),
            outdated=outdated,
        )
        room = options.max_bytes - int(size or 0)
        if (offered or _is_any_unheld(unheld)) and room > 0:
            found = await self._with_claims(identity, replace(options, max_bytes=room), found, offered, unheld)
        full = len(found.items) >= options.limit
        return replace(
            found, next_due=None if found.items else found.next_due, limit_reached=cut or (found.limit_reached and full)
        )

    async def _fetch_own(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        """See `FetchOptions.only_own`."""
        params = {**caller_params(identity), **_choices(options), "token": self._token(identity)}
        statement = _FETCH_OWN[options.tags != NO_TAGS]
        params |= {"names": Texts(options.names), "readers": Texts(options.readers), "most": Int8(MAX_FETCHED_INPUT)}
        rows = await self._connections.fetch.run(statement, params)
        raced, waiting = rows[0][:2]
        taken = [(to_work_item(row[15:]), row[2:14]) for row in rows if row[14] is not None]
        return WorkFetch(
            items=[item for item, _ in taken],
            claim_lost=raced,
            next_due=None,
            limit_reached=waiting > len(taken),
            pending={item.lock.key.instance_id: _one_input(row) for item, row in taken if row[0] is not None},
        )

    async def _with_claims(
        self, identity: WorkerIdentity, options: FetchOptions, found: WorkFetch, offered: int, unheld: _Unheld
    ) -> WorkFetch:
        """The result of the fetch: the found items, and the data of the chosen sessions."""
        try:
            claimed, raced = await self._claim(identity, options, offered, unheld, outdated=found.outdated)
        except ProviderError as error:
            if error.maybe_done or not (found.items or isinstance(error, Contention)):
                raise
            return replace(found, claim_lost=True)  # what was found is locked to us already
        items = [*found.items, *claimed]
        return replace(found, items=items, claim_lost=raced or (found.claim_lost and not items))

    async def _claim(
        self, identity: WorkerIdentity, options: FetchOptions, offered: int, unheld: _Unheld, *, outdated: bool
    ) -> tuple[list[WorkItem], bool]:
        """Claim sessions for so many items of each kind; and whether a claim was lost."""
        params = {
            **caller_params(identity),
            **_choices(options),
            "names": list(options.names),
            "offered": Int8(offered),
            "unheld": Int8(unheld) if isinstance(unheld, int) else unheld,
            "outdated": outdated,
            "token": self._token(identity),
            "reroute": Int8(MAX_REROUTE),
        }
        *_, rows = await self._connections.fetch.pipeline(_CLAIM[options.tags != NO_TAGS], params)
        return [to_work_item(row[2:]) for row in rows if row[1] is not None], bool(rows[0][0])


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


def _one_input(row: Row) -> PendingWork:
    journal_id, kind, processed, closed, parent, *entry = row
    return PendingWork(
        journal_id=journal_id,
        kind=kind,
        processed=processed,
        last_seq=entry[0],
        closed=closed,
        parent=parent,
        inputs=[Entry(*entry)],
        more=False,
        due=[],
        requests=[],
        revisits=[],
        next_due=None,
    )


def to_work_item(row: Row) -> WorkItem:
    """A row of the statements that lock work items."""
    instance_id, execution_id, activity_id, token, name, payload, session_id, epoch, *counts = row
    attempts, failures, unknown_for, queued_for, ordered, *tag = counts
    return WorkItem(
        lock=WorkLock(WorkKey(instance_id, execution_id, activity_id), Token(token)),
        name=name,
        payload=payload,
        session_id=session_id,
        session_epoch=epoch,
        attempts=attempts,
        failures=failures,
        unknown_for=unknown_for,
        queued_for=queued_for,
        ordered=ordered,
        session_tag=tag[0] if tag else None,
    )
