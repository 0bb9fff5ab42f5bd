"""Export and import of conversations: one JSON object a line.

The first line is the conversation (``conversation``), then come its ancestors, nearest first (``ancestor``), its record
of state (``record``, as `affinity.session.transfer` has it), its ended wakes (``wake``), its pending requests
(``request``) and revisits (``revisit``), its open work of children and runs (``delegation``), the steps of a wake that
has not ended, and of runs over several wakes (``step``), and its entries (``entry``), oldest first.

An import makes a conversation with these entries, numbered from 1, this state, these requests and revisits. It has no
parents; the lineage that it had, as far as its nearest ancestors, is kept in its extras. Delegations and steps cannot
go on elsewhere: it is refused, unless it is told to leave them out. Streamed parts, the home, and the end of a
terminated conversation are not exported.

Numbers of entries in payloads become the numbers that these entries have now. Entries that a merge had copied have
numbers of another conversation, so they have none here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, JsonValue, model_validator
from pydantic_core import from_json, to_json

from affinity.conversation.events import DeadLetters, SpanStarted, check_kind, kind_of
from affinity.conversation.journal import (
    Description,
    EndOutcome,
    Entry,
    InheritedRequest,
    JournalLineage,
    JournalPage,
    JournalWake,
    NewEntry,
    PendingWork,
    Request,
    Revisit,
    check_description,
)
from affinity.errors import InvalidInput, problem_of
from affinity.limits import check_depth, check_id, check_payload
from affinity.records import RecordTimes, SessionState, parse_stored, raise_unreadable
from affinity.session.transfer import Time, numbered_lines, read_line

Lines: TypeAlias = Iterable[str | bytes] | AsyncIterable[str | bytes]

LeftOut: TypeAlias = Literal["delegations", "steps"]
"""Work that cannot go on elsewhere: children and runs that work for the conversation; steps of a wake that has not
ended, or of a run over several wakes (`Wake.run`).
"""

FORMAT: Final = 1

CALL: Final = "_"
"""Key of the extras with a digest of the options of the call that has made the conversation. It is not shown."""

_MOST: Final = 20
"""Ancestors whose ids an import keeps in the extras, which are bounded."""

_KEPT: Final = {"conversation_id", "journal_id", "lineage", "operator", "distance", "created_at", "last_seq"}

_NUMBERS: Final = {
    kind_of(SpanStarted): ("read",),
    kind_of(DeadLetters): ("inputs",),
}
"""Fields with numbers of entries, by kind of event."""

_Id = Annotated[str, AfterValidator(partial(check_id, what="it"))]


class _Node(BaseModel):
    """A conversation of the lineage."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    conversation_id: str | None
    journal_id: int
    lineage: str | None
    operator: str
    parents: list[int]
    extras: dict[str, JsonValue]
    distance: int
    created_at: AwareDatetime


class _Conversation(_Node):
    """The conversation itself."""

    format: int
    kind: str
    processed: int
    last_seq: int  # of its entries; 0: it has no entry
    usage: dict[str, int]  # of what compressions have left out
    usage_by_writer: dict[str, tuple[int, dict[str, int]]]  # the same
    title: str | None = None
    owner: str | None = None
    labels: dict[str, str] = {}

    @property
    def about(self) -> Description:
        """Title, owner and labels, which are bounded as when they are written."""
        return {"title": self.title, "owner": self.owner, "labels": self.labels}

    @model_validator(mode="after")
    def _check_about(self) -> Self:
        check_description(self.about)
        return self


class _Entry(BaseModel):
    """An entry."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    seq: int
    kind: Annotated[str, AfterValidator(check_kind)]
    payload: dict[str, JsonValue]
    event_id: _Id | None = None
    wake_id: _Id | None = None
    is_input: bool = False
    is_copied: bool = False  # by a merge
    recorded_at: Time


class _Wake(BaseModel):
    """The end of a wake: see `JournalWake`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    seq: int
    wake_id: _Id
    base: int
    read: int
    processed: int
    outcome: EndOutcome
    reason: str
    attempt: int
    error: str | None


class _Request(BaseModel):
    """A pending request."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    request_id: _Id
    kind: Annotated[str, AfterValidator(check_kind)]
    payload: dict[str, JsonValue]
    wake_id: _Id | None
    created_at: Time
    expires_at: Time | None


class _Revisit(BaseModel):
    """A pending revisit."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    key: _Id
    due_at: Time
    priority: int
    reason: str
    note: JsonValue
    wake_id: _Id | None


