"""The commands that show what an instance is made of, and how much there is to do: executions, tree, stats."""

from __future__ import annotations

from collections.abc import Iterable

import click

from affinity.cli import shell as sh
from affinity.cli.instances import with_client
from affinity.cli.shell import Command, Shell, command
from affinity.client import ExecutionSummary, TreeNode, WorkStatistics
from affinity.limits import MAX_COUNT, MAX_PAGE


@click.command(cls=Command, short_help="Show the executions of an instance.")
@click.argument("instance_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, help="Executions at most.")
@click.option("--before", type=click.IntRange(min=1), help="Only those before this one.")
@command
def executions(shell: Shell, instance_id: str, limit: int, before: int | None) -> None:
    """Show the executions of the instance ID, newest first: one begins with each continue_as_new, and with each reset.

    `affinity history ID --execution N` shows the events of one. Those whose history was pruned are not listed.
    """
    found = with_client(shell, lambda client: client.executions(instance_id, limit=limit, before=before))
    columns = ("EXECUTION", "STATUS", "EVENTS", "STARTED", "ENDED")
    shell.show(
        {"instance_id": instance_id, "executions": found},
        lambda: sh.table(columns, map(_execution_row, found), empty="no executions"),
    )


def _execution_row(one: ExecutionSummary) -> tuple[object, ...]:
    return one.execution_id, one.status, one.event_count, one.started_at, one.ended_at


@click.command(cls=Command, short_help="Show an instance and its sub-orchestrations.")
@click.argument("instance_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), default=MAX_PAGE, show_default=True, help="Instances at most."
)
@command
def tree(shell: Shell, instance_id: str, limit: int) -> None:
    """Show the instance ID with its sub-orchestrations and theirs, each below its parent."""
    found = with_client(shell, lambda client: client.tree(instance_id, limit=limit))
    shell.show(
        found,
        lambda: sh.table(("INSTANCE", "ORCHESTRATION", "STATUS", "CREATED"), map(_node_row, found.nodes), empty=""),
    )
    if found.truncated and not shell.as_json:
        click.echo(f"more than {limit} instances: those nearest to the root are shown", err=True)


def _node_row(node: TreeNode) -> tuple[object, ...]:
    label = node.name if node.version is None else f"{node.name}@{node.version}"
    return "  " * node.depth + node.instance_id, label, node.status, node.created_at


@click.command(cls=Command, short_help="Show how much there is to do.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_COUNT), default=MAX_COUNT, show_default=True, help="Where counts stop."
)
@command
def stats(shell: Shell, limit: int) -> None:
    """Show how many instances there are of each status, what is in the queues, and how long the oldest work has waited.

    A number of activities or messages that is as large as --limit means: that many, or more.
    """
    found = with_client(shell, lambda client: client.statistics(limit=limit))
    shell.show(found, lambda: sh.pairs(_counts(found)))


def _counts(found: WorkStatistics) -> Iterable[tuple[str, object]]:
    yield from ((f"instances {status}", number) for status, number in found.instances.items())
    yield from ((f"activities {state}", number) for state, number in found.work_items.items())
    yield from ((f"messages {state}", number) for state, number in found.messages.items())
    for what, age in (("activity", found.oldest_work_item), ("message", found.oldest_message)):
        yield f"oldest waiting {what}", None if age is None else sh.seconds(age)
