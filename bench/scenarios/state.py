"""``state``: what it costs to commit the state of a session with each turn's result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import psycopg

from bench.chats import Chat, chat_after
from bench.measures import MEDIAN_TURN, RATE, Metric, Report, over_rounds
from bench.processes import WorkerProcess
from bench.run import Bed, Run
from bench.scenarios.turns import CPU
from bench.work import Walk, Walked, WrongResults

SIZES = {"with 10 kB": 10_000, "with 1 MB": 1_000_000}
"""Bytes of the state as JSON, before it is packed."""

WRITTEN = Metric(name="kB written/turn", better="less", digits=1)

WRITTEN_WHERE = {
    "postgresql": "by the server to its log (tables follow at a checkpoint), for all its clients",
    "sqlite": "by the worker, to the file and its log",
}

OPENING = Walk(turns=1)
"""Makes the state of each session and has it in memory; not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Many concurrent sessions, then the first of them alone."""

    sessions: Sequence[str]
    together: Walk
    alone: Walk

    def activities(self, session: str) -> int:
        """How many have run on a session in the end; a walk of T turns has T + 1."""
        walks = [OPENING, self.together, *([self.alone] if session == self.sessions[0] else [])]
        return sum(walk.turns + 1 for walk in walks)


def state(run: Run) -> Report:
    """Turns that change a state of 10 kB or 1 MB, which commits with their results, beside turns without state.

    Each turn replaces one message of a chat, so that the state is written anew at each turn, as a whole. In the end
    every record is read back: it must have had one write for each turn, and hold what these turns make of it.

    Only our system takes part: no peer has state that belongs to a session. What a step of theirs could write with SQL
    of its own, in a transaction of its own, is not the same, and left out.
    """
    report = Report("state")
    sessions = [f"session-{number}" for number in range(run.sized(20, 3))]
    shape = Shape(sessions=sessions, together=Walk(turns=run.sized(20, 3)), alone=Walk(turns=run.sized(50, 4)))
    sizes = {run.ours.name: 0} | SIZES
    over_rounds(run.rounds, [partial(_measure, run, report, shape, name, size) for name, size in sizes.items()])
    report.notes.append(f"{run.ours.name}: without state; kB written: {WRITTEN_WHERE[run.place.dialect]}")
    return report


def _measure(run: Run, report: Report, shape: Shape, name: str, size: int) -> None:
    with run.bed(run.ours) as bed:
        (worker,) = bed.start_workers(1, app="stateful")
        bed.warm_up()
        _walk(bed, "opening", shape.sessions, OPENING, size)
        for prefix, sessions, walk in (
            ("together", shape.sessions, shape.together),
            ("alone", shape.sessions[:1], shape.alone),
        ):
            written, cpu = _written(run, bed, worker), worker.cpu_seconds()
            walked = _walk(bed, prefix, sessions, walk, size)
            written, cpu = _written(run, bed, worker) - written, worker.cpu_seconds() - cpu
            values = {
                RATE: walked.rate,
                MEDIAN_TURN: median(walked.gaps) * 1e3,
                CPU: cpu / walked.turns * 1e6,
                WRITTEN: written / walked.turns / 1e3,
            }
            run.note(report, f"{len(sessions)} x {walk.turns}", name, values)
        if size:
            check(bed.ours.chats(shape.sessions), shape, size)


def _walk(bed: Bed, prefix: str, sessions: Sequence[str], walk: Walk, size: int) -> Walked:
    routes = {f"{prefix}-{session}": [session] for session in sessions}
    began = time.monotonic()
    bed.ours.start_with_state(routes, walk, size)
    return Walked(began=began, walks=[walk.check(output) for output in bed.client.outputs(list(routes))])


def check(found: Sequence[tuple[int, Chat]], shape: Shape, size: int) -> None:
    """Judge the versions and states that were read back.

    Raises:
        WrongResults: a turn is missing from one, was applied twice, or made something else of it.
    """
    for session, (version, chat) in zip(shape.sessions, found, strict=True):
        turns = shape.activities(session)
        if (version, chat.turns) != (turns, turns):
            raise WrongResults(f"{session} had {turns} turns; its record has version {version}, turn {chat.turns}")
        if chat != chat_after(session, turns, size):
            raise WrongResults(f"the state of {session} is not what its {turns} turns make of it")


def _written(run: Run, bed: Bed, worker: WorkerProcess) -> int:
    """Bytes written so far; see `WRITTEN_WHERE`."""
    if run.place.dialect == "sqlite":
        return worker.written()
    with psycopg.connect(bed.url) as connection:
        found = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert found is not None
    return int(found[0])
