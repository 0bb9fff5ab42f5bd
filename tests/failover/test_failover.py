"""PostgreSQL behind Patroni fails over under load. With a synchronous standby nothing that a client has seen is
lost, with an asynchronous one what the failover lost; nothing is there twice, and no process needs a restart.

``python -m tests.failover`` prints the figures.
"""

from __future__ import annotations

from typing import Final

import anyio
import pytest

from tests.failover.cases import BAR, Outcome, run
from tests.failover.programs import Failing, FailoverLook
from tests.programs.areas import AREAS
from tests.servers.patroni import Replication, needs_patroni, open_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.nightly, needs_patroni, pytest.mark.timeout(600)]

ANYWAY: Final = ["switchover", "postgres killed", "etcd leader killed", "quorum lost", "paused"]

BUSY: Final = 3.0
"""Seconds more, on a machine that does other things too."""


def check(outcome: Outcome) -> None:
    """All goes on in time, and nothing is there twice. What is lost is one run of each session: what came last."""
    assert outcome.judged.doubled == 0, str(outcome)
    assert outcome.judged.blocks <= 1, str(outcome)
    assert outcome.pause <= BAR + BUSY, str(outcome)


def check_whole(outcome: Outcome) -> None:
    """Nothing is lost either."""
    assert outcome.judged.lost == 0, str(outcome)
    check(outcome)


@pytest.mark.parametrize("case", ANYWAY)
async def test_with_a_synchronous_standby_nothing_is_lost(case: str) -> None:
    check_whole(await run(case, "synchronous"))


@pytest.mark.parametrize("case", ["switchover", "patroni gone", "paused"])
async def test_behind_haproxy_nothing_is_lost(case: str) -> None:
    """Also where the Patroni of the primary is gone and does not come back."""
    check_whole(await run(case, "synchronous", "haproxy"))


@pytest.mark.parametrize("case", ANYWAY)
async def test_with_an_asynchronous_standby_all_goes_on(case: str) -> None:
    check(await run(case, "asynchronous"))


async def test_what_an_asynchronous_standby_had_not_received_is_lost() -> None:
    outcome = await run("lagging standby", "asynchronous")
    assert outcome.judged.lost > 0, str(outcome)
    check(outcome)


@pytest.mark.parametrize("replication", ["synchronous", "asynchronous"])
async def test_an_old_primary_takes_connections_until_its_patroni_is_back(replication: Replication) -> None:
    """Patroni 3.0 then lets what waits there for a standby commit, and stops it: clients see both."""
    check(await run("patroni killed", replication))


async def test_failovers_while_workers_are_killed_and_paused() -> None:
    check_whole(await run("storm", "synchronous"))


@pytest.mark.timeout(1800)
def test_random_programs_over_failovers() -> None:
    """With the judges of all programs, and all areas. Most take seconds, some minutes."""
    with open_cluster("synchronous") as cluster:
        failing = Failing(cluster)
        anyio.run(failing.prepare)
        look = FailoverLook(failing, list(AREAS))
        look.run(2, 12, None)
        assert "12 programs" in look.report()
        assert failing.done >= 12
