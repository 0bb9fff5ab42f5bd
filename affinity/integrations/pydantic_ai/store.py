"""pydantic-ai's conversations in the journal of an affinity conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal
from weakref import WeakKeyDictionary

from pydantic import JsonValue, TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from affinity.conversation import JournalEvent, Wake
from affinity.limits import MAX_PAGE

_RECORDS: Final[TypeAdapter[ConversationRecord]] = TypeAdapter(ConversationRecord)


class StoredMessage(JournalEvent):
    """A message of a conversation of pydantic-ai, with the entry before it."""

    entry_id: str
    parent_id: str | None
    message: dict[str, JsonValue]
    kind: Literal["pydantic_ai.message"] = "pydantic_ai.message"


class StoredConversation(JournalEvent):
    """What pydantic-ai keeps of a conversation beside its messages, as it was saved; None: it was deleted."""

    conversation_id: str
    record: dict[str, JsonValue] | None
    kind: Literal["pydantic_ai.conversation"] = "pydantic_ai.conversation"


_written: Final[WeakKeyDictionary[Wake, list[JournalEvent]]] = WeakKeyDictionary()
"""What the stores of a wake have written, which its commit adds to the journal."""


class JournalStore(ConversationStore):
    """A `pydantic_ai.conversation_store.ConversationStore` in the journal of a conversation, for its handler.

    What is saved commits with the wake, fenced as its other entries are; a fork of the conversation, also from an
    earlier entry, has the messages up to there. The conversations of affinity declare both kinds of entries::

        chats = affinity.Conversations(Chat, events=[StoredMessage, StoredConversation])

        store = JournalStore(wake)
        conversation = await store.load(wake.conversation_id) or Conversation(conversation_id=wake.conversation_id)
        await store.save(await agent.run(run.prompt, conversation=conversation))

    A save that does not continue the revision that is stored raises `ConversationConflict`. A journal keeps the
    messages of a conversation that was deleted.
    """

    def __init__(self, wake: Wake) -> None:
        """Use the journal of the wake's conversation."""
        self._wake = wake
        self._entries: dict[str, ConversationEntry] = {}
        self._records: dict[str, ConversationRecord] = {}
        self._read_up_to = 0
        self._read_written = 0

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """See the base class."""
        await self._refresh()
        record = self._records.get(conversation_id)
        return None if record is None else _copy(record)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """See the base class."""
        await self._refresh()
        found = [record for record in self._records.values() if scope is None or record.scope == scope]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return [_copy(record) for record in found[:limit]]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """See the base class.

        Raises:
            ConversationConflict: the stored revision is another one.
            PayloadTooLarge: a message is larger than an entry of a journal may be.
            WakeMisuse: the conversations do not declare `StoredMessage` and `StoredConversation`.
            SessionError: the handler has ended.
        """
        await self._refresh()
        self._check(record.conversation_id, expected_revision)
        known = self._entries.keys() | {entry.id for entry in new_entries}
        if record.head_id is not None and record.head_id not in known:
            raise ConversationConflict(record.conversation_id)
        events: list[JournalEvent] = [_event_of(entry) for entry in new_entries]
        events.append(StoredConversation(record.conversation_id, _RECORDS.dump_python(record, mode="json")))
        self._write(events)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """See the base class. Its messages stay in the journal.

        Raises:
            ConversationConflict: the stored revision is another one.
            WakeMisuse, SessionError: see `write_record`.
        """
        await self._refresh()
        self._check(conversation_id, expected_revision)
        self._write([StoredConversation(conversation_id, None)])

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """See the base class.

        Raises:
            KeyError: the journal has no such message.
        """
        await self._refresh()
        return _entry_of(_event_of(self._entries[entry_id]))

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """See the base class.

        Raises:
            KeyError: the journal has no such message.
        """
        await self._refresh()
        found: list[ConversationEntry] = []
        while head_id is not None and (limit is None or len(found) < limit):
            found.append(_entry_of(_event_of(self._entries[head_id])))
            head_id = found[-1].parent_id
        return found[::-1]

    def _check(self, conversation_id: str, expected_revision: str | None) -> None:
        stored = self._records.get(conversation_id)
        if (None if stored is None else stored.revision) != expected_revision:
            raise ConversationConflict(conversation_id)

    def _write(self, events: Sequence[JournalEvent]) -> None:
        for event in events:
            self._wake.append(event)
        _written.setdefault(self._wake, []).extend(events)

    async def _refresh(self) -> None:
        """Read what was added to the journal, and what stores of this wake have written."""
        while entries := await self._wake.history(
            after=self._read_up_to, kinds=[StoredMessage, StoredConversation], limit=MAX_PAGE
        ):
            for entry in entries:
                self._take(entry.event)
            self._read_up_to = entries[-1].seq
        written = _written.get(self._wake, [])
        for event in written[self._read_written :]:
            self._take(event)
        self._read_written = len(written)

    def _take(self, event: JournalEvent) -> None:
        match event:
            case StoredMessage():
                self._entries[event.entry_id] = _entry_of(event)
            case StoredConversation(record=None):
                self._records.pop(event.conversation_id, None)
            case StoredConversation():
                self._records[event.conversation_id] = _RECORDS.validate_python(event.record)


def _event_of(entry: ConversationEntry) -> StoredMessage:
    (message,) = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    return StoredMessage(entry.id, entry.parent_id, message)


def _entry_of(event: StoredMessage) -> ConversationEntry:
    (message,) = ModelMessagesTypeAdapter.validate_python([event.message])
    return ConversationEntry(id=event.entry_id, parent_id=event.parent_id, message=message)


def _copy(record: ConversationRecord) -> ConversationRecord:
    """Return a copy: callers change records in place."""
    return _RECORDS.validate_python(_RECORDS.dump_python(record, mode="json"))