@dataclass(slots=True, kw_only=True)
class Imported:
    """The contents of the lines of an export."""

    conversation: _Conversation
    ancestors: list[_Node] = field(default_factory=list)
    record: SessionState | None = None
    times: RecordTimes | None = None  # of the record
    entries: list[NewEntry] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)  # numbers of the entries in the export
    ended: dict[int, _Wake] = field(default_factory=dict)
    event_ids: set[str] = field(default_factory=set)
    waiting: list[_Request] = field(default_factory=list)
    revisits: list[Revisit] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)  # names of what cannot go on, by `LeftOut`

    @property
    def requests(self) -> list[InheritedRequest]:
        """The pending requests, with the numbers that their entries have now."""
        first: dict[str | None, int] = {}
        for seq, entry in enumerate(self.entries, 1):
            first.setdefault(entry.wake_id, seq)
        return [
            InheritedRequest(
                *(request.request_id, request.kind, to_json(request.payload).decode(), request.wake_id),
                *(first.get(request.wake_id, 1), request.created_at, request.expires_at),
            )
            for request in self.waiting
        ]

    @property
    def extras(self) -> dict[str, JsonValue]:
        """The extras of the conversation, with its lineage, and with the usage of entries that it does not have."""
        nodes: list[JsonValue] = [
            node.model_dump(mode="json", include=_KEPT) for node in (self.conversation, *self.ancestors[:_MOST])
        ]
        usage = self.conversation.model_dump(mode="json", include={"usage", "usage_by_writer"})
        return {**self.conversation.extras, "exported": nodes, **usage}

    @property
    def last_seq(self) -> int:
        """Number of the last entry in the export."""
        return self.seqs[-1] if self.seqs else 0

    @property
    def processed(self) -> int:
        """The watermark."""
        return bisect_right(self.seqs, self.conversation.processed)

    @property
    def wakes(self) -> list[JournalWake]:
        """The ends of the wakes whose last entry is there, with the numbers that their entries have now."""
        place = partial(bisect_right, self.seqs)
        return [
            JournalWake(
                *(place(seq), each.wake_id, place(each.base), place(each.read), place(each.processed)),
                *(each.outcome, each.reason, each.attempt, each.error),
            )
            for seq in self.seqs
            if (each := self.ended.get(seq)) is not None
        ]

    def add(self, entry: _Entry) -> None:
        """Add an entry behind the others.

        Raises:
            ValueError: it does not belong there, or is too large.
        """
        if entry.seq <= self.last_seq:
            raise ValueError(f"entry {entry.seq} comes behind entry {self.last_seq}")
        if entry.event_id in self.event_ids:
            raise ValueError(f"the event id {entry.event_id!r} comes twice")
        self.seqs.append(entry.seq)
        self.event_ids.update([] if entry.event_id is None else [entry.event_id])
        payload = to_json({**entry.payload, **self._numbers(entry)}).decode()
        self.entries.append(
            NewEntry(
                kind=entry.kind,
                payload=check_payload(check_depth(payload, "it"), "it"),
                event_id=entry.event_id,
                wake_id=entry.wake_id,
                is_input=entry.is_input,
                recorded_at=entry.recorded_at,
            )
        )

    def _numbers(self, entry: _Entry) -> dict[str, JsonValue]:
        """Return the fields with numbers of entries, with the numbers that these have now."""
        found: dict[str, JsonValue] = {}
        for name in _NUMBERS.get(entry.kind, ()):
            match entry.payload.get(name):
                case int(number):
                    found[name] = None if entry.is_copied else bisect_right(self.seqs, number)
                case list(numbers):
                    kept = [self._place(seq) for seq in numbers if isinstance(seq, int) and not entry.is_copied]
                    found[name] = [place for place in kept if place is not None]
        return found

    def _place(self, number: int) -> int | None:
        """Return the number that an entry has now; None: the entry is not there."""
        place = bisect_right(self.seqs, number)
        return place if place and self.seqs[place - 1] == number else None


def lineage_lines(lineage: Sequence[JournalLineage], page: JournalPage, usage: Mapping[str, JsonValue]) -> list[str]:
    """Return the first lines of an export; ``usage``: extras with the usage that compressions have left out."""
    own, *ancestors = lineage
    last_seq = page.last_seq if page.last_seq >= page.first_seq else 0
    about = {"kind": page.kind, "processed": page.processed, "last_seq": last_seq, **own.about, **usage}
    head = {"format": FORMAT, **about, **_node(own)}
    return [_line("conversation", head), *[_line("ancestor", _node(node)) for node in ancestors]]


