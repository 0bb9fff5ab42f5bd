"""`python -m tests.programs`: looks for defects with random programs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, get_args

from affinity import PayloadCodec
from tests.payloads.memory import small_blobs
from tests.payloads.xor import CODEC
from tests.programs.areas import AREAS
from tests.programs.databases import Copies, Databases, Pooled, Replaced
from tests.programs.draw import Failed, search
from tests.programs.program import Program, Size
from tests.programs.run import Totals, run
from tests.programs.set_back import SetBack, run_set_back

BATCH: Final = 50
"""Programs of one seed; the next ones have the next seed."""

TRIES: Final = 4
"""How often a program is run once one has failed: the threads of a database make no two runs the same."""

REPORT_SECONDS: Final = 30.0
ALL_MINUTES: Final = 10.0
FIXED_SEED: Final = 1
FIXED_PROGRAMS: Final = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run programs; 1 when one has failed."""
    chosen = _parser().parse_args(arguments)
    fresh = random.SystemRandom().randrange(10**9) if chosen.all else FIXED_SEED
    seed = fresh if chosen.seed is None else chosen.seed
    minutes = ALL_MINUTES if chosen.all and chosen.minutes is None else chosen.minutes
    count = chosen.programs or (None if minutes else FIXED_PROGRAMS)
    if (chosen.pooler or chosen.timelines or chosen.set_back) and chosen.postgres is None:
        raise SystemExit("--pooler, --timelines and --set-back are for --postgres")
    if chosen.set_back and (chosen.processes or chosen.codec or chosen.blobs):
        raise SystemExit("--set-back is not for --processes, --codec and --blobs")
    if chosen.blobs and chosen.processes:
        raise SystemExit("--blobs is not for --processes: the blobs are in memory")
    areas = chosen.areas.split(",") if chosen.areas else list(AREAS)
    with silent(), _database(chosen) as where:
        print(f"seed {seed}, {', '.join(areas)}, on {'SQLite' if where is None else 'PostgreSQL'}", flush=True)
        payloads = {"codec": CODEC if chosen.codec else None, "has_blobs": chosen.blobs}
        options = {"processes": chosen.processes, "repeats": chosen.repeats, "suspends": chosen.suspends}
        look = Look(where, areas, shrink=not chosen.no_shrink, size=chosen.size, **payloads, **options)
        try:
            look.run(seed, count, minutes)
        except Failed as failed:
            print(failed, flush=True)
            print("".join(lines(failed.__cause__)), flush=True)
            print(f"repeat the search: python -m tests.programs --seed {look.seed} --areas {','.join(areas)}")
            return 1
        finally:
            print(look.report(), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, help=f"how many; by default {FIXED_PROGRAMS}")
    parser.add_argument("--minutes", type=float, help="go on for so long")
    parser.add_argument("--seed", type=int, help=f"of the first {BATCH} programs; by default {FIXED_SEED}")
    parser.add_argument("--all", action="store_true", help=f"{ALL_MINUTES:g} minutes, from a new seed")
    parser.add_argument("--areas", help=f"by default all: {','.join(AREAS)}")
    sizes = get_args(Size)
    parser.add_argument("--size", choices=sizes, default="any", help="small: a few turns each; large: thousands")
    parser.add_argument("--no-shrink", action="store_true", help="print the program that has failed as it was drawn")
    parser.add_argument(
        "--repeats",
        action="store_true",
        help="a program that fails, and passes when it is run again, is printed and does not count",
    )
    parser.add_argument("--suspends", action="store_true", help="each program has a rollout that suspends instances")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--processes", action="store_true", help="each worker is a process, which a crash kills")
    kind.add_argument("--codec", action="store_true", help="a codec encodes all payloads, so that no path forgets it")
    parser.add_argument("--blobs", action="store_true", help="payloads of more than a few bytes are in a blob store")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a PostgreSQL database; by default SQLite")
    where.add_argument("--postgres", help="a PostgreSQL server is started for it: old, new, or its major version")
    fault = parser.add_mutually_exclusive_group()
    fault.add_argument(
        "--pooler", action="store_true", help="with --postgres: clients go through PgBouncer, with faults"
    )
    fault.add_argument(
        "--timelines",
        action="store_true",
        help="with --postgres: all connections end and a new timeline begins, again and again, as at failovers",
    )
    fault.add_argument(
        "--set-back",
        action="store_true",
        help="with --postgres: the database is set back to an earlier moment, as by a failover that loses commits",
    )
    return parser


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Nothing is logged of faults; a log line takes as long as a turn."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _database(chosen: argparse.Namespace) -> Iterator[str | Databases | None]:
    if chosen.postgres is None:
        yield chosen.url
        return
    from tests.servers import find_postgres  # imported late: it is for PostgreSQL only

    offers = find_postgres()
    wanted = {"old": offers[0], "new": offers[-1]} | {str(offer.major): offer for offer in offers}
    with wanted[chosen.postgres].open() as server:
        faults = {Pooled: chosen.pooler, Replaced: chosen.timelines, SetBack: chosen.set_back}
        yield next((kind for kind, is_chosen in faults.items() if is_chosen), Copies)(server)


