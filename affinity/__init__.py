"""Durable workflows whose activities stay with the worker that holds their in-memory state.

The public names: what an application imports, and every type that these take or return. Errors are in
`affinity.errors`; the types of a provider are in `affinity.provider.contract`.
"""

import difflib
import importlib
import importlib.util
import sys
import typing

import affinity_workflows

affinity_workflows.check_installation()

if typing.TYPE_CHECKING:
    from affinity import agent as agent
    from affinity import errors as errors
    from affinity import sync as sync
    from affinity import telemetry as telemetry
    from affinity.client import (
        Activity,
        ActivityStatus,
        AuditEntry,
        Connectable,
        ConversationInfo,
        EndedStatus,
        ExecutionSummary,
        ExternalEvent,
        Failure,
        Handle,
        HistoryRecord,
        IfEnded,
        Instance,
        InstanceTree,
        Page,
        Pages,
        PendingRequest,
        PrunedInstances,
        RegisteredFunction,
        RequestChange,
        RequestFeed,
        ResetPreview,
        SessionMoveOutcome,
        Start,
        StartOutcome,
        TreeNode,
        WorkStatistics,
        open_store,
    )
    from affinity.composed.app import App
    from affinity.composed.client import Client
    from affinity.conversation import (
        AgentMessage,
        Ancestor,
        AnswerEvent,
        CallEnded,
        CallStarted,
        ChildDelegated,
        ChildEnded,
        ChildOutcome,
        ConfirmationAnswer,
        ConversationHandle,
        ConversationIdle,
        ConversationLimits,
        Conversations,
        ConversationStatus,
        ConversationStatusChanged,
        CustomToolResult,
        CustomToolUse,
        DeadLetter,
        DefineOutcome,
        Delegate,
        EndedWake,
        EventFeed,
        FeedItem,
        Heartbeat,
        JournalEntry,
        JournalEvent,
        OutcomeUpdated,
        PendingRevisit,
        Reply,
        ReplyItem,
        ReplyStream,
        RequestEvent,
        RequestExpired,
        Retracted,
        RunEnded,
        RunStarted,
        Section,
        SpanCompleted,
        SpanError,
        SpanStarted,
        StopReason,
        Streamed,
        ToolConfirmation,
        ToolEnded,
        ToolResult,
        ToolStarted,
        ToolUse,
        UnknownEvent,
        UserInterrupt,
        UserMessage,
        Wake,
    )
    from affinity.explain import DrainPreview, DrainTarget, SessionHolding, SessionLife, UnservedWork
    from affinity.orchestration import (
        ActivityCancelledSignal,
        ActivityContext,
        ActivityDefinition,
        ActivityFuture,
        BranchCancelledSignal,
        DurableFuture,
        Event,
        EventValue,
        OrchestrationCancelledSignal,
        OrchestrationContext,
        OrchestrationDefinition,
        ReceivedEvent,
        RetryPolicy,
        RetryStrategy,
        Selected,
        SessionListener,
        SessionMoved,
    )
    from affinity.provider import migrate
    from affinity.provider.contract import (
        Delivery,
        FleetLoad,
        InstanceStatus,
        MessageState,
        MoveReason,
        Quotas,
        Resumption,
        SessionInfo,
        SessionMove,
        SessionRelease,
        Suspension,
        WorkerDemand,
        WorkerInfo,
        WorkerLoad,
        WorkItemState,
    )
    from affinity.records import (
        Participant,
        RecordTimes,
        SessionFilter,
        SessionMetadata,
        SessionRecord,
        SessionState,
        SessionStore,
        SessionSummary,
        StateEncoding,
        StateWrite,
    )
    from affinity.schedules import Overlap, Schedule, Schedules, ScheduleState, ScheduleTarget, TickReason
    from affinity.session import (
        CacheStats,
        Imported,
        ImportTimes,
        MemorySessionStore,
        OnExists,
        OpenSession,
        Pruned,
        Resource,
        SessionCache,
        SessionFamily,
        SessionManager,
        Sessions,
        StateCodec,
        SyncOpenSession,
    )
    from affinity.worker import RuntimeOptions, Worker

