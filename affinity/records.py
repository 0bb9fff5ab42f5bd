"""The records that packages exchange, above all the record of a session's state.

A session has at most one *record*: its state as bytes that only the session layer reads, and its searchable metadata in
columns. A record is written in one of two ways:

* with a result: a `StateWrite` accompanies the result of an activity and is applied in the same transaction, or not at
  all (`affinity.provider.contract.Turn`, ``WorkAck``);
* on its own: `SessionStore.save`, for scripts, for web handlers, and for stores outside the provider's database.

Fences
    *version*: the number of writes of a record, from 1. A write names the version from which it was made; if the store
    has another version, the record was written since.
    *generation*: a random name of a record, from its creation to its deletion. A record that is created again under the
    same id begins at version 1 with another generation. A write with a result need not name it: the deletion has ended
    the epoch.
    *epoch*: of the lease under which the writer works (`docs/understand/leases.md`). A write is refused if the session
    or its record has a later epoch. In the provider's database, a save or deletion without a lease
    first gives the session a new epoch (a session without a row gets an expired one). Copies in the memory of its
    holder are then not used, and results computed from them are refused; the holder hydrates again. A first claim at
    the same time either waits and hydrates the new record, or its epoch is ended too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast, dataclass_transform

from pydantic_core import from_json

from affinity.errors import InvalidOptions, NotSerializable
from affinity.limits import check_conditions, check_id, check_integer, check_text

T = TypeVar("T")

_BIGINT: Final = 2**63


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass with slots, compared and hashed by value, whose fields are never set again.

    mypy checks that, not the interpreter. A frozen dataclass writes each field of a new object through
    ``object.__setattr__``, which for the ten records of a turn was an eighth of all that a worker executes. Treat
    such a record as frozen. The contexts of applications (`affinity.ActivityContext`) are frozen at run time. A named
    tuple is as cheap, but equal to any tuple of the same values, and has no keyword-only fields.
    """
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)


def constructor(cls: type[T]) -> type[T]:
    """Return a function that makes records of a class as a call of the class does; for the records of a turn.

    The interpreter packs keyword arguments of a class into a dict, and unpacks them for ``__init__``: that takes three
    times as long as the rest. It does not for a function, up to 15 keywords. A field with a default factory must be
    given.
    """
    source, scope = list[str](), {"new": object.__new__, "cls": cls}
    parameters: list[str] = []
    for column in fields(cls):  # type: ignore[arg-type]  # a dataclass
        scope[f"default_{column.name}"] = column.default
        parameters.append(column.name if column.default is MISSING else f"{column.name}=default_{column.name}")
        source.append(f" self.{column.name} = {column.name}")
    head = f"def make(*, {', '.join(parameters)}):"
    exec("\n".join([head, " self = new(cls)", *source, " return self"]), scope)  # noqa: S102 -- names of our own classes
    return cast("type[T]", scope["make"])


def copied(cls: type[T], row: object, **others: Any) -> T:
    """Return a record of a class with the values of the fields of the same names that ``row`` has, and ``others``."""
    names = [column.name for column in fields(cls) if column.name not in others]  # type: ignore[arg-type]  # a dataclass
    return cls(**{name: getattr(row, name) for name in names}, **others)


StateEncoding: TypeAlias = Literal["plain", "zlib"]
"""The packing of the bytes of a state; stores keep the word and do not read the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMetadata:
    """Searchable metadata of a session's record."""

    kind: str = ""  # type of the state: a record is only opened as the kind that it was written as
    name: str | None = None
    parent: str | None = None  # session id; deleting the parent deletes this one
    labels: Mapping[str, str] = field(default_factory=dict)
    message_count: int | None = None
    participants: Sequence[str] = ()


def copied_metadata(metadata: SessionMetadata) -> SessionMetadata:
    """Return a copy with containers of its own, of types that compare equal: stores may return lists for tuples."""
    return replace(metadata, labels=dict(metadata.labels), participants=tuple(metadata.participants))


