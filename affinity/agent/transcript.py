"""The transcript of a loop: the end of the journal from the beginning of a turn on, and the calls without a result.

A turn is what the model reads as new, and the answer of the agent. A transcript is cut between turns. A call that waits
for an answer, or has one now, is known however long ago it was made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from pydantic_core import to_json

from affinity.agent.formats import Render, call_id, is_of, late_result
from affinity.conversation.events import (
    ConfirmationAnswer,
    Content,
    ContextSummary,
    CustomToolResult,
    CustomToolUse,
    DeadLetters,
    InputsRead,
    JournalEntry,
    JournalEvent,
    RequestEvent,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserInterrupt,
    UserMessage,
    kind_of,
    text_of,
)
from affinity.conversation.sections import Section
from affinity.conversation.trace import TRACE_KINDS
from affinity.conversation.views import EndedWake
from affinity.conversation.wake import Wake
from affinity.errors import InvalidInput, InvalidOptions
from affinity.redaction import redacted
from affinity.tasks import call_any
from affinity.user_code import check_function

HISTORY: Final = 1_000
"""Entries of the journal that are the transcript at most: the last ones."""

_SET_ASIDE: Final = "[a message that could not be processed was set aside]"

Summarise: TypeAlias = Callable[[Sequence[JournalEvent]], Awaitable[Content] | Content]
"""Writes a summary of events; a function that is not async runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """How much of the transcript a model is given: whole turns, the last ones; the last one in any case.

    Raises:
        InvalidOptions: not one of the bounds is given, ``max_tokens`` without ``count_tokens``, or a function takes
            other arguments.
    """

    max_bytes: int | None = None  # of the events as JSON
    max_tokens: int | None = None
    count_tokens: Callable[[JournalEvent], int] | None = None
    summarise: Summarise | None = None
    """Summarises the entries that are left out, once. The summary is in the journal, and the transcript begins with it
    from then on. The turns that are kept have half of the bound, and the summary a quarter at most, so that the next
    summary comes later: the end of a longer one is cut off. If it raises, the wake goes on without these entries, and a
    later wake tries again. None: they are not read.
    """

    def __post_init__(self) -> None:
        if (self.max_bytes is None) == (self.max_tokens is None):
            raise InvalidOptions("a ContextWindow has max_bytes or max_tokens: give one of them")
        if self.max_tokens is not None and self.count_tokens is None:
            raise InvalidOptions("max_tokens needs count_tokens, which says how many tokens an event has")
        for function, what, parameter in (
            (self.count_tokens, "count_tokens", "event"),
            (self.summarise, "summarise", "events"),
        ):
            if function is not None:
                check_function(function, f"{what} of a ContextWindow", parameter)
        if type(self.bound) is not int or self.bound < 1:
            raise InvalidOptions(f"the bound of a ContextWindow is an integer from 1, not {self.bound!r}")

    @property
    def bound(self) -> int:
        """In bytes, or in tokens."""
        return self.max_bytes or self.max_tokens or 0

    def size_of(self, event: JournalEvent) -> int:
        """Size of an event: in bytes, or in tokens."""
        return len(event.model_dump_json().encode()) if self.count_tokens is None else self.count_tokens(event)

    def fit_summary(self, summary: ContextSummary) -> ContextSummary:
        """The summary, or the beginning of its text, with a quarter of the bound.

        Raises:
            InvalidInput: not even an empty one has so little.
        """
        text, room = text_of(summary.content), self.bound // 4
        while (size := self.size_of(summary)) > room:
            if not text:
                raise InvalidInput(f"an empty summary has {size}, over {room}, a quarter of the ContextWindow's bound")
            text = text[: len(text) * room // (size + 1)]
            summary = summary.model_copy(update={"content": text})
        return summary

    def first_kept(self, events: Sequence[JournalEvent], render: Render, bound: int | None = None) -> int:
        """The place from which on events are kept: the beginning of a turn."""
        starts = _starts(events, render)
        room, kept = self.bound if bound is None else bound, len(events)
        for start in reversed(starts):
            room -= sum(map(self.size_of, events[start:kept]))
            if room < 0 and kept < len(events):
                break
            kept = start
        return kept if starts else 0


class LoopTranscript(NamedTuple):
    """The events before a loop."""

    events: list[JournalEvent]
    earlier: list[JournalEvent]  # calls that wait, or have an answer now, and are not among these


async def read_transcript(wake: Wake, section: Section, render: Render, window: ContextWindow | None) -> LoopTranscript:
    """The end of the journal with the inputs of the wake, each behind the answers that did not know it."""
    summarise = None if window is None else window.summarise
    entries = await _entries(wake, render, find_summary=summarise is not None)
    events = [each.event for each in entries]
    if window is not None and summarise is not None and window.first_kept(events, render):
        cut = window.first_kept(events, render, window.bound // 2)
        last_wake = next((each.wake_id for each in reversed(entries[:cut]) if each.wake_id is not None), None)
        has_news = any(not isinstance(each, ContextSummary) for each in events[:cut])
        if last_wake is None or last_wake == wake.id or not has_news:  # what this wake adds is behind the summary
            return LoopTranscript(events, await _earlier_calls(wake, events))
        summary = await _summarise(wake, window, events[:cut], last_wake)
        if summary is not None:
            await section.commit()
            events = [summary, *events[cut:]]
    return LoopTranscript(events, await _earlier_calls(wake, events))


async def _summarise(
    wake: Wake, window: ContextWindow, events: Sequence[JournalEvent], behind: str
) -> ContextSummary | None:
    """Append a summary of events. None: there is none, for its function has failed; a later wake tries again."""
    assert window.summarise is not None
    try:
        with wake.span("summarise"):
            content = await call_any(window.summarise, events)
            summary = window.fit_summary(ContextSummary(content, behind=behind))
            wake.append(summary)
    except Exception as error:
        text = "no summary: the model is given the last turns only, until one can be made"
        wake.logger.exception(text, exc_info=redacted(error))
        return None
    return summary


async def _entries(wake: Wake, render: Render, *, find_summary: bool) -> list[JournalEntry]:
    history = without_dead_letters(await wake.history(last=HISTORY))
    known, others = {entry.seq for entry in history}, [each for each in history if each.wake_id not in {None, wake.id}]
    ended = await wake.wakes(after=others[0].seq - 1, limit=HISTORY) if others else []
    found = in_order([*history, *(entry for entry in wake.pending if entry.seq not in known)], ended)
    entries = [entry for entry in found if not (is_trace(entry.event) or _is_later(entry, wake))]
    summary = [entry for entry in history if isinstance(entry.event, ContextSummary)][-1:]
    if find_summary and not summary:
        summary = [*await wake.history(last=1, kinds=[kind_of(ContextSummary)])]
    for each in summary:
        assert isinstance(each.event, ContextSummary)
        last = [place for place, entry in enumerate(entries) if entry.wake_id == each.event.behind][-1:]
        kept = entries[last[0] + 1 :] if last else entries
        entries = [entry for entry in kept if not isinstance(entry.event, ContextSummary)]
    if summary or (history and history[0].seq > 1):  # what comes first may be the end of a turn
        entries = entries[next(iter(_starts([entry.event for entry in entries], render)), 0) :]
    return [*summary, *entries]


def _is_later(entry: JournalEntry, wake: Wake) -> bool:
    """Whether it is an input of a later wake. An interrupt counts at once: no call begins behind it."""
    is_later = entry.wake_id is None and entry.seq > wake.read_up_to
    return is_later and not isinstance(entry.event, UserInterrupt)


def without_dead_letters(entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    """The entries, with a notice for each input that was set aside: a model that has failed with one would fail with it
    again. What was done for it stays.
    """
    dead = {
        seq
        for entry in entries
        if isinstance(entry.event, DeadLetters) and not entry.is_copied  # numbers of another conversation
        for seq in entry.event.inputs
    }
    return [replace(entry, event=UserMessage(_SET_ASIDE)) if entry.seq in dead else entry for entry in entries]


def in_order(entries: Iterable[JournalEntry], ended: Iterable[EndedWake]) -> list[JournalEntry]:
    """Entries of a journal in the order in which they were known: in the journal, an input that came while a wake ran
    stands before the entries of that wake. A wake without an end, which runs or was cancelled, has read what stands
    before its first entry. Inputs that a wake has read amid its entries stand before its `InputsRead`.
    """
    entries = [*entries]
    found: list[JournalEntry] = []
    waiting: list[JournalEntry] = []  # inputs that no wake has read so far
    first: dict[str, int] = {}
    ends: defaultdict[str, list[EndedWake]] = defaultdict(list)
    for end in ended:
        ends[end.wake_id].append(end)
    begin: dict[str, int] = {}  # how many inputs a wake has read at its begin, if it has read more since
    for entry in entries:
        if isinstance(entry.event, InputsRead) and entry.wake_id is not None:
            begin.setdefault(entry.wake_id, entry.event.before)
    for entry in entries:
        if entry.wake_id is None:
            waiting.append(entry)
            continue
        is_first, begun = entry.wake_id not in first, first.setdefault(entry.wake_id, entry.seq)
        if isinstance(entry.event, InputsRead):
            count = entry.event.inputs
        elif entry.wake_id in begin:
            count = begin[entry.wake_id] if is_first else 0
        else:
            read = next((each.read for each in ends[entry.wake_id] if each.seq >= entry.seq), begun)
            count = sum(each.seq <= read for each in waiting)
        found += [*waiting[:count], entry]
        waiting = waiting[count:]
    return [*found, *waiting]


def is_read(event: JournalEvent, render: Render) -> bool:
    """Whether the model reads the event as new."""
    return isinstance(event, UserMessage) or (not is_trace(event) and render(event) is not None)


def _starts(events: Sequence[JournalEvent], render: Render) -> list[int]:
    """The places at which turns begin."""
    found, was_read = [], False
    for place, event in enumerate(events):
        if is_trace(event):
            continue
        reads = is_read(event, render)
        if reads and not was_read:
            found.append(place)
        was_read = reads
    return found


def is_trace(event: JournalEvent) -> bool:
    """Whether the conversation itself has added the event: a span, or a change of its status. No model reads it."""
    return str(event.kind).startswith(TRACE_KINDS)


async def _earlier_calls(wake: Wake, events: Iterable[JournalEvent]) -> list[JournalEvent]:
    """Calls with their requests that are not among the events, and wait for an answer, or have one now."""
    answers = [each.event for each in wake.pending if isinstance(each.event, ConfirmationAnswer | CustomToolResult)]
    wanted = {each.request_id for each in (*wake.requests, *answers)}
    wanted -= {getattr(each, "request_id", "") for each in events if isinstance(each, RequestEvent)}
    found: list[JournalEvent] = []
    for wake_id in sorted({each.split(".")[0] for each in wanted}):  # that has made them: see `Wake.require`
        asked = [each.event for each in await wake.history(last=HISTORY, wake=wake_id)]
        for opened in open_calls(asked):
            if opened.request_id in wanted:
                found.append(opened.call)
                found += [
                    each
                    for each in asked
                    if isinstance(each, ToolConfirmation) and each.request_id == opened.request_id
                ]
    return found


def name_late(events: Iterable[JournalEvent], calls: Iterable[JournalEvent]) -> list[JournalEvent]:
    """The events with each result whose call is not among them as a message. ``calls``: where the call may be."""
    keys: set[str] = set()
    ids: set[str] = set()
    requests: set[str] = set()
    found: list[JournalEvent] = []
    known = [each for each in calls if isinstance(each, ToolUse | CustomToolUse)]
    for event in events:
        if isinstance(event, ToolUse | CustomToolUse):
            keys.add(event.call_key)
            ids.add(call_id(event))
            requests.add(event.request_id if isinstance(event, CustomToolUse) else "")
        match event:
            case ToolResult() if event.call_key not in keys if event.call_key else event.tool_use_id not in ids:
                call = next((each for each in reversed(known) if is_of(event, each)), None)
                found += [] if event.provisional else [late_result(call, event.result)]
            case CustomToolResult() if event.request_id not in requests:
                asked = [each for each in known if isinstance(each, CustomToolUse)]
                call = next((each for each in asked if each.request_id == event.request_id), None)
                found.append(late_result(call, event.result))
            case _:
                found.append(event)
    return found


# -- calls


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call without a result, with its request and the answer."""

    call: ToolUse | CustomToolUse
    key: str
    """Names the call, in all attempts."""
    request_id: str | None = None
    answer: ConfirmationAnswer | None = None
    is_interrupted: bool = False
    """An interrupt followed the call: no answer counts."""
    is_announced: bool = False
    """The model knows that it waits: it has a provisional result."""


def open_calls(events: Iterable[JournalEvent]) -> list[OpenCall]:
    """The calls without a result, in order.

    A model may use the id of a call again, also in one reply: what was asked and answered counts for one call only.
    """
    found: list[OpenCall] = []
    numbers: Counter[tuple[str, str]] = Counter()  # of calls without a key
    for event in events:
        match event:
            case ToolUse():
                name = (event.message_id, event.tool_use_id)
                numbers[name] += not event.call_key
                found.append(OpenCall(event, event.call_key or _key(*name, numbers[name])))
            case CustomToolUse():
                found.append(OpenCall(event, event.request_id, event.request_id))
            case ToolConfirmation():
                _ask(found, event)
            case ConfirmationAnswer():
                for each in found:
                    each.answer = event if each.request_id == event.request_id else each.answer
            case ToolResult():
                _end(found, event)
            case UserInterrupt():
                for each in found:
                    each.is_interrupted = True
            case CustomToolResult() if not event.expired:
                found = [each for each in found if each.request_id != event.request_id]
    return found


def _ask(calls: Iterable[OpenCall], event: ToolConfirmation) -> None:
    asked = [each for each in calls if each.request_id is None and is_of(event, each.call)]
    asked.sort(key=lambda each: (each.call.tool, each.call.arguments) != (event.tool, event.arguments))
    for each in asked[:1]:
        each.request_id = event.request_id


def _end(calls: list[OpenCall], event: ToolResult) -> None:
    ended = [each for each in calls if is_of(event, each.call)]
    if event.provisional:
        ended.sort(key=lambda each: each.is_announced or each.request_id is None)
        for each in ended[:1]:
            each.is_announced = True
    else:
        ended.sort(key=lambda each: each.request_id is not None and each.answer is None)  # these still wait
        for each in ended[:1]:
            calls.remove(each)


def _key(message_id: str, tool_use_id: str, number: int) -> str:
    """Names a call without a key: its id may be of any length, and used again."""
    return sha256(to_json([message_id, tool_use_id, number])).hexdigest()
