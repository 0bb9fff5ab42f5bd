"""Work items in hand: renewing, checking, acknowledging, giving back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.limits import FIRST_STACKS, LAST_STACKS, MAX_REROUTE
from affinity.provider.contract import TOUCH_SLACK, Timeouts, WorkAbandon, WorkAck, WorkerIdentity, WorkLock
from affinity.provider.postgres.commit_parts import by_guest
from affinity.provider.postgres.driver.arrays import Bools, Floats, Ints, Texts
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.operations import Database, caller_params, flags, lock_columns
from affinity.provider.postgres.parts import commit_of
from affinity.provider.postgres.session_store import state_columns
from affinity.provider.statements import load_statements, with_guests, with_parts

_SQL: Final = load_statements(__package__, "work_items.sql")
_ACK: Final = with_parts(_SQL["ack"], frozenset({"plain"}))
_ACK_WITH_PARTS: Final = with_parts(_SQL["ack"], frozenset({"state"}))
_ACK_WITH_STATE: Final = with_guests(_ACK_WITH_PARTS)
_ACKED: Final = "SELECT n FROM ours"
"""The end of the statement of acks."""


async def renew_work_item_lock(
    db: Database, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
) -> Sequence[bool]:
    if not locks:
        return []
    params = {**caller_params(identity), **lengths(timeouts), **lock_columns(locks)}
    rows = await db.connections.quick.run(_SQL["renew"], params)
    return flags(len(locks), (n for (n,) in rows))


async def check_work_item(db: Database, locks: Sequence[WorkLock]) -> Sequence[bool]:
    if not locks:
        return []
    rows = await db.connections.quick.run(_SQL["check"], lock_columns(locks))
    return flags(len(locks), (n for (n,) in rows))


async def ack_work_item(
    db: Database, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
) -> Sequence[bool]:
    if not acks:
        return []
    places = _first_places({ack.lock: n for n, ack in reversed(list(enumerate(acks)))})
    passed: list[int] = []
    for group in _groups(acks, places):
        rows = await _ack(db, identity, [acks[place] for place in group], timeouts)
        passed += [group[n - 1] + 1 for n, *_ in rows]
    return flags(len(acks), passed)


async def _ack(db: Database, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts) -> Sequence[Row]:
    """Ack different items. Return rows with the numbers of the acks that pass. No two acks have parts of one guest with
    a session in common.
    """
    params = {
        **caller_params(identity),
        **lengths(timeouts),
        **lock_columns([ack.lock for ack in acks]),
        "message": Texts(ack.message for ack in acks),
    }
    states = [(n, ack.state) for n, ack in enumerate(acks, 1) if ack.state is not None]
    parts = by_guest([(n, part) for n, ack in enumerate(acks, 1) for part in ack.parts])
    if not states and not parts:
        return await db.connections.commit.run(_ACK, params)
    params |= {"state_turn": Ints(n for n, _ in states), **state_columns([write for _, write in states])}
    if not parts:
        return await db.connections.commit.run(_ACK_WITH_STATE, params)
    calls: list[LiteralString] = ["n"]
    for guest, own in parts.items():
        added = commit_of(guest).acks(own)
        calls += added.calls
        params |= added.params
    statement = f"{_ack_statement(tuple(parts))}SELECT {', '.join(calls)} FROM ours"  # noqa: S608 -- literals only
    return await db.connections.commit.run(statement, params)


@cache
def _ack_statement(guests: tuple[str, ...]) -> LiteralString:
    """Return the statement of acks with parts of these guests, without its select list."""
    commits = [commit_of(guest) for guest in guests]
    tables = "\n".join(commit.ack_tables for commit in commits)
    fences = "\n".join(f"      AND {commit.ack_fence}" for commit in commits)
    return with_guests(_ACK_WITH_PARTS, tables=tables, fences=fences).removesuffix(_ACKED)


async def abandon_work_item(db: Database, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
    if not items:
        return []
    places = _first_places({item.lock: n for n, item in reversed(list(enumerate(items)))})
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
        "error_type": Texts(item.error_type for item in first),
        "stack": Texts(item.stack for item in first),
        "first": Int8(FIRST_STACKS),
        "last": Int8(LAST_STACKS),
        "reroute": Int8(MAX_REROUTE),
    }
    rows = await db.connections.quick.run(_SQL["abandon"], params)
    return flags(len(items), (places[n - 1] + 1 for (n,) in rows))


async def release_unknown_locks(
    db: Database, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
) -> int:
    """Free unknown locks. Reads the whole queue: for the rare case of a lost reply."""
    params = {
        **caller_params(identity),
        "token": Texts(lock.token for lock in known),
        "delivered": Texts(lock.token for lock in delivered),
    }
    return len(await db.connections.rows.run(_SQL["release_unknown_locks"], params))


async def begin_work_item(
    db: Database, identity: WorkerIdentity, lock: WorkLock, attempt: int, *, pause: float
) -> bool:
    instance_id, execution_id, activity_id = lock.key
    params = {
        **caller_params(identity),
        "instance": instance_id,
        "execution": Int8(execution_id),
        "activity": Int8(activity_id),
        "token": lock.token,
        "attempt": Int8(attempt),
        "pause": float(pause),
    }
    return bool(await db.connections.quick.run(_SQL["begin"], params))


def lengths(timeouts: Timeouts) -> Params:
    """Return lock lengths as parameters; a session lock that ends later than ``touch_below`` is not worth a write."""
    return {
        "item_lock": float(timeouts.work_item_lock),
        "session_lock": float(timeouts.session_lock),
        "touch_below": timeouts.session_lock * (1 - TOUCH_SLACK),
    }


def _groups(acks: Sequence[WorkAck], places: Sequence[int]) -> Sequence[list[int]]:
    """Return the places in groups, in order. No two acks of a group have parts of one guest with a session in common.
    There is nearly always one group.
    """
    groups: list[list[int]] = [[]]
    seen: dict[tuple[str, str], int] = {}
    for place in places:
        written = [(part.guest, session_id) for part in acks[place].parts for session_id in part.sessions]
        group = max([seen.get(row, 0) for row in written], default=0)
        seen |= dict.fromkeys(written, group + 1)
        groups += [[] for _ in range(len(groups), group + 1)]
        groups[group].append(place)
    return groups


def _first_places(places: dict[WorkLock, int]) -> list[int]:
    """Return the first place of each lock. When a lock comes again, it has lost its token."""
    return sorted(places.values())
