"""``crowd``: far more conversations than the workers have places for write at once, and again: how soon is the last one
answered?
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.request import urlopen

import anyio

from affinity import Client, RuntimeOptions
from affinity.conversation import UserMessage
from affinity.limits import MAX_PAGE
from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.systems.ours_app import talks
from bench.work import WrongResults
from tests.servers.base import free_port

FIRST = Metric(name="first messages: last answer after, s", better="less", digits=1)
SECOND = Metric(name="second messages: last answer after, s", better="less", digits=1)
MOVES = Metric(name="moves/message", better="less", digits=2)
HYDRATES = Metric(name="hydrates/message", better="less", digits=2)

TIMES_BAR = 2.0
MESSAGES = 2
WORKERS = 2
REPORTED = 2.5
"""Seconds after which workers have reported what they hydrated."""

FEW, ALL = "default options", "room for all"


def crowd(run: Run) -> Report:
    """So many conversations, twice: first they begin, then each is resumed. Beside it is the same with room for all."""
    report = Report("crowd")
    ids = [f"talk-{number}" for number in range(run.sized(2_000, 30))]
    case = f"{len(ids):,} conversations, {WORKERS} workers"
    places = {FEW: run.sized(RuntimeOptions().max_sessions_per_runtime, 4), ALL: len(ids)}

    def measure(name: str) -> None:
        run.note(report, f"{case}, {name}", run.ours, _write(run, ids, places[name]))

    over_rounds(run.rounds, [partial(measure, name) for name in places])
    for metric in (FIRST, SECOND):
        few, every = (report.median(f"{case}, {name}", run.ours.name, metric) for name in (FEW, ALL))
        report.bar(f"{case}: {metric.name}, times {ALL}", few / every if few and every else None, TIMES_BAR, "less")
    return report


def _write(run: Run, ids: Sequence[str], places: int) -> dict[Metric, float]:
    ports = [free_port() for _ in range(WORKERS)]
    with run.bed(run.ours) as bed:
        options: dict[str, Any] = {"app": "talking", "max_sessions_per_runtime": places}
        launched = [bed.workers.launch(f"worker-{n}", metrics_port=port, **options) for n, port in enumerate(ports)]
        for worker in launched:
            worker.ready()
        bed.ours.call(partial(_ask_all, ids=["warm-up"], number=0))
        took = [bed.ours.call(partial(_ask_all, ids=ids, number=number)) for number in range(MESSAGES)]
        time.sleep(REPORTED)
        moves = bed.ours.call(_count_moves)
        hydrates = sum(map(_hydrates, ports)) - 1  # but for the warm-up
    messages = len(ids) * MESSAGES
    return {FIRST: took[0], SECOND: took[1], MOVES: moves / messages, HYDRATES: hydrates / messages}


async def _ask_all(client: Client, *, ids: Sequence[str], number: int) -> float:
    """Ask each once, all at once; the seconds until the last answer."""
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for one in ids:
            tasks.start_soon(_ask, client, one, number)
    return time.monotonic() - began


async def _ask(client: Client, conversation_id: str, number: int) -> None:
    reply = await client.conversation(talks, conversation_id).ask(UserMessage(f"question {number}"), timeout=600)
    if reply.text != f"answer to question {number}, after {number}":
        raise WrongResults(f"{conversation_id} answered question {number} with {reply.text!r}")


async def _count_moves(client: Client) -> int:
    """Moves from one worker to another; the first claim of a session is none."""
    found, last = 0, 0
    while page := await client.session_moves(after=last, limit=MAX_PAGE):
        found += sum(move.reason != "new" for move in page)
        last = page[-1].epoch
    return found


def _hydrates(port: int) -> int:
    """How many states a worker has loaded, as it reports to Prometheus."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        found = re.findall(r"^affinity_session_hydrate_seconds_count\S* (\S+)", page.read().decode(), re.M)
    return sum(int(float(one)) for one in found)
