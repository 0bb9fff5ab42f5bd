"""The objects that every part of a worker shares."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from affinity.provider.contract import Provider, WorkerIdentity
from affinity.records import frozen
from affinity.worker.lease import LeaseState
from affinity.worker.notifier import FetchState, Notifier
from affinity.worker.options import KernelOptions
from affinity.worker.retry import DatabaseHealth

if TYPE_CHECKING:
    from affinity.worker.metrics import Metrics  # and with it Prometheus, which only a worker needs


@frozen()
class Timing:
    """The time of what follows the database's clock: rounds of maintenance, and how long sessions are idle.

    Deadlines of leases and of running code are real time, and do not use it. `affinity.testing.Env` has a time that
    jumps.
    """

    pause: Callable[[float], Awaitable[None]] = anyio.sleep
    monotonic: Callable[[], float] = time.monotonic


REAL_TIME = Timing()


@frozen()
class WorkerServices:
    """The database and the state that the parts of a worker share."""

    provider: Provider
    identity: WorkerIdentity
    options: KernelOptions
    health: DatabaseHealth
    metrics: Metrics
    fetch_state: FetchState
    notifier: Notifier
    lease: LeaseState
    timing: Timing = REAL_TIME


class WorkerPart:
    """A part of a worker, with the shared objects that most of them use at hand."""

    def __init__(self, services: WorkerServices) -> None:
        self._provider = services.provider
        self._identity = services.identity
        self._options = services.options
        self._health = services.health
        self._metrics = services.metrics
        self._state = services.fetch_state
        self._notifier = services.notifier
        self._lease = services.lease
        self._pause = services.timing.pause
        self._monotonic = services.timing.monotonic
