"""The parts of the demo, each by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from affinity.cli.demo.app import Transcript
from affinity.cli.demo.conversations import (
    DATASET_SIZE,
    NO_DIGEST,
    Conversation,
    Message,
    digests,
    extend_digest,
    load_conversations,
)
from affinity.cli.demo.feed import schedule
from affinity.cli.demo.plan import SHORTEST_SECONDS, THINK_SECONDS, Plan, replay_seconds
from affinity.cli.demo.run import STALL_SECONDS, _Progress
from affinity.cli.demo.store import Line, StaleTranscriptError, TranscriptStore

HELLO, HI, BYE = (Message("ann", ("hello", "there")), Message("bob", ("hi",)), Message("ann", ("bye",)))


def line(position: int, message: Message, *, epoch: int = 1, worker: str = "a") -> Line:
    return Line(position=position, epoch=epoch, worker_id=worker, message=message)


# --- conversations ----------------------------------------------------------------------------------------------------


def test_a_seed_chooses_conversations_in_which_somebody_answered() -> None:
    chosen = load_conversations(20, seed=1)
    assert chosen == load_conversations(20, seed=1)
    assert chosen != load_conversations(20, seed=2)
    assert len({conversation.id for conversation in chosen}) == 20
    assert all(len(conversation.messages) > 1 for conversation in chosen)


def test_all_of_the_data_set_can_be_had() -> None:
    everything = load_conversations(DATASET_SIZE, seed=0)
    assert len({conversation.id for conversation in everything}) == DATASET_SIZE
    assert all(conversation.messages for conversation in everything)


def test_a_data_set_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chitchat_dataset", None)
    with pytest.raises(click.ClickException, match=r"pip install 'affinity\[demo\]'"):
        load_conversations(1, seed=0)


def test_a_digest_depends_on_every_message_and_on_their_order() -> None:
    assert len({digests(said)[-1] for said in [(HELLO, HI), (HI, HELLO), (HELLO,), (HELLO, HI, HI), (HELLO, BYE)]}) == 5
    assert digests([HELLO, HI]) == [extend_digest(NO_DIGEST, HELLO), digests([HELLO, HI])[1]]


# --- the transcript in memory -----------------------------------------------------------------------------------------


def test_a_turn_that_runs_again_adds_nothing() -> None:
    transcript = Transcript()
    transcript.add(line(0, HELLO))
    transcript.add(line(1, HI))
    transcript.add(line(1, HI, epoch=2, worker="b"))
    assert [said.worker_id for said in transcript.lines] == ["a", "a"]
    assert transcript.digests == digests([HELLO, HI])


def test_a_transcript_has_no_gaps_and_is_not_rewritten() -> None:
    transcript = Transcript()
    transcript.add(line(0, HELLO))
    with pytest.raises(ValueError, match="some are missing"):
        transcript.add(line(2, BYE))
    with pytest.raises(ValueError, match="another message"):
        transcript.add(line(0, HI))


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "transcripts.db"
    TranscriptStore.create(file).close()
    return file


def test_what_one_worker_checkpoints_another_hydrates(path: Path) -> None:
    a, b = TranscriptStore(path, "a"), TranscriptStore(path, "b")
    assert a.hydrate("s") == []
    a.append("s", [line(0, HELLO)])
    a.append("s", [line(1, HI)])
    assert b.hydrate("s") == [line(0, HELLO), line(1, HI)]
    b.append("s", [line(2, BYE, epoch=2, worker="b")])
    assert a.turns() == {"a": 2, "b": 1}
    assert a.hydrations() == 2
    assert list(a.transcripts()) == ["s"]
    a.close()
    b.close()


def test_a_worker_that_was_left_behind_is_refused(path: Path) -> None:
    """Paused while its sessions moved, it goes on where it was."""
    a = TranscriptStore(path, "a")
    a.append("s", [line(0, HELLO)])
    a.append("s", [line(1, HI, epoch=2, worker="b")])
    for late in (line(1, BYE), line(2, BYE), line(3, BYE, epoch=3)):
        with pytest.raises(StaleTranscriptError, match="another worker has the session"):
            a.append("s", [late])
    assert [said.message for said in a.hydrate("s")] == [HELLO, HI]
    a.close()


def test_a_checkpoint_is_all_or_nothing(path: Path) -> None:
    store = TranscriptStore(path, "a")
    with pytest.raises(StaleTranscriptError):
        store.append("s", [line(0, HELLO), line(2, BYE)])
    assert store.hydrate("s") == []
    store.close()


# --- pace and capacity ------------------------------------------------------------------------------------------------


def chat(messages: int) -> Conversation:
    return Conversation(f"chat of {messages}", (HELLO,) * messages)


def test_every_dialogue_has_something_left_to_say_half_way() -> None:
    """So the worker that is killed there has work that others must take over."""
    lengths = (2, 3, 7, 100)
    due = sorted(schedule({str(n): chat(n) for n in lengths}, 10.0, seed=3))
    assert {session_id for at, session_id in due if at >= 5.0} == {str(n) for n in lengths}
    assert all(0.0 <= at <= 10.0 for at, _ in due)
    assert len(due) == sum(lengths)


def test_a_replay_is_as_long_as_its_messages_need() -> None:
    assert replay_seconds([chat(2)]) == SHORTEST_SECONDS
    assert replay_seconds([chat(1000)]) > 1000 * THINK_SECONDS


def test_the_survivors_can_hold_all_sessions() -> None:
    plan = Plan(run="r", url=None, workers=3, kill=True, seed=0)
    settings = [plan.settings(name, url="", store=Path(), sessions=101) for name in plan.worker_names]
    options = [each.options for each in settings]
    assert sum(each.max_sessions_per_runtime for each in options[1:]) >= 101
    assert len({each.worker_node_id for each in options}) == 3


def test_a_run_in_which_nothing_goes_on_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("affinity.cli.demo.run.time.monotonic", lambda: now)
    progress = _Progress()
    assert not progress.stalled_at(0)
    now = STALL_SECONDS
    assert not progress.stalled_at(0)
    assert not progress.stalled_at(1)
    now = 2 * STALL_SECONDS + 1.0
    assert progress.stalled_at(1)
