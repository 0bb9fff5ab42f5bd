"""What is kept of a session: the words that the session layer, the providers and the worker share.

A session has at most one *record*: its state as bytes that only the session layer understands, and beside it, in
columns of their own, what people look for. Two ways lead to a record:

* with a result: a `StateWrite` travels with the result of an activity and is applied in the same transaction, or not at
  all (`affinity.provider.contract.Turn`, ``WorkAck``);
* on its own: `SessionStore.save`, for scripts, for web handlers, and for stores that are not the provider's database.

Fences
    *version*: counts the writes of a record, from 1. A write names the version that it was made from; another one in
    the store means that somebody else has written since.
    *birth*: a random name that a record has from its making to its deletion. Versions begin again with a record that is
    made anew under the same id; its birth is another. Who writes with a result need not name it: the deletion has ended
    the epoch.
    *epoch*: of the lease under which the writer works (`docs/understand/leases.md`).
    A write under an older epoch than the session
    or its record has is refused. In the provider's database, whoever saves or deletes a record without a lease gives
    the session a new epoch first (one without a row gets it, expired): copies in the memory of its holder are not used
    any more, and what is being computed from them is refused. The holder hydrates again and goes on. A first claim at
    the same time either waits and hydrates what was written, or has its epoch ended too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, dataclass_transform

from affinity.errors import InvalidOptions
from affinity.limits import check_id, check_integer, check_text

T = TypeVar("T")

_BIGINT: Final = 2**63


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass with slots, compared and hashed by value, whose fields are never set again.

    That they are not is checked by mypy, not at run time: there, a frozen dataclass writes each field of a new object
    through ``object.__setattr__``, which for the ten records of a turn was an eighth of all that a worker executes.
    Whoever gets such a record from this library must treat it as frozen; what applications are given in their own
    functions (`affinity.ActivityContext`) is frozen for real.
    """
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)


