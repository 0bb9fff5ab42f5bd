"""The records of a session's journal: what happened in it, in order.

A *journal* is append-only. Its entries have numbers (*seq*) from 1, without gaps, in the order of commit. So a reader
that reads on from a number misses nothing. An entry is an *input*, which waits until a *wake* has processed it, or the
output of a wake. The *watermark* of a journal is the number up to which
all inputs are processed. It moves only in the transaction that records a wake's result, together with the wake's
entries and the state of the session: `JournalWrite`. The same transaction adds a row that says how the wake has ended:
`JournalWake`. So the reply to an input is one indexed question: the wake with base < number <= processed.

A journal belongs to one instance, which has the id of the session: an input is appended together with the message that
wakes the instance.

A journal has a *journal id*, a random number: another journal, of a session that was created again under the same id,
has another. Forks name the journal that they continue, not its session.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

from affinity.limits import (
    MAX_PAGE,
    MAX_TITLE_BYTES,
    check_conditions,
    check_id,
    check_labels,
    check_payload,
    check_text,
)
from affinity.records import CommitPart, RecordTimes, SessionState, frozen

SEQ_MARK: Final = '"$SEQ"'
"""In `JournalAppend.message`: stands for the number of the entry, or of the last one if none is appended."""

PARKED_MARK: Final = '"$PARKED"'
"""In `JournalAppend.message`: stands for whether the instance has a parked work item."""

REFUSAL_MARK: Final = '"\\u001a"'
"""In the payload of the entry of `JournalAppend.if_refused`: a JSON text that stands for the outcome. No id can be this
text, which is a control character.
"""

META_FIELD: Final = "_"
"""Field of a payload with facts of the sending, such as the sender's trace: it does not belong to the event."""


def new_journal_id() -> int:
    """Return a random journal id: a positive integer of 63 bits."""
    return secrets.randbits(63) or 1


class Entry(NamedTuple):
    """An entry of a journal."""

    seq: int
    kind: str
    payload: str  # JSON object
    event_id: str | None
    wake_id: str | None  # the wake that wrote it; None: it came from outside
    is_input: bool
    recorded_at: datetime
    is_copied: bool = False  # by a merge, from its right side: numbers in the payload are numbers of that journal


@frozen(kw_only=True)
class NewEntry:
    """An entry to append; its number is the next of its journal."""

    kind: str
    payload: str  # JSON object
    # Unique in its journal and in the journals that it continues, as long as the entry is kept: no second entry with
    # this id is appended. It is the same event if kind and payload are the same, without `META_FIELD`.
    event_id: str | None = None
    wake_id: str | None = None
    is_input: bool = False
    recorded_at: datetime | None = None  # of a `JournalCreation`; None, and elsewhere: now


class Description(TypedDict, total=False):
    """The description of a conversation in listings. A value that is left out is not set, or stays as it is when others
    change.
    """

    title: str | None
    """For people; at most `limits.MAX_TITLE_BYTES`."""
    owner: str | None
    """Owner of the conversation: an id of the application."""
    labels: Mapping[str, str]
    """At most `limits.MAX_LABELS`; keys and values are bounded like ids."""


def check_description(about: Description) -> Description:
    """Return a copy, if each value may be stored.

    Raises:
        InvalidId: the title or the owner, or a key or value of a label.
        PayloadTooLarge: the title.
        InvalidOptions: there are too many labels.
    """
    checked = about.copy()
    if unknown := sorted(about.keys() - Description.__annotations__.keys()):
        raise TypeError(f"a conversation has a title, an owner and labels, and no {unknown[0]!r}")
    if (title := about.get("title")) is not None:
        check_payload(check_text(title, "title"), "title", MAX_TITLE_BYTES)
    if (owner := about.get("owner")) is not None:
        check_id(owner, "owner")
    if "labels" in about:
        checked["labels"] = check_labels(about["labels"])
    return checked


