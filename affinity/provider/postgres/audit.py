"""The audit log: its entries, and the transactions that they are in."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from psycopg.types.numeric import Int8

from affinity.audit import ACTING, Acting, AuditedCall, AuditEntry, AuditFilter, NewAuditEntry, targets_of
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.transactions import Transaction
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.rows import to_audit_entry
from affinity.provider.statements import load_statements

P = ParamSpec("P")
T = TypeVar("T")

_SQL: Final = load_statements(__package__, "audit.sql")

Verb = Callable[Concatenate[Database, P], Coroutine[Any, Any, T]]


def audited(kind: str, verb: Verb[P, T]) -> Verb[P, T]:
    """The verb, which has its entries in the audit log while a user is stated; ``kind``: of its targets."""

    @wraps(verb)
    async def call(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        acting = ACTING.get()
        if acting is None or kwargs.get("dry_run"):
            return await verb(db, *args, **kwargs)

        async def work(connections: Connections) -> T:
            inner = copy(db)
            inner.connections = connections
            return await verb(inner, *args, **kwargs)

        audited_call = AuditedCall(verb.__name__, kind, targets_of(args))
        return await in_transaction(db.connections, acting, audited_call, work)

    return call


async def in_transaction(
    connections: Connections,
    acting: Acting,
    call: AuditedCall,
    work: Callable[[Connections], Awaitable[T]],
    judge: Callable[[T], object] = lambda result: result,
) -> T:
    """Do ``work`` in one transaction with its entries; ``judge`` gives what `Acting.entries` takes of its result."""

    async def run(transaction: Transaction) -> tuple[T, Sequence[NewAuditEntry]]:
        inner = connections.within(transaction)
        result = await work(inner)
        entries = acting.entries(call, judge(result))
        if entries:
            await transaction.commit_with(_SQL["write"], _params(entries))
        return result, entries

    result, entries = await connections.transactions.run(run)
    acting.committed(entries)
    return result


async def _write(connections: Connections, entries: Sequence[NewAuditEntry]) -> None:
    if entries:
        await connections.rows.run(_SQL["write"], _params(entries))


def _params(entries: Sequence[NewAuditEntry]) -> Mapping[str, str]:
    return {"entries": json.dumps([asdict(each) for each in entries])}


async def write_audit(db: Database, entries: Sequence[NewAuditEntry]) -> None:
    await _write(db.connections, entries)


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
