"""Verification: the records of a run, compared with the data set and with each other.

    the history      the result of every turn: `ConversationRecord.replies`
    the output       the result of the orchestration: `ConversationRecord.summary`
    the state        the transcript of the session: `ConversationRecord.stored`

A turn is *lost* unless its message is at its place in the state, and the history has a reply to it with the right
digest of the transcript. State and history *agree* if each line of the state was added by the run of the turn (worker,
epoch, attempt) whose result is in the history, and the state was written once for each result.
A turn ran *off its holder* if its session had moved to another worker at its epoch, if two processes worked under one
epoch, or if an older epoch came after a newer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pydantic import TypeAdapter

from affinity.client import HistoryRecord, Instance
from affinity.composed.client import Client
from affinity.demo.app import StoredTranscript, Summary, Transcript, TranscriptLine, TurnReply, read_transcript
from affinity.demo.conversations import Conversation, digests
from affinity.demo.display import counted
from affinity.errors import UnknownInstance
from affinity.session import Sessions

Holders: TypeAlias = Mapping[str, Mapping[int, str]]
"""The workers to which the sessions moved: by session, then by epoch."""

SHOWN: Final = 3  # differences of one kind, for one conversation
_REPLIES: Final = TypeAdapter(list[TurnReply])
_SUMMARY: Final[TypeAdapter[Summary | None]] = TypeAdapter(Summary | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """The histories and states of one conversation, as a run left them."""

    session_id: str
    conversation: Conversation
    replies: Sequence[TurnReply]  # in the order of the history
    repeated: int = 0  # results in the history of turns that had one already
    faults: Sequence[str] = ()  # other failures, from the history or the instance
    summary: Summary | None  # None: the orchestration did not complete
    stored: StoredTranscript

    @property
    def runs(self) -> Sequence[Sequence[tuple[int, int, str]]]:
        """Position, epoch and worker of each turn: by the history, and by the state."""
        lines = enumerate(self.stored.lines)
        return [(r.position, r.epoch, r.worker_id) for r in self.replies], [(n, r.epoch, r.worker_id) for n, r in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the verification."""

    transcripts_verified: int
    states_agreed: int  # sessions
    lost_turns: int
    duplicated_results: int
    turns_off_holder: int
    migrated_sessions: int
    differences: tuple[str, ...] = ()


async def read_records(
    client: Client, conversations: Mapping[str, Conversation], transcripts: Sessions[Transcript]
) -> Sequence[ConversationRecord]:
    """The record of every conversation, by session, which is the instance too."""
    records = []
    for session_id, conversation in conversations.items():
        try:
            instance, history = await client.status(session_id), await client.history(session_id)
        except UnknownInstance:
            instance, history = None, []
        stored = await read_transcript(transcripts, client.session_store, session_id)
        records.append(read_record(session_id, conversation, instance, history, stored))
    return records


def read_record(
    session_id: str,
    conversation: Conversation,
    instance: Instance | None,
    history: Sequence[HistoryRecord],
    stored: StoredTranscript,
) -> ConversationRecord:
    """The record of one conversation, from its instance, its history and its state."""
    results = [event for event in history if event.type == "activity_completed"]
    first = {result.fields["schedule_id"]: result for result in reversed(results)}
    replies = [each.fields["result"] for each in results if first[each.fields["schedule_id"]] is each]
    faults = []
    if instance is None:
        faults.append("its instance is gone")
    elif instance.error is not None:
        faults.append(f"its orchestration has {instance.status}: {instance.error.type}: {instance.error.message}")
    for failed in (event.fields for event in history if event.type == "activity_failed"):
        what = f"{failed['error_type']}: {failed['message']}"
        faults.append(f"the turn of event {failed['schedule_id']} has failed: {what}")
    for event_id in sorted(first.keys() - {each.event_id for each in history if each.type == "activity_scheduled"}):
        faults.append(f"the history has a result of event {event_id}, which is no turn")
    if stored.error is not None:
        faults.append(f"its state cannot be read: {stored.error}")
    return ConversationRecord(
        session_id=session_id,
        conversation=conversation,
        replies=_REPLIES.validate_python(replies),
        repeated=len(results) - len(replies),
        faults=faults,
        summary=_SUMMARY.validate_python(instance.output if instance is not None else None),
        stored=stored,
    )


