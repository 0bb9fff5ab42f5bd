"""Opening the handle of a conversation by its id; the journal has its kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from affinity.cli.shell import Shell, with_client
from affinity.conversation import ConversationHandle, ConversationLimits, JournalEvent, UnknownEvent, UserMessage
from affinity.conversation.client import ConversationCalls
from affinity.conversation.events import unknown_fields
from affinity.conversation.journal import JournalQuery
from affinity.conversation.kinds import NOUN, ConversationKind
from affinity.conversation.shown import ShownEventTypes
from affinity.errors import UnknownConversation
from affinity.limits import check_id

T = TypeVar("T")

TYPES = ShownEventTypes()
"""The built-in events; events of applications are shown and sent as they are."""


async def open_conversation(
    client: ConversationCalls, conversation_id: str, kind: str | None = None, sent: JournalEvent | None = None
) -> ConversationHandle:
    """Return the handle of a conversation. ``kind``: of a new conversation; ``sent``: an event to check before sending.

    Raises:
        UnknownConversation: it does not exist, and no kind is given.
        NotRegistered: live workers have no code for the kind.
        NotSerializable: they refuse the event.
    """
    page = await client.journals.read(JournalQuery(session_id=check_id(conversation_id, "conversation id"), limit=1))
    if page is None and kind is None:
        raise UnknownConversation(conversation_id, "there is none; to begin it, give its --kind")
    name = kind if page is None or kind is not None else page.kind
    assert name is not None
    if sent is not None:
        await client.check_registered(name, kind=NOUN)
    if isinstance(sent, UnknownEvent):
        await client.check_event(NOUN, name, sent.kind, {**sent.data, "kind": sent.kind})
    spec = ConversationKind(name=name, types=TYPES, limits=ConversationLimits())
    return ConversationHandle(client, spec, conversation_id)


def with_conversation(
    shell: Shell,
    conversation_id: str,
    work: Callable[[ConversationHandle], Awaitable[T]],
    kind: str | None = None,
    sent: JournalEvent | None = None,
) -> T:
    """Do ``work`` with the handle of a conversation; see `open_conversation`."""

    async def run(client: ConversationCalls) -> T:
        return await work(await open_conversation(client, conversation_id, kind, sent))

    return with_client(shell, run)


def event_of(text: str | None, document: Any) -> JournalEvent:
    """Return the event of a message, or of a JSON object with its ``kind``.

    Raises:
        click.UsageError: both or neither are given, or the document is not an event.
    """
    if (text is None) == (document is None):
        raise click.UsageError("give the TEXT of a message, or --event, and not both")
    if text is not None:
        return UserMessage(text)
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise click.UsageError('--event takes a JSON object with its kind: {"kind": "user.message", "content": "hi"}')
    return _event(document)


def _event(document: dict[str, Any]) -> JournalEvent:
    kind = document["kind"]
    known = TYPES.types.get(kind)
    if known is None:
        return UnknownEvent(kind=kind, data={name: value for name, value in document.items() if name != "kind"})
    if unknown := unknown_fields(known, document):
        fields = ", ".join(["kind", *(name for name in known.model_fields if name != "kind")])
        raise click.UsageError(f"--event is no {kind}: it has no field {unknown[0]!r}; it has {fields}")
    try:
        return known.model_validate(document)
    except ValueError as error:
        raise click.UsageError(f"--event is no {kind}: {error}") from error
