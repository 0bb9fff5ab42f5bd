"""The commands on what instances run on: workers, migrate."""

from __future__ import annotations

import anyio
import click

from affinity import provider
from affinity.cli import shell as sh
from affinity.cli.instances import with_client
from affinity.cli.shell import Command, Shell, command
from affinity.provider.contract import WorkerInfo


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
@command
def migrate(shell: Shell) -> None:
    """Create the tables, or bring them up to date. Safe while workers run, and when several migrate at once.

    A database that is newer than this version of affinity is refused.
    """
    before, after = anyio.run(provider.migrate, shell.url)
    text = f"schema version {after}, " + ("which it had already" if before == after else f"was {before}")
    shell.show({"from": before, "to": after}, lambda: click.echo(text))
