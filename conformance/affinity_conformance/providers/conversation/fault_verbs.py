"""The verbs on journals under faults: what each needs, the call, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from affinity.conversation.journal import (
    Appended,
    CreationResult,
    Description,
    JournalFilter,
    JournalPruning,
    JournalQuery,
    JournalRetention,
    JournalWrite,
    NewRequest,
    NewRevisit,
    RequestFilter,
    StreamCursor,
)
from affinity.conversation.store.contract import journals_of
from affinity.provider.contract import Provider
from affinity_conformance.providers.builders import payloads
from affinity_conformance.providers.conversation.driver import (
    KIND,
    Conversation,
    ConversationOwner,
    creation_of,
    new_input,
    output,
)
from affinity_conformance.providers.fault_fixtures import (
    Attempt,
    FaultFixtures,
    FaultPart,
    Prepare,
    once,
    returns,
    same,
)
from affinity_conformance.providers.kernel.fault_verbs import turn_once
from affinity_conformance.providers.kernel.fault_work import ack_once


async def append_journal(fixtures: FaultFixtures) -> Attempt:
    """The first input of a conversation: journal, instance, entry and messages, once."""
    name = fixtures.name("c")

    async def check(found: Sequence[Appended]) -> None:
        assert found[0].outcome == "appended" or (attempt.unknown and found[0].outcome == "repeated")
        talk = Conversation(fixtures.clean.provider, name)
        assert await talk.numbers() == [found[0].seq] == [1]
        assert payloads(await fixtures.taken(name)) == ["start", "[1]"]
        await _remove(fixtures, name)

    attempt = Attempt(lambda: journals_of(fixtures.provider).append_journal([new_input(name, event_id="e")]), check)
    return attempt


async def write_stream(fixtures: FaultFixtures) -> Attempt:
    talk = await _conversation(fixtures)
    parts = [await talk.part(number, wake_id="w2") for number in (1, 2)]

    async def then() -> None:
        assert await talk.streamed() == ["w2.1.1", "w2.1.2"]
        await _remove(fixtures, talk.session_id)

    return returns([], lambda: journals_of(fixtures.provider).write_stream(parts), then)


async def retract_stream(fixtures: FaultFixtures) -> Attempt:
    talk = await _conversation(fixtures)
    part = await talk.part(1, wake_id="w2")
    await talk.journals.write_stream([part])

    async def then() -> None:
        await talk.journals.write_stream([part])
        assert await talk.streamed() == []
        await _remove(fixtures, talk.session_id)

    return returns(
        None, lambda: journals_of(fixtures.provider).retract_stream(talk.session_id, part.journal_id, "w2", 1), then
    )


async def delete_journal(fixtures: FaultFixtures) -> Attempt:
    talk = await _conversation(fixtures)

    async def then() -> None:
        assert await talk.journals.get_pending([talk.session_id], limit=1) == [None]
        await fixtures.remove(talk.session_id)

    return once([True], [False], lambda: journals_of(fixtures.provider).delete_journal([talk.session_id]), then)


async def prune_journals(fixtures: FaultFixtures) -> Attempt:
    """Keep one of a journal's three entries."""
    talk = await _conversation(fixtures)

    async def then() -> None:
        assert await talk.numbers() == [3]
        await _remove(fixtures, talk.session_id)

    keep = JournalRetention(entries=1)
    done, nothing = (JournalPruning(entries=entries, after=None) for entries in (2, 0))
    return once(done, nothing, lambda: journals_of(fixtures.provider).prune_journals(keep, limit=10), then)


async def create_journals(fixtures: FaultFixtures) -> Attempt:
    """A fork, with its instance, once."""
    talk = await _conversation(fixtures)
    creation = creation_of(fixtures.name("d"), (await talk.page()).journal_id)

    async def check(found: Sequence[CreationResult]) -> None:
        assert found[0].outcome == "created" or (attempt.unknown and found[0].outcome == "repeated")
        fork = Conversation(talk.provider, creation.session_id)
        assert (await fork.numbers(), (await fork.page()).journal_id) == ([1, 2, 3], found[0].journal_id)
        assert payloads(await fixtures.taken(creation.session_id)) == ["start"]
        for name in (creation.session_id, talk.session_id):
            await _remove(fixtures, name)

    attempt = Attempt(lambda: journals_of(fixtures.provider).create_journals([creation]), check)
    return attempt


async def describe_journal(fixtures: FaultFixtures) -> Attempt:
    talk = await _conversation(fixtures)

    async def then() -> None:
        (row,) = await talk.journals.list_journals(JournalFilter(session_id=talk.session_id), 1)
        assert (row.title, row.owner) == ("now", "ann")
        await _remove(fixtures, talk.session_id)

    changes: Description = {"title": "now", "owner": "ann"}
    return returns(True, lambda: journals_of(fixtures.provider).describe_journal(talk.session_id, KIND, changes), then)


