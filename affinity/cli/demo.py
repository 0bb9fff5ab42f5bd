"""The command: options, signals, exit codes."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import click
from pydantic_core import to_json
from rich.console import Console

from affinity.cli.shell import SIGNALLED, Command, check_call
from affinity.demo.conversations import DATASET_SIZE, Conversation, load_conversations
from affinity.demo.display import DemoOutcome, Display, print_differences, print_summary
from affinity.demo.run import DemoFailed, DemoPlan, run_demo

PIPE_WIDTH: Final = 120
"""Columns where the output is no terminal."""


@click.command(cls=Command, short_help="Replay real conversations, kill a worker, verify the result.")
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")
@click.pass_context
def demo(
    ctx: click.Context, *, url: str | None, workers: int, conversations: int, seed: int, no_kill: bool, as_json: bool
) -> None:
    """Replay real conversations over worker processes, kill one of them half-way, and verify the result.

    Each conversation of the data set (the package chitchat-dataset: pip install 'affinity[demo]') is an orchestration.
    It waits for each message as an event, and answers it by an activity on the conversation's session, whose state is
    the transcript: in the memory of the worker that holds the session, and in the database, where it commits together
    with the result of each turn. Half-way, the worker with the most sessions gets a SIGKILL. When its lease ends, the
    others take its sessions over, read their transcripts from the database, and continue.

    At the end, the results in the history and the transcripts are compared with the data set and with each other. Exit
    code 0: every transcript is complete, in order, without duplicates, and the history agrees. 1: something differs, or
    a worker ended by itself, or the run stalled; the command names the fault, and a folder with the logs and
    transcripts.

    Examples:
      affinity demo
      affinity demo --workers 6 --url postgresql://localhost/app
      affinity demo --conversations 20 --json
    """
    check_call(url or ctx.obj)
    if workers == 1 and not no_kill:
        raise click.UsageError("--workers 1: when one is killed none is left; use 2 or more, or --no-kill")
    run = f"demo-{secrets.token_hex(4)}"
    plan = DemoPlan(run=run, url=url or ctx.obj, workers=workers, kill=not no_kill, seed=seed)
    chosen = load_conversations(conversations, seed)
    with _run_folder() as folder:
        ended = anyio.run(_run_until_signalled, plan, chosen, folder)
        if isinstance(ended, DemoOutcome):
            _print(ended, as_json)
            if ended.differences:
                raise DemoFailed("the result differs from the data set")
    if isinstance(ended, signal.Signals):
        click.echo("interrupted; all workers have ended", err=True)
        ctx.exit(SIGNALLED + ended)


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A folder that is removed after the run, unless the run has failed."""
    folder = Path(tempfile.mkdtemp(prefix="affinity-demo-"))
    try:
        yield folder
    except DemoFailed:
        click.echo(f"The workers' logs and the transcripts are kept in {folder}", err=True)
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


async def _run_until_signalled(
    plan: DemoPlan, conversations: Sequence[Conversation], folder: Path
) -> DemoOutcome | signal.Signals:
    """How the run ended; or, when SIGINT or SIGTERM has cancelled it, the signal."""
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        scope.cancel()

    display = Display(_console(stderr=True))
    with anyio.CancelScope() as scope, display.opened():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await run_demo(plan, conversations, folder=folder, display=display)
    return received[0]


def _print(outcome: DemoOutcome, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(outcome.report, indent=2))
        print_differences(_console(stderr=True), outcome)
    else:
        print_summary(_console(stderr=False), outcome)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console
