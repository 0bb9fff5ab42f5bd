"""Events that orchestrations raise for other instances: one whose instance does not exist is dropped, with a warning.

The turn that sends events does not wait for the answer. What was sent is looked up afterwards, at most once a second
and in one statement, and only while orchestrations send events.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import anyio
from cachetools import LRUCache

from affinity.limits import MAX_BATCH
from affinity.orchestration.events import EventSent
from affinity.provider.contract import MessageKey
from affinity.worker.services import WorkerPart, WorkerServices

logger: logging.Logger = logging.getLogger("affinity.worker")

LOOK_UP_SECONDS: Final = 1.0
"""Between two look-ups."""

REMEMBERED: Final = 10_000
"""Pairs of instance and event that are not warned of again."""


class SentEvents(WorkerPart):
    """Warns once of each event that was raised for an instance that does not exist."""

    def __init__(self, services: WorkerServices) -> None:
        super().__init__(services)
        self._sent: dict[MessageKey, str] = {}  # receivers and names of events, each with its last sender
        self._warned = LRUCache[MessageKey, bool](REMEMBERED)
        self._arrived = anyio.Event()

    def note(self, sender: str, events: Iterable[EventSent]) -> None:
        """Events that a turn has sent; no more are kept than one look-up reads."""
        for event in events:
            pair = MessageKey(event.instance_id, event.name)
            if pair not in self._warned and len(self._sent) < MAX_BATCH:
                self._sent[pair] = sender
                self._arrived.set()

    async def run(self) -> None:
        """Look up receivers until cancelled."""
        while True:
            await self._arrived.wait()
            sent, self._sent, self._arrived = self._sent, {}, anyio.Event()
            # A reply has no use here; `get_replies` shows which instances exist, without their outputs.
            found = await self._provider.get_replies(list(sent), max_bytes=1)
            for (pair, sender), state in zip(sent.items(), found, strict=True):
                if state is None:
                    self._warned[pair] = True
                    logger.warning(
                        "instance %s has raised event %r for instance %s, which does not exist: the event is dropped. "
                        "Start that instance first, or correct its id",
                        sender,
                        pair.key,
                        pair.instance_id,
                        extra={"instance_id": sender},
                    )
            await anyio.sleep(LOOK_UP_SECONDS)
