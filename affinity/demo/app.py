"""The application of the demo: a conversation is an orchestration, and each of its messages a turn on its session.

The transcript is the state of the session. It is in the memory of the worker that holds the session, and commits in the
same transaction as the result of each turn. So a turn that runs again, after a kill or a refused write, starts from a
transcript without its line, and adds it. The code needs no check for lines that are there already.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import reduce
from typing import Final

import anyio
from pydantic import BaseModel

from affinity.composed.app import App
from affinity.demo.conversations import NO_DIGEST, ChatMessage, extend_digest
from affinity.errors import SessionLoadFailed
from affinity.orchestration import ActivityContext, OrchestrationContext, RetryPolicy
from affinity.records import SessionMetadata, SessionStore
from affinity.session import Sessions

EVENT: Final = "message"  # name of the external event that carries a message
THINK_SECONDS: Final = 0.05  # duration of a turn without its bookkeeping; it stands for the time of a model

RETRY: Final = RetryPolicy(max_attempts=5, initial_interval=0.1, non_retryable=(ValueError,))
"""A turn that cannot open its transcript is retried. A turn that finds a wrong transcript is not."""


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """One message of a transcript, and the turn that added it."""

    message: ChatMessage
    worker_id: str
    epoch: int
    attempt: int


class Transcript(BaseModel):
    """The state of a session: its messages in order."""

    lines: list[TranscriptLine] = []

    def add(self, position: int, line: TranscriptLine) -> None:
        """Append the line of a turn.

        Raises:
            ValueError: the transcript is not that before this turn, so state and history disagree.
        """
        if position != len(self.lines):
            raise ValueError(f"message {position + 1} meets a transcript of {len(self.lines)}")
        self.lines.append(line)

    @property
    def digest(self) -> str:
        """Digest of all lines."""
        return reduce(extend_digest, (line.message for line in self.lines), NO_DIGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTranscript:
    """A transcript as the database has it."""

    version: int = 0  # number of writes
    lines: tuple[TranscriptLine, ...] = ()
    error: str | None = None  # why it cannot be read


def transcripts_of(run: str, *, max_sessions: int = 1) -> Sessions[Transcript]:
    """The transcripts of a run; up to ``max_sessions`` are in memory."""
    return Sessions(
        Transcript,
        kind=f"{run}.transcript",
        metadata=lambda transcript: SessionMetadata(message_count=len(transcript.lines)),
        max_sessions=max_sessions,
    )


async def read_transcript(transcripts: Sessions[Transcript], store: SessionStore, session_id: str) -> StoredTranscript:
    """The transcript of a session in the database; an empty one when there is no record, or none that can be read."""
    opening = transcripts.open(session_id, store=store, auto_save=False)
    try:
        async with opening as transcript:
            return StoredTranscript(version=opening.version, lines=tuple(transcript.lines))
    except SessionLoadFailed as error:
        return StoredTranscript(error=str(error))


@dataclass(frozen=True, slots=True)
class TurnInput:
    """Input of a turn."""

    position: int  # of the message in its conversation, from 0
    message: ChatMessage


@dataclass(frozen=True, slots=True)
class TurnReply:
    """Result of a turn: the worker that ran it, and what it had in memory."""

    position: int
    digest: str  # of the transcript in its memory, up to this message
    worker_id: str
    epoch: int
    attempt: int
    pid: int
    answered_at: float  # Unix seconds
    hydrations: int = 0  # of this worker so far: transcripts that it has read, or begun where there was none
    refused: int = 0  # of this worker so far: writes that the fence refused, or whose result is unknown


@dataclass(frozen=True, slots=True)
class Summary:
    """Output of a conversation."""

    turns: int
    digest: str  # of the last reply


def orchestration_name(run: str) -> str:
    """The orchestration of a run. Runs that share a database must not run each other's conversations."""
    return f"{run}.conversation"


def build_app(run: str, transcripts: Sessions[Transcript]) -> App:
    """The application of one run."""
    app = App(run)
    app.include(transcripts)

    @app.activity(name=f"{run}.turn")
    async def turn(ctx: ActivityContext, said: TurnInput) -> TurnReply:
        assert ctx.session_epoch is not None, "turns are bound to a session"
        where = ctx.worker_id, ctx.session_epoch, ctx.attempt
        async with transcripts.open(ctx) as transcript:
            transcript.add(said.position, TranscriptLine(said.message, *where))
            await anyio.sleep(THINK_SECONDS)
            digest, stats = transcript.digest, transcripts.stats
        return TurnReply(said.position, digest, *where, os.getpid(), time.time(), stats.hydrations, stats.conflicts)

    @app.orchestration(name=orchestration_name(run))
    async def conversation(ctx: OrchestrationContext, messages: int) -> Summary:
        digest = NO_DIGEST
        for position in range(messages):
            message = await ctx.schedule_wait(EVENT, ChatMessage)
            work = ctx.schedule_activity(turn, TurnInput(position, message), retry=RETRY)
            digest = (await work.on_session(ctx.instance_id)).digest
        return Summary(messages, digest)

    return app