@frozen(kw_only=True)
class JournalStart:
    """Creates the journal and its instance if the journal does not exist, or only the instance if that is gone.

    An instance that is left of a deleted journal is deleted first: a new journal begins with a new instance.
    """

    name: str  # of the orchestration
    start: str  # payload of its start message
    generation: str  # of the instance
    version: str | None = None
    journal_id: int = field(default_factory=new_journal_id)
    # The session whose wake creates the journal. Only that session, and clients, may append inputs. The present journal
    # id of that session is stored too: see `JournalPage.parent_journal`.
    parent: str | None = None
    about: Description | None = None  # of a new journal


@frozen(kw_only=True)
class Answer:
    """Resolves a pending request."""

    request_id: str
    kind: str  # of the request
    wake_id: str | None = None  # the wake that made it (`Request.wake_id`); None: any


@frozen(kw_only=True)
class JournalAppend:
    """An input from outside, or a note on the conversation: an entry, and the message that wakes its instance.

    The transaction that appends checks, in this order: the journal exists and has this id; its kind; the event id; it
    is not closed (its instance has not ended); the parent; the answer; the instance's orchestration is ``start``'s; the
    quota and the unread messages of the instance.

    A repeated event id changes nothing and wakes nothing. No quota, and no number of unread messages, refuses an append
    of a wake (``sender``).
    """

    session_id: str
    kind: str  # of the conversation; a journal of another kind is left alone
    entry: NewEntry | None  # None: only the message, for a journal that exists and is open
    # Payload for the instance; `SEQ_MARK` in it becomes the journal's last number, `PARKED_MARK` ``true`` or ``false``.
    # Not sent by an input (`NewEntry.is_input`) that queues a parked work item. None: wakes nothing.
    message: str | None
    start: JournalStart | None = None
    # Append to the journal with this id only. If it was deleted, also if the session has another one now, the outcome
    # is "unknown", and ``start`` creates nothing.
    journal_id: int | None = None
    answers: Answer | None = None  # refused unless this request is pending; it is resolved then
    drops: bool = False  # removes all pending requests and revisits
    closes: bool = False  # afterwards inputs are refused
    sender: str | None = None  # the session whose wake sends it, which must be the parent; None: a client
    unread_limit: int | None = None  # as `NewMessage.unread_limit`
    # Of a wake: the fallback, an entry and a message for a journal that exists. It is appended in the same transaction
    # if this append is refused, that is if its outcome is neither "appended" nor "repeated". If the fallback is refused
    # too, it is left out.
    if_refused: JournalAppend | None = None


AppendOutcome: TypeAlias = Literal[
    "appended",
    "repeated",
    "other_event",
    "unknown",
    "other_kind",
    "closed",
    "not_parent",
    "not_pending",
    "taken",
    "full",
    "over_quota",
]
"""The outcomes of an append. Only ``appended`` changes anything.

- ``repeated``: the same event was appended before under this event id. Entries that wakes send (`JournalWrite.appends`)
  are not compared, and count as ``repeated``.
- ``other_event``: another event was appended before under this event id.
- ``unknown``: the journal does not exist, and no start or no entry was given; or the journal has another id than
  ``journal_id``; or its instance is gone, no start was given, and the message would be lost.
- ``closed``: the journal is closed, or the instance has ended.
- ``taken``: the id belongs to an instance of another orchestration than ``start``.
- ``not_pending``: the request is unknown, resolved, dropped, expired, of another kind, or of another wake.
"""


class Appended(NamedTuple):
    """The outcome of a `JournalAppend`."""

    outcome: AppendOutcome
    seq: int = 0  # of the entry, when it was appended now or before
    journal_id: int = 0
    created: bool = False  # the journal is new
    unparked: bool = False  # a parked work item is queued, in place of the message
    holder: str | None = None  # the worker that is to fetch the item, as the holder of its session; None: any may
    is_gated: bool = False  # no worker may yet: the item waits at its limits


