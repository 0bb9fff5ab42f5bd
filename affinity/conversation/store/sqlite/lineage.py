"""Journals that are made from others, and where journals came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from affinity.conversation import journal as j
from affinity.conversation.store.lineage import to_lineage
from affinity.conversation.store.sqlite import journals
from affinity.errors import Contention
from affinity.provider.contract import NewMessage
from affinity.provider.sqlite import messages, quotas, session_states, sessions
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "lineage.sql")


class _Source(NamedTuple):
    """A journal that another one is made from."""

    journal_id: int
    session_id: str | None  # None: it is deleted
    first_seq: int
    last_seq: int
    processed: int

    def end_of(self, part: j.JournalRange) -> int:
        """Return the number of the last entry of a range of this journal."""
        return self.last_seq if part.up_to is None else part.up_to


def create(tx: Tx, creations: Sequence[j.JournalCreation]) -> list[j.CreationResult]:
    return [_create(tx, creation, of_wake=False) for creation in creations]


def create_of_wakes(tx: Tx, creations: Sequence[j.JournalCreation]) -> None:
    """Create journals for wakes, as `create` does, but without quotas.

    Raises:
        Contention: something else of the batch has taken an id, behind the fences: nothing of the batch may be applied.
    """
    for creation in creations:
        if (found := _create(tx, creation, of_wake=True)).outcome not in {"created", "repeated"}:
            raise Contention(
                f"the batch cannot be applied as a whole: journal {creation.session_id!r}: {found.outcome}"
            )


def fits(tx: Tx, write: j.JournalWrite) -> bool:
    """Return whether the lease of a journal's home passes the fence, and all creations of a write can be applied."""
    if write.home is not None and tx.value(SQL["has_moved"], write.home._asdict()):
        return False
    refusals = [find_refusal(tx, creation, of_wake=True) for creation in write.creations]
    return all(refused is None or refused.outcome == "repeated" for refused in refusals)


def find_refusal(tx: Tx, creation: j.JournalCreation, *, of_wake: bool) -> j.CreationResult | None:
    """Return the outcome of a creation that is not applied; None: it can be applied."""
    for journal_id, last_seq, *made in tx.gather(SQL["present"], {"session_id": creation.session_id}):
        is_same = made == [creation.lineage, creation.operator, list(creation.parents)]
        return j.CreationResult("repeated" if is_same else "taken", journal_id, last_seq)
    if tx.value(SQL["taken"], {"session_id": creation.session_id, "journal_id": creation.start.journal_id}):
        return j.CreationResult("taken")
    outcome = _check_sources(creation, _read_sources(tx, creation))
    if outcome is None and not of_wake and _is_over_quota(tx, creation):
        outcome = "over_quota"
    return None if outcome is None else j.CreationResult(outcome)


def _read_sources(tx: Tx, creation: j.JournalCreation) -> dict[int, _Source]:
    ids = {*creation.parents, *(part.journal_id for part in (creation.base, creation.merged) if part is not None)}
    sources = [_Source(*row) for row in tx.gather(SQL["sources"], {"journal_ids": to_json(list(ids))})]
    return {source.journal_id: source for source in sources}


def _check_sources(creation: j.JournalCreation, sources: dict[int, _Source]) -> j.CreationOutcome | None:
    parts = [part for part in (creation.base, creation.merged) if part is not None]
    if not sources.keys() >= {*creation.parents, *(part.journal_id for part in parts)}:
        return "unknown"
    if any(sources[part.journal_id].session_id is None for part in parts):
        return "unknown"
    for part in parts:
        source = sources[part.journal_id]
        if not source.first_seq - 1 <= source.end_of(part) <= source.last_seq:
            return "beyond"
    copies = creation.requests is None or (creation.copies_state and creation.state is None)
    copied = creation.base if copies else None
    if copied is not None and copied.up_to not in {None, sources[copied.journal_id].last_seq}:
        return "beyond"
    return None


def _is_over_quota(tx: Tx, creation: j.JournalCreation) -> bool:
    most = quotas.get(tx)
    too_large = most.instance_bytes is not None and len(creation.start.start.encode()) > most.instance_bytes
    return too_large or (most.instances is not None and tx.value(quotas.SQL["counted"]) >= most.instances)


def _create(tx: Tx, creation: j.JournalCreation, *, of_wake: bool) -> j.CreationResult:
    refused = find_refusal(tx, creation, of_wake=of_wake)
    if refused is not None:
        return refused
    sources = _read_sources(tx, creation)
    last_seq = _add_journal(tx, creation, sources)
    _add_state(tx, creation, sources)
    if creation.copies_state and creation.state is None and creation.base is not None and not of_wake:
        tx.run(SQL["copy_steps"], {"journal_id": creation.start.journal_id, "base_id": creation.base.journal_id})
    _add_requests(tx, creation)
    _, outbox = messages.insert_new(tx, [journals.instance_of(creation.session_id, creation.start)])
    if creation.message is not None and _has_work(tx, creation.session_id):
        text = creation.message.replace(j.SEQ_MARK, str(last_seq))
        outbox.append(NewMessage(instance_id=creation.session_id, payload=text))
    messages.send(tx, outbox)
    return j.CreationResult("created", creation.start.journal_id, last_seq)