Labels: TypeAlias = Mapping[str, str]
"""Texts by key, which instances, conversations and session records are found by: see `limits.check_labels`."""


def labels_text(labels: Labels | None) -> str | None:
    """Return labels as JSON; None: there are none."""
    return json.dumps(dict(labels), ensure_ascii=False, separators=(",", ":")) if labels else None


def labels_of(text: str) -> dict[str, str]:
    """Return the labels of a row, from JSON; of a damaged row as many as can be read, so that listings still work."""
    value = _from_json(text)
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)}


def participants_of(text: str) -> list[str]:
    """Return the participants of a row, from JSON; of a damaged row as many as can be read."""
    value = _from_json(text)
    return [participant for participant in value if isinstance(participant, str)] if isinstance(value, list) else []


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session's state to write, with its metadata."""

    session_id: str
    state: bytes
    encoding: StateEncoding = "plain"
    schema_version: int = 1
    metadata: SessionMetadata = field(default_factory=SessionMetadata)

    def __post_init__(self) -> None:
        """Refuse values that no store can keep.

        Raises:
            InvalidOptions: the schema version or the message count is not an integer from 0 to `limits.MAX_INTEGER`, or
                the state is not bytes.
            InvalidId: a text is not a string, or contains a character that no store can keep.
        """
        check_id(self.session_id, "session id")
        check_integer(self.schema_version, "schema_version")
        check_text(self.encoding, "encoding")
        if not isinstance(self.state, bytes | bytearray | memoryview):
            raise InvalidOptions(f"the state of a session is bytes, not {type(self.state).__name__}")
        about = self.metadata
        if about.message_count is not None:
            check_integer(about.message_count, "message_count")
        named = [about.kind, *(text for text in (about.name, about.parent) if text is not None)]
        for text in (*named, *about.labels.keys(), *about.labels.values(), *about.participants):
            check_text(text, "what describes a session")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWrite:
    """Session state that commits with the result of an activity.

    It is applied if the record's version is ``base_version`` (0: without a record) and neither the session nor the
    record has an epoch greater than ``epoch``. The record then has version ``base_version`` + 1 and this epoch. It
    names no generation: the session of a record that was created again has a greater epoch.
    """

    new: SessionState
    base_version: int
    epoch: int

    def __post_init__(self) -> None:
        """Refuse values that no store can compare.

        Raises:
            InvalidOptions: the version or the epoch is not an integer of 64 bits.
        """
        for what, value in (("base_version", self.base_version), ("epoch", self.epoch)):
            if type(value) is not int or not 0 <= value < _BIGINT:
                raise InvalidOptions(f"{what} of a session's state must be an integer of 64 bits")


FRAME: Final = "~afp1."
"""The beginning of an encoded payload, in a text or in bytes (`affinity.payloads`)."""


class UnreadableText(str):
    """In place of a stored text that cannot be decoded. It is no JSON: whoever parses it raises its error."""

    __slots__ = ("error",)

    error: NotSerializable

    @classmethod
    def of(cls, error: NotSerializable) -> UnreadableText:
        """Return the text that stands for a payload with this error."""
        text = cls(f"({error})")
        text.error = error
        return text


def raise_unreadable(text: object) -> None:
    """Raise the error of an `UnreadableText`; called where a text is no JSON."""
    if isinstance(text, UnreadableText):
        raise text.error


def parse_stored(text: str) -> Any:
    """Parse a stored JSON text.

    Raises:
        NotSerializable: it is a `PayloadUnreadable`: the text is encoded, and cannot be decoded.
        ValueError: it is no JSON.
    """
    raise_unreadable(text)
    return from_json(text)


class Gate(NamedTuple):
    """What work waits at before a worker may fetch it: a guest of the provider opens it. The kernel reads no word of
    ``text``.
    """

    text: str
    limited: bool = True  # False: it opens with time alone, and new work finds it open
    head_start: float = 0.0  # seconds by which work that may be fetched is before other work of the same moment


