"""The audit log: its entries, and the statements that they are in."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import asdict
from functools import cache, wraps
from typing import Any, Concatenate, Final, LiteralString, ParamSpec, TypeVar

from psycopg.types.numeric import Int8

from affinity.audit import (
    Acting,
    ActingTogether,
    AuditedCall,
    AuditEntry,
    AuditFilter,
    NewAuditEntry,
    targets_of,
    users_on,
)
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.rows import to_audit_entry
from affinity.provider.statements import load_statements

P = ParamSpec("P")
T = TypeVar("T")

_SQL: Final = load_statements(__package__, "audit.sql")

Verb = Callable[Concatenate[Database, P], Coroutine[Any, Any, T]]


def audited(kind: str, verb: Verb[P, T]) -> Verb[P, T]:
    """The verb, which has its entries in the audit log while a user is stated; ``kind``: of its targets. The verb makes
    its statement with `with_entries`.
    """

    @wraps(verb)
    async def call(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        users = users_on(db.connections.timeline.token)
        if users is None or kwargs.get("dry_run"):
            return await verb(db, *args, **kwargs)
        audited_call = AuditedCall(verb.__name__, kind, targets_of(args))
        inner = copy(db)
        inner.entries = expected_entries(users, audited_call)
        result = await verb(inner, *args, **kwargs)
        await note_result(users, audited_call, result)
        return result

    return call


def expected_entries(users: Acting | ActingTogether, call: AuditedCall) -> str:
    """Return the entries of a call, for `with_entries`."""
    return json.dumps([asdict(entry) for entry in users.expected(call)])


async def note_result(users: Acting | ActingTogether, call: AuditedCall, result: object) -> None:
    """Note what a call has done, whose entries are written; those of what it has refused follow."""
    entries = users.entries(call, result)
    users.committed(entries)
    await users.record([entry for entry in entries if not entry.succeeded])


def with_entries(
    entries: str | None, statement: LiteralString, effects: LiteralString, params: Params
) -> tuple[LiteralString, Params]:
    """A statement of an audited verb, with its parameters, that also writes what it does into the audit log.

    One statement does both, so the caller holds no lock while it is at work on the result, or is paused.

    Args:
        entries: those that are possible; None: the statement stays as it is.
        statement: any without a WITH; or one that ends with ``SELECT * FROM result``.
        effects: a query of ``result``, the rows of the statement: the place of each target on which it has taken
            effect, counted from 1, and the outcome. There is a row for each effect, and each effect has a row in
            ``result``.
        params: of the statement and of the query.
    """
    if entries is None:
        return statement, params
    return _with_entries(statement, effects), {**params, "audit_entries": entries}


_END: Final = "SELECT * FROM result"


@cache
def _with_entries(statement: LiteralString, effects: LiteralString) -> LiteralString:
    statement = statement.rstrip()
    if statement.endswith(_END):
        named = statement.removesuffix(_END).rstrip()
    else:
        named = f"WITH result AS MATERIALIZED ({statement})"
    return f"{named}, audit_effects (place, outcome) AS MATERIALIZED ({effects}), {_SQL['write_effects']}"


async def write_audit(db: Database, entries: Sequence[NewAuditEntry]) -> None:
    if entries:
        params = {"entries": json.dumps([asdict(each) for each in entries])}
        await db.connections.rows.run(_SQL["write"], params)


async def list_audit(db: Database, where: AuditFilter, limit: int) -> Sequence[AuditEntry]:
    after_time, after_id = where.after or (None, None)
    params = {
        "user": where.user,
        "source": where.source,
        "action": where.action,
        "target": where.target,
        "succeeded": where.succeeded,
        "since": where.since,
        "until": where.until,
        "after_time": after_time,
        "after_id": None if after_id is None else Int8(after_id),
        "limit": Int8(limit),
    }
    return [to_audit_entry(row, same_time) for row in await db.connections.misc.run(_SQL["list"], params)]
