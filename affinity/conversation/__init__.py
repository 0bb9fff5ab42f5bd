"""Conversations: sessions with a journal of events, and a handler that a *wake* runs for new events.

==============  ========================================================================================
client, inbox   the calls of `affinity.Client`, on the journals of its database (`journals`)
events          the typed events, and the entries of a journal as readers see them
kinds           a kind of conversations: names, bounds, and the messages to their instances
stream          provisional output of a wake
handle          the handle of a conversation, for clients
follow, reply   its reads: feeds of events, replies to inputs
reply_stream    the events that belong to one input, as they come
settling        whether it has nothing left to do
views           its other views
lineage         forks, merges and the like: how they are made, and the calls of clients
transfer        export and import
steps           the work that a wake does once, and its commits before its end
kept_state      the state in the attempts of a wake: each change counts once
==============  ========================================================================================
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.conversation.client import Connectable, ConversationInfo
    from affinity.conversation.conversations import Conversations as Conversations
    from affinity.conversation.endings import RunningCode
    from affinity.conversation.events import (
        AgentMessage,
        AnswerEvent,
        CallEnded,
        CallStarted,
        ChildDelegated,
        ChildEnded,
        ChildOutcome,
        ConfirmationAnswer,
        Content,
        ContextSummary,
        ConversationIdle,
        ConversationStatusChanged,
        CustomToolResult,
        CustomToolUse,
        DeadLetters,
        DefineOutcome,
        InputsRead,
        JournalEntry,
        JournalEvent,
        OutcomeStatus,
        OutcomeUpdated,
        RequestEvent,
        RequestExpired,
        RevisitDue,
        RunEnded,
        RunStarted,
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
        kind_of,
        text_of,
    )
    from affinity.conversation.follow import EventFeed, FeedItem
    from affinity.conversation.handle import ConversationHandle as ConversationHandle
    from affinity.conversation.inbox import PendingRequest, RequestChange, RequestFeed
    from affinity.conversation.journal import ConversationStatus
    from affinity.conversation.kinds import ConversationLimits as ConversationLimits
    from affinity.conversation.lineage import Ancestor
    from affinity.conversation.reply import Reply
    from affinity.conversation.reply_stream import Heartbeat, ReplyItem, ReplyStream
    from affinity.conversation.sections import Section
    from affinity.conversation.stream import (
        Retracted,
        Streamed,
        StreamItem,
        Streams,
        StreamWriter,
        ToolEnded,
        ToolStarted,
    )
    from affinity.conversation.trace import TRACE_KINDS
    from affinity.conversation.views import DeadLetter, EndedWake, PendingRevisit
    from affinity.conversation.wake import Delegate, current_wake
    from affinity.conversation.wake import Wake as Wake
    from affinity.conversation.wake_runs import WakeRun

# A name imported as itself, `X as X`, is for the rest of this tree: its public place is another (docs/learn/names.md).
__all__ = [
    "TRACE_KINDS",
    "AgentMessage",
    "Ancestor",
    "AnswerEvent",
    "CallEnded",
    "CallStarted",
    "ChildDelegated",
    "ChildEnded",
    "ChildOutcome",
    "ConfirmationAnswer",
    "Connectable",
    "Content",
    "ContextSummary",
    "ConversationIdle",
    "ConversationInfo",
    "ConversationStatus",
    "ConversationStatusChanged",
    "CustomToolResult",
    "CustomToolUse",
    "DeadLetter",
    "DeadLetters",
    "DefineOutcome",
    "Delegate",
    "EndedWake",
    "EventFeed",
    "FeedItem",
    "Heartbeat",
    "InputsRead",
    "JournalEntry",
    "JournalEvent",
    "OutcomeStatus",
    "OutcomeUpdated",
    "PendingRequest",
    "PendingRevisit",
    "Reply",
    "ReplyItem",
    "ReplyStream",
    "RequestChange",
    "RequestEvent",
    "RequestExpired",
    "RequestFeed",
    "Retracted",
    "RevisitDue",
    "RunEnded",
    "RunStarted",
    "RunningCode",
    "Section",
    "SpanCompleted",
    "SpanError",
    "SpanStarted",
    "StopReason",
    "StreamItem",
    "StreamWriter",
    "Streamed",
    "Streams",
    "ToolConfirmation",
    "ToolEnded",
    "ToolResult",
    "ToolStarted",
    "ToolUse",
    "UnknownEvent",
    "UserInterrupt",
    "UserMessage",
    "WakeRun",
    "current_wake",
    "kind_of",
    "text_of",
]

_PLACES: typing.Final[typing.Mapping[str, tuple[str, ...]]] = {
    "client": ("Connectable", "ConversationInfo", "ConversationStatus"),
    "conversations": ("Conversations",),
    "endings": ("RunningCode",),
    "events": (
        "AgentMessage",
        "AnswerEvent",
        "CallEnded",
        "CallStarted",
        "ChildDelegated",
        "ChildEnded",
        "ChildOutcome",
        "ConfirmationAnswer",
        "Content",
        "ContextSummary",
        "ConversationIdle",
        "ConversationStatusChanged",
        "CustomToolResult",
        "CustomToolUse",
        "DeadLetters",
        "DefineOutcome",
        "InputsRead",
        "JournalEntry",
        "JournalEvent",
        "OutcomeStatus",
        "OutcomeUpdated",
        "RequestEvent",
        "RequestExpired",
        "RevisitDue",
        "RunEnded",
        "RunStarted",
        "SpanCompleted",
        "SpanError",
        "SpanStarted",
        "StopReason",
        "ToolConfirmation",
        "ToolResult",
        "ToolUse",
        "UnknownEvent",
        "UserInterrupt",
        "UserMessage",
        "kind_of",
        "text_of",
    ),
    "follow": (
        "EventFeed",
        "FeedItem",
    ),
    "handle": ("ConversationHandle",),
    "inbox": (
        "PendingRequest",
        "RequestChange",
        "RequestFeed",
    ),
    "kinds": ("ConversationLimits",),
    "lineage": ("Ancestor",),
    "reply": ("Reply",),
    "reply_stream": (
        "Heartbeat",
        "ReplyItem",
        "ReplyStream",
    ),
    "sections": ("Section",),
    "stream": (
        "Retracted",
        "StreamItem",
        "StreamWriter",
        "Streamed",
        "Streams",
        "ToolEnded",
        "ToolStarted",
    ),
    "trace": ("TRACE_KINDS",),
    "views": (
        "DeadLetter",
        "EndedWake",
        "PendingRevisit",
    ),
    "wake": (
        "Delegate",
        "Wake",
        "current_wake",
    ),
    "wake_runs": ("WakeRun",),
}
"""Modules of this package, with the names that are imported from them when they are used."""

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a client imports no handler."""
        place = next((module for module, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module 'affinity.conversation' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"affinity.conversation.{place}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value

    def __dir__() -> list[str]:
        """Return the public names too, imported or not."""
        return sorted({*globals(), *__all__})
