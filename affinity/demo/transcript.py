"""What a session of the demo knows: the transcript of its conversation, kept by `affinity.Sessions`.

A transcript commits in the same transaction as the result of the turn that added to it. So a turn that runs again,
after a kill or because its write was refused, starts from a transcript in which nothing of it is, and simply adds its
line. Nothing here tells a line that is new from one that was there already: no key by position, no mark of what is
saved, no comparison of epochs. An application whose state is saved apart from its results needs all of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from affinity.demo.conversations import NO_DIGEST, Message, extend_digest
from affinity.records import SessionMetadata, SessionStore
from affinity.session import Sessions, scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message of a transcript, and the turn that added it."""

    message: Message
    worker_id: str
    epoch: int
    attempt: int


class Transcript(BaseModel):
    """The state of a session: what has been said, in order."""

    lines: list[Line] = []
    digests: list[str] = scratch([])  # of what was said up to each line; in memory only, and made anew from the lines

    def add(self, position: int, line: Line) -> None:
        """Append the line of a turn.

        Raises:
            ValueError: the transcript is not that before this turn, so state and history disagree.
        """
        if position != len(self.lines):
            raise ValueError(f"message {position + 1} meets a transcript of {len(self.lines)}")
        self.lines.append(line)

    @property
    def digest(self) -> str:
        """Of all that has been said."""
        for line in self.lines[len(self.digests) :]:
            self.digests.append(extend_digest(self.digests[-1] if self.digests else NO_DIGEST, line.message))
        return self.digests[-1] if self.digests else NO_DIGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A transcript as the database has it."""

    version: int  # how often it was written
    lines: tuple[Line, ...]


NOTHING = Stored(version=0, lines=())


def transcripts_of(run: str, *, max_sessions: int = 1) -> Sessions[Transcript]:
    """The transcripts of a run, of which up to ``max_sessions`` are in memory."""
    return Sessions(Transcript, kind=transcript_kind(run), metadata=_metadata, max_sessions=max_sessions)


def transcript_kind(run: str) -> str:
    """What the records of a run are called: by it they are told apart, and counted along an index."""
    return f"{run}.transcript"


async def read_transcript(transcripts: Sessions[Transcript], store: SessionStore, session_id: str) -> Stored:
    """The transcript of a session, as a script reads it; `NOTHING` when there is no record.

    Raises:
        SessionLoadFailed: the record cannot be read.
    """
    opening = transcripts.open(session_id, store=store, auto_save=False)
    async with opening as transcript:
        return Stored(version=opening.version, lines=tuple(transcript.lines))


def _metadata(transcript: Transcript) -> SessionMetadata:
    return SessionMetadata(message_count=len(transcript.lines))
