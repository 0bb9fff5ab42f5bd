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
from pydantic import BaseModel

from affinity import Client, ExternalEvent, SessionStore, Start, migrate
from bench.chats import Chat
from bench.systems.base import PATIENCE, SESSIONS, Dialect, Launch
from bench.systems.ours_app import ChatRoute, Fan, Flood, Route, Stay, chats
from bench.tracing import SWITCH
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

    def start_on(self, sessions: Mapping[str, Sequence[str]], walk: Walk, *, ordered: bool = False) -> None:
        """Start one walk for each id, on the sessions that are given for it; ``ordered``: in their orders."""
        routes = {one: _route(walk, names) for one, names in sessions.items()}
        self._start({one: route.model_copy(update={"ordered": ordered}) for one, route in routes.items()})

    def start_tagged(self, tags: Mapping[str, str | None], walk: Walk) -> None:
        """Start one walk for each id, on its own session, with the tag that is given for it."""
        self._start({one: _route(walk, []).model_copy(update={"tag": tag}) for one, tag in tags.items()})

    def start_with_state(self, sessions: Mapping[str, Sequence[str]], walk: Walk, size: int) -> None:
        """The same for workers of the app ``stateful``: each turn changes its session's state of ``size`` bytes."""
        self._start({one: ChatRoute(**dict(_route(walk, names)), size=size) for one, names in sessions.items()})

    def _start(self, routes: Mapping[str, Route]) -> None:
        starts = [Start("walk", route, one) for one, route in routes.items()]
        self.call(lambda client: client.start_many(starts))

    def start_inputs(self, orchestration: str, inputs: Mapping[str, BaseModel]) -> None:
        """Start an instance of this orchestration for each id, with the input that is given for it."""
        self.call(lambda client: client.start_many([Start(orchestration, one, id) for id, one in inputs.items()]))

    def chats(self, sessions: Sequence[str]) -> list[tuple[int, Chat]]:
        """The version of each session's record, and the state in it."""

        async def read(client: Client) -> list[tuple[int, Chat]]:
            return [await _read(client.session_store, one) for one in sessions]

        return self.call(read)

    def start_waiting(self, ids: Sequence[str]) -> None:
        self.call(lambda client: client.start_many([Start("waiting", None, one) for one in ids]))

    def start_staying(self, ids: Sequence[str], pause: float, stop: str) -> None:
        """Start instances whose turns, of ``pause`` seconds, go on until there is a file ``stop``."""
        starts = [Start("stay", Stay(pause=pause, stop=stop), one) for one in ids]
        self.call(lambda client: client.start_many(starts))

    def release(self, ids: Sequence[str]) -> None:
        self.call(lambda client: client.raise_events([ExternalEvent(one, "go") for one in ids]))

    def outputs(self, ids: Sequence[str]) -> list[Any]:
        async def wait(client: Client) -> list[Any]:
            return [await client.wait(one, timeout=PATIENCE) for one in ids]

        return self.call(wait)

    def flood(self, session: str, items: int, *, ordered: bool = False) -> None:
        name = f"flood-{session}-{time.monotonic_ns()}"

        async def queue(client: Client) -> None:
            handle = await client.start("flood", Flood(session=session, items=items, ordered=ordered), instance_id=name)
            while (await handle.status()).event_count <= items:  # noqa: ASYNC110 -- another process queues them
                await anyio.sleep(0.02)

        self.call(queue)

    def start_fan_out(self, one: str, width: int, cpu: float) -> None:
        """Start so many activities together, without a session, each of which uses ``cpu`` seconds of a processor."""
        self.call(lambda client: client.start("fan_out", Fan(width=width, cpu=cpu), instance_id=one))

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
    packages = ("affinity-workflows",)
    dialects: frozenset[Dialect] = frozenset({"postgresql", "sqlite"})
    sessions = True
    tracing = False
    """Workers make spans."""

    def settings(self) -> Mapping[str, Any]:
        return SETTINGS | {"tracing": True} if self.tracing else SETTINGS

    def prepare(self, url: str) -> None:
        anyio.run(migrate, url)

    def launch(self, url: str, worker: str, *, app: str = "app", module: str = "ours_app", **options: Any) -> Launch:
        """``affinity worker`` for an app of a module beside this one; options of `affinity.RuntimeOptions`."""
        values = {"worker_node_id": worker} | SETTINGS | options
        return Launch(
            arguments=[sys.executable, "-m", "affinity", "worker", f"bench.systems.{module}:{app}"],
            ready=re.compile(r"running app"),
            environment={f"AFFINITY_{name.upper()}": str(value) for name, value in {"url": url, **values}.items()}
            | ({SWITCH: "1"} if self.tracing else {}),
        )

    def client(self, url: str) -> AbstractContextManager[OurClient]:
        return _client(url)


def _route(walk: Walk, sessions: Sequence[str]) -> Route:
    return Route(turns=walk.turns, pause=walk.pause, sessions=list(sessions))


async def _read(store: SessionStore, session: str) -> tuple[int, Chat]:
    opening = chats.open(session, store=store, auto_save=False)
    async with opening as chat:
        return opening.version, chat


@contextmanager
def _client(url: str) -> Iterator[OurClient]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(url)) as client:
        yield OurClient(portal, client)
