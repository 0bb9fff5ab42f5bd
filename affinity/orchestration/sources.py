"""Lines of the application's code, for the message of a replay that does not match.

A command is matched when the coroutines wait, so the code that requested it is not on the stack any more. Where that
is wanted, `TracedRequests` notes the line of each request. In a worker the error has the line at which the code waits.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from types import CodeType, CoroutineType, FrameType, TracebackType
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

_PACKAGE: Final = __name__.rpartition(".")[0] + "."
_ENGINE: Final = _PACKAGE + "engine"

MAX_SOURCES: Final = 3
"""Lines in one message: of an execution whose branches wait at several places."""


class CodeLine(NamedTuple):
    """A line of the application's code."""

    code: CodeType
    line: int | None

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}, in {self.code.co_name}"


class TracedRequests(deque[T]):
    """A queue of the code's requests, which knows the line of each."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, CodeLine | None] = {}  # by the `id` of the queued item
        self.source: CodeLine | None = None
        """Where the last item was requested that `popleft` returned; None: not by code, as when a race is lost."""

    def append(self, item: T) -> None:
        """Add a request of the code that runs now."""
        self._sources[id(item)] = _calling_source()
        super().append(item)

    def popleft(self) -> T:
        """Remove the next request, and note its line."""
        item = super().popleft()
        self.source = self._sources.pop(id(item), None)
        return item


def waiting_source(coroutine: Coroutine[Any, Any, Any]) -> CodeLine | None:
    """The innermost line of the application at which a coroutine waits; None: at none, or it has ended."""
    found: CodeLine | None = None
    awaited: object = coroutine
    while isinstance(awaited, CoroutineType) and (frame := awaited.cr_frame) is not None:
        found = _source_of(frame, frame.f_lineno) or found
        awaited = awaited.cr_await
    return found


def raising_source(traceback: TracebackType | None) -> CodeLine | None:
    """The innermost line of the application in a traceback."""
    found = None
    while traceback is not None:
        found = _source_of(traceback.tb_frame, traceback.tb_lineno) or found
        traceback = traceback.tb_next
    return found


def first_source(function: Callable[..., Any]) -> CodeLine | None:
    """The first line of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else CodeLine(code, code.co_firstlineno)


def describe_sources(sources: Iterable[CodeLine | None]) -> str | None:
    """The lines as text, each once; None when there is none."""
    texts = list(dict.fromkeys(str(source) for source in sources if source is not None))
    more = f" and {len(texts) - MAX_SOURCES} more" if len(texts) > MAX_SOURCES else ""
    return "; ".join(texts[:MAX_SOURCES]) + more if texts else None


def _calling_source() -> CodeLine | None:
    """The line of the application that has called the engine; None: the engine runs no code of it now."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _module(frame) != _ENGINE:
        if found := _source_of(frame, frame.f_lineno):
            return found
        frame = frame.f_back
    return None


def _source_of(frame: FrameType, line: int | None) -> CodeLine | None:
    return None if _module(frame).startswith(_PACKAGE) else CodeLine(frame.f_code, line)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
