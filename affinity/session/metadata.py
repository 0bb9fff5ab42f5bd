"""What is kept in columns beside a state: from the record, from the function of the state, and from who opened it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from affinity.errors import InvalidOptions
from affinity.limits import MAX_LABELS, MAX_PARTICIPANTS, check_id, check_integer
from affinity.records import SessionMetadata


def wanted(
    stored: SessionMetadata, session_id: str | None, parent: str | None, labels: Mapping[str, str] | None
) -> SessionMetadata:
    """The record's metadata, with the parent and the labels that were given.

    Raises:
        InvalidId: the parent, or a label, is no valid id.
        InvalidOptions: too many labels, or the session would be its own parent.
    """
    if parent is not None:
        if check_id(parent, "parent") == session_id:
            raise InvalidOptions(f"session {session_id!r} cannot be its own parent")
        stored = replace(stored, parent=parent)
    return stored if labels is None else replace(stored, labels=_checked_labels(labels))


def described(metadata: SessionMetadata, said: SessionMetadata) -> SessionMetadata:
    """The metadata with what the application's function says of the state; what it leaves out stays.

    Its labels are added to the others and win; kind and parent are not the state's to say.

    Raises:
        InvalidId: a name, label or participant is no valid id.
        InvalidOptions: too many labels or participants, or a message count that is no integer or out of range.
    """
    if said.message_count is not None:
        check_integer(said.message_count, "message_count")
    return replace(
        metadata,
        name=metadata.name if said.name is None else check_id(said.name, "session name"),
        message_count=metadata.message_count if said.message_count is None else said.message_count,
        participants=_checked_participants(said.participants) if said.participants else metadata.participants,
        labels=_checked_labels({**metadata.labels, **said.labels}),
    )


def normal(metadata: SessionMetadata) -> SessionMetadata:
    """The same in types that compare: stores may give lists for tuples."""
    return replace(metadata, labels=dict(metadata.labels), participants=tuple(metadata.participants))


def _checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise InvalidOptions(f"{len(labels)} labels, over the limit of {MAX_LABELS}")
    return {check_id(key, "label key"): check_id(value, f"label {key!r}") for key, value in labels.items()}


def _checked_participants(participants: object) -> tuple[str, ...]:
    if isinstance(participants, str) or not hasattr(participants, "__iter__"):
        raise InvalidOptions(f"participants must be several ids, not {participants!r}")
    checked = tuple(check_id(each, "participant") for each in participants)
    if len(checked) > MAX_PARTICIPANTS:
        raise InvalidOptions(f"{len(checked)} participants, over the limit of {MAX_PARTICIPANTS}")
    return checked
