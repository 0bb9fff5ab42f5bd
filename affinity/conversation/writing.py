"""The journal write of a wake: collected while its handler runs, committed with the activity's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic_core import to_json

from affinity.conversation import journal as j
from affinity.conversation.events import (
    CallEnded,
    ChildEnded,
    EventTypes,
    JournalEvent,
    RunEnded,
    kind_of,
    meta_of_sender,
)
from affinity.conversation.kinds import WAKE_MESSAGE
from affinity.conversation.run_rows import note_answers
from affinity.errors import InvalidInput, PayloadTooLarge, SessionWriteConflict
from affinity.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES
from affinity.records import parse_stored

CHILD_ENDED: Final = kind_of(ChildEnded)

ENDS: Final[Mapping[str, str]] = {CHILD_ENDED: "delegation", kind_of(RunEnded): "run", kind_of(CallEnded): "call"}
"""The inputs that say that a delegation has ended, each with the field that has its id."""


def end_of_delegation(
    event: ChildEnded | RunEnded | CallEnded, session_id: str, kind: str, journal_id: int | None
) -> j.JournalAppend:
    """Return the input that tells a conversation that a delegation, run or call has ended. Its id is the same if the
    end is reported twice. Another conversation that has this id by now (``journal_id``) does not get it.

    Without an instance, which an operator may delete, it wakes nothing, and is read with the next event.
    """
    entry = j.NewEntry(
        kind=event.kind,
        # Its result is as large as an event may be.
        payload=EventTypes().encode(event, meta_of_sender(traced=False), limit=MAX_PAYLOAD_BYTES),
        event_id=f"{event.kind}/{getattr(event, ENDS[event.kind])}",
        is_input=True,
    )
    unnoticed = j.JournalAppend(session_id=session_id, kind=kind, journal_id=journal_id, entry=entry, message=None)
    return replace(unnoticed, message=WAKE_MESSAGE, if_refused=unnoticed)


@dataclass(eq=False)
class WakeWriting:
    """Collects the additions of one attempt of a wake; an `affinity.records.PartParticipant`."""

    session_id: str
    wake_id: str
    attempt: int
    """The number of the attempt in streams: see `attempt.EPOCHS`."""
    work: j.PendingWork
    types: EventTypes
    journals: j.JournalAccess
    max_entries: int
    size: int = 0
    """Characters of the handler's entries, also the entries for children, and of the notes of revisits."""
    processed: int = 0
    """The watermark from now on."""
    entries: list[j.NewEntry] = field(default_factory=list)
    requests: list[j.NewRequest] = field(default_factory=list)
    revisits: list[j.NewRevisit] = field(default_factory=list)
    ended_requests: list[str] = field(default_factory=list)
    ended_revisits: list[str] = field(default_factory=list)
    delegations: list[j.OpenDelegation] = field(default_factory=list)
    appends: list[j.JournalAppend] = field(default_factory=list)
    creations: list[j.JournalCreation] = field(default_factory=list)
    starts: list[j.InstanceStart] = field(default_factory=list)
    home: j.HomeLease | None = None
    steps: list[j.Step] = field(default_factory=list)
    """Steps that commit with the next part."""
    kept_steps: list[j.Step] = field(default_factory=list)
    """Steps of an earlier wake that stay when the wake ends: later wakes have its other inputs."""
    run_steps: dict[str, j.Step] = field(default_factory=dict)
    """The rows of the runs that go on in a later wake, and of those of this attempt, by their keys."""
    held: list[j.NewEntry] = field(default_factory=list)
    """Entries that only the end of the wake may commit."""
    end: j.WakeEnd | None = None
    """The end of the attempt."""
    failure: j.WakeFailure | None = None
    """The failure of the handler, with the end."""
    is_over: bool = False
    """The wake has come to its end: its steps are no longer needed."""
    lost: BaseException | None = None
    """The error after which the outcome of a part is not known."""
    requested: set[str] = field(default_factory=set)
    """Ids of the requests of this attempt, in its parts too."""
    delegated: set[str] = field(default_factory=set)
    """Ids of the delegations of its parts."""
    later: list[float] = field(default_factory=list)
    """The times when the requests of its parts are due, by the clock of `JournalAccess.monotonic`."""
    has_later_revisit: bool = False
    has_parts: bool = False
    is_interrupted: bool = False
    """True if an interrupt waits that the wake has not read: it drops the requests of the wake."""
    _number: int = 0  # entries of its parts
    _write: j.JournalWrite | None = None

    def append(self, event: JournalEvent) -> None:
        """Add an entry of the handler.

        Raises:
            InvalidInput: the event is refused, or the wake has as many entries as it may have.
            PayloadTooLarge: they have more than half of `limits.MAX_BATCH_BYTES`: one transaction writes them.
        """
        if self._number + len(self.entries) >= self.max_entries:
            raise InvalidInput(f"the wake has appended {self.max_entries} entries, the limit (ConversationLimits)")
        entry = self._entry(event)
        self.measure(entry.payload)
        self.entries.append(entry)

    def measure(self, payload: str) -> None:
        """Count the additions of the handler, to this journal or another one.

        Raises:
            PayloadTooLarge: see `append`.
        """
        size = self.size + len(payload)
        if size > MAX_BATCH_BYTES // 2:
            raise PayloadTooLarge(f"the wake has appended {size} bytes, over the limit of {MAX_BATCH_BYTES // 2}")
        self.size = size

    def note(self, event: JournalEvent) -> j.NewEntry:
        """Add an entry of the conversation itself."""
        entry = self._entry(event)
        self.entries.append(entry)
        return entry

    def _entry(self, event: JournalEvent) -> j.NewEntry:
        return j.NewEntry(kind=event.kind, payload=self.types.encode(event), wake_id=self.wake_id)

    def record(self, kind: str, fields: Mapping[str, Any]) -> j.NewEntry:
        """Add an entry of the conversation itself by its fields, without fields that have their default.

        Each wake has three such entries; they need no validation.
        """
        payload = to_json({**fields, "kind": kind}).decode()
        entry = j.NewEntry(kind=kind, payload=payload, wake_id=self.wake_id)
        self.entries.append(entry)
        return entry

    def discard(self, keep: Sequence[j.NewEntry]) -> None:
        """Drop all additions but these entries: the handler has failed."""
        self.entries = list(keep)
        self.held.clear()
        for changes in (
            self.requests,
            self.revisits,
            self.ended_requests,
            self.ended_revisits,
            self.delegations,
            self.appends,
            self.creations,
            self.starts,
        ):
            changes.clear()
        self.processed = self.work.processed

    def check_known(self) -> None:
        """Refuse to go on when the outcome of a part is not known: the wake is to be repeated.

        Raises:
            SessionWriteConflict: the outcome is not known, or the part was refused.
            Exception: the database has refused the data of a part.
        """
        if isinstance(self.lost, Exception):
            raise self.lost
        if self.lost is not None:
            text = f"it is not known what a part of the wake has committed: {self.lost!r}"
            raise SessionWriteConflict(self.session_id, None, None, text)

    def request(self, new: j.NewRequest) -> None:
        """Add a request, whose entry is added."""
        self.requests.append(new)
        self.requested.add(new.request_id)

    def withdraw(self, request_id: str, answer: JournalEvent) -> None:
        """Have the end of the wake answer a request, of this wake or an earlier one."""
        self.held.append(self.note(answer))
        left = [new for new in self.requests if new.request_id != request_id]
        if len(left) == len(self.requests):
            self.ended_requests.append(request_id)
        self.requests = left

    @property
    def ended_delegations(self) -> list[str]:
        """Ids of the delegations whose ends the wake has processed."""
        ends = [item for item in self.work.inputs if item.kind in ENDS and item.seq <= self.processed]
        return [str(parse_stored(item.payload)[ENDS[item.kind]]) for item in ends]

    @property
    def has_open_delegations(self) -> bool:
        """True if delegations are left behind this wake."""
        begun = {delegation.delegation_id for delegation in (*self.work.delegations, *self.delegations)}
        return bool((begun | self.delegated).difference(self.ended_delegations))

    @property
    def has_additions(self) -> bool:
        """True if a part would commit anything."""
        return self.has_entries or any((self.requests, self.revisits, self.appends, self.steps))

    @property
    def has_entries(self) -> bool:
        """True if a part would have entries: it removes the streamed parts."""
        return len(self.entries) > len(self.held)

    def has_additions_beside(self, trace: Sequence[j.NewEntry]) -> bool:
        """Return whether a part would commit anything but these entries."""
        known = {id(entry) for entry in (*self.held, *trace)}
        added = (self.requests, self.revisits, self.appends, self.steps)
        return any(id(entry) not in known for entry in self.entries) or any(added)

    def take_steps(self) -> j.JournalWrite:
        """Return the steps as a part, without anything else."""
        steps, self.steps = self.steps, []
        return self.part(steps=steps)

    def take_part(self) -> j.JournalWrite:
        """Return the additions so far, as a part of the wake, which goes on."""
        held = {id(entry) for entry in self.held}
        entries = [entry for entry in self.entries if id(entry) not in held]
        again = {revisit.key for revisit in self.revisits}
        part = self.part(
            entries=entries,
            requests=[] if self.is_interrupted else self.requests,
            revisits=[] if self.is_interrupted else self.revisits,
            ended_revisits=[key for key in self.ended_revisits if key in again],
            delegations=self.delegations,
            appends=self.appends,
            starts=self.starts,
            clear_stream=bool(entries),
            steps=self.steps,
        )
        now = self.journals.monotonic()
        self.delegated |= {delegation.delegation_id for delegation in self.delegations}
        self.later += [now + revisit.delay for revisit in self.revisits]
        self.later += [now + request.expires_in for request in self.requests if request.expires_in is not None]
        self.has_later_revisit |= bool(self.revisits)
        self.ended_revisits = [key for key in self.ended_revisits if key not in again]
        self._number += len(entries)
        self.entries = [*self.held]
        self.requests, self.revisits, self.delegations, self.appends, self.steps = [], [], [], [], []
        self.starts = []
        self.size = 0
        return part

    def part(self, **added: Any) -> j.JournalWrite:
        """Return a write of the wake, which goes on."""
        self.has_parts = True
        return j.JournalWrite(
            session_id=self.session_id,
            journal_id=self.work.journal_id,
            base=self.work.processed,
            processed=self.processed,
            wake_id=self.wake_id,
            home=self.home,
            attempt=self.attempt - 1,
            is_part=True,
            **added,
        )

    async def prepare(self) -> j.JournalWrite:
        """Return the write that goes with the activity's result."""
        if self.is_over and self.run_steps:
            inputs = [(item.kind, item.payload) for item in self.work.inputs if item.seq <= self.processed]
            note_answers(self.run_steps, [*inputs, *((entry.kind, entry.payload) for entry in self.held)])
        self._write = j.JournalWrite(
            session_id=self.session_id,
            journal_id=self.work.journal_id,
            base=self.work.processed,
            processed=self.processed,
            wake_id=self.wake_id,
            entries=self.entries,
            requests=self.requests,
            revisits=self.revisits,
            ended_requests=self.ended_requests,
            ended_revisits=self.ended_revisits,
            delegations=self.delegations,
            ended_delegations=self.ended_delegations,
            appends=self.appends,
            creations=self.creations,
            starts=self.starts,
            home=self.home,
            clear_stream=True,
            attempt=self.attempt,
            end=self.end,
            failure=self.failure,
            clear_steps=self.is_over and (self.has_parts or bool(self.work.steps)),
            steps=[*self.kept_steps, *self.run_steps.values()] if self.is_over else (),
        )
        return self._write

    def settled(self, applied: bool) -> None:
        """Notify the readers, if the write is committed."""
        if applied and self._write is not None:
            self.journals.note_written(self._write)
