"""The commands on instances: start, raise, wait, show, history, list, cancel, resume, reset, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar, get_args

import anyio
import click

from affinity.cli import shell as sh
from affinity.cli.activities import activity_lines
from affinity.cli.shell import FAILED, Command, JsonText, Shell, command
from affinity.client import Client, HistoryRecord, Instance, Page, PendingActivity
from affinity.limits import MAX_PAGE
from affinity.orchestration.wire import details_document
from affinity.provider import migrate
from affinity.provider.contract import InstanceStatus, Resumption

T = TypeVar("T")

_DEFAULT_LIMIT: Final = 50
_ENDINGS: Final = {"failed": "failed", "cancelled": "was cancelled"}
_EVENT_COLUMNS: Final = ("#", "TIME", "EVENT", "WORKER", "ATTEMPT", "DETAILS")
_COLUMNS: Final = ("INSTANCE", "ORCHESTRATION", "STATUS", "SESSION", "OWNER", "EVENTS", "CREATED", "CUSTOM STATUS")


def with_client(shell: Shell, work: Callable[[Client], Awaitable[T]]) -> T:
    """Open a client, do ``work`` with it, and close it."""

    async def run() -> T:
        async with Client(shell.url) as client:
            return await work(client)

    return anyio.run(run)


# --- start, raise, cancel, delete -------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Start an orchestration.")
@click.argument("name")
@click.option("--input", "value", type=JsonText(), default=None, help="Its input: JSON text, @FILE, or - for stdin.")
@click.option("--id", "instance_id", help="Instance id; makes the command idempotent  [default: random]")
@click.option("--version", help="Version of the orchestration  [default: the latest that the worker knows]")
@click.option("--session", "session_id", help="Session that it works for, as logs and listings show it.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the result and print it, as `wait` does.")
@click.option("--timeout", type=float, help="Seconds to wait  [default: for ever]")
@command
def start(
    shell: Shell,
    *,
    name: str,
    value: Any,
    instance_id: str | None,
    version: str | None,
    session_id: str | None,
    waits: bool,
    timeout: float | None,
) -> None:
    """Start the orchestration NAME and print the id of its instance.

    When --id names an instance of the same orchestration, nothing is started and the exit code is 0 too. An SQLite
    database that does not exist yet is created.

    Examples:
      affinity start conversation
      affinity start conversation --id chat-17 --input '{"topic": "tea"}' --wait
      affinity start import_catalogue --input @catalogue.json --version 2.0.0
    """
    if timeout is not None and not waits:
        raise click.UsageError("--timeout is only meaningful with --wait")

    async def run() -> None:
        if shell.url.startswith("sqlite:"):
            await migrate(shell.url)
        async with Client(shell.url) as client:
            handle = await client.start(name, value, instance_id=instance_id, version=version, session_id=session_id)
            if not handle.created:
                click.echo(f"instance {handle.instance_id!r} was there already", err=True)
            if waits:
                await _report_end(shell, client, handle.instance_id, timeout, created=handle.created)
            else:
                document = {"instance_id": handle.instance_id, "created": handle.created}
                shell.show(document, lambda: click.echo(handle.instance_id))

    anyio.run(run)


@click.command("raise", cls=Command, short_help="Send an event to an instance.")
@click.argument("instance_id", metavar="ID")
@click.argument("event")
@click.option("--data", type=JsonText(), default=None, help="What it carries: JSON text, @FILE, or - for stdin.")
@command
def raise_event(shell: Shell, instance_id: str, event: str, data: Any) -> None:
    """Send the event EVENT to the instance ID; it is buffered until the orchestration waits for one of that name.

    Example:
      affinity raise chat-17 user_message --data '{"text": "hello"}'
    """
    with_client(shell, lambda client: client.raise_event(instance_id, event, data))
    shell.show({"instance_id": instance_id, "event": event, "delivered": True}, lambda: None)


@click.command(cls=Command, short_help="Ask an instance to end.")
@click.argument("instance_id", metavar="ID")
@click.option("--reason", default="cancelled from the command line", show_default=True)
@command
def cancel(shell: Shell, instance_id: str, reason: str) -> None:
    """Ask the instance ID to end. It may take its time to clean up: see `affinity wait`."""
    with_client(shell, lambda client: client.cancel(instance_id, reason))
    shell.show({"instance_id": instance_id, "cancel_requested": True}, lambda: None)


@click.command(cls=Command, short_help="Let suspended instances go on.")
@click.argument("instance_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All suspended instances.")
@click.option("--reason", help="With --all, only those that were suspended for this: Nondeterminism, ….")
@command
def resume(shell: Shell, instance_ids: tuple[str, ...], everything: bool, reason: str | None) -> None:
    """Let the suspended instances ID… go on: workers try again what they were suspended at.

    `affinity list --status suspended` lists them, and `affinity show ID` says why. Exit code 1 when one of them is not
    suspended; the others are resumed.

    Examples:
      affinity resume chat-17 chat-18
      affinity resume --all --reason Nondeterminism
    """
    if everything == bool(instance_ids) or (reason is not None and not everything):
        raise click.UsageError("give ids, or --all, which --reason may narrow")

    async def run(client: Client) -> dict[str, Resumption]:
        found = client.list_instances(status=["suspended"], reason=reason)
        wanted = [instance.instance_id async for instance in found] if everything else list(instance_ids)
        return dict(zip(wanted, await client.resume_many(wanted), strict=True))

    outcome = with_client(shell, run)
    shell.show(
        {"instances": outcome},
        lambda: sh.table(("INSTANCE", "OUTCOME"), outcome.items(), empty="no instances are suspended"),
    )
    if not everything and set(outcome.values()) != {"resumed"}:
        click.get_current_context().exit(FAILED)


@click.command(cls=Command, short_help="Open an instance again at an earlier event.")
@click.argument("instance_id", metavar="ID")
@click.option("--to-event", type=click.IntRange(min=1), required=True, help="The last event that counts.")
@command
def reset(shell: Shell, instance_id: str, to_event: int) -> None:
    """Open the instance ID again, also when it has failed, as it was behind an event of its history.

    `affinity history ID` numbers the events. Later ones stay readable: `affinity history ID --execution N`.
    Activities that were outstanding run again. Session state is not rewound, nor is what activities have done
    elsewhere.

    Example:
      affinity reset chat-17 --to-event 41
    """
    execution = with_client(shell, lambda client: client.reset(instance_id, to_event=to_event))
    document = {"instance_id": instance_id, "execution_id": execution}
    shell.show(document, lambda: click.echo(f"execution {execution}"))


@click.command(cls=Command, short_help="Remove an instance and its history.")
@click.argument("instance_id", metavar="ID")
@click.option("--force", is_flag=True, help="Also when it is still running.")
@click.option("--keep-children", is_flag=True, help="Leave its sub-orchestrations.")
@command
def delete(shell: Shell, instance_id: str, force: bool, keep_children: bool) -> None:
    """Remove the finished instance ID with its history, its queued work, and its sub-orchestrations."""
    with_client(shell, lambda client: client.delete(instance_id, force=force, keep_children=keep_children))
    shell.show({"instance_id": instance_id, "deleted": True}, lambda: None)


# --- wait -------------------------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Wait for an instance and print its result.")
@click.argument("instance_id", metavar="ID")
@click.option("--timeout", type=float, help="Seconds  [default: for ever]")
@command
def wait(shell: Shell, instance_id: str, timeout: float | None) -> None:
    """Wait until the instance ID has ended, and print its result as JSON.

    Exit code 1 when it failed or was cancelled, 4 when the time runs out; the instance goes on.

    Example:
      affinity wait chat-17 --timeout 60 && echo done
    """
    with_client(shell, lambda client: _report_end(shell, client, instance_id, timeout))


async def _report_end(shell: Shell, client: Client, instance_id: str, timeout: float | None, **more: Any) -> None:
    """Print how an instance ended; exit with `FAILED` when it did not end well."""
    ended = await client.wait_finished(instance_id, timeout)
    document = {"instance_id": instance_id, **more, "status": ended.status}
    if ended.error is None:
        shell.show(document | {"output": ended.output}, lambda: click.echo(sh.compact(ended.output)))
        return
    error = ended.error
    text = f"instance {instance_id!r} {_ENDINGS[ended.status]}: {error.type}: {error.message}"
    known = error._asdict() | _details_document(ended)
    shell.show(document | {"error": known}, lambda: click.echo(sh.printable(text), err=True))
    click.get_current_context().exit(FAILED)


# --- show, history, list ----------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Show how an instance is.")
@click.argument("instance_id", metavar="ID")
@command
def show(shell: Shell, instance_id: str) -> None:
    """Show the state of the instance ID: status, result or error, custom status, owner.

    While it goes on, also its activities (which run, which wait, which are tried again, when, and after which error),
    and events that do not fit what it waits for.
    """

    async def read(client: Client) -> tuple[Instance, Sequence[PendingActivity], Sequence[HistoryRecord]]:
        instance = await client.status(instance_id)
        if instance.finished:
            return instance, (), ()
        events = client.iter_history(instance_id, execution_id=instance.execution_id)
        refused = [event async for event in events if event.type == "event_refused"]
        return instance, await client.activities(instance_id), refused

    instance, activities, refused = with_client(shell, read)
    document = {
        **asdict(instance),
        "error_details": _details_document(instance),
        "activities": activities,
        "refused_events": refused,
    }
    shell.show(document, lambda: sh.pairs([*_details(instance), *activity_lines(activities), *map(_refusal, refused)]))


def _details_document(instance: Instance) -> dict[str, Any]:
    """Category, bases and fields of its error, as far as it has them."""
    return {} if instance.error_details is None else details_document(instance.error_details)


def _refusal(event: HistoryRecord) -> tuple[str, object]:
    return "refused event", f"{event.fields['name']}: {event.fields['message']}"


def _details(instance: Instance) -> list[tuple[str, object]]:
    error, why = instance.error, instance.suspension
    return [
        ("instance", instance.instance_id),
        ("orchestration", instance.name),
        ("version", instance.version),
        ("status", instance.status),
        ("custom status", None if instance.custom_status is None else sh.compact(instance.custom_status)),
        ("output", sh.compact(instance.output) if instance.status == "completed" else None),
        ("error", None if error is None else f"{error.type}: {error.message}"),
        ("suspended for", None if why is None else f"{why.error_type}: {why.message}"),
        ("suspended at", None if why is None else why.at),
        ("suspended by", None if why is None else f"{why.worker_id}, code {why.code}"),
        ("parent", instance.parent_id),
        ("session", instance.session_id),
        ("owner", instance.owner),
        ("execution", instance.execution_id),
        ("events", instance.event_count),
        ("created", instance.created_at),
        ("updated", instance.updated_at),
    ]


@click.command(cls=Command, short_help="Show what happened in an instance.")
@click.argument("instance_id", metavar="ID")
@click.option("--execution", type=click.IntRange(min=1), help="Which, after continue_as_new  [default: the last]")
@command
def history(shell: Shell, instance_id: str, execution: int | None) -> None:
    """Show the events of the instance ID, oldest first: what it asked for, what came of it, what it received.

    With the time and the worker of each, and the attempt that gave a result, if it was not the first.
    """

    async def read(client: Client) -> Sequence[Any]:
        events = client.iter_history(instance_id, execution_id=execution)
        return [event if shell.as_json else _event_row(event) async for event in events]

    found = with_client(shell, read)
    shell.show(
        {"instance_id": instance_id, "events": found},
        lambda: sh.table(_EVENT_COLUMNS, found, empty="no events"),
    )


def _event_row(event: HistoryRecord) -> tuple[object, ...]:
    """As short as it is shown: all rows are in memory together."""
    run = event.attempt if event.attempt != 1 else None
    details = sh.cell(sh.compact(dict(event.fields)))
    return event.event_id, event.recorded_at, event.type, event.worker_id, run, details


@click.command("list", cls=Command, short_help="List instances, newest first.")
@click.option(
    "--status", multiple=True, type=click.Choice(get_args(InstanceStatus)), help="Only these; may be repeated."
)
@click.option("--name", help="Only of this orchestration.")
@click.option("--prefix", help="Only ids that start with this.")
@click.option("--parent", help="Only sub-orchestrations of this instance.")
@click.option("--session", "session_id", help="Only those that were started with this session, and their children.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), help=f"Instances on a page  [default: {_DEFAULT_LIMIT}]")
@click.option("--after", metavar="CURSOR", help="The page after this cursor, which the page before ended with.")
@click.option("--all", "everything", is_flag=True, help="All pages.")
@command
def list_instances(
    shell: Shell,
    *,
    status: tuple[InstanceStatus, ...],
    name: str | None,
    prefix: str | None,
    parent: str | None,
    session_id: str | None,
    limit: int | None,
    after: str | None,
    everything: bool,
) -> None:
    """List instances, newest first. An empty list is an answer too: exit code 0.

    Examples:
      affinity list --status failed --name conversation
      affinity list --prefix chat- --all --json | jq -r '.instances[].instance_id'
    """
    if everything and (limit is not None or after is not None):
        raise click.UsageError("--all contradicts --limit and --after")

    async def read(client: Client) -> Page:
        if everything:
            found = client.list_instances(
                status=status, name=name, prefix=prefix, parent_id=parent, session_id=session_id
            )
            return Page(items=[instance async for instance in found], next=None)
        return await client.list_page(
            status=status,
            name=name,
            prefix=prefix,
            parent_id=parent,
            session_id=session_id,
            after=after,
            limit=limit or _DEFAULT_LIMIT,
        )

    page = with_client(shell, read)
    document = {"instances": page.items, "next": page.next}
    shell.show(document, lambda: sh.table(_COLUMNS, map(_row, page.items), empty="no instances"))
    if page.next is not None and not shell.as_json:
        click.echo(f"more: --after '{page.next}'", err=True)


def _row(instance: Instance) -> tuple[object, ...]:
    status = None if instance.custom_status is None else sh.compact(instance.custom_status)
    return (
        instance.instance_id,
        instance.name if instance.version is None else f"{instance.name}@{instance.version}",
        instance.status,
        instance.session_id,
        instance.owner,
        instance.event_count,
        instance.created_at,
        status,
    )
