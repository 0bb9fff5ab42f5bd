"""The group ``affinity sessions``; without a subcommand it lists the leases."""

from __future__ import annotations

import click

from affinity.cli.sessions import delete, leases, life, moves, show, transfer
from affinity.cli.shell import Shell, ShellGroup


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
      affinity sessions life chat-17                     # who holds it, where it has been, and why it moved
      affinity sessions moves --reason lease_expired     # the last moves of all sessions
      affinity sessions release chat-17                  # any worker may claim it now
      affinity sessions move chat-17 --to worker-2 --wait
      affinity sessions delete chat-17 --dry-run         # what would be removed, children included
      affinity sessions prune --older-than 30d --yes     # retention, for a cron job
      affinity sessions export -o sessions.jsonl         # one JSON line a record
      affinity sessions import sessions.jsonl --url postgresql://db/app
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        leases.show_leases(shell, worker, held)
        return
    if worker is not None or held or shell.as_json:
        given = "--worker, --held and --json"
        raise click.UsageError(f"put {given} after the subcommand, as in `affinity sessions leases --held --json`")
    ctx.obj = shell.url


for _subcommand in (
    show.list_records,
    show.count,
    show.show,
    show.family,
    moves.moves,
    life.life,
    leases.leases,
    leases.release,
    leases.move,
    delete.delete,
    delete.prune,
    transfer.export,
    transfer.import_records,
):
    sessions.add_command(_subcommand)
