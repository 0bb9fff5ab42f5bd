"""``affinity sessions release``."""

from __future__ import annotations

import click

from affinity.cli.help import REFUSED
from affinity.cli.output import table
from affinity.cli.shell import Shell, command, with_client
from affinity.client import Client
from affinity.provider.contract import SessionRelease


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
