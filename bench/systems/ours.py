"""This project: workers by its command line, driven by its client."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from affinity.client import Client, ExternalEvent, Start
from affinity.provider import migrate
from bench.systems.base import PATIENCE, SESSIONS, Dialect, Launch
from bench.systems.ours_app import Flood, Route
from bench.work import Walk

T = TypeVar("T")

SETTINGS = {"max_sessions_per_runtime": SESSIONS}


class OurClient:
    """`affinity.Client`, called from a thread without a loop."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self._client = client

    def call(self, verb: Callable[[Client], Awaitable[T]]) -> T:
        """What ``verb`` returns for the client."""
        return self._portal.call(verb, self._client)

    def start(self, ids: Sequence[str], walk: Walk) -> None:
        self.start_on({one: [] for one in ids}, walk)

    def start_on(self, sessions: Mapping[str, Sequence[str]], walk: Walk) -> None:
        """Start one walk for each id, on the sessions that are given for it."""
        starts = [
            Start("walk", Route(turns=walk.turns, pause=walk.pause, sessions=list(names)), one)
            for one, names in sessions.items()
        ]
        self.call(lambda client: client.start_many(starts))

    def start_waiting(self, ids: Sequence[str]) -> None:
        self.call(lambda client: client.start_many([Start("waiting", None, one) for one in ids]))

    def release(self, ids: Sequence[str]) -> None:
        self.call(lambda client: client.raise_events([ExternalEvent(one, "go") for one in ids]))

    def outputs(self, ids: Sequence[str]) -> list[Any]:
        async def wait(client: Client) -> list[Any]:
            return [await client.wait(one, timeout=PATIENCE) for one in ids]

        return self.call(wait)

    def flood(self, session: str, items: int) -> None:
        name = f"flood-{session}-{time.monotonic_ns()}"

        async def queue(client: Client) -> None:
            handle = await client.start("flood", Flood(session=session, items=items), instance_id=name)
            while (await handle.status()).event_count <= items:  # noqa: ASYNC110 -- another process queues them
                await anyio.sleep(0.02)

        self.call(queue)

    def owners(self, ids: Sequence[str]) -> list[str | None]:
        """The worker that owns, or last owned, each instance."""

        async def look(client: Client) -> list[str | None]:
            return [(await client.status(one)).owner for one in ids]

        return self.call(look)

    def history_lengths(self, ids: Sequence[str]) -> list[int]:
        """Events of each instance so far."""

        async def look(client: Client) -> list[int]:
            return [(await client.status(one)).event_count for one in ids]

        return self.call(look)


class OurSystem:
    """Default options but one."""

    name = "affinity"
    packages = ("affinity",)
    dialects: frozenset[Dialect] = frozenset({"postgresql", "sqlite"})
    sessions = True

    def settings(self) -> Mapping[str, Any]:
        return SETTINGS

    def prepare(self, url: str) -> None:
        anyio.run(migrate, url)

    def launch(self, url: str, worker: str, *, app: str = "app", **options: Any) -> Launch:
        """``affinity worker``; options are those of `affinity.RuntimeOptions`."""
        values = {"worker_node_id": worker} | SETTINGS | options
        return Launch(
            arguments=[sys.executable, "-m", "affinity", "--url", url, "worker", f"bench.systems.ours_app:{app}"],
            ready=re.compile(r"running app"),
            environment={f"AFFINITY_{name.upper()}": str(value) for name, value in values.items()},
        )

    def client(self, url: str) -> AbstractContextManager[OurClient]:
        return _client(url)


@contextmanager
def _client(url: str) -> Iterator[OurClient]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(url)) as client:
        yield OurClient(portal, client)
