"""``affinity prune``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final, TypeAlias, get_args

import click

from affinity.cli.instances import with_client
from affinity.cli.sessions.options import Duration, Progress, confirm, counted
from affinity.cli.shell import Command, Shell, command
from affinity.client import Client, EndedStatus

_HINT: Final = "; what is removed stays removed, and the command may be started again"

_Removed: TypeAlias = dict[str, int]
"""The numbers of a report, by what they count."""


@click.command(cls=Command, short_help="Remove instances that ended long ago.")
@click.option("--older-than", type=Duration(), required=True, help="Ended so long ago: 90s, 15m, 12h, 30d, 4w.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(get_args(EndedStatus)),
    help="Only those that ended so; may be repeated  [default: completed]",
)
@click.option("--histories", is_flag=True, help="Histories of former executions, in place of instances.")
@click.option("--dry-run", is_flag=True, help="Only say how many would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def prune(
    shell: Shell, *, older_than: float, status: tuple[EndedStatus, ...], histories: bool, dry_run: bool, yes: bool
) -> None:
    """Remove instances that ended long ago, with their histories and sub-orchestrations.

    A sub-orchestration goes with its parent, and a tree stays while something in it has not ended for that long. What
    runs or is suspended is never removed. With --histories the instances stay: removed are the histories of executions
    after which continue_as_new, or a reset, began another one.

    Examples:
      affinity prune --older-than 30d --dry-run
      affinity prune --older-than 30d --status completed --status cancelled --yes
      affinity prune --histories --older-than 7d --yes
    """
    if histories and status:
        raise click.UsageError("--status is about instances: it contradicts --histories")
    chosen = status or ("completed",)

    def run(*, dry: bool) -> _Removed:
        async def work(client: Client) -> _Removed:
            with Progress("would remove" if dry else "removed", hint=_HINT) as progress:
                if histories:
                    return {
                        "histories": await client.prune_histories(older_than=older_than, dry_run=dry, progress=progress)
                    }
                return asdict(await client.prune(older_than=older_than, status=chosen, dry_run=dry, progress=progress))

        return with_client(shell, work)

    removed = run(dry=not yes or dry_run)
    if any(removed.values()) and not (yes or dry_run):
        confirm(f"Remove {_words(removed)}?")
        removed = run(dry=False)
    shell.show({**removed, "dry_run": dry_run}, lambda: None)
    click.echo(f"{'would remove' if dry_run else 'removed'} {_words(removed)}", err=True)


def _words(removed: _Removed) -> str:
    if "histories" in removed:
        return counted(removed["histories"], "history", "histories")
    children = removed["instances"] - removed["roots"]
    below = f" and {counted(children, 'sub-orchestration')}" if children else ""
    return f"{counted(removed['roots'], 'instance')}{below}"
