"""The areas of random programs: each covers a part of the authoring API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from hypothesis.strategies import SearchStrategy

import affinity
from tests.programs.play import Play
from tests.programs.program import Size

PartT = TypeVar("PartT")
SeenT = TypeVar("SeenT")


class Area(ABC, Generic[PartT, SeenT]):
    """Draws a part of a program, plays it, and judges the database at rest.

    It has no state: one object serves all programs, and its code runs in worker processes too. What an orchestration or
    a handler does is its input: data. The ids of its instances and sessions begin with ``name``, so that areas do not
    meet by accident. Names of orchestrations and activities begin with it too.
    """

    name: str

    @abstractmethod
    def strategy(self, size: Size) -> SearchStrategy[PartT]:
        """Parts of this size: frozen dataclasses (tuples in them, no lists) whose repr makes them again; the smallest
        ones first.
        """

    @abstractmethod
    def include(self, app: affinity.App) -> None:
        """Add what the workers run."""

    @abstractmethod
    async def run(self, play: Play, part: PartT) -> SeenT:
        """Do what clients and operators do, through ``play.env.client``, with `Play.pause` between.

        It ends by itself, whatever the instances do: it waits for nothing that may not come. Faults are in the workers
        only: a call of the client succeeds, or its error is one that its documentation names.

        Returns:
            What `check` has to know: replies, refusals, ids.
        """

    @abstractmethod
    async def check(self, play: Play, part: PartT, seen: SeenT) -> None:
        """Compare with the oracle, once the faults are over and nothing runs, nor can run.

        Raises:
            AssertionError: a rule is broken; names the instance, the expected value and the found one.
        """


AnyArea = Area[Any, Any]
