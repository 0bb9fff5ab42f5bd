"""Absurd: tasks whose steps are checkpoints, written by the process that claimed the task.

``python -m bench.systems.absurd URL WORKER OPTIONS`` is its worker process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from importlib import import_module
from typing import Any

import psycopg

from bench.systems.base import PATIENCE, Dialect, Launch, announce_ready, module_launch
from bench.work import Stamp, Walk, stamp

QUEUE = "bench"

SETTINGS = {"concurrency": 10, "poll_interval": 0.05}
"""Ten concurrent tasks on threads; its coroutines are not faster here, nor are one, four or fifty. It polls 20 times
a second instead of four.
"""


class AbsurdClient:
    """`absurd_sdk.Absurd`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._tasks: dict[str, str] = {}

    def start(self, ids: Sequence[str], walk: Walk) -> None:
        for one in ids:
            self._spawn("walk", one, {"turns": walk.turns, "pause": walk.pause})

    def start_waiting(self, ids: Sequence[str]) -> None:
        for one in ids:
            self._spawn("waiting", one, {"event": one})

    def release(self, ids: Sequence[str]) -> None:
        for one in ids:
            self._client.emit_event(one, True)

    def outputs(self, ids: Sequence[str]) -> list[Any]:
        ended = [self._client.await_task_result(self._tasks[one], timeout=PATIENCE) for one in ids]
        return [one.failure or one.result for one in ended]

    def _spawn(self, task: str, one: str, parameters: dict[str, Any]) -> None:
        self._tasks[one] = self._client.spawn(task, parameters, queue=QUEUE, idempotency_key=one)["task_id"]


class AbsurdSystem:
    """With the schema that its `absurdctl init` installs."""

    name = "absurd"
    packages = ("absurd-sdk", "absurdctl")
    dialects: frozenset[Dialect] = frozenset({"postgresql"})
    sessions = False

    def settings(self) -> Mapping[str, Any]:
        return SETTINGS

    def prepare(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(import_module("absurdctl").BUNDLED_SCHEMA_SQL)
        with _client(url) as client:
            client._client.create_queue(QUEUE)

    def launch(self, url: str, worker: str, **options: Any) -> Launch:
        """Options of its ``start_worker``."""
        return module_launch(__name__, url, worker, json.dumps(SETTINGS | options))

    def client(self, url: str) -> AbstractContextManager[AbsurdClient]:
        return _client(url)


@contextmanager
def _client(url: str) -> Iterator[AbsurdClient]:
    with closing(import_module("absurd_sdk").Absurd(url, queue_name=QUEUE)) as client:
        yield AbsurdClient(client)


# --- the worker process -----------------------------------------------------------------------------------------------


def _step(turn: int, pause: float) -> Stamp:
    made = stamp(turn)
    if pause:
        time.sleep(pause)
    return made


def _walk(parameters: dict[str, Any], context: Any) -> list[Stamp]:
    turns, pause = parameters["turns"], parameters["pause"]
    return [context.step(f"step-{turn}", lambda turn=turn: _step(turn, pause)) for turn in range(turns + 1)]


def _waiting(parameters: dict[str, Any], context: Any) -> bool:
    context.await_event(parameters["event"])
    return True


def _run(url: str, worker: str, options: str) -> None:
    app = import_module("absurd_sdk").Absurd(url, queue_name=QUEUE)
    app.register_task("walk")(_walk)
    app.register_task("waiting")(_waiting)
    announce_ready()
    app.start_worker(worker_id=worker, **json.loads(options))


if __name__ == "__main__":
    _run(*sys.argv[1:])
