"""One process with a worker on each of two databases, and the same ids in both: what it keeps is kept for each."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity import migrate
from affinity.conversation import AgentMessage, UserMessage
from affinity.records import database_of

pytestmark = pytest.mark.anyio

SESSION: Final = "customer-7"
"""The session of both databases. Its epoch is greater in the first one."""


class Count(BaseModel):
    n: int = 0


@dataclass
class Process:
    """An app, with all that a process keeps for it, and a worker on each of two databases."""

    app: affinity.App = field(default_factory=lambda: affinity.App("two"))
    log: list[str] = field(default_factory=list)
    workers: list[affinity.Worker] = field(default_factory=list)
    clients: list[affinity.Client] = field(default_factory=list)
    gate: anyio.Event = field(default_factory=anyio.Event)
    entered: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.counts = affinity.Sessions(
            Count, kind="count", movable=False, dispose=lambda _, state: self.log.append(f"dispose {state.n}")
        )
        self.notes = affinity.SessionCache[list[str]](hydrate=lambda _: [])
        self.boxes = affinity.Resource[list[str]](
            open=lambda _: [], close=lambda _, box: self.log.append(f"close {box}")
        )
        self.talks = affinity.Conversations(Count, kind="talk")
        self.talks.on_wake(self._answer)
        for part in (self.counts, self.notes, self.talks):
            self.app.include(part)

        @self.app.activity
        async def act(ctx: affinity.ActivityContext, what: str) -> Any:
            return await getattr(self, what)(ctx)

        @self.app.orchestration
        async def run(ctx: affinity.OrchestrationContext, what: str) -> Any:
            name, _, session_id = what.partition("@")
            return await ctx.schedule_activity(act, name).on_session(session_id or SESSION)

    async def count(self, ctx: affinity.ActivityContext) -> int:
        async with self.counts.open(ctx) as state:
            state.n += 1
            return state.n

    async def count_slowly(self, ctx: affinity.ActivityContext) -> int:
        async with self.counts.open(ctx) as state:
            self.entered.set()
            await self.gate.wait()
            return state.n

    async def note(self, ctx: affinity.ActivityContext) -> int:
        async with self.notes.use(ctx) as notes:
            notes.append("one more")
            return len(notes)

    async def fill_box(self, ctx: affinity.ActivityContext) -> int:
        opening = self.counts.open(ctx)
        async with opening as state:
            state.n += 1
            box = await opening.resource(self.boxes)
            box.append(f"{state.n}")
            return len(box)

    async def _answer(self, wake: affinity.Wake, state: Count) -> None:
        """Pass a question on to the conversation of the same id in the other database."""
        state.n += 1
        (question,) = [event.text for event in wake.events if isinstance(event, UserMessage)]
        if question == "pass it on":
            reply = await self.clients[1].conversation(self.talks, SESSION).ask(UserMessage("and you?"), timeout=30)
            wake.append(AgentMessage(f"the other one: {reply.text}"))
        else:
            wake.append(AgentMessage(f"wake {state.n}"))

    async def on(self, database: int, what: str) -> Any:
        """The result of an orchestration on one of the databases."""
        return await (await self.clients[database].start("run", what)).wait(30)


@pytest.fixture(params=["files", "schemas"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Two databases: an SQLite file and its copy, which has the same token; or two schemas of a PostgreSQL database."""
    if request.param == "schemas":
        url = request.getfixturevalue("postgres_migrated")
        return [f"{url}?{urlencode({'schema': name})}" for name in ("one", "two")]
    first: str = request.getfixturevalue("sqlite_url")
    copy = shutil.copy(first.removeprefix("sqlite:///"), tmp_path / "copy.db")
    return [first, f"sqlite:///{copy}"]


@pytest.fixture
def postgres_age() -> str:
    return "new"


@pytest.fixture
async def process(urls: list[str]) -> AsyncIterator[Process]:
    process = Process()
    async with AsyncExitStack() as stack:
        for url in urls:
            await migrate(url)
            options = affinity.RuntimeOptions(worker_node_id="w", poll_interval=0.2)
            process.workers.append(await stack.enter_async_context(affinity.Worker(process.app, url, options)))
            process.clients.append(await stack.enter_async_context(affinity.Client(url)))
        for session_id in "abc":
            await process.on(0, f"count@{session_id}")
        yield process


