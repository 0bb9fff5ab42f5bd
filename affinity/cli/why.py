"""``affinity why``: what an instance waits for, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import click

from affinity.cli.output import printable, table
from affinity.cli.shell import Shell, command, with_client
from affinity.client import Instance, UnservedWork
from affinity.composed.client import Client
from affinity.errors import Explanation


@command()
@click.argument("instance_id", metavar="[ID]", required=False)
def why(shell: Shell, instance_id: str | None) -> None:
    """Print what the instance, or conversation, ID waits for: one sentence, about the deepest reason that is known.

    With --json also a code of the reason, and the ids concerned: of the instance in question, and of the session,
    worker, activity or request. For an instance that has ended "waits_for" is null.

    Without ID: which work waits that no live worker takes, as none has its code or its tag, or all that have them
    drain.

    Examples:
      affinity why
      affinity why order-17
      affinity why chat-7 --json | jq -r .waits_for.code
    """
    if instance_id is None:
        unserved = with_client(shell, lambda client: client.unserved_work())
        shell.show({"unserved": unserved}, lambda: _show_unserved(unserved))
        return

    async def read(client: Client) -> tuple[Instance, Explanation | None]:
        return await client.status(instance_id), await client.explain(instance_id)

    instance, waits_for = with_client(shell, read)
    document = {"instance_id": instance_id, "status": instance.status, "waits_for": waits_for}
    shell.show(document, lambda: click.echo(printable(_sentence(instance, waits_for))))


def _show_unserved(found: Sequence[UnservedWork]) -> None:
    columns = ("WAIT", "SINCE", "INSTANCE", "WHY")
    rows = [(one.count, one.since, one.instance_id, one.sentence) for one in found]
    table(columns, rows, empty="no work waits that no live worker takes")


def _sentence(instance: Instance, waits_for: Explanation | None) -> str:
    if waits_for is None:
        why = "" if instance.error is None else f" with {instance.error.type}: {instance.error.message}"
        return f"{instance.instance_id!r} is {instance.status}{why}"
    return waits_for.sentence
