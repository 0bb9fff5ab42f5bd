"""Dead letters: inputs of wakes that have failed for good, which later wakes have gone on behind."""

from __future__ import annotations

from collections.abc import Sequence

from affinity.conversation.events import DeadLetters, JournalEntry
from affinity.conversation.reading import EntryReader
from affinity.conversation.views import DeadLetter
from affinity.errors import UnknownEntry
from affinity.limits import MAX_PAGE


def retry_id(seq: int) -> str:
    """The event id under which a dead letter is sent again: two calls are one event."""
    return f"retry/{seq}"


def retry_of(event_id: str | None) -> int | None:
    """The number of the dead letter that an entry with this event id sends again; None: it does not."""
    prefix, _, number = (event_id or "").partition("/")
    return int(number) if prefix == "retry" and number.isdecimal() else None


async def dead_letters(reader: EntryReader) -> Sequence[DeadLetter]:
    """See `ConversationHandle.dead_letters`."""
    found: list[DeadLetter] = []
    after = 0
    while page := await reader.history(kinds=[DeadLetters], after=after, limit=MAX_PAGE):
        for entry in page:
            found += await _letters_of(reader, entry)
        after = page[-1].seq
    return found


async def _letters_of(reader: EntryReader, entry: JournalEntry) -> list[DeadLetter]:
    event = entry.event
    if not isinstance(event, DeadLetters) or not event.inputs or entry.is_copied:
        return []
    first, last = event.inputs[0], event.inputs[-1]
    named = frozenset(event.inputs)
    inputs: list[JournalEntry] = []
    while page := await reader.history(after=first - 1, before=last + 1, limit=MAX_PAGE):
        inputs += [each for each in page if each.seq in named]
        first = page[-1].seq + 1
    return [
        DeadLetter(
            seq=each.seq,
            event=each.event,
            error=event.error,
            failed_at=entry.recorded_at,
            retried_as=await _number(reader, retry_id(each.seq)),
        )
        for each in inputs
    ]


async def _number(reader: EntryReader, event_id: str) -> int | None:
    try:
        (entry,) = await reader.history(around=event_id, limit=1)
    except UnknownEntry:
        return None
    return entry.seq
