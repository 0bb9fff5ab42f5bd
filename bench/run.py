"""What a scenario is given, and the measurement that most of them share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.measures import Report
from bench.places import Place
from bench.processes import Fleet, WorkerProcess, fleet
from bench.systems import OURS, SYSTEMS
from bench.systems.base import Client, System
from bench.systems.ours import OurClient, OurSystem
from bench.work import Walk, Walked, WrongResults

WARM_UP = Walk(turns=5)
WARM_UPS = 5
"""Walks before each measurement: connections are made, statements prepared, code compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How to measure."""

    place: Place
    systems: Sequence[System]
    rounds: int
    quick: bool  # seconds, for the tests: figures mean nothing
    say: Callable[[str], None]

    @property
    def ours(self) -> OurSystem:
        """This project."""
        ours = SYSTEMS[OURS]
        assert isinstance(ours, OurSystem)
        return ours

    def having(self, *, sessions: bool = False) -> list[System]:
        """The systems that know the place's kind of database, and sessions if that is asked for."""
        fitting = [one for one in self.systems if self.place.dialect in one.dialects]
        return [one for one in fitting if one.sessions or not sessions]

    def sized(self, full: int, quick: int) -> int:
        """A number of things, smaller for a quick run."""
        return quick if self.quick else full

    @contextmanager
    def bed(self, system: System) -> Iterator[Bed]:
        """A new database with the system's schema, a client, and room for workers."""
        with self.place.database(system) as url, fleet(system, url) as workers, system.client(url) as client:
            yield Bed(url=url, workers=workers, client=client)

    @contextmanager
    def excused(self, report: Report, case: str, system: System) -> Iterator[None]:
        """A peer whose workflow fails has no figure for that round, and the report says so. Ours must not fail."""
        try:
            yield
        except WrongResults as wrong:
            if system is self.ours:
                raise
            report.notes.append(f"{case}: a round of {system.name} failed and does not count: {wrong}")
            self.say(f"{report.scenario}  {case}  {system.name}: {wrong}")

    def note(self, report: Report, case: str, system: System | str, values: dict[Any, float]) -> None:
        """Record a round of a system, or of what is compared in its place, and say so."""
        name = system if isinstance(system, str) else system.name
        report.add(case, name, values)
        shown = ", ".join(f"{value:,.{metric.digits}f} {metric.name}" for metric, value in values.items())
        self.say(f"{report.scenario}  {case}  {name}: {shown}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """A database of one system, its workers and its client."""

    url: str
    workers: Fleet
    client: Client

    @property
    def ours(self) -> OurClient:
        """The client, when the system is this project."""
        assert isinstance(self.client, OurClient)
        return self.client

    def start_workers(self, size: int, **options: Any) -> list[WorkerProcess]:
        """Start worker processes in parallel; returns when all are ready."""
        launched = [self.workers.launch(f"worker-{number}", **options) for number in range(size)]
        return [worker.ready() for worker in launched]

    def warm_up(self, workers: int = 1) -> None:
        """A few walks a worker that do not count."""
        self.walk("warm", WARM_UPS * workers, WARM_UP)

    def walk(self, prefix: str, walks: int, walk: Walk) -> Walked:
        """Run walks and check what they give back."""
        ids = [f"{prefix}-{number}" for number in range(walks)]
        began = time.monotonic()
        self.client.start(ids, walk)
        return Walked(began=began, walks=[walk.check(output) for output in self.client.outputs(ids)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Walks, and what their workers used."""

    walked: Walked
    cpu: float  # seconds of all workers


def walk_fresh(run: Run, system: System, walks: int, walk: Walk, *, workers: int = 1) -> Cost:
    """Walks of one system in a new database with new workers."""
    with run.bed(system) as bed:
        processes = bed.start_workers(workers)
        bed.warm_up(workers)
        before = sum(worker.cpu_seconds() for worker in processes)
        walked = bed.walk("walk", walks, walk)
        return Cost(walked=walked, cpu=sum(worker.cpu_seconds() for worker in processes) - before)
