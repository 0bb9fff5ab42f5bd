"""The trace of a wake that takes long, in the journal while it runs.

A wake commits its trace with its end, or with `Wake.commit`. One that takes longer than `SHOWN_AFTER` commits the spans
that stand before all else that it adds, so that a reader of the journal sees that it runs, and where. A shorter wake
does without this commit. A wake that streams is seen by its stream, which an entry of the wake would end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Final

from affinity.conversation.steps import part_step
from affinity.conversation.wake_parts import WakeParts
from affinity.journal import NewEntry
from affinity.orchestration import ActivityCancelledSignal

SHOWN_AFTER: Final = 0.5
"""Seconds after which the trace of a wake is shown, by the database's clock; and seconds between two such commits."""

logger: logging.Logger = logging.getLogger("affinity.conversation")


@asynccontextmanager
async def trace_shown(parts: WakeParts) -> AsyncIterator[None]:
    """Show the trace of the wake whose handler runs in the block."""
    loop, begun, shows = asyncio.get_running_loop(), parts.journals.monotonic(), list[asyncio.Task[None]]()
    timer = loop.call_later(SHOWN_AFTER, lambda: shows.append(loop.create_task(_show(parts, begun))))
    try:
        yield
    finally:
        timer.cancel()
        for show in shows:
            show.cancel()
            await asyncio.wait([show])


async def _show(parts: WakeParts, begun: float) -> None:
    while True:
        if not parts.stream.is_used and parts.journals.monotonic() - begun >= SHOWN_AFTER:
            async with parts.committing:
                await _commit_spans(parts)
        await asyncio.sleep(SHOWN_AFTER)


async def _commit_spans(parts: WakeParts) -> None:
    """Commit the first spans. After an error they stay among the entries of the wake: each has an event id, so it is
    written once.
    """
    entries, trace = parts.writing.entries, parts.trace.entries
    count = len([*takewhile(trace.__contains__, entries)])
    if not count or parts.writing.creations:  # these begin with what the wake has processed
        return
    shown = entries[:count] = trace[:count] = [_once(parts, each) for each in entries[:count]]
    part = parts.writing.part(entries=shown, steps=[part_step(parts)])
    try:
        await parts.context.commit_part(journal=part)
    except (Exception, ActivityCancelledSignal) as error:
        logger.debug("the trace of wake %s is not shown: %s", parts.wake_id, error)
        return
    for of in (parts.writing.entries, trace):
        of[:] = [each for each in of if each not in shown]
    parts.journals.note_written(part)


def _once(parts: WakeParts, span: NewEntry) -> NewEntry:
    if span.event_id is not None:
        return span
    parts.trace.shown += 1
    return replace(span, event_id=f"trace/{parts.wake_id}/{parts.writing.attempt}.{parts.trace.shown}")
