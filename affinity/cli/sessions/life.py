"""``affinity sessions life``."""

from __future__ import annotations

import click

from affinity.cli.output import clock, printable, resource_times, seconds, table
from affinity.cli.shell import DEFAULT_PAGE, Shell, command, with_client
from affinity.client import SessionHolding, SessionLife
from affinity.limits import MAX_PAGE

_COLUMNS = ("SINCE", "WORKER", "EPOCH", "HELD FOR", "REASON", "GAP MS", "QUEUED", "HYDRATE MS", "BYTES", "RESOURCES")


@command(short_help="Show the life of a session: holders, reasons, gaps.")
@click.argument("session_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE - 1), default=DEFAULT_PAGE, show_default=True, help="Holders at most."
)
def life(shell: Shell, session_id: str, *, limit: int) -> None:
    """Show who holds the session ID, in one sentence, and the workers that have held it: a row for each, with its
    epoch, why the session came to it, how long no worker had it before, the work that was queued, and what loading its
    state and its resources has cost.

    ID is the whole id. Moves are kept for session_move_retention. The meaning of each reason is in
    docs/run/placement.md.

    Examples:
      affinity sessions life chat-17
      affinity sessions life chat-17 --json | jq '.holdings[-1].gap_seconds'
    """
    found = with_client(shell, lambda client: client.session_life(session_id, limit=limit))
    shell.show(found, lambda: _print(found))


def _print(found: SessionLife) -> None:
    click.echo(printable(found.sentence))
    table(_COLUMNS, map(_row, found.holdings), empty="no moves are kept")
    if found.has_more:
        click.echo(f"there are earlier ones: --limit {MAX_PAGE - 1}", err=True)


def _row(holding: SessionHolding) -> tuple[object, ...]:
    held = None if holding.until is None else seconds((holding.until - holding.since).total_seconds())
    about = (clock(holding.since), holding.worker_id, holding.epoch, held, holding.reason)
    loaded = _ms(holding.hydrate_seconds), holding.hydrate_bytes, resource_times(holding.resource_seconds)
    return *about, _ms(holding.gap_seconds), holding.queued, *loaded


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value * 1000:.1f}"
