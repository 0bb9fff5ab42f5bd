"""``ask``: one message in, one answer out, beside what people use for a durable chat, in one run.

The same work for each: a chat keeps 2 kB of state and its transcript, and an ask reads and writes both. Ours goes from
a client to a worker of another process, and back. The others answer in the process that asks, which is what they are
made for; beside them are the same rows as ours by SQL alone. Restate has a server of its own instead of
PostgreSQL.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median, quantiles
from typing import NamedTuple

import anyio

from affinity import Client
from affinity.conversation import UserMessage
from bench import restate_peer
from bench.ask_peers import Asked, ask_chat
from bench.asks import AskLoop
from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.systems import OURS
from bench.systems.base import PATIENCE, ROOT
from bench.systems.ours_app import asked
from bench.work import WrongResults

ASKS = Metric(name="asks/s")
MEDIAN = Metric(name="median ask, ms", better="less", digits=2)
P99 = Metric(name="99 % of asks, ms", better="less", digits=1)
CPU = Metric(name="CPU, ms/ask", better="less", digits=2)

BARS = {"langgraph": 8.0, "dbos": 6.0}
"""Times its asks/s."""

NEEDS = {
    "langgraph": ("langgraph.checkpoint.postgres", "psycopg_pool"),
    "dbos": ("dbos", "psycopg_pool"),
    "restate": ("restate", "hypercorn", "httpx"),
}
"""Modules of each, which the group ``bench`` brings."""

PROGRAMS = {"restate": restate_peer.SERVER}
"""Programs that must be on the path."""

SQL = "sql"
ROOM = {"max_sessions_per_runtime": 1_200}
WARM_UP = 20


class Load(NamedTuple):
    """Chats at the same time, and the asks of each."""

    chats: int
    asks: int

    @property
    def case(self) -> str:
        """Its name in a report."""
        return f"{self.chats} x {self.asks}"


def ask(run: Run) -> Report:
    """Chats one at a time, fifty, and five hundred at the same time."""
    report = Report("ask")
    peers = [name for name in NEEDS if _is_installed(name)]
    report.notes += [_missing(name) for name in NEEDS if name not in peers]
    sizes = [(1, run.sized(200, 3)), (run.sized(50, 2), run.sized(40, 2)), (run.sized(500, 3), run.sized(10, 2))]
    for load in [Load(*size) for size in sizes]:
        measures = [partial(_ours, run, report, load), *(partial(_peer, run, report, load, name) for name in peers)]
        over_rounds(run.rounds, [*measures, partial(_sql, run, report, load)])
        for name in filter(BARS.__contains__, peers):
            report.ratio_bar(load.case, ASKS, OURS, name, BARS[name])
    return report


def _is_installed(name: str) -> bool:
    program = PROGRAMS.get(name)
    return all(map(_is_there, NEEDS[name])) and (program is None or shutil.which(program) is not None)


def _missing(name: str) -> str:
    program = f", and npm install --global @restatedev/{PROGRAMS[name]}" if name in PROGRAMS else ""
    return f"{name} was not measured: nox -s bench installs it{program}"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _figures(found: Asked) -> dict[Metric, float]:
    """The figures of some asks."""
    times = sorted(found.times)
    worst = quantiles(times, n=100)[-1] if len(times) > 1 else times[0]
    asks = len(times)
    return {ASKS: asks / found.seconds, MEDIAN: median(times) * 1e3, P99: worst * 1e3, CPU: found.cpu / asks * 1e3}


def _ours(run: Run, report: Report, load: Load) -> None:
    with run.bed(run.ours) as bed:
        (worker,) = bed.start_workers(1, app="asking", **ROOM)
        bed.ours.call(partial(_ask_all, ids=[f"warm-up-{number}" for number in range(5)], asks=5))
        before = worker.cpu_seconds()
        ids = [f"chat-{number}" for number in range(load.chats)]
        times, seconds, cpu = bed.ours.call(partial(_ask_all, ids=ids, asks=load.asks))
        run.note(report, load.case, OURS, _figures(Asked(times, seconds, cpu + worker.cpu_seconds() - before)))


async def _ask_all(client: Client, *, ids: Sequence[str], asks: int) -> Asked:
    """Ask each chat so often, one after the other. The processor's time is that of this process, with the client."""

    async def ask(chat: str, question: str) -> str:
        reply = await client.conversation(asked, chat).ask(UserMessage(question), timeout=PATIENCE)
        return reply.text

    times: list[float] = []
    began, before = time.monotonic(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for one in ids:
            tasks.start_soon(ask_chat, ask, one, asks, times)
    return Asked(times, time.monotonic() - began, time.process_time() - before)


def _peer(run: Run, report: Report, load: Load, name: str) -> None:
    with run.place.database(run.ours) as url:  # its tables are beside ours, which are empty
        command = [sys.executable, "-m", "bench.ask_peers", name, url, *map(str, load)]
        done = subprocess.run(  # noqa: S603 -- a module of ours
            command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode:
            raise WrongResults(f"{name}: {done.stderr[-2000:]}")
        run.note(report, load.case, name, _figures(Asked.parse(done.stdout.splitlines()[-1])))


def _sql(run: Run, report: Report, load: Load) -> None:
    """The rows of as many conversations, which are written together."""
    with run.place.database(run.ours) as url:
        loop = AskLoop(url, load.chats)
        loop.run(WARM_UP)
        times = loop.run(load.asks)
        loop.close()
    run.note(report, load.case, SQL, {ASKS: load.chats * load.asks / sum(times)})
