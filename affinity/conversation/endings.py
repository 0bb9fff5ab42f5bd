"""Code of steps and tools that has ended, while its result is not added to the wake yet.

What it has changed of the state is in what a commit writes from that moment on. So a commit waits until the result is
there too: else a crash would repeat the code, and its change would count twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import anyio

from affinity.orchestration.definitions import is_async


class Endings:
    """The codes of one wake that have ended, and whose results are not added yet."""

    def __init__(self) -> None:
        self._ended: set[RunningCode] = set()
        self._changed = anyio.Event()

    async def settle(self) -> None:
        """Wait until each result is added. The commit must take the state before its next await."""
        while self._ended:
            self._changed = anyio.Event()
            await self._changed.wait()

    def begin(self) -> RunningCode:
        """Return the code of a step or a tool, which begins."""
        return RunningCode(self)

    def add(self, code: RunningCode) -> None:
        """Note that this code has ended; from any thread."""
        self._ended.add(code)

    def discard(self, code: RunningCode) -> None:
        """Note that its result is added, or that it begins again."""
        if code in self._ended:
            self._ended.discard(code)
            self._changed.set()


class RunningCode:
    """The code of a step or a tool, in all its attempts in this wake."""

    __slots__ = ("_endings", "_is_settled")

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._is_settled = False

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose end is noted: in its own task or thread, before any other code runs there."""
        if is_async(function):

            @functools.wraps(function, updated=())
            async def run_async(*args: Any, **named: Any) -> Any:
                try:
                    return await function(*args, **named)
                finally:
                    self._note_end()

            return run_async

        @functools.wraps(function, updated=())
        def run(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            finally:
                self._note_end()

        return run

    def _note_end(self) -> None:
        if not self._is_settled:  # else it was left behind
            self._endings.add(self)

    def begin_again(self) -> None:
        """Note that it has failed, and is tried again."""
        self._endings.discard(self)

    def settle(self) -> None:
        """Note that its result is added, or that there will be none."""
        self._is_settled = True
        self._endings.discard(self)
