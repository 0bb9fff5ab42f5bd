"""A web service of the examples in a process of its own, and its server-sent events."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import anyio
import httpx2 as httpx

import affinity
from tests.support.service_processes import run_service
from tests.support.worker_processes import FORKS, PATIENCE, WorkerProcess, Workers


class ServerEvent(NamedTuple):
    """An event of the stream."""

    id: str
    kind: str
    data: Any


@contextmanager
def serve(factory: str, url: str, path: str) -> Iterator[httpx.Client]:
    """A client of the service, which answers at this path once it is there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = FORKS.Process(target=run_service, args=(factory, url, port))
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            _wait_for(client, server, path)
            yield client
    finally:
        server.terminate()
        server.join(PATIENCE)
        server.kill()


def _wait_for(client: httpx.Client, server: BaseProcess, path: str) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert server.is_alive(), "the server has ended"
        try:
            client.get(path)
        except httpx.ConnectError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server does not answer")


def events_of(response: httpx.Response) -> Iterator[ServerEvent]:
    """The events of a stream as they come."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            yield ServerEvent(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            fields = {}


def until(stream: Iterator[ServerEvent], kind: str) -> list[ServerEvent]:
    """The events up to the first of a kind."""
    found: list[ServerEvent] = []
    for event in stream:
        found.append(event)
        if event.kind == kind:
            return found
    raise AssertionError(f"the stream has ended without {kind}")


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    """The answer to a call that succeeds."""
    response = http.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


def holder_of(workers: Workers, session_id: str) -> WorkerProcess:
    """The worker that holds a session."""

    async def holder() -> str:
        async with affinity.Client(workers.url) as client:
            return next(s.worker_id for s in [each async for each in client.sessions()] if s.session_id == session_id)

    name = anyio.run(holder)
    return next(worker for worker in workers.running() if worker.name == name)
