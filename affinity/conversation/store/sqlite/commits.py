"""The writes of wakes to their journals, as parts of a commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from affinity.conversation.journal import InstanceStart, JournalWrite, journal_writes
from affinity.conversation.store.rows import failure_rows
from affinity.conversation.store.sqlite import admin, journals, lineage, streams
from affinity.conversation.store.sqlite.rows import EntryWriter, Head, read_heads, read_numbers
from affinity.provider.contract import Generation, NewInstance
from affinity.provider.sqlite import failures, messages
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.parts import SqliteCommit
from affinity.provider.statements import load_statements
from affinity.records import CommitPart

SQL: Final = load_statements(__package__, "commits.sql")


class JournalWriter:
    """The writes of one batch: a `PartWriter`. The fences are read in one statement."""

    def __init__(self, tx: Tx, parts: Sequence[CommitPart]) -> None:
        self._tx = tx
        self._heads = read_heads(tx, {part.session_id for part in parts})
        self._passed: dict[str, JournalWrite] = {}
        self._created: set[str] = set()  # sessions of the creations of what has passed

    def find_conflicts(self, parts: Sequence[CommitPart]) -> list[str]:
        """Sessions whose write does not pass, of the writes of one result; of several of one journal the first does."""
        seen = set(self._passed)
        refused = []
        for write in journal_writes(parts):
            if write.session_id in seen or not self._fits(write):
                refused.append(write.session_id)
            seen.add(write.session_id)
        return refused

    def accept(self, parts: Iterable[CommitPart]) -> None:
        """Note that the result with these writes passes."""
        for write in journal_writes(parts):
            self._passed[write.session_id] = write
            self._created.update(creation.session_id for creation in write.creations)

    def write_accepted(self) -> None:
        """Apply accepted writes to the journals of the wakes."""
        writes = [(self._heads[session_id], write) for session_id, write in self._passed.items()]
        if not writes:
            return
        _end(self._tx, writes)
        _add(self._tx, writes)

    def write_to_others(self) -> None:
        """Create and append to other journals, and create instances, as accepted."""
        writes = self._passed.values()
        lineage.create_of_wakes(self._tx, [creation for write in writes for creation in write.creations])
        if starts := [start for write in writes for start in write.starts]:
            _, outbox = messages.insert_new(self._tx, [_instance(start) for start in starts])
            messages.send(self._tx, outbox)
        if appends := [append for write in writes for append in write.appends]:
            journals.append_of_wakes(self._tx, appends)

    def _fits(self, write: JournalWrite) -> bool:
        head = self._heads.get(write.session_id)
        if head is None or (head.journal_id, head.processed) != (write.journal_id, write.base):
            return False
        return self._created.isdisjoint(creation.session_id for creation in write.creations) and lineage.fits(
            self._tx, write
        )


def _instance(new: InstanceStart) -> NewInstance:
    generation = Generation(new.generation)
    return NewInstance(instance_id=new.instance_id, name=new.name, version=None, start=new.start, generation=generation)


def _end(tx: Tx, writes: Sequence[tuple[Head, JournalWrite]]) -> None:
    """Remove the requests, revisits, delegations, streams and steps that the wakes have ended."""
    requests = [(head.journal_id, request_id) for head, write in writes for request_id in write.ended_requests]
    revisits = [(head.journal_id, key) for head, write in writes for key in write.ended_revisits]
    tx.many(journals.SQL["resolve"], requests)
    tx.many(SQL["end_revisits"], revisits)
    tx.many(
        SQL["end_delegations"],
        [(head.journal_id, delegation_id) for head, write in writes for delegation_id in write.ended_delegations],
    )
    tx.many(streams.SQL["clear"], [head.journal_id for head, write in writes if write.clear_stream])
    tx.many(admin.SQL["delete_steps"], [head.journal_id for head, write in writes if write.clear_steps])


def _add(tx: Tx, writes: Sequence[tuple[Head, JournalWrite]]) -> None:
    """Append entries, requests and revisits, and move the watermarks."""
    writer = EntryWriter(tx, read_numbers(tx, [(head, entry) for head, write in writes for entry in write.entries]))
    requests = []
    revisits = []
    steps = [(head.journal_id, *step) for head, write in writes for step in write.steps]
    delegations = [(head.journal_id, *delegation) for head, write in writes for delegation in write.delegations]
    wakes = []
    for head, write in writes:
        for entry in write.entries:
            if writer.find(head, entry) is None:
                writer.add(head, entry)
        if not write.is_part:
            head.processed = write.processed
        head.ended_wake, head.ended_attempt = write.wake_id, write.attempt
        writer.change(head)
        if (end := write.end) is not None:
            wake = (head.last_seq, write.wake_id, write.base, end.read, write.processed)
            wakes.append((head.journal_id, *wake, end.outcome, end.reason, end.attempt, end.error))
        if head.dropped > write.processed:
            continue
        requests += [
            (
                head.journal_id,
                request.request_id,
                request.kind,
                write.wake_id,
                head.last_seq,
                request.expires_in,
                request.payload,
            )
            for request in write.requests
        ]
        revisits += [
            (head.journal_id, revisit.key, revisit.delay, revisit.priority, revisit.reason, revisit.note, write.wake_id)
            for revisit in write.revisits
        ]
    writer.write()
    tx.many(SQL["request"], requests, {"now": tx.now})
    tx.many(SQL["revisit"], revisits, {"now": tx.now})
    tx.many(SQL["delegations"], delegations)
    tx.many(SQL["steps"], steps)
    tx.many(lineage.SQL["wakes"], wakes)
    failures.keep_rows(tx, failure_rows(write for _, write in writes))


def find_unparkable(tx: Tx, instance_ids: Sequence[str]) -> set[str]:
    """Return the instances whose journal has inputs to process, or that have none: their wake does not wait."""
    return set(tx.gather(SQL["busy"], {"instance_ids": to_json(instance_ids)}))


COMMIT: Final = SqliteCommit(writer=JournalWriter, find_unparkable=find_unparkable)
