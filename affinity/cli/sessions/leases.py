"""The leases of sessions: ``affinity sessions leases``, ``release`` and ``move``."""

from __future__ import annotations

import click

from affinity.cli.arguments import DURATION
from affinity.cli.help import REFUSED
from affinity.cli.output import seconds, table
from affinity.cli.shell import Shell, command, with_client
from affinity.client import MOVE_SECONDS, SessionMoveOutcome
from affinity.composed.client import Client
from affinity.provider.contract import SessionInfo, SessionRelease

_COLUMNS = ("SESSION", "HELD", "WORKER", "EPOCH", "IDLE", "ENDS IN", "QUEUED", "MOVES TO")


@command(short_help="Show who holds which session.")
@click.option("--worker", help="Only sessions that this worker holds, or was the last to hold.")
@click.option("--held", is_flag=True, help="Only sessions that are held now.")
def leases(shell: Shell, *, worker: str | None, held: bool) -> None:
    """Show the leases: holder, epoch, idle time and queued work of each session.

    The epoch grows with each change of holder. A session that is not held keeps its row for a while; any worker may
    take it.

    Example:
      affinity sessions leases --held --worker worker-0
    """
    show_leases(shell, worker, held)


def show_leases(shell: Shell, worker: str | None, held: bool) -> None:
    """Print the leases that fit."""

    async def read(client: Client) -> list[SessionInfo]:
        return [session async for session in client.sessions(worker_id=worker) if session.held or not held]

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


@command(short_help="Release sessions before their time.")
@click.argument("session_ids", metavar="ID...", nargs=-1, required=True)
def release(shell: Shell, *, session_ids: tuple[str, ...]) -> None:
    """Release the sessions ID…: any worker may claim them then, and their holders have room for others.

    ID is the whole id. The record stays, and so does queued work. A session whose holder runs work of it is busy,
    and stays where it is: exit code 6, also when others are released.

    Examples:
      affinity sessions release chat-17
      affinity sessions release chat-17 chat-18 --json
    """

    async def run(client: Client) -> dict[str, SessionRelease]:
        return {session_id: await client.release_session(session_id) for session_id in session_ids}

    outcome = with_client(shell, run)
    shell.show({"sessions": outcome}, lambda: table(("SESSION", "OUTCOME"), outcome.items(), empty=""))
    if "busy" in outcome.values():
        click.get_current_context().exit(REFUSED)


@command(short_help="Move sessions to a worker.")
@click.argument("session_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--to", metavar="WORKER", required=True, help="The worker that is to hold them.")
@click.option(
    "--within",
    type=DURATION,
    default=MOVE_SECONDS,
    help=f"For how long running work may take  [default: {MOVE_SECONDS:g}]",
)
@click.option("--wait", is_flag=True, help="Until they have moved, or until that is given up.")
def move(shell: Shell, *, session_ids: tuple[str, ...], to: str, within: float, wait: bool) -> None:
    """Move the sessions ID… to another worker, without failing an activity.

    ID is the whole id. What runs of a session ends on its holder and is committed, and nothing new of it starts there;
    then the other worker takes the session with what waits. When running work takes too long, or the worker does not
    take the session, it stays where it is.

    The outcome is "planned"; with --wait "moved" or "given_up"; "not_held", when no worker holds the session; or
    "unavailable", when the worker that is named takes no work. Exit code 6 when one is not "planned" or "moved".

    Examples:
      affinity sessions move chat-17 --to worker-2 --wait
      affinity sessions move chat-17 chat-18 --to worker-2 --within 5m --json
    """

    async def run(client: Client) -> dict[str, SessionMoveOutcome]:
        planned = {name: await client.move_session(name, to, within=within) for name in session_ids}
        if not wait:
            return planned
        return {
            name: await client.await_session_move(name, to) if outcome == "planned" else outcome
            for name, outcome in planned.items()
        }

    outcome = with_client(shell, run)
    shell.show({"sessions": outcome}, lambda: table(("SESSION", "OUTCOME"), outcome.items(), empty=""))
    if not set(outcome.values()) <= {"planned", "moved"}:
        click.get_current_context().exit(REFUSED)
