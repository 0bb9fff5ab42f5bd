"""Records that are read from a history, also from a damaged one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from affinity import MemorySessionStore
from affinity.client.views import instance_of, record_of
from affinity.demo.app import StoredTranscript, Summary, TranscriptLine, TurnReply, read_transcript, transcripts_of
from affinity.demo.conversations import ChatMessage, Conversation, digests
from affinity.demo.verify import ConversationRecord, Verdict, read_record, verify
from affinity.orchestration import events as ev
from affinity.orchestration.wire import encode_event
from affinity.provider.contract import InstanceInfo
from affinity.session import SessionState

CHAT = Conversation("chat", (ChatMessage("ann", ("hello",)), ChatMessage("bob", ("hi",))))
SCHEDULED = ev.ActivityScheduled("turn", "{}", session_id="s")


def instance(**changes: Any) -> InstanceInfo:
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "instance_id": "s",
        "generation": "b",
        "name": "conversation",
        "version": "1.0.0",
        "execution_id": 1,
        "status": "completed",
        "custom_status": None,
        "output": to_json(asdict(Summary(2, digests(CHAT.messages)[-1]))).decode(),
        "error": None,
        "parent_id": None,
        "owner": "a",
        "event_count": 4,
        "created_at": now,
        "updated_at": now,
    }
    return InstanceInfo(**values | changes)


def completed(schedule_id: int, position: int) -> ev.ActivityCompleted:
    reply = TurnReply(
        position=position,
        digest=digests(CHAT.messages)[position],
        worker_id="a",
        pid=1,
        epoch=1,
        attempt=1,
        answered_at=float(position),
    )
    return ev.ActivityCompleted(schedule_id, to_json(asdict(reply)).decode())


def read(*events: ev.Event, info: InstanceInfo | None) -> ConversationRecord:
    return judged(info, events, StoredTranscript())


def judged(info: InstanceInfo | None, events: Sequence[ev.Event], stored: StoredTranscript) -> ConversationRecord:
    history = [record_of(event_id, encode_event(event)) for event_id, event in enumerate(events, 1)]
    return read_record("s", CHAT, None if info is None else instance_of(info), history, stored)


def test_a_history_in_order() -> None:
    record = read(SCHEDULED, completed(1, 0), SCHEDULED, completed(3, 1), info=instance())
    assert [reply.position for reply in record.replies] == [0, 1]
    assert record.summary == Summary(2, digests(CHAT.messages)[-1])
    assert (record.repeated, record.faults) == (0, [])


def test_a_result_that_is_recorded_again() -> None:
    record = read(SCHEDULED, completed(1, 0), completed(1, 0), SCHEDULED, completed(3, 1), info=instance())
    assert [reply.position for reply in record.replies] == [0, 1]
    assert record.repeated == 1


def test_a_result_of_nothing() -> None:
    record = read(SCHEDULED, completed(1, 0), completed(7, 1), info=instance())
    assert record.faults == ["the history has a result of event 7, which is no turn"]


def test_a_turn_and_an_orchestration_that_failed() -> None:
    failed = ev.ActivityFailed(1, "failed", "ValueError", "no")
    record = read(
        SCHEDULED, failed, info=instance(status="failed", output=None, error='{"type":"ActivityFailed","message":"no"}')
    )
    assert record.summary is None
    assert record.faults == [
        "its orchestration has failed: ActivityFailed: no",
        "the turn of event 1 has failed: ValueError: no",
    ]


def test_an_instance_that_is_gone() -> None:
    assert read(info=None).faults == ["its instance is gone"]


# --- states -----------------------------------------------------------------------------------------------------------

HISTORY = (SCHEDULED, completed(1, 0), SCHEDULED, completed(3, 1))
TRANSCRIPTS = transcripts_of("run")


async def store_of_two_turns() -> MemorySessionStore:
    store = MemorySessionStore()
    for position, message in enumerate(CHAT.messages):
        async with TRANSCRIPTS.open("s", store=store) as transcript:
            transcript.add(position, TranscriptLine(message, "a", epoch=1, attempt=1))
    return store


async def judge(store: MemorySessionStore) -> Verdict:
    stored = await read_transcript(TRANSCRIPTS, store, "s")
    return verify([judged(instance(), HISTORY, stored)], {}, {"a": 1})


async def test_a_state_is_read_as_it_was_written() -> None:
    assert (await judge(await store_of_two_turns())).differences == ()
    assert await read_transcript(TRANSCRIPTS, MemorySessionStore(), "s") == StoredTranscript()


async def test_a_state_that_was_written_by_other_code() -> None:
    """Somebody writes the same lines once more, and then other ones."""
    store = await store_of_two_turns()
    record = await store.load("s")
    assert record is not None
    new = SessionState(session_id="s", state=record.state, encoding=record.encoding, metadata=record.metadata)
    await store.save(new)
    assert (await judge(store)).states_agreed == 0
    async with TRANSCRIPTS.open("s", store=store) as transcript:
        transcript.lines.pop()
    assert (await judge(store)).lost_turns == 1


async def test_a_state_that_cannot_be_read_is_a_difference() -> None:
    store = await store_of_two_turns()
    record = await store.load("s")
    assert record is not None
    await store.save(SessionState(session_id="s", state=b"?", encoding=record.encoding, metadata=record.metadata))
    stored = await read_transcript(TRANSCRIPTS, store, "s")
    assert stored.lines == ()
    (trouble,) = judged(instance(), HISTORY, stored).faults
    assert "its state cannot be read" in trouble
    assert str(stored.error) in trouble