__all__ = [
    "Activity",
    "ActivityCancelledSignal",
    "ActivityContext",
    "ActivityDefinition",
    "ActivityFuture",
    "ActivityStatus",
    "AgentMessage",
    "Ancestor",
    "AnswerEvent",
    "App",
    "AuditEntry",
    "BranchCancelledSignal",
    "CacheStats",
    "CallEnded",
    "CallStarted",
    "ChildDelegated",
    "ChildEnded",
    "ChildOutcome",
    "Client",
    "ConfirmationAnswer",
    "Connectable",
    "ConversationHandle",
    "ConversationIdle",
    "ConversationInfo",
    "ConversationLimits",
    "ConversationStatus",
    "ConversationStatusChanged",
    "Conversations",
    "CustomToolResult",
    "CustomToolUse",
    "DeadLetter",
    "DefineOutcome",
    "Delegate",
    "Delivery",
    "DrainPreview",
    "DrainTarget",
    "DurableFuture",
    "EndedStatus",
    "EndedWake",
    "Event",
    "EventFeed",
    "EventValue",
    "ExecutionSummary",
    "ExternalEvent",
    "Failure",
    "FeedItem",
    "FleetLoad",
    "Handle",
    "Heartbeat",
    "HistoryRecord",
    "IfEnded",
    "ImportTimes",
    "Imported",
    "Instance",
    "InstanceStatus",
    "InstanceTree",
    "JournalEntry",
    "JournalEvent",
    "MemorySessionStore",
    "MessageState",
    "MoveReason",
    "OnExists",
    "OpenSession",
    "OrchestrationCancelledSignal",
    "OrchestrationContext",
    "OrchestrationDefinition",
    "OutcomeUpdated",
    "Overlap",
    "Page",
    "Pages",
    "Participant",
    "PendingRequest",
    "PendingRevisit",
    "Pruned",
    "PrunedInstances",
    "Quotas",
    "ReceivedEvent",
    "RecordTimes",
    "RegisteredFunction",
    "Reply",
    "ReplyItem",
    "ReplyStream",
    "RequestChange",
    "RequestEvent",
    "RequestExpired",
    "RequestFeed",
    "ResetPreview",
    "Resource",
    "Resumption",
    "Retracted",
    "RetryPolicy",
    "RetryStrategy",
    "RunEnded",
    "RunStarted",
    "RuntimeOptions",
    "Schedule",
    "ScheduleState",
    "ScheduleTarget",
    "Schedules",
    "Section",
    "Selected",
    "SessionCache",
    "SessionFamily",
    "SessionFilter",
    "SessionHolding",
    "SessionInfo",
    "SessionLife",
    "SessionListener",
    "SessionManager",
    "SessionMetadata",
    "SessionMove",
    "SessionMoveOutcome",
    "SessionMoved",
    "SessionRecord",
    "SessionRelease",
    "SessionState",
    "SessionStore",
    "SessionSummary",
    "Sessions",
    "SpanCompleted",
    "SpanError",
    "SpanStarted",
    "Start",
    "StartOutcome",
    "StateCodec",
    "StateEncoding",
    "StateWrite",
    "StopReason",
    "Streamed",
    "Suspension",
    "SyncOpenSession",
    "TickReason",
    "ToolConfirmation",
    "ToolEnded",
    "ToolResult",
    "ToolStarted",
    "ToolUse",
    "TreeNode",
    "UnknownEvent",
    "UnservedWork",
    "UserInterrupt",
    "UserMessage",
    "Wake",
    "WorkItemState",
    "WorkStatistics",
    "Worker",
    "WorkerDemand",
    "WorkerInfo",
    "WorkerLoad",
    "migrate",
    "open_store",
]

_PACKAGES: typing.Final = (
    "orchestration",
    "composed.app",
    "records",
    "provider.contract",
    "provider",
    "session",
    "explain",
    "client",
    "composed.client",
    "schedules",
    "worker",
    "conversation",
)
"""Where the public names are; later packages need earlier ones."""

_MODULES: typing.Final = frozenset(
    {"agent", "console", "errors", "journal", "limits", "sync", "telemetry"}.union(_PACKAGES)
)

_ELSEWHERE: typing.Final = ("errors", "agent", "testing", "journal", "telemetry", "provider.contract", "provider")
"""Where a name is looked for that is not here, for the message."""


def _not_here(name: str) -> Exception:
    """The error for a name that is not public here, with the place where it is. Of ``from affinity import`` it is an
    ``ImportError``: the interpreter would drop the text of another one.
    """
    text = f"module 'affinity' has no attribute {name!r}"
    remedy = "" if name.startswith("_") or importlib.util.find_spec(f"affinity.{name}") else _remedy(name)
    is_import = remedy and sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    return ImportError(text + remedy, name="affinity") if is_import else AttributeError(text + remedy)


def _remedy(name: str) -> str:
    for place in _ELSEWHERE:
        try:
            module = importlib.import_module(f"affinity.{place}")
        except ImportError:  # of an extra that is not installed
            continue
        defined_in = getattr(getattr(module, name, None), "__module__", "")
        if name in getattr(module, "__all__", ()) or defined_in == module.__name__:
            return f": it is in affinity.{place}, as in `from affinity.{place} import {name}`"
    close = difflib.get_close_matches(name, __all__, 1)
    return f": did you mean {close[0]!r}?" if close else ""


if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name or a module when it is first used: a program uses few of them."""
        if name in _MODULES:
            return importlib.import_module(f"affinity.{name}")
        if name not in __all__:
            raise _not_here(name)
        packages = (importlib.import_module(f"affinity.{package}") for package in _PACKAGES)
        value = globals()[name] = next(getattr(found, name) for found in packages if hasattr(found, name))
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
