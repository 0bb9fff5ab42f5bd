"""``affinity once-table``: the table of `affinity.once` in an application's database."""

from __future__ import annotations

import click

from affinity.cli.arguments import DURATION
from affinity.cli.output import counted
from affinity.cli.progress import Progress
from affinity.cli.shell import Shell, command
from affinity.effects.table import Engine, create_table, delete_older_than, table_sql


@command("once-table")
@click.option(
    "--print",
    "engine",
    type=click.Choice(["postgresql", "sqlite"]),
    help="Print the statements that create it, for a migration of your own; no database is touched.",
)
@click.option(
    "--delete-older-than",
    "age",
    type=DURATION,
    metavar="DURATION",
    help="Remove rows of effects that are older, at least 1d: 90d, 52w.",
)
def once_table(shell: Shell, *, engine: Engine | None, age: float | None) -> None:
    """Create the table affinity_once in your application's database, which is --url here: affinity.once writes to it in
    your transactions, so that an activity changes your tables once. If the table is there, nothing happens.

    A row is needed until the result of its activity is recorded, and after a restore of affinity's database from a
    backup. So remove only rows that are older than your longest outage, and than the oldest backup that you would
    restore.

    Examples:
      affinity once-table --url postgresql://shop@db/shop
      affinity once-table --print postgresql > migrations/0017_affinity_once.sql
      affinity once-table --url postgresql://shop@db/shop --delete-older-than 180d
    """
    if engine is not None:
        if age is not None:
            raise click.UsageError("--print contradicts --delete-older-than")
        text = table_sql(engine)
        shell.show({"sql": text}, lambda: click.echo(text, nl=False))
    elif age is not None:
        with Progress("rows removed") as progress:
            removed = delete_older_than(shell.url, age, progress)
        shell.show({"removed": removed}, lambda: click.echo(f"removed {counted(removed, 'row')}"))
    else:
        create_table(shell.url)
        shell.show({"table": "affinity_once"}, lambda: click.echo("the table affinity_once is there"))
