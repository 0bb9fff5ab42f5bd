"""What a worker has counted, in a file that outlives it.

Not all that the session layer counts is in the database: a transcript that was read for a turn whose worker was killed
in the middle left no trace there, and neither did a write that was refused. So each worker keeps the counts of its
`Sessions` in a file of its own. What a process has written survives its ``kill -9``, because the kernel has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from affinity.session import CacheStats


class Counts(BaseModel):
    """Counts since a worker began. They only grow, and so does their JSON text."""

    hydrations: int = 0  # transcripts read from the database, or begun where there is none
    refused: int = 0  # writes that did not pass their fence, or of whose result nobody could say that it was kept

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """The sum of the counts in these files."""
        counts = [cls.model_validate_json(path.read_bytes()) for path in paths]
        return cls(hydrations=sum(each.hydrations for each in counts), refused=sum(each.refused for each in counts))


class CountsFile:
    """The file of one worker."""

    def __init__(self, path: Path) -> None:
        """A new file, with counts of zero."""
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        self._noted: Counts | None = None
        self._write(Counts())

    def note(self, stats: CacheStats) -> None:
        """Write down what was counted so far, unless the file says so already."""
        self._write(Counts(hydrations=stats.hydrations, refused=stats.conflicts))

    def _write(self, counts: Counts) -> None:
        if counts != self._noted:
            # A few bytes for the kernel's memory, in one call: quicker than a thread for it, and never half there.
            os.pwrite(self._file, counts.model_dump_json().encode(), 0)
            self._noted = counts

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
