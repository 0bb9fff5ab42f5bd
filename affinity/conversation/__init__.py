"""Conversations: sessions with a journal of what happened, and a handler that a *wake* runs for what has arrived.

==============  ========================================================================================
events          the typed events, and the entries of a journal as readers see them
kinds           a kind of conversations: names, bounds, and the messages to their instances
stream          provisional output of a wake
==============  ========================================================================================
"""

from affinity.conversation.events import (
    AgentMessage,
    AnswerEvent,
    ChildDelegated,
    ChildEnded,
    ChildOutcome,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    DefineOutcome,
    JournalEntry,
    JournalEvent,
    RequestEvent,
    SessionIdle,
    SessionInterrupted,
    SessionStatusChanged,
    SpanCompleted,
    SpanError,
    SpanStarted,
    StopReason,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UnknownEvent,
    UserInterrupt,
    UserMessage,
)
from affinity.conversation.kinds import ConversationLimits
from affinity.conversation.stream import Retracted, Streamed, Streams, StreamWriter

__all__ = [
    "AgentMessage",
    "AnswerEvent",
    "ChildDelegated",
    "ChildEnded",
    "ChildOutcome",
    "ConfirmationAnswer",
    "ConversationLimits",
    "CustomToolResult",
    "CustomToolUse",
    "DefineOutcome",
    "JournalEntry",
    "JournalEvent",
    "RequestEvent",
    "Retracted",
    "SessionIdle",
    "SessionInterrupted",
    "SessionStatusChanged",
    "SpanCompleted",
    "SpanError",
    "SpanStarted",
    "StopReason",
    "StreamWriter",
    "Streamed",
    "Streams",
    "ToolConfirmation",
    "ToolResult",
    "ToolUse",
    "UnknownEvent",
    "UserInterrupt",
    "UserMessage",
]