@frozen(kw_only=True)
class NewRequest:
    """A request to people or to the client, pending until it is answered, dropped or resolved by a wake."""

    request_id: str  # while a request of this id is pending, another one is not added
    kind: str
    payload: str
    expires_in: float | None = None  # seconds; then an answer is refused, and the next wake is due


@frozen(kw_only=True)
class NewRevisit:
    """A later wake. While a revisit of its key is pending, another one is not added."""

    key: str
    delay: float
    priority: int = 0  # of the due revisits, the greater first
    reason: str = ""
    note: str = "null"  # JSON


RequestCursor: TypeAlias = tuple[datetime, int, int, str]
"""The end of a page of requests: ``created_at``, ``journal_id``, ``place`` and ``request_id`` of its last request. With
`RequestFilter.by_expiry` it has ``expires_at`` in place of ``created_at``.
"""

NO_EXPIRY: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""In the order by expiry, the time of requests that do not expire; the providers' indexes have it, too."""


class Request(NamedTuple):
    """A pending request."""

    request_id: str
    kind: str
    payload: str
    wake_id: str | None  # that made it
    created_at: datetime
    expires_at: datetime | None
    expired: bool = False  # its time is over, and no wake has resolved it yet; a listing has no such request
    # From a listing, which is of all journals:
    session_id: str = ""
    journal_id: int = 0
    journal_kind: str = ""  # of the conversation
    title: str | None = None
    owner: str | None = None
    place: int = 0  # among requests of one time and journal
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def cursor(self) -> RequestCursor:
        """Its place in the order of a listing."""
        return self.created_at, self.journal_id, self.place, self.request_id

    @property
    def expiry_cursor(self) -> RequestCursor:
        """Its place in the order of `RequestFilter.by_expiry`."""
        return self.expires_at or NO_EXPIRY, self.journal_id, self.place, self.request_id


class InheritedRequest(NamedTuple):
    """A request that a journal takes over from its base, or from an export. It expires together with the base's pending
    request of this id; without one, at ``expires_at``.
    """

    request_id: str
    kind: str
    payload: str
    wake_id: str | None
    seq: int  # the first entry that retention keeps for it
    created_at: datetime
    expires_at: datetime | None = None  # None: never


class Revisit(NamedTuple):
    """A pending revisit."""

    key: str
    due_at: datetime
    priority: int
    reason: str
    note: str
    wake_id: str | None  # that requested it


class OpenDelegation(NamedTuple):
    """Work that wakes of a journal have given to a child, or to an instance of `JournalWrite.starts`.

    It ends with `JournalWrite.ended_delegations`, and when the child's journal, the instance or its own journal is
    deleted. A journal that was made from another one does not take them over.
    """

    delegation_id: str  # unique in its journal; for an instance: its id, as in ``child``
    child: str  # id of the child's session, or of the instance


@frozen(kw_only=True)
class InstanceStart:
    """An instance that a wake creates; nothing is created when the id exists."""

    instance_id: str
    name: str  # of the orchestration
    start: str  # payload of its start message
    generation: str


class Step(NamedTuple):
    """A step of a wake that is done, or has begun: the next attempt of the wake reads it."""

    wake_id: str
    key: str  # unique in its wake
    arguments: str = ""  # a digest of its arguments
    result: str | None = None  # JSON; None: it has begun, and is not done


EndOutcome: TypeAlias = Literal["done", "retried", "failed"]
"""``done``: the handler has returned. ``retried``: it has failed, and the wake runs again later. ``failed``: it has
failed for good; a later input, or `resume`, begins another wake.
"""


@frozen(kw_only=True)
class WakeEnd:
    """The end of an attempt of a wake."""

    outcome: EndOutcome = "done"
    reason: str = ""  # for readers
    read: int  # number of the last input that it was given; the watermark before it: no input
    attempt: int = 1  # of the wake, from 1
    error: str | None = None  # JSON object


