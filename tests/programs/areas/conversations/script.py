"""The actions of clients and handlers of conversations, as data.

A *step* is what a handler does: a tuple of its name and its arguments. It travels in the message, in the request or in
the revisit that makes a handler do it.

A call of ``reset``, ``remove``, ``cancel`` and ``forget`` comes from an operator, who knows instances and records only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

from hypothesis import strategies as st

from tests.programs.bodies import INSTANCES
from tests.programs.program import Size

Step: TypeAlias = tuple[Any, ...]
Steps: TypeAlias = tuple[Step, ...]

ROOTS: Final = 3
"""Conversations that clients begin."""

FOR_GOOD: Final = 3
"""Failures of a handler that it has no attempt left for."""

Do: TypeAlias = Literal[
    "pause",
    "send",
    "ask",
    "repeat",
    "differ",
    "answer",
    "interrupt",
    "resume",
    "terminate",
    "delete",
    "fork",
    "detach",
    "merge",
    "compress",
    "copy",
    "again",
    "prune",
    "move",
    "release",
    "follow",
    "cancel",
    "remove",
    "reset",
    "revive",
    "forget",
    "describe",
]


@dataclass(frozen=True)
class Op:
    """A call of a client, or of an operator."""

    do: Do = "pause"
    on: int = 0
    """The conversation: below `ROOTS`, one that clients begin; else any existing one."""
    part: str = ""
    """Behind the id of one that clients begin: ``/a`` is a child of it."""
    steps: Steps = ()
    """Of ``send`` and ``ask``: what the handler is to do."""
    yes: bool = False
    """``answer``: it is allowed. ``interrupt``: cancels the wake. ``fork``: beside its source. ``copy``: without what
    cannot go on. ``again``: with the same options. ``delete``, ``terminate``: the children too.
    """
    n: int = 0
    """``answer``: an interrupt follows immediately, if it is odd. ``ask``: so often once more, at the same time.
    ``interrupt``: the children too, if it is odd; from 2 on another interrupt follows. ``reset``: events that are kept,
    in percent.
    ``fork``, ``detach``: entries that are left out at the end. ``prune``: entries that are kept. ``follow``: items
    until another feed goes on. ``merge``: the other side. ``again``: which of the calls so far that have made one.
    """
    ticks: int = 0
    """Commits of the workers before the next call."""
    sync: bool = False
    """By the sync client."""


@dataclass(frozen=True)
class ConversationScript:
    """The part of a program: clients that act at the same time, each with its calls in order."""

    clients: tuple[tuple[Op, ...], ...] = ()
    owned: bool = False
    """The conversations that clients begin are created before, with an owner and labels."""


_small = st.integers(1, 5)
_root = st.integers(0, ROOTS - 1)
_delays = st.sampled_from((0, 60, 3_600, 86_400))
_expiry = st.sampled_from((None, 0, 600, 86_400))


def _step(depth: int) -> st.SearchStrategy[Step]:
    plain = [
        st.tuples(st.just("say"), _small),
        st.tuples(st.just("note"), _small),
        st.tuples(st.just("step"), _small, st.booleans()),
        st.tuples(st.just("add"), _small),
        st.tuples(st.just("commit"), st.booleans()),
        st.tuples(st.just("start"), st.sampled_from(("run", "call")), _small),
        st.tuples(st.just("stream"), st.integers(1, 3)),
        st.tuples(st.just("finish"), _small),
        st.tuples(st.just("fail"), st.integers(1, FOR_GOOD), st.booleans()),
        st.tuples(st.just("group"), st.sampled_from((0, 1, FOR_GOOD)), st.sampled_from((False, False, True))),
        st.tuples(st.sampled_from(("sleep", "withdraw"))),
        st.tuples(st.just("fork"), st.sampled_from("xy")),
        st.tuples(st.sampled_from(("detach", "compress")), st.sampled_from("xy"))
        | st.tuples(st.just("merge"), st.sampled_from("xy"), _root),
        st.tuples(st.sampled_from(("raise", "question")), st.integers(0, INSTANCES - 1)),
    ]
    if depth == 0:
        return st.one_of(*plain)
    nested = _steps(depth - 1)
    return st.one_of(
        *plain,
        st.tuples(st.just("span"), nested),
        st.tuples(st.sampled_from(("confirm", "tool")), _expiry, nested),
        st.tuples(st.just("revisit"), _delays, st.sampled_from((None, "k", "m")), nested),
        st.tuples(st.just("delegate"), st.sampled_from("ab"), st.integers(1, 4), nested),
        st.tuples(st.sampled_from(("tell", "tell", "tell", "ask", "meet")), _root, nested),
    )


def _steps(depth: int, most: int = 3) -> st.SearchStrategy[Steps]:
    return st.lists(_step(depth), max_size=most).map(tuple)


_on = st.sampled_from((0, 0, 0, 1, 1, 2)) | st.integers(0, 12)
_ticks = st.sampled_from((0, 0, 1, 2, 5, 20))
_soon = st.sampled_from((0, 0, 1, 2, 3))


_sync = st.sampled_from((False, False, False, False, True))
_ASYNC: Final[frozenset[Do]] = frozenset({"follow", "copy", "again", "merge", "compress", "forget"})
"""Calls of more than a method."""


def _op(*names: Do, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    drawn = {"on": _on, "ticks": _ticks} | ({} if _ASYNC.intersection(names) else {"sync": _sync}) | fields
    return st.builds(Op, do=st.sampled_from(names), **drawn)


def _ops() -> st.SearchStrategy[Op]:
    some = st.integers(0, 12)
    sent = _op("send", steps=_steps(3, most=6)) | _op("ask", steps=_steps(3, most=6), n=st.sampled_from((0, 0, 2)))
    return st.one_of(
        _op("pause"),
        *[sent] * 6,
        *[_op("answer", yes=st.sampled_from((True, True, False)), n=st.integers(0, 1))] * 3,
        _op("interrupt", yes=st.booleans(), n=st.integers(0, 3)),
        _op("repeat", "differ", "resume", "move", "release"),
        _op("fork", "detach", yes=st.booleans(), n=some),
        _op("merge", "follow", n=some),
        _op("copy", yes=st.booleans()),
        _op("compress") | _op("again", yes=st.booleans(), n=some),
        _op("terminate", "delete", yes=st.booleans()),
        _op("prune", n=st.sampled_from((30, 20, 10, 0))),
        _op("forget"),
        _op("cancel", "remove", "describe"),
        _op("reset", n=st.integers(0, 100)) | _op("revive"),
    )


@st.composite
def _disturbed(draw: st.DrawFn) -> tuple[Op, ...]:
    """Work for a child, or a run, where something ends or interrupts the child, or the conversation, as its wake begins
    or ends.
    """
    on, child = draw(_root), draw(st.sampled_from("ab"))
    inner = draw(_steps(1))
    work = [("delegate", child, draw(st.integers(1, 4)), inner), ("start", draw(st.sampled_from(("run", "call"))), 1)]
    sent = Op("send", on, steps=(draw(st.sampled_from(work)),), ticks=draw(_soon))
    fields: dict[str, Any] = {"on": st.just(on), "part": st.sampled_from((f"/{child}", "")), "ticks": _soon}
    ends = _op("terminate", "delete", "cancel", "remove", "reset", "move", "release", **fields) | _op(
        "forget", **fields
    )
    interrupts = _op("interrupt", yes=st.just(True), n=st.sampled_from((0, 2)), **fields)
    return (*[sent] * draw(st.integers(1, 2)), *draw(st.lists(ends | interrupts, min_size=1, max_size=3)))


@st.composite
def _paused(draw: st.DrawFn) -> tuple[Op, ...]:
    """A request, a fork by its wake or by a client, and answers here and there."""
    on = draw(_root)
    asks = (draw(st.sampled_from(("confirm", "tool"))), draw(_expiry), draw(_steps(1)))
    forks = draw(st.lists(st.tuples(st.sampled_from(("fork", "detach")), st.just("x")), max_size=1))
    ends = draw(st.sampled_from(((), (), (("withdraw",),))))
    sent = Op("send", on, steps=(asks, *forks, *ends), ticks=draw(st.sampled_from((5, 20))))
    fork = _op("fork", "detach", on=st.just(on), yes=st.booleans(), n=st.sampled_from((0, 0, 1, 2, 4, 8)))
    yes = {"yes": st.booleans(), "n": st.sampled_from((0, 0, 0, 1))}
    withdraws = st.just(Op("send", on, steps=(("withdraw",),)))
    own = withdraws | _op("answer", on=st.just(on), part=st.sampled_from(("", "~x")), **yes)
    of_any = _op("answer", on=st.integers(ROOTS, 12), **yes)
    return (sent, *draw(st.lists(fork, max_size=2)), *draw(st.lists(own | of_any | fork, min_size=1, max_size=4)))


@st.composite
def _in_a_circle(draw: st.DrawFn) -> tuple[Op, ...]:
    """Handlers that wait for each other, or one for itself."""
    first, *others = draw(st.lists(_root, min_size=1, max_size=ROOTS, unique=True))
    steps: Steps = ()
    for to in (first, *others):
        steps = ((draw(st.sampled_from(("meet", "meet", "ask"))), to, steps),)
    return (Op("send", first, steps=steps, ticks=draw(_soon)),)


@st.composite
def _in_parts(draw: st.DrawFn) -> tuple[Op, ...]:
    """A wake that commits a part, and does not end well, or is disturbed as it goes on."""
    on, some = draw(_root), draw(_steps(2))
    commit = st.tuples(st.just("commit"), st.booleans())
    fails = st.tuples(st.just("fail"), st.sampled_from((1, 1, 1, 2, FOR_GOOD)), st.just(False))
    stops = fails | fails | st.just(("sleep",))
    work = st.one_of(
        st.tuples(st.sampled_from(("confirm", "tool")), _expiry, _steps(1)),
        st.tuples(st.just("revisit"), _delays, st.sampled_from((None, "k")), _steps(1)),
        st.tuples(st.just("delegate"), st.sampled_from("ab"), st.integers(1, 4), _steps(1)),
        st.tuples(st.just("start"), st.sampled_from(("run", "call")), _small),
    )
    some = (*some, draw(work))
    begins, ends = (*some, draw(commit), draw(stops)), draw(st.sampled_from(((), some)) | _steps(2))
    sent = Op("send", on, steps=(*begins, *draw(st.sampled_from(((), (draw(commit),)))), *ends), ticks=draw(_soon))
    fields: dict[str, Any] = {"on": st.just(on), "ticks": _soon}
    moves = _op("interrupt", yes=st.booleans(), n=st.integers(0, 3), **fields) | _op("move", "release", **fields)
    answers = _op("answer", yes=st.just(True), n=st.integers(0, 1), **fields)
    return (sent, *draw(st.lists(moves | answers | _op("pause", ticks=_soon), max_size=3)))


def parts(size: Size) -> st.SearchStrategy[ConversationScript]:
    """Parts, the smallest ones first."""
    least, most, most_clients = (0, 3, 1) if size == "small" else (5, 20, 3)
    begins = _op("ask", "send", steps=_steps(3, most=6))
    alone = _ops().map(lambda op: (op,))  # a pause is the smallest one
    some = [_disturbed(), _paused(), _in_a_circle(), _in_parts(), _in_parts()]
    goes_on = st.lists(st.one_of(*[alone] * 9, *some), min_size=least, max_size=most)
    client = st.builds(lambda first, rest: (first, *chain.from_iterable(rest)), begins, goes_on)
    clients = st.lists(client, min_size=1, max_size=most_clients).map(tuple)
    return st.builds(ConversationScript, clients, owned=st.booleans())
