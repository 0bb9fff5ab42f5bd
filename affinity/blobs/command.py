"""``affinity blobs``: figures of the blob store, and its collection; ``affinity reencrypt``: stored payloads, encoded
again with the key that writes.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from affinity.cli.output import counted, pairs, seconds, table
from affinity.cli.progress import Progress
from affinity.cli.shell import Shell, ShellGroup, command, with_client
from affinity.limits import MAX_REENCRYPTED

if TYPE_CHECKING:
    from affinity.blobs.client import BlobCalls
    from affinity.payloads.blobs import BlobCollection, BlobFigures
    from affinity.payloads.contract import Reencryption


@click.group(cls=ShellGroup, invoke_without_command=True)
def blobs(shell: Shell) -> None:
    """Show how many blobs are in the blob store, and how many wait for their deletion; collect them. Without a
    subcommand, show the status.

    The store is the one that AFFINITY_BLOBS names. Workers collect by themselves, at least four times in the grace:
    what no row names is noted as an orphan, and deleted when no row has named it for the grace, by the database's
    clock.

    Examples:
      AFFINITY_BLOBS=shop.storage:BLOBS affinity blobs
      affinity blobs collect --dry-run                  # how many would be deleted, and how many no row names
      affinity blobs collect                            # now, and not when a worker does it
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        _show(shell)
    else:
        ctx.obj = shell.url


@command(short_help="Show what is in the store, and what waits for its deletion.")
def status(shell: Shell) -> None:
    """Show the number and the bytes of the blobs in the store, of those that no row named when a collection looked last
    (orphans), since when the oldest waits, and how many are being deleted (condemned).

    An oldest orphan that is much older than the grace says that no worker collects: each has collect=False, or the
    store fails. Condemned blobs that stay for hours are left by a collection that was killed; the next one goes on.

    Examples:
      affinity blobs status
      affinity blobs status --json | jq '.orphan_bytes'
    """
    _show(shell)


def _show(shell: Shell) -> None:
    async def work(client: BlobCalls) -> BlobFigures:
        return await client.measure_blobs()

    found = with_client(shell, work)
    oldest = found.oldest_orphan
    shell.show(
        asdict(found),
        lambda: pairs(
            [
                ("blobs", f"{found.count:,}, {found.bytes:,} bytes"),
                ("orphans", f"{found.orphans:,}, {found.orphan_bytes:,} bytes"),
                ("oldest orphan", None if oldest is None else f"found {seconds(oldest)} ago"),
                ("condemned", found.condemned),
                ("grace", seconds(found.grace)),
            ]
        ),
    )


@command(short_help="Delete what no row names for the grace.")
@click.option("--dry-run", is_flag=True, help="Change nothing: count.")
def collect(shell: Shell, *, dry_run: bool) -> None:
    """Delete the blobs that no row names for the grace, and note those that no row names now: as a worker does it. It
    reads all rows with payloads, in small steps, and needs the rights of a worker.

    A blob is deleted by the second collection at the earliest: the first one notes it, and the grace begins.

    Examples:
      affinity blobs collect --dry-run
      affinity blobs collect --json | jq '.deleted'
    """

    async def work(client: BlobCalls) -> BlobCollection:
        return await client.collect_blobs(dry_run=dry_run)

    done = with_client(shell, work)
    verb = "would delete" if dry_run else "deleted"
    shell.show(
        {**asdict(done), "dry_run": dry_run},
        lambda: click.echo(f"{verb} {counted(done.deleted, 'blob')}, {done.bytes:,} bytes"),
    )
    if done.orphans > done.deleted:
        left = counted(done.orphans - done.deleted, "more blob")
        click.echo(f"no row names {left}: kept until the grace has passed", err=True)
    if not done.is_complete:
        click.echo("there are more to delete: start the command again", err=True)


blobs.add_command(status)
blobs.add_command(collect)


@command()
@click.option(
    "--batch",
    type=click.IntRange(1, MAX_REENCRYPTED),
    default=100,
    show_default=True,
    help="Rows that are changed in one transaction.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing: count the payloads by key.")
def reencrypt(shell: Shell, *, batch: int, dry_run: bool) -> None:
    """Encode all stored payloads again with the key that writes, beside running work. The codec is the one that
    AFFINITY_CODEC names; it needs the former keys too.

    What has this key is left alone, so the command may be interrupted, and started again. A former key is needed no
    longer when --dry-run counts no payload of it, and no worker and no client writes with it.

    Examples:
      affinity reencrypt --dry-run
      affinity reencrypt --batch 500
    """

    async def work(client: BlobCalls) -> Reencryption:
        with Progress("re-encoded", hint="; these stay so, and the command may be started again") as progress:
            ticks = asyncio.create_task(progress.tick())
            try:
                return await client.reencrypt(batch=batch, dry_run=dry_run, progress=progress)
            finally:
                ticks.cancel()

    done = with_client(shell, work)
    shell.show(
        {**asdict(done), "dry_run": dry_run},
        lambda: table(("KEY", "PAYLOADS"), done.found.items(), empty="no payload is encoded"),
    )
    verb = "would re-encode" if dry_run else "re-encoded"
    click.echo(f"{verb} {counted(done.reencrypted, 'payload')} with {done.key}", err=True)
    for number, what in (
        (done.unreadable, "cannot be decoded, and stays as it is"),
        (done.busy, "was in use, and stays as it is: start the command again"),
        (done.in_the_clear, "is in the clear, and stays so"),
    ):
        if number:
            click.echo(f"{counted(number, 'payload')}: each {what}", err=True)
    if done.blobs:
        click.echo(f"{counted(done.blobs, 'reference')} to blobs, whose data keeps its key", err=True)
