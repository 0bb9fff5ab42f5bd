"""The commands that read: list, show, events, trace, requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, get_args

import click
from pydantic_core import to_jsonable_python

from affinity.cli.arguments import LABEL, labels_of
from affinity.cli.output import clock, compact, counted, pairs, printable, table
from affinity.cli.shell import FIRST_PAGE, PageOptions, Shell, command, paged, with_client
from affinity.conversation import (
    ConversationHandle,
    ConversationStatus,
    DeadLetter,
    EndedWake,
    JournalEntry,
    PendingRevisit,
    Retracted,
    Streamed,
    ToolEnded,
    ToolStarted,
)
from affinity.conversation.client import ConversationCalls, ConversationInfo
from affinity.conversation.command.opening import open_conversation, with_conversation
from affinity.conversation.follow import FeedItem
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.shown import shown_revisit
from affinity.errors import UnknownEntry, UnknownInstance

_COLUMNS = (
    *("CONVERSATION", "KIND", "STATUS", "ENTRIES", "PENDING FROM", "REQUESTS", "REVISITS", "PARENT", "UPDATED"),
    *("OWNER", "TITLE"),
)
_WAKES = ("WAKE", "ATTEMPT", "OUTCOME", "PROCESSED", "WHY")
_DEAD_LETTERS = ("NUMBER", "KIND", "ERROR", "FAILED", "RETRIED AS")
_REQUESTS = ("REQUEST", "KIND", "WHAT", "SINCE", "UNTIL")
_INBOX = ("CONVERSATION", *_REQUESTS, "OWNER", "TITLE")
_META = frozenset({"kind", "usage", "message_id", "call_key", "span", "started_at", "worker", "attempt"})


@command("list", short_help="List conversations.")
@click.option("--kind", help="Of this kind.")
@click.option("--status", type=click.Choice(get_args(ConversationStatus)), help="That have this status now.")
@click.option("--prefix", help="Whose id begins so.")
@click.option("--parent", help="Children of this conversation.")
@click.option("--owner", help="Of this owner.")
@click.option("--label", "labels", multiple=True, type=LABEL, help="With this label; may be repeated.")
@click.option("--terminated/--open", default=None, help="Only terminated ones, or only others.")
@click.option("--requests", "with_requests", is_flag=True, help="Only with a request that waits for an answer.")
@paged("Conversations")
def list_conversations(shell: Shell, *, page: PageOptions, labels: Sequence[tuple[str, str]], **where: Any) -> None:
    """List conversations, newest first.

    Examples:
      affinity conversation list --kind support --requests
      affinity conversation list --status failed
      affinity conversation list --owner ann --label team=eu
      affinity conversation list --prefix chat- --open --json
    """
    where["labels"] = labels_of(labels)

    found = with_client(shell, lambda client: page.read(client.list_conversations(**where)))
    shell.show(found, lambda: table(_COLUMNS, map(_row, found.items), empty="no conversations"))
    shell.show_cursor(found.next)


def _row(found: ConversationInfo) -> tuple[object, ...]:
    waits = (found.pending_from, found.pending_requests or None, found.pending_revisits or None)
    about = (found.conversation_id, found.kind, found.status, found.last_seq)
    return *about, *waits, found.parent, found.updated_at, found.owner, found.title


@command(short_help="Show how a conversation is.")
@click.argument("conversation_id", metavar="ID")
def show(shell: Shell, *, conversation_id: str) -> None:
    """Show the status of the conversation ID, the requests that wait for an answer, and the later wakes.

    Example:
      affinity conversation show chat-7
    """

    async def read(client: ConversationCalls) -> dict[str, Any]:
        talk = await open_conversation(client, conversation_id)
        about: dict[str, Any] = {**asdict(await client.get_conversation(conversation_id)), "waits_for": None}
        with suppress(UnknownInstance):  # an operator has deleted it; the next event creates it again
            about["waits_for"] = await talk.explain()
        work = await client.journals.pending(conversation_id)
        revisits = [shown_revisit(revisit) for revisit in work.revisits] if work else []
        return {**about, "requests": await talk.requests(), "revisits": revisits}

    found = with_client(shell, read)

    def text() -> None:
        why = found["waits_for"]
        shown = {**found, "waits_for": None if why is None else why.sentence}
        pairs((name, value) for name, value in shown.items() if name not in {"requests", "revisits"})
        _print_requests(found["requests"])
        _print_revisits(found["revisits"])

    shell.show(found, text)


@command(short_help="Show what waits for an answer.")
@click.argument("conversation_id", metavar="[ID]", required=False)
@click.option("--kind", "kinds", multiple=True, help="Only requests of this kind; repeat it for several.")
@click.option("--owner", help="Only of conversations of this owner.")
@click.option("--label", "labels", multiple=True, type=LABEL, help="Only of conversations with this label.")
@click.option("--prefix", help="Only of conversations whose id begins so.")
@click.option("--below", metavar="ID", help="Only of this conversation, its children and theirs.")
@paged("Requests")
def requests(
    shell: Shell, *, conversation_id: str | None, page: PageOptions, labels: Sequence[tuple[str, str]], **where: Any
) -> None:
    """Show the requests of the conversation ID that wait for an answer, or of all conversations, oldest first;
    `affinity conversation answer` gives it.

    Examples:
      affinity conversation requests chat-7 --json
      affinity conversation requests --label team=eu --kind agent.tool_confirmation
      affinity conversation requests --below chat-7
    """
    if conversation_id is not None:
        if labels or any(where.values()) or page != FIRST_PAGE:
            raise click.UsageError("the other options are of requests of all conversations: give them, or the ID")
        found = with_conversation(shell, conversation_id, ConversationHandle.requests)
        shell.show(found, lambda: table(_REQUESTS, map(_request_row, found), empty="no requests"))
        return
    where["labels"] = labels_of(labels)

    inbox = with_client(shell, lambda client: page.read(client.requests(**where)))
    shell.show(inbox, lambda: table(_INBOX, map(_inbox_row, inbox.items), empty="no requests"))
    shell.show_cursor(inbox.next)


@command("dead-letters", short_help="Show the inputs of wakes that have failed for good.")
@click.argument("conversation_id", metavar="ID")
def dead_letters(shell: Shell, *, conversation_id: str) -> None:
    """Show the inputs of the conversation ID whose wake has failed for good, and which later wakes have gone on behind;
    `affinity conversation retry` sends one again.

    Example:
      affinity conversation dead-letters chat-7 --json
    """
    found = with_conversation(shell, conversation_id, ConversationHandle.dead_letters)
    shell.show(found, lambda: table(_DEAD_LETTERS, map(_dead_letter_row, found), empty="no dead letters"))


@command(short_help="Show what happened in a conversation.")
@click.argument("conversation_id", metavar="ID")
@click.option("--after", metavar="POSITION", help="Behind this number, or position of a stream.")
@click.option("--last", type=click.IntRange(1, 1000), metavar="N", help="The last N entries.")
@click.option("--kind", "kinds", multiple=True, help="Only events of this kind; repeat it for several.")
@click.option("--follow", is_flag=True, help="Then print further events as they happen, until its end, or Ctrl-C.")
@click.option("--stream/--no-stream", default=True, show_default=True, help="With --follow: what wakes stream too.")
def events(
    shell: Shell,
    *,
    conversation_id: str,
    after: str | None,
    last: int | None,
    kinds: tuple[str, ...],
    follow: bool,
    stream: bool,
) -> None:
    """Show the entries of the journal of the conversation ID, in order, a line each; with --json a JSON object each.

    With --follow the output of a wake that is running is shown too, marked with "~", and the calls of its tools, with
    ">" when one begins and "<" when it ends; a line with "x" says that these are void: replaced by the entries that
    follow, or of an attempt that has failed.

    Examples:
      affinity conversation events chat-7 --last 20
      affinity conversation events chat-7 --follow --json --after 17
      affinity conversation events chat-7 --kind user.message --kind agent.message
    """
    if last is not None and after is not None:
        raise click.UsageError("--last contradicts --after")

    async def read(talk: ConversationHandle) -> None:
        position: int | str = after or 0
        if last is not None:
            found = await talk.history(last=last, kinds=kinds)
            for entry in found:
                _print(shell, entry)
            position = found[-1].seq if found else 0
        if last is None or follow:
            async with talk.events(after=position, follow=follow, kinds=kinds, stream=stream and follow) as feed:
                async for item in feed:
                    _print(shell, item)

    with_conversation(shell, conversation_id, read)


@command(short_help="Show how the wakes of a conversation have ended.")
@click.argument("conversation_id", metavar="ID")
@click.option("--last", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="The last N.")
def wakes(shell: Shell, *, conversation_id: str, last: int) -> None:
    """Show how the wakes of the conversation ID have ended, the newest first: which inputs each has processed, and why
    it has ended. `affinity conversation trace` shows what one of them did.

    Example:
      affinity conversation wakes chat-7 --last 5
    """
    found = with_conversation(shell, conversation_id, lambda talk: talk.wakes(newest_first=True, limit=last))
    shell.show(found, lambda: table(_WAKES, map(_wake_row, found), empty="no wakes"))


@command(short_help="Show the trace of a wake.")
@click.argument("conversation_id", metavar="ID")
@click.argument("wake_id", metavar="[WAKE]", required=False)
def trace(shell: Shell, *, conversation_id: str, wake_id: str | None) -> None:
    """Show the entries of one wake of the conversation ID, its failed attempts too: spans with their times, workers
    and errors, and what it appended. Without WAKE the last one.

    Examples:
      affinity conversation trace chat-7
      affinity conversation trace chat-7 1.4 --json
    """

    async def read(talk: ConversationHandle) -> Sequence[JournalEntry]:
        if wake_id is not None:
            return await talk.trace(wake_id)
        ended = await talk.wakes(newest_first=True, limit=1)
        if not ended:
            raise UnknownEntry(conversation_id, "it has no wake yet")
        return await talk.trace(ended[0].wake_id)

    for entry in with_conversation(shell, conversation_id, read):
        _print(shell, entry)


# -- output


def _print(shell: Shell, item: FeedItem) -> None:
    click.echo(item.to_json() if shell.as_json else line_of(item))


def line_of(item: FeedItem) -> str:
    """Return an item as one line for people."""
    match item:
        case Streamed():
            return printable(f"{'':>6}  ~ {item.text or compact(item.value)}").replace("\n", " ")
        case ToolStarted():
            return printable(f"{'':>6}  > {item.tool} {compact(item.arguments)}").replace("\n", " ")
        case ToolEnded():
            name = f"{item.tool_use_id or item.call_key}{' failed' if item.is_error else ''}"
            return printable(f"{'':>6}  < {name}").replace("\n", " ")
        case Retracted():
            return f"{'':>6}  x {'replaced' if item.replaced else 'void'}: what was streamed by {item.wake_id}"
    text = _text_of(item.event)
    return printable(f"{item.seq:>6}  {clock(item.recorded_at)}  {item.kind:<20}  {text}").replace("\n", " ")


def _text_of(event: Any) -> str:
    text = getattr(event, "text", None)
    if isinstance(text, str):
        return text
    fields = {k: v for k, v in _plain(event).items() if k not in _META and v not in (None, "", [], {})}
    return compact(fields) if fields else ""


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(value)
    return found


def _wake_row(found: EndedWake) -> tuple[object, ...]:
    inputs = f"{found.base + 1}-{found.processed}" if found.processed > found.base else "-"
    error = None if found.error is None else f"{found.error.type}: {found.error.message}"
    return found.wake_id, found.attempt, found.outcome, inputs, error or found.reason


def _dead_letter_row(found: DeadLetter) -> tuple[object, ...]:
    error = f"{found.error.type}: {found.error.message}"
    return found.seq, found.event.kind, error, found.failed_at, found.retried_as


def _request_row(found: PendingRequest[Any]) -> tuple[object, ...]:
    return found.request_id, found.kind, _text_of(found.event), found.created_at, found.expires_at


def _inbox_row(found: PendingRequest[Any]) -> tuple[object, ...]:
    about = (found.conversation_id, found.request_id, found.kind, _text_of(found.event))
    return *about, found.created_at, found.expires_at, found.owner, found.title


def _print_requests(found: Sequence[PendingRequest[Any]]) -> None:
    if found:
        click.echo(f"\n{counted(len(found), 'request')}:")
        table(_REQUESTS, map(_request_row, found), empty="")


def _print_revisits(found: Sequence[PendingRevisit]) -> None:
    if found:
        click.echo(f"\n{counted(len(found), 'revisit')}:")
        rows = [(revisit.key, revisit.due_at, revisit.priority, revisit.reason) for revisit in found]
        table(("KEY", "DUE", "PRIORITY", "REASON"), rows, empty="")
