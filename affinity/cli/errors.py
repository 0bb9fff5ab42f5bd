"""``affinity errors``: what has failed in the last hour or day, and what is suspended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, get_args

import click

from affinity.cli.output import argument, relative, table
from affinity.cli.shell import PageOptions, Shell, command, paged, with_client
from affinity.composed.client import Client
from affinity.limits import MAX_FAILURES_SEARCHED
from affinity.provider.contract import FailureGroup, FailureGroups, FailureKind, FailureRecord

_GROUP_COLUMNS: Final = ("ERROR", "IN", "KIND", "FAILURES", "INSTANCES", "SINCE", "LAST", "MESSAGE", "NEXT")
_COLUMNS: Final = ("INSTANCE", "WHEN", "IN", "KIND", "ATTEMPT", "THEN", "ERROR")
_MOST: Final = 50
_DAY: Final = 86_400.0


@command()
@click.argument("name", required=False)
@click.option(
    "--kind", type=click.Choice(get_args(FailureKind)), default="activity", show_default=True, help="What NAME is."
)
@click.option("--type", "error_type", help="Class of the errors, of NAME.")
@click.option("--text", help="Only errors with this text in theirs.")
@click.option("--day", is_flag=True, help="Of the last 24 hours; by default of the last hour.")
@paged("Failures")
def errors(
    shell: Shell, *, name: str | None, kind: str, error_type: str | None, text: str | None, day: bool, page: PageOptions
) -> None:
    """Count failed attempts of activities, failed orchestrations, and suspended instances, by name and class of the
    error, with the message of the last one and the command that shows its instance. With a name or a text, list them,
    newest first.

    Suspended instances come first, and stay until they go on, whatever the time.

    No index has the texts: a page looks at the next 10,000 failures. It may be empty, and not be the last one.

    Examples:
      affinity errors
      affinity errors order --kind suspension
      affinity errors charge --type ValueError --day
      affinity errors --text 'card was refused' --all --json | jq -r '.failures[].instance_id'
    """
    if error_type is not None and name is None:
        raise click.UsageError("--type is the class of errors of NAME: give NAME")
    seconds = _DAY if day else 3600.0
    if name is None and text is None:
        _groups(shell, seconds)
        return
    where: dict[str, Any] = {} if name is None else {"kind": kind, "name": name, "error_type": error_type}
    found = with_client(shell, lambda client: page.read(client.failures(seconds=seconds, text=text, **where)))
    shell.show(
        {"failures": found.items, "next": found.next},
        lambda: table(_COLUMNS, map(_row, found.items), empty="no failures"),
    )
    if text is not None and found.next is not None:
        click.echo(f"looked at {MAX_FAILURES_SEARCHED:,} failures at most", err=True)
    shell.show_cursor(found.next)


def _groups(shell: Shell, seconds: float) -> None:
    async def read(client: Client) -> FailureGroups:
        return await client.failure_groups(seconds=seconds, limit=_MOST)

    found = with_client(shell, read)
    none = "nothing has failed, and nothing is suspended"
    shell.show(asdict(found), lambda: table(_GROUP_COLUMNS, map(_group_row, found.groups), empty=none))
    if found.is_cut:
        click.echo(f"there are more: the {_MOST} with the most failures", err=True)


def _group_row(one: FailureGroup) -> tuple[object, ...]:
    more = "+" if one.is_cut else ""
    counts = (f"{one.count}{more}", f"{one.instances}{more}")
    message = one.error.removeprefix(f"{one.error_type}: ")
    times = (relative(one.first_at), relative(one.last_at))
    return one.error_type, one.name, one.kind, *counts, *times, message, _next(one)


def _next(one: FailureGroup) -> str:
    """The command that shows the instance of the last failure."""
    shown = "why" if one.kind == "suspension" else "show --stack"
    return f"affinity {shown} {argument(one.instance_id)}"


def _row(one: FailureRecord) -> tuple[object, ...]:
    then = "suspended" if one.kind == "suspension" else "retried" if one.is_retried else "failed"
    return one.instance_id, one.failed_at, one.name, one.kind, one.attempt or None, then, one.error
