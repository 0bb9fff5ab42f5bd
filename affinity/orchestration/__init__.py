"""Authoring orchestrations and activities, and the engine that replays them.

Pure: no I/O, no clock, no event loop. The names imported here are the authoring API, which `affinity` makes
public. The worker imports the engine from the modules.

* ``app``, ``definitions``, ``context``, ``activity``, ``typed``, ``retry``, ``signals``: the authoring API.
* ``engine``, ``scheduler``, ``futures``, ``combine``, ``inbox``, ``history``: one execution, live and in replay.
* ``events``, ``waits``, ``failures``, ``wire``, ``codec``: recorded events and errors, and their JSON.
"""

from affinity.orchestration.activity import ActivityContext as ActivityContext
from affinity.orchestration.app import KernelApp as KernelApp
from affinity.orchestration.app import SessionListener as SessionListener
from affinity.orchestration.combine import Selected as Selected
from affinity.orchestration.context import OrchestrationContext as OrchestrationContext
from affinity.orchestration.definitions import ActivityDefinition as ActivityDefinition
from affinity.orchestration.definitions import OrchestrationDefinition as OrchestrationDefinition
from affinity.orchestration.futures import ActivityFuture as ActivityFuture
from affinity.orchestration.retry import RetryPolicy as RetryPolicy
from affinity.orchestration.retry import RetryStrategy as RetryStrategy
from affinity.orchestration.scheduler import DurableFuture as DurableFuture
from affinity.orchestration.signals import ActivityCancelledSignal as ActivityCancelledSignal
from affinity.orchestration.signals import BranchCancelledSignal as BranchCancelledSignal
from affinity.orchestration.signals import OrchestrationCancelledSignal as OrchestrationCancelledSignal
from affinity.orchestration.typed import Event as Event
from affinity.orchestration.typed import EventValue as EventValue
from affinity.orchestration.typed import ExternalEvent as ExternalEvent
from affinity.orchestration.typed import ReceivedEvent as ReceivedEvent
from affinity.orchestration.waits import SessionMoved as SessionMoved