class JournalWake(NamedTuple):
    """An attempt of a wake that has ended: see `JournalWrite.end`. Its journal and the journals that continue it have
    the row as long as they have its last entry. A merge has no rows of its right side.
    """

    seq: int  # of its last entry
    wake_id: str
    base: int  # the watermark before it
    read: int
    processed: int  # the watermark behind it; ``base``: it has processed no input
    outcome: EndOutcome
    reason: str
    attempt: int
    error: str | None


LineageKind: TypeAlias = Literal["fork", "detach", "merge", "compress", "import"]
"""How a journal was made from others."""


class JournalRange(NamedTuple):
    """A journal up to an entry, with the entries of the journals that it continues."""

    journal_id: int
    up_to: int | None = None  # number of its last entry; None: the last one when the creation is applied


@frozen(kw_only=True)
class JournalCreation:
    """Creates a journal, empty or from others, which must exist. So lineage has no cycles. It writes a row for each
    parent and each entry of its own, and none for the entries of its base.

    The new journal has no revisits but ``revisits``. Inputs that the base has not processed are pending in it too. So
    are ``requests``: base and new journal answer them independently.
    """

    session_id: str
    kind: str  # of the conversation
    start: JournalStart  # of its instance, which is created with it
    # Sent to the instance if inputs are pending, a request that expires, or a revisit; `SEQ_MARK` becomes the last
    # number.
    message: str | None = None
    lineage: LineageKind | None  # None: it begins empty
    operator: str  # what made it, for people; empty for a journal that begins empty
    parents: Sequence[int] = ()  # journal ids, in order; a detached journal has none
    extras: str = "{}"  # JSON object
    base: JournalRange | None = None  # the first entries are this range, with the same numbers
    # Then come the entries of this range that the base does not have, in order, with new numbers. Inputs that its
    # journal has processed are no inputs in the new one.
    merged: JournalRange | None = None
    entries: Sequence[NewEntry] = ()  # then come these entries
    # Of a journal without a base: its watermark, and how its wakes have ended, in the order of their numbers.
    processed: int = 0
    wakes: Sequence[JournalWake] = ()
    # The record of the base's session, as it is after the turn. If no wake makes the journal: with the steps of a wake
    # of the base that has not ended.
    copies_state: bool = False
    state: SessionState | None = None  # a state in place of a copy
    state_times: RecordTimes | None = None  # times of the record of ``state``; a future time becomes now. None: now
    requests: Sequence[InheritedRequest] | None = ()  # None: the requests that are pending in the base, after the turn
    revisits: Sequence[Revisit] = ()  # of an import
    home: str | None = None  # session on whose lease its wakes run; None: its own
    about: Description | None = None

    @property
    def size(self) -> int:
        """Characters and bytes of its additions, without copies."""
        state = 0 if self.state is None else len(self.state.state)
        payloads = [*[entry.payload for entry in self.entries], *[request.payload for request in self.requests or ()]]
        payloads += [wake.error or "" for wake in self.wakes]
        return state + len(self.extras) + sum([len(payload) for payload in payloads])


CreationOutcome: TypeAlias = Literal["created", "repeated", "unknown", "beyond", "taken", "over_quota"]
"""``repeated``: the session has a journal with this lineage, operator and parents. ``taken``: it has another one, or a
record of state, or its id is the id of an instance. ``unknown``: a parent or a range names no journal. ``beyond``: a
range ends outside its journal, or before its first kept entry; or the state or the pending requests are to be copied,
and the range ends before the last entry.
"""


class CreationResult(NamedTuple):
    """The outcome of a `JournalCreation`."""

    outcome: CreationOutcome
    journal_id: int = 0
    last_seq: int = 0


