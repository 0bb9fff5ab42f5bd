"""``fleet``: 64 worker processes on one database: what they cost when idle, at a hint and after the loss of all
connections, how they take over from 8 of them that are killed, and how fast they are beside 1 and 8.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any, Final

import psutil
import psycopg

import affinity
from affinity.provider.statements import load_statements
from bench.measures import RATE, Metric, Report, over_rounds
from bench.processes import WorkerProcess
from bench.run import Bed, Run
from bench.work import Walk

WORKERS = 64
KILLED = 8
SESSIONS = 1_000
"""Held by the workers that are killed."""

WAVE = 8
"""Worker processes that are started at a time."""

CONNECTIONS = Metric(name="connections a worker", better="less", digits=1)
TRANSACTIONS = Metric(name="statements/s of the fleet", better="less", digits=0)
CPU = Metric(name="CPU of the fleet, % of a core", better="less", digits=1)
SERVER_CPU = Metric(name="CPU of the server, % of a core", better="less", digits=1)
PER_HINT = Metric(name="statements a hint", better="less", digits=1)
FIRST = Metric(name="start to first turn, ms", better="less", digits=1)
P50 = Metric(name="median session goes on after, s", better="less", digits=2)
LAST = Metric(name="last session goes on after, s", better="less", digits=2)
BACK = Metric(name="last connection is back after, s", better="less", digits=2)
CROWD = Metric(name="connections in the busiest 100 ms, %", better="less")

IDLE_CONNECTIONS_BAR = 3.0
MOST_CONNECTIONS_BAR = 4.0
STATEMENTS_BAR = 5.0
"""A second and worker, as of a single one: `bench.scenarios.idle`."""
CPU_BAR = 1.0
"""Per cent of a core for each worker, as of a single one."""
HINT_BAR = 4.0
"""Statements that a hint to all may cost for each worker: two fetches, and what a start and its turn need."""
GRACE = 5.0
"""Seconds beyond the worker lease until the last session goes on: a thousand of them together, on few cores."""
CROWD_BAR = 60.0
RATE_BAR = 0.5
"""Share of the rate of 8 workers on the same cores."""

SETTLE = 12.0
"""Seconds until no start is felt any more, and backends have reported to the server's statistics."""

STATEMENTS: Final = load_statements("bench", "fleet.sql")

QUICK_OPTIONS = {"worker_lease_timeout": 2.0, "work_item_lock_timeout": 4.0, "poll_interval": 0.3}


def fleet(run: Run) -> Report:
    """Throughput by number of workers; then one fleet through all of the rest."""
    report = Report("fleet")
    sizes = [1, 2] if run.quick else [1, KILLED, WORKERS]
    over_rounds(run.rounds, [partial(_together, run, report, size) for size in sizes])
    over_rounds(run.rounds, [partial(_life, run, report)])
    few, many = (report.median(_case(size), run.ours.name, RATE) for size in sizes[-2:])
    if few is not None and many is not None:
        report.bar(f"rate of {sizes[-1]} workers / rate of {sizes[-2]}", many / few, RATE_BAR)
    _judge(run, report)
    return report


