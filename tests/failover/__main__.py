"""`python -m tests.failover`: failovers of a Patroni cluster under load, and their figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import get_args

import anyio

from tests.failover.cases import BAR, FAULTS, Way, run
from tests.failover.programs import Failing, FailoverLook
from tests.programs.__main__ import lines, silent
from tests.programs.areas import AREAS
from tests.programs.draw import Failed
from tests.servers.patroni import Replication, open_cluster


def main() -> int:
    """Print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("--case", choices=FAULTS, action="append", help="only this one")
    parser.add_argument("--replication", choices=get_args(Replication), action="append", help="only this one")
    parser.add_argument(
        "--way", choices=get_args(Way), default="hosts", help="how workers and clients find the primary"
    )
    parser.add_argument("--rounds", type=int, default=1, help="so often")
    parser.add_argument("--programs", type=int, help="so many random programs instead, over a synchronous standby")
    parser.add_argument("--seed", type=int, default=1, help="of the programs")
    parser.add_argument("--areas", default=",".join(AREAS), help="of the programs; by default all: %(default)s")
    chosen = parser.parse_args()
    if chosen.programs:
        return _run_programs(chosen.programs, chosen.seed, chosen.areas.split(","))
    print(f"the bar: {BAR:g} s", flush=True)
    for _ in range(chosen.rounds):
        for replication in chosen.replication or get_args(Replication):
            for case in chosen.case or FAULTS:
                print(anyio.run(run, case, replication, chosen.way), flush=True)
    return 0


def _run_programs(count: int, seed: int, areas: Sequence[str]) -> int:
    with silent(), open_cluster("synchronous") as cluster:
        failing = Failing(cluster)
        anyio.run(failing.prepare)
        look = FailoverLook(failing, areas)
        try:
            look.run(seed, count, None)
        except Failed as failed:
            print(failed, "".join(lines(failed.__cause__)), sep="\n", flush=True)
            return 1
        finally:
            print(look.report(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
