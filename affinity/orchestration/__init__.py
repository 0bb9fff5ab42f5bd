"""Authoring orchestrations and activities, and the engine that replays them.

Pure: no I/O, no clock, no event loop. The names exported here are the authoring API. The worker imports the engine from
the modules.

* ``app``, ``definitions``, ``context``, ``activity``, ``typed``, ``retry``, ``signals``: the authoring API.
* ``engine``, ``scheduler``, ``futures``, ``combine``, ``inbox``, ``history``: one execution, live and in replay.
* ``events``, ``waits``, ``failures``, ``wire``, ``codec``: recorded events and errors, and their JSON.
"""

from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.app import KernelApp, SessionListener
from affinity.orchestration.combine import Selected
from affinity.orchestration.context import OrchestrationContext
from affinity.orchestration.definitions import ActivityDefinition, OrchestrationDefinition
from affinity.orchestration.futures import ActivityFuture
from affinity.orchestration.retry import RetryPolicy, RetryStrategy
from affinity.orchestration.scheduler import DurableFuture
from affinity.orchestration.signals import ActivityCancelledSignal, BranchCancelledSignal, OrchestrationCancelledSignal
from affinity.orchestration.typed import Event, EventValue, ExternalEvent, ReceivedEvent
from affinity.orchestration.waits import SessionMoved

__all__ = [
    "ActivityCancelledSignal",
    "ActivityContext",
    "ActivityDefinition",
    "ActivityFuture",
    "BranchCancelledSignal",
    "DurableFuture",
    "Event",
    "EventValue",
    "ExternalEvent",
    "KernelApp",
    "OrchestrationCancelledSignal",
    "OrchestrationContext",
    "OrchestrationDefinition",
    "ReceivedEvent",
    "RetryPolicy",
    "RetryStrategy",
    "Selected",
    "SessionListener",
    "SessionMoved",
]
