"""Authoring orchestrations and activities, and the engine that replays them.

Pure: no I/O, no clock, no event loop. What is exported here is for users; the worker imports the engine from the
modules ``engine``, ``events``, ``wire`` and ``registry``.
"""

from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.app import ActivityDefinition, App, OrchestrationDefinition, SessionListener
from affinity.orchestration.combine import Selected
from affinity.orchestration.context import OrchestrationContext
from affinity.orchestration.futures import ActivityFuture
from affinity.orchestration.retry import RetryPolicy, RetryStrategy
from affinity.orchestration.scheduler import DurableFuture
from affinity.orchestration.signals import (
    ActivityCancelledSignal,
    BranchCancelledSignal,
    OrchestrationCancelledSignal,
)
from affinity.orchestration.waits import SessionMoved

__all__ = [
    "ActivityCancelledSignal",
    "ActivityContext",
    "ActivityDefinition",
    "ActivityFuture",
    "App",
    "BranchCancelledSignal",
    "DurableFuture",
    "OrchestrationCancelledSignal",
    "OrchestrationContext",
    "OrchestrationDefinition",
    "RetryPolicy",
    "RetryStrategy",
    "Selected",
    "SessionListener",
    "SessionMoved",
]
