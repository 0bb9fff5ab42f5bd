"""``langgraph``: turns of a graph of two nodes, on our checkpointer, on LangGraph's own for PostgreSQL, and in memory.

All run in this process, with ``durability="sync"``: a super-step begins when the one before it is stored. A turn is a
read, four checkpoints, and the results of three tasks. The checkpointer in memory shows what LangGraph itself takes.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypedDict
from uuid import uuid4

from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.systems import OURS
from bench.work import WrongResults

RATE = Metric(name="turns/s", digits=1)
TURN = Metric(name="median turn, ms", better="less", digits=1)
CPU = Metric(name="CPU, ms/turn", better="less", digits=1)

POSTGRES: Final = "AsyncPostgresSaver"
MEMORY: Final = "InMemorySaver"

RATE_BAR: Final = 1.0
"""Beside AsyncPostgresSaver, which has no fence."""

STATE: Final = "s" * 2_000
"""A channel that rests, in each checkpoint."""

CONNECTIONS: Final = 4
"""Of ours, and of the pool of AsyncPostgresSaver."""


class Load(NamedTuple):
    """Threads at the same time, and the turns of each."""

    threads: int
    turns: int

    @property
    def case(self) -> str:
        """Its name in a report."""
        return f"{self.threads} x {self.turns}"


Opener: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]


class Said(TypedDict):
    """The state of the graph."""

    said: Annotated[list[str], operator.add]
    state: str


def langgraph(run: Run) -> Report:
    """Turns of threads, each after the other in its thread; many threads at the same time."""
    report = Report("langgraph")
    openers: dict[str, Opener] = {OURS: _ours, MEMORY: _memory}
    if find_spec("langgraph.checkpoint.postgres") is not None:
        openers[POSTGRES] = _postgres
    else:
        report.notes.append(f"{POSTGRES} is not installed: pip install langgraph-checkpoint-postgres psycopg-pool")
    for load in (Load(1, run.sized(200, 3)), Load(run.sized(50, 2), run.sized(20, 2))):
        over_rounds(run.rounds, [partial(_measure, run, report, load, name, each) for name, each in openers.items()])
        if POSTGRES in openers:
            report.ratio_bar(load.case, RATE, OURS, POSTGRES, RATE_BAR)
    return report


@asynccontextmanager
async def _ours(url: str) -> AsyncIterator[Any]:
    from affinity.integrations.langgraph import AffinitySaver  # the other scenarios need no LangGraph

    async with AffinitySaver(url, connections=CONNECTIONS) as saver:
        yield saver


@asynccontextmanager
async def _memory(url: str) -> AsyncIterator[Any]:
    yield import_module("langgraph.checkpoint.memory").InMemorySaver()


@asynccontextmanager
async def _postgres(url: str) -> AsyncIterator[Any]:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": import_module("psycopg.rows").dict_row}
    pool = import_module("psycopg_pool").AsyncConnectionPool
    async with pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options) as connections:
        saver = import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver(connections)
        await saver.setup()
        yield saver


def _measure(run: Run, report: Report, load: Load, name: str, opener: Opener) -> None:
    with run.place.database(run.ours) as url:
        run.note(report, load.case, name, asyncio.run(_run(url, load, opener)))


async def _run(url: str, load: Load, opener: Opener) -> dict[Metric, float]:
    async with opener(url) as saver:
        graph = _graph(saver)
        await _talk(graph, 2)  # opens the connections, and prepares the statements
        began, before = time.monotonic(), time.process_time()
        took = await asyncio.gather(*(_talk(graph, load.turns) for _ in range(load.threads)))
        seconds, cpu, done = time.monotonic() - began, time.process_time() - before, load.threads * load.turns
    every = [each for thread in took for each in thread]
    return {RATE: done / seconds, TURN: median(every) * 1e3, CPU: cpu / done * 1e3}


def _graph(saver: Any) -> Any:
    from langgraph.graph import END, START, StateGraph  # the other scenarios need no LangGraph

    async def node(state: Said) -> dict[str, list[str]]:
        return {"said": [str(len(state["said"]))]}

    builder = StateGraph(Said)
    builder.add_node("first", node)
    builder.add_node("second", node)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver)


async def _talk(graph: Any, turns: int) -> list[float]:
    """Run the turns of a thread of its own, and return their seconds."""
    thread = {"configurable": {"thread_id": str(uuid4())}}
    took: list[float] = []
    result: dict[str, list[str]] = {"said": []}
    for _ in range(turns):
        began = time.monotonic()
        result = await graph.ainvoke({"said": ["in"], "state": STATE}, thread, durability="sync")
        took.append(time.monotonic() - began)
    if len(result["said"]) != 3 * turns:
        raise WrongResults(f"a thread has {len(result['said'])} entries after {turns} turns, and not {3 * turns}")
    return took
