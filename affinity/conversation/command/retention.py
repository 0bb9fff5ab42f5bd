"""``affinity conversation prune``."""

from __future__ import annotations

from typing import Any, Final

import click

from affinity.cli.arguments import DURATION
from affinity.cli.output import counted
from affinity.cli.shell import Shell, command, remove
from affinity.conversation.client import ConversationCalls
from affinity.limits import MAX_QUOTA

_HINT: Final = "; these stay removed, and the same command removes the rest"
_BOUND: Final = click.IntRange(0, MAX_QUOTA)


@command(short_help="Remove old entries of conversations.")
@click.option("--older-than", type=DURATION, help="Recorded so long ago: 90s, 15m, 12h, 30d, 4w.")
@click.option("--max-entries", type=_BOUND, metavar="N", help="All but so many of the newest, of each conversation.")
@click.option("--max-bytes", type=_BOUND, metavar="N", help="All but so many bytes of the newest, likewise.")
@click.option("--dry-run", is_flag=True, help="Only print how many would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(shell: Shell, *, dry_run: bool, yes: bool, **bounds: Any) -> None:
    """Remove the oldest entries of all conversations, as far as one of the options asks for it. The conversations stay,
    go on, and keep their numbers.

    Events that no wake has processed stay, with all behind them; so do the entries of a wake with a request that waits
    for an answer, and entries that a fork continues. The options journal_retention, journal_max_entries and
    journal_max_bytes of workers do the same all the time.

    Examples:
      affinity conversation prune --older-than 90d --dry-run
      affinity conversation prune --max-entries 10000 --max-bytes 8388608 --yes
    """
    if all(bound is None for bound in bounds.values()):
        raise click.UsageError("give --older-than, --max-entries or --max-bytes: they say which entries are removed")

    async def work(client: ConversationCalls, **options: Any) -> int:
        return await client.prune_conversations(**bounds, **options)

    def question(found: int) -> str:
        return _words(found) if found else ""

    removed = remove(shell, work, question, number=int, dry_run=dry_run, yes=yes, hint=_HINT)
    shell.show({"entries": removed, "dry_run": dry_run}, lambda: None)
    click.echo(f"{'would remove' if dry_run else 'removed'} {_words(removed)}", err=True)


def _words(entries: int) -> str:
    return counted(entries, "entry", "entries")
