"""``flow``: work with limits beside the same work without, many keys, a long line, a peer's queue, and a service that
answers 429 while workers are killed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from affinity import Client
from affinity.flow.store.contract import LimitChange, limits_of
from bench.calling import Called, Calling, call_while_workers_die
from bench.fused import FusedLoop, LimitedLoop
from bench.measures import RATE, Metric, Report, over_rounds
from bench.run import Bed, Run
from bench.scenarios.limit import WARM_UP
from bench.scenarios.turns import CPU
from bench.systems.base import System
from bench.systems.dbos import DbosClient
from bench.systems.ours_flow import AT_ONCE, CALLS_A_SECOND, Calls, FlowRoute
from bench.work import Stamp, Walk, Walked, WrongResults

LIMITED_BAR = 0.6
"""Of the rate without a limit, where the limit does not bind; less, if the same rows by SQL alone have less."""

LONG_BAR = 1.2
PEER_BAR = 10.0
USED_BAR = 90.0
WAIT_BAR = 1.0

CALLS = Metric(name="calls/s")
INGEST = Metric(name="until the line is made, s", better="less", digits=2)
ADMISSION = Metric(name="an admission, ms", better="less", digits=3)
USED = Metric(name="used of the allowed rate, %", digits=1)
WAIT = Metric(name="small tenants: median wait, s", better="less", digits=2)
WAIT_P99 = Metric(name="small tenants: p99 wait, s", better="less", digits=2)
PARALLEL = Metric(name="most calls at the same time", better="less")
REJECTED = Metric(name="calls rejected, %", better="less", digits=2)
BROKEN = Metric(name="calls cut by a kill", better="less")

BARE = "the same rows by SQL alone"
UNLIMITED, LIMITED, KEYED = "no limit", "a limit", "a key each"

ADMISSIONS = 20
AT_A_TIME = 10
"""Pieces of work that an admission takes."""


def flow(run: Run) -> Report:
    """A limit that does not bind, many keys, a long line; calls beside the queue of a peer; a service with a limit."""
    report = Report("flow")
    _beside_unlimited(run, report)
    _long_line(run, report)
    _beside_peer(run, report)
    over_rounds(run.rounds if run.quick else 1, [partial(_service, run, report)])
    _judge_service(run, report)
    return report


# -- a limit that does not bind


@dataclass(frozen=True, kw_only=True)
class _Walks:
    """Walks of one kind."""

    case: str
    name: str
    count: int
    route: FlowRoute


def _beside_unlimited(run: Run, report: Report) -> None:
    walks, turns, keys = run.sized(100, 4), run.sized(50, 4), run.sized(10_000, 20)
    case = f"{walks} x {turns}"
    on_sessions = f"{case}, on sessions"
    kinds = [
        _Walks(case=at, name=name, count=walks, route=FlowRoute(turns=turns, limit=limit, on_session=at == on_sessions))
        for at in (case, on_sessions)
        for name, limit in ((UNLIMITED, ""), (LIMITED, "open"))
    ]
    route = FlowRoute(turns=keys // walks - 1, limit="keyed")
    kinds.append(_Walks(case=f"{keys:,} keys", name=KEYED, count=walks, route=route))
    bare = {UNLIMITED: FusedLoop, LIMITED: LimitedLoop} if run.place.dialect == "postgresql" else {}
    loops = [partial(_bare, run, report, walks, name, loop) for name, loop in bare.items()]
    over_rounds(run.rounds, [*(partial(_walk, run, report, kind) for kind in kinds), *loops])
    shares = {at: _share(report, at) for at in (case, on_sessions, BARE)}
    if (least := shares.pop(BARE)) is not None:
        report.notes.append(f"share of the rate without a limit, of the same rows by SQL alone: {least:.2f}")
    for at, share in shares.items():
        if share is not None:
            report.bar(f"{at}: share of the rate without a limit", share, min(LIMITED_BAR, least or LIMITED_BAR))


def _share(report: Report, case: str) -> float | None:
    """Return the rate with a limit for each of that without."""
    limited, free = report.median(case, LIMITED, RATE), report.median(case, UNLIMITED, RATE)
    return None if limited is None or free is None else limited / free


def _bare(run: Run, report: Report, batch: int, name: str, kind: type[FusedLoop]) -> None:
    """The rows of turns on sessions, as many in a statement as there are walks."""
    rounds = run.sized(100, 5)
    with run.place.database(run.ours) as url:
        loop = kind(url, batch)
        loop.run(min(WARM_UP, rounds))
        seconds = sum(loop.run(rounds))
        loop.close()
    run.note(report, BARE, name, {RATE: batch * rounds / seconds})


def _walk(run: Run, report: Report, walks: _Walks) -> None:
    with run.bed(run.ours) as bed:
        worker = bed.workers.start("worker", module="ours_flow")
        _walked(bed, "warm", 5, walks.route.model_copy(update={"turns": 5}))
        before = worker.cpu_seconds()
        walked = _walked(bed, "walk", walks.count, walks.route)
        cpu = worker.cpu_seconds() - before
        run.note(report, walks.case, walks.name, {RATE: walked.rate, CPU: cpu / walked.turns * 1e6})


def _walked(bed: Bed, prefix: str, count: int, route: FlowRoute) -> Walked:
    ids = [f"{prefix}-{number}" for number in range(count)]
    walk = Walk(turns=route.turns)
    began = time.monotonic()
    bed.ours.start_inputs("walk", dict.fromkeys(ids, route))
    return Walked(began=began, walks=[walk.check(output) for output in bed.client.outputs(ids)])


# -- a long line


def _long_line(run: Run, report: Report) -> None:
    sizes = {f"{size:,} waiting": size for size in (100, run.sized(100_000, 300))}
    over_rounds(run.rounds, [partial(_admissions, run, report, case, size) for case, size in sizes.items()])
    first, last = sizes
    short, long = [report.median(case, run.ours.name, ADMISSION) for case in sizes]
    if short and long:
        report.bar(f"{last}: an admission / one with {first}", long / short, LONG_BAR, "less")


def _admissions(run: Run, report: Report, case: str, waiting: int) -> None:
    """So many wait, of 100 tenants; no worker runs while they are admitted, ten at a time."""
    size = waiting + ADMISSIONS * AT_A_TIME
    with run.bed(run.ours) as bed:
        worker = bed.workers.start("worker", module="ours_flow")
        began = time.monotonic()
        share = min(1_000, size)
        inputs = {f"fan-{n}": Calls(count=min(share, size - n), closed=True) for n in range(0, size, share)}
        bed.ours.start_inputs("fan", inputs)
        while bed.ours.call(_waiting) < size:
            time.sleep(0.1)
        made = time.monotonic() - began
        worker.end()
        seconds = bed.ours.call(_admit)
    run.note(report, case, run.ours, {ADMISSION: median(seconds) * 1e3 / AT_A_TIME, INGEST: made})


async def _waiting(client: Client) -> int:
    found = await limits_of(client._provider).list_limits(["closed"])
    return sum(row.waiting for row in found)


async def _admit(client: Client) -> Sequence[float]:
    provider, seconds = limits_of(client._provider), []
    await provider.admit(most=AT_A_TIME)
    for number in range(1, ADMISSIONS + 1):
        await provider.change_limits([LimitChange(limit="closed", concurrency=number * AT_A_TIME)])
        began = time.perf_counter()
        admitted = (await provider.admit(most=AT_A_TIME)).admitted
        seconds.append(time.perf_counter() - began)
        if admitted != AT_A_TIME:
            raise WrongResults(f"{admitted} pieces of work were admitted, not {AT_A_TIME}")
    return seconds


# -- beside a peer


def _beside_peer(run: Run, report: Report) -> None:
    calls = run.sized(2_000, 20)
    case = f"{calls:,} limited calls"
    systems = [one for one in run.having() if one.name in {run.ours.name, "dbos"}]
    over_rounds(run.rounds, [partial(_calls, run, report, case, one, calls) for one in systems])
    report.ratio_bar(case, CALLS, run.ours.name, "dbos", PEER_BAR)


def _calls(run: Run, report: Report, case: str, system: System, count: int) -> None:
    """From the first call to the last. The calls of the peer wait in its queue before its worker runs; ours are queued
    meanwhile.
    """
    with run.bed(system) as bed, run.excused(report, case, system):
        if isinstance(bed.client, DbosClient):
            ids = [f"call-{number}" for number in range(count)]
            bed.client.start_calls(ids)
            bed.workers.start("worker")
            outputs = bed.client.outputs(ids)
        else:
            bed.workers.start("worker", module="ours_flow")
            bed.ours.start_inputs("fan", {"fan": Calls(count=count)})
            (outputs,) = bed.client.outputs(["fan"])
        stamps = [Stamp(*row) for row in outputs]
        if [stamp.turn for stamp in stamps] != list(range(count)):
            raise WrongResults(f"{count} calls gave {len(stamps)} results")
        times = [stamp.at for stamp in stamps]
        run.note(report, case, system, {CALLS: (count - 1) / (max(times) - min(times))})


# -- a service that answers 429


def _service(run: Run, report: Report) -> None:
    calling = Calling(seconds=run.sized(300, 6), backlog=run.sized(22_000, 600))
    with run.bed(run.ours) as bed:
        called = call_while_workers_die(bed, calling)
    run.note(report, _case(run), run.ours, _figures(called))


def _case(run: Run) -> str:
    return f"a service with {CALLS_A_SECOND} calls/s, workers are killed for {run.sized(300, 6)} s"


def _figures(called: Called) -> dict[Metric, float]:
    waits = sorted(called.waits)
    return {
        USED: called.used * 100,
        WAIT: median(waits),
        WAIT_P99: waits[len(waits) * 99 // 100],
        PARALLEL: called.most_parallel,
        REJECTED: called.rejected / (called.served + called.rejected) * 100,
        BROKEN: called.broken,
    }


def _judge_service(run: Run, report: Report) -> None:
    case, ours = _case(run), run.ours.name
    report.bar(f"{case}: most at the same time", report.median(case, ours, PARALLEL), AT_ONCE, "less")
    report.bar(f"{case}: rejected, %", report.median(case, ours, REJECTED), 0.0, "less")
    report.bar(f"{case}: used, %", report.median(case, ours, USED), USED_BAR)
    report.bar(f"{case}: small tenants' median wait, s", report.median(case, ours, WAIT), WAIT_BAR, "less")
