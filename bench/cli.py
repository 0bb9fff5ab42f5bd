"""The command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.figures import figure
from bench.machine import describe_machine, load
from bench.measures import Report
from bench.places import NoServer, Place, postgres_place, sqlite_place
from bench.progress import say
from bench.run import Run
from bench.scenarios import LONG, ON_SQLITE, SCENARIOS
from bench.systems import OURS, SYSTEMS
from bench.systems.base import System, is_installed, versions
from bench.tables import show, show_settings

QUICK_ROUNDS = 1
ROUNDS = 5


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("scenario", type=click.Choice([*SCENARIOS, "all"]))
@click.option("--url", help="A PostgreSQL server; by default one is started for the run, and thrown away.")
@click.option("--postgres", type=int, help="Major version of the server that is started.")
@click.option("--provider", type=click.Choice(["postgresql", "sqlite"]), default="postgresql", show_default=True)
@click.option("--system", "names", multiple=True, type=click.Choice(list(SYSTEMS)), help="Only these, and ours.")
@click.option("--rounds", type=click.IntRange(min=1), help=f"Rounds of each measurement  [default: {ROUNDS}]")
@click.option("--quick", is_flag=True, help="Tiny, for tests: the figures mean nothing.")
@click.option("--tracing", is_flag=True, help="Ours with OpenTelemetry; compare with a run without.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write everything here.")
@click.option("--svg", "svg_path", type=click.Path(path_type=Path, file_okay=False), help="Draw figures here.")
@click.option("--check", is_flag=True, help="Exit with 1 when a bar is missed.")
def main(
    *,
    scenario: str,
    url: str | None,
    postgres: int | None,
    provider: str,
    names: Sequence[str],
    rounds: int | None,
    quick: bool,
    tracing: bool,
    json_path: Path | None,
    svg_path: Path | None,
    check: bool,
) -> None:
    """Measure this project and its peers.

    Peers that are not installed are left out: `nox -s bench` brings all of them.
    """
    systems = _systems(names)
    with _place(provider, url, postgres) as place:
        run = Run(
            place=place,
            systems=systems,
            rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
            quick=quick,
            say=say,
        )
        run.ours.tracing = tracing
        about = _about(run)
        console = Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)
        show_settings(console, about)
        reports = [_measure(console, run, name) for name in _chosen(scenario, provider)]
    if json_path is not None:
        json_path.write_text(json.dumps(about | {"reports": [one.as_json() for one in reports]}, indent=2) + "\n")
    if svg_path is not None:
        _draw(svg_path, reports)
    missed = [bar for report in reports for bar in report.bars if not bar.met]
    if check and missed:
        raise click.exceptions.Exit(1)


def _systems(names: Sequence[str]) -> list[System]:
    """Ours and the peers that are asked for and there."""
    wanted = [one for one in SYSTEMS.values() if one.name == OURS or not names or one.name in names]
    there = [one for one in wanted if is_installed(one)]
    for missing in [one for one in wanted if one not in there]:
        if names:
            raise click.UsageError(f"{missing.name} is not installed: `nox -s bench` brings it")
        click.echo(f"{missing.name} is not installed and left out", err=True)
    return there


@contextmanager
def _place(provider: str, url: str | None, major: int | None) -> Iterator[Place]:
    if provider == "sqlite":
        if url is not None or major is not None:
            raise click.UsageError("--url and --postgres are of no use with --provider sqlite")
        with sqlite_place() as files:
            yield files
        return
    try:
        with postgres_place(url, major) as server:
            yield server
    except NoServer as error:
        raise click.ClickException(str(error)) from None


def _chosen(scenario: str, provider: str) -> list[str]:
    known = [name for name in SCENARIOS if provider != "sqlite" or name in ON_SQLITE]
    if scenario == "all":
        return [name for name in known if name not in LONG]
    if scenario not in known:
        raise click.UsageError(f"{scenario} needs PostgreSQL; on SQLite there are {', '.join(known)}")
    return [scenario]


def _about(run: Run) -> dict[str, Any]:
    """What goes with the figures."""
    systems = {one.name: versions(one) | dict(one.settings()) for one in run.systems}
    command = f"python -m bench {shlex.join(sys.argv[1:])}"
    return {"command": command, "rounds": run.rounds, "machine": describe_machine()} | run.place.describe() | systems


def _measure(console: Console, run: Run, name: str) -> Report:
    before = load()
    report = SCENARIOS[name](run)
    if run.quick:
        report.notes.append("quick: these figures mean nothing")
    report.notes.append(f"{run.rounds} rounds; load of the machine {before:.1f} before, {load():.1f} after")
    show(console, report)
    return report


def _draw(folder: Path, reports: Sequence[Report]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        if (drawn := figure(report)) is not None:
            (folder / f"{report.scenario}.svg").write_text(drawn)
