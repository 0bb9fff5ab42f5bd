"""The people who write: a conversation is started by its first message, and each message is an event.

A conversation opens at some time in the first part of the run and lasts until its end, its messages evenly spread. So
workers find sessions one after the other, and whenever one of them dies after the first part, its sessions have work
left: of two messages or more, the last is due in the second half.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from affinity.client import Client, ExternalEvent, Start
from affinity.demo.app import EVENT
from affinity.demo.conversations import Conversation

BATCH: Final = 500
"""Messages that one call raises at most, so that a feed that has fallen behind still lets others act in between."""

OPENING: Final = 0.25
"""Part of the run in which conversations open."""


class Feed:
    """Starts all conversations of a run and raises their messages, each when it is due."""

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
            orchestration: name of the orchestration that listens.
            conversations: by instance id.
            seconds: from the first message to the last.
            seed: decides which conversation opens when.
        """
        self._client = client
        self._orchestration = orchestration
        self._conversations = conversations
        self._said = dict.fromkeys(conversations, 0)
        self._due = sorted(schedule(conversations, seconds, seed), reverse=True)  # the next one is the last
        self.began_at = 0.0  # Unix seconds
        self._began = 0.0  # monotonic

    def begin(self) -> None:
        """The first message is due from now on."""
        self.began_at, self._began = time.time(), time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether everything has been said."""
        return not self._due

    def left(self, session_id: str) -> int:
        """Messages of a conversation that have not been raised yet."""
        return len(self._conversations[session_id].messages) - self._said[session_id]

    async def raise_due(self) -> None:
        """Raise what is due by now, unless it was hastened."""
        elapsed = time.monotonic() - self._began
        entries = takewhile(lambda entry: entry[0] <= elapsed, reversed(self._due[-BATCH:]))
        due = [session_id for _, session_id in entries]
        del self._due[len(self._due) - len(due) :]
        await self._raise(due)

    async def hasten(self, session_ids: Collection[str]) -> None:
        """Raise the next message of each of these conversations at once, if there is one."""
        await self._raise(session_ids)

    async def _raise(self, session_ids: Collection[str]) -> None:
        new = dict.fromkeys(session_id for session_id in session_ids if not self._said[session_id])
        await self._client.start_many(map(self._start, new))
        await self._client.raise_events([event for session_id in session_ids for event in self._next(session_id)])

    def _start(self, session_id: str) -> Start:
        return Start(self._orchestration, len(self._conversations[session_id].messages), session_id)

    def _next(self, session_id: str) -> Sequence[ExternalEvent]:
        """The next message of a conversation; none when it was hastened to its end."""
        position = self._said[session_id]
        messages = self._conversations[session_id].messages[position : position + 1]
        self._said[session_id] += len(messages)
        return [ExternalEvent(session_id, EVENT, message) for message in messages]


def schedule(conversations: Mapping[str, Conversation], seconds: float, seed: int) -> Iterable[tuple[float, str]]:
    """When the next message of which conversation is due, in seconds from the beginning."""
    chance = random.Random(seed)  # noqa: S311 -- spreads the messages, hides nothing
    for session_id, conversation in conversations.items():
        opens = chance.uniform(0.0, seconds * OPENING)
        gap = (seconds - opens) / len(conversation.messages)
        yield from ((opens + gap * position, session_id) for position in range(len(conversation.messages)))
