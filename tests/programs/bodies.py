"""The statements of an orchestration of a random program, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import Field

from tests.programs.names import LABELS
from tests.programs.slots import PLACES, Places
from tests.programs.values import KINDS

INSTANCES: Final = 12
SESSIONS: Final = 3
EVENTS: Final = 2
ALWAYS: Final = 99
"""More attempts than an activity has."""


@dataclass(frozen=True)
class Activity:
    """Returns a number; what it keeps goes into the state of its session."""

    session: int | None = None
    ordered: bool = False
    soft: bool = False  # another worker may take the session over
    tagged: bool = False
    keeps: Literal["", "append", "checkpoint"] = ""
    fails: int = 0  # in its first attempts
    attempts: int = 1
    hangs: bool = False  # until its time is over
    threaded: bool = False
    slow: int = 0  # steps of the event loop before it opens its state
    limited: bool = False  # all attempts together have so many seconds
    impatient: bool = False  # fails when it is not started soon
    places: Places = ""  # its limits
    priority: int = 0
    again: int = 0  # gives its work back so often
    consumes: int = 0  # units of a rate, beyond its admission
    pays: bool = False  # once, in a table of the application
    do: Literal["activity"] = "activity"


@dataclass(frozen=True)
class Timer:
    seconds: int = 0
    do: Literal["timer"] = "timer"


@dataclass(frozen=True)
class Wait:
    """For an external event."""

    name: int = 0
    hold: int | None = None  # session
    picky: bool = False  # half of the events do not fit
    do: Literal["wait"] = "wait"


@dataclass(frozen=True)
class Answer:
    """Waits for a question of a client, and replies."""

    do: Literal["answer"] = "answer"


@dataclass(frozen=True)
class SendToConversation:
    """An activity sends a conversation an event, or asks it."""

    to: int = 0
    waits: bool = False
    do: Literal["talk"] = "talk"


@dataclass(frozen=True)
class Moved:
    """Waits for a move of a session."""

    session: int = 0
    do: Literal["moved"] = "moved"


@dataclass(frozen=True)
class Select:
    parts: Body
    do: Literal["select"] = "select"


@dataclass(frozen=True)
class Gather:
    parts: Body
    keep_errors: bool = False
    limit: int | None = None
    do: Literal["gather"] = "gather"


@dataclass(frozen=True)
class WaitAny:
    """Waits for one of them, then for all."""

    parts: Body
    do: Literal["any"] = "any"


@dataclass(frozen=True)
class Block:
    """One statement after the other, as a branch; ``cleanup`` follows in any case."""

    body: Body
    cleanup: Body = ()
    do: Literal["block"] = "block"


@dataclass(frozen=True)
class SetLabels:
    labels: int = 0  # number in `names.LABELS`
    do: Literal["labels"] = "labels"


@dataclass(frozen=True)
class Child:
    body: Body
    named: int | None = None  # its id is taken when several have this number
    labels: int | None = None  # number in `names.LABELS`; None: those of its parent
    do: Literal["child"] = "child"


@dataclass(frozen=True)
class Detached:
    body: Body
    named: int | None = None
    labels: int | None = None
    do: Literal["detached"] = "detached"


@dataclass(frozen=True)
class Raise:
    """Raises an event for another instance."""

    to: int = 0
    name: int = 0
    do: Literal["raise"] = "raise"


@dataclass(frozen=True)
class Release:
    session: int = 0
    do: Literal["release"] = "release"


@dataclass(frozen=True)
class Value:
    """A call of the context without a wait."""

    what: Literal["guid", "now", "status", "count", "clear", "swap"] = "guid"
    do: Literal["value"] = "value"


@dataclass(frozen=True)
class Carry:
    """Gives an activity a value of some kind, or gets it from one."""

    value: int = 0  # number in `values.KINDS`
    back: bool = False
    do: Literal["carry"] = "carry"


@dataclass(frozen=True)
class Fail:
    do: Literal["fail"] = "fail"


Statement: TypeAlias = Annotated[
    Activity
    | Timer
    | Wait
    | Answer
    | SendToConversation
    | Moved
    | Select
    | Gather
    | WaitAny
    | Block
    | SetLabels
    | Child
    | Detached
    | Raise
    | Release
    | Value
    | Carry
    | Fail,
    Field(discriminator="do"),
]
Body: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True)
class Job:
    """The input of an instance."""

    body: Body = ()
    rounds: int = 0  # continue-as-new so often
    session: int | None = None  # with which it is started
    heard: tuple[str, ...] = ()  # the events that its former execution has read
    limited: bool = False  # its start waits for a slot, which it keeps until it ends
    labels: int = 0  # with which it is started: number in `names.LABELS`

    @property
    def keeps_labels(self) -> bool:
        """Whether it never changes them."""
        return SetLabels.__name__ not in repr(self.body)


# -- how they are drawn

_sessions: Final = st.integers(0, SESSIONS - 1)
_names: Final = st.integers(0, EVENTS - 1)
_labels: Final = st.integers(0, len(LABELS) - 1)
_seconds: Final = st.sampled_from((0, 1, 10, 60, 400))


@st.composite
def _activities(draw: st.DrawFn) -> Activity:
    session = draw(st.none() | _sessions)
    attempts = draw(st.sampled_from((1, 1, 2, 3)))
    bound = session is not None
    return Activity(
        session=session,
        ordered=bound and draw(st.booleans()),
        soft=bound and draw(st.booleans()),
        tagged=not bound and draw(st.booleans()),
        keeps=draw(st.sampled_from(("", "append", "checkpoint"))) if bound else "",
        fails=draw(st.sampled_from((0, 0, 0, 1, 2, ALWAYS))),
        attempts=attempts,
        hangs=not bound and draw(st.integers(0, 19)) == 19,
        slow=draw(st.sampled_from((0, 0, 5, 20))),
        threaded=draw(st.integers(0, 7)) == 7,
        limited=attempts > 1 and draw(st.booleans()),
        impatient=bound and draw(st.integers(0, 7)) == 7,
        places=draw(st.sampled_from((*[""] * len(PLACES), *PLACES))),
        priority=draw(st.sampled_from((0, 0, 0, 1, 1000))),
        again=draw(st.sampled_from((0, 0, 0, 0, 1, 2))),
        consumes=draw(st.sampled_from((0, 0, 0, 2, 20))),
        pays=draw(st.sampled_from((False, False, False, True))),
    )


_LEAVES: Final[SearchStrategy[Statement]] = st.one_of(
    _activities(),
    _activities(),
    _activities(),
    st.builds(Timer, seconds=_seconds),
    st.builds(Wait, name=_names, hold=st.none() | _sessions, picky=st.sampled_from((False, False, True))),
    st.builds(Answer),
    st.builds(SendToConversation, to=st.integers(0, 2), waits=st.sampled_from((False, False, False, True))),
    st.builds(Moved, session=_sessions),
)
"""Statements that can be a part of a select."""

_PLAIN: Final[SearchStrategy[Statement]] = st.one_of(
    _LEAVES,
    st.builds(Raise, to=st.integers(0, INSTANCES - 1), name=_names),
    st.builds(Release, session=_sessions),
    st.builds(Value, what=st.sampled_from(("guid", "now", "status", "count", "clear", "swap"))),
    st.builds(SetLabels, labels=_labels),
    st.builds(Carry, value=st.integers(0, len(KINDS) - 1), back=st.booleans()),
    st.builds(Fail),
)


def _nested(inner: SearchStrategy[Statement]) -> SearchStrategy[Statement]:
    body = st.lists(inner, min_size=1, max_size=4).map(tuple)
    named = st.sampled_from((None, None, None, 0, 1))
    cleanups = _activities().map(lambda one: replace(one, tagged=False))  # it ends, also where no worker has the tag
    block = st.builds(Block, body, cleanup=st.lists(cleanups, max_size=1).map(tuple))
    labels = st.sampled_from((None, None, *range(len(LABELS))))
    child = st.builds(Child, body, named=named, labels=labels)
    parts = st.lists(st.one_of(_LEAVES, block, child), min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Select, parts),
        st.builds(Gather, parts, keep_errors=st.booleans(), limit=st.sampled_from((None, None, 1, 2))),
        st.builds(WaitAny, parts),
        block,
        child,
        st.builds(Detached, body, named=named, labels=labels),
    )


STATEMENTS: Final[SearchStrategy[Statement]] = st.recursive(_PLAIN, _nested, max_leaves=8)

JOBS: Final[SearchStrategy[Job]] = st.builds(
    Job,
    body=st.lists(STATEMENTS, min_size=1, max_size=6).map(tuple),
    rounds=st.sampled_from((0, 0, 0, 1, 3)),
    session=st.none() | _sessions,
    limited=st.sampled_from((False, False, True)),
    labels=_labels,
)
