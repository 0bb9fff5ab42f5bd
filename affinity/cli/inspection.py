"""The commands that show instances: show, history, list, executions, tree, stats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from functools import partial
from typing import Any, Final, NamedTuple, get_args

import click

from affinity.cli.files import written
from affinity.cli.filters import labels_line, of_status, selected
from affinity.cli.instances import error_details
from affinity.cli.output import cell, clock, compact, counted, pairs, printable, relative, seconds, table
from affinity.cli.progress import Progress
from affinity.cli.shell import PageOptions, Shell, command, paged, with_client
from affinity.cli.watching import look, watched
from affinity.client import Activity, HistoryRecord, Instance, TreeNode, WorkStatistics
from affinity.composed.client import Client
from affinity.errors import Explanation, PayloadUnreadable
from affinity.limits import MAX_COUNT, MAX_PAGE
from affinity.provider.contract import FailureRecord, InstanceSize, QueuePart, WorkItemInfo

_MAX_LINES: Final = 20
"""Lines at most; ``--json`` shows more."""

_ENCODED: Final = '"encoded_in":"'
"""In the first part of an export whose payloads are encoded; in a value the quotes have backslashes."""

_EVENT_COLUMNS: Final = ("#", "TIME", "EVENT", "WORKER", "ATTEMPT", "DETAILS")
_COLUMNS: Final = (
    "INSTANCE",
    "ORCHESTRATION",
    "STATUS",
    "SESSION",
    "OWNER",
    "EVENTS",
    "CREATED",
    "LABELS",
    "CUSTOM STATUS",
)


class _Shown(NamedTuple):
    """An instance, as `show` shows it."""

    instance: Instance
    values: Mapping[str, Any]
    size: InstanceSize
    activities: Sequence[Activity] = ()
    refused: Sequence[HistoryRecord] = ()
    waits_for: Explanation | None = None
    failed_attempts: Sequence[FailureRecord] = ()


@command()
@click.argument("instance_id", metavar="ID")
@click.option("--stack", is_flag=True, help="Also the stacks of its error and of failed attempts. (--json has them.)")
@watched(", until it has ended or Ctrl-C")
def show(shell: Shell, instance_id: str, *, stack: bool, watch: bool) -> None:
    """Show the state of the instance ID: status, result or error, custom status, values, owner, size.

    Until it ends, also the reason why it waits, in one sentence; its activities: running, waiting, or retried, when and
    after which error; and events that do not fit its waits. Also the last failed attempts of its activities. With
    --stack, also where these errors, and the error of a failed instance, were raised.
    """

    async def read(client: Client) -> _Shown:
        about = await client.status(instance_id), await _values(client, instance_id), await client.measure(instance_id)
        failed = await client.failed_attempts(instance_id, execution_id=about[0].execution_id)
        if about[0].finished:
            return _Shown(*about, failed_attempts=failed)
        activities, refused = await client.activities_and_refusals(instance_id)
        shown = [each for each in activities if not each.finished or each.status == "ended"]
        return _Shown(*about, shown, refused, await client.explain(instance_id), failed)

    text = partial(_show_instance, with_stack=stack)
    look(shell, read, _instance_document, text, watch=watch, is_over=lambda found: found.instance.finished)


def _instance_document(found: _Shown) -> dict[str, Any]:
    return {
        **asdict(found.instance),
        "error_details": error_details(found.instance),
        "values": found.values,
        "size": asdict(found.size),
        "activities": found.activities,
        "refused_events": found.refused,
        "waits_for": found.waits_for,
        "failed_attempts": found.failed_attempts,
    }


def _show_instance(found: _Shown, *, with_stack: bool) -> None:
    lines = [
        *_details(found.instance),
        *_sizes(found.size),
        *[(f"value {key}", compact(value)) for key, value in found.values.items()],
        ("waits for", None if found.waits_for is None else found.waits_for.sentence),
        *_activity_lines(found.activities),
        *map(_refusal, found.refused),
        *_failed_lines(found.failed_attempts),
    ]
    pairs(lines)
    if with_stack:
        for one in found.failed_attempts[-_MAX_LINES:]:
            if one.stack is not None:
                click.echo(f"\nattempt {one.attempt} of {one.name}:\n{printable(one.stack)}")
        click.echo("\n" + (printable(found.instance.error_stack) or "no stack is recorded"))


def _sizes(size: InstanceSize) -> list[tuple[str, object]]:
    kept = f"{counted(size.events, 'event')} of {counted(size.executions, 'execution')}, {size.history_bytes:,} bytes"
    queued = [(size.messages, "message", size.message_bytes), (size.work_items, "work item", size.work_item_bytes)]
    return [
        ("history", kept),
        *(("queue", f"{counted(number, what)}, {number_of:,} bytes") for number, what, number_of in queued if number),
    ]


def _failed_lines(failed: Sequence[FailureRecord]) -> list[tuple[str, object]]:
    """Failed attempts as lines, the last ones."""
    lines: list[tuple[str, object]] = []
    if len(failed) > _MAX_LINES:
        lines.append(("failed attempts", f"{len(failed) - _MAX_LINES} earlier ones: see --json"))
    for one in failed[-_MAX_LINES:]:
        text = f"{one.name}, attempt {one.attempt}, {relative(one.failed_at)}: {one.error}"
        lines.append((f"failed attempt of {one.activity_id}", text))
    return lines


def _refusal(event: HistoryRecord) -> tuple[str, object]:
    return "refused event", f"{event.fields['name']}: {event.fields['message']}"


def _details(instance: Instance) -> list[tuple[str, object]]:
    error, why = instance.error, instance.suspension
    return [
        ("instance", instance.instance_id),
        ("orchestration", instance.name),
        ("version", instance.version),
        ("status", instance.status),
        ("custom status", None if instance.custom_status is None else compact(instance.custom_status)),
        ("output", compact(instance.output) if instance.status == "completed" else None),
        ("error", None if error is None else f"{error.type}: {error.message}"),
        ("suspended for", None if why is None else f"{why.error_type}: {why.message}"),
        ("suspended at", None if why is None else why.at),
        ("suspended by", None if why is None else f"{why.worker_id}, code {why.code}"),
        ("parent", instance.parent_id),
        ("session", instance.session_id),
        ("labels", labels_line(instance.labels) or None),
        ("owner", instance.owner),
        ("execution", instance.execution_id),
        ("events", instance.event_count),
        ("created", instance.created_at),
        ("begins", instance.starts_at),
        ("next run", "when it has ended" if instance.has_next else None),
        ("updated", instance.updated_at),
    ]


@command()
@click.argument("instance_id", metavar="ID")
@click.option("--execution", type=click.IntRange(min=1), help="Which, after continue_as_new  [default: the last]")
@click.option("--export", "output", metavar="FILE", help="Write all executions to FILE, for `affinity replay`.")
@click.option("--decode", is_flag=True, help="With --export: write payloads in the clear that are stored encrypted.")
def history(shell: Shell, instance_id: str, *, execution: int | None, output: str | None, decode: bool) -> None:
    """Show the events of the instance ID, oldest first: scheduled work, results, received events.

    With the time and the worker of each, and the attempt that gave a result, if it was not the first.

    --export writes a JSON document that `affinity replay` and `affinity.testing.replay` read: all executions that are
    kept, or the one of --execution. It holds the inputs and results of the instance, and only its owner may read it.
    Where a codec encodes payloads, they are written as they are stored, unless with --decode, and a replay needs the
    codec, in AFFINITY_CODEC.

    Examples:
      affinity history chat-17
      affinity history chat-17 --export chat-17.json && affinity replay support:app chat-17.json
    """
    if output is not None:
        _export(shell, instance_id, execution, output, decode=decode)
        return
    if decode:
        raise click.UsageError("--decode belongs to --export: without it, events are shown as the codec reads them")

    async def read(client: Client) -> Sequence[Any]:
        events = client.history(instance_id, execution_id=execution)
        return [event if shell.as_json else _event_row(event) async for event in events]

    found = with_client(shell, read)
    shell.show({"instance_id": instance_id, "events": found}, lambda: table(_EVENT_COLUMNS, found, empty="no events"))


async def _values(client: Client, instance_id: str) -> Mapping[str, Any]:
    """The values that it has set; without the key, why they cannot be shown."""
    try:
        return await client.values(instance_id)
    except PayloadUnreadable as error:
        return {"*": f"({error})"}


def _export(shell: Shell, instance_id: str, execution: int | None, output: str, *, decode: bool) -> None:
    if shell.as_json and output == "-":
        raise click.UsageError("an export is a JSON document; --json needs a file, and reports its size")

    async def run(client: Client) -> tuple[int, bool]:
        size, is_encoded = 0, False
        with Progress("characters written:") as progress, written(output, private=True) as file:
            async for part in client.iter_export(instance_id, execution_id=execution, decode=decode):
                is_encoded = is_encoded or (not size and _ENCODED in part)
                size += file.write(part)
                progress(size)
        return size, is_encoded

    size, is_encoded = with_client(shell, run)
    holds = "It holds the payloads of the instance, which a replay needs"
    if is_encoded:
        holds += ", encoded, as they are stored: the replay needs AFFINITY_CODEC too"
    if output == "-":
        click.echo(f"{holds}.", err=True)
        return
    text = f"exported to {printable(output)}. {holds}: only its owner may read it (mode 0600)."
    document = {"instance_id": instance_id, "file": output, "characters": size, "holds_payloads": True}
    document["encoded"] = is_encoded
    shell.show(document, lambda: click.echo(text, err=True))


def _event_row(event: HistoryRecord) -> tuple[object, ...]:
    """The row as short as it is shown, since all rows are in memory together."""
    run = event.attempt if event.attempt != 1 else None
    details = cell(compact(dict(event.fields)))
    at = None if event.recorded_at is None else clock(event.recorded_at)
    return event.event_id, at, event.type, event.worker_id, run, details


@command("list")
@of_status
@selected
@click.option(
    "--sort",
    type=click.Choice(["started", "-started", "ended", "-ended", "duration", "-duration"]),
    help="By start, end, or the time between; with - the newest, or longest, first  [default: -started]",
)
@paged("Instances")
def list_instances(shell: Shell, *, page: PageOptions, **where: Any) -> None:
    """List instances, newest first. The exit code of an empty list is 0.

    Sorted by ended or duration, only those that have ended: by duration the longest, or shortest, of the 10,000 that
    ended last.

    Examples:
      affinity list --status failed --name conversation
      affinity list --label tenant=acme --status failed --sort started
      affinity list --status failed --status cancelled --sort -ended --no-conversations
      affinity list --prefix chat- --all --json | jq -r '.instances[].instance_id'
    """
    found = with_client(shell, lambda client: page.read(client.list_instances(**where)))
    document = {"instances": found.items, "next": found.next}
    shell.show(document, lambda: table(_COLUMNS, map(_row, found.items), empty="no instances"))
    shell.show_cursor(found.next)


@command()
@of_status
@selected
def count(shell: Shell, **where: Any) -> None:
    """Count instances by status: all, or those that fit.

    Examples:
      affinity count --label tenant=acme
      affinity count --label tenant=acme --status failed --since 2026-07-01T00:00:00+02:00
    """
    counts = with_client(shell, lambda client: client.count_instances(**where))
    total = sum(counts.values())
    rows = [*counts.items(), ("total", total)]
    shell.show({"instances": dict(counts), "total": total}, lambda: table(("STATUS", "INSTANCES"), rows, empty=""))


def _row(instance: Instance) -> tuple[object, ...]:
    status = None if instance.custom_status is None else compact(instance.custom_status)
    return (
        instance.instance_id,
        instance.name if instance.version is None else f"{instance.name}@{instance.version}",
        instance.status,
        instance.session_id,
        instance.owner,
        instance.event_count,
        instance.created_at,
        labels_line(instance.labels),
        status,
    )


def _activity_lines(activities: Sequence[Activity]) -> list[tuple[str, object]]:
    """Pending activities as lines of `affinity show`; first the ones that wait for their next attempt."""
    ordered = sorted(activities, key=lambda one: one.next_attempt_at is None)
    lines: list[tuple[str, object]] = [(f"activity {one.activity_id}", _activity(one)) for one in ordered[:_MAX_LINES]]
    if len(ordered) > _MAX_LINES:
        lines.append(("activities", f"{len(ordered) - _MAX_LINES} more: see --json"))
    return lines


def _activity(one: Activity) -> str:
    why = "" if one.last_error is None else f", after {one.last_error}"
    if one.status == "ended":
        return f"{one.name}: has ended; its result waits to be recorded by the next turn"
    if one.status == "running":
        return f"{one.name}: attempt {one.attempt} runs on {one.worker_id}{why}"
    if one.next_attempt_at is not None:
        return f"{one.name}: attempt {one.attempt} {printable(one.next_attempt_at)}{why}"
    if one.blocked:
        return f"{one.name}: waits for an ordered activity of session {one.session_id!r} that is before it"
    if one.limited:
        return f"{one.name}: attempt {one.attempt} waits at a limit{why}"
    where = "" if one.tag is None else f" with the tag {one.tag!r}" + ("" if one.has_worker else "; none is alive")
    return f"{one.name}: attempt {one.attempt} waits for a worker{where}{why}"


@command()
@click.argument("instance_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, help="Executions at most.")
@click.option("--before", type=click.IntRange(min=1), help="Only executions before this one.")
def executions(shell: Shell, instance_id: str, limit: int, before: int | None) -> None:
    """Show the executions of the instance ID, newest first: one begins with each continue_as_new, and with each reset.

    `affinity history ID --execution N` shows the events of one. An execution whose history was pruned is not listed.
    """
    found = with_client(shell, lambda client: client.executions(instance_id, limit=limit, before=before))
    columns = ("EXECUTION", "STATUS", "EVENTS", "STARTED", "ENDED")
    shell.show(
        {"instance_id": instance_id, "executions": found},
        lambda: table(columns, map(astuple, found), empty="no executions"),
    )


@command()
@click.argument("instance_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), default=MAX_PAGE, show_default=True, help="Instances at most."
)
def tree(shell: Shell, instance_id: str, limit: int) -> None:
    """Show the instance ID with its sub-orchestrations and theirs, each below its parent."""
    found = with_client(shell, lambda client: client.tree(instance_id, limit=limit))
    shell.show(
        found, lambda: table(("INSTANCE", "ORCHESTRATION", "STATUS", "CREATED"), map(_node_row, found.nodes), empty="")
    )
    if found.truncated and not shell.as_json:
        click.echo(f"more than {limit} instances: the nearest to the root are shown", err=True)


def _node_row(node: TreeNode) -> tuple[object, ...]:
    label = node.name if node.version is None else f"{node.name}@{node.version}"
    return "  " * node.depth + node.instance_id, label, node.status, node.created_at


_QUEUE_COLUMNS: Final = (
    *("ACTIVITY", "STATE", "INSTANCE", "SESSION", "FAILURES", "ATTEMPTS", "NEXT", "WORKER", "LAST ERROR"),
)


@command()
@click.option(
    "--part",
    type=click.Choice(get_args(QueuePart)),
    default="retried",
    show_default=True,
    help="Tried again after a failure; delayed otherwise; behind other ordered work; at a limit.",
)
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=100, show_default=True, help="Activities at most.")
def retries(shell: Shell, *, part: QueuePart, limit: int) -> None:
    """List the activities that are tried again, of all instances, or those of another part of the queue: those that are
    due first.

    Examples:
      affinity retries
      affinity retries --part limited --json | jq -r '.activities[].key.instance_id'
    """
    found = with_client(shell, lambda client: client.queued_activities(part, limit=limit))
    shell.show({"activities": found}, lambda: table(_QUEUE_COLUMNS, map(_queue_row, found), empty="no activities"))


def _queue_row(one: WorkItemInfo) -> tuple[object, ...]:
    error = None if one.last_error is None else cell(one.last_error)
    counts = one.failures or None, one.attempts
    return one.name, one.state, one.key.instance_id, one.session_id, *counts, one.visible_at, one.worker_id, error


@command()
@click.option(
    "--limit", type=click.IntRange(1, MAX_COUNT), default=MAX_COUNT, show_default=True, help="Where counts stop."
)
@watched()
def stats(shell: Shell, limit: int, *, watch: bool) -> None:
    """Show the number of instances of each status, the work in the queues, and the age of the oldest work.

    A number of activities or messages that is as large as --limit means: that many, or more.
    """
    look(
        shell,
        lambda client: client.statistics(limit=limit),
        lambda found: found,
        lambda found: pairs(_counts(found)),
        watch=watch,
    )


def _counts(found: WorkStatistics) -> Iterable[tuple[str, object]]:
    yield from ((f"instances {status}", number) for status, number in found.instances.items())
    yield from ((f"activities {state}", number) for state, number in found.work_items.items())
    yield from ((f"messages {state}", number) for state, number in found.messages.items())
    yield "activities parked", found.parked
    yield "sessions waiting", found.waiting_sessions
    for what, age in (("activity", found.oldest_work_item), ("message", found.oldest_message)):
        yield f"oldest waiting {what}", None if age is None else seconds(age)
