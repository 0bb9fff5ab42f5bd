"""The commands on the database and its workers: workers, rebalance, migrate, quotas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import anyio
import click

from affinity import provider
from affinity.audit import administering
from affinity.cli.arguments import LIMIT
from affinity.cli.output import pairs, printable, seconds, table
from affinity.cli.shell import SOURCE, Shell, command, current_user, with_client, with_workers
from affinity.cli.watching import look, watched
from affinity.client import DrainPreview, code_differences
from affinity.composed.client import Client
from affinity.provider.contract import FleetLoad, Quotas, WorkerInfo
from affinity.provider.schema import SchemaReport


@command()
@click.option("--desired", is_flag=True, help="Show instead how many workers the sessions need.")
@watched()
def workers(shell: Shell, *, desired: bool, watch: bool) -> None:
    """Show the workers, also recently ended ones: state, held sessions, lease, code
    version and since when it is deployed, tags, labels.

    Below them the names under which live workers have functions of different modules, as two apps with one name have:
    these workers have the mark `*` behind their state.

    With --desired, what an autoscaler asks for: sessions that are held, sessions that have work and wait for a holder,
    how many of them one worker may hold, and how many workers that makes.

    Examples:
      affinity workers
      affinity workers --watch
      affinity workers --desired --json
    """
    if desired and watch:
        raise click.UsageError("--watch shows the workers: it contradicts --desired")
    if desired:
        demand = asdict(with_client(shell, lambda client: client.desired_workers()))
        shell.show(demand, lambda: pairs(demand.items()))
        return
    look(shell, Client.workers, _documents, _show_workers, watch=watch)


def _documents(found: Sequence[WorkerInfo]) -> list[dict[str, Any]]:
    """The workers, each with the names for which others have other code."""
    differing = code_differences(found)
    return [
        {**asdict(one), "other_code": [each.what for each in differing if one.worker_id in each.worker_ids]}
        for one in found
    ]


def _show_workers(found: Sequence[WorkerInfo]) -> None:
    differing = code_differences(found)
    columns = ("WORKER", "STATE", "SESSIONS", "LEASE", "STARTED", "CODE", "SINCE", "TAGS", "LABELS")
    marked = {worker_id for one in differing for worker_id in one.worker_ids}
    table(columns, (_worker_row(one, is_marked=one.worker_id in marked) for one in found), empty="no workers")
    for one in differing:
        click.echo(f"* other code for {one.what}: {', '.join(one.worker_ids)}")


def _worker_row(worker: WorkerInfo, *, is_marked: bool) -> tuple[object, ...]:
    marks = {
        "dead": not worker.alive,
        "restarting": worker.restarting,
        "drained": worker.drain_wanted and not worker.sessions,
        "draining": worker.draining,
        "alive": True,
    }
    state = next(name for name, is_set in marks.items() if is_set)
    if worker.drain_wanted and state != "drained":
        state += " (to be drained)" if state == "dead" else " (by an operator)"
    labels = " ".join(f"{name}={value}" for name, value in worker.labels.items())
    return (
        worker.worker_id,
        f"{state} *" if is_marked else state,
        worker.sessions,
        seconds(worker.expires_in) if worker.alive else None,
        worker.started_at,
        worker.code_version,
        worker.code_since,
        ("only " if worker.only_tagged else "") + ",".join(worker.tags) or None,
        labels,
    )


@command()
@click.argument("worker_ids", metavar="WORKER...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would move, and to where.")
def drain(shell: Shell, *, worker_ids: tuple[str, ...], dry_run: bool) -> None:
    """Drain the workers WORKER…: they take nothing new, finish what runs, and give their sessions up as work ends.

    They stay registered and alive, and drain again when they are restarted, until `affinity resume --worker WORKER`.
    `affinity workers --watch` shows how far they are.

    Examples:
      affinity drain worker-3
      affinity drain worker-3 worker-4 --json
      affinity drain worker-3 --dry-run
    """
    if dry_run:
        found = with_client(shell, partial(_preview_drains, worker_ids))
        shell.show(found, lambda: click.echo("\n".join(printable(one.sentence) for one in found)))
        return
    with_workers(shell, worker_ids, Client.drain_worker, "draining")


async def _preview_drains(worker_ids: Sequence[str], client: Client) -> Sequence[DrainPreview]:
    return [await client.drain_preview(worker_id) for worker_id in worker_ids]


@command()
@click.option("--dry-run", is_flag=True, help="Change nothing; show the schema, and what would be done.")
@click.option("--grant-client", "clients", metavar="ROLE", multiple=True, help="Let it start, raise, cancel and read.")
@click.option("--grant-worker", "workers", metavar="ROLE", multiple=True, help="Let it do all but change the schema.")
@click.option("--grant-scaler", "scalers", metavar="ROLE", multiple=True, help="Let it read desired_workers only.")
@click.option("--grant-reader", "readers", metavar="ROLE", multiple=True, help="Let it read, as for a console.")
@click.option("--revoke", metavar="ROLE", multiple=True, help="Take all its rights in the schema away.")
def migrate(
    shell: Shell,
    *,
    dry_run: bool,
    clients: tuple[str, ...],
    workers: tuple[str, ...],
    scalers: tuple[str, ...],
    readers: tuple[str, ...],
    revoke: tuple[str, ...],
) -> None:
    """Create the tables, or bring them up to date. Safe while workers run, and when several processes migrate.

    Workers of the release before continue on the new schema, and start on it: to roll back, run that release again on
    the same schema. A database that admits only later releases is refused, and the message names one.

    After a restore that has copied rows and no sequences it moves these past the rows.

    On PostgreSQL, roles that exist are given the rights of a client, of a worker that starts with --no-migrate, of an
    autoscaler, which reads the view desired_workers, or of a reader, which reads what a client reads and writes
    nothing; and no others in the schema. Each migration takes what PUBLIC has by default, and gives these roles their
    rights again.

    Examples:
      affinity migrate --url postgresql://owner@db/app
      affinity migrate --grant-worker app_worker --grant-client app_web --url postgresql://owner@db/app
    """
    rights = {"clients": clients, "workers": workers, "scalers": scalers, "readers": readers, "revoke": revoke}
    if dry_run and any(rights.values()):
        raise click.UsageError("--dry-run changes nothing: it contradicts --grant-… and --revoke")
    if dry_run:
        _show_schema(shell, anyio.run(provider.inspect_schema, shell.url))
        return
    with administering(current_user(), SOURCE):
        before, after = anyio.run(provider.migrate, shell.url, partial(click.echo, err=True))
        if any(rights.values()):
            anyio.run(partial(provider.change_rights, shell.url, **rights))
    text = f"schema version {after}, " + ("which it had already" if before == after else f"was {before}")
    shell.show({"from": before, "to": after, **(rights if any(rights.values()) else {})}, lambda: click.echo(text))


def _show_schema(shell: Shell, found: SchemaReport) -> None:
    lines = (
        ("schema version", found.version or "none: never migrated"),
        ("for code that knows", f"version {found.oldest_code} or later" if found.version else None),
        ("this code knows", f"version {found.known}"),
        ("usable", "yes" if found.is_usable else "after `affinity migrate`" if found.pending else "no"),
        ("to apply", ", ".join(found.pending) or None),
        ("to repair", ", ".join(found.behind) or None),
    )
    document = {
        "version": found.version,
        "oldest_code": found.oldest_code,
        "known": found.known,
        "usable": found.is_usable,
        "pending": found.pending,
        "behind": found.behind,
    }
    shell.show(document, lambda: pairs(lines))


@command()
@click.option("--suspend/--resume", default=None, help="Have no worker offer sessions to others any more, or again.")
def rebalance(shell: Shell, *, suspend: bool | None) -> None:
    """Show how many sessions each live worker holds and its share of them by capacity, and whether workers that hold
    more than their share may offer sessions to others. With --suspend none does, until --resume.

    A worker says how many it holds every rebalance_interval seconds.

    Examples:
      affinity rebalance
      affinity rebalance --suspend
      affinity rebalance --resume --json
    """

    async def run(client: Client) -> FleetLoad:
        if suspend is not None:
            await client.suspend_rebalancing(suspended=suspend)
        return await client.load()

    load = with_client(shell, run)
    shares = {one.worker_id: load.of_app(one.worker_id).shares().get(one.worker_id) for one in load.workers}
    document = {
        "suspended": load.suspended,
        "workers": [{**asdict(worker), "share": shares.get(worker.worker_id)} for worker in load.workers],
    }

    def show() -> None:
        columns = ("WORKER", "SESSIONS", "SHARE", "CAPACITY", "RUNS FOR")
        rows = [
            (one.worker_id, one.sessions, None if share is None else f"{share:.1f}", one.capacity, seconds(one.age))
            for one in load.workers
            for share in [shares.get(one.worker_id)]
        ]
        table(columns, rows, empty="no workers")
        click.echo(f"rebalancing: {'suspended' if load.suspended else 'on'}")

    shell.show(document, show)


@command()
@click.option("--instances", type=LIMIT, help="Instances in the database, ended ones included; `none`: no limit.")
@click.option("--unread-events", type=LIMIT, help="Events of one instance that it has not read.")
@click.option("--instance-bytes", type=LIMIT, help="Bytes of one instance: its history and what waits for it.")
def quotas(shell: Shell, **wanted: int | None) -> None:
    """Show the limits of the database, which are off by default, or set the named ones.

    They apply to all clients and workers. A call that exceeds one raises an error and writes nothing.
    Sub-orchestrations are counted and not refused, nor is a request to cancel.

    Examples:
      affinity quotas
      affinity quotas --instances 100000 --unread-events 500
      affinity quotas --instance-bytes 67108864
      affinity quotas --instances none
    """
    changed = {name: limit or None for name, limit in wanted.items() if limit is not None}

    async def run(client: Client) -> Quotas:
        limits = replace(await client.quotas(), **changed)
        if changed:
            await client.set_quotas(limits)
        return limits

    document = asdict(with_client(shell, run))
    rows = [(name.replace("_", " "), limit or "none") for name, limit in document.items()]
    shell.show(document, lambda: pairs(rows))
