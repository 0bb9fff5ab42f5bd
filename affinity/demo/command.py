"""The command: options, signals, exit codes, and the report."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import click
from pydantic_core import to_json
from rich.console import Console

from affinity.cli.help import Command
from affinity.cli.output import printable
from affinity.cli.shell import check_call, current_user
from affinity.demo.conversations import DATASET_SIZE, load_conversations
from affinity.demo.display import LEASE_SECONDS, RECOVERY_SLACK, DemoReport, Display
from affinity.demo.run import DemoFailed, DemoPlan, database_of, run_demo
from affinity.errors import InvalidOptions
from affinity.provider import migrate
from affinity_workflows import SIGNALLED

OPEN_SECONDS: Final = 60.0
"""For which a run with a console waits for its browser."""

MAX_DIFFERENCES: Final = 20
"""Differences that are printed; of the others only their number."""


@click.command(cls=Command)
@click.option("--url", help="A database to run on; it may hold other data  [default: a fresh SQLite file]")
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Worker processes.")
@click.option(
    "--conversations",
    type=click.IntRange(1, DATASET_SIZE),
    default=100,
    show_default=True,
    help="How many conversations of the data set to replay.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses which ones, and when who writes.")
@click.option("--no-kill", is_flag=True, help="Let all workers live.")
@click.option("--console", is_flag=True, help="Show the run in a browser, and begin when it is opened.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")
@click.pass_context
def demo(
    ctx: click.Context,
    *,
    url: str | None,
    workers: int,
    conversations: int,
    seed: int,
    no_kill: bool,
    console: bool,
    as_json: bool,
) -> None:
    """Replay real conversations over worker processes, kill one of them half-way, and verify the result.

    Each conversation of the data set (chitchat-dataset: pip install 'affinity-workflows[demo]') is an orchestration. It
    waits for each message as an event, and answers it by an activity on the conversation's session. The state of the
    session is the transcript: in the memory of the worker that holds the session, and in the database, where it commits
    together with the result of each turn. Half-way, the worker with the most sessions gets a SIGKILL. When its lease
    ends, the others take its sessions over, read their transcripts from the database, and continue.

    At the end, the results in the history and the transcripts are compared with the data set and with each other. Exit
    code 0: every transcript is complete, in order, without duplicates, and the history agrees. 1: something differs, or
    a worker ended by itself, or the run stalled; the command names the fault, and a folder with the logs and
    transcripts.

    With --console (pip install 'affinity-workflows[console,demo]') it prints an address. The run begins when a browser
    opens it, or after a minute; it shows the workers, how one dies, and how its sessions move. Ctrl-C ends it.

    Examples:
      affinity demo
      affinity demo --console
      affinity demo --workers 6 --url postgresql://localhost/app
      affinity demo --conversations 20 --json
    """
    check_call(url or ctx.obj)
    if workers == 1 and not no_kill:
        raise click.UsageError("--workers 1: when one is killed none is left; use 2 or more, or --no-kill")
    run = f"demo-{secrets.token_hex(4)}"
    chosen = {f"{run}-chat-{each.id}": each for each in load_conversations(conversations, seed)}
    plan = DemoPlan(run=run, url=url or ctx.obj, workers=workers, kill=not no_kill, seed=seed, conversations=chosen)
    with ExitStack() as at_exit:
        folder = Path(tempfile.mkdtemp(prefix="affinity-demo-"))
        at_exit.callback(shutil.rmtree, folder)
        try:
            report = anyio.run(partial(_run_until_signalled, plan, folder, console=console))
            _print(report, as_json=as_json)
        except DemoFailed:
            at_exit.pop_all()
            click.echo(f"The workers' logs and the transcripts are kept in {folder}", err=True)
            raise


async def _run_until_signalled(plan: DemoPlan, folder: Path, *, console: bool) -> DemoReport:
    """Run the demo; SIGINT or SIGTERM cancels it, and ends the command when all is cleaned up. A signal that comes
    after the run, while its console is served, ends the console.
    """
    received: list[signal.Signals] = []
    signalled, is_over = anyio.Event(), False

    def stop(number: signal.Signals) -> None:
        received.append(number)
        signalled.set()
        if not is_over:
            scope.cancel()

    async def show(report: DemoReport) -> None:
        nonlocal is_over
        is_over = True
        display.say("\n".join([*report.story, "The run is over. The console goes on until Ctrl-C."]))
        await signalled.wait()

    display = Display(Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True))
    with anyio.CancelScope() as scope, display.opened():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        if console:
            async with _in_browser(database_of(plan, folder), display):
                return await run_demo(plan, folder, display, show)
        return await run_demo(plan, folder, display)
    click.echo("interrupted; all workers have ended", err=True)
    raise click.exceptions.Exit(SIGNALLED + received[0])


@asynccontextmanager
async def _in_browser(url: str, display: Display) -> AsyncIterator[None]:
    """Serve a console of the database, and wait until a browser has opened it."""
    try:
        from affinity.console import create
        from affinity.console.serving import TokenLogin, serve_locally
    except ModuleNotFoundError as error:
        raise InvalidOptions(f"{error}: pip install 'affinity-workflows[console]'") from None
    await migrate(url)
    token = secrets.token_urlsafe(32)
    login = TokenLogin(token, current_user(), once=True)
    async with create(url) as app, serve_locally(app, login) as address:
        display.say(f"Open {address}/login?token={token}")
        with anyio.move_on_after(OPEN_SECONDS):
            await login.used.wait()
        yield


def _print(report: DemoReport, *, as_json: bool) -> None:
    """Print the result.

    Raises:
        DemoFailed: something differs from the data set.
    """
    if as_json:
        click.echo(to_json(report, exclude={"differences", "story"}, indent=2))
    else:
        _print_summary(report)
    for difference in report.differences[:MAX_DIFFERENCES]:
        click.secho(printable(difference), fg="red", err=as_json)
    if (more := len(report.differences) - MAX_DIFFERENCES) > 0:
        click.secho(f"and {more} more differences", fg="red", err=as_json)
    if report.differences:
        raise DemoFailed("the result differs from the data set")


def _print_summary(report: DemoReport) -> None:
    """Print what happened, and the numbers with their meaning."""
    click.echo("\n".join(report.story))
    rows: list[tuple[object, str]] = [
        (f"{report.transcripts_verified}/{report.sessions}", "transcripts equal to the data set"),
        (f"{report.states_agreed}/{report.sessions}", "states that agree with the history of their session"),
        (report.turns, f"turns, {report.turns_per_second:.0f} a second on {report.provider}"),
        (report.lost_turns, "turns lost"),
        (report.duplicated_results, "results recorded twice"),
        (report.turns_off_holder, "turns on a worker that did not hold the session"),
        (report.migrated_sessions, "sessions moved to another worker"),
        (report.hydrations, "transcripts read from the database: a session's first turn, and after a move"),
        (report.refused_writes, "writes of a transcript refused, or never confirmed"),
    ]
    if report.recovery_seconds is not None:
        late = ", later than it should be" if report.recovery_seconds > LEASE_SECONDS + RECOVERY_SLACK else ""
        bound = f"bound: {LEASE_SECONDS:g} s worker lease + {RECOVERY_SLACK:g} s"
        meaning = f"from the kill until the last orphaned session was served again ({bound}){late}"
        rows.append((f"{report.recovery_seconds:.1f} s", meaning))
    width = max(len(str(value)) for value, _ in rows)
    for value, meaning in rows:
        click.echo(f"{click.style(str(value).rjust(width), bold=True)}  {meaning}")
    if not report.differences:
        text = "Every transcript is complete, in order, without duplicates, and the history agrees."
        click.secho(text, bold=True, fg="green")
