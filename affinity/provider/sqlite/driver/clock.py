"""The database's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """Unix seconds as all providers of one database file see them: the machine's, plus an offset that tests move."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def now(self) -> float:
        """Now, in whole microseconds, so that an instant survives the way through a ``datetime`` and back unchanged."""
        return round(time.time() + self.offset, 6)


def instant(seconds: float) -> datetime:
    """Unix seconds as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)