def record_line(record: str) -> str:
    """Return the line of the record, of which ``record`` is the line alone."""
    return f'{{"record":{record}}}'


def wake_line(wake: JournalWake) -> str:
    """Return the line of an ended wake."""
    return _line("wake", wake._asdict())


def waiting_lines(work: PendingWork, requests: Iterable[Request], revisits: Iterable[Revisit]) -> list[str]:
    """Return the lines of the pending work."""
    lines = [_request_line(request) for request in requests]
    lines += [_line("revisit", {**revisit._asdict(), "note": parse_stored(revisit.note)}) for revisit in revisits]
    lines += [_line("delegation", delegation.child) for delegation in work.delegations]
    return lines + [_line("step", step.key) for step in work.steps]


def _request_line(request: Request) -> str:
    fields = dict(zip(Request._fields, request[:7], strict=False))  # without those of a listing
    return _line("request", {**fields, "payload": parse_stored(request.payload)})


def entry_line(entry: Entry) -> str:
    """Return the line of an entry."""
    raise_unreadable(entry.payload)
    about = {
        "seq": entry.seq,
        "kind": entry.kind,
        "event_id": entry.event_id,
        "wake_id": entry.wake_id,
        "is_input": entry.is_input,
        "is_copied": entry.is_copied,
        "recorded_at": entry.recorded_at,
    }
    return f'{{"entry":{to_json(about).decode()[:-1]},"payload":{entry.payload}}}}}'


async def read_lines(lines: Lines) -> Imported:
    """Read the lines of an export.

    Raises:
        InvalidInput: a line does not belong to an export, or the lines are not in order; the message has its number.
            Or the last lines are missing.
    """
    found: Imported | None = None
    async for number, line in numbered_lines(lines):
        try:
            found = _take(found, number, line)
        except ValueError as error:  # ValidationError and InvalidInput among them
            raise InvalidInput(f"line {number} is none of a conversation's export: {problem_of(error)}") from error
    if found is None:
        raise InvalidInput("an export of a conversation begins with a line of the conversation")
    if found.conversation.last_seq != found.last_seq:
        raise InvalidInput(
            f"the export ends with entry {found.last_seq}, of {found.conversation.last_seq}: it is cut off"
        )
    return found


def _take(found: Imported | None, number: int, line: str | bytes) -> Imported:
    fields = from_json(line, allow_inf_nan=False)
    what, value = next(iter(fields.items())) if isinstance(fields, dict) and len(fields) == 1 else ("", None)
    if found is None:
        if what != "conversation":
            raise ValueError("the first line must be the conversation")
        if isinstance(value, dict) and value.get("format") != FORMAT:
            raise ValueError(f"its format is {value.get('format')!r}, and this release reads {FORMAT}")
        return Imported(conversation=_Conversation.model_validate(value))
    if what == "ancestor":
        found.ancestors.append(_Node.model_validate(value))
    elif what == "record":
        found.record, found.times = read_line(number, to_json(value))
    elif what == "wake":
        wake = _Wake.model_validate(value)
        found.ended[wake.seq] = wake
    elif what == "request":
        found.waiting.append(_Request.model_validate(value))
    elif what == "revisit":
        revisit = _Revisit.model_validate(value)
        note = check_payload(check_depth(to_json(revisit.note).decode(), "it"), "it")
        found.revisits.append(
            Revisit(revisit.key, revisit.due_at, revisit.priority, revisit.reason, note, revisit.wake_id)
        )
    elif what in {"delegation", "step"}:
        found.left_out.setdefault(f"{what}s", []).append(check_id(value, "it"))
    elif what == "entry":
        found.add(_Entry.model_validate(value))
    else:
        raise ValueError(f"{what!r} is not expected here")
    return found


def _node(row: JournalLineage) -> dict[str, Any]:
    return {
        "conversation_id": row.session_id,
        "journal_id": row.journal_id,
        "lineage": row.lineage,
        "operator": row.operator,
        "parents": list(row.parents),
        "extras": shown_extras(row.extras),
        "distance": row.distance,
        "created_at": row.created_at,
    }


def shown_extras(text: str) -> dict[str, JsonValue]:
    """Return the extras of a row, without the internal data of the calls that make conversations."""
    found = parse_stored(text)
    return {name: value for name, value in found.items() if name != CALL} if isinstance(found, dict) else {}


def _line(what: str, value: Any) -> str:
    return to_json({what: value}).decode()
