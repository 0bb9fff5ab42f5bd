"""A real HTTP server that answers 429 above 50 calls in a second, and workers in processes that are killed meanwhile.

`python -m bench flow` has the long form of it.
"""

from __future__ import annotations

from statistics import median

import pytest

from bench.calling import Calling, call_while_workers_die
from bench.places import Place, postgres_place, sqlite_place
from bench.run import Run
from bench.systems import OURS, SYSTEMS
from bench.systems.ours_flow import AT_ONCE
from tests.conftest import Servers

pytestmark = pytest.mark.slow

SECONDS = 20.0
LEASES = {"worker_lease_timeout": 3.0, "work_item_lock_timeout": 6.0}


def check(place: Place) -> None:
    run = Run(place=place, systems=[SYSTEMS[OURS]], rounds=1, quick=True, say=print)
    with run.bed(run.ours) as bed:
        called = call_while_workers_die(bed, Calling(seconds=SECONDS, backlog=1_500, options=LEASES))
    assert called.kills >= 2
    assert called.most_parallel <= AT_ONCE
    assert called.rejected <= called.served * 0.03, called
    # The machine of a test may be busy: the bench has tighter bars.
    assert called.used > 0.4, called
    assert median(called.waits) < 1.0, called


def test_on_postgresql(servers: Servers) -> None:
    with postgres_place(servers.server("new").url(), None) as place:
        check(place)


@pytest.mark.nightly
def test_on_sqlite() -> None:
    with sqlite_place() as place:
        check(place)
