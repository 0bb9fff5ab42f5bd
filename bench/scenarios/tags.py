"""``tags``: turns of a worker with tags, half of them tagged, and the cost of a fetch, beside a worker without any."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import anyio

from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkerIdentity, WorkerTags
from affinity_conformance.providers.builders import fetch_options, profile
from bench.measures import RATE, Metric, Report, over_rounds
from bench.run import Run
from bench.scenarios.turns import CPU
from bench.work import Walk, Walked

FETCH = Metric(name="fetch of nothing, ms", better="less", digits=2)

TAGGED_BAR = 0.85
"""Of the rate without tags."""

FETCH_BAR = 2.5
"""Of the time of a fetch without tags: a tag is one more range of an index, in the same statement."""

COUNTS = (0, 1, 8)
"""Tags of the worker: none, one, and as many as it may have."""


def tags(run: Run) -> Report:
    """Walks with a session each, every second one with a tag; one worker process, which has these tags. Then fetches of
    one worker that find nothing.
    """
    report = Report("tags")
    walks, walk = run.sized(100, 16), Walk(turns=run.sized(50, 4))
    cases = {count: f"{walks} x {walk.turns}, {count} tags" for count in COUNTS}
    measures = [
        partial(_measure, run, report, case, [f"tag-{n}" for n in range(count)], size=(walks, walk))
        for count, case in cases.items()
    ]
    over_rounds(run.rounds, measures)
    without, *tagged = cases.values()
    for metric, bound in ((RATE, TAGGED_BAR), (FETCH, FETCH_BAR)):
        for case in tagged:
            found, none = (report.median(each, run.ours.name, metric) for each in (case, without))
            if found is not None and none is not None:
                report.bar(f"{case}: {metric.name}, of none", found / none, bound, metric.better)
    return report


def _measure(run: Run, report: Report, case: str, tags: Sequence[str], *, size: tuple[int, Walk]) -> None:
    walks, walk = size
    with run.bed(run.ours) as bed:
        (worker,) = bed.start_workers(1, tags=",".join(tags)) if tags else bed.start_workers(1)
        bed.warm_up()
        before, began = worker.cpu_seconds(), time.monotonic()
        of_walks = {f"walk-{n}": tags[n // 2 % len(tags)] if tags and n % 2 else None for n in range(walks)}
        bed.ours.start_tagged(of_walks, walk)
        walked = Walked(began=began, walks=[walk.check(output) for output in bed.client.outputs(list(of_walks))])
        cpu = worker.cpu_seconds() - before
        worker.end()
        fetch = anyio.run(_time_fetches, bed.url, tuple(tags), run.sized(500, 5))
        values = {RATE: walked.rate, CPU: cpu / walked.turns * 1e6, FETCH: fetch * 1e3}
        run.note(report, case, run.ours, values)


async def _time_fetches(url: str, tags: tuple[str, ...], count: int) -> float:
    """Seconds of a fetch by a worker with these tags, in the middle."""
    provider = await open_provider(url)
    try:
        identity = WorkerIdentity(worker_id="fetcher", incarnation=Incarnation("one"))
        await provider.register_worker(identity, 600.0, {}, profile=profile(tags=WorkerTags(tags=tags)))
        options = replace(fetch_options(10), tags=WorkerTags(tags=tags))
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            await provider.fetch_work_item(identity, options)
            seconds.append(time.perf_counter() - began)
        return median(seconds)
    finally:
        await provider.aclose()
