"""``affinity conversation prune``."""

from __future__ import annotations

from typing import Final

import click

from affinity.cli.arguments import DURATION
from affinity.cli.help import Command
from affinity.cli.output import counted
from affinity.cli.shell import Progress, Shell, command, confirm, with_client
from affinity.client import Client
from affinity.limits import MAX_QUOTA

_HINT: Final = "; these stay removed, and the same command removes the rest"
_BOUND: Final = click.IntRange(0, MAX_QUOTA)


@click.command(cls=Command, short_help="Remove old entries of conversations.")
@click.option("--older-than", type=DURATION, help="Recorded so long ago: 90s, 15m, 12h, 30d, 4w.")
@click.option("--max-entries", type=_BOUND, metavar="N", help="All but so many of the newest, of each conversation.")
@click.option("--max-bytes", type=_BOUND, metavar="N", help="All but so many bytes of the newest, likewise.")
@click.option("--dry-run", is_flag=True, help="Only print how many would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def prune(
    shell: Shell,
    *,
    older_than: float | None,
    max_entries: int | None,
    max_bytes: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove the oldest entries of all conversations, as far as one of the options asks for it. The conversations stay,
    go on, and keep their numbers.

    Events that no wake has processed stay, with all behind them; so do the entries of a wake with a request that waits
    for an answer, and entries that a fork continues. The options journal_retention, journal_max_entries and
    journal_max_bytes of workers do the same once a minute.

    Examples:
      affinity conversation prune --older-than 90d --dry-run
      affinity conversation prune --max-entries 10000 --max-bytes 8388608 --yes
    """
    if older_than is None and max_entries is None and max_bytes is None:
        raise click.UsageError("give --older-than, --max-entries or --max-bytes: they say which entries are removed")

    def run(*, dry: bool) -> int:
        async def work(client: Client) -> int:
            with Progress("would remove" if dry else "removed", hint="" if dry else _HINT) as progress:
                return await client.prune_conversations(
                    older_than=older_than,
                    max_entries=max_entries,
                    max_bytes=max_bytes,
                    dry_run=dry,
                    progress=progress,
                )

        return with_client(shell, work)

    removed = run(dry=not yes or dry_run)
    if removed and not (yes or dry_run):
        confirm(f"Remove {counted(removed, 'entry', 'entries')}?")
        removed = run(dry=False)
    shell.show({"entries": removed, "dry_run": dry_run}, lambda: None)
    click.echo(f"{'would remove' if dry_run else 'removed'} {counted(removed, 'entry', 'entries')}", err=True)
