"""Durable workflows whose activities stay with the worker that holds their in-memory state."""

from affinity.orchestration import ActivityContext, App, OrchestrationContext, RetryPolicy
from affinity.worker import RuntimeOptions, Worker

__all__ = ["ActivityContext", "App", "OrchestrationContext", "RetryPolicy", "RuntimeOptions", "Worker"]