def lines(error: BaseException | None) -> Iterator[str]:
    """An error with its notes, and the errors of a group."""
    if error is not None:
        yield f"{type(error).__name__}: {error}\n"
        for note in getattr(error, "__notes__", ()):
            yield f"{note}\n"
        for each in getattr(error, "exceptions", ()):
            yield from lines(each)


class Look:
    """A search for defects on one database."""

    def __init__(
        self,
        where: str | Databases | None,
        areas: Sequence[str],
        *,
        shrink: bool = True,
        processes: bool = False,
        repeats: bool = False,
        suspends: bool = False,
        size: Size = "any",
        codec: PayloadCodec | None = None,
        has_blobs: bool = False,
    ) -> None:
        self._where = where
        self._codec = codec
        self._has_blobs = has_blobs
        self._areas = areas
        self._shrink = shrink
        self._processes = processes
        self._repeats = repeats
        self._suspends = suspends
        self._size = size
        self._totals = Totals()
        self._begun = self._reported = time.monotonic()
        self._has_failed = False
        self.seed = 0
        """Of the programs that are run now."""

    def run(self, seed: int, count: int | None, minutes: float | None) -> None:
        """Run so many programs, or for so long.

        Raises:
            Failed: one has failed.
        """
        self.seed = seed
        with asyncio.Runner() as runner:
            while (count is None or self._totals.programs < count) and not self._is_over(minutes):
                left = BATCH if count is None else min(BATCH, count - self._totals.programs)
                judged = lambda program: self._judge(runner, program)  # noqa: E731
                search(
                    judged,
                    areas=self._areas,
                    count=left,
                    seed=self.seed,
                    shrink=self._shrink,
                    suspends=self._suspends,
                    size=self._size,
                )
                self.seed += 1

    def _is_over(self, minutes: float | None) -> bool:
        return minutes is not None and time.monotonic() - self._begun > minutes * 60

    def _judge(self, runner: asyncio.Runner, program: Program) -> None:
        try:
            for _ in range(TRIES if self._has_failed and self._shrink else 1):
                self._run(runner, program)
        except Exception as error:
            if self._has_failed or not self._repeats or self._does_repeat(runner, program):
                self._has_failed = True
                raise
            found = "".join(lines(error))
            print(f"failed, and passed when it was run again:\n{found}\n{program!r}", flush=True)
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            print(self.report(), flush=True)

    def _run(self, runner: asyncio.Runner, program: Program) -> None:
        if isinstance(self._where, SetBack):
            runner.run(run_set_back(program, self._where, self._totals, self._size))
            return
        one = run(
            program,
            self._where,
            self._totals,
            processes=self._processes,
            size=self._size,
            codec=self._codec,
            blobs=small_blobs() if self._has_blobs else None,
        )
        runner.run(one)

    def _does_repeat(self, runner: asyncio.Runner, program: Program) -> bool:
        """Whether two more runs fail too: threads and servers make no two runs the same."""
        for _ in range(2):
            with contextlib.suppress(Exception):
                self._run(runner, program)
                return False
        return True

    def report(self) -> str:
        """What was done so far."""
        seconds, done = time.monotonic() - self._begun, self._totals
        return (
            f"seed {self.seed}: {done.programs} programs, {done.turns} turns in {done.commits} commits, "
            f"{done.faults} faults, {done.suspensions} suspensions, {done.jumps} jumps, in {seconds:.0f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
