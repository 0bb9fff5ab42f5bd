"""``memory``: what a waiting workflow costs in the worker and in the database, and what a queued item costs."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import psycopg

from bench.measures import Metric, Report, over_rounds
from bench.run import Bed, Run
from bench.systems.base import FloodingClient, System, WaitingClient
from bench.work import Walk

IN_WORKER = Metric(name="bytes in the worker", better="less")
IN_DATABASE = Metric(name="bytes in the database", better="less")

SETTLE = 3
"""Seconds after which the last of them waits."""

BOUNDED_SHARE = 10
"""The bounded cache holds one in so many of the waiting instances."""

BOUNDED_BAR = 0.5
"""A bounded cache must save at least half of what a full one costs."""


def memory(run: Run) -> Report:
    """Waiting workflows on every system; on ours with and without their coroutines in memory; and queued items."""
    report = Report("memory")
    instances = run.sized(5_000, 50)
    bound = instances // BOUNDED_SHARE
    bounded = f"waiting, cache of {bound:,}"
    caches = {bounded: bound, "waiting, no cache": 0}
    measures = [partial(_waiting, run, report, "waiting", one, instances=instances) for one in run.having()]
    measures += [
        partial(_waiting, run, report, case, run.ours, instances=instances, instance_cache_size=size)
        for case, size in caches.items()
    ]
    over_rounds(run.rounds, [*measures, partial(_queued, run, report, run.sized(5_000, 50))])
    report.notes.append(f"per workflow or item, of {instances:,}")
    _judge(run, report, bounded)
    return report


def _judge(run: Run, report: Report, bounded: str) -> None:
    full, part = (report.median(case, run.ours.name, IN_WORKER) for case in ("waiting", bounded))
    if full is not None and part is not None and not run.quick:
        report.bar("a cache of a tenth: share of the memory of a full one", part / full, BOUNDED_BAR, "less")


def _waiting(run: Run, report: Report, case: str, system: System, *, instances: int, **options: Any) -> None:
    ids = [f"waiting-{number}" for number in range(instances)]
    with run.bed(system) as bed:
        assert isinstance(bed.client, WaitingClient)
        worker = bed.workers.start("worker", **options)
        bed.warm_up()
        memory, stored = worker.memory(), _stored(bed)
        bed.client.start_waiting(ids)
        bed.walk("last", 1, Walk(turns=1))  # queues are served in order: the others have begun
        time.sleep(run.sized(SETTLE, 1))
        used = {IN_WORKER: (worker.memory() - memory) / instances, IN_DATABASE: (_stored(bed) - stored) / instances}
    run.note(report, case, system, used)


def _queued(run: Run, report: Report, items: int) -> None:
    with run.bed(run.ours) as bed:
        assert isinstance(bed.client, FloodingClient)
        holder = bed.workers.start("holder", app="foreign", worker_concurrency=1)
        bed.client.flood("busy", 1)
        stored = _stored(bed)
        bed.client.flood("busy", items)
        run.note(report, "queued item", run.ours, {IN_DATABASE: (_stored(bed) - stored) / items})
        holder.kill()  # what it runs never ends


def _stored(bed: Bed) -> int:
    with psycopg.connect(bed.url) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert found is not None
    return int(found[0])
