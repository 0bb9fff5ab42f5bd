"""Whether the database answers the connections on which a worker does its work.

The keeper renews the lease on a connection of its own. That one may be fine while those of the worker are not: then the
worker would hold its sessions and do nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from affinity.errors import ConnectionLost, DatabaseFailure, ProviderError
from affinity.worker.progress import BEAT_SECONDS

T = TypeVar("T")


class Silence:
    """For how long calls have waited for an answer. Any answer counts, an error that the database reports too.

    Time is counted in beats of the worker's loop: a loop that stands still cannot hear, and that is not silence.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}

    def waits(self, kind: str) -> bool:
        """Whether calls of this kind have no answer yet."""
        return kind in self._waiting

    async def watch(self, kind: str, call: Awaitable[T], *, repeated: bool = False) -> T:
        """Await a call. Of one kind there is one at a time.

        Args:
            kind: name of what is asked.
            call: the call.
            repeated: it is made again until it is answered: a connection that breaks does not end the silence.

        Raises:
            DatabaseFailure: there is not enough memory for it; the call may be made again.
        """
        self._waiting.setdefault(kind, 0.0)
        answered = not repeated
        try:
            result = await call
            answered = True
        except MemoryError as error:
            raise DatabaseFailure(f"not enough memory ({kind})") from error
        except ProviderError as error:
            answered |= not isinstance(error, ConnectionLost)
            raise
        finally:
            if answered:
                self._waiting.pop(kind, None)
        return result

    def beat(self) -> float:
        """Another `BEAT_SECONDS` have passed; the longest silence in seconds."""
        for kind in self._waiting:
            self._waiting[kind] += BEAT_SECONDS
        return max(self._waiting.values(), default=0.0)