StateEncoding: TypeAlias = Literal["plain", "zlib"]
"""How the bytes of a state are packed; stores keep the word and never look inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMetadata:
    """What people see and look for without opening the state."""

    kind: str = ""  # which type of state: a record is only opened as what it was written
    name: str | None = None
    parent: str | None = None  # session id; deleting the parent deletes this one
    labels: Mapping[str, str] = field(default_factory=dict)
    message_count: int | None = None
    participants: Sequence[str] = ()


def labels_of(text: str) -> dict[str, str]:
    """The labels that a row has as JSON, as far as it is that: a damaged row must not keep others from being listed."""
    value = _from_json(text)
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)}


def participants_of(text: str) -> list[str]:
    """The participants that a row has as JSON, as far as it is that."""
    value = _from_json(text)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The state of a session as it is written."""

    session_id: str
    state: bytes
    encoding: StateEncoding = "plain"
    schema_version: int = 1
    metadata: SessionMetadata = field(default_factory=SessionMetadata)

    def __post_init__(self) -> None:
        """Refuse what no store can keep, whoever made it.

        Raises:
            InvalidOptions: the schema version or the message count is no integer from 0 to `limits.MAX_INTEGER`, or the
                state is not bytes.
            InvalidId: a text is none, or holds a character that no store keeps.
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

    Applied when the record's version is ``base_version`` (0: there is no record) and neither the session nor the record
    has an epoch greater than ``epoch``. The record then has version ``base_version`` + 1 and this epoch. It names no
    birth: a record that was made anew comes with a greater epoch of the session.
    """

    new: SessionState
    base_version: int
    epoch: int

    def __post_init__(self) -> None:
        """Refuse what no store can compare.

        Raises:
            InvalidOptions: the version or the epoch is no integer of 64 bits.
        """
        for what, value in (("base_version", self.base_version), ("epoch", self.epoch)):
            if type(value) is not int or not 0 <= value < _BIGINT:
                raise InvalidOptions(f"{what} of a session's state must be an integer of 64 bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A record as it was read."""

    session_id: str
    state: bytes
    encoding: StateEncoding
    schema_version: int
    metadata: SessionMetadata
    version: int
    birth: str  # see the module
    epoch: int | None  # of the lease that wrote it last; None when nobody ever wrote it under one
    idempotency_key: str | None  # of the last write; see `SessionStore.save`
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """A record without its state, for lists."""

    session_id: str
    schema_version: int
    metadata: SessionMetadata
    version: int
    birth: str
    epoch: int | None
    size: int  # bytes of the state as stored
    holder: str | None  # worker that holds the session now, where the store can know
    created_at: datetime
    updated_at: datetime
    idle: float  # seconds since the last write, by the store's clock


def in_family_order(members: Iterable[SessionSummary]) -> list[SessionSummary]:
    """The records of one family: the head, which has no parent among them, and then by their creation."""
    found = list(members)
    names = {member.session_id for member in found}
    return sorted(found, key=lambda one: (one.metadata.parent in names, one.created_at, one.session_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Which records to list; all conditions must hold. Newest first: by (updated_at, session_id), descending."""

    updated_after: datetime | None = None
    created_after: datetime | None = None
    idle_for: float | None = None  # not written for at least so many seconds, by the store's clock
    schema_version: int | None = None
    kind: str | None = None
    name: str | None = None
    parent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # has all of these
    participant: str | None = None  # is among its participants
    orphaned: bool = False  # has a parent of which there is no record
    heads: bool = False  # has no parent, or is orphaned
    holder: str | None = None  # worker id; a store that cannot know who holds a session finds none
    prefix: str | None = None  # of the session id
    after: tuple[datetime, str] | None = None  # keyset cursor: (updated_at, session_id) of the last row seen

    def __post_init__(self) -> None:
        """Refuse what no record has.

        Raises:
            InvalidOptions: the schema version is no integer from 0 to `limits.MAX_INTEGER`.
        """
        if self.schema_version is not None:
            check_integer(self.schema_version, "schema_version")


class SessionStore(Protocol):
    """Where records are kept; every provider has one (``Provider.states``).

    Promises what `affinity.testing.conformance.stores` asserts. Each call is atomic. What is saved or loaded shares
    nothing with the store's own copy. Errors are those of `affinity.errors`, as for a provider.
    """

    async def load(self, session_id: str) -> SessionRecord | None:
        """The record; None when there is none."""
        ...

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        birth: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Write a record, whoever wrote it last unless told otherwise; returns its version.

        Args:
            new: what to write; ``created_at`` of an existing record stays.
            expected_version: the version that it was made from, 0 for none.
            birth: of the record that it was made from. Where there is no record, the one that is made gets it; None
                gives it a random one.
            epoch: of the writer's lease. None: a writer without a lease; the record keeps its epoch, and in a
                provider's database the session gets a new one (see the module).
            idempotency_key: when the record's last write had this very key, nothing is written and the record's
                version is returned: the write has happened already.

        Raises:
            SessionWriteConflict: the record has another version than expected or another birth, or the session or the
                record a newer epoch than the writer. Nothing was written.
        """
        ...

    async def delete(
        self,
        session_ids: Collection[str],
        *,
        cascade: bool = False,
        idle_only: bool = False,
        versions: Mapping[str, int] | None = None,
        births: Mapping[str, str] | None = None,
        whole: bool = False,
        dry_run: bool = False,
    ) -> Sequence[str]:
        """Remove records; unknown ids are passed over.

        Args:
            session_ids: which.
            cascade: their children too, and the children of those.
            whole: with ``cascade``, leave a named record that has a descendant which is to be left, or which is not in
                ``versions``, if these are told: it was added since.
            idle_only: leave those that a live worker holds, or that have work in the queue.
            versions: leave those of these sessions whose record has another version: it was written since it was seen.
            births: leave those of these sessions whose record has another birth: it was made since.
            dry_run: change nothing.

        Returns:
            The ids of the records that were (or would be) removed: the named ones first, in order.
        """
        ...

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        """One page; the cursor of the next is the last row's (updated_at, session_id)."""
        ...

    async def count(self, where: SessionFilter) -> int:
        """How many records fit."""
        ...

    async def families(self, session_ids: Collection[str]) -> Sequence[Sequence[SessionSummary]]:
        """For each session its family, in the order of `in_family_order`: its record, that of its parent, of the parent
        of that, and so on, and those of all their descendants. Empty where there is no record.
        """
        ...


class ActivityRun(NamedTuple):
    """The run of an activity that gave its result."""

    worker_id: str  # the worker that ran it
    attempt: int  # deliveries of the work item, this one included


class Participant(Protocol):
    """Something that must be kept together with an activity's result; see ``ActivityContext.enlist``."""

    async def prepare(self) -> StateWrite | None:
        """Called once when the activity's code has returned, before its result is sent: the write that goes with it.

        What it raises fails the activity.
        """
        ...

    def settled(self, applied: bool) -> None:
        """Called exactly once in the end, on the event loop: whether this worker knows that the result, and with it the
        write, was committed. False also when nobody can say: then the memory must not be trusted.
        """
        ...