def _case(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"


def _together(run: Run, report: Report, size: int) -> None:
    """The same walks with each number of workers."""
    with run.bed(run.ours) as bed:
        _start_workers(run, bed, size)
        bed.warm_up(size)
        walked = bed.walk("walk", run.sized(200, 4), Walk(turns=run.sized(50, 4)))
        run.note(report, _case(size), run.ours, {RATE: walked.rate})


def _start_workers(run: Run, bed: Bed, size: int, first: int = 0) -> list[WorkerProcess]:
    """Workers, a wave at a time: a process needs a second of a core to start."""
    processes: list[WorkerProcess] = []
    options: dict[str, Any] = QUICK_OPTIONS if run.quick else {}
    for start in range(first, first + size, WAVE):
        names = [f"worker-{number}" for number in range(start, min(start + WAVE, first + size))]
        launched = [bed.workers.launch(name, worker_concurrency=200, **options) for name in names]
        processes += [worker.ready() for worker in launched]
    return processes


def _life(run: Run, report: Report) -> None:
    """The sessions are held by the first few workers, the others join; then all that happens to a fleet."""
    killed, others = run.sized(KILLED, 1), run.sized(WORKERS - KILLED, 2)
    sessions = [f"session-{number}" for number in range(run.sized(SESSIONS, 8))]
    with run.bed(run.ours) as bed, psycopg.connect(bed.url, autocommit=True) as admin:
        holders = _start_workers(run, bed, killed)
        _walk(bed, "claim", sessions, Walk(turns=1))
        processes = holders + _start_workers(run, bed, others, first=killed)
        time.sleep(run.sized(40, 2))  # until connections that are idle are closed
        _idle(run, report, processes, admin)
        _hint(run, report, processes, bed, admin)
        _kill(run, report, bed, holders, sessions)
        _cut(run, report, len(processes) - killed, admin)


def _walk(bed: Bed, prefix: str, sessions: Sequence[str], walk: Walk) -> None:
    ids = {f"{prefix}-{session}": [session] for session in sessions}
    bed.ours.start_on(ids, walk)
    bed.client.outputs(list(ids))


def _idle(run: Run, report: Report, processes: Sequence[WorkerProcess], admin: psycopg.Connection[Any]) -> None:
    """Sessions are held, and nothing is to do."""
    connections = _number(admin, "connections")
    seconds = run.sized(30, 2)
    before, cpu, server = _number(admin, "transactions"), _cpu(processes), _server_cpu(admin)
    time.sleep(seconds)
    transactions, cpu, server = (
        _number(admin, "transactions") - before,
        _cpu(processes) - cpu,
        _server_cpu(admin) - server,
    )
    values = {
        CONNECTIONS: connections / len(processes),
        TRANSACTIONS: transactions / seconds,
        CPU: cpu / seconds * 100,
        SERVER_CPU: server / seconds * 100,
    }
    run.note(report, "idle", run.ours, values)


def _hint(
    run: Run, report: Report, processes: Sequence[WorkerProcess], bed: Bed, admin: psycopg.Connection[Any]
) -> None:
    """Starts, one after the other, each of which wakes all workers for work that one of them takes."""
    hints, idle = run.sized(50, 3), report.median("idle", run.ours.name, TRANSACTIONS) or 0.0
    began, before = time.monotonic(), _number(admin, "transactions")
    firsts: list[float] = []
    for number in range(hints):
        started = time.monotonic()
        bed.client.start([one := f"hint-{number}-{began}"], Walk(turns=1))
        (output,) = bed.client.outputs([one])
        firsts.append(Walk(turns=1).check(output)[0].at - started)
    time.sleep(run.sized(int(SETTLE), 1))
    spent = _number(admin, "transactions") - before - idle * (time.monotonic() - began)
    run.note(report, "hints", run.ours, {PER_HINT: max(0.0, spent) / hints, FIRST: median(firsts) * 1e3})


def _kill(run: Run, report: Report, bed: Bed, holders: Sequence[WorkerProcess], sessions: Sequence[str]) -> None:
    """All holders together, when each session has had a turn on them."""
    walk = Walk(turns=run.sized(15, 24), pause=run.sized(40, 5) / 10)
    ids = {f"killed-{session}": [session] for session in sessions}
    bed.ours.start_on(ids, walk)
    with psycopg.connect(bed.url, autocommit=True) as admin:
        while _number(admin, "begun") < len(sessions):
            time.sleep(0.1)
        most = _number(admin, "connections")
    killed = time.monotonic()
    for holder in holders:
        holder.kill()
    gone = {holder.pid for holder in holders}
    walks = [walk.check(output) for output in bed.client.outputs(list(ids))]
    later = [[one.at for one in stamps if one.pid not in gone and one.at > killed] for stamps in walks]
    waits = [min(times) - killed for times in later if times]  # a walk may have ended before the last one has begun
    workers = len(holders) + run.sized(WORKERS - KILLED, 2)
    values = {P50: median(waits), LAST: max(waits), CONNECTIONS: most / workers}
    run.note(report, f"{len(sessions):,} sessions", run.ours, values)


def _cut(run: Run, report: Report, workers: int, admin: psycopg.Connection[Any]) -> None:
    """Every connection of the fleet ends at one moment, as when the database restarts; the ones that come back."""
    wanted = 3 * workers
    cut = float(_number(admin, "cut"))
    ends = time.monotonic() + 60.0
    while True:
        found = [began - cut for _, began in admin.execute(STATEMENTS["backends"], {}) if began > cut]
        if len(found) >= wanted or time.monotonic() > ends:
            break
        time.sleep(0.05)
    assert len(found) >= wanted, f"{len(found)} connections of {wanted} came back"
    crowd = max(Counter(int(seconds * 10) for seconds in found).values()) / len(found) * 100
    run.note(report, "connections lost", run.ours, {BACK: max(found), CROWD: crowd})


def _judge(run: Run, report: Report) -> None:
    ours, workers = run.ours.name, run.sized(WORKERS, 3)
    sessions = f"{run.sized(SESSIONS, 8):,} sessions"
    lease = QUICK_OPTIONS["worker_lease_timeout"] if run.quick else affinity.RuntimeOptions().worker_lease_timeout
    bars = [
        ("idle", CONNECTIONS, 1, IDLE_CONNECTIONS_BAR),
        (sessions, CONNECTIONS, 1, MOST_CONNECTIONS_BAR),
        ("idle", TRANSACTIONS, workers, STATEMENTS_BAR),
        ("idle", CPU, workers, CPU_BAR),
        ("hints", PER_HINT, workers, HINT_BAR),
        (sessions, LAST, 1, lease + GRACE),
        ("connections lost", CROWD, 1, CROWD_BAR),
    ]
    for case, metric, parts, bound in bars:
        if (value := report.median(case, ours, metric)) is not None:
            per = " / workers" if parts > 1 else ""
            report.bar(f"{case}: {metric.name}{per}", value / parts, bound, "less")


def _number(admin: psycopg.Connection[Any], name: str) -> float:
    found = admin.execute(STATEMENTS[name], {}).fetchone()
    assert found is not None
    return float(found[0])


def _cpu(processes: Sequence[WorkerProcess]) -> float:
    return sum(worker.cpu_seconds() for worker in processes)


def _server_cpu(admin: psycopg.Connection[Any]) -> float:
    """Seconds of a processor that the connections of the workers have used on the server; 0 if that is elsewhere."""
    total = 0.0
    for pid, _ in admin.execute(STATEMENTS["backends"], {}):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.name().startswith("postgres"):
                total += sum(process.cpu_times()[:2])
    return total
