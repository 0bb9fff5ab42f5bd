"""Dead letters: inputs of wakes that have failed for good, which later wakes have gone on behind."""

from __future__ import annotations

from collections.abc import Mapping

from affinity.conversation.events import DeadLetters, JournalEntry
from affinity.conversation.reading import EntryReader
from affinity.conversation.views import DeadLetter
from affinity.errors import UnknownEntry
from affinity.limits import MAX_PAGE


async def dead_letters(reader: EntryReader) -> Mapping[str, DeadLetter]:
    """See `ConversationHandle.dead_letters`. The keys are the event ids under which `retry` sends them again: two calls
    send one event.

    Such an event id has the id of the failed wake, and the place of the input, counted from its last input. The number
    of the entry would not do: it changes in a merge or an import. Nor would a place counted from the first input, which
    retention may have removed.
    """
    found: dict[str, DeadLetter] = {}
    after = 0
    while page := await reader.history(kinds=[DeadLetters], after=after, limit=MAX_PAGE):
        for entry in page:
            found |= await _letters_of(reader, entry)
        after = page[-1].seq
    return found


async def _letters_of(reader: EntryReader, entry: JournalEntry) -> dict[str, DeadLetter]:
    event = entry.event
    if not isinstance(event, DeadLetters) or not event.inputs or entry.is_copied:
        return {}
    first, last = event.inputs[0], event.inputs[-1]
    named = {seq: f"retry/{entry.wake_id}/{place}" for place, seq in enumerate(reversed(event.inputs))}
    inputs: list[JournalEntry] = []
    while page := await reader.history(after=first - 1, before=last + 1, limit=MAX_PAGE):
        inputs += [each for each in page if each.seq in named]
        first = page[-1].seq + 1
    return {
        named[each.seq]: DeadLetter(
            seq=each.seq,
            event=each.event,
            error=event.error,
            failed_at=entry.recorded_at,
            retried_as=await _number(reader, named[each.seq]),
        )
        for each in inputs
    }


async def _number(reader: EntryReader, event_id: str) -> int | None:
    try:
        (entry,) = await reader.history(around=event_id, limit=1)
    except UnknownEntry:
        return None
    return entry.seq
