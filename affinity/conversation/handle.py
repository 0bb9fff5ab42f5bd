"""The handle of a conversation, for clients: `affinity.Client.conversation`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import anyio

from affinity import errors
from affinity.actions import action
from affinity.client.calls import check_timeout
from affinity.conversation.dead_letters import dead_letters
from affinity.conversation.events import ConversationStatusChanged, JournalEvent
from affinity.conversation.follow import EntryNumber, JournalIdentity, has_ended
from affinity.conversation.inbox import PendingRequest
from affinity.conversation.journal import ConversationStatus, JournalFilter, JournalPage, JournalQuery, RequestFilter
from affinity.conversation.kinds import RESUME_MESSAGE, terminate_message
from affinity.conversation.reading import check_seq
from affinity.conversation.replies import ReplyCalls
from affinity.conversation.views import DeadLetter, PendingRevisit, request_of, revisit_of
from affinity.conversation.writing import ENDS
from affinity.errors import Explanation, UnknownInstance
from affinity.limits import MAX_PAGE
from affinity.provider.contract import FINISHED

DELETE_SECONDS: Final = 30.0
"""Default of the time that a child may take to end before it is removed."""


class ConversationHandle(ReplyCalls["ConversationHandle"]):
    """A conversation, as its clients see it.

    ::

        talk = client.conversation(support, "chat-7")
        reply = await talk.ask(UserMessage("hello"), event_id="m-18", timeout=60)
        print(reply.text)

    Every call that sends an event may be repeated with the same event id: it is one event. Without an event id the call
    has a random one, so that it is sent once although the database may lose replies. All calls raise a `ProviderError`
    when the database refuses, or fails for `affinity.client.calls.RETRY_SECONDS`.
    """

    @action("resume", "conversation", "conversation_id")
    async def resume(self) -> bool:
        """Try again now, if the conversation has failed or waits for its next attempt.

        If an operator has deleted its instance, another one is created. False: nothing has to be tried again, and
        nothing was written.

        Raises:
            UnknownConversation, ConversationTerminated: see `send`.
        """
        page = await self._page(JournalQuery(session_id=self.conversation_id, limit=1))
        if page.instance_status is not None and await self.status() in {"idle", "requires_action", "waiting"}:
            return False
        event = ConversationStatusChanged(status="running", reason="resumed")
        entry = self._entry(event, self._client.journals.new_event_id(), is_input=False)
        await self._append(self._new(entry=entry, message=RESUME_MESSAGE))
        return True

    async def dead_letters(self) -> Sequence[DeadLetter]:
        """Return the inputs of wakes that have failed for good and that later wakes have passed, oldest first; as far
        as retention has kept them.

        Raises:
            UnknownConversation: no conversation has this id.
        """
        return [*(await dead_letters(self)).values()]

    @action("retry", "conversation", "conversation_id", "seq")
    async def retry(self, seq: int) -> int:
        """Send a dead letter again, behind all that has come since. A repeated call is the same event. Work that a
        parent had delegated with it has ended for the parent, and stays so.

        Returns:
            Its new number: see `reply`.

        Raises:
            UnknownEntry: this entry is not a dead letter.
            RequestNotPending: it is an answer, and its request is no longer pending.
            ConversationTerminated, UnknownConversation: see `send`.
        """
        found = await dead_letters(self)
        event_id = next((name for name, each in found.items() if each.seq == check_seq(seq)), None)
        if event_id is None:
            raise errors.UnknownEntry(self.conversation_id, f"entry {seq} is no dead letter: `dead_letters` has them")
        event = found[event_id].event
        if event.kind not in ENDS:
            return await self.send(event, event_id=event_id)
        timeline = self._client.journals.timeline  # clients send no ends of their own
        appended = await self._send_input(self._entry(event, event_id))
        return EntryNumber.of(appended.seq, JournalIdentity(appended.journal_id, timeline))

    @action("terminate", "conversation", "conversation_id", "reason", "cascade", each=True)
    async def terminate(self, *, reason: str = "", cascade: bool = False) -> None:
        """End the conversation: later events are refused, a running wake is cancelled, and pending requests and
        revisits are dropped. The call is idempotent.

        A conversation that has ended stays as it is: with ``cascade`` its children are terminated. An operator who
        cancels its instance ends a conversation without its children.

        Args:
            reason: for readers.
            cascade: terminate the children too.

        Raises:
            UnknownConversation: no conversation has this id.
        """
        event = ConversationStatusChanged(status="terminated", reason=reason)
        entry = self._entry(event, self._client.journals.new_event_id(), is_input=False)
        append = self._new(entry=entry, message=terminate_message(cascade=cascade), closes=True, drops=True)
        while (appended := await self._append_lasting(append)).outcome == "closed":
            if (await self._page(JournalQuery(session_id=self.conversation_id, limit=1))).closed:
                for child in await self._children(self.conversation_id) if cascade else ():
                    with suppress(errors.UnknownConversation):
                        await (await self._below(child)).terminate(reason=reason, cascade=True)
                return
            with suppress(errors.UnknownInstance, errors.InstanceNotFinished):  # another call was first
                await self._client.delete(self.conversation_id)
        await self._check(append, appended)

    async def requests(self, *, deep: bool = False) -> Sequence[PendingRequest[JournalEvent]]:
        """Return the requests that wait for an answer, oldest first; empty if the conversation does not exist.

        Args:
            deep: include the requests of its descendants; at most `limits.MAX_BELOW` conversations are read, the
                nearest first. Their events are read as events of this kind.
        """
        me, types = self.conversation_id, self._kind.types
        where = RequestFilter(below=me) if deep else RequestFilter(session_ids=[me])
        found, *_ = await self._client.journals.all_requests(where)
        return [request_of(request, types, request.session_id, request.journal_kind) for request in found]

    async def revisits(self) -> Sequence[PendingRevisit]:
        """Return the later wakes that were requested, by due time; empty if the conversation does not exist."""
        work = await self._client.journals.pending(self.conversation_id)
        return [revisit_of(revisit) for revisit in work.revisits] if work else []

    async def status(self) -> ConversationStatus:
        """Return the status of the conversation, from its journal and its instance.

        Raises:
            UnknownConversation: no conversation has this id.
        """
        return (await self._client.get_conversation(self.conversation_id)).status

    async def explain(self) -> Explanation | None:
        """Return the reason why the conversation waits; see `Client.explain`.

        Raises:
            UnknownConversation: no conversation has this id.
            UnknownInstance: the conversation has no instance.
        """
        try:
            return await self._client.explain(self.conversation_id)
        except UnknownInstance:
            await self.status()  # which raises UnknownConversation
            raise

    @action("delete", "conversation", "conversation_id", "cascade", each=True)
    async def delete(self, *, cascade: bool = False, timeout: float | None = DELETE_SECONDS) -> bool:
        """Remove the conversation: its instance, also while it runs, its state and its journal. Entries that a fork
        continues are kept for it. False: the conversation did not exist.

        A child is terminated first, and removed when it has ended, so that its parent is notified of the end of its
        delegations (`ChildEnded`).

        Args:
            cascade: remove its children too, and theirs. This leaves out a child of an earlier conversation with this
                id that was deleted without that child.
            timeout: seconds that a child may take to end; None: forever.

        Raises:
            WaitTimeout: the child is terminated and not removed: no worker has ended it yet. ``waits_for`` says why.
            InvalidInput: the timeout is negative, or not a number.
        """
        check_timeout(timeout)
        if (page := await self._find(self.conversation_id)) is None:
            removed_instance = await self._remove_instance(self.conversation_id)
            if (page := await self._find(self.conversation_id)) is None:
                has_record = await self._client.session_store.load(self.conversation_id) is not None
                return (has_record and await self._remove_rest(self.conversation_id)) or removed_instance
            # A parent has created it since, and waits for its end.
        await self._end_delegations(page, timeout)
        # No wake of a conversation commits without its instance, so it gets no further children.
        removed: dict[str, bool] = {}
        waiting = [self.conversation_id]
        for conversation_id in waiting:
            if conversation_id not in removed:
                removed[conversation_id] = await self._remove_instance(conversation_id)
                if cascade:
                    waiting += await self._children(conversation_id)
        return [
            await self._remove_rest(conversation_id) or removed[conversation_id]
            for conversation_id in reversed(removed)
        ][-1]

    async def _children(self, conversation_id: str) -> list[str]:
        """Return the ids of the children of the conversation, not of an earlier conversation with this id."""
        page = await self._find(conversation_id)
        if page is None:
            return []
        found: list[str] = []
        where = JournalFilter(parent=conversation_id, parent_journal=page.journal_id)
        while rows := await self._client.journals.list(where, MAX_PAGE):
            found += [row.session_id for row in rows]
            where = replace(where, after=(rows[-1].created_at, rows[-1].session_id))
        return found

    async def _end_delegations(self, page: JournalPage, timeout: float | None) -> None:
        """Terminate a child, and wait for its end, unless its parent has ended."""
        if page.parent is None or page.instance_status in FINISHED:
            return
        parent = await self._find(page.parent)
        if parent is None or has_ended(parent) or page.parent_journal != parent.journal_id:
            return
        with anyio.move_on_after(timeout):
            with suppress(errors.UnknownConversation):  # another call has removed it
                await self.terminate(reason="it is deleted")
                await self._wait_end(page.last_seq)
            return
        raise await self._client._wait_timeout(
            self.conversation_id,
            f"conversation {self.conversation_id!r} is terminated, but no worker has ended it within {timeout:g} s: "
            "repeat the call; or delete its instance before, and its parent is not notified",
        )

    async def _wait_end(self, after: int) -> None:
        while True:
            try:
                async with self.events(after=after, follow=True, stream=False) as feed:
                    async for _ in feed:
                        pass
            except errors.EntriesRemoved as removed:
                after = removed.first_seq - 1
            except errors.TimelineChanged:
                after = 0
            else:
                return

    async def _remove_instance(self, conversation_id: str) -> bool:
        with suppress(errors.UnknownInstance):
            await self._client.delete(conversation_id, force=True)
            return True
        return False

    async def _remove_rest(self, conversation_id: str) -> bool:
        """Remove state and journal, and an instance that an event has created again since. A conversation that an event
        begins between two of these calls is removed as a whole, or not at all.
        """
        removed = False
        while await self._remove_record(conversation_id):
            removed = True
            await self._remove_instance(conversation_id)
        return removed

    async def _remove_record(self, conversation_id: str) -> bool:
        state = await self._client.session_store.delete([conversation_id])  # with its journal
        (journal,) = await self._client.journals.delete([conversation_id])
        return bool(state) or journal
