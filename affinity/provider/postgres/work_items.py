"""Work items: fetch, claim, renew, finish, give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from psycopg.types.numeric import Int8

from affinity.errors import Contention, ProviderError
from affinity.limits import MAX_BATCH, MAX_REROUTE, MIN_SHARE, SHARE_DIVISOR
from affinity.provider.contract import (
    TOUCH_SLACK,
    FetchOptions,
    Timeouts,
    Token,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkFetch,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.provider.postgres.base import Verbs, flags, lock_columns, who, without
from affinity.provider.postgres.driver.arrays import Bools, Floats, Ints, Texts
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.states import state_columns
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "work_items.sql")
_CLAIM: Final = (_SQL["claim_alone"], _SQL["claim"])
_SHARES: Final = {"rounds": Int8(SHARE_DIVISOR), "least": Int8(MIN_SHARE), "count": Int8(MAX_BATCH)}
_ACK: Final = without(_SQL["ack"], "state")
_ACK_WITH_STATE: Final = without(_SQL["ack"], "plain")


class WorkItemVerbs(Verbs):
    """`fetch_work_item` to `release_unknown_locks`."""

    async def fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        """One statement, unless there is a session to claim: that needs a snapshot taken after a lock."""
        params = {**who(identity), **_choices(options), **_SHARES, "token": self._token(identity)}
        rows = await self._links.fetch.run(_SQL["fetch"], {**params, "names": Texts(options.names)})
        offered, unheld, raced, next_due, left, cut, size, more, crowded, alone, *_ = rows[0]
        found = WorkFetch(
            items=[_work_item(row[11:]) for row in rows if row[10] is not None],
            claim_lost=bool(raced),
            next_due=_positive(next_due),
            unclaimed_remaining=bool(left),
            limit_reached=more,
            crowded=bool(crowded),
            alone=alone,
        )
        room = options.max_bytes - int(size or 0)
        if (offered or unheld) and room > 0:
            found = await self._with_claims(identity, replace(options, max_bytes=room), found, offered, unheld)
        full = len(found.items) >= options.limit
        return replace(
            found, next_due=None if found.items else found.next_due, limit_reached=cut or (found.limit_reached and full)
        )

    async def _with_claims(
        self, identity: WorkerIdentity, options: FetchOptions, found: WorkFetch, offered: int, unheld: int
    ) -> WorkFetch:
        """What was found, and what comes with the sessions that were chosen."""
        try:
            claimed, raced = await self._claim(identity, options, offered, unheld)
        except ProviderError as error:
            if error.maybe_done or not (found.items or isinstance(error, Contention)):
                raise
            return replace(found, claim_lost=True)  # what was found is locked to us already
        items = [*found.items, *claimed]
        return replace(found, items=items, claim_lost=raced or (found.claim_lost and not items))

    async def _claim(
        self, identity: WorkerIdentity, options: FetchOptions, offered: int, unheld: int
    ) -> tuple[list[WorkItem], bool]:
        """Claim sessions for so many items of each kind; and whether a claim was lost."""
        params = {
            **who(identity),
            **_choices(options),
            "names": list(options.names),
            "offered": Int8(offered),
            "unheld": Int8(unheld),
            "token": self._token(identity),
            "reroute": Int8(MAX_REROUTE),
        }
        *_, rows = await self._links.fetch.together(_CLAIM, params)
        return [_work_item(row[2:]) for row in rows if row[1] is not None], bool(rows[0][0])

    async def renew_work_item_lock(
        self, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
    ) -> Sequence[bool]:
        if not locks:
            return []
        params = {**who(identity), **lengths(timeouts), **lock_columns(locks)}
        rows = await self._links.quick.run(_SQL["renew"], params)
        return flags(len(locks), (n for (n,) in rows))

    async def check_work_item(self, locks: Sequence[WorkLock]) -> Sequence[bool]:
        if not locks:
            return []
        rows = await self._links.quick.run(_SQL["check"], lock_columns(locks))
        return flags(len(locks), (n for (n,) in rows))

    async def ack_work_item(
        self, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
    ) -> Sequence[bool]:
        if not acks:
            return []
        places = _first({ack.lock: n for n, ack in reversed(list(enumerate(acks)))})
        first = [acks[place] for place in places]
        params = {
            **who(identity),
            **lengths(timeouts),
            **lock_columns([ack.lock for ack in first]),
            "message": Texts(ack.message for ack in first),
        }
        if writes := [(n, ack.state) for n, ack in enumerate(first, 1) if ack.state is not None]:
            numbers = {"state_turn": Ints(n for n, _ in writes)}
            states = state_columns([write for _, write in writes])
            rows = await self._links.commit.run(_ACK_WITH_STATE, {**params, **numbers, **states})
        else:
            rows = await self._links.commit.run(_ACK, params)
        return flags(len(acks), (places[n - 1] + 1 for (n,) in rows))

    async def abandon_work_item(self, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
        if not items:
            return []
        places = _first({item.lock: n for n, item in reversed(list(enumerate(items)))})
        first = [items[place] for place in places]
        params = {
            **who(identity),
            **lock_columns([item.lock for item in first]),
            "delay": Floats(item.delay for item in first),
            "failed": Bools(item.failed for item in first),
            "counted": Bools(item.count_attempt for item in first),
            "unknown": Bools(item.unknown for item in first),
            "needs": Texts(item.needs for item in first),
            "release": Bools(item.release_session for item in first),
            "error": Texts(item.error for item in first),
            "reroute": Int8(MAX_REROUTE),
        }
        rows = await self._links.quick.run(_SQL["abandon"], params)
        return flags(len(items), (places[n - 1] + 1 for (n,) in rows))

    async def release_unknown_locks(
        self, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
    ) -> int:
        """Reads the whole queue: for the rare case of a lost reply."""
        params = {
            **who(identity),
            "token": Texts(lock.token for lock in known),
            "delivered": Texts(lock.token for lock in delivered),
        }
        return len(await self._links.misc.run(_SQL["release_unknown_locks"], params))

    async def begin_work_item(self, identity: WorkerIdentity, lock: WorkLock, attempt: int) -> bool:
        instance_id, execution_id, activity_id = lock.key
        params = {
            **who(identity),
            "instance": instance_id,
            "execution": Int8(execution_id),
            "activity": Int8(activity_id),
            "token": lock.token,
            "attempt": Int8(attempt),
        }
        return bool(await self._links.quick.run(_SQL["begin"], params))


def lengths(timeouts: Timeouts) -> Params:
    """Lock lengths as parameters; a session lock that ends later than ``touch_below`` is not worth a write."""
    return {
        "item_lock": float(timeouts.work_item_lock),
        "session_lock": float(timeouts.session_lock),
        "touch_below": timeouts.session_lock * (1 - TOUCH_SLACK),
    }


def _choices(options: FetchOptions) -> Params:
    return {
        **lengths(options.timeouts),
        "limit": Int8(options.limit),
        "max_bytes": Int8(options.max_bytes),
        "max_sessions": Int8(options.max_sessions),
        "unknown_after": float(options.unknown_after),
        "uncounted_after": Int8(options.uncounted_after),
    }


def _first(places: dict[WorkLock, int]) -> list[int]:
    """The place of the first of each lock: the second time, a lock is no longer live."""
    return sorted(places.values())


def _work_item(row: Row) -> WorkItem:
    instance_id, execution_id, activity_id, token, name, payload, session_id, epoch, *counts = row
    attempts, failures, unknown_for, queued_for = counts
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
    )


def _positive(seconds: float | None) -> float | None:
    """Due between two looks at the clock is due now."""
    return None if seconds is None else max(0.0, seconds)
