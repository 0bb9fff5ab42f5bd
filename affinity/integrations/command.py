"""``affinity mcp``: the tools of an operator, for an assistant."""

from __future__ import annotations

from typing import Final

import anyio
import click

from affinity.cli.logs import configure_logging
from affinity.cli.shell import Shell, command, current_user
from affinity.errors import InvalidOptions

_ACTIONS: Final = ["answer", "cancel", "resume", "rerun", "release"]


@command()
@click.option("--allow", "actions", multiple=True, type=click.Choice(["all", *_ACTIONS]), help="What it may do.")
@click.option("--hide-payloads", is_flag=True, help="Show no values of the application.")
def mcp(shell: Shell, *, actions: tuple[str, ...], hide_payloads: bool) -> None:
    """Serve the tools of an operator to an assistant, by the Model Context Protocol over standard input and output.

    The assistant starts this command. It sees what needs a person, why something waits, instances, transcripts,
    sessions, errors and workers. It only reads, unless --allow names what else it may do: answer requests, cancel,
    resume or start again instances, release sessions. Each action is in the audit log, with the source "mcp". It needs
    an extra: pip install 'affinity-workflows[mcp]'.

    Examples:
      affinity mcp --url postgresql://db/app
      affinity mcp --allow resume --allow answer
    """
    try:
        from affinity.integrations.mcp import operator_server
    except ModuleNotFoundError as error:
        raise InvalidOptions(str(error)) from None
    if shell.as_json:
        raise click.UsageError("--json: what it prints is the protocol, which is JSON")
    configure_logging("warning", "text")
    allow = _ACTIONS if "all" in actions else actions

    async def serve() -> None:
        from affinity import Client

        async with Client(shell.url) as client:
            await client.workers()  # a database that does not answer is an error of the command
            server = operator_server(client, allow=allow, user=current_user(), hide_payloads=hide_payloads)  # type: ignore[arg-type]
            await server.run_stdio_async()

    anyio.run(serve)