@frozen(kw_only=True)
class JournalLineage:
    """A journal and where it came from."""

    session_id: str | None  # None: it is deleted
    journal_id: int
    kind: str
    lineage: LineageKind | None  # None: it began empty
    operator: str
    parents: Sequence[int]  # journal ids, in order
    extras: str
    base: JournalRange | None
    home: str | None
    distance: int  # number of steps up; 0: the journal itself
    created_at: datetime
    # The usage of removed entries, by writer, as JSON: {"WRITER": [ENTRIES, {"NAME": SUM}]}. A usage is the field
    # "usage" of a payload, an object of numbers. A writer is a wake's id without the last two words, which hyphens
    # separate. An input counts for the wake behind it. Entries of the journals that this one continues are included.
    used: str = "{}"
    title: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    base_session: str | None = None  # of the base, which is no parent of a detached journal; None: it is deleted

    @property
    def about(self) -> Description:
        """Title, owner and labels."""
        return {"title": self.title, "owner": self.owner, "labels": self.labels}


class HomeLease(NamedTuple):
    """The lease under which a wake of a journal with a home runs. The write is refused if the session has a greater
    epoch.
    """

    session_id: str
    epoch: int


class WakeFailure(NamedTuple):
    """The failure of an attempt of a wake, kept among those of the instance: see `FailureRecord`."""

    execution_id: int
    activity_id: int
    attempt: int  # of the activity, which has had a result
    name: str  # of the activity
    error_type: str
    error: str  # "ValueError: …", at most `limits.MAX_NOTED_ERROR_BYTES`


@frozen(kw_only=True)
class JournalWrite(CommitPart):
    """The additions of a wake to its journal, committed with the result of its activity.

    The fence: the session's journal has this id and its watermark is ``base``. Otherwise nothing of the turn, or of the
    ack, is applied, and the session is among its conflicts.
    """

    guest = "conversation"
    noun = "journals"

    session_id: str
    journal_id: int
    base: int  # the watermark from which the wake has read
    processed: int  # the watermark from now on; ``base``: the wake has processed no input
    wake_id: str
    entries: Sequence[NewEntry] = ()
    # Requests and revisits are left out if an input that drops them (`JournalAppend.drops`) was appended behind
    # ``processed``: the wake had not read it when it requested them.
    requests: Sequence[NewRequest] = ()
    revisits: Sequence[NewRevisit] = ()
    ended_requests: Sequence[str] = ()  # ids of expired requests, which the wake itself resolves
    ended_revisits: Sequence[str] = ()  # keys of revisits that it has processed; removed before ``revisits`` are added
    delegations: Sequence[OpenDelegation] = ()  # new delegations
    ended_delegations: Sequence[str] = ()  # ids; an unknown one is ignored
    # Appends to other journals: of children, of the parent.
    appends: Sequence[JournalAppend] = ()
    creations: Sequence[JournalCreation] = ()  # after the entries and the state; when one is refused, the fence fails
    starts: Sequence[InstanceStart] = ()  # instances without a journal; no quota refuses them
    home: HomeLease | None = None  # of a journal with a home: fenced too
    clear_stream: bool = False  # remove the provisional parts of this journal
    attempt: int = 0  # of the wake: later parts of this attempt, or of lower ones, are ignored
    # How the attempt has ended: written as a `JournalWake`. A write with an end has an entry without an event id.
    end: WakeEnd | None = None
    failure: WakeFailure | None = None  # with an end: the attempt has failed
    # The wake goes on after this write: the watermark stays, and ``processed`` is the number up to which the wake has
    # read. The attempt goes on too if ``attempt`` is a lower one. See `WorkAck.message`.
    is_part: bool = False
    steps: Sequence[Step] = ()  # a step replaces an earlier one of the same wake and key
    clear_steps: bool = False  # remove the steps of this journal, of all its wakes

    @property
    def sessions(self) -> Sequence[str]:
        """The session of the journal, and the sessions of the journals that it creates."""
        return [self.session_id, *[creation.session_id for creation in self.creations]]

    @property
    def size(self) -> int:
        """Characters of its payloads, and bytes of the states of its creations."""
        sent = sum([len(append.entry.payload) for append in self.appends if append.entry is not None])
        kept = sum([len(entry.payload) for entry in self.entries]) + sum(
            [len(request.payload) for request in self.requests]
        )
        created = sum([creation.size for creation in self.creations])
        done = sum([len(step.result or "") for step in self.steps])
        done += sum([len(start.start) for start in self.starts])
        return kept + sent + created + done + sum([len(revisit.note) for revisit in self.revisits])