async def keeps_states(process: Process) -> None:
    assert [await process.on(database, "count") for database in (0, 1, 0, 1)] == [1, 1, 2, 2]
    hydrations = process.counts.stats.hydrations
    assert hydrations == 5, "each database has hydrated the session once, and the first one three others"


async def keeps_session_caches(process: Process) -> None:
    assert [await process.on(database, "note") for database in (0, 1, 0, 1)] == [1, 1, 2, 2]


async def keeps_resources(process: Process) -> None:
    assert [await process.on(database, "fill_box") for database in (0, 1, 0, 1)] == [1, 1, 2, 2]
    assert len(process.boxes) == 2


async def lets_both_write(process: Process) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.on, 0, "count_slowly")
        await process.entered.wait()
        with anyio.fail_after(20):
            assert await process.on(1, "count") == 1
        process.gate.set()


async def loses_one_lease(process: Process) -> None:
    """A release takes the state and the resource of one database from memory, and nothing of the other one."""
    for database in (0, 1, 1):
        await process.on(database, "fill_box")
    process.log.clear()
    assert await process.clients[0].release_session(SESSION) == "released"
    process.workers[0].runtime.sessions.recheck(SESSION)
    with anyio.fail_after(20):
        while len(process.log) < 2:
            await anyio.sleep(0.05)
    assert sorted(process.log) == ["close ['1']", "dispose 1"]
    assert await process.on(1, "fill_box") == 3


async def moves_by_its_own_states(process: Process) -> None:
    """A session whose state is in memory for one database may move to another worker of the other one."""
    await process.on(0, "count")
    await process.on(1, "note")
    found = [worker.runtime.sessions.movable(idle=0.0, most=9) for worker in process.workers]
    assert SESSION not in found[0]
    assert SESSION in found[1]


async def reports_hydrates(process: Process) -> None:
    """Each worker reports the hydrates of its own database."""
    for database in (1, 0):
        await process.on(database, "count")
        await anyio.sleep(1.5)  # a round of reports
    with anyio.fail_after(20):
        for client in process.clients:
            while (await client.session_moves(session_id=SESSION))[0].hydrate_seconds is None:
                await anyio.sleep(0.05)


async def waits_for_the_other(process: Process) -> None:
    """A handler that waits for the conversation of its own id in the other database does not wait for itself."""
    talk = process.clients[0].conversation(process.talks, SESSION)
    assert (await talk.ask(UserMessage("pass it on"), timeout=60)).text == "the other one: wake 1"


async def opens_by_id(process: Process) -> None:
    """Scripts beside a worker of the other database."""
    await process.on(0, "fill_box")
    store = process.clients[1].session_store
    opening = process.counts.open(SESSION, store=store)
    async with opening as state:
        assert (state.n, await opening.resource(process.boxes)) == (0, [])
        assert len(process.boxes) == 2


KEPT: Final[list[Callable[[Process], Awaitable[None]]]] = [
    keeps_states,
    keeps_session_caches,
    keeps_resources,
    lets_both_write,
    loses_one_lease,
    moves_by_its_own_states,
    reports_hydrates,
    waits_for_the_other,
    opens_by_id,
]


@pytest.mark.parametrize("kept", KEPT, ids=lambda one: one.__name__)
async def test_what_is_kept_is_of_one_database(process: Process, kept: Callable[[Process], Awaitable[None]]) -> None:
    await kept(process)


async def test_a_database_has_one_name(urls: list[str]) -> None:
    """For all that the process opens on it; another one has another name."""
    async with AsyncExitStack() as stack:
        for url in urls:
            await migrate(url)
        stores = [await stack.enter_async_context(affinity.open_store(url)) for url in (*urls, *urls)]
        names = [database_of(store) for store in stores]
        worker = await stack.enter_async_context(affinity.Worker(affinity.App(), urls[0], affinity.RuntimeOptions()))
        assert names[:2] == names[2:]
        assert names[0] != names[1]
        assert worker.runtime.services.provider.database == names[0]
