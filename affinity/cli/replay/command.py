"""The command, its options and its exit codes."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import Any, Final, get_args

import anyio
import click

from affinity.cli.arguments import DURATION, LIMIT
from affinity.cli.files import written
from affinity.cli.help import FAILED, UNKNOWN
from affinity.cli.loading import load_app
from affinity.cli.progress import Progress
from affinity.cli.replay.results import ReplayReport, junit
from affinity.cli.shell import Shell, command
from affinity.composed.app import App
from affinity.provider.contract import InstanceStatus
from affinity.testing import ReplaySelection, replay_database, replay_export

DEFAULT_STATUS: Final[tuple[InstanceStatus, ...]] = ("running", "suspended")

DEFAULT_SAMPLE: Final = 500


@command()
@click.argument("target", metavar="MODULE:APP")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(get_args(InstanceStatus)),
    help=f"Only these; may be repeated  [default: {', '.join(DEFAULT_STATUS)}]",
)
@click.option("--name", "names", multiple=True, help="Only of this orchestration; may be repeated.")
@click.option("--since", type=DURATION, help="Only if the last turn was within this time: 90s, 15m, 12h, 30d, 4w.")
@click.option(
    "--sample", type=LIMIT, help=f"Instances at most, chosen at random; none: all  [default: {DEFAULT_SAMPLE}]"
)
@click.option("--earlier", is_flag=True, help="Also the executions before continue_as_new, which no worker replays.")
@click.option("--junit", "xml", metavar="FILE", help="Also write the results as JUnit's XML, which CI systems show.")
def replay(shell: Shell, *, target: str, files: tuple[str, ...], earlier: bool, xml: str | None, **chosen: Any) -> None:
    """Replay the histories of instances against the code of the app that MODULE:APP names, as a worker does before it
    goes on with an instance. Run it before a rollout: an instance that does not match would be suspended.

    The histories are FILEs of `affinity history ID --export FILE`, or a sample out of the database, which is only read:
    no worker starts, nothing is migrated or locked, and no activity runs. On PostgreSQL the role of a client will do.

    What does not match is printed with the number of the event, what the code does and what the history has there, and
    the line of the code. Keep the former code beside the new one as another version of the orchestration: running
    instances stay on the version with which they began.

    Exit codes:
      0  all match; or the instance is suspended for the same error already, which is listed
      1  one does not match, or cannot be read, or the app does not register its orchestration
         (where apps share a database, name the orchestrations of this one with --name)
      2  the command line or a file is wrong
      3  the database cannot be reached or refuses
      5  no history was selected: a check that has checked nothing must not pass

    Examples:
      affinity replay support:app --url postgresql://replica/app --sample 500
      affinity replay support:app --status running --name conversation --since 7d --junit replay.xml
      affinity history chat-17 --export tests/histories/chat-17.json
      affinity replay support:app tests/histories/*.json
    """
    if xml == "-":
        raise click.UsageError("stdout has the results for people, or with --json for scripts; --junit needs a file")
    options = {name: value for name, value in {**chosen, "earlier": earlier}.items() if value}
    context = click.get_current_context()
    if files and (options or context.params.get("url") or context.obj):
        raise click.UsageError("give FILEs, or a database with --status, --name, --since, --sample and --earlier")
    app = load_app(target)
    app.check()
    with closing(Progress("listed")) as listed, Progress("replayed", hint="; nothing was changed") as progress:

        def replay_counted(count: int) -> None:
            listed.close()  # a terminal shows one bar at a time
            progress(count)

        report = ReplayReport(replay_counted)
        begun = time.perf_counter()
        if files:
            for file in files:
                _replay_file(app, file, report)
        else:
            replayed = partial(replay_database, earlier=earlier, listed=listed)
            anyio.run(replayed, app, shell.url, _selection(chosen), report.add)
        report.seconds = time.perf_counter() - begun
    _show(shell, report, xml)


def _selection(chosen: dict[str, Any]) -> ReplaySelection:
    sample = chosen["sample"]
    return ReplaySelection(
        status=chosen["status"] or DEFAULT_STATUS,
        names=list(dict.fromkeys(chosen["names"])),
        since=chosen["since"],
        sample=DEFAULT_SAMPLE if sample is None else sample,
    )


def _replay_file(app: App, file: str, report: ReplayReport) -> None:
    with click.open_file(file, encoding="utf-8", errors="surrogateescape") as opened:
        replay_export(app, opened.read(), file, report.add)


def _show(shell: Shell, report: ReplayReport, xml: str | None) -> None:
    shell.show(report.document, lambda: click.echo(report.text))
    if xml is not None:
        with written(xml) as file:
            file.write(junit(report))
    if not report.count:
        click.echo("Error: no history was selected", err=True)
        click.get_current_context().exit(UNKNOWN)
    if report.findings:
        click.get_current_context().exit(FAILED)