def verify(records: Sequence[ConversationRecord], holders: Holders, processes: Mapping[str, int]) -> Verdict:
    """Compare all records with the data set and with each other; ``processes`` are process ids by worker."""
    differences = [[*_differences(record)] for record in records]
    disagreements = [[*_disagreements(record)] for record in records]
    off_holder = [_off_holder(record, holders, processes) for record in records]
    moved = [[*_at_turns(turns, "", " ran on a worker that did not hold the session")] for turns in off_holder]
    return Verdict(
        transcripts_verified=differences.count([]),
        states_agreed=disagreements.count([]),
        lost_turns=sum(map(_lost, records)),
        duplicated_results=sum(r.repeated + len(r.replies) - len({one.position for one in r.replies}) for r in records),
        turns_off_holder=sum(map(len, off_holder)),
        migrated_sessions=sum(len({worker for rows in r.runs for *_, worker in rows}) > 1 for r in records),
        differences=tuple(
            f"conversation {record.conversation.id}: {text}"
            for found in (differences, disagreements, moved)
            for record, texts in zip(records, found, strict=True)
            for text in texts
        ),
    )


def recovery_seconds(
    records: Iterable[ConversationRecord], *, killed: str, killed_at: float, orphans: Iterable[str]
) -> float | None:
    """Seconds from the death of a worker (``killed_at``, Unix seconds) until the last session with work left was served
    elsewhere; None when none had any.
    """
    orphaned = set(orphans)
    served = [
        [r.answered_at for r in record.replies if r.worker_id != killed and r.answered_at > killed_at]
        for record in records
        if record.session_id in orphaned
    ]
    return max((min(times) - killed_at for times in served if times), default=None)


def _differences(record: ConversationRecord) -> Iterator[str]:
    """How one conversation differs from the data set, for people."""
    messages, stored = record.conversation.messages, [line.message for line in record.stored.lines]
    expected = digests(messages)
    output = Summary(len(expected), expected[-1])
    positions = [reply.position for reply in record.replies]
    times = Counter(positions)
    yield from record.faults
    if record.summary is None:
        yield "it did not complete"
    elif record.summary != output:
        yield f"its output is {record.summary}, and must be {output}"
    yield from _at_turns(set(range(len(messages))) - times.keys(), "the history has no result of ")
    yield from _at_turns((n for n in times if times[n] > 1), "the history has more than one result of ")
    if positions != sorted(positions):
        yield "the history has its results out of order"
    if record.repeated:
        yield f"the history records {record.repeated} results again"
    forgotten = (r.position for r in record.replies if r.digest != dict(enumerate(expected)).get(r.position))
    yield from _at_turns(forgotten, "the worker's memory was not the transcript at ")
    if len(stored) != len(messages):
        yield f"the state has {len(stored)} messages, and must have {len(messages)}"
    other = (n for n, (found, message) in enumerate(zip(stored, messages, strict=False)) if found != message)
    yield from _at_turns(other, "the state has another message at ")


def _lost(record: ConversationRecord) -> int:
    """Turns whose message is not both stored in its place and answered."""
    messages = record.conversation.messages
    answered = {(reply.position, reply.digest) for reply in record.replies}
    stored = {(position, line.message) for position, line in enumerate(record.stored.lines)}
    wanted = enumerate(zip(messages, digests(messages), strict=True))
    return sum((n, digest) not in answered or (n, message) not in stored for n, (message, digest) in wanted)


def _disagreements(record: ConversationRecord) -> Iterator[str]:
    """Where the state and the history disagree, whether or not they match the data set."""
    lines, replies, writes = record.stored.lines, record.replies, record.stored.version
    if len(lines) != len(replies):
        yield f"the state has {counted(len(lines), 'turn')}, and the history of {len(replies)}"
    known = zip(lines, digests([line.message for line in lines]), replies, strict=False)
    wrong = (
        position
        for position, (line, digest, reply) in enumerate(known)
        if (position, digest, *_run_of(line)) != (reply.position, reply.digest, *_run_of(reply))
    )
    yield from _at_turns(wrong, "state and history disagree about ")
    if writes != len(replies):
        yield f"the state was written {counted(writes, 'time')}, for {counted(len(replies), 'result')}"


def _run_of(row: TranscriptLine | TurnReply) -> tuple[str, int, int]:
    return row.worker_id, row.epoch, row.attempt


def _off_holder(record: ConversationRecord, holders: Holders, processes: Mapping[str, int]) -> set[int]:
    """Positions of turns that ran in another process than the worker's, under an epoch of another worker, or under an
    epoch that is older than one before it. An epoch without a known move belongs to the first worker that used it.
    """
    found = {reply.position for reply in record.replies if processes.get(reply.worker_id) != reply.pid}
    seen = dict(holders.get(record.session_id, {}))
    for runs in record.runs:
        newest = 0
        for position, epoch, worker_id in runs:
            if seen.setdefault(epoch, worker_id) != worker_id or epoch < newest:
                found.add(position)
            newest = max(newest, epoch)
    return found


def _at_turns(positions: Iterable[int], before: str, after: str = "") -> Iterator[str]:
    """A sentence about "turns 4, 7, 9 and 2 more", counted from 1; none without positions."""
    if found := sorted(positions):
        shown = ", ".join(str(position + 1) for position in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"{before}turn{'s' if len(found) > 1 else ''} {shown}{more}{after}"
