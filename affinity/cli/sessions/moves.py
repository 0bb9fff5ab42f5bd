"""``affinity sessions moves``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import click

from affinity.cli.output import clock, compact, printable, resource_times, table
from affinity.cli.shell import DEFAULT_PAGE, Shell, command, with_client
from affinity.composed.client import Client
from affinity.limits import MAX_PAGE
from affinity.provider.contract import MoveReason, SessionMove

_COLUMNS = ("TIME", "SESSION", "FROM", "TO", "REASON", "EPOCH", "QUEUED", "HYDRATE", "BYTES", "RESOURCES")


@command(short_help="Show when and why sessions moved.")
@click.argument("session_id", metavar="[ID]", required=False)
@click.option("--worker", "worker_id", help="Only moves from this worker or to it.")
@click.option("--reason", type=click.Choice(get_args(MoveReason)), help="Only moves with this reason.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), default=DEFAULT_PAGE, show_default=True, help="Moves at most."
)
@click.option("--after", type=click.IntRange(0), metavar="EPOCH", help="The first moves after this epoch.")
@click.option("--before", type=click.IntRange(1), metavar="EPOCH", help="The last moves before this epoch.")
@click.option("--follow", is_flag=True, help="Then print further moves as they happen, until Ctrl-C.")
def moves(shell: Shell, *, limit: int, after: int | None, before: int | None, follow: bool, **where: Any) -> None:
    """Show the last moves of all sessions, or of the session ID: when, from which worker to which and why, how much
    work was queued, what the hydrate has cost, and how long each resource took to load.

    ID is the whole id. What each reason means: docs/run/placement.md. Workers remove moves that are older than their
    session_move_retention. With --follow and --json each line is one JSON document.

    Examples:
      affinity sessions moves
      affinity sessions moves chat-17
      affinity sessions moves --worker worker-0 --reason lease_expired --limit 20
      affinity sessions moves --follow --json
    """
    if before is not None and (after is not None or follow):
        raise click.UsageError("--before contradicts --after and --follow")

    async def read(client: Client) -> Sequence[SessionMove]:
        return await client.session_moves(**where, after=after, before=before, limit=limit)

    async def watch(client: Client) -> None:
        found = await read(client)
        _print(shell, found)
        last = found[-1].epoch if found else after
        async for move in client.follow_session_moves(**where, after=last):
            _print(shell, [move])

    if follow:
        with_client(shell, watch)
        return
    found = with_client(shell, read)
    shell.show(found, lambda: table(_COLUMNS, map(_row, found), empty="no moves"))
    if len(found) == limit and after is None and not shell.as_json:
        click.echo(f"earlier ones: --before {found[0].epoch}", err=True)


def _row(move: SessionMove) -> tuple[object, ...]:
    hydrate = None if move.hydrate_seconds is None else f"{move.hydrate_seconds * 1000:.1f} ms"
    at = (move.moved_at, move.session_id, move.from_worker, move.to_worker)
    loads = resource_times(move.resource_seconds)
    return *at, move.reason, move.epoch, move.queued, hydrate, move.hydrate_bytes, loads


def _print(shell: Shell, found: Sequence[SessionMove]) -> None:
    for move in found:
        click.echo(compact(move) if shell.as_json else _line(move))


def _line(move: SessionMove) -> str:
    origin = "" if move.from_worker is None else f"{move.from_worker} -> "
    return printable(f"{clock(move.moved_at)}  {move.session_id}  {origin}{move.to_worker}  {move.reason}")
