"""Names of external events, and the events of session moves.

A move reaches an orchestration as an external event, which is buffered, carried over and replayed like any other. Its
name is `RESERVED_PREFIX` and more, which applications may not use, with the session's id, so that a wait receives the
moves of its own session only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic_core import to_json

from affinity.errors import InvalidId
from affinity.limits import check_id
from affinity.orchestration.codec import Codec
from affinity.orchestration.events import EventRaised

RESERVED_PREFIX: Final = "affinity:"
"""The beginning of the names of events that only affinity raises."""

_MOVED_PREFIX: Final = RESERVED_PREFIX + "session_moved:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMoved:
    """A session has a new holder: another worker, or a new start of the same one.

    What the old holder had in memory is gone. See ``OrchestrationContext.schedule_session_moved``.
    """

    session_id: str
    worker_id: str
    """The new holder."""
    epoch: int
    """Epoch of the session since the move: `ActivityContext.session_epoch` of its activities there."""
    reason: str
    """Why it has moved: see docs/run/placement.md#why-a-session-moved."""


MOVED: Final = Codec(SessionMoved, "data of a session's move")


def check_event_name(name: object) -> str:
    """Return ``name`` as the name of an event that an application may raise and wait for.

    Raises:
        InvalidId: it is no id (`limits.check_id`), or it is reserved.
    """
    checked = check_id(name, "event name")
    if checked.startswith(RESERVED_PREFIX):
        raise InvalidId(f"event name {checked!r} begins with {RESERVED_PREFIX!r}, which is reserved: choose another")
    return checked


def moved_name(session_id: str) -> str:
    """The name of the event of this session's moves."""
    return _MOVED_PREFIX + session_id


def watched_session(name: str) -> str | None:
    """The session whose moves this event is of; None: the event is the application's."""
    return name.removeprefix(_MOVED_PREFIX) if name.startswith(_MOVED_PREFIX) else None


def moved_event(session_id: str) -> EventRaised:
    """The event that an instance which watches the session receives at each change of its holder; `wire.read_message`
    adds where it is now, and why.
    """
    return EventRaised(moved_name(session_id), to_json({"session_id": session_id}).decode())
