"""The client: start orchestrations, send them events, wait for them, inspect them."""

from affinity.audit import AuditEntry
from affinity.client.activities import Activity, ActivityStatus
from affinity.client.administration import MOVE_SECONDS, EndedStatus, PrunedInstances, SessionMoveOutcome
from affinity.client.audit import AuditPage
from affinity.client.client import Client, Handle, open_store
from affinity.client.conversations import Connectable, ConversationInfo, ConversationPage
from affinity.client.inbox import ConversationRequest, RequestChange, RequestFeed, RequestPage
from affinity.client.registered import RegisteredFunction
from affinity.client.requests import IfEnded, Start, StartOutcome
from affinity.client.resets import ResetPreview
from affinity.client.schedules import Schedule, Schedules, ScheduleState
from affinity.client.views import (
    ExecutionSummary,
    Failure,
    HistoryRecord,
    Instance,
    InstanceTree,
    Page,
    TreeNode,
    WorkStatistics,
)
from affinity.explain import DrainPreview, DrainTarget, SessionHolding, SessionLife, TickReason, UnservedWork
from affinity.explain.names import CodeDifference, code_differences
from affinity.orchestration.typed import ExternalEvent
from affinity.provider.contract import Quotas

__all__ = [
    "MOVE_SECONDS",
    "Activity",
    "ActivityStatus",
    "AuditEntry",
    "AuditPage",
    "Client",
    "CodeDifference",
    "Connectable",
    "ConversationInfo",
    "ConversationPage",
    "ConversationRequest",
    "DrainPreview",
    "DrainTarget",
    "EndedStatus",
    "ExecutionSummary",
    "ExternalEvent",
    "Failure",
    "Handle",
    "HistoryRecord",
    "IfEnded",
    "Instance",
    "InstanceTree",
    "Page",
    "PrunedInstances",
    "Quotas",
    "RegisteredFunction",
    "RequestChange",
    "RequestFeed",
    "RequestPage",
    "ResetPreview",
    "Schedule",
    "ScheduleState",
    "Schedules",
    "SessionHolding",
    "SessionLife",
    "SessionMoveOutcome",
    "Start",
    "StartOutcome",
    "TickReason",
    "TreeNode",
    "UnservedWork",
    "WorkStatistics",
    "code_differences",
    "open_store",
]
