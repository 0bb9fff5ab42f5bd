"""`python -m tests.failover`: failovers of a Patroni cluster under load, and their figures."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

import anyio

from tests.failover.cases import BAR, FAULTS, Way, run
from tests.servers.patroni import Replication


def main() -> int:
    """Print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("--case", choices=FAULTS, action="append", help="only this one")
    parser.add_argument("--replication", choices=get_args(Replication), action="append", help="only this one")
    parser.add_argument(
        "--way", choices=get_args(Way), default="hosts", help="how workers and clients find the primary"
    )
    parser.add_argument("--rounds", type=int, default=1, help="so often")
    chosen = parser.parse_args()
    print(f"the bar: {BAR:g} s", flush=True)
    for _ in range(chosen.rounds):
        for replication in chosen.replication or get_args(Replication):
            for case in chosen.case or FAULTS:
                print(anyio.run(run, case, replication, chosen.way), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
