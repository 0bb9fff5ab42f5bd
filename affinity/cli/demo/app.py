"""The application that the demo runs: a conversation is an orchestration, each of its messages a turn on its session.

The transcript lives in the memory of the worker that holds the session. It comes from the store when a worker has the
session for the first time, and each turn's checkpoint adds to the store what was said in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from affinity.cli.demo.conversations import NO_DIGEST, Message, extend_digest
from affinity.cli.demo.store import Line, TranscriptStore
from affinity.orchestration import ActivityContext, App, OrchestrationContext, RetryPolicy
from affinity.session import SessionCache

EVENT: Final = "message"
"""Name of the external event that carries a message."""

PATIENCE: Final = RetryPolicy(max_attempts=5, initial_interval=0.1)
"""A turn whose checkpoint was refused hydrates again and tries once more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Input of a turn."""

    position: int  # of the message in its conversation, from 0
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Result of a turn: what the worker knew, and which worker it was."""

    position: int
    digest: str  # of the transcript in its memory, up to this message
    worker_id: str
    pid: int
    epoch: int
    attempt: int
    answered_at: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """Output of a conversation."""

    turns: int
    digest: str  # of the last reply


@dataclass(slots=True)
class Transcript:
    """What has been said in a session, in the memory of its holder."""

    lines: list[Line] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)  # of the transcript after each line
    saved: int = 0  # lines that the store has

    def add(self, line: Line) -> None:
        """Append a line. One that is there already stays as it is: its turn ran before, and its result was lost.

        Raises:
            ValueError: it leaves a gap, or another message stands in its place.
        """
        if line.position > len(self.lines):
            raise ValueError(f"message {line.position} comes after {len(self.lines)} messages: some are missing")
        if line.position == len(self.lines):
            self.lines.append(line)
            self.digests.append(extend_digest(self.digests[-1] if self.digests else NO_DIGEST, line.message))
        elif self.lines[line.position].message != line.message:
            raise ValueError(f"another message stands in the place of message {line.position}")


def orchestration_name(run: str) -> str:
    """The orchestration of a run. Runs that share a database must not run each other's conversations."""
    return f"{run}.conversation"


def build_app(run: str, store: TranscriptStore, *, think: float, max_sessions: int) -> App:
    """The application of one run.

    Args:
        run: its id.
        store: where transcripts are checkpointed.
        think: seconds that a turn takes; it stands for the time of a model.
        max_sessions: transcripts in memory at most.
    """
    app = App(run)
    transcripts = SessionCache[Transcript](
        hydrate=partial(_hydrate, store),
        checkpoint=partial(_checkpoint, store),
        max_sessions=max_sessions,
    )
    app.add_session_listener(transcripts)

    @app.activity(name=f"{run}.turn")
    async def turn(ctx: ActivityContext, said: Turn) -> Reply:
        assert ctx.session_epoch is not None, "turns are bound to a session"
        line = Line(position=said.position, epoch=ctx.session_epoch, worker_id=ctx.worker_id, message=said.message)
        async with transcripts.use(ctx) as transcript:
            transcript.add(line)
            await anyio.sleep(think)
        return Reply(
            position=said.position,
            digest=transcript.digests[said.position],
            worker_id=ctx.worker_id,
            pid=os.getpid(),
            epoch=ctx.session_epoch,
            attempt=ctx.attempt,
            answered_at=time.time(),
        )

    @app.orchestration(name=orchestration_name(run))
    async def conversation(ctx: OrchestrationContext, messages: int) -> Summary:
        digest = NO_DIGEST
        for position in range(messages):
            message = await ctx.schedule_wait(EVENT, Message)
            said = Turn(position, message)
            reply = await ctx.schedule_activity(turn, said, retry=PATIENCE).on_session(ctx.instance_id)
            digest = reply.digest
        return Summary(messages, digest)

    return app


async def _hydrate(store: TranscriptStore, session_id: str) -> Transcript:
    transcript = Transcript()
    for line in await anyio.to_thread.run_sync(store.hydrate, session_id):
        transcript.add(line)
    transcript.saved = len(transcript.lines)
    return transcript


async def _checkpoint(store: TranscriptStore, session_id: str, transcript: Transcript) -> None:
    unsaved: Sequence[Line] = transcript.lines[transcript.saved :]
    await anyio.to_thread.run_sync(store.append, session_id, unsaved)
    transcript.saved += len(unsaved)
