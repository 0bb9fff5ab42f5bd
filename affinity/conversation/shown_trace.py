"""The trace of a wake that takes long, in the journal while it runs.

A wake commits its trace with its end, or with `Wake.commit`. A wake that takes longer than `SHOWN_AFTER` commits the
spans that stand before all its other additions, so that a reader of the journal sees that it runs, and where. A shorter
wake does without this commit. A wake that streams is seen by its stream, which an entry of the wake would end.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context, copy_context
from dataclasses import replace
from itertools import takewhile
from typing import Final
from weakref import WeakKeyDictionary

from affinity.conversation.journal import NewEntry
from affinity.conversation.steps import part_step
from affinity.conversation.wake_parts import WakeParts
from affinity.orchestration import ActivityCancelledSignal
from affinity.redaction import redacted

SHOWN_AFTER: Final = 0.5
"""Seconds after which the trace of a wake is shown, and between two such commits: real time, also where the clock of
the database is virtual (`affinity.testing.Env`).
"""

logger: logging.Logger = logging.getLogger("affinity.conversation")


class TraceShown:
    """Shows the trace of the wake whose handler runs in the block."""

    def __init__(self, parts: WakeParts) -> None:
        self._parts = parts

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._short = _short_wakes.get(loop) or _short_wakes.setdefault(loop, _ShortWakes())
        self._context = copy_context()
        self._show: asyncio.Task[None] | None = None
        self._short.add(self)

    async def __aexit__(self, *_: object) -> None:
        self._short.remove(self)
        if self._show is not None:
            self._show.cancel()
            await asyncio.wait([self._show])

    def begin(self) -> None:
        """Show the trace from now on."""
        self._show = asyncio.get_running_loop().create_task(_show(self._parts), context=self._context)


class _ShortWakes:
    """The wakes of an event loop that do not yet take long. One timer is for all: most wakes end before it."""

    def __init__(self) -> None:
        self._due: dict[TraceShown, float] = {}
        """The time from which each takes long, earliest first."""
        self._has_timer = False

    def add(self, wake: TraceShown) -> None:
        self._due[wake] = asyncio.get_running_loop().time() + SHOWN_AFTER
        if not self._has_timer:
            self._wait()

    def remove(self, wake: TraceShown) -> None:
        self._due.pop(wake, None)

    def _wait(self) -> None:
        """Look again when the first one takes long."""
        self._has_timer = bool(self._due)
        if self._has_timer:
            asyncio.get_running_loop().call_at(next(iter(self._due.values())), self._look, context=Context())

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        late = [*takewhile(lambda wake: self._due[wake] <= now, self._due)]
        for wake in late:
            self.remove(wake)
            wake.begin()
        self._wait()


_short_wakes: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _ShortWakes]()


async def _show(parts: WakeParts) -> None:
    while not parts.has_ended:
        if not parts.stream.is_used:
            async with parts.committing:
                if not parts.has_ended:
                    await _commit_spans(parts)
        await asyncio.sleep(SHOWN_AFTER)


async def _commit_spans(parts: WakeParts) -> None:
    """Commit the first spans. After an error they stay among the entries of the wake: each has an event id, so it is
    written once.
    """
    entries, trace = parts.writing.entries, parts.trace.entries
    count = len([*takewhile(trace.__contains__, entries)])
    if not count or parts.writing.creations:  # these begin with the inputs that the wake has processed
        return
    shown = entries[:count] = trace[:count] = [_once(parts, entry) for entry in entries[:count]]
    part = parts.writing.part(entries=shown, steps=[part_step(parts)])
    try:
        await parts.context._commit_now(part=part)
    except (Exception, ActivityCancelledSignal) as error:
        logger.debug("the trace of wake %s is not shown: %s", parts.wake_id, redacted(error))
        return
    for of in (parts.writing.entries, trace):
        of[:] = [entry for entry in of if entry not in shown]
    parts.journals.note_written(part)


def _once(parts: WakeParts, span: NewEntry) -> NewEntry:
    if span.event_id is not None:
        return span
    parts.trace.shown += 1
    return replace(span, event_id=f"trace/{parts.wake_id}/{parts.writing.attempt}.{parts.trace.shown}")
