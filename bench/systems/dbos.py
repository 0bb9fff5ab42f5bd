"""DBOS: workflows whose steps run in the process that dequeued them.

``python -m bench.systems.dbos URL WORKER OPTIONS`` is its worker process.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from bench.systems.base import Dialect, Launch, announce_ready, module_launch
from bench.work import Walk, stamp

QUEUE = "bench"
WAITING_QUEUE = "bench-waiting"
"""Without a bound: a workflow that waits counts as one that runs."""

CALLS_QUEUE = "bench-calls"
CALLS_AT_ONCE = 100
CALLS_LIMITER = {"limit": 1_000_000, "period": 60.0}
"""Of the queue of calls: a concurrency of the whole fleet, and a rate that is never reached."""

SETTINGS = {"worker_concurrency": 10, "polling_interval_sec": 0.1}
"""Of its queue. Ten concurrent workflows are faster here than all, or than fewer; plain functions than coroutines. The
queue is polled ten times a second instead of once.
"""

POLL_SECONDS = 0.1
"""Of the client that waits for a result; by default once a second."""

FIRST_POLL_SECONDS = 1.5
"""A worker learns of its queue with the first round of its queue thread."""


def _configuration(url: str, worker: str) -> dict[str, Any]:
    return {
        "name": "bench",
        "system_database_url": url,
        "application_version": "1",
        "executor_id": worker,
        "log_level": "ERROR",
    }


class DbosClient:
    """`dbos.DBOSClient`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def start(self, ids: Sequence[str], walk: Walk) -> None:
        for one in ids:
            self._enqueue("walk", one, walk.turns, walk.pause)

    def start_waiting(self, ids: Sequence[str]) -> None:
        for one in ids:
            self._enqueue("waiting", one, queue=WAITING_QUEUE)

    def release(self, ids: Sequence[str]) -> None:
        for one in ids:
            self._client.send(one, True, "go")

    def outputs(self, ids: Sequence[str]) -> list[Any]:
        handles = [self._client.retrieve_workflow(one) for one in ids]
        return [handle.get_result(polling_interval_sec=POLL_SECONDS) for handle in handles]

    def start_calls(self, ids: Sequence[str]) -> None:
        """Start a workflow of one step for each id, on the queue with a concurrency and a limiter."""
        for number, one in enumerate(ids):
            self._enqueue("call", one, number, queue=CALLS_QUEUE)

    def _enqueue(self, workflow: str, one: str, *arguments: Any, queue: str = QUEUE) -> None:
        options = {"queue_name": queue, "workflow_name": workflow, "workflow_id": one}
        self._client.enqueue(options, *arguments)


class DbosSystem:
    """With its queue, which is how workers share workflows."""

    name = "dbos"
    packages = ("dbos",)
    dialects: frozenset[Dialect] = frozenset({"postgresql", "sqlite"})
    sessions = False

    def settings(self) -> Mapping[str, Any]:
        return SETTINGS

    def prepare(self, url: str) -> None:
        import_module("dbos").DBOS.migrate(url)

    def launch(self, url: str, worker: str, **options: Any) -> Launch:
        """Options of its queue."""
        return module_launch(__name__, url, worker, json.dumps(SETTINGS | options))

    def client(self, url: str) -> AbstractContextManager[DbosClient]:
        return _client(url)


@contextmanager
def _client(url: str) -> Iterator[DbosClient]:
    client = import_module("dbos").DBOSClient(system_database_url=url)
    try:
        yield DbosClient(client)
    finally:
        client.destroy()


# --- the worker process -----------------------------------------------------------------------------------------------


def _run(url: str, worker: str, options: str) -> None:
    dbos = import_module("dbos").DBOS
    dbos(config=_configuration(url, worker))

    def step(turn: int, pause: float) -> list[float]:
        made = stamp(turn)
        if pause:
            time.sleep(pause)
        return list(made)

    durable_step = dbos.step()(step)

    def walk(turns: int, pause: float) -> list[Any]:
        return [durable_step(turn, pause) for turn in range(turns + 1)]

    async def waiting() -> bool:
        await dbos.recv_async("go", timeout_seconds=86_400)
        return True

    def one_call(number: int) -> list[float]:
        return list(durable_step(number, 0.0))

    dbos.workflow(name="walk")(walk)
    dbos.workflow(name="call")(one_call)
    dbos.workflow(name="waiting")(waiting)
    dbos.launch()
    chosen = json.loads(options)
    dbos.register_queue(QUEUE, **chosen)
    dbos.register_queue(WAITING_QUEUE, polling_interval_sec=chosen["polling_interval_sec"])
    calls = {"global_concurrency": CALLS_AT_ONCE, "limiter": CALLS_LIMITER}
    dbos.register_queue(CALLS_QUEUE, polling_interval_sec=chosen["polling_interval_sec"], **calls)
    threading.Timer(FIRST_POLL_SECONDS, announce_ready).start()
    threading.Event().wait()


if __name__ == "__main__":
    _run(*sys.argv[1:])
