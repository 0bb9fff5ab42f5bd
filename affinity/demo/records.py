"""Reads the histories and states of a run into records to verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from affinity.demo.app import NOTHING, Reply, StoredTranscript, Summary, Transcript, read_transcript
from affinity.demo.conversations import Conversation
from affinity.demo.verify import Record
from affinity.errors import SessionLoadFailed
from affinity.orchestration.codec import Codec
from affinity.orchestration.events import ActivityCompleted, ActivityFailed, ActivityScheduled, Event
from affinity.orchestration.wire import decode_event
from affinity.provider.contract import InstanceInfo, Provider
from affinity.provider.history import read_whole_history
from affinity.records import SessionStore
from affinity.session import Sessions

HISTORIES: Final = 50
"""Histories that one call reads."""

_REPLY: Final = Codec(Reply, "result of a turn")
_SUMMARY: Final = Codec(Summary, "output of a conversation")


async def read_records(
    provider: Provider,
    conversations: Mapping[str, Conversation],
    transcripts: Sessions[Transcript],
    store: SessionStore,
) -> Sequence[Record]:
    """The record of every conversation.

    Args:
        provider: the database.
        conversations: by session, which is the instance too.
        transcripts: how states are read.
        store: the states in the database, as scripts see them.
    """
    records: list[Record] = []
    everything = list(conversations)
    for start in range(0, len(everything), HISTORIES):
        session_ids = everything[start : start + HISTORIES]
        infos = await provider.get_instance(session_ids)
        histories = [await read_whole_history(provider, session_id, 1) for session_id in session_ids]
        records += [
            read_record(
                session_id, conversations[session_id], info, history, await _read(transcripts, store, session_id)
            )
            for session_id, info, history in zip(session_ids, infos, histories, strict=True)
        ]
    return records


def read_record(
    session_id: str,
    conversation: Conversation,
    info: InstanceInfo | None,
    history: Sequence[str],
    stored: StoredTranscript | SessionLoadFailed,
) -> Record:
    """The record of one conversation, from its instance, its history and its state."""
    events = [decode_event(text) for text in history]
    results = [event for event in events if isinstance(event, ActivityCompleted)]
    first = {result.schedule_id: result for result in reversed(results)}
    replies = [_REPLY.decode(result.result) for result in results if first[result.schedule_id] is result]
    return Record(
        session_id=session_id,
        conversation=conversation,
        replies=replies,
        repeated=len(results) - len(replies),
        faults=[*_instance_faults(info), *_history_faults(events, first), *_state_faults(stored)],
        summary=_SUMMARY.decode(info.output) if info is not None and info.output is not None else None,
        stored=stored if isinstance(stored, StoredTranscript) else NOTHING,
    )


async def _read(
    transcripts: Sessions[Transcript], store: SessionStore, session_id: str
) -> StoredTranscript | SessionLoadFailed:
    try:
        return await read_transcript(transcripts, store, session_id)
    except SessionLoadFailed as error:
        return error


def _instance_faults(info: InstanceInfo | None) -> Iterable[str]:
    if info is None:
        yield "its instance is gone"
    elif info.error is not None:
        yield f"its orchestration has {info.status}: {info.error}"


def _state_faults(stored: StoredTranscript | SessionLoadFailed) -> Iterable[str]:
    if isinstance(stored, SessionLoadFailed):
        yield f"its state cannot be read: {stored}"


def _history_faults(events: Sequence[Event], results: Mapping[int, ActivityCompleted]) -> Iterable[str]:
    """Turns that failed, and results of what was never scheduled."""
    for event in events:
        if isinstance(event, ActivityFailed):
            yield f"the turn of event {event.schedule_id} has failed: {event.error_type}: {event.message}"
    scheduled = {event_id for event_id, event in enumerate(events, 1) if isinstance(event, ActivityScheduled)}
    for event_id in sorted(results.keys() - scheduled):
        yield f"the history has a result of event {event_id}, which is no turn"
