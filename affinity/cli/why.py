"""``affinity why``: what an instance waits for, in one sentence."""

from __future__ import annotations

import click

import affinity.conversation  # noqa: F401 -- adds the reasons of conversations
from affinity.cli.output import printable, relative
from affinity.cli.shell import Shell, command, with_client
from affinity.client import Client, Instance
from affinity.errors import Explanation


@command()
@click.argument("instance_id", metavar="ID")
def why(shell: Shell, instance_id: str) -> None:
    """Print what the instance, or conversation, ID waits for: one sentence, about the deepest reason that is known.

    With --json also a code of the reason, and the ids concerned: of the instance in question, and of the session,
    worker, activity or request. For an instance that has ended "waits_for" is null.

    Examples:
      affinity why order-17
      affinity why chat-7 --json | jq -r .waits_for.code
    """

    async def read(client: Client) -> tuple[Instance, Explanation | None]:
        return await client.status(instance_id), await client.explain(instance_id)

    instance, waits_for = with_client(shell, read)
    document = {"instance_id": instance_id, "status": instance.status, "waits_for": waits_for}
    shell.show(document, lambda: click.echo(printable(_sentence(instance, waits_for))))


def _sentence(instance: Instance, waits_for: Explanation | None) -> str:
    if waits_for is None:
        why = "" if instance.error is None else f" with {instance.error.type}: {instance.error.message}"
        return f"{instance.instance_id!r} is {instance.status}{why}"
    since = "" if waits_for.since is None else f" (since {relative(waits_for.since)})"
    return waits_for.sentence + since
