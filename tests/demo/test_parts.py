"""The parts of the demo, each by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click
import pytest

from affinity.client import open_store
from affinity.demo.app import Line, Transcript, transcript_kind, transcripts_of
from affinity.demo.conversations import (
    DATASET_SIZE,
    NO_DIGEST,
    ChatMessage,
    Conversation,
    digests,
    extend_digest,
    load_conversations,
)
from affinity.demo.database import export_transcripts, open_database
from affinity.demo.display import Display
from affinity.demo.feed import schedule
from affinity.demo.fleet import Fleet
from affinity.demo.plan import SHORTEST_SECONDS, THINK_SECONDS, Plan, replay_seconds
from affinity.demo.run import STALL_SECONDS, _Progress
from affinity.demo.watch import Watch
from affinity.demo.worker import Counts, CountsFile
from affinity.provider.contract import Incarnation, Provider, SessionInfo, WorkerInfo
from affinity.records import SessionFilter, SessionMetadata, SessionState
from affinity.session import CacheStats, MemorySessionStore

HELLO, HI, BYE = (ChatMessage("ann", ("hello", "there")), ChatMessage("bob", ("hi",)), ChatMessage("ann", ("bye",)))


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


# --- the transcript ---------------------------------------------------------------------------------------------------


def line(message: ChatMessage, worker: str = "a") -> Line:
    return Line(message=message, worker_id=worker, epoch=1, attempt=1)


def test_a_transcript_grows_by_one_line_a_turn() -> None:
    transcript = Transcript()
    assert transcript.digest == NO_DIGEST
    transcript.add(0, line(HELLO))
    transcript.add(1, line(HI))
    assert transcript.digest == digests([HELLO, HI])[-1]
    assert Transcript.model_validate_json(transcript.model_dump_json()).digest == transcript.digest


@pytest.mark.parametrize("position", [0, 2])
def test_a_transcript_that_is_not_the_one_before_the_turn(position: int) -> None:
    """The turn is in it already, or one before it is not: the session layer allows neither."""
    transcript = Transcript(lines=[line(HELLO)])
    with pytest.raises(ValueError, match="meets a transcript of 1"):
        transcript.add(position, line(HI))
    assert transcript.lines == [line(HELLO)]


# --- what a worker has counted ----------------------------------------------------------------------------------------


def test_counts_outlive_their_worker_and_add_up(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    a, b, c = map(CountsFile, paths)
    for hydrations in (1, 2, 10):
        a.note(CacheStats(hydrations=hydrations))
    b.note(CacheStats(hydrations=3, conflicts=12))
    assert Counts.read(paths) == Counts(hydrations=13, refused=12), "nobody has closed them"
    for each in (a, b, c):
        each.close()


# --- a look from outside ----------------------------------------------------------------------------------------------


class Table:
    """The parts of a database that a `Watch` looks at."""

    def __init__(self) -> None:
        self.states = MemorySessionStore()
        self.held: dict[str, SessionInfo] = {}

    async def list_workers(self) -> Sequence[WorkerInfo]:
        return []

    async def list_sessions(self, *, after: str, limit: int) -> Sequence[SessionInfo]:
        return [self.held[session_id] for session_id in sorted(self.held) if session_id > after][:limit]

    async def turn(self, session_id: str, messages: int, worker: str, epoch: int) -> None:
        """The worker has taken the session's transcript to so many messages."""
        metadata = SessionMetadata(kind=transcript_kind(PLAN.run), message_count=messages)
        await self.states.save(SessionState(session_id=session_id, state=b"", metadata=metadata), epoch=epoch)
        self.held[session_id] = SessionInfo(
            session_id=session_id,
            worker_id=worker,
            incarnation=Incarnation("i"),
            epoch=epoch,
            held=True,
            expires_in=1.0,
            idle=0.0,
            queued=0,
        )


PLAN = Plan(run="r", url=None, workers=2, kill=False, seed=0)


async def test_turns_are_counted_by_who_ran_them() -> None:
    table = Table()
    watch = Watch(PLAN, cast(Provider, table), Fleet())
    await table.turn("r-chat-1", 3, "a", epoch=1)
    await table.turn("r-chat-2", 1, "b", epoch=2)
    assert dict((await watch.snapshot()).turns_by_worker) == {"a": 3, "b": 1}
    await table.turn("r-chat-1", 5, "b", epoch=3)
    snapshot = await watch.snapshot()
    assert (snapshot.turns, dict(snapshot.turns_by_worker)) == (6, {"a": 3, "b": 3})
    assert [session.session_id for session in snapshot.held_by("b")] == ["r-chat-1", "r-chat-2"]


# --- the database -----------------------------------------------------------------------------------------------------


SILENT = Display(show=lambda _: pytest.fail("shown"), say=pytest.fail)
"""A display that nothing is shown on."""


async def test_a_failed_run_keeps_its_transcripts_and_leaves_none(sqlite_url: str, tmp_path: Path) -> None:
    transcripts = transcripts_of(PLAN.run)
    async with open_store(sqlite_url) as store:
        async with transcripts_of("another").open("another-chat", store=store) as foreign:
            foreign.add(0, line(HI))
        async with open_database(sqlite_url, ["r-chat-1"], SILENT) as provider:
            async with transcripts.open("r-chat-1", store=store) as transcript:
                transcript.add(0, line(HELLO))
            await export_transcripts(provider, PLAN.run, tmp_path, SILENT)
        (kept,) = (tmp_path / "transcripts.jsonl").read_text().splitlines()
        assert json.loads(kept)["state"]["lines"][0]["message"]["sender"] == "ann"
        assert [state.session_id for state in await store.list(SessionFilter(), 10)] == ["another-chat"]


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
    settings = [plan.settings(name, url="", counts=Path(), sessions=101) for name in plan.worker_names]
    options = [each.options for each in settings]
    assert sum(each.max_sessions_per_runtime for each in options[1:]) >= 101
    assert len({each.worker_node_id for each in options}) == 3


def test_a_run_in_which_nothing_goes_on_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("affinity.demo.run.time.monotonic", lambda: now)
    progress = _Progress()
    assert not progress.stalled_at(0)
    now = STALL_SECONDS
    assert not progress.stalled_at(0)
    assert not progress.stalled_at(1)
    now = 2 * STALL_SECONDS + 1.0
    assert progress.stalled_at(1)
