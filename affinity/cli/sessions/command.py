"""The group ``affinity sessions``; without a subcommand it lists the leases."""

from __future__ import annotations

import click

from affinity.cli.output import seconds, table
from affinity.cli.sessions import delete, move, moves, release, show, transfer
from affinity.cli.shell import Shell, ShellCommand, ShellGroup, with_client
from affinity.client import Client
from affinity.provider.contract import SessionInfo

_COLUMNS = ("SESSION", "HELD", "WORKER", "EPOCH", "IDLE", "ENDS IN", "QUEUED", "MOVES TO")


@click.group(cls=ShellGroup, invoke_without_command=True)
@click.option("--worker", help="Without a subcommand: as for `leases`.")
@click.option("--held", is_flag=True, help="Without a subcommand: as for `leases`.")
def sessions(shell: Shell, *, worker: str | None, held: bool) -> None:
    """Show and manage sessions.

    A session has a lease: which worker holds it. And it may have a record: its state, as activities or scripts saved
    it. Without a subcommand, the leases are shown.

    Where a command takes an ID, the beginning of it is enough when no other record's id begins so.

    Examples:
      affinity sessions                                  # which worker holds what
      affinity sessions list --kind chat --idle-for 7d   # records not written for a week
      affinity sessions show chat-17                     # one record with its state
      affinity sessions family chat-17                   # it and its children: messages, participants
      affinity sessions moves chat-17                    # where it has been, and why it moved
      affinity sessions release chat-17                  # any worker may claim it now
      affinity sessions move chat-17 --to worker-2 --wait
      affinity sessions delete chat-17 --dry-run         # what would be removed, children included
      affinity sessions prune --older-than 30d --yes     # retention, for a cron job
      affinity sessions export -o sessions.jsonl         # one JSON line a record
      affinity sessions import sessions.jsonl --url postgresql://db/app
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        _show_leases(shell, worker, held)
        return
    if worker is not None or held or shell.as_json:
        given = "--worker, --held and --json"
        raise click.UsageError(f"put {given} after the subcommand, as in `affinity sessions leases --held --json`")
    ctx.obj = shell.url


@sessions.command(cls=ShellCommand, short_help="Show who holds which session.")
@click.option("--worker", help="Only sessions that this worker holds, or was the last to hold.")
@click.option("--held", is_flag=True, help="Only sessions that are held now.")
def leases(shell: Shell, *, worker: str | None, held: bool) -> None:
    """Show the leases: holder, epoch, idle time and queued work of each session.

    The epoch grows with each change of holder. A session that is not held keeps its row for a while; any worker may
    take it.

    Example:
      affinity sessions leases --held --worker worker-0
    """
    _show_leases(shell, worker, held)


def _show_leases(shell: Shell, worker: str | None, held: bool) -> None:
    def fits(session: SessionInfo) -> bool:
        return (worker is None or session.worker_id == worker) and (session.held or not held)

    async def read(client: Client) -> list[SessionInfo]:
        return [session async for session in client.sessions() if fits(session)]

    found = with_client(shell, read)
    shell.show(found, lambda: table(_COLUMNS, map(_lease_row, found), empty="no sessions"))


def _lease_row(session: SessionInfo) -> tuple[object, ...]:
    return (
        session.session_id,
        "yes" if session.held else "no",
        session.worker_id or None,
        session.epoch,
        seconds(session.idle),
        seconds(session.expires_in) if session.held else None,
        session.queued,
        session.next_worker,
    )


for _subcommand in (
    show.list_records,
    show.count,
    show.show,
    show.family,
    moves.moves,
    release.release,
    move.move,
    delete.delete,
    delete.prune,
    transfer.export,
    transfer.import_records,
):
    sessions.add_command(_subcommand)