def journal_writes(parts: Iterable[CommitPart]) -> list[JournalWrite]:
    """Return the parts that write to journals."""
    return [part for part in parts if isinstance(part, JournalWrite)]


@frozen(kw_only=True)
class PendingWork:
    """The work for a wake."""

    journal_id: int
    kind: str
    processed: int  # the watermark
    last_seq: int
    closed: bool
    parent: str | None
    inputs: Sequence[Entry]  # behind the watermark, oldest first
    more: bool  # there are inputs behind these
    due: Sequence[Revisit]  # greatest priority first, then by due time
    requests: Sequence[Request]  # pending, oldest first, with the expired requests
    revisits: Sequence[Revisit]  # all pending revisits, with ``due``, by due time
    next_due: float | None  # seconds until the next revisit is due or a request expires; None: neither
    home: str | None = None  # session on whose lease the wakes run; None: its own
    # With a home: the greater one of two epochs. The epoch of the journal's own session changes when other code writes
    # the session's record. The epoch of the record stays when the session's row is removed.
    epoch: int = 0
    delegations: Sequence[OpenDelegation] = ()  # at most `limits.MAX_DELEGATIONS_READ`
    has_record: bool = True  # the session may have a record of its state; False: it has had none so far
    steps: Sequence[
        Step
    ] = ()  # of the wake that runs, and of wakes that were cancelled or have failed since the last one

    @property
    def open_requests(self) -> Sequence[Request]:
        """The requests that can still be answered."""
        return [request for request in self.requests if not request.expired]

    def without(self, ended_requests: Collection[str]) -> PendingWork:
        """Return the work without these requests, for which nothing is due."""
        kept = [request for request in self.requests if request.request_id not in ended_requests]
        if not self.next_due or len(kept) == len(self.requests):
            return self
        revisits = [revisit.due_at for revisit in self.revisits if revisit not in self.due]
        before, after = (
            [*revisits, *(each.expires_at for each in requests if each.expires_at is not None and not each.expired)]
            for requests in (self.requests, kept)
        )
        later = (min(after) - min(before)).total_seconds() if before and after else None
        return replace(self, requests=kept, next_due=None if later is None else self.next_due + later)


@frozen(kw_only=True)
class StreamPart:
    """Provisional output of a wake that is running."""

    session_id: str
    journal_id: int
    wake_id: str
    attempt: int  # greater with each attempt of this wake
    number: int  # from 1, in this attempt
    payload: str  # JSON
    # Number of the first part since the attempt began, or since its last commit of a part of the wake.
    first: int = 1


@frozen(kw_only=True)
class StreamCursor:
    """The position of a reader in a stream: a wake, its attempt, and the number of the last part that was read."""

    wake_id: str = ""
    attempt: int = 0
    number: int = 0


@frozen(kw_only=True)
class JournalQuery:
    """The entries of a journal to read; all conditions must hold."""

    session_id: str
    after: int = 0
    before: int | None = None
    kinds: Collection[str] = ()  # empty: any
    wake_id: str | None = None
    event_id: str | None = None
    pending: bool = False  # inputs that no wake has processed
    # The entries of the wake that has processed this input (`JournalPage.wake`), behind ``after``, oldest first. The
    # other conditions, and ``stream``, have no effect.
    reply_to: int | None = None
    newest_first: bool = False
    limit: int = 100
    stream: StreamCursor | None = None  # with the provisional parts behind these; None: without


