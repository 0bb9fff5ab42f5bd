"""When a conversation has nothing left to do: for `ConversationHandle.ask` with ``until="settled"``."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affinity.client.journals import Journals
from affinity.conversation.follow import JournalIdentity, check_timeline, fields_of, has_ended, unknown_conversation
from affinity.conversation.reading import all_entries, open_delegations
from affinity.conversation.reply import CONVERSATION_IDLE, Reply, failure_of
from affinity.errors import ConversationTerminated, UnknownConversation
from affinity.journal import Entry, JournalFilter, JournalPage, JournalQuery
from affinity.limits import MAX_PAGE

_DONE: Final = frozenset({"end_turn", "truncated"})
"""Stop reasons of a wake behind which no other one is to come, unless for the end of a child."""


async def settled_reply(journals: Journals, reply: Reply, journal: JournalIdentity) -> Reply | None:
    """The reply of the last wake, if the conversation has nothing left to do; None: it has.

    Args:
        journals: of the client.
        reply: of an earlier wake.
        journal: of the conversation.

    Raises:
        WakeFailed: the last wake has failed for good, and nothing has come since.
        ConversationTerminated: it has ended with work left.
        UnknownConversation: it was deleted.
        TimelineChanged: the database may have lost what the conversation had.
    """
    me = reply.conversation_id
    asked = journals.read(JournalQuery(session_id=me, kinds=(CONVERSATION_IDLE,), newest_first=True, limit=1))
    inputs = await journals.read(JournalQuery(session_id=me, pending=True, limit=1))
    page = await asked
    check_timeline(journals, me, journal.timeline)
    if page is None or inputs is None:
        raise unknown_conversation(me)
    if page.journal_id != journal.journal_id:
        raise UnknownConversation(me, "it was deleted, and another one has its id")
    last = next(iter(page.entries), None)  # None: retention has removed it
    if last is not None and last.seq == page.last_seq and (failure := failure_of(me, last)) is not None:
        raise failure
    reason = reply.stop_reason if last is None else fields_of(last).get("stop_reason", "")
    has_inputs = bool(inputs.entries) or inputs.processed != page.processed
    if reason in _DONE and not has_inputs and not await _has_open_delegations(journals, me, page):
        return reply if last is None else await _reply_of(journals, reply, last, page)
    if page.closed or has_ended(page):
        raise ConversationTerminated(me, "it has ended with work left")
    return None


async def _has_open_delegations(journals: Journals, me: str, page: JournalPage) -> bool:
    children = JournalFilter(parent=me, parent_journal=page.journal_id)
    if not await journals.list(children, 1):
        return False
    own = next(iter(await journals.lineage(me)), None)
    base = 0 if own is None or own.base is None else own.base.up_to or 0
    return bool(await open_delegations(journals.read, me, base, page.processed))


async def _reply_of(journals: Journals, reply: Reply, last: Entry, page: JournalPage) -> Reply:
    """The reply of the wake with this last entry."""
    if last.wake_id is None or last.wake_id == reply.wake_id:
        return reply
    query = JournalQuery(session_id=reply.conversation_id, wake_id=last.wake_id, limit=MAX_PAGE)
    entries = [each async for each in all_entries(journals.read, query)]
    reason = fields_of(last).get("stop_reason", "")
    return replace(reply, wake_id=last.wake_id, processed=page.processed, stop_reason=reason, _entries=entries)
