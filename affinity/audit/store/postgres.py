"""The audit log on PostgreSQL: its entries, and the statements that they are in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.actions import ActionCall, Actors, Administration
from affinity.audit.acting import Acting, ActingTogether, administrative_entries, users_of
from affinity.audit.entries import AuditEntry, AuditFilter, NewAuditEntry
from affinity.audit.store.rows import to_audit_entry
from affinity.limits import SWEEP_ROWS
from affinity.provider.contract import Retention
from affinity.provider.postgres.operations import ActionShare, Database, same_time
from affinity.provider.postgres.parts import READ, RUN, PostgresPart, Rights
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "postgres.sql")


def share_in_action(actors: Actors, call: ActionCall) -> ActionShare | None:
    """Return the audit log's share in a call of an action: an entry for each effect."""
    users = users_of(actors)
    if users is None:
        return None
    expected = json.dumps([asdict(entry) for entry in users.expected(call)])
    return ActionShare(_SQL["write_effects"], {"audit_entries": expected}, partial(_note, users, call))


async def _note(users: Acting | ActingTogether, call: ActionCall, result: object) -> None:
    """Mark the entries of a call's effects as written, and write the entries of its refusals."""
    entries = users.entries(call, result)
    users.committed(entries)
    await users.record([entry for entry in entries if not entry.succeeded])


def administered(done: Administration) -> tuple[LiteralString, Sequence[Any]] | None:
    """Return the statement that writes the entries of an administrator's changes."""
    entries = administrative_entries(done)
    return ("SELECT write_audit(%s)", [_to_json(entries)]) if entries else None


def _to_json(entries: Sequence[NewAuditEntry]) -> str:
    return json.dumps([asdict(entry) for entry in entries])


async def write_audit(db: Database, entries: Sequence[NewAuditEntry]) -> None:
    if entries:
        await db.connections.rows.run(_SQL["write"], {"entries": _to_json(entries)})


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


async def remove_old(db: Database, keep: Retention) -> tuple[int, bool]:
    """Remove entries that are old enough, at most `SWEEP_ROWS`."""
    older_than = keep.guests.get("audit")
    if older_than is None:
        return 0, False
    bounds = {"older_than": float(older_than), "limit": Int8(SWEEP_ROWS)}
    ((removed,),) = await db.connections.misc.run(_SQL["remove"], bounds)
    return int(removed), removed >= SWEEP_ROWS


PART: Final = PostgresPart(
    verbs={"write_audit": write_audit, "list_audit": list_audit},
    rights=(
        # Written by functions alone, so that no role but the owner changes an entry.
        Rights("TABLE", "audit", client=READ, worker=READ),
        Rights("SEQUENCE", "audit_entry_id_seq"),
        Rights("FUNCTION", "write_audit write_effects", client=RUN, worker=RUN, reader=""),
        Rights("FUNCTION", "remove_audit", worker=RUN),
    ),
    remove_old=remove_old,
    share_in_action=share_in_action,
    administered=administered,
)
