"""The people who write: each message of each conversation is an event, raised when its time has come."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from affinity.cli.demo.app import EVENT
from affinity.cli.demo.conversations import Conversation
from affinity.cli.demo.plan import replay_seconds
from affinity.client import Client, ExternalEvent

BATCH: Final = 500
"""Events that one call raises at most, so that a feed that has fallen behind still lets others act in between."""


class Feed:
    """Raises the messages of all conversations side by side, spread evenly over `seconds`.

    Every conversation lasts from the beginning to the end, so whenever a worker dies, its sessions have work left.
    """

    def __init__(self, client: Client, conversations: Mapping[str, Conversation], seed: int) -> None:
        """Messages for ``conversations``, by instance id."""
        self._client = client
        self._conversations = conversations
        self._said = dict.fromkeys(conversations, 0)
        self.seconds = replay_seconds(list(conversations.values()))
        self._due = sorted(_schedule(conversations, self.seconds, seed), reverse=True)  # the next one is the last
        self.began_at = 0.0  # Unix seconds
        self._began = 0.0  # monotonic

    def begin(self) -> None:
        """The first message is due from now on."""
        self.began_at, self._began = time.time(), time.monotonic()

    def left(self, session_id: str) -> int:
        """Messages of a conversation that have not been raised yet."""
        return len(self._conversations[session_id].messages) - self._said[session_id]

    @property
    def finished(self) -> bool:
        """Whether everything has been said."""
        return not self._due

    async def raise_due(self) -> None:
        """Raise what is due by now, and was not raised before its time."""
        elapsed = time.monotonic() - self._began
        due = [
            session_id for _, session_id in takewhile(lambda entry: entry[0] <= elapsed, reversed(self._due[-BATCH:]))
        ]
        del self._due[len(self._due) - len(due) :]
        await self._raise(due)

    async def hasten(self, session_ids: Iterable[str]) -> None:
        """Raise the next message of each of these conversations at once, if there is one."""
        await self._raise(session_ids)

    async def _raise(self, session_ids: Iterable[str]) -> None:
        events = [event for session_id in session_ids for event in self._next(session_id)]
        await self._client.raise_events(events)

    def _next(self, session_id: str) -> Sequence[ExternalEvent]:
        """The next message of a conversation; none when it was hastened to its end."""
        position = self._said[session_id]
        messages = self._conversations[session_id].messages[position : position + 1]
        self._said[session_id] += len(messages)
        return [ExternalEvent(session_id, EVENT, message) for message in messages]


def _schedule(conversations: Mapping[str, Conversation], seconds: float, seed: int) -> Iterable[tuple[float, str]]:
    """When the next message of which conversation is due, in seconds from the beginning."""
    chance = random.Random(seed)  # noqa: S311 -- spreads the messages, hides nothing
    for session_id, conversation in conversations.items():
        gap = seconds / len(conversation.messages)
        offset = chance.uniform(0.0, gap)
        yield from ((offset + gap * position, session_id) for position in range(len(conversation.messages)))
