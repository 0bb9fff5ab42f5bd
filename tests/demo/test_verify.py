"""Every way in which a run can be wrong is found, and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinity.demo.app import StoredTranscript, Summary, TranscriptLine, TurnReply
from affinity.demo.conversations import ChatMessage, Conversation, digests
from affinity.demo.verify import ConversationRecord, Holders, Verdict, recovery_seconds, verify

PROCESSES = {"a": 1, "b": 2}
CHAT = Conversation("chat", tuple(ChatMessage("me" if n % 2 else "you", (f"text {n}",)) for n in range(6)))


def reply(position: int, worker: str = "a", epoch: int = 1) -> TurnReply:
    return TurnReply(
        position=position,
        digest=digests(CHAT.messages)[position],
        worker_id=worker,
        pid=PROCESSES[worker],
        epoch=epoch,
        attempt=1,
        answered_at=100.0 + position,
    )


def line(position: int, worker: str = "a", epoch: int = 1) -> TranscriptLine:
    return TranscriptLine(CHAT.messages[position], worker, epoch, 1)


def stored(*lines: TranscriptLine) -> StoredTranscript:
    return StoredTranscript(version=len(lines), lines=lines)


def record(where: Sequence[tuple[str, int]] = (("a", 1),) * 6) -> ConversationRecord:
    """A conversation as it must be, with its turns at these workers and epochs."""
    return ConversationRecord(
        session_id="s",
        conversation=CHAT,
        replies=[reply(position, *at) for position, at in enumerate(where)],
        summary=Summary(6, digests(CHAT.messages)[-1]),
        stored=stored(*(line(position, *at) for position, at in enumerate(where))),
    )


MOVED = record([("a", 1)] * 3 + [("b", 2)] * 3)


def judge(judged: ConversationRecord, holders: Holders | None = None) -> Verdict:
    return verify([judged], holders or {}, PROCESSES)


def without(rows: Sequence[TurnReply], position: int) -> Sequence[TurnReply]:
    return [row for row in rows if row.position != position]


def test_a_good_record_is_verified() -> None:
    assert judge(record()) == Verdict(
        transcripts_verified=1,
        states_agreed=1,
        lost_turns=0,
        duplicated_results=0,
        turns_off_holder=0,
        migrated_sessions=0,
    )


def test_a_move_is_counted_and_is_no_fault() -> None:
    verdict = judge(MOVED, {"s": {1: "a", 2: "b"}})
    assert verdict.differences == ()
    assert verdict.migrated_sessions == 1


def test_a_turn_that_ran_again_is_no_fault() -> None:
    """Killed in the middle of it: state and history both know of the second run alone."""
    lines, replies = list(MOVED.stored.lines), list(MOVED.replies)
    lines[3], replies[3] = replace(lines[3], attempt=2), replace(replies[3], attempt=2)
    assert judge(replace(MOVED, replies=replies, stored=stored(*lines))).differences == ()


# --- lost ------------------------------------------------------------------------------------------------------------


def test_a_result_that_is_missing() -> None:
    verdict = judge(replace(record(), replies=without(record().replies, 2)))
    assert (verdict.lost_turns, verdict.transcripts_verified, verdict.states_agreed) == (1, 0, 0)
    assert verdict.differences[0] == "conversation chat: the history has no result of turn 3"


def test_a_message_that_is_not_stored() -> None:
    verdict = judge(replace(record(), stored=stored(*record().stored.lines[:-1])))
    assert (verdict.lost_turns, verdict.transcripts_verified, verdict.states_agreed) == (1, 0, 0)
    assert verdict.differences == (
        "conversation chat: the state has 5 messages, and must have 6",
        "conversation chat: the state has 5 turns, and the history of 6",
        "conversation chat: the state was written 5 times, for 6 results",
    )


def test_a_message_that_is_missing_in_the_middle_of_the_state() -> None:
    verdict = judge(replace(record(), stored=stored(*(line(n) for n in (0, 1, 3, 4, 5)))))
    assert verdict.lost_turns == 4
    assert "the state has another message at turns 3, 4, 5" in verdict.differences[1]
    assert verdict.states_agreed == 0


def test_a_memory_that_was_not_the_transcript() -> None:
    """The worker answered without knowing what had been said before."""
    forgetful = replace(reply(4), digest=digests(CHAT.messages[4:5])[0])
    verdict = judge(replace(record(), replies=[*record().replies[:4], forgetful, reply(5)]))
    assert verdict.lost_turns == 1
    assert verdict.differences == (
        "conversation chat: the worker's memory was not the transcript at turn 5",
        "conversation chat: state and history disagree about turn 5",
    )


def test_a_conversation_of_which_nothing_is_left() -> None:
    verdict = judge(
        replace(record(), replies=[], stored=StoredTranscript(), summary=None, faults=["its instance is gone"])
    )
    assert (verdict.lost_turns, verdict.transcripts_verified) == (6, 0)
    assert any("did not complete" in text for text in verdict.differences)
    assert any("instance is gone" in text for text in verdict.differences)


def test_a_wrong_output() -> None:
    verdict = judge(replace(record(), summary=Summary(6, "other")))
    assert (verdict.lost_turns, verdict.transcripts_verified) == (0, 0)
    assert "its output is Summary(turns=6, digest='other')" in verdict.differences[0]


# --- twice, and out of order -----------------------------------------------------------------------------------------


def test_a_turn_with_two_results() -> None:
    """The orchestration scheduled it twice."""
    verdict = judge(replace(record(), replies=[*record().replies[:3], reply(2), *record().replies[3:]]))
    assert (verdict.duplicated_results, verdict.transcripts_verified) == (1, 0)
    assert verdict.differences[0] == "conversation chat: the history has more than one result of turn 3"


def test_a_result_that_is_recorded_twice() -> None:
    verdict = judge(replace(record(), repeated=2))
    assert (verdict.duplicated_results, verdict.transcripts_verified) == (2, 0)


def test_a_message_that_is_stored_twice() -> None:
    """A turn was applied twice, and has one result."""
    verdict = judge(replace(record(), stored=stored(*record().stored.lines, line(5))))
    assert (verdict.lost_turns, verdict.transcripts_verified, verdict.states_agreed) == (0, 0, 0)
    assert verdict.differences[0] == "conversation chat: the state has 7 messages, and must have 6"


def test_results_out_of_order() -> None:
    shuffled = [record().replies[n] for n in (0, 2, 1, 3, 4, 5)]
    verdict = judge(replace(record(), replies=shuffled))
    assert verdict.transcripts_verified == 0
    assert verdict.differences == (
        "conversation chat: the history has its results out of order",
        "conversation chat: state and history disagree about turns 2, 3",
    )


def test_messages_out_of_order() -> None:
    verdict = judge(replace(record(), stored=stored(*(line(n) for n in (0, 2, 1, 3, 4, 5)))))
    assert (verdict.lost_turns, verdict.transcripts_verified, verdict.states_agreed) == (2, 0, 0)


# --- state and history ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doctored", [line(3, "a", 1), line(3, "b", 3), replace(line(3, "b", 2), attempt=2)])
def test_a_state_that_another_run_of_the_turn_has_written(doctored: TranscriptLine) -> None:
    """Written by a run whose result is not the one in the history: they did not commit together."""
    lines = MOVED.stored.lines
    verdict = judge(replace(MOVED, stored=stored(*lines[:3], doctored, *lines[4:])))
    assert verdict.differences[0] == "conversation chat: state and history disagree about turn 4"
    assert (verdict.lost_turns, verdict.states_agreed) == (0, 0)


def test_a_state_that_was_written_without_a_result() -> None:
    """The lines are right, and still somebody has written once more than there are results."""
    verdict = judge(replace(record(), stored=replace(record().stored, version=7)))
    assert verdict.differences == ("conversation chat: the state was written 7 times, for 6 results",)
    assert (verdict.transcripts_verified, verdict.states_agreed) == (1, 0)


def test_a_state_and_a_history_that_are_wrong_alike_agree() -> None:
    """Against the data set they are lost; against each other there is nothing to say."""
    short = replace(record(), replies=record().replies[:-1], stored=stored(*record().stored.lines[:-1]))
    verdict = judge(short)
    assert (verdict.lost_turns, verdict.transcripts_verified, verdict.states_agreed) == (1, 0, 1)


# --- off the holder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["replies", "stored"])
def test_two_workers_at_one_epoch(rows: str) -> None:
    wrong = record([("a", 1)] * 4 + [("b", 1), ("a", 1)])
    verdict = judge(replace(record(), **{rows: getattr(wrong, rows)}))
    assert verdict.turns_off_holder == 1
    assert verdict.differences == (
        "conversation chat: state and history disagree about turn 5",
        "conversation chat: turn 5 ran on a worker that did not hold the session",
    )
    assert verdict.transcripts_verified == 1, "the transcript itself is right"


def test_an_older_epoch_after_a_newer_one() -> None:
    verdict = judge(record([("a", 1)] * 2 + [("b", 2)] * 2 + [("a", 1), ("b", 2)]))
    assert verdict.turns_off_holder == 1


def test_a_worker_to_which_the_session_has_not_moved() -> None:
    """All records agree with each other, and the log of moves says otherwise."""
    assert judge(record(), {"s": {1: "b"}}).turns_off_holder == 6


def test_a_process_that_is_not_the_worker() -> None:
    impostor = replace(reply(3), pid=99)
    assert judge(replace(record(), replies=[*record().replies[:3], impostor, reply(4), reply(5)])).turns_off_holder == 1


# --- recovery --------------------------------------------------------------------------------------------------------


def test_recovery_is_that_of_the_last_orphan_to_be_served() -> None:
    late = replace(MOVED, session_id="t", replies=[*MOVED.replies[:3], replace(reply(3, "b", 2), answered_at=106.5)])
    recovered = recovery_seconds([MOVED, late], killed="a", killed_at=102.5, orphans=["s", "t"])
    assert recovered == pytest.approx(4.0)


def test_turns_elsewhere_before_the_kill_are_no_recovery() -> None:
    """The session had moved to the worker that was killed then."""
    moved_twice = record([("b", 1)] * 2 + [("a", 2)] * 2 + [("b", 3)] * 2)
    assert recovery_seconds([moved_twice], killed="a", killed_at=103.5, orphans=["s"]) == pytest.approx(0.5)


def test_sessions_of_others_and_finished_ones_do_not_count() -> None:
    other = replace(record([("b", 1)] * 6), session_id="t")
    assert recovery_seconds([record(), other], killed="a", killed_at=102.5, orphans=["s"]) is None


def test_many_positions_are_shortened() -> None:
    verdict = judge(replace(record(), replies=[]))
    assert verdict.differences[0] == "conversation chat: the history has no result of turns 1, 2, 3 and 3 more"
