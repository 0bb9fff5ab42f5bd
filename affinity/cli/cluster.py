"""The commands on what instances run on: workers, migrate."""

from __future__ import annotations

from functools import partial

import anyio
import click

from affinity import provider
from affinity.cli import shell as sh
from affinity.cli.instances import with_client
from affinity.cli.shell import Command, Shell, command
from affinity.provider.contract import WorkerInfo
from affinity.provider.schema import SchemaReport


@click.command(cls=Command, short_help="Show the workers.")
@command
def workers(shell: Shell) -> None:
    """Show the workers, also those that ended lately: which are alive, what they hold, where they run."""
    found = with_client(shell, lambda client: client.workers())
    columns = ("WORKER", "STATE", "SESSIONS", "LEASE", "STARTED", "LABELS")
    shell.show(found, lambda: sh.table(columns, map(_worker_row, found), empty="no workers"))


def _worker_row(worker: WorkerInfo) -> tuple[object, ...]:
    state = "dead" if not worker.alive else "draining" if worker.draining else "alive"
    labels = " ".join(f"{name}={value}" for name, value in worker.labels.items())
    return (
        worker.worker_id,
        state,
        worker.sessions,
        sh.seconds(worker.expires_in) if worker.alive else None,
        worker.started_at,
        labels,
    )


@click.command(cls=Command, short_help="Bring the database's schema up to date.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show the schema, and what would be done.")
@command
def migrate(shell: Shell, *, dry_run: bool) -> None:
    """Create the tables, or bring them up to date. Safe while workers run, and when several migrate at once.

    Workers of the release before go on with the new schema, and start with it: to roll back, run that release again, on
    the schema as it is. A database that admits only later releases is refused, and the message names one.

    After a restore that has copied rows and no sequences it moves these past the rows.
    """
    if dry_run:
        _show_schema(shell, anyio.run(provider.inspect_schema, shell.url))
        return
    before, after = anyio.run(provider.migrate, shell.url, partial(click.echo, err=True))
    text = f"schema version {after}, " + ("which it had already" if before == after else f"was {before}")
    shell.show({"from": before, "to": after}, lambda: click.echo(text))


def _show_schema(shell: Shell, found: SchemaReport) -> None:
    lines = (
        ("schema version", found.version or "none: never migrated"),
        ("for code that knows", f"version {found.oldest_code} or later" if found.version else None),
        ("this code knows", f"version {found.known}"),
        ("usable", "yes" if found.is_usable else "after `affinity migrate`" if found.pending else "no"),
        ("to apply", ", ".join(found.pending) or None),
        ("to repair", ", ".join(found.behind) or None),
    )
    document = {
        "version": found.version,
        "oldest_code": found.oldest_code,
        "known": found.known,
        "usable": found.is_usable,
        "pending": found.pending,
        "behind": found.behind,
    }
    shell.show(document, lambda: sh.pairs(lines))
