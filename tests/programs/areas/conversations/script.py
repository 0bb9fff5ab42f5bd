"""The actions of clients and handlers of conversations, as data.

A *step* is what a handler does: a tuple of its name and its arguments. It travels in the message, in the request or in
the revisit that makes a handler do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from hypothesis import strategies as st

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
    "prune",
    "move",
    "release",
    "follow",
]


@dataclass(frozen=True)
class Op:
    """A call of a client, or of an operator."""

    do: Do = "pause"
    on: int = 0
    """The conversation: below `ROOTS`, one that clients begin; else any existing one."""
    steps: Steps = ()
    """Of ``send`` and ``ask``: what the handler is to do."""
    yes: bool = False
    """``answer``: it is allowed. ``interrupt``: cancels the wake. ``fork``: beside its source. ``delete``,
    ``terminate``: the children too.
    """
    n: int = 0
    """``answer``: an interrupt follows immediately, if it is odd. ``interrupt``: the children too, if it is odd.
    ``fork``, ``detach``: entries that are left out at the end. ``prune``: entries that are kept. ``follow``: items
    until another feed goes on. ``merge``: the other side.
    """
    ticks: int = 0
    """Commits of the workers before the next call."""


@dataclass(frozen=True)
class ConversationScript:
    """The part of a program: clients that act at the same time, each with its calls in order."""

    clients: tuple[tuple[Op, ...], ...] = ()


_small = st.integers(1, 5)
_delays = st.sampled_from((0, 60, 3_600, 86_400))
_expiry = st.sampled_from((None, 0, 600, 86_400))


def _step(depth: int) -> st.SearchStrategy[Step]:
    plain = [
        st.tuples(st.just("say"), _small),
        st.tuples(st.just("note"), _small),
        st.tuples(st.just("add"), _small),
        st.tuples(st.just("stream"), st.integers(1, 3)),
        st.tuples(st.just("finish"), _small),
        st.tuples(st.just("fail"), st.integers(1, FOR_GOOD), st.booleans()),
        st.tuples(st.just("sleep")),
        st.tuples(st.just("fork"), st.sampled_from("xy")),
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
    )


def _steps(depth: int, most: int = 3) -> st.SearchStrategy[Steps]:
    return st.lists(_step(depth), max_size=most).map(tuple)


_on = st.sampled_from((0, 0, 0, 1, 1, 2)) | st.integers(0, 12)
_ticks = st.sampled_from((0, 0, 1, 2, 5, 20))


def _op() -> st.SearchStrategy[Op]:
    def op(*names: Do, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
        return st.builds(Op, do=st.sampled_from(names), on=_on, ticks=_ticks, **fields)

    some = st.integers(0, 12)
    sent = op("send", "ask", steps=_steps(3, most=6))
    return st.one_of(
        op("pause"),
        *[sent] * 6,
        *[op("answer", yes=st.sampled_from((True, True, False)), n=st.integers(0, 1))] * 3,
        op("interrupt", yes=st.booleans(), n=st.integers(0, 1)),
        op("repeat", "differ", "resume", "move", "release"),
        op("fork", "detach", yes=st.booleans(), n=some),
        op("merge", "follow", n=some),
        op("copy", "compress"),
        op("terminate", "delete", yes=st.booleans()),
        op("prune", n=st.sampled_from((30, 20, 10, 0))),
    )


def parts() -> st.SearchStrategy[ConversationScript]:
    """Parts, the smallest ones first."""
    begins = st.builds(Op, do=st.sampled_from(("ask", "send")), on=_on, steps=_steps(3, most=6), ticks=_ticks)
    goes_on = st.lists(_op(), min_size=5, max_size=20)  # a pause is the smallest one
    client = st.builds(lambda first, rest: (first, *rest), begins, goes_on)
    return st.builds(ConversationScript, st.lists(client, min_size=1, max_size=3).map(tuple))
