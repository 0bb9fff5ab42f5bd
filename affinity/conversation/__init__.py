"""Conversations: sessions with a journal of events, and a handler that a *wake* runs for new events.

==============  ========================================================================================
events          the typed events, and the entries of a journal as readers see them
kinds           a kind of conversations: names, bounds, and the messages to their instances
stream          provisional output of a wake
handle          the handle of a conversation, for clients
follow, reply   its reads: feeds of events, replies to inputs
views           what else it gives
lineage         forks, merges and the like: how they are made, and the calls of clients
transfer        export and import
formats         events as the messages of the APIs of models, and back
steps           what a wake does once, and what it commits before its end
tools           functions that a model may have called
loop            rounds of a model and its tools
builtins        tools that a model has over its own conversation
==============  ========================================================================================
"""

import affinity.conversation.reasons  # noqa: F401 -- adds them
from affinity.conversation.builtins import builtin_tools
from affinity.conversation.conversations import Conversations
from affinity.conversation.events import (
    AgentMessage,
    AnswerEvent,
    ChildDelegated,
    ChildEnded,
    ChildOutcome,
    ConfirmationAnswer,
    ConversationIdle,
    ConversationStatusChanged,
    CustomToolResult,
    CustomToolUse,
    DefineOutcome,
    JournalEntry,
    JournalEvent,
    RequestEvent,
    RequestExpired,
    RevisitDue,
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
from affinity.conversation.follow import EventFeed, FeedItem
from affinity.conversation.formats import Transcript, from_anthropic, from_openai, render_input, to_anthropic, to_openai
from affinity.conversation.handle import ConversationHandle
from affinity.conversation.kinds import ConversationLimits
from affinity.conversation.lineage import Ancestor
from affinity.conversation.loop import LoopResult, LoopStop, Model, ModelReply, ModelRequest, ToolCall, run_loop
from affinity.conversation.reply import Reply
from affinity.conversation.stream import Retracted, Streamed, Streams, StreamWriter
from affinity.conversation.tools import Tool, ToolContext, ToolErrorKind, ToolRepeat, tool
from affinity.conversation.views import PendingRequest, PendingRevisit
from affinity.conversation.wake import Delegate, Wake
from affinity.journal import ConversationStatus

__all__ = [
    "AgentMessage",
    "Ancestor",
    "AnswerEvent",
    "ChildDelegated",
    "ChildEnded",
    "ChildOutcome",
    "ConfirmationAnswer",
    "ConversationHandle",
    "ConversationIdle",
    "ConversationLimits",
    "ConversationStatus",
    "ConversationStatusChanged",
    "Conversations",
    "CustomToolResult",
    "CustomToolUse",
    "DefineOutcome",
    "Delegate",
    "EventFeed",
    "FeedItem",
    "JournalEntry",
    "JournalEvent",
    "LoopResult",
    "LoopStop",
    "Model",
    "ModelReply",
    "ModelRequest",
    "PendingRequest",
    "PendingRevisit",
    "Reply",
    "RequestEvent",
    "RequestExpired",
    "Retracted",
    "RevisitDue",
    "SpanCompleted",
    "SpanError",
    "SpanStarted",
    "StopReason",
    "StreamWriter",
    "Streamed",
    "Streams",
    "Tool",
    "ToolCall",
    "ToolConfirmation",
    "ToolContext",
    "ToolErrorKind",
    "ToolRepeat",
    "ToolResult",
    "ToolUse",
    "Transcript",
    "UnknownEvent",
    "UserInterrupt",
    "UserMessage",
    "Wake",
    "builtin_tools",
    "from_anthropic",
    "from_openai",
    "render_input",
    "run_loop",
    "to_anthropic",
    "to_openai",
    "tool",
]
