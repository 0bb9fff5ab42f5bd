"""``affinity sessions delete`` and ``prune``."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, cast

import click

from affinity.cli.arguments import DURATION, LABEL, labels_of
from affinity.cli.output import counted, printable
from affinity.cli.progress import Progress
from affinity.cli.shell import Shell, command, confirm, remove, with_client
from affinity.composed.client import Client
from affinity.errors import SessionNotFound
from affinity.session import Pruned


@command(short_help="Remove a record, and its children's.")
@click.argument("session_id", metavar="ID")
@click.option("--allow-prefix", is_flag=True, help="ID may be the beginning of one session's id.")
@click.option("--cascade/--no-cascade", default=True, help="Its children too, and theirs.  [default: --cascade]")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(shell: Shell, *, session_id: str, allow_prefix: bool, cascade: bool, dry_run: bool, yes: bool) -> None:
    """Remove the record of the session ID, and with it the records of its children, and of theirs.

    ID is the whole id, unless --allow-prefix is given. A worker that holds the session evicts its state from memory,
    and begins with a new one. The ids of what was removed go to stdout, one a line.

    Many records are removed in steps, descendants first. Repeat the command to continue after an interruption.

    Examples:
      affinity sessions delete chat-17 --dry-run
      affinity sessions delete chat-17 --yes
      affinity sessions delete chat-1 --allow-prefix
    """

    def would_remove(client: Client) -> Awaitable[Sequence[str]]:
        manager = client.session_manager
        return manager.delete(session_id, allow_prefix=allow_prefix, cascade=cascade, dry_run=True)

    async def delete_agreed(client: Client) -> Sequence[str]:
        # By the whole id: what was agreed to is removed, and nothing else that begins so.
        with Progress("removed", hint="; repeat the command, and it goes on") as progress, suppress(SessionNotFound):
            return await client.session_manager.delete(doomed[0], cascade=cascade, progress=progress)
        return []

    doomed = with_client(shell, would_remove)
    if not dry_run:
        if not yes:
            confirm(f"Remove {_family(doomed)}?")
        doomed = with_client(shell, delete_agreed)
    _report(shell, {"removed": doomed, "dry_run": dry_run}, _family(doomed))


def _family(session_ids: Sequence[str]) -> str:
    if not session_ids:
        return "nothing"
    children = len(session_ids) - 1
    with_them = f" and {counted(children, 'child', 'children')} of it" if children else ""
    return f"{printable(session_ids[0])!r}{with_them}"


@command(short_help="Remove old records, or all but the newest.")
@click.option("--older-than", type=DURATION, help="Records not written for so long: 90s, 15m, 12h, 30d, 4w.")
@click.option("--keep", type=click.IntRange(min=0), help="All but so many of the newest.")
@click.option("--either", is_flag=True, help="With both: old records, and records that are not kept.")
@click.option("--family", is_flag=True, help="Judge and remove a record with all its descendants, by the newest.")
@click.option("--kind", help="Only states of this kind; --keep counts only these.")
@click.option("--label", "labels", multiple=True, type=LABEL, help="Only with this label; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(shell: Shell, *, labels: tuple[tuple[str, str], ...], dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Remove old records, or all but the newest. With both --older-than and --keep, a record must be old and not kept;
    with --either too, it must be old or not kept.

    A session that a worker holds, that has work in the queue, or that is written meanwhile, is left alone. Each record
    is judged by itself: children go when their own time has come. With --family a record goes or stays together with
    all its descendants, and the newest of them decides how old they are; --keep then counts families. Many records go
    in steps: when it was interrupted, repeat the command, and it goes on.

    The ids of what was removed go to stdout, one a line. Workers prune records only if they have
    the option record_retention.

    Examples:
      affinity sessions prune --older-than 30d --dry-run
      affinity sessions prune --older-than 12h --keep 1000 --kind chat --label team=test --yes
      affinity sessions prune --older-than 90d --keep 10000 --either --family --yes
    """
    limits = (chosen["older_than"], chosen["keep"])
    if limits == (None, None):
        raise click.UsageError("give --older-than, --keep, or both: it does not remove everything by itself")
    if chosen["either"] and None in limits:
        raise click.UsageError("--either needs both --older-than and --keep")

    async def work(client: Client, **options: Any) -> Pruned:
        return await client.session_manager.prune(**chosen, labels=labels_of(labels), **options)

    pruned = remove(shell, work, _records, number=lambda found: len(found.removed), dry_run=dry_run, yes=yes)
    _report(shell, {"removed": pruned.removed, "left": pruned.left, "dry_run": dry_run}, _count(pruned))


def _records(pruned: Pruned) -> str:
    return counted(len(pruned.removed), "record") if pruned.removed else ""


def _count(pruned: Pruned) -> str:
    left = len(pruned.left)
    why = f"; left {left} that are held, have queued work, or were written meanwhile" if left else ""
    return f"{counted(len(pruned.removed), 'record')}{why}"


def _report(shell: Shell, document: dict[str, object], what: str) -> None:
    """Print the ids on stdout, and the outcome on stderr."""
    removed = cast("Sequence[str]", document["removed"])
    shell.show(document, lambda: click.echo("".join(f"{printable(each)}\n" for each in removed), nl=False))
    click.echo(f"{'would remove' if document['dry_run'] else 'removed'} {what}", err=True)
