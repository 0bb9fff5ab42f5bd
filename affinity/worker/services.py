"""What every part of a worker has in common."""

from __future__ import annotations

from affinity.provider.contract import Provider, WorkerIdentity
from affinity.records import frozen
from affinity.worker.lease import LeaseState
from affinity.worker.metrics import Metrics
from affinity.worker.options import RuntimeOptions
from affinity.worker.retry import DatabaseHealth
from affinity.worker.wakeups import FetchState, Wakeups


@frozen()
class WorkerServices:
    """The database and the state that the parts of a worker share."""

    provider: Provider
    identity: WorkerIdentity
    options: RuntimeOptions
    health: DatabaseHealth
    metrics: Metrics
    fetch_state: FetchState
    wakeups: Wakeups
    lease: LeaseState
