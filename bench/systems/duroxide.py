"""duroxide: a Rust core with Python orchestrations; the one peer with sessions.

``python -m bench.systems.duroxide URL WORKER OPTIONS`` is its worker process.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from bench.systems.base import PATIENCE, SESSIONS, Dialect, Launch, announce_ready, module_launch
from bench.work import Walk, stamp

SETTINGS = {
    "worker_concurrency": 2,
    "orchestration_concurrency": 2,
    "dispatcher_poll_interval_ms": 10,
    "max_sessions_per_runtime": SESSIONS,
}
"""As many dispatchers as cores: more, its defaults of 8 and 4 among them, are no faster here. A poll interval of 10 ms
instead of 100: its turns wait for a poll.
"""

START_SECONDS = 1.0
"""Its `start` blocks and says nothing; the dispatchers run after this."""


def _provider(url: str) -> Any:
    duroxide = import_module("duroxide")
    if url.startswith("sqlite"):
        return duroxide.SqliteProvider.open("sqlite:" + url.removeprefix("sqlite:///"))
    return duroxide.PostgresProvider.connect(url)


class DuroxideClient:
    """`duroxide.Client`."""

    def __init__(self, url: str) -> None:
        self._client = import_module("duroxide").Client(_provider(url))

    def start(self, ids: Sequence[str], walk: Walk) -> None:
        for one in ids:
            self._client.start_orchestration(one, "walk", {"turns": walk.turns, "pause": walk.pause})

    def start_waiting(self, ids: Sequence[str]) -> None:
        for one in ids:
            self._client.start_orchestration(one, "waiting", None)

    def release(self, ids: Sequence[str]) -> None:
        for one in ids:
            self._client.raise_event(one, "go", None)

    def outputs(self, ids: Sequence[str]) -> list[Any]:
        ended = [self._client.wait_for_orchestration(one, int(PATIENCE * 1000)) for one in ids]
        return [one.error or one.output for one in ended]

    def flood(self, session: str, items: int) -> None:
        name = f"flood-{session}-{time.monotonic_ns()}"
        self._client.start_orchestration(name, "flood", {"session": session, "items": items})
        while self._events(name) <= items:
            time.sleep(0.05)

    def _events(self, name: str) -> int:
        stats = self._client.get_orchestration_stats(name)
        return 0 if stats is None else int(stats.history_event_count)


class DuroxideSystem:
    """Through its own providers for PostgreSQL and SQLite."""

    name = "duroxide"
    packages = ("duroxide",)
    dialects: frozenset[Dialect] = frozenset({"postgresql", "sqlite"})
    sessions = True

    def settings(self) -> Mapping[str, Any]:
        return SETTINGS

    def prepare(self, url: str) -> None:
        _provider(url)  # its constructor migrates

    def launch(self, url: str, worker: str, **options: Any) -> Launch:
        """Options of ``duroxide.RuntimeOptions``."""
        return module_launch(__name__, url, worker, json.dumps(SETTINGS | options))

    def client(self, url: str) -> AbstractContextManager[DuroxideClient]:
        return _client(url)


@contextmanager
def _client(url: str) -> Iterator[DuroxideClient]:
    yield DuroxideClient(url)


# --- the worker process -----------------------------------------------------------------------------------------------


def _step(context: Any, this: dict[str, Any]) -> list[float]:
    made = stamp(this["turn"])
    if this["pause"]:
        time.sleep(this["pause"])
    return list(made)


def _block(context: Any, nothing: None) -> None:
    threading.Event().wait()


def _walk(context: Any, walk: dict[str, Any]) -> Generator[Any, Any, list[Any]]:
    stamps = []
    for turn in range(walk["turns"] + 1):
        this = {"turn": turn, "pause": walk["pause"]}
        stamps.append((yield context.schedule_activity_on_session("step", this, context.instance_id)))
    return stamps


def _waiting(context: Any, nothing: None) -> Generator[Any, Any, bool]:
    yield context.wait_for_event("go")
    return True


def _flood(context: Any, order: dict[str, Any]) -> Generator[Any, Any, None]:
    schedule = context.schedule_activity_on_session
    yield context.all([schedule("block", None, order["session"]) for _ in range(order["items"])])


def _run(url: str, worker: str, options: str) -> None:
    duroxide = import_module("duroxide")
    chosen = duroxide.RuntimeOptions(worker_node_id=worker, **json.loads(options))
    runtime = duroxide.Runtime(_provider(url), chosen)
    for name, activity in {"step": _step, "block": _block}.items():
        runtime.register_activity(name, activity)
    for name, orchestration in {"walk": _walk, "waiting": _waiting, "flood": _flood}.items():
        runtime.register_orchestration(name, orchestration)
    threading.Timer(START_SECONDS, announce_ready).start()
    runtime.start()
    threading.Event().wait()


if __name__ == "__main__":
    _run(*sys.argv[1:])
