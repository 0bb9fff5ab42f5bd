"""The group ``affinity conversation``."""

from __future__ import annotations

import click

from affinity.cli.help import HelpGroup
from affinity.conversation.command import lineage, retention, send, show


@click.group(cls=HelpGroup)
def conversation() -> None:
    """Show conversations, send them events, answer their requests.

    A conversation has a journal: numbered entries of what happened. Events from outside wait until a wake has
    processed them.

    Examples:
      affinity conversation list --kind support --requests    # conversations that wait for a person
      affinity conversation requests --label team=eu          # what they wait for
      affinity conversation ask chat-7 'where is my order?'   # send, and print the reply
      affinity conversation events chat-7 --follow            # what happens, as it happens
      affinity conversation answer chat-7 1.4.1 --allow       # let the agent use a tool
      affinity conversation interrupt chat-7 --cancel         # stop what it does now
      affinity conversation trace chat-7                      # the last wake: spans, times, errors
      affinity conversation fork chat-7 what-if --at 12       # try something else from there
      affinity conversation prune --older-than 90d --dry-run  # how many old entries there are
    """


for _command in (
    show.list_conversations,
    show.show,
    show.events,
    show.requests,
    show.wakes,
    show.dead_letters,
    show.trace,
    send.send,
    send.ask,
    send.answer,
    send.describe,
    send.interrupt,
    send.resume,
    send.retry,
    send.terminate,
    send.delete,
    lineage.fork,
    lineage.ancestors,
    retention.prune,
):
    conversation.add_command(_command)
