"""Authoring orchestrations and activities, and the engine that replays them.

Pure: no I/O, no clock, no event loop. The names exported here are the authoring API. The worker imports the engine from
the modules.

* ``app``, ``context``, ``activity``, ``typed``, ``retry``, ``signals``: the authoring API.
* ``engine``, ``scheduler``, ``futures``, ``combine``, ``inbox``, ``history``: one execution, live and in replay.
* ``events``, ``waits``, ``failures``, ``wire``, ``codec``: recorded events and errors, and their JSON.
"""

from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.app import ActivityDefinition, App, OrchestrationDefinition, SessionListener
from affinity.orchestration.combine import Selected
from affinity.orchestration.context import OrchestrationContext
from affinity.orchestration.futures import ActivityFuture
from affinity.orchestration.retry import RetryPolicy, RetryStrategy
from affinity.orchestration.scheduler import DurableFuture
from affinity.orchestration.signals import ActivityCancelledSignal, BranchCancelledSignal, OrchestrationCancelledSignal
from affinity.orchestration.typed import Event, EventValue, ReceivedEvent
from affinity.orchestration.waits import SessionMoved

__all__ = [
    "ActivityCancelledSignal",
    "ActivityContext",
    "ActivityDefinition",
    "ActivityFuture",
    "App",
    "BranchCancelledSignal",
    "DurableFuture",
    "Event",
    "EventValue",
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
