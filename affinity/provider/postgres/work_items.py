"""Work items in hand: renewing, checking, acknowledging, giving back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import (
    TOUCH_SLACK,
    Timeouts,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkLock,
)
from affinity.provider.postgres.driver.arrays import Bools, Floats, Ints, Texts
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import Operations, caller_params, flags, lock_columns
from affinity.provider.postgres.session_store import state_columns
from affinity.provider.statements import load_statements, without

_SQL: Final = load_statements(__package__, "work_items.sql")
_ACK: Final = without(_SQL["ack"], "state")
_ACK_WITH_STATE: Final = without(_SQL["ack"], "plain")


class WorkItemOperations(Operations):
    """`renew_work_item_lock` to `begin_work_item`."""

    async def renew_work_item_lock(
        self, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
    ) -> Sequence[bool]:
        if not locks:
            return []
        params = {**caller_params(identity), **lengths(timeouts), **lock_columns(locks)}
        rows = await self._connections.quick.run(_SQL["renew"], params)
        return flags(len(locks), (n for (n,) in rows))

    async def check_work_item(self, locks: Sequence[WorkLock]) -> Sequence[bool]:
        if not locks:
            return []
        rows = await self._connections.quick.run(_SQL["check"], lock_columns(locks))
        return flags(len(locks), (n for (n,) in rows))

    async def ack_work_item(
        self, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
    ) -> Sequence[bool]:
        if not acks:
            return []
        places = _first({ack.lock: n for n, ack in reversed(list(enumerate(acks)))})
        first = [acks[place] for place in places]
        params = {
            **caller_params(identity),
            **lengths(timeouts),
            **lock_columns([ack.lock for ack in first]),
            "message": Texts(ack.message for ack in first),
        }
        if writes := [(n, ack.state) for n, ack in enumerate(first, 1) if ack.state is not None]:
            numbers = {"state_turn": Ints(n for n, _ in writes)}
            states = state_columns([write for _, write in writes])
            rows = await self._connections.commit.run(_ACK_WITH_STATE, {**params, **numbers, **states})
        else:
            rows = await self._connections.commit.run(_ACK, params)
        return flags(len(acks), (places[n - 1] + 1 for (n,) in rows))

    async def abandon_work_item(self, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
        if not items:
            return []
        places = _first({item.lock: n for n, item in reversed(list(enumerate(items)))})
        first = [items[place] for place in places]
        params = {
            **caller_params(identity),
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
        rows = await self._connections.quick.run(_SQL["abandon"], params)
        return flags(len(items), (places[n - 1] + 1 for (n,) in rows))

    async def release_unknown_locks(
        self, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
    ) -> int:
        """Reads the whole queue: for the rare case of a lost reply."""
        params = {
            **caller_params(identity),
            "token": Texts(lock.token for lock in known),
            "delivered": Texts(lock.token for lock in delivered),
        }
        return len(await self._connections.misc.run(_SQL["release_unknown_locks"], params))

    async def begin_work_item(self, identity: WorkerIdentity, lock: WorkLock, attempt: int) -> bool:
        instance_id, execution_id, activity_id = lock.key
        params = {
            **caller_params(identity),
            "instance": instance_id,
            "execution": Int8(execution_id),
            "activity": Int8(activity_id),
            "token": lock.token,
            "attempt": Int8(attempt),
        }
        return bool(await self._connections.quick.run(_SQL["begin"], params))


def lengths(timeouts: Timeouts) -> Params:
    """Lock lengths as parameters; a session lock that ends later than ``touch_below`` is not worth a write."""
    return {
        "item_lock": float(timeouts.work_item_lock),
        "session_lock": float(timeouts.session_lock),
        "touch_below": timeouts.session_lock * (1 - TOUCH_SLACK),
    }


def _first(places: dict[WorkLock, int]) -> list[int]:
    """The place of the first of each lock: the second time, a lock is no longer live."""
    return sorted(places.values())
