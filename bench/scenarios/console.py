"""``console``: how long each page takes in a database with many instances, sessions and conversations."""

from __future__ import annotations

import time
from statistics import quantiles
from typing import Final

import anyio
import httpx2 as httpx

from affinity.console import Console, create
from bench.measures import Metric, Report
from bench.run import Run
from bench.scenarios.size import Rows, filled

P95: Final = Metric(name="a page, ms, p95", better="less", digits=1)
P95_BAR: Final = 200.0

SAMPLES: Final = 40
"""Of each page in a round."""

PAGES: Final = {
    "overview": "/",
    "workers": "/workers",
    "sessions": "/sessions",
    "records": "/records?kind=chat",
    "session": "/session?id=session-500",
    "instances": "/instances",
    "failed instances": "/instances?status=failed",
    "instances by prefix": "/instances?prefix=waiting-77",
    "instances by name": "/instances?name=none",
    "instances by status": "/instances?status=completed",
    "instance": "/instance?id=waiting-900",
    "conversations": "/conversations",
    "conversations by status": "/conversations?status=failed",
    "conversation": "/conversation?id=waiting-500",
    "approvals": "/approvals",
}


def console(run: Run) -> Report:
    """The pages of a console on one connection, without the time of a browser."""
    report = Report("console")
    rows = Rows(
        instances=run.sized(1_000_000, 2_000),
        sessions=run.sized(100_000, 1_000),
        conversations=run.sized(10_000, 1_000),
    )
    with run.place.database(run.ours) as url:
        anyio.run(_measure, run, report, url, rows)
    for name in PAGES:
        report.bar(f"{name}: {P95.name}", report.median(name, run.ours.name, P95), P95_BAR, "less")
    return report


async def _measure(run: Run, report: Report, url: str, rows: Rows) -> None:
    async with filled(run, url, rows), create(url) as app, _browser(app) as http:
        for number in range(run.rounds + 1):
            for name, address in PAGES.items():
                costs = [await _cost(http, address, f"{number}-{n}") for n in range(run.sized(SAMPLES, 2))]
                if number:  # the first round warms the caches
                    report.add(name, run.ours.name, {P95: quantiles(costs, n=20)[18] * 1e3})


def _browser(app: Console) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://console")


async def _cost(http: httpx.AsyncClient, address: str, number: str) -> float:
    """Seconds of one request, for which the page is read again: each has another address."""
    began = time.perf_counter()
    answer = await http.get(f"{address}{'&' if '?' in address else '?'}sample={number}")
    answer.raise_for_status()
    return time.perf_counter() - began
