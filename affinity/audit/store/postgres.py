"""The audit log: its entries, and the statements that they are in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from psycopg.types.numeric import Int8

from affinity.audit import Acting, ActingTogether, AuditedCall, AuditEntry, AuditFilter, NewAuditEntry
from affinity.provider.postgres.operations import ActionShare, Database, same_time
from affinity.provider.rows import to_audit_entry
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "audit.sql")


def share_of(users: Acting | ActingTogether, call: AuditedCall) -> ActionShare:
    """Return what the audit log adds to a call of an action: an entry for each effect."""
    expected = json.dumps([asdict(entry) for entry in users.expected(call)])
    return ActionShare(_SQL["write_effects"], {"audit_entries": expected}, partial(_note, users, call))


async def _note(users: Acting | ActingTogether, call: AuditedCall, result: object) -> None:
    """Note what a call has done, whose entries are written; those of what it has refused follow."""
    entries = users.entries(call, result)
    users.committed(entries)
    await users.record([entry for entry in entries if not entry.succeeded])


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
