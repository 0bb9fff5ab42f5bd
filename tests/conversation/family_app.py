"""Conversations that give each word of a message to a child, for workers in processes of their own."""

from __future__ import annotations

import affinity
from affinity.conversation import AgentMessage, ChildEnded, UserMessage
from tests.conversation.application import Chat, echo

children = affinity.Conversations(Chat, kind="child")
children.on_wake(echo)
parents = affinity.Conversations(Chat, kind="parent")


@parents.on_wake(retry=affinity.RetryPolicy(initial_interval=0.05))
async def delegate(wake: affinity.Wake, chat: Chat) -> None:
    """Delegate each word, and note each end."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            for word in event.text.split():
                await wake.delegate(children, f"{wake.conversation_id}/{word}", UserMessage(word))
        elif isinstance(event, ChildEnded):
            wake.append(AgentMessage(f"{event.child} {event.outcome}"))


app = affinity.App("family")
app.include(parents)
app.include(children)
