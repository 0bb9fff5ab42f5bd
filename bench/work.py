"""What every system runs, and what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias


class WrongResults(AssertionError):
    """A system lost, repeated or reordered a turn, or gave back something else: its figures mean nothing."""


class Stamp(NamedTuple):
    """The output of one activity: which process ran it, and when."""

    turn: int
    pid: int
    at: float  # monotonic seconds, which all processes of a machine share


def stamp(turn: int) -> Stamp:
    """The stamp of a turn that begins now, in this process."""
    return Stamp(turn, os.getpid(), time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Turns, one after the other; each is one activity on a session, where the system has sessions."""

    turns: int
    pause: float = 0.0  # seconds that each activity takes after its stamp

    def check(self, output: Any) -> list[Stamp]:
        """The stamps of a walk's output.

        Raises:
            WrongResults: it is not the output of this walk.
        """
        try:
            stamps = [Stamp(*row) for row in output]
        except TypeError:
            raise WrongResults(f"not the output of a walk: {str(output)[:200]}") from None
        if [one.turn for one in stamps] != list(range(self.turns + 1)):
            raise WrongResults(f"a walk of {self.turns} turns gave {[one.turn for one in stamps][:100]}")
        return stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """Finished walks."""

    began: float  # monotonic seconds at which the client started the first
    walks: Sequence[Sequence[Stamp]]

    @property
    def turns(self) -> int:
        """Durable turns of all walks."""
        return sum(len(walk) - 1 for walk in self.walks)

    @property
    def seconds(self) -> float:
        """From the first start to the last turn."""
        return max(walk[-1].at for walk in self.walks) - self.began

    @property
    def rate(self) -> float:
        """Turns a second."""
        return self.turns / self.seconds

    @property
    def gaps(self) -> list[float]:
        """Seconds of each turn, in order of the turns of the first walk, then of the second…"""
        return [after.at - before.at for walk in self.walks for before, after in pairwise(walk)]


STATE: Final = "s" * 2_000
"""What a chat keeps beside its transcript, and writes with each answer."""

Ask: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Asks a chat, by its id, a question; returns the answer."""


def answer_to(question: str, before: int) -> str:
    """The answer of each system to a question, behind so many."""
    return f"answer to {question}, after {before}"