def _add_journal(tx: Tx, creation: j.JournalCreation, sources: dict[int, _Source]) -> int:
    """Add the journal with its entries; returns the number of the last one."""
    base = None if creation.base is None else sources[creation.base.journal_id]
    base_seq = None if base is None or creation.base is None else base.end_of(creation.base)
    last_seq = base_seq or 0
    about = creation.about or {}
    new: dict[str, Any] = {
        "journal_id": creation.start.journal_id,
        "session_id": creation.session_id,
        "kind": creation.kind,
        "parent": creation.start.parent,
        "first_seq": 1 if base is None else base.first_seq,
        "last_seq": last_seq,
        "processed": creation.processed if base is None else min(base.processed, last_seq),
        "base_id": None if base is None else base.journal_id,
        "base_seq": base_seq,
        "home": creation.home,
        "lineage": creation.lineage,
        "operator": creation.operator,
        "extras": creation.extras,
        "title": about.get("title"),
        "owner": about.get("owner"),
        "labels": to_json(about.get("labels") or {}),
        "merged_id": None if creation.merged is None else creation.merged.journal_id,
        "now": tx.now,
    }
    tx.run(SQL["create"], new)
    parents = [(creation.start.journal_id, place, parent) for place, parent in enumerate(creation.parents, 1)]
    tx.many(SQL["add_parents"], parents)
    if creation.merged is not None:
        merged = sources[creation.merged.journal_id]
        values = {
            "journal_id": creation.start.journal_id,
            "last_seq": last_seq,
            "merged_id": merged.journal_id,
            "merged_seq": merged.end_of(creation.merged),
            "merged_processed": merged.processed,
        }
        last_seq += tx.run(SQL["merge"], values)
    rows = [
        (
            *(creation.start.journal_id, seq, entry.kind, entry.payload, entry.event_id, entry.wake_id),
            *(int(entry.is_input), None if entry.recorded_at is None else entry.recorded_at.timestamp()),
        )
        for seq, entry in enumerate(creation.entries, last_seq + 1)
    ]
    tx.many(SQL["add_entries"], rows, {"now": tx.now})
    tx.many(SQL["wakes"], [(creation.start.journal_id, *wake) for wake in creation.wakes])
    last_seq += len(rows)
    tx.run(SQL["finish"], {"journal_id": creation.start.journal_id, "last_seq": last_seq})
    return last_seq


def _add_state(tx: Tx, creation: j.JournalCreation, sources: dict[int, _Source]) -> None:
    if creation.state is not None:
        session_states.save(tx, session_states.encode(creation.state, epoch=None, times=creation.state_times), 0)
    elif creation.copies_state and creation.base is not None:
        values = {
            "session_id": creation.session_id,
            "source": sources[creation.base.journal_id].session_id,
            "now": tx.now,
        }
        sessions.renew_epochs(tx, [creation.session_id])
        tx.run(SQL["copy_state"], values)
        tx.run(SQL["copy_labels"], values)
        tx.run(SQL["copy_participants"], values)


def _add_requests(tx: Tx, creation: j.JournalCreation) -> None:
    base_id = None if creation.base is None else creation.base.journal_id
    values = {"journal_id": creation.start.journal_id, "base_id": base_id}
    if creation.requests is None:
        tx.run(SQL["copy_requests"], values)
    else:
        rows = [
            (
                *request[:5],
                request.created_at.timestamp(),
                None if request.expires_at is None else request.expires_at.timestamp(),
            )
            for request in creation.requests
        ]
        tx.many(SQL["add_requests"], rows, values)
    revisits = [
        (creation.start.journal_id, revisit.key, revisit.due_at.timestamp(), *revisit[2:])
        for revisit in creation.revisits
    ]
    tx.many(SQL["add_revisits"], revisits)


def _has_work(tx: Tx, session_id: str) -> bool:
    """Return whether inputs, a request that expires, or a revisit are pending."""
    (work,) = journals.get_pending(tx, [session_id], limit=1, max_bytes=1)
    if work is None:
        return False
    return bool(work.inputs or work.revisits) or any(request.expires_at is not None for request in work.requests)


def get(tx: Tx, session_id: str) -> list[j.JournalLineage]:
    return to_lineage(tx.gather(SQL["lineage"], {"session_id": session_id}), session_id, instant)
