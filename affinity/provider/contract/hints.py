"""Wake-up hints and a worker's subscription to them."""

from __future__ import annotations

from typing import Protocol

from affinity.records import frozen


@frozen(kw_only=True)
class Hint:
    """Why a worker was woken; only ever a hint."""

    work: bool = True  # look into the queues
    cancel: bool = False  # a work item of ours may have been removed


class HintSource(Protocol):
    """A subscription to hints."""

    async def wait(self, timeout: float) -> Hint | None:
        """The hints that came since the last call, merged, waiting at most ``timeout`` seconds for one; None when none
        came.

        Raises:
            ConnectionLost: the subscription broke; open a new one.
        """
        ...
