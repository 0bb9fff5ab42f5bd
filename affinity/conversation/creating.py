"""Creating and describing conversations: the calls of clients."""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar, Unpack

from affinity import errors
from affinity.actions import action
from affinity.conversation.journal import Description, JournalCreation, JournalFilter, check_description
from affinity.conversation.lineage_calls import LineageCalls

M = TypeVar("M")


class CreationCalls(LineageCalls[M], Generic[M]):
    """Creates a conversation without an input, and changes its title, owner and labels."""

    @action("create", "conversation", "conversation_id")
    async def create(self, **about: Unpack[Description]) -> None:
        """Create the conversation, which waits for its first event. The same call again changes nothing.

        Args:
            about: ``title``: for people, at most `limits.MAX_TITLE_BYTES` bytes; ``owner``: an id; ``labels``: like the
                labels of sessions. Listings show them, and search by owner and labels.

        Raises:
            ConversationExists: it exists, with another title, owner or other labels; or its id is in use.
            ConversationKindMismatch: it exists, and is of another kind.
            QuotaExceeded: the number of instances has reached its limit.
            InvalidInput: a value is refused; the subclass is the reason.
        """
        checked = check_description(about)
        creation = JournalCreation(
            session_id=self.conversation_id,
            kind=self._kind.name,
            start=self._kind.start(),
            lineage=None,
            operator="",
            about=checked,
        )
        result = await self._client.journals.create(creation)
        if result.outcome == "over_quota":
            raise errors.QuotaExceeded("instances", (await self._client.quotas()).instances or 0)
        if result.outcome != "created":
            await self._check_created(checked)

    @action("describe", "conversation", "conversation_id")
    async def describe(self, **changes: Unpack[Description]) -> None:
        """Change title, owner and labels, also of a terminated conversation. A value that is not given stays.

        Args:
            changes: see `create`; None removes a title or an owner. ``labels`` replaces all labels.

        Raises:
            UnknownConversation: no conversation has this id.
            ConversationKindMismatch: it is of another kind.
            InvalidInput: a value is refused; the subclass is the reason.
        """
        checked = check_description(changes)
        while not await self._client.journals.describe(self.conversation_id, self._kind.name, checked):
            info = await self._client.get_conversation(self.conversation_id)
            if info.kind != self._kind.name:  # else it has begun since then
                self._refuse_kind(info.kind)

    async def _check_created(self, about: Description) -> None:
        """Raise unless the conversation that has the id is described so."""
        rows = await self._client.journals.list(JournalFilter(session_id=self.conversation_id), 1)
        if not rows:
            raise errors.ConversationExists(self.conversation_id, "its id is in use")
        (found,) = rows
        if found.kind != self._kind.name:
            self._refuse_kind(found.kind)
        wanted = (about.get("title"), about.get("owner"), dict(about.get("labels") or {}))
        if (found.title, found.owner, dict(found.labels)) != wanted:
            raise errors.ConversationExists(
                self.conversation_id, "it is there with another title, owner or other labels: describe() changes them"
            )

    def _refuse_kind(self, kind: str) -> NoReturn:
        raise errors.ConversationKindMismatch(
            self.conversation_id,
            f"it is of kind {kind!r}, not {self._kind.name!r}: connect with the Conversations of its kind, or use "
            "another id",
        )
