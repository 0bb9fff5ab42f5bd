"""``affinity why``: what an instance waits for, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import click

from affinity.cli.output import printable, table
from affinity.cli.shell import Shell, command
from affinity.cli.watching import look, watched
from affinity.client import Instance, UnservedWork
from affinity.composed.client import Client
from affinity.errors import Explanation


@command()
@click.argument("instance_id", metavar="[ID]", required=False)
@watched(", until the instance has ended or Ctrl-C")
def why(shell: Shell, instance_id: str | None, *, watch: bool) -> None:
    """Print what the instance, or conversation, ID waits for: one sentence, about the deepest reason that is known.

    With --json also a code of the reason, and the ids concerned: of the instance in question, and of the session,
    worker, activity or request. For an instance that has ended "waits_for" is null.

    Without ID: which work waits that no live worker takes, as none has its code or its tag, or all that have them
    drain.

    Examples:
      affinity why
      affinity why order-17
      affinity why order-17 --watch
      affinity why chat-7 --json | jq -r .waits_for.code
    """
    if instance_id is None:
        look(shell, Client.unserved_work, lambda found: {"unserved": found}, _show_unserved, watch=watch)
        return

    async def read(client: Client) -> tuple[Instance, Explanation | None]:
        return await client.status(instance_id), await client.explain(instance_id)

    def document(found: tuple[Instance, Explanation | None]) -> dict[str, object]:
        return {"instance_id": instance_id, "status": found[0].status, "waits_for": found[1]}

    look(
        shell,
        read,
        document,
        lambda found: click.echo(printable(_sentence(*found))),
        watch=watch,
        is_over=lambda found: found[0].finished,
    )


def _show_unserved(found: Sequence[UnservedWork]) -> None:
    columns = ("WAIT", "SINCE", "INSTANCE", "WHY")
    rows = [(one.count, one.since, one.instance_id, one.sentence) for one in found]
    table(columns, rows, empty="no work waits that no live worker takes")


def _sentence(instance: Instance, waits_for: Explanation | None) -> str:
    if waits_for is None:
        why = "" if instance.error is None else f" with {instance.error.type}: {instance.error.message}"
        return f"{instance.instance_id!r} is {instance.status}{why}"
    return waits_for.sentence
