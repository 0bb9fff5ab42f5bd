"""The application that the demo runs: a conversation is an orchestration, each of its messages a turn on its session.

The transcript is the state of the session. It lives in the memory of the worker that holds the session, is read from
the database when a worker has the session for the first time, and commits with the result of each turn.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

import anyio

from affinity.demo.conversations import NO_DIGEST, Message
from affinity.demo.counts import CountsFile
from affinity.demo.transcript import Line, Transcript
from affinity.orchestration import ActivityContext, App, OrchestrationContext, RetryPolicy
from affinity.session import Sessions

EVENT: Final = "message"
"""Name of the external event that carries a message."""

PATIENCE: Final = RetryPolicy(max_attempts=5, initial_interval=0.1, non_retryable=(ValueError,))
"""A turn that could not have its transcript, because the session has moved on or the database was away, tries again.
One that has a wrong transcript does not.
"""


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


def orchestration_name(run: str) -> str:
    """The orchestration of a run. Runs that share a database must not run each other's conversations."""
    return f"{run}.conversation"


def build_app(run: str, transcripts: Sessions[Transcript], counts: CountsFile, *, think: float) -> App:
    """The application of one run.

    Args:
        run: its id.
        transcripts: the states of its sessions.
        counts: where the worker keeps what was counted.
        think: seconds that a turn takes; it stands for the time of a model.
    """
    app = App(run)
    app.include(transcripts)

    @app.activity(name=f"{run}.turn")
    async def turn(ctx: ActivityContext, said: Turn) -> Reply:
        assert ctx.session_epoch is not None, "turns are bound to a session"
        line = Line(message=said.message, worker_id=ctx.worker_id, epoch=ctx.session_epoch, attempt=ctx.attempt)
        async with transcripts.open(ctx) as transcript:
            counts.note(transcripts.stats)  # now, since in the middle of the turn this worker may be killed
            transcript.add(said.position, line)
            await anyio.sleep(think)
            digest = transcript.digest
        return Reply(
            position=said.position,
            digest=digest,
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
