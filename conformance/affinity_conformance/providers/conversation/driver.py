"""Journals as a test drives them: inputs from outside, and wakes that process them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from affinity.conversation.journal import (
    SEQ_MARK,
    Appended,
    Entry,
    JournalAppend,
    JournalCreation,
    JournalPage,
    JournalQuery,
    JournalRange,
    JournalRetention,
    JournalStart,
    JournalWake,
    JournalWrite,
    NewEntry,
    PendingWork,
    Request,
    Revisit,
    StreamCursor,
    StreamPart,
    WakeEnd,
)
from affinity.conversation.store.contract import JournalProvider, journals_of
from affinity.provider.contract import OrchestrationItem, Provider, TurnResult
from affinity_conformance.providers.builders import ORCHESTRATION, message_ids
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

KIND: Final = "chat"
FROM_START: Final = StreamCursor()
MANY: Final = 1_000


def new_start(session_id: str = "s", **fields: Any) -> JournalStart:
    """A start of the suite's orchestration."""
    return JournalStart(
        **{"name": ORCHESTRATION, "start": "start", "generation": f"generation of {session_id}", **fields}
    )


def output(text: str = "answer", wake_id: str = "w1", **fields: Any) -> NewEntry:
    """An entry of a wake."""
    return NewEntry(**{"kind": "agent.message", "payload": f'"{text}"', "wake_id": wake_id, **fields})


def new_input(session_id: str = "s", text: str = "hello", **fields: Any) -> JournalAppend:
    """An input that starts the conversation if it does not exist. ``event_id`` is the id of its entry."""
    entry = NewEntry(
        kind=fields.pop("entry_kind", "user.message"),
        payload=f'"{text}"',
        event_id=fields.pop("event_id", None),
        is_input=True,
    )
    filled = {"session_id": session_id, "kind": KIND, "entry": entry, "message": f"[{SEQ_MARK}]"}
    return JournalAppend(**{**filled, "start": new_start(session_id), **fields})


def creation_of(session_id: str, *parents: int, **fields: Any) -> JournalCreation:
    """A fork, unless the fields say otherwise."""
    base = JournalRange(parents[0]) if parents else None
    filled = {"session_id": session_id, "kind": KIND, "start": new_start(session_id), "lineage": "fork"}
    return JournalCreation(**{**filled, "operator": "fork", "parents": parents, "base": base, **fields})


class Conversation:
    """The journal of one session, seen by one provider object."""

    def __init__(self, provider: Provider, session_id: str = "s") -> None:
        self.provider = provider
        self.journals: JournalProvider = journals_of(provider)
        self.session_id = session_id

    @classmethod
    async def open(cls, cluster: Cluster, session_id: str = "s") -> Conversation:
        """Open the journal on a provider object of its own."""
        return cls(await cluster.open(), session_id)

    async def append(self, **fields: Any) -> Appended:
        """Append one input."""
        (appended,) = await self.journals.append_journal([new_input(self.session_id, **fields)])
        return appended

    async def pending(self, limit: int = MANY) -> PendingWork:
        """The work for the next wake."""
        (work,) = await self.journals.get_pending([self.session_id], limit=limit)
        assert work is not None
        return work

    async def page(self, **query: Any) -> JournalPage:
        """A page of the journal, which there must be."""
        (page,) = await self.journals.read_journal([JournalQuery(session_id=self.session_id, **query)])
        assert page is not None
        return page

    async def entries(self, **query: Any) -> Sequence[Entry]:
        """Entries, up to a thousand unless the query has a limit."""
        return (await self.page(**{"limit": MANY, **query})).entries

    async def numbers(self, **query: Any) -> list[int]:
        """Numbers of entries."""
        return [entry.seq for entry in await self.entries(**query)]

    async def texts(self, **query: Any) -> list[str]:
        """Payloads of entries, without their quotes."""
        return [entry.payload.strip('"') for entry in await self.entries(**query)]

    async def wakes(self, **query: Any) -> Sequence[JournalWake]:
        """The wakes that have ended."""
        return await self.journals.get_wakes(self.session_id, **{"limit": MANY, **query})

    async def requests(self) -> Sequence[Request]:
        """The pending requests."""
        return (await self.pending(0)).open_requests

    async def revisits(self) -> Sequence[Revisit]:
        """The pending revisits."""
        return (await self.pending(0)).revisits

    async def create(self, creation: JournalCreation) -> Conversation:
        """Create another journal."""
        (result,) = await self.journals.create_journals([creation])
        assert result.outcome == "created"
        return Conversation(self.provider, creation.session_id)

    async def fork_of(self, name: str, up_to: int | None = None, **fields: Any) -> JournalCreation:
        """The creation of a journal that continues this one, up to a number."""
        base = (await self.page()).journal_id
        return creation_of(name, base, base=JournalRange(base, up_to), **fields)

    async def fork(self, name: str, up_to: int | None = None, **fields: Any) -> Conversation:
        """Create a journal that continues this one, up to a number."""
        return await self.create(await self.fork_of(name, up_to, **fields))

    async def delete(self) -> bool:
        """Delete the journal."""
        (deleted,) = await self.journals.delete_journal([self.session_id])
        return deleted

    async def part(
        self, number: int, *, wake_id: str = "w1", attempt: int = 1, journal_id: int = 0, first: int = 1
    ) -> StreamPart:
        """A part of a stream of the journal."""
        return StreamPart(
            session_id=self.session_id,
            journal_id=journal_id or (await self.page()).journal_id,
            wake_id=wake_id,
            attempt=attempt,
            number=number,
            payload=f'"{wake_id}.{attempt}.{number}"',
            first=first,
        )

    async def stream(self, *numbers: int, **at: Any) -> None:
        """Write parts of a stream."""
        await self.journals.write_stream([await self.part(number, **at) for number in numbers])

    async def streamed(self, seen: StreamCursor = FROM_START) -> list[str]:
        """The parts that are there, without their quotes."""
        return [part.payload.strip('"') for part in (await self.page(stream=seen)).stream]


