"""Journals by the contract: entries, the watermark, requests and revisits."""

from __future__ import annotations

from dataclasses import dataclass, field

from affinity.conversation.journal import JournalAppend, JournalWake, JournalWrite, NewEntry


@dataclass
class ModelEntry:
    """An entry."""

    seq: int
    text: str
    event_id: str | None
    is_input: bool


@dataclass
class ModelRequest:
    """A pending request."""

    seq: int  # the first entry that came with it
    expires_at: float | None

    def is_expired(self, now: float) -> bool:
        """Whether it takes no answer any more."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass
class ModelJournal:
    """A journal with its rows."""

    journal_id: int
    processed: int = 0
    last_seq: int = 0
    dropped: int = 0
    closed: bool = False
    entries: list[ModelEntry] = field(default_factory=list)  # the kept ones
    wakes: list[JournalWake] = field(default_factory=list)  # the kept ones
    requests: dict[str, ModelRequest] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)  # by number of the answer, the first entry of the request
    revisits: dict[str, float] = field(default_factory=dict)  # when they are due

    @property
    def pending(self) -> list[ModelEntry]:
        """Inputs that no wake has processed."""
        return [entry for entry in self.entries if entry.is_input and entry.seq > self.processed]

    def find_next_due(self, now: float) -> float | None:
        """Seconds until a revisit is due, or a request expires."""
        times = [*self.revisits.values(), *(request.expires_at for request in self.requests.values())]
        return min((at - now for at in times if at is not None and at > now), default=None)

    def find(self, event_id: str | None) -> ModelEntry | None:
        """The entry with an event id."""
        return next((e for e in self.entries if event_id is not None and e.event_id == event_id), None)

    def add(self, new: NewEntry) -> None:
        """Append an entry, unless its event id is there."""
        if self.find(new.event_id) is None:
            self.last_seq += 1
            self.entries.append(ModelEntry(self.last_seq, new.payload, new.event_id, new.is_input))

    def append(self, new: JournalAppend) -> None:
        """An input that was accepted."""
        assert new.entry is not None
        self.add(new.entry)
        if new.answers is not None:
            self.answered[self.last_seq] = self.requests.pop(new.answers.request_id).seq
        if new.drops:
            self.requests.clear()
            self.revisits.clear()
            self.dropped = self.last_seq
        self.closed = self.closed or new.closes

    def write(self, write: JournalWrite, now: float) -> None:
        """A wake that has passed."""
        first = self.last_seq + 1
        for entry in write.entries:
            self.add(entry)
        self.processed = write.processed
        if (end := write.end) is not None:
            ended = (write.base, end.read, write.processed, end.outcome, end.reason, end.attempt, end.error)
            self.wakes.append(JournalWake(self.last_seq, write.wake_id, *ended))
        for name in write.ended_requests:
            self.requests.pop(name, None)
        for key in write.ended_revisits:
            self.revisits.pop(key, None)
        if self.dropped > write.processed:
            return
        for request in write.requests:
            expires_at = None if request.expires_in is None else now + request.expires_in
            self.requests.setdefault(request.request_id, ModelRequest(first, expires_at))
        for revisit in write.revisits:
            self.revisits.setdefault(revisit.key, now + revisit.delay)

    def prune(self, most: int) -> int:
        """Remove the oldest entries, so that ``most`` are kept; returns how many go."""
        kept = [entry.seq for entry in self.pending] + [request.seq for request in self.requests.values()]
        kept += [first for answer, first in self.answered.items() if answer > self.processed]
        end = min([*kept, self.last_seq - most + 1])
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry.seq >= end]
        self.wakes = [wake for wake in self.wakes if wake.seq >= end]
        return before - len(self.entries)
