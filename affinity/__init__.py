"""Durable workflows whose activities stay with the worker that holds their in-memory state.

The public names. Errors are in `affinity.errors`; whoever writes a provider starts at `affinity.provider.contract`.
"""

from affinity.client import (
    Client,
    ExecutionSummary,
    HistoryRecord,
    Instance,
    InstanceTree,
    PendingActivity,
    TreeNode,
    WorkStatistics,
    open_store,
)
from affinity.orchestration import (
    ActivityCancelledSignal,
    ActivityContext,
    App,
    DurableFuture,
    OrchestrationCancelledSignal,
    OrchestrationContext,
    RetryPolicy,
    Selected,
    SessionMoved,
)
from affinity.provider import migrate
from affinity.session import MemorySessionStore, OpenSession, Resource, SessionCache, SessionManager, Sessions
from affinity.worker import RuntimeOptions, Worker

__all__ = [
    "ActivityCancelledSignal",
    "ActivityContext",
    "App",
    "Client",
    "DurableFuture",
    "ExecutionSummary",
    "HistoryRecord",
    "Instance",
    "InstanceTree",
    "MemorySessionStore",
    "OpenSession",
    "OrchestrationCancelledSignal",
    "OrchestrationContext",
    "PendingActivity",
    "Resource",
    "RetryPolicy",
    "RuntimeOptions",
    "Selected",
    "SessionCache",
    "SessionManager",
    "SessionMoved",
    "Sessions",
    "TreeNode",
    "WorkStatistics",
    "Worker",
    "migrate",
    "open_store",
]
