"""The client: start orchestrations, tell them things, wait for them, look at them."""

from affinity.client.client import Client
from affinity.client.handle import Handle
from affinity.client.management import ExecutionSummary, InstanceTree, PendingActivity, TreeNode, WorkStatistics
from affinity.client.pruning import EndedStatus, PrunedInstances
from affinity.client.records import Failure, HistoryRecord, Instance, Page
from affinity.client.requests import ExternalEvent, Start
from affinity.client.stores import open_store
from affinity.provider.contract import Quotas

__all__ = [
    "Client",
    "EndedStatus",
    "ExecutionSummary",
    "ExternalEvent",
    "Failure",
    "Handle",
    "HistoryRecord",
    "Instance",
    "InstanceTree",
    "Page",
    "PendingActivity",
    "PrunedInstances",
    "Quotas",
    "Start",
    "TreeNode",
    "WorkStatistics",
    "open_store",
]
