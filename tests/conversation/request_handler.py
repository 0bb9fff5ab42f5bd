"""A handler and helpers for the tests of agent sessions."""

from __future__ import annotations

from typing import Any

import affinity
from affinity import RetryPolicy, Wake
from affinity.conversation import (
    AgentMessage,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    ToolConfirmation,
    UserMessage,
)
from tests.conversation.application import Chat

ONCE = RetryPolicy(max_attempts=1)


async def asks(wake: Wake, chat: Chat) -> None:
    """A message that names a request, or a revisit, makes one; an answer is repeated."""
    for event in wake.events:
        match event:
            case UserMessage(content="confirm"):
                wake.require(ToolConfirmation("refund", {"amount": 3}))
            case UserMessage(content="custom"):
                wake.require(CustomToolUse("lookup", {"key": "k"}))
            case UserMessage(content="later"):
                wake.revisit(0.2, key="later", reason="to look again")
            case ConfirmationAnswer(allowed=allowed):
                wake.append(AgentMessage(f"allowed {allowed}"))
            case CustomToolResult(result=result):
                wake.append(AgentMessage(f"result {result}"))
            case _:
                wake.append(AgentMessage(f"received {event.kind}"))
    for due in wake.due:
        wake.append(AgentMessage(f"revisit {due.key} {due.reason}"))


async def said(talk: affinity.ConversationHandle) -> list[str]:
    events = [each.event for each in await talk.history(kinds=["agent.message"])]
    return [event.text for event in events if isinstance(event, AgentMessage)]


def says(talk: affinity.ConversationHandle, text: str) -> Any:
    async def check() -> bool:
        return text in await said(talk)

    return check
