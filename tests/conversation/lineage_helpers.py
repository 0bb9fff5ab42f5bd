"""Helpers for the tests of the lineage of sessions."""

from __future__ import annotations

from collections.abc import Sequence

import affinity
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from tests.conversation.application import Chat

LONG = 60.0


def words(entries: Sequence[JournalEntry]) -> list[str]:
    """The texts of messages, in order."""
    return [entry.event.text for entry in entries if isinstance(entry.event, UserMessage | AgentMessage)]


async def texts(talk: affinity.ConversationHandle) -> list[str]:
    """Of all messages of a conversation."""
    return words(await talk.history(limit=1000))


def rebuild(entries: Sequence[JournalEntry]) -> Chat:
    """The fold that the handler `echo` computes."""
    received = [entry.event.text for entry in entries if isinstance(entry.event, UserMessage)]
    return Chat(received=received, wakes=sum(entry.kind == "span.started" for entry in entries))


async def say(talk: affinity.ConversationHandle, text: str) -> str:
    """A message and its answer."""
    return (await talk.ask(UserMessage(text), timeout=LONG)).text
