"""Limits on PostgreSQL: each verb is one call of a function of the schema."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.flow.store.contract import (
    Admitted,
    LimitChange,
    LimitCharge,
    LimitClosing,
    LimitKeyRow,
    LimitRow,
    LimitSpec,
    LimitWait,
)
from affinity.flow.store.rows import changes_as_json, specs_as_json, to_limit, to_limit_key, to_wait
from affinity.limits import MAX_ADMISSIONS, MAX_PAGE, PRUNE_WINDOW, UNTAKEN_PAUSE, UNTAKEN_SECONDS
from affinity.provider.contract import Retention, WorkKey
from affinity.provider.postgres.actions import acts, with_shares
from affinity.provider.postgres.driver.arrays import Floats, Ints, Texts
from affinity.provider.postgres.operations import Database, flags, key_columns
from affinity.provider.postgres.parts import READ, RUN, PostgresPart, Rights
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "postgres.sql")


async def declare_limits(db: Database, app: str, code: str, specs: Sequence[LimitSpec]) -> None:
    params = {"app": app, "code": code, "limits": specs_as_json(specs)}
    await db.connections.misc.run(_SQL["declare"], params)


async def admit(db: Database, *, most: int, if_waiting: bool = False) -> Admitted:
    params = {"most": Int8(min(most, MAX_ADMISSIONS)), "if_waiting": if_waiting}
    ((admitted, routes, more, next_due, waits),) = await db.connections.misc.run(_SQL["admit"], params)
    return Admitted(admitted=admitted, routes=routes, more=more, next_due=next_due, waits=waits)


async def close_limits(db: Database, closings: Sequence[LimitClosing]) -> None:
    if not closings:
        return
    params = {
        "limit": Texts(closing.limit for closing in closings),
        "key": Texts(closing.key for closing in closings),
        "seconds": Floats(float(closing.seconds) for closing in closings),
        "reason": Texts(closing.reason for closing in closings),
    }
    await db.connections.misc.run(_SQL["close"], params)


async def charge_limits(db: Database, charges: Sequence[LimitCharge]) -> None:
    if not charges:
        return
    params = {
        "limit": Texts(charge.limit for charge in charges),
        "key": Texts(charge.key for charge in charges),
        "units": Ints(charge.units for charge in charges),
    }
    await db.connections.misc.run(_SQL["charge"], params)


async def return_slots(db: Database) -> int:
    params = {"untaken": UNTAKEN_SECONDS, "pause": UNTAKEN_PAUSE, "most": Int8(MAX_ADMISSIONS)}
    ((returned,),) = await db.connections.misc.run(_SQL["return_slots"], params)
    return int(returned)


async def list_limits(db: Database, names: Collection[str] | None = None) -> Sequence[LimitRow]:
    given = {} if names is None else {"names": Texts(names)}
    rows = await db.connections.misc.run(with_parts(_SQL["list"], frozenset(given)), given)
    return [to_limit(row) for row in rows]


async def list_limit_keys(
    db: Database, limit: str, *, keys: Collection[str] | None = None, after: str | None = None, most: int = 100
) -> Sequence[LimitKeyRow]:
    conditions = {"keys": None if keys is None else Texts(keys), "after": after}
    given = {name: value for name, value in conditions.items() if value is not None}
    statement = with_parts(_SQL["list_keys"], frozenset(given))
    params = {**given, "limit": limit, "most": Int8(min(most, MAX_PAGE))}
    return [to_limit_key(row) for row in await db.connections.misc.run(statement, params)]


async def change_limits(db: Database, changes: Sequence[LimitChange]) -> Sequence[bool]:
    if not changes:
        return []
    params = {"changes": changes_as_json(changes)}
    rows = await db.connections.misc.run(*with_shares(db.shares, _SQL["change"], _SQL["changed"], params))
    return flags(len(changes), (n for (n, *_) in rows))


async def get_limit_waits(db: Database, keys: Collection[WorkKey]) -> Sequence[LimitWait]:
    if not keys:
        return []
    rows = await db.connections.misc.run(_SQL["waits"], key_columns(list(keys)))
    return [to_wait(row) for row in rows]


async def remove_unused(db: Database, keep: Retention) -> tuple[int, bool]:
    """Remove lines and keys that were not used for an hour."""
    await db.connections.misc.run(_SQL["remove_unused"], {"most": Int8(PRUNE_WINDOW)})
    return 0, False


PART: Final = PostgresPart(
    verbs={
        "declare_limits": declare_limits,
        "admit": admit,
        "close_limits": close_limits,
        "charge_limits": charge_limits,
        "return_slots": return_slots,
        "list_limits": list_limits,
        "list_limit_keys": list_limit_keys,
        "change_limits": acts("limit", change_limits),
        "get_limit_waits": get_limit_waits,
    },
    rights=(
        Rights(
            "TABLE",
            "limits limit_keys limit_lines limit_line_keys limited_work limit_bounds limit_charges",
            client=READ,
            worker=READ,
        ),
        Rights("TABLE", "limit_admissions", worker=READ),
        Rights("SEQUENCE", "limited_work_number_seq limit_charges_number_seq"),
        # Each runs with the owner's rights, and writes what its worker or client may ask for.
        Rights("FUNCTION", "admit_work change_limits", client=RUN, worker=RUN, reader=""),
        Rights(
            "FUNCTION", "declare_limits close_limits charge_limits return_slots remove_unused_limit_keys", worker=RUN
        ),
        Rights("FUNCTION", "limit_room units_used next_admission", client=RUN, worker=RUN),
        Rights(
            "FUNCTION",
            "add_limit_line admit_domain admit_line correct_count count_freed_work free_limited_instance"
            " free_limited_work jsonb_strip_absent let_messages_go limit_key_id line_up_work next_limit_line"
            " open_limit_keys use_rate",
        ),
    ),
    # Without work that waits for something, slots may have to be returned.
    due="coalesce(next_admission(), (SELECT 3600 FROM limited_work LIMIT 1))",
    next_due="extract(epoch FROM clock()) + nullif(greatest(next_admission(_all => false), 0), 0)",
    remove_old=remove_unused,
)
