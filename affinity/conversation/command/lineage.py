"""The commands on where a conversation comes from: fork, ancestors."""

from __future__ import annotations

import click

from affinity.cli.output import printable, table
from affinity.cli.shell import Shell, command
from affinity.conversation import Ancestor, ConversationHandle
from affinity.conversation.command.opening import with_conversation

_COLUMNS = ("DISTANCE", "CONVERSATION", "MADE BY", "AT", "HOME", "CREATED")


@command(short_help="Begin a conversation from an entry of another one.")
@click.argument("conversation_id", metavar="ID")
@click.argument("new_id", metavar="NEW")
@click.option("--at", type=click.IntRange(0), metavar="SEQ", help="The last entry that it has of ID  [default: all]")
@click.option("--detach", is_flag=True, help="Keep the content and forget the origin.")
@click.option("--beside", is_flag=True, help="Run on the lease of ID, beside it, and share its resources.")
def fork(shell: Shell, *, conversation_id: str, new_id: str, at: int | None, detach: bool, beside: bool) -> None:
    """Begin the conversation NEW with the journal of the conversation ID. The cost does not grow with the length.

    The state is copied with the whole journal. With --at the fork begins with an initial state, and without requests of
    the application's own kinds: only the application can rebuild the state of an earlier entry
    (`Conversations(rebuild=...)`, and `talk.fork` in a program), and knows its kinds.

    Examples:
      affinity conversation fork chat-7 chat-7-b
      affinity conversation fork chat-7 what-if --at 12
    """
    make = ConversationHandle.detach if detach else ConversationHandle.fork
    with_conversation(shell, conversation_id, lambda talk: make(talk, new_id, at=at, beside=beside or None))
    shell.show({"conversation_id": new_id}, lambda: click.echo(printable(new_id)))


@command(short_help="Show where a conversation comes from.")
@click.argument("conversation_id", metavar="ID")
def ancestors(shell: Shell, *, conversation_id: str) -> None:
    """Show the conversations from which the conversation ID was made, the nearest first.

    Example:
      affinity conversation ancestors what-if
    """
    found = with_conversation(shell, conversation_id, ConversationHandle.ancestors)
    shell.show(found, lambda: table(_COLUMNS, map(_row, found), empty="it was not made from another one"))


def _row(found: Ancestor) -> tuple[object, ...]:
    name = found.conversation_id or f"deleted ({found.journal_id})"
    made_by = found.lineage if found.lineage in {found.operator, None} else f"{found.lineage} ({found.operator})"
    return found.distance, name, made_by, found.at, found.home, found.created_at
