"""Verification: pure functions that compare the records of a run with the data set, and with each other.

    the history      the result of every turn: `Record.replies`
    the output       the result of the orchestration: `Record.summary`
    the state        the transcript of the session: `Record.stored`

A turn is *lost* unless its message is at its place in the state, and a reply to it, with the digest that the transcript
must have there, is in the history. State and history *agree* if each line of the state was added by the same run of the
turn (worker, epoch, attempt) whose result is in the history, and the state was written once for each result.
A turn ran *off its holder* if the ``sessions`` table had another worker for its session at its epoch, if two processes
worked under one epoch, or if an older epoch came after a newer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from affinity.demo.app import Line, Reply, StoredTranscript, Summary
from affinity.demo.conversations import Conversation, digests
from affinity.demo.display import counted

Holders: TypeAlias = Mapping[str, Mapping[int, str]]
"""The workers that the ``sessions`` table named: by session, then by epoch."""

_Run: TypeAlias = tuple[int, int, str]
"""Position, epoch and worker of a turn."""

SHOWN: Final = 3
"""Differences of one kind that are shown for one conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The histories and states of one conversation, as a run left them."""

    session_id: str
    conversation: Conversation
    replies: Sequence[Reply]  # in the order of the history
    repeated: int = 0  # results in the history of turns that had one already
    faults: Sequence[str] = ()  # other failures, from the history or the instance
    summary: Summary | None  # None: the orchestration did not complete
    stored: StoredTranscript


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

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.differences or self.lost_turns or self.duplicated_results or self.turns_off_holder)


def verify(records: Sequence[Record], holders: Holders, processes: Mapping[str, int]) -> Verdict:
    """Compare all records with the data set and with each other.

    Args:
        records: one for each conversation.
        holders: the workers that the ``sessions`` table named.
        processes: process ids by worker.
    """
    differences = [[*_differences(record)] for record in records]
    disagreements = [[*_disagreements(record)] for record in records]
    off_holder = [_off_holder(record, holders, processes) for record in records]
    moved = [[*_at_turns(turns, "", " ran on a worker that did not hold the session")] for turns in off_holder]
    return Verdict(
        transcripts_verified=differences.count([]),
        states_agreed=disagreements.count([]),
        lost_turns=sum(len(_lost(record)) for record in records),
        duplicated_results=sum(record.repeated + _answered_again(record) for record in records),
        turns_off_holder=sum(map(len, off_holder)),
        migrated_sessions=sum(len({worker_id for *_, worker_id in chain(*_runs(record))}) > 1 for record in records),
        differences=tuple(
            f"conversation {record.conversation.id}: {text}"
            for found in (differences, disagreements, moved)
            for record, texts in zip(records, found, strict=True)
            for text in texts
        ),
    )


def recovery_seconds(
    records: Iterable[Record], *, killed: str, killed_at: float, orphans: Iterable[str]
) -> float | None:
    """Seconds from the kill until the last orphaned session with work left was served elsewhere.

    Args:
        records: of all conversations.
        killed: the worker that was killed.
        killed_at: Unix seconds.
        orphans: the sessions that it held when it died.

    Returns:
        None when no orphan had work left.
    """
    orphaned = set(orphans)
    served = [
        [r.answered_at for r in record.replies if r.worker_id != killed and r.answered_at > killed_at]
        for record in records
        if record.session_id in orphaned
    ]
    return max((min(times) - killed_at for times in served if times), default=None)


def _differences(record: Record) -> Iterator[str]:
    """How one conversation differs from the data set, for people."""
    messages, stored = record.conversation.messages, [line.message for line in record.stored.lines]
    expected = dict(enumerate(digests(messages)))
    output = Summary(len(expected), expected[len(expected) - 1])
    positions = [reply.position for reply in record.replies]
    times = Counter(positions)
    yield from record.faults
    if record.summary != output:
        wrong = f"its output is {record.summary}, and must be {output}"
        yield wrong if record.summary is not None else "it did not complete"
    yield from _at_turns(expected.keys() - times, "the history has no result of ")
    yield from _at_turns((n for n in times if times[n] > 1), "the history has more than one result of ")
    if positions != sorted(positions):
        yield "the history has its results out of order"
    if record.repeated:
        yield f"the history records {record.repeated} results again"
    forgotten = (reply.position for reply in record.replies if expected.get(reply.position) != reply.digest)
    yield from _at_turns(forgotten, "the worker's memory was not the transcript at ")
    if len(stored) != len(messages):
        yield f"the state has {len(stored)} messages, and must have {len(messages)}"
    other = (n for n, (found, message) in enumerate(zip(stored, messages, strict=False)) if found != message)
    yield from _at_turns(other, "the state has another message at ")


def _lost(record: Record) -> Sequence[int]:
    """Positions whose message is not both stored in its place and answered."""
    expected = digests(record.conversation.messages)
    answered = {(reply.position, reply.digest) for reply in record.replies}
    stored = {(position, line.message) for position, line in enumerate(record.stored.lines)}
    return [
        position
        for position, message in enumerate(record.conversation.messages)
        if (position, expected[position]) not in answered or (position, message) not in stored
    ]


def _answered_again(record: Record) -> int:
    return len(record.replies) - len({reply.position for reply in record.replies})


def _disagreements(record: Record) -> Iterable[str]:
    """Where the state and the history disagree, whether or not they match the data set."""
    lines, replies = record.stored.lines, record.replies
    if len(lines) != len(replies):
        yield f"the state has {counted(len(lines), 'turn')}, and the history of {len(replies)}"
    known = digests([line.message for line in lines])
    wrong = (
        position
        for position, (line, digest, reply) in enumerate(zip(lines, known, replies, strict=False))
        if (position, digest, *_run_of(line)) != (reply.position, reply.digest, *_run_of(reply))
    )
    yield from _at_turns(wrong, "state and history disagree about ")
    if record.stored.version != len(replies):
        yield f"the state was written {counted(record.stored.version, 'time')}, for {counted(len(replies), 'result')}"


def _run_of(row: Line | Reply) -> tuple[str, int, int]:
    """The run of a turn."""
    return row.worker_id, row.epoch, row.attempt


def _runs(record: Record) -> tuple[Sequence[_Run], Sequence[_Run]]:
    """By the history, and by the state."""
    return (
        [(reply.position, reply.epoch, reply.worker_id) for reply in record.replies],
        [(position, line.epoch, line.worker_id) for position, line in enumerate(record.stored.lines)],
    )


def _off_holder(record: Record, holders: Holders, processes: Mapping[str, int]) -> set[int]:
    """Positions of turns that ran in another process than the worker's, under an epoch of another worker, or under an
    epoch that is older than one before it.

    An epoch for which the table named no worker belongs to the first worker that used it.
    """
    found = {reply.position for reply in record.replies if processes.get(reply.worker_id) != reply.pid}
    seen = dict(holders.get(record.session_id, {}))
    for runs in _runs(record):
        newest = 0
        for position, epoch, worker_id in runs:
            if seen.setdefault(epoch, worker_id) != worker_id or epoch < newest:
                found.add(position)
            newest = max(newest, epoch)
    return found


def _at_turns(positions: Iterable[int], before: str, after: str = "") -> Iterator[str]:
    """A sentence about "turns 4, 7, 9 and 2 more", counted from 1; none without positions."""
    found = sorted(positions)
    if found:
        shown = ", ".join(str(position + 1) for position in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"{before}turn{'s' if len(found) > 1 else ''} {shown}{more}{after}"
