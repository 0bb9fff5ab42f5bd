"""The origins of conversations: forks, detached copies, merges and compressions, and their export.

A conversation that is made from others begins with their entries, or with a summary of them, and then goes its own way:
its journal, its state and its requests are its own. Inputs that the others have not processed wait in it too. A fork,
or a detached copy, also has the requests that were pending at the entry with which it begins: each side answers its
own. A merge and a summary have none. The revisits stay with the source. Title, owner and labels are copied, for a merge
from the left side.

Its state is the first of these: the state that the application gives; a copy of the record, unless it begins with an
earlier entry; the state that ``Conversations(rebuild=...)`` returns for the entries; an initial state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, Unpack

from pydantic import JsonValue
from pydantic_core import to_json

from affinity import errors
from affinity.conversation.events import (
    AgentMessage,
    AnswerEvent,
    Content,
    JournalEntry,
    UserInterrupt,
    UserMessage,
    text_of,
)
from affinity.conversation.follow import entries_removed
from affinity.conversation.journal import (
    CreationResult,
    InheritedRequest,
    JournalCreation,
    JournalLineage,
    JournalPage,
    JournalQuery,
    JournalRange,
    LineageKind,
    NewEntry,
    PendingWork,
)
from affinity.conversation.kinds import WAKE_MESSAGE, ConversationKind
from affinity.conversation.past_requests import requests_at
from affinity.conversation.reading import LineageReads, all_entries, all_wakes
from affinity.conversation.transfer import (
    CALL,
    Imported,
    LeftOut,
    entry_line,
    lineage_lines,
    record_line,
    shown_extras,
    waiting_lines,
    wake_line,
)
from affinity.conversation.usage import Share, Spent, UsageCounter, extras_of, spent_before, total_of, united
from affinity.limits import MAX_PAGE, check_id, check_payload
from affinity.readback import json_of
from affinity.records import (
    SessionRecord,
    SessionState,
    SessionStore,
    SessionSummary,
    copied,
    frozen,
    keep_named,
    parse_stored,
)
from affinity.session.durable import without_resources
from affinity.session.resources import OPEN, RESOURCE_LABEL, open_mark
from affinity.session.transfer import ImportTimes, exported_line
from affinity.tasks import call_here

Summarise: TypeAlias = Callable[[Sequence[JournalEntry]], Awaitable[str | UserMessage | AgentMessage]]
"""Writes a summary of entries. The usage of an `AgentMessage` counts for the new conversation."""

ReadPending: TypeAlias = Callable[[str], Awaitable[PendingWork | None]]
"""Reads what waits in a conversation."""

MAX_EXTRAS: Final = 16 * 1024
"""Bytes of the extras of a lineage."""

MAX_IMPORTED_EXTRAS: Final = 4 * MAX_EXTRAS
"""Bytes of the extras of an import: they have the lineage of the exported conversation, too."""

_KEEP: Final = "name the side to keep, keep='left' or keep='right'"

SNAPSHOTS: Final = 10
"""Attempts to read a state together with its entries; an attempt fails if a new state is committed during it."""


@frozen(kw_only=True)
class Ancestor:
    """A conversation and how it was made."""

    conversation_id: str | None  # None: it is deleted
    journal_id: int
    distance: int  # number of steps up; 0: the conversation itself
    lineage: str | None  # "fork", "detach", "merge", "compress" or "import"; None: it began with its first input
    operator: str
    parents: Sequence[int]  # journal ids, in order
    extras: Mapping[str, JsonValue]
    at: int | None  # the last number that it has of the journal that it continues
    home: str | None  # the session on whose lease its wakes run; None: its own
    created_at: datetime


class MadeBy(TypedDict, total=False):
    """Options of the calls that make a conversation from others; see `CommonCalls.fork`."""

    operator: str | None
    extras: Mapping[str, JsonValue] | None
    beside: bool | None


class LineageState(Protocol):
    """The access to the states of a kind that a `CreationPlanner` needs."""

    @property
    def _can_rebuild(self) -> bool:
        """True if the application has given ``rebuild``."""
        ...

    async def _rebuilt(self, conversation_id: str, entries: Sequence[JournalEntry]) -> SessionState | None:
        """Return the state that entries lead to, encoded."""
        ...

    async def _encoded(self, conversation_id: str, state: Any) -> SessionState | None:
        """Return a state, encoded."""
        ...

    async def _check_record(self, record: SessionRecord | SessionState) -> None:
        """Load a record, and drop its state; raises `SessionRecordRefused` if it could not be loaded."""
        ...

    def _check_version(self, record: SessionRecord | SessionSummary) -> None:
        """Compare kind and schema version; raises `SessionRecordRefused` if they could not be loaded."""
        ...


class CreationPlanner:
    """Plans how conversations of one kind are made from others: reads these, and checks the arguments."""

    def __init__(
        self,
        kind: ConversationKind,
        reads: LineageReads,
        states: LineageState | None,
        records: SessionStore,
        *,
        in_wake: bool = False,
    ) -> None:
        """``in_wake``: entries are added before the creations are applied."""
        self._kind, self._states, self._records = kind, states, records
        self.reads: LineageReads = reads
        self._in_wake = in_wake

    async def fork(
        self, source: str, new_id: str, *, at: int | None, lineage: Literal["fork", "detach"], **made_by: Unpack[MadeBy]
    ) -> JournalCreation:
        """See `CommonCalls.fork` and `CommonCalls.detach`."""
        own, *ancestors = await self._lineage(source)
        spent = spent_before([own, *ancestors]) if lineage == "detach" else {}
        extras = made_by.get("extras") or {}
        is_carried = lineage == "detach" and (spent or not {"usage", "usage_by_writer"}.isdisjoint(extras))
        copies, state = True, None
        requests: Sequence[InheritedRequest] | None = None
        if at is not None:
            page = await self.page(JournalQuery(session_id=source, limit=1))
            if isinstance(at, bool) or not isinstance(at, int) or not page.first_seq - 1 <= at <= page.last_seq:
                raise errors.UnknownEntry(
                    source, f"its journal has entries {page.first_seq} to {page.last_seq}, not {at!r:.80}"
                )
            copies = at == page.last_seq and not self._in_wake
            if not copies:
                state = await self._using(source, await self._rebuilt(source, new_id, at))
                requests = await requests_at(self.reads, self._kind.types, source, at, [own, *ancestors])
        if copies and self._states is not None and not self._in_wake:  # a wake has loaded it
            for record in await self._records.ancestors(source, 1):
                self._states._check_version(record)
        return self._creation(
            new_id,
            made_by,
            lineage=lineage,
            added=extras_of(spent) if is_carried else {},
            parents=[own.journal_id] if lineage == "fork" else [],
            about=own.about,
            base=JournalRange(own.journal_id, at),
            copies_state=copies,
            state=state,
            requests=requests,
            home=_home_beside(own, source, made_by.get("beside")),
        )

    async def merge(
        self,
        left: str,
        right: str,
        new_id: str,
        *,
        state: Any,
        keep: Literal["left", "right"] | None,
        **made_by: Unpack[MadeBy],
    ) -> JournalCreation:
        """See `LineageCalls.merge`."""
        if keep not in {None, "left", "right"}:
            raise errors.InvalidOptions(f"keep = {keep!r}: must be 'left' or 'right'")
        if left == right:
            raise errors.InvalidInput(f"conversation {left!r} cannot be merged with itself")
        one, other = await self._own(left), await self._own(right)
        home = _home_of_merge(await self._side(left, one.home), await self._side(right, other.home), keep)
        given = None if state is None else await self._encoded(new_id, state)
        digest = _digest(given)
        right_end = (await self.page(JournalQuery(session_id=right, limit=1))).last_seq
        copied, page = await self._snapshot(left)
        if given is None and copied is not None and self._states is not None:
            self._states._check_version(copied)
        base = JournalRange(one.journal_id, page.last_seq)
        used, of_right = _resources_of(copied), _resources_of(await self._records.load(right))
        if keep is None and any(used.get(name, other_id) != other_id for name, other_id in of_right.items()):
            raise errors.InvalidOptions(f"{left!r} and {right!r} use different resources: {_KEEP}")
        kept = {**used, **of_right} if keep == "right" else {**of_right, **used}
        if given is not None:
            given = _labelled(given, kept)
        elif kept == used:
            base = JournalRange(one.journal_id)
        elif copied is None:
            raise errors.InvalidOptions(f"{left!r} has no state that could use the resources of {right!r}: give state=")
        else:
            given = _state_with(copied, new_id, kept)
        return self._creation(
            new_id,
            made_by,
            lineage="merge",
            about=one.about,
            parents=[one.journal_id, other.journal_id],
            base=base,
            merged=JournalRange(other.journal_id),
            options={"state": digest, "keep": keep, "right": right_end},
            copies_state=given is None,
            state=given,
            home=home,
        )

    async def compress(
        self, source: str, new_id: str, *, summarise: Summarise, state: Any, **made_by: Unpack[MadeBy]
    ) -> JournalCreation:
        """See `CommonCalls.compress`."""
        own = await self._own(source)
        given = None if state is None else await self._encoded(new_id, state)
        digest = _digest(given)
        entries = [entry async for entry in self.entries(source)]
        event = await call_here(summarise, entries)
        if not isinstance(event, str | UserMessage | AgentMessage):
            raise errors.InvalidInput(
                f"summarise returns a text, a UserMessage or an AgentMessage, not {type(event).__name__}"
            )
        message = UserMessage(event) if isinstance(event, str) else UserMessage(event.content)
        if _is_empty(message.content):
            raise errors.InvalidInput("summarise returned an empty summary, in place of all entries: return its text")
        spent = await self._spent(source)
        if isinstance(event, AgentMessage):
            spent[f"summary {token_hex(6)}"] = Share(1, event.usage)
        compression: JsonValue = {"lossy": True, "entries_in": len(entries), "entries_out": 1}
        entry = NewEntry(kind=message.kind, payload=self._kind.types.encode(message))
        if state is None:
            given = await self._summarised(new_id, message, entry.payload)
        return self._creation(
            new_id,
            made_by,
            lineage="compress",
            added={"compression": compression, **extras_of(spent)},
            about=own.about,
            parents=[own.journal_id],
            options={"state": digest},
            entries=[entry],
            state=await self._using(source, given),
            home=_home_beside(own, source, made_by.get("beside")),
        )

    async def export(self, source: str, pending: ReadPending) -> AsyncIterator[str]:
        """See `LineageCalls.export`."""
        lineage = await self._lineage(source)
        record, page, waiting = await self._whole(source, pending)
        # Retention has removed entries: an import counts what all of a writer have used.
        spent = spent_before(lineage) if lineage[0].used == "{}" else await self._spent(source)
        first = lineage_lines(lineage, page, extras_of(spent))
        await keep_named(self._records, [*first, *waiting])
        for line in first:
            yield line
        if record is not None:
            yield record_line(await exported_line(self._records, record))
        async for wake in all_wakes(self.reads.wakes, source):
            if wake.seq <= page.last_seq:
                line = wake_line(wake)
                await keep_named(self._records, [line])
                yield line
        for line in waiting:
            yield line
        head, after, more = page, 0, True
        while more:
            query = JournalQuery(session_id=source, after=after, before=head.last_seq + 1, limit=MAX_PAGE)
            page = await self.page(query)
            if not page.journal_id == head.journal_id == lineage[0].journal_id:
                raise errors.UnknownConversation(source, "it was deleted during its export, and another one has its id")
            if page.first_seq > max(after + 1, head.first_seq):
                raise entries_removed(source, after, page.first_seq)
            await keep_named(self._records, [entry.payload for entry in page.entries])
            for entry in page.entries:
                yield entry_line(entry)
            after, more = (page.entries[-1].seq if page.entries else after), page.more

    async def _whole(
        self, source: str, pending: ReadPending
    ) -> tuple[SessionRecord | None, JournalPage, Sequence[str]]:
        """Return a `_snapshot`, with the lines of the pending work: inputs may come during it, and resolve requests."""
        for _ in range(SNAPSHOTS):
            work = await pending(source)
            record, page = await self._snapshot(source)
            if work is None or work.journal_id != page.journal_id:
                continue
            query = JournalQuery(session_id=source, after=work.last_seq, before=page.last_seq + 1, limit=MAX_PAGE)
            since = await self.page(query)
            if since.more or page.processed != work.processed or not all(entry.is_input for entry in since.entries):
                continue
            events = [self._kind.types.read(entry).event for entry in since.entries]
            if any(isinstance(event, UserInterrupt) for event in events):  # it drops all
                return record, page, waiting_lines(work, [], [])
            answered = {event.request_id for event in events if isinstance(event, AnswerEvent)}
            requests = [request for request in work.requests if request.request_id not in answered]
            return record, page, waiting_lines(work, requests, work.revisits)
        raise self._contention(source)

    async def imported(
        self, new_id: str, found: Imported, *, times: ImportTimes, without: Collection[LeftOut]
    ) -> JournalCreation:
        """See `LineageCalls.import_`."""
        for kind, names in found.left_out.items():
            if kind not in without:
                raise errors.InvalidOptions(
                    f"the conversation had {kind} that are not over and cannot go on in a copy: {', '.join(names[:5])}."
                    f" Export it when they are over, or leave them out: without={{{kind!r}}}"
                )
        if found.conversation.kind != self._kind.name:
            raise errors.ConversationKindMismatch(
                new_id, f"the export is of kind {found.conversation.kind!r}, not {self._kind.name!r}"
            )
        state = found.record
        if state is not None:
            state = replace(state, session_id=new_id, metadata=without_resources(state.metadata))
        if state is not None and state.metadata.kind != self._kind.name:
            raise errors.SessionRecordRefused(new_id, f"it is of kind {state.metadata.kind!r}, not {self._kind.name!r}")
        if state is not None and self._states is not None:
            await self._states._check_record(state)
        is_kept = times == "kept"
        return self._creation(
            new_id,
            MadeBy(extras=found.extras),
            lineage="import",
            home=None,
            about=found.conversation.about,
            parents=[],
            processed=found.processed,
            wakes=found.wakes,
            requests=found.requests,
            revisits=found.revisits,
            entries=found.entries if is_kept else [replace(entry, recorded_at=None) for entry in found.entries],
            state=state,
            state_times=found.times if is_kept else None,
            options={"times": times, "state": _digest(state), "entries": _entries_digest(found.entries)}
            | {f"without {kind}": True for kind in without},
        )

    async def is_taken(self, new_id: str) -> bool:
        """Return whether this id has a journal, or a record of state."""
        return bool(await self.reads.lineage(new_id)) or await self._records.load(new_id) is not None

    async def check_repeated(self, creation: JournalCreation, source: str) -> None:
        """Check that the journal with this id, which has the same operator and parents, was made by such a creation.

        Raises:
            ConversationExists: another call has made it, or the source has had more entries since.
        """
        found = await self.reads.lineage(creation.session_id)
        if not found:
            return  # deleted since
        made = found[0]
        if not _is_made_by(creation, made):
            raise errors.ConversationExists(
                creation.session_id,
                "its id is in use: a call with another source, position or other options has made it; take another id",
            )
        if creation.base is not None and made.base is not None and creation.base.up_to is None:
            page = await self.page(JournalQuery(session_id=source, limit=1))
            if page.last_seq != made.base.up_to:
                raise errors.ConversationExists(
                    creation.session_id,
                    f"its id is in use: it goes on from entry {made.base.up_to} of {source!r}, which has entry "
                    f"{page.last_seq} now; take its handle, or another id",
                )

    async def ancestors(self, source: str) -> Sequence[Ancestor]:
        """See `CommonCalls.ancestors`."""
        return [_ancestor(node) for node in await self._lineage(source)]

    async def resources(self, source: str) -> dict[str, str]:
        """See `CommonCalls.resources`."""
        found = _resources_of(await self._records.load(source))
        return {label.removeprefix(RESOURCE_LABEL): resource_id for label, resource_id in found.items()}

    async def usage(self, source: str) -> dict[str, int]:
        """See `LineageCalls.usage`."""
        return total_of(await self._spent(source))

    async def _spent(self, source: str) -> Spent:
        for _ in range(SNAPSHOTS):
            lineage = await self._lineage(source)
            counter = UsageCounter(lineage[0])
            async for entry in self.entries(source, self._kind.types.kinds_with_usage):
                counter.add(entry)
            if (await self._own(source)).used == lineage[0].used:  # else retention has removed entries since
                break
        return united(spent_before(lineage), counter.spent())

    async def entries(
        self, source: str, kinds: Sequence[str] = (), *, before: int | None = None
    ) -> AsyncIterator[JournalEntry]:
        """Yield all entries of a journal, read page by page."""
        query = JournalQuery(session_id=source, before=before, kinds=kinds, limit=MAX_PAGE)
        async for entry in all_entries(self.page, query):
            yield self._kind.types.read(entry)

    async def page(self, query: JournalQuery) -> JournalPage:
        """Return a page of a journal of this kind.

        Raises:
            UnknownConversation: no conversation has this id.
            ConversationKindMismatch: it is of another kind.
        """
        page = await self.reads.read(query)
        if page is None:
            raise errors.UnknownConversation(query.session_id, "there is no such conversation")
        if page.kind != self._kind.name:
            raise errors.ConversationKindMismatch(
                query.session_id, f"it is of kind {page.kind!r}, not {self._kind.name!r}"
            )
        return page

    async def _lineage(self, source: str) -> Sequence[JournalLineage]:
        found = await self.reads.lineage(source)
        if not found:
            raise errors.UnknownConversation(source, "there is no such conversation")
        if found[0].kind != self._kind.name:
            raise errors.ConversationKindMismatch(source, f"it is of kind {found[0].kind!r}, not {self._kind.name!r}")
        return found

    async def _own(self, source: str) -> JournalLineage:
        return (await self._lineage(source))[0]

    async def _snapshot(self, source: str) -> tuple[SessionRecord | None, JournalPage]:
        """Return the record of a conversation, and a page of its journal that ends with the entries that it was made
        from.
        """
        for _ in range(SNAPSHOTS):
            record = await self._records.load(source)
            page = await self.page(JournalQuery(session_id=source, limit=1))
            found = await self._records.ancestors(source, 1)
            if [*map(_version, found)] == ([] if record is None else [_version(record)]):
                return record, page
        raise self._contention(source)

    @staticmethod
    def _contention(source: str) -> errors.Contention:
        return errors.Contention(
            f"conversation {source!r} ran a wake in each of {SNAPSHOTS} attempts to read its state with its entries: "
            "try again, while it runs less"
        )

    async def _side(self, conversation_id: str, home: str | None) -> _Side:
        """Return a side of a merge: its record, or its home's record, names the resources that are open under the
        present lease.
        """
        place = home or conversation_id
        epoch = (await self.reads.held_epochs([place])).get(place)
        records = [await self._records.load(state_id) for state_id in dict.fromkeys((conversation_id, place))]
        marks = [dict(record.metadata.labels).get(OPEN) for record in records if record is not None]
        return _Side(conversation_id, home, epoch is not None and open_mark(place, epoch) in marks)

    async def _using(self, source: str, state: SessionState | None) -> SessionState | None:
        """Return a new state, which uses the resources that a conversation uses."""
        used = {} if state is None else _resources_of(await self._records.load(source))
        return state if state is None or not used else _labelled(state, used)

    async def _summarised(self, new_id: str, message: UserMessage, payload: str) -> SessionState | None:
        if self._states is None or not self._states._can_rebuild:
            return None
        return await self._states._rebuilt(new_id, [JournalEntry(1, message, None, None, datetime.now(UTC), payload)])

    async def _rebuilt(self, source: str, new_id: str, at: int) -> SessionState | None:
        if self._states is None or not self._states._can_rebuild:
            return None
        return await self._states._rebuilt(new_id, [entry async for entry in self.entries(source, before=at + 1)])

    async def _encoded(self, new_id: str, state: Any) -> SessionState | None:
        if self._states is None:
            raise errors.InvalidOptions("a state needs the code that defines the conversations")
        return await self._states._encoded(new_id, state)

    def _creation(
        self,
        new_id: str,
        made_by: MadeBy,
        *,
        lineage: LineageKind,
        home: str | None,
        added: Mapping[str, JsonValue] = {},
        options: Mapping[str, JsonValue] = {},
        **fields: Any,
    ) -> JournalCreation:
        """Return a creation. ``options``: of the call, besides ``made_by``, the source and the position in it; a call
        that repeats it has the same options.
        """
        operator, extras = made_by.get("operator"), made_by.get("extras") or {}
        if CALL in extras:
            raise errors.InvalidInput(f"extras have no key {CALL!r}, which is taken: use another name")
        try:
            text, _ = json_of(dict(extras))
        except (ValueError, TypeError) as error:
            raise errors.NotSerializable(f"extras have no JSON form: {error}") from error
        check_payload(text, "extras", MAX_IMPORTED_EXTRAS if lineage == "import" else MAX_EXTRAS)
        call = sha256(to_json([text, options])).hexdigest()[:32]
        return JournalCreation(
            session_id=check_id(new_id, "conversation id"),
            kind=self._kind.name,
            start=self._kind.start(home=home),
            home=home,
            message=WAKE_MESSAGE,
            lineage=lineage,
            operator=lineage if operator is None else check_id(operator, "operator"),
            extras=to_json({**extras, **added, CALL: call}).decode(),
            **fields,
        )


def _is_empty(content: Content) -> bool:
    if isinstance(content, str):
        return not content.strip()
    return all(block.get("type") == "text" and not text_of([block]).strip() for block in content)


def check_creation(creation: JournalCreation, result: CreationResult) -> None:
    """Raise the error for a creation that was refused.

    Raises:
        ConversationExists, UnknownConversation, UnknownEntry: why.
    """
    match result.outcome:
        case "taken":
            raise errors.ConversationExists(creation.session_id, "its id is in use")
        case "unknown":
            raise errors.UnknownConversation(creation.session_id, "its source is deleted")
        case "beyond":
            raise errors.UnknownEntry(creation.session_id, "its source does not have these entries")


def _home_beside(own: JournalLineage, source: str, beside: bool | None) -> str | None:
    """Return the home of a conversation that is made from a journal."""
    if beside is None:
        return own.home
    return (own.home or source) if beside else None


@dataclass(frozen=True, slots=True)
class _Side:
    """A side of a merge."""

    conversation_id: str
    home: str | None
    is_open: bool  # a resource that does not outlive the process is open

    @property
    def has_resources(self) -> bool:
        """True if it has something open, or was made to share the resources of another session."""
        return self.is_open or self.home is not None

    @property
    def place(self) -> str:
        """The session that has the resources."""
        return self.home or self.conversation_id


def _home_of_merge(left: _Side, right: _Side, keep: str | None) -> str | None:
    """Return the session whose resources a merge shares; None: it has its own.

    The resources of the left side are kept. A side without resources is ignored.

    Raises:
        InvalidOptions: both sides have resources, of different sessions, and no side is named.
    """
    if keep is not None:
        return (left if keep == "left" else right).place
    if left.has_resources and right.has_resources and left.place != right.place:
        raise errors.InvalidOptions(
            f"{left.conversation_id!r} has the resources of {left.place!r}, and {right.conversation_id!r} of "
            f"{right.place!r}: {_KEEP}"
        )
    return next((side.place for side in (left, right) if side.has_resources), None)


def _digest(state: SessionState | None) -> str | None:
    return None if state is None else sha256(state.state).hexdigest()


def _entries_digest(entries: Sequence[NewEntry]) -> str:
    return sha256(to_json([(entry.kind, entry.payload, entry.event_id) for entry in entries])).hexdigest()


def _version(record: SessionRecord | SessionSummary) -> tuple[str, int]:
    """Return a version that changes with each commit of a wake, or of a part of it, that changes the state."""
    return record.generation, record.version


def _resources_of(record: SessionRecord | None) -> dict[str, str]:
    """Return the labels of a record that name resources."""
    labels = {} if record is None else dict(record.metadata.labels)
    return {name: value for name, value in labels.items() if name.startswith(RESOURCE_LABEL)}


def _labelled(state: SessionState, resources: Mapping[str, str]) -> SessionState:
    """Return a state with these resources."""
    return replace(state, metadata=replace(state.metadata, labels={**state.metadata.labels, **resources}))


def _is_made_by(creation: JournalCreation, made: JournalLineage) -> bool:
    """Return whether the base, its number if it is given, the home and the options are the same."""
    base, found = creation.base, made.base
    if (base is None) != (found is None) or creation.home != made.home:
        return False
    if base is not None and found is not None and base not in {found, JournalRange(found.journal_id)}:
        return False
    ours, theirs = parse_stored(creation.extras), parse_stored(made.extras)
    return all(ours.get(name) == theirs.get(name) for name in (CALL, "compression"))


def _state_with(record: SessionRecord, session_id: str, resources: Mapping[str, str]) -> SessionState:
    """Return the state of a record, for another session, with other resources."""
    metadata = replace(record.metadata, parent=None, labels={**record.metadata.labels, **resources})
    return copied(SessionState, record, session_id=session_id, metadata=metadata)


def _ancestor(row: JournalLineage) -> Ancestor:
    return copied(
        Ancestor,
        row,
        conversation_id=row.session_id,
        extras=shown_extras(row.extras),
        at=None if row.base is None else row.base.up_to,
    )