class CommitPart:
    """A guest's share in the commit of an activity's result, written by the guest's part of the provider.

    It has a fence of its own. When that fails, nothing of the turn, or of the ack, is applied.
    """

    __slots__ = ()

    guest: ClassVar[str]
    """The guest that writes it."""
    noun: ClassVar[str]
    """Plural noun for its contents, for messages."""

    session_id: str
    """The session that its activity has, and that has changed with it; of the conflict when its fence fails."""

    @property
    def sessions(self) -> Sequence[str]:
        """The sessions of which it writes the guest's rows. Of two parts in one batch with a session in common, the
        first passes.
        """
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Its size, about in bytes."""
        raise NotImplementedError


ActivityKey: TypeAlias = tuple[str, int, int]
"""Instance, execution and activity id: of one activity, in all its attempts."""


class DurableResource(NamedTuple):
    """A resource that outlives a process."""

    resource_id: str
    name: str
    handle: str | None  # JSON; None: it is not created yet, or that is unknown


class ResourceStore(Protocol):
    """The resources of a database that outlive a process: see `affinity.session.durable`. A record uses a resource by
    the label ``affinity.resource/`` and its name, with its id.
    """

    async def begin_resource(
        self, resource_id: str, name: str, activity: ActivityKey, *, held: str | None
    ) -> DurableResource:
        """Return the resource that the activity is to use, which belongs to the activity from now on.

        It is the resource named ``held``, or a resource that an earlier attempt has created, unless it is being
        destroyed. Else it is a new resource with this id and without a handle.

        Another activity, whose instance had the same id, may have the same key. Ids of resources with a hyphen tell
        them apart by the part before it. An id without a hyphen: a row older than the activity belongs to another
        activity.
        """
        ...

    async def set_resource_handle(self, resource_id: str, handle: str) -> bool:
        """Note that the resource is created. False: it is being destroyed, or gone."""
        ...

    async def get_resource(self, resource_id: str) -> DurableResource | None:
        """One that is created and not being destroyed."""
        ...

    async def take_unused_resources(
        self, names: Collection[str], *, limit: int, seconds: float
    ) -> Sequence[DurableResource]:
        """Some that no record uses, and whose activity is not in the queue; for ``seconds`` no other call takes them,
        and sessions no longer get them.
        """
        ...

    async def find_unused_resources(self, *, without: Collection[str], limit: int) -> Sequence[DurableResource]:
        """Some that such a call would take, of names other than these."""
        ...

    async def remove_resources(self, resource_ids: Collection[str]) -> None:
        """Remove the rows of resources that were taken and are destroyed."""
        ...


@frozen(kw_only=True)
class SessionRecord:
    """A session's record, with its state."""

    session_id: str
    state: bytes
    encoding: StateEncoding
    schema_version: int
    metadata: SessionMetadata
    version: int
    generation: str  # see the module
    epoch: int | None  # of the last write under a lease; None when there was none
    idempotency_key: str | None  # of the last write; see `SessionStore.save`
    created_at: datetime
    updated_at: datetime


@frozen(kw_only=True)
class SessionSummary:
    """A session's record without its state, for lists."""

    session_id: str
    schema_version: int
    metadata: SessionMetadata
    version: int
    generation: str
    epoch: int | None
    size: int  # bytes of the state as stored
    created_at: datetime
    updated_at: datetime
    idle: float  # seconds since the last write, by the store's clock
    holder: str | None  # worker that holds the session now, if the store knows


ChildCursor: TypeAlias = tuple[str, datetime, str]
"""The end of a page of `SessionStore.children`: (parent, updated_at, session_id) of its last row."""


def child_cursor(row: SessionSummary | SessionRecord) -> ChildCursor:
    """Return the cursor for the page of `SessionStore.children` that begins after this record, which has a parent."""
    return row.metadata.parent or "", row.updated_at, row.session_id


