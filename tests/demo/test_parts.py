"""The parts of the demo, each by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from affinity import Client, open_store
from affinity.demo.app import THINK_SECONDS, Transcript, TranscriptLine, TurnReply, transcripts_of
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
    export_transcripts,
    open_database,
    read_holders,
    schedule,
    sum_of_workers,
)
from affinity.errors import InvalidOptions
from affinity.provider.contract import SessionMove
from affinity.session import SessionFilter
from tests.support.extras import needs

pytestmark = needs("chitchat_dataset")

HELLO, HI, BYE = (ChatMessage("ann", ("hello", "there")), ChatMessage("bob", ("hi",)), ChatMessage("ann", ("bye",)))


# --- conversations ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
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
    with pytest.raises(InvalidOptions, match=r"pip install 'affinity-workflows\[demo\]'"):
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


# --- moves ------------------------------------------------------------------------------------------------------------


class Moves:
    """A client with the moves of some sessions, in short pages."""

    def __init__(self, *moves: tuple[int, str, str]) -> None:
        self._moves = moves

    async def session_moves(self, *, after: int, limit: int) -> Sequence[SessionMove]:
        assert limit >= 2
        return [
            SessionMove(
                session_id=session_id,
                from_worker=None,
                to_worker=worker,
                epoch=epoch,
                reason="new",
                moved_at=datetime.now(UTC),
                queued=0,
                hydrate_seconds=None,
                hydrate_bytes=None,
            )
            for epoch, session_id, worker in self._moves
            if epoch > after
        ][:2]


async def test_holders_come_from_all_moves_of_the_run() -> None:
    moves = Moves((4, "r-chat-1", "z"), (5, "r-chat-1", "a"), (6, "r-chat-2", "b"), (9, "r-chat-1", "b"))
    holders = await read_holders(cast(Client, moves), after=4)
    assert holders == {"r-chat-1": {5: "a", 9: "b"}, "r-chat-2": {6: "b"}}


# --- the database -----------------------------------------------------------------------------------------------------


RUN = "r"


async def test_a_failed_run_keeps_its_transcripts_and_leaves_none(sqlite_url: str, tmp_path: Path) -> None:
    output = StringIO()
    display = Display(Console(file=output))
    transcripts = transcripts_of(RUN)
    async with open_store(sqlite_url) as store:
        async with transcripts_of("another").open("another-chat", store=store) as foreign:
            foreign.add(0, line(HI))
        async with open_database(sqlite_url, ["r-chat-1"], display) as provider:
            async with transcripts.open("r-chat-1", store=store) as transcript:
                transcript.add(0, line(HELLO))
            await export_transcripts(provider, RUN, tmp_path, display)
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
    plan = DemoPlan(run="r", url=None, workers=3, kill=True, seed=0, conversations=chats(*range(101)))
    options = [plan.settings(number, url="").options for number in (1, 2, 3)]
    assert sum(each.max_sessions_per_runtime for each in options[1:]) >= 101
    assert len({each.worker_node_id for each in options}) == 3