@frozen(kw_only=True)
class JournalPage:
    """Entries of one journal, in the order of the query, and where the journal stands."""

    journal_id: int
    kind: str
    processed: int
    first_seq: int  # the oldest entry that is kept
    last_seq: int
    closed: bool
    parent: str | None
    # Journal id of the parent whose wake has created this journal; a later journal of that session is not its parent.
    # None: it has no parent, or the parent had no journal.
    parent_journal: int | None = None
    instance_status: str | None  # of its instance, in the same snapshot; None: it has no instance
    entries: Sequence[Entry]
    more: bool  # the query has more entries behind these
    # With `JournalQuery.reply_to`: the wake that has processed the input. If no wake has: the last ended wake of
    # this journal, without its entries, if it was given the input and is the end of the journal so far. Else None.
    wake: JournalWake | None = None
    is_input: bool = True  # False: the entry of `JournalQuery.reply_to` is not an input
    # Parts of the latest attempt of the streaming wake: all, or the parts behind the cursor if it is of this attempt.
    stream: Sequence[StreamPart] = ()
    # The position of the last stored part; None: the stream has no part, or the query has no cursor. If a
    # reader's cursor is of another attempt, the parts that it has read were retracted or replaced.
    streaming: StreamCursor | None = None


ConversationStatus: TypeAlias = Literal[
    "idle", "running", "rescheduling", "requires_action", "waiting", "failed", "terminated"
]
"""``running``: a wake runs, or inputs wait for one. ``rescheduling``: a wake has failed, and runs again later.
``requires_action``: it waits for an answer. ``waiting``: for the end of a delegation, or a revisit. ``failed``: a wake
has failed for good; the next input tries again.

It is not stored, but derived. The first rule that applies gives the status:

1. ``terminated``: the journal is closed, or its instance has ended.
2. ``idle``: the journal has no instance.
3. ``failed``: the instance is suspended.
4. ``running``: the instance has a work item.
5. ``failed``: the last wake of this journal has failed, and it has no later entry.
6. ``rescheduling``: the last wake is "retried".
7. ``running``: an input waits.
8. ``requires_action``: a request is pending.
9. ``waiting``: an `OpenDelegation` or a revisit is pending.
10. ``idle``.
"""


@frozen(kw_only=True)
class JournalInfo:
    """A journal, for listings."""

    session_id: str
    journal_id: int
    kind: str
    parent: str | None
    processed: int
    first_seq: int
    last_seq: int
    size: int  # bytes of the payloads of its own entries
    closed: bool
    status: ConversationStatus
    pending_from: int | None  # number of the first input that no wake has processed
    pending_requests: int
    pending_revisits: int
    created_at: datetime
    updated_at: datetime
    title: str | None
    owner: str | None
    labels: Mapping[str, str]


@frozen(kw_only=True)
class JournalFilter:
    """The journals to list, newest first by (created_at, session_id)."""

    session_id: str | None = None  # this one alone
    status: ConversationStatus | None = None
    kind: str | None = None
    prefix: str | None = None  # of the session id
    parent: str | None = None
    parent_journal: int | None = None  # as `JournalPage.parent_journal`
    closed: bool | None = None
    with_requests: bool = False  # with pending requests
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # has all of these
    updated_since: datetime | None = None
    updated_before: datetime | None = None
    made_from: int | None = None  # id of the journal that they were made from, as forks are
    # No index has the status and the time of the last change. With one of them, only about this number of the newest
    # journals are looked at; None: all.
    most: int | None = None
    after: tuple[datetime, str] | None = None  # keyset cursor

    def __post_init__(self) -> None:
        check_conditions(self)

    @property
    def looks(self) -> bool:
        """True if the filter has a condition without an index: journals that pass the others are looked at in steps."""
        return self.status is not None or self.updated_since is not None or self.updated_before is not None

    def has(self, info: JournalInfo) -> bool:
        """Return whether a journal fits the conditions without an index."""
        return (
            self.status in {None, info.status}
            and (self.updated_since is None or info.updated_at >= self.updated_since)
            and (self.updated_before is None or info.updated_at < self.updated_before)
        )


