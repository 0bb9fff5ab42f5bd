"""The parts of the demo, each by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import cast

import click
import pytest
from rich.console import Console

from affinity.client import open_store
from affinity.demo.app import THINK_SECONDS, Transcript, TranscriptLine, TurnReply, transcript_kind, transcripts_of
from affinity.demo.conversations import (
    DATASET_SIZE,
    NO_DIGEST,
    ChatMessage,
    Conversation,
    digests,
    extend_digest,
    load_conversations,
)
from affinity.demo.display import Display
from affinity.demo.run import (
    SHORTEST_SECONDS,
    DemoPlan,
    Observer,
    export_transcripts,
    open_database,
    schedule,
    sum_of_workers,
)
from affinity.provider.contract import Incarnation, Provider, SessionInfo, WorkerInfo
from affinity.records import SessionFilter, SessionMetadata, SessionState
from affinity.session import MemorySessionStore

HELLO, HI, BYE = (ChatMessage("ann", ("hello", "there")), ChatMessage("bob", ("hi",)), ChatMessage("ann", ("bye",)))


# --- conversations ----------------------------------------------------------------------------------------------------


def test_a_seed_chooses_conversations_with_an_answer() -> None:
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


def line(message: ChatMessage, worker: str = "a") -> TranscriptLine:
    return TranscriptLine(message, worker, epoch=1, attempt=1)


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


# --- what workers have counted ----------------------------------------------------------------------------------------


def test_counts_of_workers_add_up() -> None:
    """A count only grows, and the last one of a worker is known from its replies, also when it is killed later."""

    def reply(worker: str, hydrations: int, refused: int) -> TurnReply:
        return TurnReply(0, NO_DIGEST, worker, 1, 1, 1, 0.0, hydrations, refused)

    replies = [reply("a", 1, 0), reply("b", 3, 12), reply("a", 10, 0), reply("a", 2, 0)]
    assert sum_of_workers(replies, lambda reply: reply.hydrations) == 13
    assert sum_of_workers(replies, lambda reply: reply.refused) == 12


# --- a look from outside ----------------------------------------------------------------------------------------------


class Table:
    """The parts of a database that an `Observer` looks at."""

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


PLAN = DemoPlan(run="r", url=None, workers=2, kill=False, seed=0)


async def test_a_snapshot_counts_turns_and_moves() -> None:
    table = Table()
    observer = Observer(PLAN, cast(Provider, table))
    await table.turn("r-chat-1", 3, "a", epoch=1)
    await table.turn("r-chat-2", 1, "b", epoch=2)
    await table.turn("s-chat-1", 1, "b", epoch=1)
    assert ((await observer.snapshot()).turns, observer.migrated) == (5, 0)
    await table.turn("r-chat-1", 5, "b", epoch=3)
    snapshot = await observer.snapshot()
    assert (snapshot.turns, observer.migrated) == (7, 1)
    assert observer.holders == {"r-chat-1": {1: "a", 3: "b"}, "r-chat-2": {2: "b"}}
    assert [session.session_id for session in snapshot.held_by("b")] == ["r-chat-1", "r-chat-2"]


# --- the database -----------------------------------------------------------------------------------------------------


async def test_a_failed_run_keeps_its_transcripts_and_leaves_none(sqlite_url: str, tmp_path: Path) -> None:
    output = StringIO()
    display = Display(Console(file=output))
    transcripts = transcripts_of(PLAN.run)
    async with open_store(sqlite_url) as store:
        async with transcripts_of("another").open("another-chat", store=store) as foreign:
            foreign.add(0, line(HI))
        async with open_database(sqlite_url, ["r-chat-1"], display) as provider:
            async with transcripts.open("r-chat-1", store=store) as transcript:
                transcript.add(0, line(HELLO))
            await export_transcripts(provider, PLAN.run, tmp_path, display)
        (kept,) = (tmp_path / "transcripts.jsonl").read_text().splitlines()
        assert json.loads(kept)["state"]["lines"][0]["message"]["sender"] == "ann"
        assert [state.session_id for state in await store.list(SessionFilter(), 10)] == ["another-chat"]
    assert output.getvalue() == ""


# --- pace and capacity ------------------------------------------------------------------------------------------------


def chats(*lengths: int) -> Mapping[str, Conversation]:
    return {str(length): Conversation(f"chat of {length}", (HELLO,) * length) for length in lengths}


def test_every_conversation_has_messages_left_half_way() -> None:
    """So the worker that is killed there has work that others must take over."""
    lengths = (2, 3, 7, 60)
    due = sorted(schedule(chats(*lengths), seed=3))
    assert {session_id for at, session_id in due if at >= SHORTEST_SECONDS / 2} == {str(n) for n in lengths}
    assert 0.0 <= due[0][0] <= due[-1][0] < 60 * THINK_SECONDS * 1.5
    assert len(due) == sum(lengths)


def test_a_replay_is_as_long_as_its_messages_need() -> None:
    assert max(schedule(chats(2), seed=0))[0] < SHORTEST_SECONDS
    assert max(schedule(chats(1000), seed=0))[0] > 1000 * THINK_SECONDS


def test_the_survivors_can_hold_all_sessions() -> None:
    plan = DemoPlan(run="r", url=None, workers=3, kill=True, seed=0)
    options = [plan.settings(number, url="", sessions=101).options for number in (1, 2, 3)]
    assert sum(each.max_sessions_per_runtime for each in options[1:]) >= 101
    assert len({each.worker_node_id for each in options}) == 3
