"""Changes by session id, of data that guests keep for a session and of replies of instances; sent like hints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from affinity.provider.contract import merge_changes
from affinity.provider.sqlite.hints import Mailbox, registry_lock

_registry: Final[defaultdict[Path, set[ChangeSubscription]]] = defaultdict(set)


class ChangeSubscription(Mailbox[Mapping[str, bool]]):
    """A `ChangeWatch`.

    Args:
        path: the resolved path of the file.
        watch: called with +1 when the reader begins to wait, with -1 when it ends.
    """

    def __init__(self, path: Path, watch: Callable[[int], None]) -> None:
        super().__init__(_registry, path, watch)
        self._changed: dict[str, bool] | None = None
        self._any = False  # any session may have changed

    async def wait(self, timeout: float) -> Mapping[str, bool] | None:
        await self.wait_for_news(timeout)
        changed = {} if self._any else self._changed
        self._changed, self._any = None, False
        return changed

    def receive(self, changed: Mapping[str, bool]) -> None:
        """Add sessions that have changed, none for any, as `wait` returns them; on this subscription's own loop."""
        self._any = self._any or not changed
        self._changed = self._changed or {}
        merge_changes(self._changed, changed)
        self.came.set()


def send_changes(path: Path, changed: Mapping[str, bool]) -> None:
    """Notify the subscribers of this process on one file of changes, as `ChangeWatch.wait` returns them."""
    with registry_lock:
        subscriptions = list(_registry[path]) if path in _registry else []
    for subscription in subscriptions:
        subscription.post(changed)