@frozen(kw_only=True)
class OpenRequestPage:
    """Some requests that wait for an answer, oldest first by `Request.cursor`."""

    requests: Sequence[Request]
    after: RequestCursor | None  # where the next page begins; None: this was the last
    # Changes when a request of any journal is added or removed. None: the provider has no such mark.
    mark: str | None = None


@frozen(kw_only=True)
class RequestFilter:
    """The requests to list: pending requests that have not expired, of conversations that take an answer."""

    kinds: Collection[str] = ()  # of the requests; empty: any
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # of the conversation: it has all of these
    prefix: str | None = None  # of the session id
    session_ids: Collection[str] | None = None  # only of these
    # Only of this session's journal and of the journals below it: its children, by `JournalPage.parent_journal`, and
    # theirs. At most `limits.MAX_BELOW` journals are looked at, the nearest first.
    below: str | None = None
    by_expiry: bool = False  # by expiry, then the requests that do not expire; False: oldest first
    after: RequestCursor | None = None
    mark: str | None = None  # while it is `OpenRequestPage.mark`, the page may be without requests

    def __post_init__(self) -> None:
        check_conditions(self)


@frozen(kw_only=True)
class JournalRetention:
    """The processed entries of journals that may be removed, oldest first; None: no such bound.

    Always kept are inputs behind the watermark, entries from the first wake on that made a request which is pending, or
    whose answer is such an input, and entries that a fork continues. In a fork, the entries that it continues are as
    old as the fork, and have no size.
    """

    age: float | None = None  # seconds since they were recorded
    entries: int | None = None  # of one journal
    size: int | None = None  # bytes of payloads of one journal


@frozen(kw_only=True)
class JournalPruning:
    """The result of one step of `JournalProvider.prune_journals`: entries that it removed, or would remove."""

    entries: int
    after: int | None  # where the next step begins; None: this was the last


class JournalAccess(Protocol):
    """The journals of a worker's database, for its activities. Reads, and `append`, are repeated while the database
    fails.
    """

    def monotonic(self) -> float:
        """Return the seconds of a clock that runs like the database's and never goes back; its zero means nothing."""
        ...

    async def get_pending(self, session_id: str, limit: int) -> PendingWork | None:
        """Return the work for a wake; concurrent calls are one call of the database."""
        ...

    async def read(self, query: JournalQuery) -> JournalPage | None:
        """Return a page of a journal; None: the session has no journal."""
        ...

    async def wakes(
        self, session_id: str, after: int = 0, *, newest_first: bool = False, limit: int = MAX_PAGE
    ) -> Sequence[JournalWake]:
        """Return the ended attempts of wakes whose last entry is behind ``after``."""
        ...

    async def list(self, where: JournalFilter, limit: int) -> Sequence[JournalInfo]:
        """Return one page of journals, newest first."""
        ...

    async def append_inputs(self, appends: Sequence[JournalAppend]) -> Sequence[Appended]:
        """Append inputs of other journals, with event ids, and notify the workers of the instances."""
        ...

    async def lineage(self, session_id: str) -> Sequence[JournalLineage]:
        """Return a journal and its ancestors, nearest first; empty: the session has no journal."""
        ...

    async def held_epochs(self, session_ids: Collection[str]) -> Mapping[str, int]:
        """Return the epochs of the sessions, among these, that a worker holds."""
        ...

    async def has_instance(self, session_id: str) -> bool:
        """Return whether an instance has the id of this session."""
        ...

    async def append(self, append: JournalAppend) -> Appended:
        """Append an entry immediately, as a client does; it has an event id, so that the call may be repeated."""
        ...

    async def write_stream(self, parts: Sequence[StreamPart]) -> Collection[int]:
        """Add provisional parts; not repeated. Return the journals whose earlier parts the database has lost."""
        ...

    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
        """Remove the parts of this attempt and of lower attempts; not repeated."""
        ...

    def note_written(self, write: JournalWrite) -> None:
        """Notify readers of a committed write, and wake the workers of the instances that it has sent to."""
        ...
