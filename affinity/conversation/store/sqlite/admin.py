"""Journals as operators see them: listing, deletion, retention."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from time import monotonic
from typing import Final, NamedTuple

from affinity.conversation.journal import Description, JournalFilter, JournalPruning, JournalRetention
from affinity.limits import PRUNE_LOOK_SECONDS, PRUNE_STEP_SECONDS, PRUNE_WINDOW
from affinity.provider.sqlite.driver.transaction import Row, Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "admin.sql")

INDEXED_ENTRIES: Final = 64
INDEXED_BYTES: Final = 65536
"""Journals with more are in the indexes by size: see ``sqlite_schema.sql``."""

_TOGETHER: Final = 20
"""Journals whose bounds are read together, while writers wait."""

BY_ID: Final = SQL["list"].replace("(:session_id IS NULL OR j.session_id = :session_id)", "j.session_id = :session_id")
BY_KIND: Final = SQL["list"].replace("(:kind IS NULL OR j.kind = :kind)", "j.kind = :kind")
BY_PARENT: Final = SQL["list"].replace("(:parent IS NULL OR j.parent = :parent)", "j.parent = :parent")
BY_OWNER: Final = SQL["list"].replace("(:owner IS NULL OR j.owner = :owner)", "j.owner = :owner")
BY_LABEL: Final = SQL["list"].replace(
    "FROM journals AS j\n",
    "FROM journal_labels AS f CROSS JOIN journals AS j ON j.journal_id = f.journal_id"
    " AND f.key = :label_key AND f.value = :label_value\n",
)
WITH_REQUESTS: Final = SQL["list"].replace(
    "FROM journals AS j\n",
    "FROM (SELECT DISTINCT journal_id FROM journal_requests WHERE expires_at IS NULL OR expires_at > :now) AS r"
    " CROSS JOIN journals AS j ON j.journal_id = r.journal_id\n",
)
MADE_FROM: Final = SQL["list"].replace(
    "FROM journals AS j\n",
    "FROM (SELECT DISTINCT journal_id FROM journal_parents WHERE parent_id = :made_from) AS r"
    " CROSS JOIN journals AS j ON j.journal_id = r.journal_id\n",
)


def list_journals(tx: Tx, where: JournalFilter, window: int, limit: int) -> list[Row]:
    """See `affinity.conversation.store.listing.ReadPortion`."""
    label_key, label_value = next(iter(where.labels.items()), (None, None))
    before, before_id = (math.inf, "") if where.after is None else (where.after[0].timestamp(), where.after[1])
    arguments = {
        "before": before,
        "before_id": before_id,
        "session_id": where.session_id,
        "status": where.status,
        "kind": where.kind,
        "prefix": where.prefix,
        "parent": where.parent,
        "parent_journal": where.parent_journal,
        "closed": where.closed,
        "updated_since": where.updated_since and where.updated_since.timestamp(),
        "updated_before": where.updated_before and where.updated_before.timestamp(),
        "made_from": where.made_from,
        "owner": where.owner,
        "labels": to_json(dict(where.labels)),
        "label_key": label_key,
        "label_value": label_value,
        "now": tx.now,
        "window": window,
        "limit": limit,
    }
    if where.session_id is not None:
        statement = BY_ID
    elif where.with_requests or where.status == "requires_action":
        statement = WITH_REQUESTS
    elif where.made_from is not None:
        statement = MADE_FROM
    elif where.parent is not None:
        statement = BY_PARENT
    elif where.owner is not None:
        statement = BY_OWNER
    elif where.labels:
        statement = BY_LABEL
    else:
        statement = SQL["list"] if where.kind is None else BY_KIND
    return tx.rows(statement, arguments)


def describe_journal(tx: Tx, session_id: str, kind: str, changes: Description) -> bool:
    values = {"session_id": session_id, "kind": kind, "changes": to_json(changes), "now": tx.now}
    return bool(tx.run(SQL["describe"], values))


# -- deletion


def delete_journals(tx: Tx, session_ids: Sequence[str]) -> list[bool]:
    found: dict[str, int] = dict(tx.gather(SQL["ids"], {"session_ids": to_json(list(session_ids))}))
    journal_ids = list(found.values())
    names = ("delete_delegations", "delete", "delete_requests", "delete_revisits", "delete_steps", "delete_streams")
    for name in names:
        tx.many(SQL[name], journal_ids)
    remove(tx, journal_ids)
    return [found.pop(session_id, None) is not None for session_id in session_ids]


def remove(tx: Tx, journal_ids: Sequence[int]) -> None:
    """Remove journals that no longer have a session, and their parents, as far as no other journal needs them.

    A journal that others continue keeps the entries that they have; a journal that others were made from keeps its row.
    """
    left = list(journal_ids)
    while left:
        at = {"journal_id": left.pop()}
        row = tx.row(SQL["deleted"], at)
        if row is None:
            continue
        base_id, parents, is_continued, is_parent, is_empty = row
        if is_parent and is_empty:
            continue
        tx.run(SQL["trim"], at)
        tx.run(SQL["trim_wakes"], at)
        if is_parent and not is_continued:
            tx.run(SQL["set_empty"], at)
        elif not is_continued:
            tx.run(SQL["remove"], at)
            tx.run(SQL["remove_parents"], at)
            left += json.loads(parents)
        if base_id is not None and not is_continued:
            left.append(base_id)


# -- retention


class Prunable(NamedTuple):
    """Journals of one step of pruning."""

    # By journal id, in order: the number of entries that may be removed, as far as it was counted.
    entries: dict[int, int]
    abandoned: bool  # there are entries of deleted journals, too
    after: int | None  # where the next step begins


def find_prunable(
    tx: Tx, retention: JournalRetention, after: int, *, each: int | None, everything: bool = False
) -> Prunable:
    """Find the first journals behind ``after`` that are over a bound; count at most ``each`` entries of each."""
    until = monotonic() + PRUNE_LOOK_SECONDS
    over, goes_on = _find_over(tx, retention, after, math.inf if everything else tx.now)
    entries: dict[int, int] = {}
    for at in _read_bounds(tx, over, retention):
        if entries and monotonic() > until:  # each step goes on, however busy the machine is
            goes_on = at.journal_id - 1
            break
        entries[at.journal_id] = _count(tx, at, retention, each)
    abandoned = after == 0 and bool(tx.gather(SQL["abandoned"], {"window": 1}))
    return Prunable(entries, abandoned, goes_on)


def _find_over(tx: Tx, retention: JournalRetention, after: int, look: float) -> tuple[list[int], int | None]:
    """Journals over a bound, but for those that went behind until a later time than ``look``; and the last that was
    looked at, if there are more.
    """
    bounds = {
        "entries": math.inf if retention.entries is None else retention.entries,
        "size": math.inf if retention.size is None else retention.size,
        "cutoff": _cutoff(tx, retention),
        "after": after,
        "look": look,
        "window": PRUNE_WINDOW,
    }
    if _is_indexed(retention):
        over = tx.gather(SQL["over_indexed"], bounds)
        return over, over[-1] if len(over) == PRUNE_WINDOW else None
    looked = tx.gather(SQL["over"], bounds)
    last = looked[-1][0] if len(looked) == PRUNE_WINDOW else None
    return [journal_id for journal_id, is_over in looked if is_over], last


def _is_indexed(retention: JournalRetention) -> bool:
    """Return whether all journals over these bounds are in the indexes."""
    return (retention.entries is None or retention.entries >= INDEXED_ENTRIES) and (
        retention.size is None or retention.size >= INDEXED_BYTES
    )


def _read_bounds(tx: Tx, journal_ids: Sequence[int], retention: JournalRetention) -> list[_Bounds]:
    asked = {"journal_ids": to_json(list(journal_ids)), "cutoff": _cutoff(tx, retention)}
    return [_Bounds(*row) for row in tx.gather(SQL["prune_bounds"], asked)] if journal_ids else []


def _count(tx: Tx, at: _Bounds, retention: JournalRetention, most: int | None) -> int:
    return _find_end(tx, at, retention, at.last_seq if most is None else most)[0] - at.first_seq


def prune(tx: Tx, found: Prunable, retention: JournalRetention, limit: int, after: int) -> JournalPruning:
    until = monotonic() + PRUNE_STEP_SECONDS
    removed = _remove_abandoned(tx, limit) if found.abandoned else 0
    has_begun = removed > 0
    if kept := [journal_id for journal_id, number in found.entries.items() if not number]:
        tx.run(SQL["keep"], {"journal_ids": to_json(kept), "now": tx.now})
    doomed = [journal_id for journal_id, number in found.entries.items() if number]
    for start in range(0, len(doomed), _TOGETHER):
        for at in _read_bounds(tx, doomed[start : start + _TOGETHER], retention):
            if removed >= limit or (has_begun and monotonic() > until):
                return JournalPruning(entries=removed, after=after)
            has_begun = True
            removed += _cut(tx, at, retention, limit - removed)
            after = at.journal_id - (removed >= limit)  # there may be more of this one
    return JournalPruning(entries=removed, after=after if removed >= limit else found.after)


def _remove_abandoned(tx: Tx, limit: int) -> int:
    removed = 0
    for journal_id in tx.gather(SQL["abandoned"], {"window": PRUNE_WINDOW}):
        removed += tx.run(SQL["empty"], {"journal_id": journal_id, "limit": limit - removed})
        if removed >= limit:
            break
        remove(tx, [journal_id])
    return removed


class _Bounds(NamedTuple):
    """A journal before entries are removed."""

    journal_id: int
    first_seq: int
    base_seq: int
    last_seq: int
    size: int
    is_old: bool  # the journal, and so the entries that it continues
    keep: int  # the first entry that must stay


def _cut(tx: Tx, at: _Bounds, retention: JournalRetention, room: int) -> int:
    """Remove the first entries of a journal, up to ``room``; return their number."""
    first_seq, size = _find_end(tx, at, retention, room)
    _keep_usage(tx, at, first_seq)
    moved = {"journal_id": at.journal_id, "first_seq": first_seq, "size": at.size - size, "now": tx.now}
    for name in ("cut", "cut_wakes", "set_first", *(("free_base",) if at.base_seq else ())):
        tx.run(SQL[name], moved)
    return first_seq - at.first_seq


def _keep_usage(tx: Tx, at: _Bounds, first_seq: int) -> None:
    """Add the usage of the entries before ``first_seq`` to the usage of removed entries that the journal keeps."""
    values = {"journal_id": at.journal_id, "after": at.first_seq - 1, "before": first_seq}
    spent = tx.gather(SQL["spent"], values)
    if not spent:
        return
    used: dict[str, tuple[int, dict[str, int]]] = json.loads(tx.value(SQL["used"], values))
    for wake_id, usage in spent:
        writer = "" if wake_id is None else wake_id.rsplit("-", 2)[0]
        entries, total = used.get(writer, (0, {}))
        numbers = {name: value for name, value in usage.items() if type(value) in {int, float}}
        used[writer] = entries + 1, {**total, **{name: total.get(name, 0) + value for name, value in numbers.items()}}
    tx.run(SQL["set_used"], {**values, "used": to_json(used)})


def _find_end(tx: Tx, at: _Bounds, retention: JournalRetention, room: int) -> tuple[int, int]:
    """Return the first entry that stays when the first ``room`` are removed at most, and the size then."""
    first_seq, size = at.first_seq, at.size
    end = min(at.keep, at.first_seq + room)
    for is_old, entry_size in _oldest(tx, at, end, retention):
        is_too_many = retention.entries is not None and at.last_seq - first_seq >= retention.entries
        is_too_large = retention.size is not None and size > retention.size
        if first_seq >= end or not (is_old or is_too_many or is_too_large):
            break
        first_seq, size = first_seq + 1, size - entry_size
    return first_seq, size


def _oldest(tx: Tx, at: _Bounds, end: int, retention: JournalRetention) -> list[tuple[bool, int]]:
    """Return for each entry up to ``end`` whether it is too old, and its bytes.

    Entries of the journal that it continues are as old as the journal itself, and have no bytes.
    """
    inherited = max(min(at.base_seq + 1, end) - at.first_seq, 0)
    values = {"journal_id": at.journal_id, "before": end, "limit": end - at.first_seq, "cutoff": _cutoff(tx, retention)}
    own = [(bool(is_old), size) for _, is_old, size in tx.gather(SQL["oldest"], values)]
    return [(bool(at.is_old), 0)] * inherited + own


def _cutoff(tx: Tx, retention: JournalRetention) -> float:
    return -math.inf if retention.age is None else tx.now - retention.age
