"""A worker process of the demo: ``python -m affinity.demo.worker NAME``, where NAME is for the process list.

The settings come as one line of JSON on stdin, since a URL may hold a password. Stdin stays open after it: the kernel
closes it when the demo ends, however it ends, and the worker ends too.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Final, Self

import anyio
from pydantic import BaseModel, Field

from affinity.demo.app import build_app, transcripts_of
from affinity.session import CacheStats
from affinity.worker import RuntimeOptions, Worker

STDIN: Final = 0
ORPHANED: Final = 1


class WorkerSettings(BaseModel):
    """Input of a worker process."""

    run: str
    url: str = Field(repr=False)  # may hold a password
    counts: Path  # the file for its `Counts`
    think: float  # seconds
    options: RuntimeOptions


class Counts(BaseModel):
    """Counts of the session layer since a worker began. They only grow, and so does their JSON text.

    The database does not have them all: a read for a turn whose worker was killed leaves no trace there, and neither
    does a refused write.
    """

    hydrations: int = 0  # transcripts read from the database, or begun where there is none
    refused: int = 0  # writes that the fence refused, or whose result is unknown

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """The sum of the counts in these files."""
        counts = [cls.model_validate_json(path.read_bytes()) for path in paths]
        return cls(hydrations=sum(each.hydrations for each in counts), refused=sum(each.refused for each in counts))


class CountsFile:
    """The file with the counts of one worker. The kernel keeps what was written when the worker is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        self._written: Counts | None = None
        self.note(CacheStats())

    def note(self, stats: CacheStats) -> None:
        """Write the counts, if they have changed."""
        counts = Counts(hydrations=stats.hydrations, refused=stats.conflicts)
        if counts != self._written:
            os.pwrite(self._file, counts.model_dump_json().encode(), 0)  # in one call: never half written
            self._written = counts

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def main() -> None:
    """Run one worker until it is signalled, or until the demo has ended."""
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
        app = build_app(settings.run, transcripts, counts.note, think=settings.think)
        try:
            await Worker(app, settings.url, options, migrate=False).serve()
        finally:
            counts.note(transcripts.stats)


if __name__ == "__main__":
    main()
