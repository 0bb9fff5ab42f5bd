"""Activities that a test replaces."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import anyio.to_thread

from affinity.orchestration.definitions import ActivityDefinition


class Fake:
    """The stand-in of an activity; see `Env.fake`."""

    def __init__(self, definition: ActivityDefinition, outcome: Any, times: int | None) -> None:
        self.calls: list[Any] = []
        """The input of each call so far, None for an activity without input; attempts that are retried count."""
        self._definition = definition
        self._outcome = outcome
        self._times = times

    def define(self) -> ActivityDefinition:
        """The activity with its name and types, and with this code."""
        found = copy.copy(self._definition)
        found.function, found.is_async = self._run, True
        return found

    async def _run(self, *arguments: Any) -> Any:
        if self._times is not None and len(self.calls) >= self._times:
            return await self._run_former(arguments)
        self.calls.append(arguments[1] if len(arguments) > 1 else None)
        outcome = self._outcome
        if isinstance(outcome, BaseException) or (isinstance(outcome, type) and issubclass(outcome, BaseException)):
            raise outcome
        if callable(outcome):
            outcome = outcome(*arguments)
            if inspect.isawaitable(outcome):
                outcome = await outcome
        return outcome

    async def _run_former(self, arguments: tuple[Any, ...]) -> Any:
        function = self._definition.function
        if self._definition.is_async:
            return await function(*arguments)
        return await anyio.to_thread.run_sync(function, *arguments)
