"""A worker process of the demo: ``python -m affinity.demo.worker NAME``.

NAME is only for whoever looks at the process list. The settings come as one line of JSON on stdin, since a URL may hold
a password. Stdin stays open after it, and is the worker's lifeline: the kernel closes it when the demo ends, however
it ends, and a worker without a demo ends too.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing
from io import FileIO
from typing import Final

import anyio

from affinity.demo.app import build_app
from affinity.demo.counts import CountsFile
from affinity.demo.plan import WorkerSettings
from affinity.demo.transcript import transcripts_of
from affinity.worker import Worker

STDIN: Final = 0
ORPHANED: Final = 1


def main() -> None:
    """Run one worker until it is signalled, or until the demo is gone."""
    # Unbuffered: a thread that waits in a buffered read would hold a lock that the interpreter needs at its end.
    lifeline = FileIO(STDIN, closefd=False)
    settings = WorkerSettings.model_validate_json(lifeline.readline())
    threading.Thread(target=_end_with, args=[lifeline], name="lifeline", daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    anyio.run(_serve, settings)


def _end_with(lifeline: FileIO) -> None:
    lifeline.read()  # returns when the other end is closed
    os._exit(ORPHANED)


async def _serve(settings: WorkerSettings) -> None:
    options = settings.options
    transcripts = transcripts_of(settings.run, max_sessions=max(1, options.max_sessions_per_runtime))
    with closing(CountsFile(settings.counts)) as counts:
        app = build_app(settings.run, transcripts, counts, think=settings.think)
        try:
            await Worker(app, settings.url, options, migrate=False).serve()
        finally:
            counts.note(transcripts.stats)


if __name__ == "__main__":
    main()