class ConversationOwner:
    """A worker that owns the instance of a conversation, and commits its wakes."""

    def __init__(self, peer: Peer, conversation: Conversation, at: OrchestrationItem) -> None:
        self.peer = peer
        self.conversation = conversation
        self.at: OrchestrationItem = at

    @classmethod
    async def take(cls, cluster: Cluster, session_id: str = "s") -> ConversationOwner:
        """Take the instance, which must have messages, by a worker of its own."""
        return await cls.of(await cluster.worker(f"worker of {session_id}"), session_id)

    @classmethod
    async def of(cls, peer: Peer, session_id: str = "s") -> ConversationOwner:
        """Let a worker take the instance."""
        at = next(item for item in await peer.take_instances(100) if item.instance_id == session_id)
        return cls(peer, Conversation(peer.provider, session_id), at)

    @classmethod
    async def begin(cls, cluster: Cluster, session_id: str = "s", **fields: Any) -> ConversationOwner:
        """Start a conversation by an input, and take its instance."""
        await (await Conversation.open(cluster, session_id)).append(**fields)
        return await cls.take(cluster, session_id)

    async def new_write(self, **fields: Any) -> JournalWrite:
        """The write of a wake that has processed all inputs. It ends the wake if it has entries, and is not a part."""
        work = await self.conversation.pending()
        processed = work.inputs[-1].seq if work.inputs else work.processed
        fence = {"session_id": self.conversation.session_id, "journal_id": work.journal_id, "base": work.processed}
        write = JournalWrite(**{**fence, "processed": processed, "wake_id": "w1", "attempt": 1, **fields})
        if "end" in fields or write.is_part or all(entry.event_id is not None for entry in write.entries):
            return write
        return replace(write, end=WakeEnd(read=write.processed))

    async def commit(self, write: JournalWrite, **step: Any) -> TurnResult:
        """Commit a turn with a write."""
        result = await self.peer.commit_one(self.at, **{"consumed": message_ids(self.at), "parts": [write], **step})
        if result.committed:
            self.at = replace(self.at, event_count=self.at.event_count + 1, messages=())
        return result

    async def commit_wake(self, **fields: Any) -> None:
        """Commit a wake, which must pass."""
        result = await self.commit(await self.new_write(**fields))
        assert result.committed, result


async def prune(talk: Conversation, **bounds: Any) -> int:
    """Remove what can be removed, in small steps, until a round finds nothing; the number of entries."""
    removed, round_removed = 0, 1
    while round_removed:
        round_removed = 0
        after: int | None = 0
        while after is not None:
            keep = JournalRetention(**bounds)
            step = await talk.journals.prune_journals(keep, limit=3, after=after, everything=True)
            assert step.entries <= 3
            round_removed, after = round_removed + step.entries, step.after
        removed += round_removed
    return removed
