"""``python -m tests.races``: all ordered pairs of operations, at each point; or some of them, drawn by a seed."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from tests.programs.databases import Copies
from tests.races.driver import Area, Races, Where
from tests.races.operations import AREAS


def arguments() -> argparse.Namespace:
    """Arguments of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.races", description=__doc__)
    parser.add_argument("--url", help="a PostgreSQL database; by default SQLite")
    parser.add_argument("--postgres", choices=["old", "new"], help="a PostgreSQL server is started")
    parser.add_argument("--area", choices=[area.name for area in AREAS], action="append", help="only this one")
    parser.add_argument("--only", default="", help="A,B: only pairs of these; A: only pairs with this one")
    parser.add_argument("--at", default="", help="only points with this text, such as commit_turn or client")
    parser.add_argument("--runs", type=int, help="so many of each area, drawn; by default all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the drawn runs")
    parser.add_argument("--points", action="store_true", help="print the points of each operation, and race nothing")
    return parser.parse_args()


@contextmanager
def database(options: argparse.Namespace) -> Iterator[Where]:
    """Where the races are run."""
    if options.postgres is None:
        yield options.url
        return
    from tests.servers import old_and_new  # imported late: it is for PostgreSQL only

    with old_and_new()[options.postgres == "new"].open() as server:
        yield Copies(server)


async def look(options: argparse.Namespace, where: Where) -> int:
    """Print the findings; their number."""
    found = 0
    for area in AREAS:
        if not options.area or area.name in options.area:
            found += await (show_points if options.points else look_at)(area, options, where)
    return found


async def show_points(area: Area, options: argparse.Namespace, where: Where) -> int:
    """Print where each operation can be held."""
    async with Races(area, where) as races:
        for operation in area.operations:
            print(f"{area.name}.{operation.name}: {', '.join(map(str, await races.points(operation)))}")
    return 0


async def look_at(area: Area, options: argparse.Namespace, where: Where) -> int:
    """Print the findings of an area; their number."""
    begun, found = time.monotonic(), 0
    only = [name for name in options.only.split(",") if name]
    async with Races(area, where) as races:
        draw = None if options.runs is None else random.Random(options.seed)
        async for finding in races.look(only, at=options.at, draw=draw, runs=options.runs):
            found += 1
            print(finding, flush=True)
    took = time.monotonic() - begun
    print(f"{area.name}: {found} findings in {races.runs} runs ({races.missed} missed their point), {took:.0f} s")
    return found


if __name__ == "__main__":
    wanted = arguments()
    logging.disable()  # of what fails on purpose
    if wanted.runs is not None:
        print(f"--seed {wanted.seed}")
    with database(wanted) as chosen:
        sys.exit(min(anyio.run(look, wanted, chosen), 1))