def in_family_order(members: Iterable[SessionSummary]) -> list[SessionSummary]:
    """Sort the records of one family: the head, which has no parent among them, and then by creation."""
    found = list(members)
    names = {member.session_id for member in found}
    return sorted(found, key=lambda one: (one.metadata.parent in names, one.created_at, one.session_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Conditions on the records to list; all must hold. Newest first: by (updated_at, session_id), descending."""

    updated_after: datetime | None = None
    created_after: datetime | None = None
    idle_for: float | None = None  # not written for at least this number of seconds, by the store's clock
    schema_version: int | None = None
    kind: str | None = None
    name: str | None = None
    parent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # has all of these
    participant: str | None = None  # is among its participants
    orphaned: bool = False  # has a parent that has no record
    heads: bool = False  # has no parent, or is orphaned
    holder: str | None = None  # worker id; a store that does not know holders finds none
    prefix: str | None = None  # of the session id
    after: tuple[datetime, str] | None = None  # keyset cursor: (updated_at, session_id) of the last row seen

    def __post_init__(self) -> None:
        """Refuse values that no record has.

        Raises:
            InvalidOptions: the schema version is not an integer from 0 to `limits.MAX_INTEGER`, or a time has no time
                zone.
            InvalidId: a text has a character that no store can keep.
        """
        check_conditions(self)
        if self.schema_version is not None:
            check_integer(self.schema_version, "schema_version")
        at, _ = self.after or (None, None)
        for time in (self.updated_after, self.created_after, at):
            if time is not None and time.tzinfo is None:
                raise InvalidOptions(f"{time!r} has no time zone")


@frozen(kw_only=True)
class RecordTimes:
    """The times at which a record was created and last written, in the store that it comes from; aware times."""

    created_at: datetime
    updated_at: datetime


class SessionStore(Protocol):
    """A store of session records; every provider has one.

    `affinity_conformance.stores` asserts the contract. Each call is atomic. Saved and loaded objects share nothing with
    the store's own copy. Errors are classes of `affinity.errors`, as for a provider.
    """

    async def load(self, session_id: str) -> SessionRecord | None:
        """Return the record; None if it does not exist."""
        ...

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        generation: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
        times: RecordTimes | None = None,
    ) -> int:
        """Write a record, by default unconditionally; returns its version.

        Args:
            new: the state to write; ``created_at`` of an existing record stays.
            expected_version: the version from which it was made, 0 for none.
            generation: of the record from which it was made. Without a record, the new record gets it; None: a random
                one.
            epoch: of the writer's lease. None: a writer without a lease; the record keeps its epoch, and in a
                provider's database the session gets a new one (see the module).
            idempotency_key: when the record's last write had this very key, nothing is written and the record's
                version is returned: the write has happened already.
            times: that the record gets, as an import has them; a time in the future becomes now. None: ``updated_at``
                is now, and so is ``created_at`` of a new record.

        Raises:
            SessionWriteConflict: the record has another version or generation than expected, or the session or the
                record has a newer epoch than the writer. Nothing was written.
        """
        ...

    async def delete(
        self,
        session_ids: Collection[str],
        *,
        idle_only: bool = False,
        versions: Mapping[str, int] | None = None,
        generations: Mapping[str, str] | None = None,
        families: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Sequence[str]:
        """Remove records; unknown ids are ignored, and children stay.

        Args:
            session_ids: of the records; `limits.DELETE_STEP` at a time are a good number. Without ``families`` a store
                may remove more of them in several transactions.
            idle_only: keep records whose session a live worker holds, or has work in the queue. Records that another
                transaction uses in this moment are kept, too: the call does not wait for them.
            versions: by session; keep a record that has another version: it was written since.
            generations: by session; keep a record that has another generation: it was created since.
            families: for each id, a name that the ids of one family share. Keep a family as a whole if one of its
                records is kept, or has a child that is not named: it was added since.
            dry_run: change nothing, and lock nothing.

        Returns:
            The ids of the records that were (or would be) removed, in the order in which they were named.
        """
        ...

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        """One page of records; the cursor of the next page is the last row's (updated_at, session_id)."""
        ...

    async def count(self, where: SessionFilter) -> int:
        """Return the number of matching records."""
        ...

    async def children(
        self, session_ids: Collection[str], limit: int, *, after: ChildCursor | None = None
    ) -> Sequence[SessionSummary]:
        """One page of the records whose parents are among these sessions: by parent, then oldest first. A record that
        is written meanwhile may be on two pages.

        Args:
            session_ids: of the parents, with a record or without; up to `limits.MAX_PAGE`.
            limit: records on the page.
            after: (parent, updated_at, session_id) of the last row seen.
        """
        ...

    async def ancestors(self, session_id: str, limit: int) -> Sequence[SessionSummary]:
        """Return the records of a session, its parent, and so on, in any order: at most ``limit``; maybe none."""
        ...


def database_of(store: SessionStore | None) -> str:
    """The name of a store's database, among all that this process has open (`ProviderConnection.database`); of a store
    that does not say it, a name for the object. "": no store.
    """
    if store is None:
        return ""
    name: str | None = getattr(store, "database", None)
    return f"store {id(store)}" if name is None else name


KeepNamed: TypeAlias = Callable[[Iterable[str | bytes]], Awaitable[None]]
"""Keeps the blobs that parts of an export name."""


async def keep_named(store: SessionStore, exported: Iterable[str | bytes]) -> None:
    """Keep the blobs that parts of an export name, if the store knows of any: its attribute ``keep_named`` does it."""
    keep: KeepNamed | None = getattr(store, "keep_named", None)
    if keep is not None:
        await keep(exported)


class ActivityRun(NamedTuple):
    """The attempt of an activity that gave its result."""

    worker_id: str  # the worker that ran it
    attempt: int  # deliveries of the work item, this one included
    queued_for: float | None = None  # seconds from its queueing to this delivery; None: less than `limits.SHOWN_WAIT`


class Hydrate(NamedTuple):
    """The cost of bringing a session's state into memory, or of loading a resource that it uses."""

    epoch: int  # of the session
    seconds: float
    bytes: int | None = None  # of the state, where its size is known
    resource: str | None = None  # name of the resource; None: the state


class Participant(Protocol):
    """Takes part in the commit of an activity's result; see ``ActivityContext._enlist``."""

    async def prepare(self) -> StateWrite | None:
        """Return the write that commits with the result. Called once, when the activity's code has returned.

        An exception fails the activity.
        """
        ...

    def settled(self, applied: bool) -> None:
        """Called exactly once, on the event loop. ``applied``: the result and the write are committed. False also if
        that is unknown: state in memory must then be discarded.
        """
        ...


class ActivityWait(NamedTuple):
    """The wait of a running activity for another instance."""

    wait_id: int  # random
    instance_id: str  # of the activity, with the next two
    execution_id: int
    activity_id: int
    worker_id: str  # that runs it
    awaited: str  # id of the instance
    target_id: int | None  # identifies data that a guest keeps under that id; None: the end of the instance is awaited
    seq: int | None  # the number of that guest's which is awaited


class WaitEdge(NamedTuple):
    """An `ActivityWait` that is not over."""

    wait_id: int
    instance_id: str
    awaited: str
    seq: int | None
    began: float  # Unix seconds


class WaitNotes(Protocol):
    """The notes of waits in a worker's database."""

    def is_here(self) -> bool:
        """Return whether the caller runs on the event loop of the worker."""
        ...

    async def begin_wait(self, wait: ActivityWait) -> None:
        """See `WorkerProvider.begin_wait`."""
        ...

    async def end_wait(self, wait_id: int) -> None:
        """See `WorkerProvider.end_wait`; an error of the database is ignored."""
        ...

    async def get_waits(self, instance_id: str) -> Sequence[WaitEdge]:
        """See `ProviderConnection.get_waits`."""
        ...


class PartParticipant(Protocol):
    """A guest's `Participant`, with a part of the guest in place of a state."""

    async def prepare(self) -> CommitPart | None:
        """See `Participant.prepare`."""
        ...

    def settled(self, applied: bool) -> None:
        """See `Participant.settled`."""
        ...


AnyParticipant: TypeAlias = Participant | PartParticipant
