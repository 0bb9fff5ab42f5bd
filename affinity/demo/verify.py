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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from affinity.demo.app import Line, Reply, StoredTranscript, Summary
from affinity.demo.conversations import Conversation, digests
from affinity.demo.display import counted

Holders: TypeAlias = Mapping[str, Mapping[int, str]]
"""The workers that the ``sessions`` table named: by session, then by epoch."""

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


class _Sighting(NamedTuple):
    """The worker and epoch of a turn, from one of the records."""

    position: int
    epoch: int
    worker_id: str


def verify(records: Sequence[Record], holders: Holders, processes: Mapping[str, int]) -> Verdict:
    """Compare all records with the data set and with each other.

    Args:
        records: one for each conversation.
        holders: the workers that the ``sessions`` table named.
        processes: process ids by worker.
    """
    differences = [_differences(record) for record in records]
    disagreements = [[f"{_title(record)}: {text}" for text in _disagreements(record)] for record in records]
    off_holder = [_off_holder(record, holders, processes) for record in records]
    moved = [
        f"{_title(record)}: {_listed('turn', turns)} ran on a worker that did not hold the session"
        for record, turns in zip(records, off_holder, strict=True)
        if turns
    ]
    return Verdict(
        transcripts_verified=sum(not found for found in differences),
        states_agreed=sum(not found for found in disagreements),
        lost_turns=sum(len(_lost(record)) for record in records),
        duplicated_results=sum(record.repeated + _answered_again(record) for record in records),
        turns_off_holder=sum(len(turns) for turns in off_holder),
        migrated_sessions=sum(_has_moved(record) for record in records),
        differences=(*chain.from_iterable(differences), *chain.from_iterable(disagreements), *moved),
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


def _differences(record: Record) -> Sequence[str]:
    """How one conversation differs from the data set, for people."""
    expected = digests(record.conversation.messages)
    found = list(record.faults)
    if record.summary is None:
        found.append("it did not complete")
    elif record.summary != Summary(len(expected), expected[-1]):
        found.append(f"its output is {record.summary}, and must be {Summary(len(expected), expected[-1])}")
    found += _history_differences(record, expected)
    found += _state_differences(record)
    return [f"{_title(record)}: {text}" for text in found]


def _history_differences(record: Record, expected: Sequence[str]) -> Iterable[str]:
    positions = [reply.position for reply in record.replies]
    if positions != list(range(len(expected))):
        missing = sorted(set(range(len(expected))) - set(positions))
        if missing:
            yield f"the history has no result of {_listed('turn', missing)}"
        again = sorted(position for position, times in Counter(positions).items() if times > 1)
        if again:
            yield f"the history has more than one result of {_listed('turn', again)}"
        if positions != sorted(positions):
            yield "the history has its results out of order"
    if record.repeated:
        yield f"the history records {record.repeated} results again"
    wrong = [r.position for r in record.replies if r.position >= len(expected) or r.digest != expected[r.position]]
    if wrong:
        yield f"the worker's memory was not the transcript at {_listed('turn', wrong)}"


def _state_differences(record: Record) -> Iterable[str]:
    messages = record.conversation.messages
    stored = [line.message for line in record.stored.lines]
    if len(stored) != len(messages):
        yield f"the state has {len(stored)} messages, and must have {len(messages)}"
    wrong = [n for n, (is_, must_be) in enumerate(zip(stored, messages, strict=False)) if is_ != must_be]
    if wrong:
        yield f"the state has another message at {_listed('turn', wrong)}"


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
    wrong = [
        position
        for position, (line, digest, reply) in enumerate(zip(lines, known, replies, strict=False))
        if (position, digest, *_run_of(line)) != (reply.position, reply.digest, *_run_of(reply))
    ]
    if wrong:
        yield f"state and history disagree about {_listed('turn', wrong)}"
    if record.stored.version != len(replies):
        yield f"the state was written {counted(record.stored.version, 'time')}, for {counted(len(replies), 'result')}"


def _run_of(row: Line | Reply) -> tuple[str, int, int]:
    """The run of a turn."""
    return row.worker_id, row.epoch, row.attempt


def _sightings(record: Record) -> tuple[Sequence[_Sighting], Sequence[_Sighting]]:
    """By the history, and by the state."""
    return (
        [_Sighting(reply.position, reply.epoch, reply.worker_id) for reply in record.replies],
        [_Sighting(position, line.epoch, line.worker_id) for position, line in enumerate(record.stored.lines)],
    )


def _has_moved(record: Record) -> bool:
    return len({sighting.worker_id for sighting in chain(*_sightings(record))}) > 1


def _off_holder(record: Record, holders: Holders, processes: Mapping[str, int]) -> Sequence[int]:
    """Positions of turns that ran on a worker that did not hold their session."""
    found = {reply.position for reply in record.replies if processes.get(reply.worker_id) != reply.pid}
    seen = dict(holders.get(record.session_id, {}))
    return sorted(found.union(*(_misplaced(sightings, seen) for sightings in _sightings(record))))


def _misplaced(sightings: Iterable[_Sighting], seen: dict[int, str]) -> set[int]:
    """Positions under an epoch that is another worker's, or that is older than one before it.

    An epoch that is not in ``seen`` belongs to the first worker that used it, and is added there.
    """
    found: set[int] = set()
    newest = 0
    for position, epoch, worker_id in sightings:
        if seen.setdefault(epoch, worker_id) != worker_id or epoch < newest:
            found.add(position)
        newest = max(newest, epoch)
    return found


def _title(record: Record) -> str:
    return f"conversation {record.conversation.id}"


def _listed(what: str, positions: Sequence[int]) -> str:
    """Words like "turns 4, 7, 9 and 2 more"; people count from 1."""
    shown = ", ".join(str(position + 1) for position in positions[:SHOWN])
    more = f" and {len(positions) - SHOWN} more" if len(positions) > SHOWN else ""
    return f"{what}{'s' if len(positions) > 1 else ''} {shown}{more}"
