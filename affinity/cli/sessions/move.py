"""``affinity sessions move``."""

from __future__ import annotations

import click

from affinity.cli.arguments import DURATION
from affinity.cli.help import REFUSED
from affinity.cli.output import table
from affinity.cli.shell import Shell, command, with_client
from affinity.client import Client, SessionMoveOutcome
from affinity.client.administration import MOVE_SECONDS


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
