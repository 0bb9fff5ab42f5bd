"""The users of the demo: they start conversations, and raise each message as an event when it is due.

A conversation opens in the first part of the run and lasts until its end, its messages evenly spread. So a worker that
dies after the first part has sessions with work left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Final

from affinity.client import Client, ExternalEvent, Start
from affinity.demo.app import EVENT
from affinity.demo.conversations import Conversation

BATCH: Final = 500
"""Messages that one call raises at most, so that a feed that is late does not block the loop."""

OPENING: Final = 0.25
"""Part of the run in which conversations open."""


class Feed:
    """Starts all conversations of a run and raises their messages."""

    def __init__(
        self,
        client: Client,
        orchestration: str,
        conversations: Mapping[str, Conversation],
        *,
        seconds: float,
        seed: int,
    ) -> None:
        """A feed that has not begun.

        Args:
            client: raises the events.
            orchestration: name of the orchestration that receives them.
            conversations: by instance id.
            seconds: from the first message to the last.
            seed: decides which conversation opens when.
        """
        self._client = client
        self._orchestration = orchestration
        self._conversations = conversations
        self._raised = dict.fromkeys(conversations, 0)
        self._due = sorted(schedule(conversations, seconds, seed), reverse=True)  # the next one is the last
        self.began_at = 0.0  # Unix seconds
        self._began = 0.0  # monotonic

    def begin(self) -> None:
        """Start the clock of the schedule."""
        self.began_at, self._began = time.time(), time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether all messages are raised."""
        return not self._due

    def left(self, session_id: str) -> int:
        """Messages of a conversation that are not raised yet."""
        return len(self._conversations[session_id].messages) - self._raised[session_id]

    async def raise_due(self) -> None:
        """Raise the messages that are due."""
        elapsed = time.monotonic() - self._began
        due = [session for _, session in takewhile(lambda entry: entry[0] <= elapsed, reversed(self._due[-BATCH:]))]
        del self._due[len(self._due) - len(due) :]
        await self.raise_next(due)

    async def raise_next(self, session_ids: Collection[str]) -> None:
        """Raise the next message of each of these conversations, if there is one; those without any are started."""
        new = dict.fromkeys(session_id for session_id in session_ids if not self._raised[session_id])
        await self._client.start_many(
            Start(self._orchestration, len(self._conversations[session_id].messages), session_id) for session_id in new
        )
        await self._client.raise_events([event for session_id in session_ids for event in self._next(session_id)])

    def _next(self, session_id: str) -> Iterable[ExternalEvent]:
        position = self._raised[session_id]
        for message in self._conversations[session_id].messages[position : position + 1]:
            self._raised[session_id] += 1
            yield ExternalEvent(session_id, EVENT, message)


def schedule(conversations: Mapping[str, Conversation], seconds: float, seed: int) -> Iterable[tuple[float, str]]:
    """When the next message of which conversation is due, in seconds from the beginning."""
    chance = random.Random(seed)  # noqa: S311 -- not a secret
    for session_id, conversation in conversations.items():
        opens = chance.uniform(0.0, seconds * OPENING)
        gap = (seconds - opens) / len(conversation.messages)
        yield from ((opens + gap * position, session_id) for position in range(len(conversation.messages)))
