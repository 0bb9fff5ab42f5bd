"""One journal as the oracle sees it: its entries, and the wakes that have committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from affinity import Client
from affinity.conversation import DeadLetters, JournalEvent
from affinity.conversation.events import EventTypes
from affinity.conversation.journal import Entry, JournalLineage, JournalPage, JournalQuery, JournalWake
from affinity.conversation.reading import all_wakes
from affinity.conversation.trace import WAKE_SPAN
from affinity.limits import MAX_PAGE
from tests.programs.areas.conversations.clients import Export
from tests.programs.areas.conversations.handler import OWN_EVENTS

TYPES = EventTypes(OWN_EVENTS)


@dataclass(eq=False)
class Attempt:
    """What one attempt of a wake has committed: at its end, and in parts before."""

    wake_id: str
    entries: Sequence[Entry]
    started: Mapping[str, Any]
    completed: Mapping[str, Any]
    """Empty: it has not ended, and has left its parts."""
    row: JournalWake | None = None
    """How it has ended; None: it was cancelled, or has only notified others of the conversation's end."""

    @property
    def first(self) -> int:
        """Number of its first entry."""
        return self.entries[0].seq

    @property
    def has_row(self) -> bool:
        """Whether its end has one."""
        return self.is_ok or self.completed.get("result") == "error"

    @property
    def is_ok(self) -> bool:
        """The handler has returned."""
        is_run = any(each.kind == "agent.seen" for each in self.entries)
        return is_run and bool(self.completed) and self.completed.get("result", "ok") == "ok"

    @property
    def read(self) -> int:
        """Number of the last input that it has read."""
        return int(self.started["read"])

    @property
    def events(self) -> list[JournalEvent]:
        """The events that the handler has appended."""
        return [read(each) for each in self.entries if is_of_handler(each)]

    @property
    def dead_letters(self) -> DeadLetters | None:
        """What it records that an earlier wake has failed for."""
        return next((event for each in self.entries if isinstance(event := read(each), DeadLetters)), None)

    @property
    def expired(self) -> list[str]:
        """Ids of the requests that it has answered itself."""
        return [fields(each)["request_id"] for each in self.entries if each.kind.startswith("user.")]


@dataclass(eq=False)
class Journal:
    """A journal at rest."""

    name: str
    page: JournalPage
    """Where it stands; its entries are in ``entries``."""
    entries: Sequence[Entry]
    lineage: Sequence[JournalLineage]
    inherited: int = 0
    """The number up to which entries are of other journals."""
    export: Export | None = None
    """What it was imported from."""
    attempts: Sequence[Attempt] = field(default_factory=list)
    """Of its own wakes, in order."""
    wakes: Sequence[JournalWake] = field(default_factory=list)
    """How these have ended."""

    @property
    def ended(self) -> Sequence[Attempt]:
        """The attempts that have not left their parts only."""
        return [each for each in self.attempts if each.completed]

    @property
    def own(self) -> JournalLineage:
        """Where it came from."""
        return self.lineage[0]

    @property
    def is_whole(self) -> bool:
        """Retention has removed nothing."""
        return self.page.first_seq == 1

    @property
    def is_plain(self) -> bool:
        """Whether it has no entries of a merge, nor of a conversation that was detached or compressed."""
        exported = [node for each in self.lineage for node in from_json(each.extras).get("exported", ())]
        known = [*(each.lineage for each in self.lineage), *(node["lineage"] for node in exported)]
        return {*known} <= {None, "fork", "import"}

    def events_of(self, wake_id: str) -> list[JournalEvent]:
        """The events that the handler has appended in all attempts of a wake."""
        return [event for each in self.attempts if each.wake_id == wake_id for event in each.events]

    def inputs(self, after: int, up_to: int) -> list[Entry]:
        """The inputs between two numbers."""
        return [each for each in self.entries if each.is_input and after < each.seq <= up_to]

    def interrupts(self, after: int, before: int) -> list[int]:
        """The numbers of the interrupts between two others, both excluded."""
        found = [each for each in self.entries if each.kind == "user.interrupt" and each.is_input]
        return [each.seq for each in found if after < each.seq < before]


def fields(entry: Entry) -> dict[str, Any]:
    """The fields of an entry's event, without what the library adds: a trace, where a test has set up telemetry."""
    found: dict[str, Any] = from_json(entry.payload)
    found.pop("_", None)
    return found


def read(entry: Entry) -> JournalEvent:
    """An entry's event."""
    return TYPES.decode(entry.kind, entry.payload)


def is_of_handler(entry: Entry) -> bool:
    """Whether a handler has appended it: not a span, nor an answer of the conversation itself."""
    return entry.wake_id is not None and entry.kind.startswith(("agent.", "child.", "run.", "call."))


async def read_journal(client: Client, name: str, export: Export | None) -> Journal | None:
    """The journal of a conversation; ``export``: the one that it was imported from, as far as that is known."""
    entries: list[Entry] = []
    while True:
        after = entries[-1].seq if entries else 0
        page = await client.journals.read(JournalQuery(session_id=name, after=after, limit=MAX_PAGE))
        if page is None:
            return None
        entries += page.entries
        if not page.more:
            break
    found = Journal(name, page, entries, await client.journals.lineage(name))
    base = found.own.base
    copied = [each.seq for each in entries if each.is_copied]
    found.inherited = max(0 if base is None else base.up_to or 0, *copied, 0)
    if found.own.lineage == "compress":
        found.inherited = 1
    elif found.own.lineage == "import":
        found.inherited = page.last_seq if export is None else export.entries
        found.export = export
    attempts = _attempts([each for each in entries if each.seq > found.inherited])
    found.attempts = sorted(attempts, key=lambda each: each.first)
    found.wakes = [each async for each in all_wakes(client.journals.wakes, name, found.inherited)]
    ended = [each for each in found.attempts if each.has_row]
    for attempt, row in zip(reversed(ended), reversed(found.wakes), strict=False):
        attempt.row = row  # retention has cut a trace, and kept its end
    return found


def _attempts(entries: Sequence[Entry]) -> Iterator[Attempt]:
    begun: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.wake_id is None:
            continue
        what = fields(entry) if entry.kind.startswith("span.") else {}
        is_root = what.get("span") == WAKE_SPAN
        is_over = is_root and (entry.kind == "span.started" or what.get("result") == "cancelled")
        if is_over and entry.wake_id in begun:
            yield _attempt(begun.pop(entry.wake_id), {})
        if is_root and entry.kind == "span.started":
            begun[entry.wake_id] = []
        if entry.wake_id not in begun:
            continue  # retention has cut it, or a later wake closes its trace
        begun[entry.wake_id].append(entry)
        if is_root and entry.kind == "span.completed":
            yield _attempt(begun.pop(entry.wake_id), what)
    for left in begun.values():
        yield _attempt(left, {})


def _attempt(entries: Sequence[Entry], completed: Mapping[str, Any]) -> Attempt:
    return Attempt(entries[0].wake_id or "", entries, fields(entries[0]), completed)
