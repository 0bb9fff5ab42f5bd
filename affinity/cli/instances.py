"""The commands that act on instances: start, raise, ask, wait, cancel, resume, reset, delete, prune."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, TypeAlias, get_args

import anyio
import click

from affinity.cli.arguments import DURATION, FORCE, INSTANT, JSON, LABEL, labels_of
from affinity.cli.filters import name_conditions, of_status, selected
from affinity.cli.help import FAILED, REFUSED, UNKNOWN
from affinity.cli.output import compact, counted, printable, table
from affinity.cli.shell import Shell, command, confirm, remove, with_client, with_workers
from affinity.client import EndedStatus, IfEnded, IfRunning, Instance
from affinity.composed.client import Client
from affinity.errors import InvalidInput, UnknownInstance, details_document
from affinity.orchestration import Event, EventValue
from affinity.provider import migrate
from affinity.provider.contract import FINISHED, InstanceStatus, Resumption

_SAME: Final = object()
"""Instead of an input: the same one."""

_ENDINGS: Final = {"failed": "failed", "cancelled": "was cancelled"}
_PRESENT: Final[dict[str | None, str]] = {
    "running": "",
    "replaced": ", waits to begin, and has this input now",
    "queued": ", and runs again when it has ended",
    "ended": ", and has ended (--if-ended restart starts it again)",
}
_HINT: Final = "; these stay removed, and the command may be started again"

_Removed: TypeAlias = dict[str, int]
"""The numbers of a report, by what they count."""


@command()
@click.argument("name")
@click.option("--input", "value", type=JSON, default=None, help="Its input: JSON text, @FILE, or - for stdin.")
@click.option("--id", "instance_id", help="Instance id; makes the command idempotent  [default: random]")
@click.option("--version", help="Version of the orchestration  [default: the latest that the worker registers]")
@click.option("--for-session", help="Session that it works for, as logs and lists show it.")
@click.option("--label", "labels", multiple=True, type=LABEL, help="By which it is found; may be repeated.")
@click.option(
    "--if-ended",
    type=click.Choice(get_args(IfEnded)),
    help="With --id, when that instance has ended: leave it; restart it; fail  [default: return]",
)
@click.option("--delay", type=DURATION, help="Begin it after this time: 90s, 15m, 12h, 30d, 4w.")
@click.option("--at", type=INSTANT, help="Begin it at this time: 2026-07-31T12:00:00+02:00.")
@click.option("--priority", type=int, default=0, help="Before others that could begin: 0 to 1000.")
@click.option("--debounce", type=DURATION, help="With --id: begin it when no other start came for so long: 5s.")
@click.option("--max-wait", type=DURATION, help="With --debounce: but so long after the first one at the latest.")
@click.option(
    "--if-running",
    type=click.Choice(get_args(IfRunning)),
    help="With --id, when that instance has not ended: leave it; run once more after it; cancel it and run then; fail"
    "  [default: join]",
)
@FORCE
@click.option("--wait", "waits", is_flag=True, help="Wait for the result and print it, as `wait` does.")
@click.option("--timeout", type=float, help="Seconds to wait  [default: forever]")
def start(
    shell: Shell,
    *,
    name: str,
    value: Any,
    instance_id: str | None,
    version: str | None,
    for_session: str | None,
    labels: tuple[tuple[str, str], ...],
    if_ended: IfEnded | None,
    debounce: float | None,
    max_wait: float | None,
    if_running: IfRunning | None,
    delay: float | None,
    at: datetime | None,
    priority: int,
    force: bool,
    waits: bool,
    timeout: float | None,
) -> None:
    """Start the orchestration NAME and print the id of its instance.

    When --id names an instance of the same orchestration, nothing is started and the exit code is 0 too, unless it has
    ended and --if-ended says otherwise. An SQLite database that does not exist yet is created.

    Exit code 7 when workers are alive and none has code for NAME, 2 when none takes such an input; --force starts it
    all the same.

    Examples:
      affinity start conversation
      affinity start conversation --id chat-17 --input '{"topic": "tea"}' --wait
      affinity start nightly --id nightly --if-ended restart
      affinity start reminder --delay 2h --priority 5
      affinity start refund --label tenant=acme --label tier=gold
      affinity start import_catalogue --input @catalogue.json --version 2.0.0
    """
    if timeout is not None and not waits:
        raise click.UsageError("--timeout is only meaningful with --wait")

    async def run(client: Client) -> None:
        if not force:
            await client.check_registered(name, version=version)
        options: dict[str, Any] = {"version": version, "for_session": for_session, "if_ended": if_ended, "force": force}
        options |= {"delay": delay or 0.0, "at": at, "priority": priority}
        options |= {"labels": labels_of(labels)}
        options |= {"debounce": debounce, "max_wait": max_wait, "if_running": if_running}
        handle = await client.start(name, value, instance_id=instance_id, **options)
        if handle.outcome in _PRESENT:
            click.echo(f"instance {handle.instance_id!r} was there already{_PRESENT[handle.outcome]}", err=True)
        if waits:
            await _report_end(shell, client, handle.instance_id, timeout, outcome=handle.outcome)
        else:
            document = {"instance_id": handle.instance_id, "outcome": handle.outcome}
            shell.show(document, lambda: click.echo(handle.instance_id))

    if shell.url.startswith("sqlite:"):
        anyio.run(migrate, shell.url)
    with_client(shell, run)


@command("raise")
@click.argument("instance_id", metavar="ID")
@click.argument("event")
@click.option("--data", type=JSON, default=None, help="What it carries: JSON text, @FILE, or - for stdin.")
@click.option("--key", help="Of the events with one key the instance gets one: the command may be repeated.")
@FORCE
def raise_event(shell: Shell, *, instance_id: str, event: str, data: Any, key: str | None, force: bool) -> None:
    """Send the event EVENT to the instance ID; it is buffered until the orchestration waits for one of that name.

    Exit code 7 when the orchestration never waits for EVENT, 2 when it waits for other data, as far as its code shows
    that; --force sends it all the same.

    Examples:
      affinity raise chat-17 user_message --data '{"text": "hello"}'
      affinity raise chat-17 user_message --data '{"text": "hello"}' --key m-17
    """

    async def run(client: Client) -> None:
        if not force:
            await client.check_awaited(instance_id, event)
        await client.raise_event(instance_id, event, data, idempotency_key=key, force=force)

    with_client(shell, run)
    shell.show({"instance_id": instance_id, "event": event, "delivered": True}, lambda: None)


@command()
@click.argument("instance_id", metavar="ID")
@click.argument("event")
@click.option("--data", type=JSON, default=None, help="What it carries: JSON text, @FILE, or - for stdin.")
@click.option("--key", help="The same key again gives the same reply  [default: random]")
@click.option("--start", "name", help="Start this orchestration if there is no instance ID.")
@click.option("--input", "value", type=JSON, default=None, help="With --start: its input, as --data.")
@FORCE
@click.option("--timeout", type=float, help="Seconds to wait  [default: forever]")
def ask(
    shell: Shell,
    *,
    instance_id: str,
    event: str,
    data: Any,
    key: str | None,
    name: str | None,
    value: Any,
    force: bool,
    timeout: float | None,
) -> None:
    """Send the event EVENT to the instance ID, and print the reply of its orchestration as JSON.

    Exit code 1 when the instance ends without a reply, 4 when the time runs out; with --key the command may then be
    repeated. 2 and 7 as for `raise` and `start`.

    Examples:
      affinity ask chat-17 user_message --data '{"text": "hello"}' --key m-17 --timeout 60
      affinity ask chat-17 user_message --data '{"text": "hello"}' --start conversation --input '{"topic": "tea"}'
    """
    if value is not None and name is None:
        raise click.UsageError("--input is only meaningful with --start")
    sent: EventValue[Any] = Event(event)(data)
    start = None if name is None else (name, value)

    async def run(client: Client) -> Any:
        if name is not None and not force:
            await client.check_registered(name)
        return await client.ask(instance_id, sent, idempotency_key=key, start=start, timeout=timeout, force=force)

    reply = with_client(shell, run)
    shell.show({"instance_id": instance_id, "event": event, "reply": reply}, lambda: click.echo(compact(reply)))


_NOT_ENDED: Final[tuple[InstanceStatus, ...]] = ("pending", "running", "suspended")


@command()
@click.argument("instance_id", metavar="[ID]", required=False)
@click.option("--reason", default="cancelled from the command line", show_default=True)
@selected
@click.option("--yes", is_flag=True, help="Without ID: do not ask.")
def cancel(shell: Shell, instance_id: str | None, reason: str, *, yes: bool, **where: Any) -> None:
    """Ask the instance ID to end, after its cleanup: see `affinity wait`.

    Without ID, all instances that fit and have not ended. It says how many these are, and asks, unless --yes.

    Examples:
      affinity cancel chat-17
      affinity cancel --label tenant=acme --name conversation --yes
    """
    chosen = any(value is not None for value in where.values())
    if chosen == (instance_id is not None) or (yes and not chosen):
        raise click.UsageError("give an ID, or options that choose instances: --label, --name, ...")
    if instance_id is not None:
        with_client(shell, lambda client: client.cancel(instance_id, reason))
        shell.show({"instance_id": instance_id, "cancel_requested": True}, lambda: None)
        return
    if not yes:
        counts = with_client(shell, lambda client: client.count_instances(**where, status=_NOT_ENDED))
        confirm(f"Cancel {counted(sum(counts.values()), 'instance')}?")
    asked = with_client(shell, lambda client: client.cancel_instances(**where, cancel_reason=reason))
    shell.show({"cancel_requested": asked}, lambda: click.echo(f"{counted(asked, 'instance')} asked to end", err=True))


@command()
@click.argument("instance_ids", metavar="[ID]...", nargs=-1)
@click.option("--worker", "workers", metavar="WORKER", multiple=True, help="Instead: let this worker take work again.")
@click.option("--all", "everything", is_flag=True, help="All suspended instances.")
@click.option("--reason", help="Only instances that were suspended for this: Nondeterminism, ….")
@selected
def resume(
    shell: Shell, instance_ids: tuple[str, ...], workers: tuple[str, ...], everything: bool, **where: Any
) -> None:
    """Resume the suspended instances ID…: workers repeat the step at which they were suspended.

    `affinity list --status suspended` lists them, and `affinity show ID` shows the reason. Exit code 6 when one of them
    is not suspended, 5 when there is none of an id; the others are resumed.

    Examples:
      affinity resume chat-17 chat-18
      affinity resume --all --reason Nondeterminism
      affinity resume --label tenant=acme
      affinity resume --worker worker-3        # after `affinity drain worker-3`
    """
    chosen = everything or any(value is not None for value in where.values())
    if workers:
        if instance_ids or chosen:
            raise click.UsageError("--worker resumes workers: it contradicts ids, --all and conditions")
        with_workers(shell, workers, Client.resume_worker, "resumed")
        return
    if chosen == bool(instance_ids):
        raise click.UsageError("give ids, or --all, or conditions: --reason, --label, ...")

    async def run(client: Client) -> dict[str, Resumption]:
        found = client.list_instances(**where, status=["suspended"])
        wanted = [instance.instance_id async for instance in found] if chosen else list(instance_ids)
        return dict(zip(wanted, await client.resume_many(wanted), strict=True))

    outcome = with_client(shell, run)
    shell.show(
        {"instances": outcome},
        lambda: table(("INSTANCE", "OUTCOME"), outcome.items(), empty="no instances are suspended"),
    )
    if not chosen and (refused := {*outcome.values()} - {"resumed"}):
        click.get_current_context().exit(UNKNOWN if "unknown" in refused else REFUSED)


@command()
@click.argument("instance_id", metavar="[ID]", required=False)
@click.option("--input", "value", type=JSON, default=_SAME, help="Another input: JSON text, @FILE, or - for stdin.")
@click.option("--id", "new_id", help="Id of the new instance; makes the command idempotent  [default: random]")
@of_status
@selected
@click.option("--dry-run", is_flag=True, help="Without ID: only say how many instances fit.")
@click.option("--yes", is_flag=True, help="Without ID: do not ask.")
@FORCE
def rerun(
    shell: Shell,
    instance_id: str | None,
    *,
    value: Any,
    new_id: str | None,
    status: tuple[InstanceStatus, ...],
    dry_run: bool,
    yes: bool,
    force: bool,
    **where: Any,
) -> None:
    """Start the orchestration of the instance ID again, as a new instance, and print its id.

    It has the input, session and labels of ID, which stays as it is. Without ID, all instances that fit and have ended
    are run again, each with its own input; it says how many these are, and asks, unless --yes. Those of conversations
    are left out.

    Examples:
      affinity rerun order-17
      affinity rerun order-17 --input '{"amount": 5}'
      affinity rerun --status failed --name checkout --since 2026-07-31 --dry-run
    """
    chosen = bool(status) or any(each is not None for each in where.values())
    if chosen == (instance_id is not None) or ((yes or dry_run) and not chosen):
        raise click.UsageError("give an ID, or options that choose instances: --status, --label, --name, ...")
    if instance_id is not None:
        given = {} if value is _SAME else {"input": value}
        new_id = new_id or uuid.uuid4().hex
        handle = with_client(shell, lambda client: client.rerun(instance_id, new_id=new_id, force=force, **given))
        document = {"instance_id": handle.instance_id, "of": instance_id, "outcome": handle.outcome}
        shell.show(document, lambda: click.echo(handle.instance_id))
        return
    if value is not _SAME or new_id is not None:
        raise click.UsageError("--input and --id are for one ID")
    if not FINISHED.issuperset(status):
        raise click.UsageError("--status: only instances that have ended are run again: completed, failed, cancelled")
    where = {**name_conditions(is_conversation=False), **where, "status": status or sorted(FINISHED)}
    if dry_run or not yes:
        counts = with_client(shell, lambda client: client.count_instances(**where))
        if dry_run:
            shell.show(
                {"instances": sum(counts.values())}, lambda: click.echo(counted(sum(counts.values()), "instance"))
            )
            return
        confirm(f"Run {counted(sum(counts.values()), 'instance')} again?")

    async def run(client: Client) -> list[dict[str, str]]:
        ids = [instance.instance_id async for instance in client.list_instances(**where)]
        return [{"of": one, "instance_id": await _run_again(client, one, force=force)} for one in ids]

    done = with_client(shell, run)
    shell.show({"instances": done}, lambda: table(("OF", "INSTANCE"), [tuple(one.values()) for one in done], empty=""))


async def _run_again(client: Client, instance_id: str, *, force: bool) -> str:
    """Return the id of the new instance; empty, with a line on stderr, if the input is refused or gone."""
    try:
        return (await client.rerun(instance_id, new_id=uuid.uuid4().hex, force=force)).instance_id
    except (InvalidInput, UnknownInstance) as error:
        click.echo(f"{printable(instance_id)}: {printable(str(error))}", err=True)
        return ""


@command()
@click.argument("instance_id", metavar="ID")
@click.option("--to-event", type=click.IntRange(min=1), required=True, help="The last event that counts.")
def reset(shell: Shell, instance_id: str, to_event: int) -> None:
    """Open the instance ID again, also when it has failed, as it was after an event of its history.

    `affinity history ID` numbers the events. Later ones stay readable: `affinity history ID --execution N`.
    Activities that were outstanding run again. Session state is not rewound, nor is what activities have done
    elsewhere.

    Example:
      affinity reset chat-17 --to-event 41
    """
    execution = with_client(shell, lambda client: client.reset(instance_id, to_event=to_event))
    document = {"instance_id": instance_id, "execution_id": execution}
    shell.show(document, lambda: click.echo(f"execution {execution}"))


@command()
@click.argument("instance_id", metavar="ID")
@click.option("--force", is_flag=True, help="Also when it is still running.")
@click.option("--keep-children", is_flag=True, help="Leave its sub-orchestrations.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(shell: Shell, instance_id: str, force: bool, keep_children: bool, *, yes: bool) -> None:
    """Remove the finished instance ID with its history, its queued work, and its sub-orchestrations."""
    if not yes:
        below = "" if keep_children else ", and its sub-orchestrations"
        confirm(f"Remove the instance {printable(instance_id)!r} with its history and queued work{below}?")
    with_client(shell, lambda client: client.delete(instance_id, force=force, keep_children=keep_children))
    shell.show({"instance_id": instance_id, "deleted": True}, lambda: None)


@command()
@click.argument("instance_id", metavar="ID")
@click.option("--timeout", type=float, help="Seconds  [default: forever]")
def wait(shell: Shell, instance_id: str, timeout: float | None) -> None:
    """Wait until the instance ID has ended, and print its result as JSON.

    Exit code 1 when it failed or was cancelled, 4 when the time runs out; the instance continues.

    Example:
      affinity wait chat-17 --timeout 60 && echo done
    """
    with_client(shell, lambda client: _report_end(shell, client, instance_id, timeout))


async def _report_end(shell: Shell, client: Client, instance_id: str, timeout: float | None, **more: Any) -> None:
    """Print the result of an instance; exit with `FAILED` when it failed or was cancelled."""
    ended = await client.wait_finished(instance_id, timeout)
    document = {"instance_id": instance_id, **more, "status": ended.status}
    if ended.error is None:
        shell.show(document | {"output": ended.output}, lambda: click.echo(compact(ended.output)))
        return
    error = ended.error
    text = f"instance {instance_id!r} {_ENDINGS[ended.status]}: {error.type}: {error.message}"
    known = error._asdict() | error_details(ended)
    shell.show(document | {"error": known}, lambda: click.echo(printable(text), err=True))
    click.get_current_context().exit(FAILED)


def error_details(instance: Instance) -> dict[str, Any]:
    """Category, bases and fields of its error, as far as it has them."""
    return {} if instance.error_details is None else details_document(instance.error_details)


@command()
@click.option("--older-than", type=DURATION, required=True, help="Ended so long ago: 90s, 15m, 12h, 30d, 4w.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(get_args(EndedStatus)),
    help="Only instances that ended like this; may be repeated  [default: completed]",
)
@click.option("--histories", is_flag=True, help="Histories of former executions, in place of instances.")
@click.option("--instance", "instance_id", metavar="ID", help="With --histories: only those of this instance.")
@click.option("--dry-run", is_flag=True, help="Only print how many would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(
    shell: Shell,
    *,
    older_than: float,
    status: tuple[EndedStatus, ...],
    histories: bool,
    instance_id: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove instances that ended long ago, with their histories and sub-orchestrations.

    A sub-orchestration goes with its parent, and a tree stays while something in it has not ended for that long. What
    runs or is suspended is never removed. With --histories the instances stay: removed are the histories of executions
    after which continue_as_new, or a reset, began another one.

    Examples:
      affinity prune --older-than 30d --dry-run
      affinity prune --older-than 30d --status completed --status cancelled --yes
      affinity prune --histories --older-than 7d --yes
      affinity prune --histories --instance chat-17 --older-than 0s --yes
    """
    if histories and status:
        raise click.UsageError("--status is about instances: it contradicts --histories")
    if instance_id is not None and not histories:
        raise click.UsageError("--instance needs --histories; to remove an instance, use affinity delete")
    chosen = status or ("completed",)

    async def work(client: Client, **options: Any) -> _Removed:
        if histories:
            return {
                "histories": await client.prune_histories(older_than=older_than, instance_id=instance_id, **options)
            }
        return asdict(await client.prune(older_than=older_than, status=chosen, **options))

    def question(found: _Removed) -> str:
        return _words(found) if any(found.values()) else ""

    removed = remove(shell, work, question, number=_number, dry_run=dry_run, yes=yes, hint=_HINT)
    shell.show({**removed, "dry_run": dry_run}, lambda: None)
    click.echo(f"{'would remove' if dry_run else 'removed'} {_words(removed)}", err=True)


def _number(removed: _Removed) -> int:
    return removed["histories" if "histories" in removed else "instances"]


def _words(removed: _Removed) -> str:
    if "histories" in removed:
        return counted(removed["histories"], "history", "histories")
    children = removed["instances"] - removed["roots"]
    below = f" and {counted(children, 'sub-orchestration')}" if children else ""
    return f"{counted(removed['roots'], 'instance')}{below}"
