"""Conversations, as clients use them: their part of `affinity.Client`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from typing import Protocol, TypedDict, TypeVar, Unpack

import affinity.conversation.reasons  # noqa: F401 -- adds them to `affinity.explain`
from affinity.actions import action
from affinity.client.calls import PruneProgress, no_progress
from affinity.client.conditions import conditions_of
from affinity.conversation.inbox import RequestCalls
from affinity.conversation.journal import ConversationStatus, JournalFilter, JournalInfo, JournalQuery, JournalRetention
from affinity.errors import InvalidInput, InvalidOptions, UnknownConversation
from affinity.limits import MAX_QUOTA, check_age, check_id, check_integer
from affinity.paging import Page, Pages, next_cursor, read_cursor
from affinity.records import copied, frozen

T = TypeVar("T")
ClientType_contra = TypeVar("ClientType_contra", contravariant=True)
HandleType_co = TypeVar("HandleType_co", covariant=True)


class Connectable(Protocol[ClientType_contra, HandleType_co]):
    """A kind of conversations, such as `affinity.Conversations`."""

    def connect(self, client: ClientType_contra, conversation_id: str) -> HandleType_co:
        """Return the handle of a conversation."""
        ...


@frozen(kw_only=True)
class ConversationInfo:
    """A conversation, for listings."""

    conversation_id: str
    kind: str
    parent: str | None  # the conversation whose child it is
    status: ConversationStatus
    terminated: bool  # it takes no more events
    first_seq: int  # the oldest entry that is kept
    last_seq: int
    processed: int  # the watermark: up to it all inputs are processed
    pending_from: int | None  # number of the first input that no wake has processed
    size: int  # bytes of its own entries
    pending_requests: int
    pending_revisits: int
    created_at: datetime
    updated_at: datetime
    title: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class ConversationConditions(TypedDict, total=False):
    """The conversations to list; all conditions hold."""

    kind: str | None
    status: ConversationStatus | None
    """Their present status. No index has it: the conversations that fit otherwise are looked at in steps, newest first.
    """
    prefix: str | None
    """Beginning of their ids."""
    parent: str | None
    """Id of the conversation that created them; if it does not exist, the children of deleted ones with this id."""
    terminated: bool | None
    """Only terminated conversations, or only others."""
    owner: str | None
    labels: Mapping[str, str]
    """Labels that they have, among others."""
    with_requests: bool
    """Only conversations with a request that waits for an answer."""
    updated_since: datetime | None
    """Their last event came at this time or later; with a time zone. No index has it."""
    updated_before: datetime | None
    """Their last event came before this time. No index has it."""
    most: int | None
    """With a status or such a time, about this number of the newest conversations are looked at, and others are left
    out.
    """


class ConversationCalls(RequestCalls):
    """The part of `affinity.Client` for conversations."""

    def conversation(self, conversations: Connectable[ConversationCalls, T], conversation_id: str) -> T:
        """Return the handle of a conversation, which need not exist yet: nothing is sent, and any thread may call it.

        Raises:
            InvalidId: the id is refused.
            InvalidOptions: ``conversations`` does not define conversations, such as the name of a kind.
        """
        if not hasattr(conversations, "connect"):
            raise InvalidOptions(
                f"{conversations!r:.80} defines no conversations: give the affinity.Conversations object of the kind"
            )
        return conversations.connect(self, check_id(conversation_id, "conversation id"))

    async def get_conversation(self, conversation_id: str) -> ConversationInfo:
        """Return one conversation.

        Raises:
            UnknownConversation: it does not exist.
        """
        rows = await self.journals.list(JournalFilter(session_id=check_id(conversation_id, "conversation id")), 1)
        if not rows:
            raise UnknownConversation(conversation_id, "there is none")
        return info_of(rows[0])

    def list_conversations(self, **where: Unpack[ConversationConditions]) -> Pages[ConversationInfo]:
        """List conversations, newest first.

        Args:
            where: conditions; see `affinity.conversation.client.ConversationConditions`.

        Raises:
            InvalidInput: a condition or a status that does not exist, or a text that no store can keep.
        """
        parent = where.get("parent")
        conditions = conditions_of(where, ConversationConditions)
        filtered = JournalFilter(closed=conditions.pop("terminated", None), **conditions)

        async def read(after: str | None, limit: int) -> Page[ConversationInfo]:
            wanted = filtered if after is None else replace(filtered, after=read_cursor(after))
            if parent is not None and (page := await self.journals.read(JournalQuery(session_id=parent, limit=1))):
                wanted = replace(wanted, parent_journal=page.journal_id)
            rows = await self.journals.list(wanted, limit)
            return Page(items=[*map(info_of, rows)], next=next_cursor(rows, limit, "created_at", "session_id"))

        return Pages(read)

    @action("prune", "conversation", "", "older_than", "max_entries", "max_bytes")
    async def prune_conversations(
        self,
        *,
        older_than: float | None = None,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
        progress: PruneProgress = no_progress,
    ) -> int:
        """Remove the oldest entries of the journals of all conversations, as far as one of the bounds asks for it.

        The conversations go on, and numbers of entries are not used again. Kept are inputs that no wake has processed,
        entries of wakes with pending requests, all later entries, and entries that a fork continues. It goes in steps:
        an interrupted call keeps its progress, and may be repeated. Entries that a fork has given up in the same call
        may be left for the next.

        Args:
            older_than: seconds since an entry was recorded, by the database's clock.
            max_entries: entries of one conversation that are kept.
            max_bytes: bytes of entries of one conversation that are kept.
            dry_run: change nothing.
            progress: called after each step with the number of entries so far.

        Returns:
            The number of entries that were removed, or would be.

        Raises:
            InvalidInput: no bound is given, or one is out of range.
        """
        if older_than is None and max_entries is None and max_bytes is None:
            raise InvalidInput("give older_than, max_entries or max_bytes: they say which entries are removed")
        check_age("older_than", older_than)
        for what, bound in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if bound is not None:
                check_integer(bound, what, most=MAX_QUOTA)
        retention = JournalRetention(age=older_than, entries=max_entries, size=max_bytes)
        entries, after = 0, 0
        while True:
            pruned = await self.journals.prune(retention, after, dry_run=dry_run)
            entries += pruned.entries
            progress(entries)
            if pruned.after is None:
                return entries
            after = pruned.after


def info_of(row: JournalInfo) -> ConversationInfo:
    """Return a row as a view."""
    return copied(ConversationInfo, row, conversation_id=row.session_id, terminated=row.closed)
