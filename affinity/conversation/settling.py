"""Finds out if a conversation has nothing left to do: for `ConversationHandle.ask` with ``until="settled"``."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affinity.conversation.follow import JournalIdentity, check_timeline, has_ended, unknown_conversation
from affinity.conversation.journal import JournalPage, JournalQuery, JournalWake
from affinity.conversation.journals import Journals
from affinity.conversation.reading import all_entries
from affinity.conversation.reply import Reply, failure_of
from affinity.errors import ConversationTerminated, UnknownConversation
from affinity.limits import MAX_PAGE

_DONE: Final = frozenset({"end_turn", "truncated"})
"""Stop reasons of a last wake: only an input, such as the end of a child, begins another one."""


async def settled_reply(journals: Journals, reply: Reply, journal: JournalIdentity) -> Reply | None:
    """Return the reply of the last wake, if the conversation has nothing left to do; None: work is left.

    Args:
        journals: of the client.
        reply: of an earlier wake.
        journal: of the conversation.

    Raises:
        WakeFailed: the last wake has failed for good, and nothing has come since.
        ConversationTerminated: it has ended with work left.
        UnknownConversation: it was deleted.
        TimelineChanged: the database may have lost entries of the conversation.
    """
    me = reply.conversation_id
    last = next(iter(await journals.wakes(me, newest_first=True, limit=1)), None)  # None: retention has removed it
    page = await journals.read(JournalQuery(session_id=me, pending=True, limit=1))
    check_timeline(journals, me, journal.timeline)
    if page is None:
        raise unknown_conversation(me)
    if page.journal_id != journal.journal_id:
        raise UnknownConversation(me, "it was deleted, and another one has its id")
    if last is not None and last.outcome == "failed" and last.seq == page.last_seq:
        raise failure_of(me, last)
    reason, processed = (reply.stop_reason, page.processed) if last is None else (last.reason, last.processed)
    has_inputs = bool(page.entries) or processed != page.processed  # another wake has ended since
    if reason in _DONE and not has_inputs and not await _has_open_delegations(journals, me, page):
        return reply if last is None else await _reply_of(journals, reply, last)
    if page.closed or has_ended(page):
        raise ConversationTerminated(me, "it has ended with work left")
    return None


async def _has_open_delegations(journals: Journals, me: str, page: JournalPage) -> bool:
    """Return whether delegations are open; also True if the journal has changed since the page was read."""
    work = await journals.pending(me)
    return work is None or work.last_seq != page.last_seq or bool(work.delegations)


async def _reply_of(journals: Journals, reply: Reply, wake: JournalWake) -> Reply:
    """Return the reply of another wake."""
    if wake.wake_id == reply.wake_id:
        return reply
    query = JournalQuery(session_id=reply.conversation_id, wake_id=wake.wake_id, limit=MAX_PAGE)
    entries = [entry async for entry in all_entries(journals.read, query)]
    about = replace(reply, wake_id=wake.wake_id, processed=wake.processed, stop_reason=wake.reason)
    return replace(about, _entries=entries)
