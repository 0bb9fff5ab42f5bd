"""The client: start orchestrations, send them events, wait for them, inspect them."""

from affinity.audit import AuditEntry
from affinity.client.activities import Activity, ActivityStatus
from affinity.client.administration import MOVE_SECONDS, EndedStatus, PrunedInstances, SessionMoveOutcome
from affinity.client.client import Handle, KernelClient, open_store
from affinity.client.conversations import Connectable, ConversationInfo
from affinity.client.inbox import PendingRequest, RequestChange, RequestFeed
from affinity.client.registered import RegisteredFunction
from affinity.client.requests import IfEnded, Start, StartOutcome
from affinity.client.resets import ResetPreview
from affinity.client.views import (
    ExecutionSummary,
    Failure,
    HistoryRecord,
    Instance,
    InstanceTree,
    TreeNode,
    WorkStatistics,
)
from affinity.explain import DrainPreview, DrainTarget, SessionHolding, SessionLife, UnservedWork
from affinity.explain.names import CodeDifference, code_differences
from affinity.orchestration.typed import ExternalEvent
from affinity.paging import Page, Pages
from affinity.provider.contract import Quotas

__all__ = [
    "MOVE_SECONDS",
    "Activity",
    "ActivityStatus",
    "AuditEntry",
    "CodeDifference",
    "Connectable",
    "ConversationInfo",
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
    "KernelClient",
    "Page",
    "Pages",
    "PendingRequest",
    "PrunedInstances",
    "Quotas",
    "RegisteredFunction",
    "RequestChange",
    "RequestFeed",
    "ResetPreview",
    "SessionHolding",
    "SessionLife",
    "SessionMoveOutcome",
    "Start",
    "StartOutcome",
    "TreeNode",
    "UnservedWork",
    "WorkStatistics",
    "code_differences",
    "open_store",
]
