"""The client: start orchestrations, send them events, wait for them, inspect them."""

from affinity.client.activities import Activity, ActivityStatus
from affinity.client.administration import MOVE_SECONDS, EndedStatus, PrunedInstances, SessionMoveOutcome
from affinity.client.client import Handle as Handle
from affinity.client.client import KernelClient as KernelClient
from affinity.client.client import open_store as open_store
from affinity.client.middleware import ClientMiddleware
from affinity.client.registered import RegisteredFunction
from affinity.client.requests import IfEnded, StartOutcome
from affinity.client.requests import Start as Start
from affinity.client.resets import ResetPreview
from affinity.client.views import ExecutionSummary, Failure, HistoryRecord, InstanceTree, TreeNode, WorkStatistics
from affinity.client.views import Instance as Instance
from affinity.explain import DrainPreview, DrainTarget, SessionHolding, SessionLife, UnservedWork
from affinity.explain.names import CodeDifference, code_differences
from affinity.field_words import show_all_in_help
from affinity.orchestration.overlap import IfRunning
from affinity.orchestration.typed import ExternalEvent as ExternalEvent
from affinity.paging import Page, Pages
from affinity.provider.contract import Quotas as Quotas

# A name imported as itself, `X as X`, is for the rest of this tree: its public place is another (docs/learn/names.md).
__all__ = [
    "MOVE_SECONDS",
    "Activity",
    "ActivityStatus",
    "ClientMiddleware",
    "CodeDifference",
    "DrainPreview",
    "DrainTarget",
    "EndedStatus",
    "ExecutionSummary",
    "Failure",
    "HistoryRecord",
    "IfEnded",
    "IfRunning",
    "InstanceTree",
    "Page",
    "Pages",
    "PrunedInstances",
    "RegisteredFunction",
    "ResetPreview",
    "SessionHolding",
    "SessionLife",
    "SessionMoveOutcome",
    "StartOutcome",
    "TreeNode",
    "UnservedWork",
    "WorkStatistics",
    "code_differences",
]


show_all_in_help(globals())