class JournalWriteOnce:
    """A write to the journal of a conversation with one input, which must be committed once."""

    def __init__(self, fixtures: FaultFixtures, owner: ConversationOwner, write: JournalWrite) -> None:
        self.write = write
        self._fixtures = fixtures
        self._owner = owner

    @classmethod
    async def prepare(cls, fixtures: FaultFixtures) -> JournalWriteOnce:
        """Prepare a new conversation, and an input for another one."""
        name = fixtures.name("c")
        await Conversation(fixtures.clean.provider, name).append()
        owner = await ConversationOwner.of(fixtures.clean, name)
        request = NewRequest(request_id="r", kind="confirm", payload="1")
        appends = [new_input(fixtures.name("d"))]
        appends += [new_input("none", start=None, if_refused=new_input(name, "back", start=None))]
        return cls(fixtures, owner, await owner.new_write(entries=[output()], requests=[request], appends=appends))

    async def check(self) -> None:
        """It was committed once."""
        talk = self._owner.conversation
        assert await talk.texts() == ["hello", "answer", "back"]
        assert (await talk.page()).processed == 1
        assert len(await talk.requests()) == 1
        assert await Conversation(talk.provider, self._fixtures.name("d")).texts() == ["hello"]
        for kind in "cd":
            await _remove(self._fixtures, self._fixtures.name(kind))


async def commit_turn_with_journal(fixtures: FaultFixtures) -> Attempt:
    """A turn that also writes to a journal."""
    journal = await JournalWriteOnce.prepare(fixtures)
    return await turn_once(fixtures, journal.check, parts=[journal.write])


async def ack_work_item_with_journal(fixtures: FaultFixtures) -> Attempt:
    """An ack that also writes to a journal."""
    journal = await JournalWriteOnce.prepare(fixtures)
    return await ack_once(fixtures, journal.check, parts=[journal.write])


async def _conversation(fixtures: FaultFixtures) -> Conversation:
    """Three entries, the last two of a wake."""
    name = fixtures.name("c")
    await Conversation(fixtures.clean.provider, name).append(event_id="e")
    owner = await ConversationOwner.of(fixtures.clean, name)
    await owner.commit_wake(entries=[output("1"), output("2")])
    return owner.conversation


async def _remove(fixtures: FaultFixtures, name: str) -> None:
    """Remove a conversation, so that no later attempt meets it."""
    await fixtures.remove(name)
    await journals_of(fixtures.clean.provider).delete_journal([name])


_READS: Final[dict[str, Callable[[Provider, str], Awaitable[Any]]]] = {
    "get_pending": lambda provider, name: journals_of(provider).get_pending([name, "none"], limit=1),
    "read_journal": lambda provider, name: journals_of(provider).read_journal(
        [JournalQuery(session_id=name, stream=StreamCursor(), newest_first=True)]
    ),
    "get_wakes": lambda provider, name: journals_of(provider).get_wakes(name, limit=10),
    "list_journals": lambda provider, _: journals_of(provider).list_journals(JournalFilter(), 10),
    "list_requests": lambda provider, _: journals_of(provider).list_requests(RequestFilter(), 10),
    "get_lineage": lambda provider, name: journals_of(provider).get_lineage(name),
}


def _reading(read: Callable[[Provider, str], Awaitable[Any]]) -> Prepare:
    async def prepare(fixtures: FaultFixtures) -> Attempt:
        name = fixtures.name("c")
        await Conversation(fixtures.clean.provider, name).append()
        owner = await ConversationOwner.of(fixtures.clean, name)
        request = NewRequest(request_id="r", kind="confirm", payload="1")
        await owner.commit_wake(entries=[output()], requests=[request], revisits=[NewRevisit(key="k", delay=0.0)])
        await owner.conversation.stream(1, wake_id="w2")
        return same(fixtures, lambda provider: read(provider, name), lambda: _remove(fixtures, name))

    return prepare


_WRITES: Final = (append_journal, create_journals, write_stream, retract_stream,
                  describe_journal, delete_journal,
                  prune_journals,
                  commit_turn_with_journal, ack_work_item_with_journal)  # fmt: skip


async def _rows(provider: Provider) -> object:
    return await journals_of(provider).list_journals(JournalFilter(), 1000)


JOURNALS: Final = FaultPart(
    verbs={prepare.__name__: prepare for prepare in _WRITES} | {name: _reading(read) for name, read in _READS.items()},
    rows=_rows,
)
