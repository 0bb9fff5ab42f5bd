"""The client: start orchestrations, tell them things, wait for them, look at them."""

from affinity.client.client import Client
from affinity.client.handle import Handle
from affinity.client.pruning import EndedStatus, PrunedInstances
from affinity.client.records import Failure, HistoryRecord, Instance, Page
from affinity.client.requests import ExternalEvent, Start
from affinity.client.stores import open_store

__all__ = [
    "Client",
    "EndedStatus",
    "ExternalEvent",
    "Failure",
    "Handle",
    "HistoryRecord",
    "Instance",
    "Page",
    "PrunedInstances",
    "Start",
    "open_store",
]
