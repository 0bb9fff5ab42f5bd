"""Conversations for workers in processes of their own; the handler calls the test, and does what it answers."""

from __future__ import annotations

import os
import signal

import affinity
from affinity.conversation import AgentMessage, UserMessage
from tests.conversation.application import Chat
from tests.support.activity_calls import call_test

conversations = affinity.Conversations(Chat, kind="steered")


@conversations.on_wake(retry=affinity.RetryPolicy(max_attempts=2, initial_interval=0.05))
async def steered(wake: affinity.Wake, chat: Chat) -> None:
    """Send the new messages to the test, and do as it answers."""
    received = [event.text for event in wake.events if isinstance(event, UserMessage)]
    chat.wakes += 1
    chat.received += received
    wake.stream("thinking")
    if received == ["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    for event in wake.events:
        if isinstance(event, UserMessage) and event.text.startswith("quick"):
            wake.append(AgentMessage(f"re: {event.text}"))
            return
    said = await call_test(wake.context, received=received, wake=wake.id, wakes=chat.wakes)
    wake.append(AgentMessage(f"{','.join(received)}: {said}"))


app = affinity.App("steered")
app.include(conversations)
