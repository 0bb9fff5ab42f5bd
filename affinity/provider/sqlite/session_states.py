"""Records of session state: the fences of writes, writing with a result or alone, reading and deleting.

A state is bytes, up to many megabytes of them, so it goes in and out as a parameter of its own and never through JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from affinity.provider.rows import to_session_record, write_conflict
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.parts import parts
from affinity.provider.statements import load_statements
from affinity.records import RecordTimes, SessionRecord, SessionState, StateWrite

SQL: Final = load_statements(__package__, "session_states.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDeletion:
    """A selection of records to remove; see `SessionStore.delete`."""

    session_ids: Sequence[str]  # each once
    idle_only: bool
    versions: Mapping[str, int]
    generations: Mapping[str, str]
    families: Mapping[str, str] | None


class _FenceRow(NamedTuple):
    """The fences of a write: the record, as far as there is one, and the lease of its session."""

    version: int | None
    epoch: int | None
    turn: str | None
    labels: str | None
    participants: str | None
    lease_epoch: int | None

    def is_newer_than(self, epoch: int) -> bool:
        """Return whether the session or its record has a greater epoch."""
        return max(self.epoch or epoch, self.lease_epoch or epoch) > epoch


class FenceChecker:
    """Checks the fences of writes that come with the results of one batch, and writes the states that are accepted.

    The fences are read in one statement; without writes, none is run.
    """

    def __init__(self, tx: Tx, writes: Iterable[StateWrite]) -> None:
        self._tx = tx
        self._found = _read(tx, {write.new.session_id for write in writes})
        self._passed: dict[str, StateWrite] = {}

    def find_conflicts(self, writes: Sequence[StateWrite]) -> list[str]:
        """Return the sessions whose write does not pass, of the writes of one result. Of several writes of one session
        only the first passes.
        """
        seen = set(self._passed)
        refused = []
        for write in writes:
            session_id = write.new.session_id
            if session_id in seen or not self._fits(write):
                refused.append(session_id)
            seen.add(session_id)
        return refused

    def accept(self, writes: Iterable[StateWrite]) -> None:
        """Note that the result with these writes passes."""
        self._passed.update((write.new.session_id, write) for write in writes)

    def write_accepted(self) -> None:
        """Write accepted states."""
        if self._passed:
            _put(self._tx, [encode(write.new, epoch=write.epoch) for write in self._passed.values()], self._found)

    def _fits(self, write: StateWrite) -> bool:
        found = self._found[write.new.session_id]
        return (found.version or 0) == write.base_version and not found.is_newer_than(write.epoch)


def encode(
    new: SessionState,
    *,
    epoch: int | None,
    generation: str | None = None,
    idempotency_key: str | None = None,
    times: RecordTimes | None = None,
) -> dict[str, Any]:
    """Return a state as the columns of its record."""
    about = new.metadata
    return {
        "session_id": new.session_id,
        "epoch": epoch,
        "schema_version": new.schema_version,
        "encoding": new.encoding,
        "kind": about.kind,
        "name": about.name,
        "parent": about.parent,
        "message_count": about.message_count,
        "turn": idempotency_key,
        "labels": to_json(dict(sorted(about.labels.items()))),
        "participants": to_json(list(about.participants)),
        "state": bytes(new.state),
        "generation": generation,
        "created_at": None if times is None else times.created_at.timestamp(),
        "updated_at": None if times is None else times.updated_at.timestamp(),
    }


def save(tx: Tx, record: dict[str, Any], expected_version: int | None) -> int:
    """Write one record, in the form that `encode` returns."""
    session_id, epoch = record["session_id"], record["epoch"]
    all_found = _read(tx, [session_id])
    found = all_found[session_id]
    version = found.version or 0
    if record["turn"] is not None and found.turn == record["turn"]:
        return version
    same_generation = found.version is None or record["generation"] in {None, _generation(tx, session_id)}
    known = expected_version in {None, version}
    if not same_generation or not known or (epoch is not None and found.is_newer_than(epoch)):
        raise write_conflict(
            session_id, expected_version, found.version, epoch, same_generation=same_generation, known=known
        )
    if epoch is None:
        sessions.renew_epochs(tx, [session_id])
    _put(tx, [record], all_found)
    return version + 1


def _generation(tx: Tx, session_id: str) -> str:
    generation: str = tx.value(SQL["generation"], {"session_id": session_id})
    return generation


def load(tx: Tx, session_id: str) -> SessionRecord | None:
    row = tx.row(SQL["load"], {"session_id": session_id})
    return None if row is None else to_session_record(row, instant)


def find_doomed(tx: Tx, asked: RecordDeletion) -> list[str]:
    """Return the records that a deletion removes, in order."""
    families = asked.families or {}
    rows = [
        (name, families.get(name, name), asked.versions.get(name), asked.generations.get(name))
        for name in asked.session_ids
    ]
    which = {"rows": to_json(rows), "idle_only": asked.idle_only, "whole": asked.families is not None, "now": tx.now}
    doomed: list[str] = tx.gather(SQL["doomed"], which)
    return doomed


def delete(tx: Tx, asked: RecordDeletion) -> list[str]:
    doomed = find_doomed(tx, asked)
    sessions.renew_epochs(tx, doomed)
    remove(tx, doomed)
    return doomed


def remove(tx: Tx, doomed: Sequence[str]) -> None:
    """Remove the records of sessions, and the rows of guests for these sessions."""
    tx.many(SQL["unlabel"], doomed)
    tx.many(SQL["forget_participants"], doomed)
    tx.many(SQL["delete"], doomed)
    for part in parts().values():
        if part.records_removed is not None:
            part.records_removed(tx, doomed)


def _read(tx: Tx, session_ids: Collection[str]) -> dict[str, _FenceRow]:
    if not session_ids:
        return {}
    rows = tx.gather(SQL["fences"], {"session_ids": to_json(list(session_ids))})
    return {session_id: _FenceRow(*found) for session_id, *found in rows}


def _put(tx: Tx, records: Sequence[dict[str, Any]], found: Mapping[str, _FenceRow]) -> None:
    """Write records, and their labels and participants as far as they differ from before."""
    tx.each(SQL["write"], [{**record, "now": tx.now} for record in records])
    labels = {
        record["session_id"]: json.loads(record["labels"])
        for record in records
        if record["labels"] != (found[record["session_id"]].labels or "{}")
    }
    tx.many(SQL["unlabel"], list(labels))
    tx.many(SQL["label"], [(session_id, *label) for session_id, every in labels.items() for label in every.items()])
    participants = {
        record["session_id"]: json.loads(record["participants"])
        for record in records
        if record["participants"] != (found[record["session_id"]].participants or "[]")
    }
    tx.many(SQL["forget_participants"], list(participants))
    added = [(name, participant) for name, every in participants.items() for participant in every]
    tx.many(SQL["add_participants"], added)
