"""The commands on what instances run on: sessions, workers, migrate."""

from __future__ import annotations

import anyio
import click

from affinity import provider
from affinity.cli import shell as sh
from affinity.cli.instances import with_client
from affinity.cli.shell import Command, Shell, command
from affinity.client import Client
from affinity.provider.contract import SessionInfo, WorkerInfo


@click.command(cls=Command, short_help="Show who holds which session.")
@click.option("--worker", help="Only sessions that this worker holds, or was the last to hold.")
@click.option("--held", is_flag=True, help="Only sessions that are held now.")
@command
def sessions(shell: Shell, *, worker: str | None, held: bool) -> None:
    """Show the sessions: which worker holds each, at which epoch, since when nothing touched it, and what is queued.

    The epoch grows with each change of holder. A session that is not held keeps its row for a while; any worker may
    take it.
    """

    def fits(session: SessionInfo) -> bool:
        return (worker is None or session.worker_id == worker) and (session.held or not held)

    async def read(client: Client) -> list[SessionInfo]:
        return [session async for session in client.sessions() if fits(session)]

    found = with_client(shell, read)
    columns = ("SESSION", "HELD", "WORKER", "EPOCH", "IDLE", "ENDS IN", "QUEUED")
    shell.show(found, lambda: sh.table(columns, map(_session_row, found), empty="no sessions"))


def _session_row(session: SessionInfo) -> tuple[object, ...]:
    return (
        session.session_id,
        "yes" if session.held else "no",
        session.worker_id,
        session.epoch,
        sh.seconds(session.idle),
        sh.seconds(session.expires_in) if session.held else None,
        session.queued,
    )


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
