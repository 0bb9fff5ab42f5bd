"""The lineage of conversations: the common calls of a handle and a wake, and the calls of the handle."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack, cast

from pydantic import JsonValue

from affinity.actions import action
from affinity.conversation.client import ConversationCalls
from affinity.conversation.events import JournalEntry
from affinity.conversation.journal import JournalCreation
from affinity.conversation.kinds import ConversationKind
from affinity.conversation.lineage import Ancestor, CreationPlanner, LineageState, MadeBy, Summarise, check_creation
from affinity.conversation.reading import DEFAULT_ENTRIES, EntryReader, Read, all_wakes, check_seq
from affinity.conversation.transfer import LeftOut, read_lines
from affinity.conversation.views import EndedWake, wake_of
from affinity.errors import QuotaExceeded
from affinity.limits import check_choice, check_limit
from affinity.paging import uninterrupted
from affinity.session.transfer import ImportTimes

M = TypeVar("M")

_PLANS = 3
"""The number of times that a creation is planned: its base may get entries during the call."""


class CommonCalls(EntryReader, Generic[M]):
    """The common calls of a handle and a wake. A handle makes conversations immediately, and returns their handles
    (``M``); a wake makes them with its commit, and returns nothing.
    """

    def __init__(self, read: Read, kind: ConversationKind, planner: CreationPlanner, conversation_id: str) -> None:
        super().__init__(read, kind.types, conversation_id)
        self._kind, self._planner = kind, planner

    @property
    def _database(self) -> str:
        """See `ProviderConnection.database`."""
        raise NotImplementedError

    async def wakes(
        self, *, after: int = 0, newest_first: bool = False, limit: int = DEFAULT_ENTRIES
    ) -> Sequence[EndedWake]:
        """Return the ended attempts of its wakes, in order: a page of attempts whose last entry is behind ``after``, as
        far as retention has kept that entry. The `EndedWake.seq` of the last one, as ``after``, gives the next page.

        Args:
            after: number of an entry.
            newest_first: the newest attempts, newest first.
            limit: attempts at most, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: a number out of range.
        """
        check_limit(limit)
        read = self._planner.reads.wakes
        found = await read(self.conversation_id, check_seq(after), newest_first=newest_first, limit=limit)
        return [wake_of(row) for row in found]

    async def processed_by(self, entries: Iterable[JournalEntry]) -> Mapping[int, str]:
        """Return the wakes that have processed the inputs among some entries of `history`: their ids, by the number of
        the input. A wake that has set an input aside has processed it (`ConversationHandle.dead_letters`). It is one
        read for a page of entries.
        """
        inputs = [entry for entry in entries if entry.wake_id is None and not entry.kind.startswith("conversation.")]
        seqs = sorted([entry.seq for entry in inputs])
        found: dict[int, str] = {}
        if seqs:
            async for wake in all_wakes(self._planner.reads.wakes, self.conversation_id, seqs[0]):
                found |= {seq: wake.wake_id for seq in seqs if wake.base < seq <= wake.processed}
                if wake.processed >= seqs[-1]:
                    break
        return found

    @action("fork", "conversation", "conversation_id", "new_id", "at")
    async def fork(self, new_id: str, *, at: int | None = None, **made_by: Unpack[MadeBy]) -> M:
        """Make a conversation that goes on from an entry of this one. The cost does not grow with the length. It has
        the title, the owner and the labels of this one, as have a detached copy and a compression.

        It has the requests that were pending there, each with its id: within a merge, only its own requests. They are
        answered here and there independently, and expire at the same time; a request that this conversation has
        resolved since then does not expire there.

        Args:
            new_id: its id.
            at: the number of the last entry that it has of this one, 0 for no entry. None: all entries, with those that
                the wake appends. Of a handle that knows the kind of the `Conversations` alone, an earlier entry than
                the last one has no requests of the application's own kinds.
            made_by: ``operator``: what makes it, for people; by default "fork". ``extras``: for people and programs,
                kept with it. ``beside``: its wakes run on the lease of this conversation, or of its home, and share its
                resources; False: on their own lease; None: as the wakes of this conversation.

        Raises:
            UnknownConversation, ConversationKindMismatch: no conversation has this id, or it is of another kind.
            UnknownEntry: the journal does not have this entry, or has not kept it.
            SessionRecordRefused: the record of state that it would copy could not be loaded; of a handle that knows the
                `Conversations`, and not their kind alone.
            ConversationExists: the new id is in use, and not by what this call has made before: see
                `affinity.conversation.lineage_calls.LineageCalls`.
            QuotaExceeded: there are as many instances as there may be; of a handle.
            PayloadTooLarge: of a wake: the data of several conversations that it makes, without copies, has more than
                `limits.MAX_STATE_BYTES`.
            InvalidInput: an argument is refused.
        """
        return await self._derive(new_id, self._planner.fork, new_id, at=at, lineage="fork", **made_by)

    @action("detach", "conversation", "conversation_id", "new_id", "at")
    async def detach(self, new_id: str, *, at: int | None = None, **made_by: Unpack[MadeBy]) -> M:
        """Make a conversation with the content of this one and without parents. The arguments and errors are those of
        `fork`.
        """
        return await self._derive(new_id, self._planner.fork, new_id, at=at, lineage="detach", **made_by)

    @action("compress", "conversation", "conversation_id", "into")
    async def compress(self, *, into: str, summarise: Summarise, state: Any = None, **made_by: Unpack[MadeBy]) -> M:
        """Make a conversation whose only entry is a summary of this one: a `UserMessage`, which wakes nothing.

        Args:
            into: id of the new conversation.
            summarise: an async function of the entries; it returns a text, a `UserMessage` or an `AgentMessage`.
            state: of the new conversation. None: ``rebuild`` of the summary, or an initial one.
            made_by: see `fork`; the sizes, and the usage until then, are added to the ``extras``.

        Raises:
            InvalidInput: ``summarise`` returned anything else, such as a call of a tool, or an empty summary.
            ClientError: see `fork`.
        """
        return await self._derive(into, self._planner.compress, into, summarise=summarise, state=state, **made_by)

    async def ancestors(self) -> Sequence[Ancestor]:
        """Return this conversation, then the conversations that it was made from, nearest first, each once.

        Raises:
            UnknownConversation, ConversationKindMismatch: see `fork`.
        """
        return await self._planner.ancestors(self.conversation_id)

    async def resources(self) -> dict[str, str]:
        """Return the resources that outlive the process and are attached to this conversation: their ids, by name;
        "closed": it has closed the resource of this name. (The session on whose lease its wakes run is
        `Ancestor.home`.)
        """
        return await self._planner.resources(self.conversation_id)

    async def _derive(self, new_id: str, plan: Any, *args: Any, **options: Any) -> M:
        """Make the conversation that ``plan`` gives for this one and these arguments."""
        raise NotImplementedError


class LineageCalls(CommonCalls[M], Generic[M]):
    """Makes conversations from others.

    A call may be repeated, as after a lost reply: it returns the conversation that it has made. A used id is refused
    with `ConversationExists` when the source, the position or an option differs, also when the source has had more
    entries since, and the call names no position (``at=``). ``summarise`` is not compared.
    """

    def __init__(
        self,
        client: ConversationCalls,
        kind: ConversationKind,
        conversation_id: str,
        states: LineageState | None = None,
    ) -> None:
        """``states``: of the code that defines the conversations; None: states are copied or initial."""
        planner = CreationPlanner(kind, client.journals, states, client.session_store)
        super().__init__(client.journals.read, kind, planner, conversation_id)
        self._client, self._states = client, states
        self._timeline = client.journals.timeline  # of numbers that do not know theirs

    @property
    def _database(self) -> str:
        return self._client.journals.database

    @action("merge", "conversation", "conversation_id", "other", "into")
    async def merge(
        self,
        other: str,
        *,
        into: str,
        state: Any = None,
        keep: Literal["left", "right"] | None = None,
        operator: str | None = None,
        extras: Mapping[str, JsonValue] | None = None,
    ) -> M:
        """Merge another conversation with this one, the left side, into a new one.

        It has the entries of this one, then the entries of the other one that this one does not have: common entries
        come once. It has the title, the owner and the labels of this one.

        Args:
            other: the right side.
            into: id of the new conversation.
            state: of the new conversation; None: a copy of the state of the left side.
            keep: the side whose resources it shares, and beside which it runs: on the lease of that side, or of its
                home. None: the resources of the left side; a side without resources is ignored.
            operator: see `fork`.
            extras: see `fork`.

        Raises:
            InvalidOptions: the sides use or have open different resources, and ``keep`` is not given;
                or the left one has no state yet, and the right one uses resources.
            ClientError, InvalidInput: see `fork`.
        """
        made_by = {"operator": operator, "extras": extras, "keep": keep}
        return await self._derive(into, self._planner.merge, other, into, state=state, **made_by)

    async def usage(self) -> dict[str, int]:
        """Return the sum of ``usage`` of all entries, each counted once. It reads all entries that have a usage.

        Entries that retention has removed, or that compressions have left out, are counted too.

        Raises:
            UnknownConversation, ConversationKindMismatch: see `fork`.
        """
        return await self._planner.usage(self.conversation_id)

    @uninterrupted
    async def export(self) -> AsyncIterator[str]:
        """Yield the conversation as lines of JSON, without the newline: itself, with title, owner and labels, its
        ancestors, its record of state, its requests and revisits, and its entries as far as they are there at the
        beginning, which fit each other. `import_` reads them. The blobs that they name are kept, as by
        `Client.keep_blobs`.

        Raises:
            UnknownConversation, ConversationKindMismatch: see `fork`; or it was deleted during the export.
            EntriesRemoved: retention has removed entries during the export.
            Contention: wakes end so quickly that no state is read that fits the entries.
            BlobStoreFailed: the blob store fails.
        """
        async for line in self._planner.export(self.conversation_id, self._client.journals.pending):
            yield line

    @action("import", "conversation", "conversation_id")
    async def import_(
        self,
        lines: Iterable[str | bytes] | AsyncIterable[str | bytes],
        *,
        times: ImportTimes = "kept",
        without: Collection[LeftOut] = (),
    ) -> None:
        """Make this conversation from an `export`: entries, numbered from 1, state, requests that wait for an answer,
        each with its id, and revisits. The lineage that it had is in its extras, under "exported". It is one
        transaction; repeated, it changes nothing. A terminated conversation is open again; resources stay behind.

        Args:
            lines: a file open for reading, an `export` of another database, …
            times: of the entries and of the record of state. "kept" writes the exported times; a time of the record
                that is in the future becomes now. "now" writes the time of the import. Requests expire, and revisits
                are due, when they were.
            without: "delegations", "steps": the kinds of work that are left out because they cannot go on in a copy. An
                import of a conversation that waits for children or runs, or whose wake has begun steps and has not
                ended, is refused otherwise.

        Raises:
            InvalidOptions: something is to be left out, and is not named in ``without``.
            InvalidInput: a line does not belong to an export; the message has its number.
            SessionRecordRefused: the record of state is of another kind; or it could not be loaded, if this handle
                knows the `Conversations`, and not their kind alone.
            ConversationKindMismatch: the export is of another kind.
            ConversationExists, QuotaExceeded: see `fork`.
        """
        check_choice("times", times, ImportTimes)
        for kind in without:
            check_choice("without", kind, LeftOut)
        found = await read_lines(lines)
        await self._derive(self.conversation_id, self._planner.imported, found, times=times, without=without)

    async def _derive(self, new_id: str, plan: Any, *args: Any, **options: Any) -> M:
        for left in reversed(range(_PLANS)):
            creation: JournalCreation = await plan(self.conversation_id, *args, **options)
            result = await self._client.journals.create(creation)
            if result.outcome != "beyond" or not left:
                break
        if result.outcome == "over_quota":
            raise QuotaExceeded("instances", (await self._client.quotas()).instances or 0)
        if result.outcome == "repeated" and result.journal_id != creation.start.journal_id:
            await self._planner.check_repeated(creation, self.conversation_id)
        check_creation(creation, result)
        return cast(M, type(self)(self._client, self._kind, new_id, self._states))
