"""Durable workflows whose activities stay with the worker that holds their in-memory state.

The public names. Errors are in `affinity.errors`; whoever writes a provider starts at `affinity.provider.contract`.
"""

from affinity.client import Client
from affinity.orchestration import (
    ActivityCancelledSignal,
    ActivityContext,
    App,
    DurableFuture,
    OrchestrationCancelledSignal,
    OrchestrationContext,
    RetryPolicy,
    Selected,
)
from affinity.session import SessionCache
from affinity.worker import RuntimeOptions, Worker

__all__ = [
    "ActivityCancelledSignal",
    "ActivityContext",
    "App",
    "Client",
    "DurableFuture",
    "OrchestrationCancelledSignal",
    "OrchestrationContext",
    "RetryPolicy",
    "RuntimeOptions",
    "Selected",
    "SessionCache",
    "Worker",
]
