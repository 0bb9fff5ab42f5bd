"""Durable workflows whose activities stay with the worker that holds their in-memory state.

The public names: what an application imports, and every type that these take or return. Errors are in
`affinity.errors`; the types of a provider are in `affinity.provider.contract`.
"""

from affinity.client import (
    ActivityState,
    Client,
    EndedStatus,
    ExecutionSummary,
    ExternalEvent,
    Failure,
    Handle,
    HistoryRecord,
    Instance,
    InstanceTree,
    Page,
    PendingActivity,
    PrunedInstances,
    Start,
    TreeNode,
    WorkStatistics,
    open_store,
)
from affinity.orchestration import (
    ActivityCancelledSignal,
    ActivityContext,
    ActivityDefinition,
    ActivityFuture,
    App,
    BranchCancelledSignal,
    DurableFuture,
    OrchestrationCancelledSignal,
    OrchestrationContext,
    OrchestrationDefinition,
    RetryPolicy,
    RetryStrategy,
    Selected,
    SessionListener,
    SessionMoved,
)
from affinity.provider import migrate
from affinity.provider.contract import (
    Delivery,
    InstanceStatus,
    MessageState,
    Quotas,
    Resumption,
    SessionInfo,
    SessionRelease,
    Suspension,
    WorkerInfo,
    WorkItemState,
)
from affinity.records import (
    Participant,
    SessionFilter,
    SessionMetadata,
    SessionRecord,
    SessionState,
    SessionStore,
    SessionSummary,
    StateEncoding,
    StateWrite,
)
from affinity.session import (
    CacheStats,
    Imported,
    MemorySessionStore,
    OnExists,
    OpenSession,
    Pruned,
    Resource,
    SessionCache,
    SessionFamily,
    SessionManager,
    SessionPage,
    Sessions,
    StateCodec,
    SyncOpenSession,
)
from affinity.worker import RuntimeOptions, Worker

__all__ = []
