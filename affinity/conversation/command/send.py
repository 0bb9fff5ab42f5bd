"""The commands that send: send, ask, answer, interrupt, resume, terminate, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import click

from affinity.cli.arguments import FORCE, JSON, LABEL
from affinity.cli.output import printable
from affinity.cli.shell import Shell, command, confirm
from affinity.conversation import ConversationHandle, Reply
from affinity.conversation.command.opening import event_of, with_conversation
from affinity.conversation.handle import DELETE_SECONDS
from affinity.conversation.journal import Description
from affinity.orchestration.definitions import MISSING

F = TypeVar("F", bound=Callable[..., Any])


def _event_options(function: F) -> F:
    for option in (
        FORCE,
        click.option("--kind", help="Kind of the conversation; begins it when there is none."),
        click.option("--event-id", help="Under which it is one event, however often it is sent  [default: random]"),
        click.option("--event", "document", type=JSON, help="The event: a JSON object with its kind, @FILE, or -."),
        click.argument("text", metavar="[TEXT]", required=False),
        click.argument("conversation_id", metavar="ID"),
    ):
        function = option(function)
    return function


@command(short_help="Send an event to a conversation.")
@_event_options
def send(
    shell: Shell,
    *,
    conversation_id: str,
    text: str | None,
    document: Any,
    event_id: str | None,
    kind: str | None,
    force: bool,
) -> None:
    """Send the message TEXT, or another event, to the conversation ID, and print the number of its entry.

    The same --event-id twice is one event. Exit code 7 when workers are alive and none has code for the kind of the
    conversation, 2 when none takes such an event; --force sends it all the same.

    Examples:
      affinity conversation send chat-7 'where is my order?' --kind support
      affinity conversation send chat-7 --event '{"kind": "user.define_outcome", "outcome": "refunded"}'
    """
    event = event_of(text, document)

    sent = None if force else event
    seq = with_conversation(shell, conversation_id, lambda talk: talk.send(event, event_id=event_id), kind, sent)
    _show_seq(shell, seq)


@command(short_help="Send an event and print the reply.")
@_event_options
@click.option("--timeout", type=float, help="Seconds to wait  [default: forever]")
@click.option(
    "--until",
    type=click.Choice(["wake", "settled"]),
    default="wake",
    show_default=True,
    help="Until the event is processed, or until nothing is left to do: no child works, no request waits.",
)
def ask(
    shell: Shell,
    *,
    conversation_id: str,
    text: str | None,
    document: Any,
    event_id: str | None,
    kind: str | None,
    force: bool,
    timeout: float | None,
    until: Literal["wake", "settled"],
) -> None:
    """Send the message TEXT, or another event, to the conversation ID, wait for the wake that processes it, and print
    its text. The same --event-id again gives the same reply. Exit code 4: there is none yet; 2 and 7: as for `send`.

    Examples:
      affinity conversation ask chat-7 'where is my order?' --kind support --timeout 60
      affinity conversation ask chat-7 --event @event.json --json
    """
    event = event_of(text, document)

    ask_it = partial(ConversationHandle.ask, event=event, event_id=event_id, timeout=timeout, until=until)
    reply = with_conversation(shell, conversation_id, ask_it, kind, None if force else event)
    shell.show(_reply_document(reply), lambda: _print_reply(reply))


@command(short_help="Change title, owner and labels of a conversation.")
@click.argument("conversation_id", metavar="ID")
@click.option("--title", help="For people; empty: none.")
@click.option("--owner", help="Whose it is; empty: none.")
@click.option("--label", "labels", multiple=True, type=LABEL, help="Repeat it for several; they replace all labels.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
def describe(
    shell: Shell,
    *,
    conversation_id: str,
    title: str | None,
    owner: str | None,
    labels: tuple[tuple[str, str], ...],
    no_labels: bool,
) -> None:
    """Change title, owner and labels of the conversation ID. What is not given stays.

    Examples:
      affinity conversation describe chat-7 --title 'Refund of order 7' --label team=eu --label tier=one
      affinity conversation describe chat-7 --owner ''
    """
    if no_labels and labels:
        raise click.UsageError("give --label or --no-labels, and not both")
    changes: Description = {}
    if title is not None:
        changes["title"] = title or None
    if owner is not None:
        changes["owner"] = owner or None
    if labels or no_labels:
        changes["labels"] = dict(labels)
    if not changes:
        raise click.UsageError("give --title, --owner, --label or --no-labels: they say what changes")
    with_conversation(shell, conversation_id, lambda talk: talk.describe(**changes))
    shell.show({"described": conversation_id}, lambda: click.echo("changed"))


@command(short_help="Answer a request of a conversation.")
@click.argument("conversation_id", metavar="ID")
@click.argument("request_id", metavar="REQUEST")
@click.option("--allow/--refuse", "allowed", default=None, help="Whether the tool may be used.")
@click.option("--result", type=JSON, default=MISSING, help="Of a tool that was run here: JSON text, @FILE, or -.")
@click.option("--error", "is_error", is_flag=True, help="The tool has failed; --result is the error.")
@click.option("--reason", default="", help="Why it is refused.")
def answer(
    shell: Shell,
    *,
    conversation_id: str,
    request_id: str,
    allowed: bool | None,
    result: Any,
    is_error: bool,
    reason: str,
) -> None:
    """Answer the REQUEST of the conversation ID, which `affinity conversation requests` shows. It takes one answer.

    Examples:
      affinity conversation answer chat-7 1.4.1 --allow
      affinity conversation answer chat-7 1.4.1 --refuse --reason 'too much'
      affinity conversation answer chat-7 1.4.2 --result '{"lat": 52.5}'
    """
    if (allowed is None) == (result is MISSING):
        raise click.UsageError("give --allow, --refuse or --result")
    if is_error and allowed is not None:
        raise click.UsageError("--error says what --result is: it contradicts --allow and --refuse")
    if reason and allowed is None:
        raise click.UsageError("--reason says why a tool is refused: it contradicts --result")

    given: dict[str, Any] = {"allowed": allowed, "result": result, "is_error": is_error, "reason": reason}
    _show_seq(shell, with_conversation(shell, conversation_id, lambda talk: talk.answer(request_id, **given)))


@command(short_help="Redirect a conversation.")
@click.argument("conversation_id", metavar="ID")
@click.option("--cancel", "cancel_running", is_flag=True, help="Cancel the wake that is under way.")
@click.option("--cascade", is_flag=True, help="Interrupt the children too.")
@click.option("--reason", default="", help="For the handler, and for readers.")
def interrupt(shell: Shell, *, conversation_id: str, **how: Any) -> None:
    """Drop the requests and later wakes of the conversation ID, and wake it.

    Example:
      affinity conversation interrupt chat-7 --cancel --reason 'the customer hung up'
    """
    _show_seq(shell, with_conversation(shell, conversation_id, lambda talk: talk.interrupt(**how)))


@command(short_help="Send a dead letter again.")
@click.argument("conversation_id", metavar="ID")
@click.argument("seq", type=click.IntRange(min=1), metavar="NUMBER")
def retry(shell: Shell, *, conversation_id: str, seq: int) -> None:
    """Send the dead letter with this number again to the conversation ID, behind all that has come since. A second time
    changes nothing.

    Example:
      affinity conversation retry chat-7 17
    """
    _show_seq(shell, with_conversation(shell, conversation_id, lambda talk: talk.retry(seq)))


@command(short_help="Have a conversation that has failed try again.")
@click.argument("conversation_id", metavar="ID")
def resume(shell: Shell, *, conversation_id: str) -> None:
    """Have the conversation ID try again now, after its wake has failed for good, or while it waits for a retry.

    Example:
      affinity conversation resume chat-7
    """
    resumed = with_conversation(shell, conversation_id, ConversationHandle.resume)
    about = {"conversation": conversation_id, "resumed": resumed}
    shell.show(about, lambda: click.echo("resumed" if resumed else "nothing to resume: it has not failed"))


@command(short_help="End a conversation.")
@click.argument("conversation_id", metavar="ID")
@click.option("--cascade", is_flag=True, help="End the children too.")
@click.option("--reason", default="", help="For readers.")
def terminate(shell: Shell, *, conversation_id: str, cascade: bool, reason: str) -> None:
    """End the conversation ID: it takes no more events, and its journal stays. So is one ended whose instance was
    cancelled (`affinity cancel`).

    Example:
      affinity conversation terminate chat-7 --cascade
    """
    with_conversation(shell, conversation_id, lambda talk: talk.terminate(reason=reason, cascade=cascade))
    shell.show({"terminated": conversation_id}, lambda: click.echo("terminated"))


@command(short_help="Remove a conversation.")
@click.argument("conversation_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", type=float, default=DELETE_SECONDS, show_default=True, help="Seconds to wait for a child.")
def delete(shell: Shell, *, conversation_id: str, yes: bool, timeout: float) -> None:
    """Remove the conversation ID with its journal, its state and its instance, also while it runs. What a fork of it
    continues is kept for the fork.

    A child is terminated before, so that its parent is notified. Exit code 4: no worker has ended it in time; it is
    terminated, and not removed.

    Example:
      affinity conversation delete chat-7 --yes
    """
    if not yes:
        confirm(f"Remove conversation {printable(conversation_id)!r} with its journal and state?")

    deleted = with_conversation(shell, conversation_id, lambda talk: talk.delete(timeout=timeout))
    shell.show({"deleted": deleted}, lambda: click.echo("removed" if deleted else "there was none"))


def _show_seq(shell: Shell, seq: int) -> None:
    shell.show({"seq": seq}, lambda: click.echo(seq))


def _reply_document(reply: Reply) -> dict[str, Any]:
    events = [event.model_dump(mode="json") for event in reply.events]
    about = {"seq": reply.seq, "wake_id": reply.wake_id, "stop_reason": reply.stop_reason}
    return {**about, "text": reply.text, "events": events}


def _print_reply(reply: Reply) -> None:
    click.echo(printable(reply.text))
    for request in reply.requests:
        name = getattr(request, "request_id", "")
        click.echo(f"waits for an answer to request {printable(name)}: {printable(request.kind)}", err=True)
