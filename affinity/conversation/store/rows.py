"""Rows of either engine as records."""

from __future__ import annotations

from collections.abc import Iterable

from affinity.conversation.journal import JournalInfo, JournalWrite, Request
from affinity.provider.rows import Columns, Time, to_record
from affinity.records import labels_of


def to_journal_info(row: Columns, time: Time) -> JournalInfo:
    """Return a journal of a listing."""
    *own, labels = row
    return to_record(JournalInfo, [*own, labels_of(labels)], time)


def to_request(row: Columns, time: Time) -> Request:
    """Return a request of a listing, with its journal."""
    session_id, journal_id, journal_kind, title, owner, request_id, kind, payload, wake_id, *times, place, labels = row
    created_at, expires_at = times
    return Request(
        request_id,
        kind,
        payload,
        wake_id,
        time(created_at),
        None if expires_at is None else time(expires_at),
        session_id=session_id,
        journal_id=journal_id,
        journal_kind=journal_kind,
        title=title,
        owner=owner,
        place=place,
        labels=labels_of(labels),
    )


def failure_rows(writes: Iterable[JournalWrite]) -> list[Columns]:
    """Return the columns of the failures of wakes that have failed, without their time."""
    return [
        (
            write.session_id,
            failed.execution_id,
            failed.activity_id,
            failed.attempt,
            "activity",
            failed.name,
            failed.error_type,
            failed.error,
            write.end is not None and write.end.outcome == "retried",
        )
        for write in writes
        if (failed := write.failure) is not None
    ]
