"""Journals that are made from others: what they have, what they share, and where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from affinity.conversation.journal import (
    SEQ_MARK,
    Entry,
    HomeLease,
    JournalAppend,
    JournalCreation,
    JournalLineage,
    JournalQuery,
    JournalRange,
    JournalWrite,
    NewEntry,
    NewRequest,
)
from affinity.conversation.store.contract import JournalProvider, journals_of
from affinity.errors import Contention
from affinity.provider.contract import Quotas, WorkAck, WorkItem
from affinity.records import DurableResource, ResourceStore
from affinity.session import RecordTimes
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import TIMEOUTS, new_instance, payloads, state, state_write, turn
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import KIND, creation_of, new_start
from affinity_conformance.providers.kernel.resources import KEY, LABEL
from affinity_conformance.providers.peer import Peer


async def ack_journal(worker: Peer, item: WorkItem, write: JournalWrite) -> bool:
    """One ack of a wake."""
    acks = [WorkAck(lock=item.lock, message="done", parts=[write])]
    (acked,) = await worker.provider.ack_work_item(worker.identity, acks, TIMEOUTS)
    return acked


class Journals:
    """The journals of a test's database, in short words."""

    def __init__(self, provider: JournalProvider) -> None:
        self.provider = provider

    async def say(self, session_id: str, *texts: str) -> int:
        """Append inputs; returns the id of the journal."""
        appends = [
            JournalAppend(
                session_id=session_id,
                kind=KIND,
                entry=NewEntry(kind="user.message", payload=f'"{text}"', event_id=f"e-{text}", is_input=True),
                message=f'{{"seq":{SEQ_MARK}}}',
                start=new_start(session_id),
            )
            for text in texts
        ]
        done = await self.provider.append_journal(appends)
        assert {appended.outcome for appended in done} == {"appended"}
        return done[0].journal_id

    async def create(self, creation: JournalCreation) -> int:
        """Create a journal; returns its id."""
        (result,) = await self.provider.create_journals([creation])
        assert result.outcome == "created"
        return result.journal_id

    async def entries(self, session_id: str, **query: Any) -> Sequence[Entry]:
        """The entries of a journal that meet the query."""
        (page,) = await self.provider.read_journal([JournalQuery(session_id=session_id, **query)])
        assert page is not None
        return page.entries

    async def texts(self, session_id: str, **query: Any) -> list[str]:
        """Their texts."""
        return [entry.payload.strip('"') for entry in await self.entries(session_id, **query)]

    async def pending(self, session_id: str) -> list[str]:
        """Texts of the inputs that no wake has processed."""
        (work,) = await self.provider.get_pending([session_id], limit=100)
        assert work is not None
        return [entry.payload.strip('"') for entry in work.inputs]

    async def lineage(self, session_id: str) -> list[JournalLineage]:
        """The journal and its ancestors."""
        return list(await self.provider.get_lineage(session_id))


class LineageRules(Rules):
    """`JournalCreation`, by clients and with wakes, and `get_lineage`."""

    @pytest.fixture
    async def journals(self, cluster: Cluster) -> Journals:
        """The journals of the test's database."""
        return Journals(journals_of((await cluster.enqueuer()).provider))

    async def test_a_fork_continues_its_base(self, journals: Journals) -> None:
        """A fork has the entries of its base up to a number, under their numbers, and its own behind them; neither sees
        later entries of the other (contract: create_journals).
        """
        base = await journals.say("a", "1", "2", "3")
        await journals.create(creation_of("b", base, base=JournalRange(base, 2)))
        await journals.say("b", "b3", "b4")
        await journals.say("a", "4")
        assert await journals.texts("b") == ["1", "2", "b3", "b4"]
        assert [entry.seq for entry in await journals.entries("b")] == [1, 2, 3, 4]
        assert await journals.texts("a") == ["1", "2", "3", "4"]
        assert await journals.texts("b", newest_first=True, limit=3) == ["b4", "b3", "2"]
        assert await journals.texts("b", after=1, limit=2) == ["2", "b3"]
        assert await journals.texts("b", kinds=["user.message"], before=4) == ["1", "2", "b3"]
        assert await journals.texts("b", event_id="e-1") == ["1"]
        assert await journals.texts("b", event_id="e-3") == []

    async def test_a_fork_has_the_inputs_that_wait_in_its_base(self, cluster: Cluster, journals: Journals) -> None:
        """Inputs that the base has not processed are pending in the fork too, and wake its instance; without any, no
        message is sent.
        """
        base = await journals.say("a", "1", "2")
        await journals.create(creation_of("b", base, message=f'{{"seq":{SEQ_MARK}}}'))
        await journals.create(creation_of("c", base, base=JournalRange(base, 0), message="no"))
        assert await journals.pending("b") == ["1", "2"]
        assert await journals.pending("c") == []
        worker = await cluster.worker("w")
        sent = {item.instance_id: payloads(item) for item in (await worker.fetch_instances(10)).items}
        assert sent["b"] == ["start", '{"seq":2}']
        assert sent["c"] == ["start"]

    async def test_an_event_id_of_the_base_is_known_in_the_fork(self, journals: Journals) -> None:
        """A repeated event id is one event in the fork too."""
        base = await journals.say("a", "1", "2")
        await journals.create(creation_of("b", base, base=JournalRange(base, 1)))
        for payload, outcome in (('"1"', "repeated"), ('"2"', "other_event")):
            entry = NewEntry(kind="user.message", payload=payload, event_id="e-1", is_input=True)
            append = JournalAppend(session_id="b", kind=KIND, entry=entry, message=None)
            (done,) = await journals.provider.append_journal([append])
            assert (done.outcome, done.seq) == (outcome, 1)
        assert await journals.say("b", "2")

    async def test_a_creation_is_done_once(self, journals: Journals) -> None:
        """The same creation again changes nothing; another one of the same session is refused, and so is the id of an
        instance, or of a record of state.
        """
        base = await journals.say("a", "1")
        creation = creation_of("b", base)
        journal_id = await journals.create(creation)
        await journals.say("b", "2")
        again = await journals.provider.create_journals([creation_of("b", base), replace(creation, operator="other")])
        assert [(result.outcome, result.journal_id, result.last_seq) for result in again] == [
            ("repeated", journal_id, 2),
            ("taken", journal_id, 2),
        ]
        assert await journals.texts("b") == ["1", "2"]

    async def test_a_creation_does_not_take_what_is_there(self, cluster: Cluster, journals: Journals) -> None:
        """A session that has a record, a journal or an instance is refused; nothing of the creation is applied."""
        base = await journals.say("a", "1")
        await (await cluster.states()).save(state("s"))
        await (await cluster.worker("w")).own("i")
        refused = [creation_of("a", base), creation_of("s", base), creation_of("i", base)]
        result = await journals.provider.create_journals(refused)
        assert [created.outcome for created in result] == ["taken"] * 3
        assert await journals.provider.read_journal([JournalQuery(session_id=name) for name in "si"]) == [None, None]

    async def test_two_creations_of_one_session_at_the_same_moment(self, journals: Journals) -> None:
        """One of them is done."""
        base = await journals.say("a", "1")
        creations = [creation_of("b", base) for _ in range(4)]

        async def create(creation: JournalCreation) -> str:
            (result,) = await journals.provider.create_journals([creation])
            return result.outcome

        outcomes = await concurrently(*[lambda creation=creation: create(creation) for creation in creations])
        assert sorted(outcomes) == ["created", "repeated", "repeated", "repeated"]
        assert await journals.texts("b") == ["1"]

    async def test_ranges_and_parents_are_checked(self, journals: Journals) -> None:
        """A range ends within its journal, at its end if the state is copied. Parents exist, so that no circle can
        arise.
        """
        base = await journals.say("a", "1", "2")
        creations = [
            creation_of("b", base, base=JournalRange(base, 3)),
            creation_of("b", base, base=JournalRange(base, -1)),
            creation_of("b", base, 7),
            creation_of("b", base, base=JournalRange(7)),
            creation_of("b", base, merged=JournalRange(7)),
            creation_of("b", base, base=JournalRange(base, 1), copies_state=True),
        ]
        result = await journals.provider.create_journals(creations)
        assert [created.outcome for created in result] == [
            "beyond",
            "beyond",
            "unknown",
            "unknown",
            "unknown",
            "beyond",
        ]
        assert await journals.lineage("b") == []

    async def test_a_detached_journal_has_the_content_and_no_parents(self, journals: Journals) -> None:
        """Its base is storage, not lineage."""
        base = await journals.say("a", "1", "2")
        detached = creation_of("b", lineage="detach", operator="detach", base=JournalRange(base))
        await journals.create(detached)
        assert await journals.texts("b") == ["1", "2"]
        assert [
            (ancestor.session_id, ancestor.lineage, ancestor.parents) for ancestor in await journals.lineage("b")
        ] == [("b", "detach", [])]

    async def test_a_merge_has_the_common_part_once(self, journals: Journals) -> None:
        """The common entries of two forks come once, then the entries of the left fork, then of the right fork."""
        base = await journals.say("a", "1", "2", "3")
        left = await journals.create(creation_of("l", base, base=JournalRange(base, 2)))
        right = await journals.create(creation_of("r", base))
        await journals.say("l", "l3")
        await journals.say("r", "r4", "r5")
        merge = creation_of("m", left, right, lineage="merge", merged=JournalRange(right))
        merged = await journals.create(merge)
        assert await journals.texts("m") == ["1", "2", "l3", "3", "r4", "r5"]
        assert [(entry.seq, entry.is_copied) for entry in await journals.entries("m")] == [
            (1, False),
            (2, False),
            (3, False),
            (4, True),
            (5, True),
            (6, True),
        ]
        await journals.create(creation_of("d", lineage="detach", operator="detach", base=JournalRange(merged)))
        assert [entry.seq for entry in await journals.entries("d", after=2) if entry.is_copied] == [4, 5, 6]
        again = creation_of("n", left, right, lineage="merge", merged=JournalRange(right, 4))
        await journals.create(again)
        assert await journals.texts("n") == ["1", "2", "l3", "3", "r4"]

    async def test_a_merge_of_merges_has_each_entry_once(self, journals: Journals) -> None:
        """Entries that an earlier merge has copied are known again, on either side."""
        base = await journals.say("a", "1")
        left = await journals.create(creation_of("l", base))
        right = await journals.create(creation_of("r", base))
        await journals.say("l", "l2")
        await journals.say("r", "r2")
        merged = await journals.create(creation_of("m", left, right, lineage="merge", merged=JournalRange(right)))
        await journals.say("m", "m")
        await journals.say("r", "r3")
        await journals.create(creation_of("n", merged, right, lineage="merge", merged=JournalRange(right)))
        assert await journals.texts("n") == ["1", "l2", "r2", "m", "r3"]
        await journals.create(creation_of("o", right, merged, lineage="merge", merged=JournalRange(merged)))
        assert await journals.texts("o") == ["1", "r2", "r3", "l2", "m"]
        other = await journals.create(creation_of("p", left, right, lineage="merge", merged=JournalRange(right)))
        await journals.create(creation_of("q", merged, other, lineage="merge", merged=JournalRange(other)))
        assert await journals.texts("q") == ["1", "l2", "r2", "m", "r3"]

    async def test_event_ids_stay_unique_in_a_merge(self, journals: Journals) -> None:
        """Both sides may have got an event of the same id: both entries are there, one of them with the id."""
        base = await journals.say("a", "1")
        left = await journals.create(creation_of("l", base))
        right = await journals.create(creation_of("r", base))
        await journals.say("l", "x")
        await journals.say("r", "x")
        await journals.create(creation_of("m", left, right, lineage="merge", merged=JournalRange(right)))
        assert [(entry.payload, entry.event_id) for entry in await journals.entries("m")] == [
            ('"1"', "e-1"),
            ('"x"', "e-x"),
            ('"x"', None),
        ]

    async def test_a_creation_has_entries_of_its_own(self, journals: Journals) -> None:
        """A compression has no base and one entry, which does not wait for a wake."""
        base = await journals.say("a", "1", "2")
        summary = NewEntry(kind="user.message", payload='"summary"')
        await journals.create(
            creation_of("b", base, lineage="compress", base=None, entries=[summary], extras='{"lossy":true}')
        )
        assert await journals.texts("b") == ["summary"]
        assert await journals.pending("b") == []
        (result, _) = await journals.lineage("b")
        assert (result.lineage, result.extras, result.base) == ("compress", '{"lossy":true}', None)

    async def test_a_fork_copies_the_record_of_its_base(self, cluster: Cluster, journals: Journals) -> None:
        """The fork gets a record of version 1 without a parent: a copy, or the state that the creation brings."""
        base = await journals.say("a", "1")
        await (await cluster.states()).save(state("a", b"of a", kind=KIND, parent="p", labels={"x": "1"}, name="n"))
        await journals.create(creation_of("b", base, copies_state=True))
        await journals.create(creation_of("c", base, copies_state=True, state=state("c", b"of c", kind=KIND)))
        await journals.create(creation_of("d", base))
        copy = await cluster.record("b")
        assert (copy.state, copy.version, copy.metadata.name, copy.metadata.parent) == (b"of a", 1, "n", None)
        assert copy.generation != (await cluster.record("a")).generation
        assert dict(copy.metadata.labels) == {"x": "1"}
        assert (await cluster.record("c")).state == b"of c"
        assert await (await cluster.states()).load("d") is None

    async def test_a_fork_uses_what_its_base_uses(self, cluster: Cluster, journals: Journals) -> None:
        """A copied record is one reference more."""
        store: ResourceStore = (await cluster.enqueuer()).provider
        base = await journals.say("a", "1")
        await store.begin_resource("r", "box", KEY, held=None)
        await store.set_resource_handle("r", "1")
        states = await cluster.states()
        await states.save(state("a", labels={LABEL: "r"}))
        await journals.create(creation_of("b", base, copies_state=True))
        await states.delete(["a"])
        assert await store.take_unused_resources(["box"], limit=10, seconds=60) == []
        await states.delete(["b"])
        (taken,) = await store.take_unused_resources(["box"], limit=10, seconds=60)
        assert taken == DurableResource("r", "box", "1")

    async def test_the_record_of_a_given_state_has_given_times(self, cluster: Cluster, journals: Journals) -> None:
        """One in the future becomes now; without them both are now (contract: JournalCreation.state_times)."""
        then, later = datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
        for name, times in (
            ("a", RecordTimes(created_at=then, updated_at=then + timedelta(days=1))),
            ("b", RecordTimes(created_at=then, updated_at=later)),
            ("c", None),
        ):
            await journals.create(creation_of(name, lineage="import", state=state(name, kind=KIND), state_times=times))
        a, b, c = [await cluster.record(name) for name in ("a", "b", "c")]
        assert (a.created_at, a.updated_at) == (then, then + timedelta(days=1))
        assert b.created_at == then
        assert a.updated_at < b.updated_at < later
        assert c.created_at == c.updated_at > a.updated_at

    async def test_a_creation_counts_as_an_instance(self, cluster: Cluster, journals: Journals) -> None:
        """The quota of instances holds, and nothing of the creation is applied."""
        base = await journals.say("a", "1")
        provider = (await cluster.enqueuer()).provider
        await provider.set_quotas(Quotas(instances=1))
        (result,) = await journals.provider.create_journals([creation_of("b", base)])
        assert result.outcome == "over_quota"
        assert await journals.lineage("b") == []

    async def test_ancestors_come_nearest_first(self, journals: Journals) -> None:
        """Each once, at its least distance, parents in their order; a journal that began empty has no lineage."""
        a = await journals.say("a", "1")
        b = await journals.create(creation_of("b", a))
        c = await journals.create(creation_of("c", b, home="a"))
        d = await journals.create(creation_of("d", a))
        await journals.create(creation_of("m", d, c, lineage="merge", operator="join", merged=JournalRange(c)))
        found = await journals.lineage("m")
        assert [(ancestor.session_id, ancestor.distance) for ancestor in found] == [
            ("m", 0),
            ("d", 1),
            ("c", 1),
            ("a", 2),
            ("b", 2),
        ]
        merged, _, fork, root, _ = found
        assert (merged.lineage, merged.operator, list(merged.parents)) == ("merge", "join", [d, c])
        assert (fork.home, fork.base) == ("a", JournalRange(b, 1))
        assert (root.lineage, list(root.parents), root.base) == (None, [], None)

    async def test_three_thousand_ancestors(self, journals: Journals) -> None:
        """A fork of a fork of a fork: read, written and followed to its root as any other."""
        journal_id = await journals.say("g0", "first")
        creations = []
        for number in range(1, 3001):
            creation = creation_of(f"g{number}", journal_id)
            creations.append(creation)
            journal_id = creation.start.journal_id
        for at in range(0, len(creations), 100):
            result = await journals.provider.create_journals(creations[at : at + 100])
            assert {created.outcome for created in result} == {"created"}
        await journals.say("g3000", "last")
        assert await journals.texts("g3000") == ["first", "last"]
        found = await journals.lineage("g3000")
        assert [ancestor.distance for ancestor in found] == list(range(3001))
        assert found[-1].session_id == "g0"

    # -- with wakes

    async def test_creations_commit_with_the_result(self, cluster: Cluster, journals: Journals) -> None:
        """A fork of a wake has the wake's own entries and its state; if the fence fails, the fork is not created."""
        base = await journals.say("a", "1")
        worker = await cluster.worker("w")
        item = await cluster.give(worker, "a")
        own = await worker.own("i")
        creation = creation_of("b", base, copies_state=True)
        write = JournalWrite(
            session_id="a",
            journal_id=base,
            base=1,
            processed=1,
            wake_id="w1",
            entries=[NewEntry(kind="agent.message", payload='"2"', wake_id="w1")],
            requests=[NewRequest(request_id="r", kind="k", payload="{}")],
            creations=[creation],
        )
        refused = await worker.commit_one(own, acks=[item.lock], parts=[write])
        assert (refused.committed, list(refused.conflicts)) == (False, ["a"])
        assert await journals.lineage("b") == []
        states = [state_write(item)]
        done = await worker.commit_one(own, acks=[item.lock], parts=[replace(write, base=0)], states=states)
        assert done.committed
        assert await journals.texts("b") == ["1", "2"]
        assert await journals.pending("b") == []
        assert (await cluster.record("b")).state == b"by work"
        (work,) = await journals.provider.get_pending(["b"], limit=10)
        assert work is not None
        assert list(work.requests) == []

    async def test_no_quota_refuses_what_a_wake_forks(self, cluster: Cluster, journals: Journals) -> None:
        """A turn is never refused; the forks have their instances and their messages (contract: JournalWrite)."""
        base = await journals.say("a", "1")
        worker, own = await cluster.owner("w", "i")
        await worker.provider.set_quotas(Quotas(instances=1, instance_bytes=1))
        creations = [creation_of(name, base, message=f'{{"seq":{SEQ_MARK}}}') for name in ("b", "c")]
        write = JournalWrite(session_id="a", journal_id=base, base=0, processed=0, wake_id="w1", creations=creations)
        assert (await worker.commit_one(own, parts=[write])).committed
        assert await journals.texts("b") == await journals.texts("c") == ["1"]
        await worker.provider.set_quotas(Quotas())
        found = {item.instance_id: payloads(item) for item in await worker.take_instances()}
        assert {name: found[name] for name in "bc"} == {name: ["start", '{"seq":1}'] for name in "bc"}

    async def test_a_creation_that_cannot_be_applied_fails_the_fence(
        self, cluster: Cluster, journals: Journals
    ) -> None:
        """The wake runs again, and finds the id taken; a creation that was applied before does not fail the fence."""
        base = await journals.say("a", "1")
        await journals.say("b", "b")
        await journals.create(creation_of("c", base))
        worker, own = await cluster.owner("w", "i")
        write = JournalWrite(session_id="a", journal_id=base, base=0, processed=1, wake_id="w1")
        refused = await worker.commit_one(own, parts=[replace(write, creations=[creation_of("b", base)])])
        assert (refused.committed, list(refused.conflicts)) == (False, ["a"])
        assert await journals.pending("a") == ["1"]
        assert (await worker.commit_one(own, parts=[replace(write, creations=[creation_of("c", base)])])).committed
        assert await journals.pending("a") == []

    async def test_creations_of_one_session_by_two_wakes_of_a_batch(self, cluster: Cluster, journals: Journals) -> None:
        """The first passes; the other's wake runs again."""
        worker = await cluster.worker("w")
        turns = []
        for name in ("x", "y"):
            journal_id = await journals.say(name, "1")
            creations = [creation_of("b", journal_id)]
            write = JournalWrite(
                session_id=name, journal_id=journal_id, base=0, processed=1, wake_id="w1", creations=creations
            )
            turns.append((await worker.own(f"i {name}"), write))
        results = await worker.commit(*[turn(at, parts=[write]) for at, write in turns])
        assert [result.committed for result in results] == [True, False]
        assert [list(result.conflicts) for result in results] == [[], ["y"]]

    async def test_a_creation_beside_the_start_of_an_instance_of_that_id(
        self, cluster: Cluster, journals: Journals
    ) -> None:
        """The batch fails as a whole, and one after the other the first passes; or the batch is judged so. The creation
        is not lost.
        """
        base = await journals.say("x", "1")
        worker, first = await cluster.owner("w", "i1")
        second = await worker.own("i2")
        write = JournalWrite(session_id="x", journal_id=base, base=0, processed=1, wake_id="w1")
        batch = [
            turn(first, instances=[new_instance("b")]),
            turn(second, parts=[replace(write, creations=[creation_of("b", base)])]),
        ]
        try:
            results = await worker.commit(*batch)
        except Contention:
            results = [result for one in batch for result in await worker.commit(one)]
        assert [result.committed for result in results] == [True, False]
        assert list(results[1].conflicts) == ["x"]
        assert await journals.pending("x") == ["1"]

    async def test_creations_commit_with_an_ack(self, cluster: Cluster, journals: Journals) -> None:
        """Creations are applied with the ack, or the ack is refused."""
        base = await journals.say("a", "1")
        await journals.say("taken", "1")
        worker = await cluster.worker("w")
        await cluster.enqueue("a", "a")
        first, second = await worker.take(2)
        write = JournalWrite(
            session_id="a", journal_id=base, base=0, processed=1, wake_id="w1", creations=[creation_of("taken", base)]
        )
        assert await ack_journal(worker, first, write) is False
        assert await journals.pending("a") == ["1"]
        creations = [creation_of("b", base), creation_of("c", base)]
        assert await ack_journal(worker, first, replace(write, creations=creations)) is True
        assert await journals.texts("c") == ["1"]
        again = replace(write, base=1, creations=[creation_of("b", base), creation_of("d", base)])
        assert await ack_journal(worker, second, again) is True
        assert await journals.texts("d") == ["1"]

    async def test_creations_of_one_session_by_two_acks_of_a_batch(self, cluster: Cluster, journals: Journals) -> None:
        """The first passes; the other's wake runs again (contract: CommitPart.sessions)."""
        worker = await cluster.worker("w")
        acks = []
        for name in ("x", "y"):
            journal_id = await journals.say(name, "1")
            await cluster.enqueue(name, name)
            creations = [creation_of("b", journal_id)]
            write = JournalWrite(
                session_id=name, journal_id=journal_id, base=0, processed=1, wake_id="w1", creations=creations
            )
            acks.append(WorkAck(lock=(await worker.take_one()).lock, message="done", parts=[write]))
        assert await worker.provider.ack_work_item(worker.identity, acks, TIMEOUTS) == [True, False]
        assert [await journals.pending(name) for name in ("x", "y")] == [[], ["1"]]

    async def test_a_fork_by_an_ack_has_the_state_of_the_wake(self, cluster: Cluster, journals: Journals) -> None:
        """The first state of a session, too. It was copied before it was written."""
        base = await journals.say("a", "1")
        worker = await cluster.worker("w")
        await cluster.enqueue("a", "a")
        first, second = await worker.take(2)
        for version, (item, name) in enumerate(((first, "b"), (second, "c"))):
            creations = [creation_of(name, base, copies_state=True)]
            write = JournalWrite(
                session_id="a", journal_id=base, base=version, processed=1, wake_id=f"w {name}", creations=creations
            )
            written = state_write(item, f"state of {name}".encode(), base=version)
            ack = WorkAck(lock=item.lock, message="done", parts=[write], state=written)
            assert await worker.provider.ack_work_item(worker.identity, [ack], TIMEOUTS) == [True]
            assert (await cluster.record(name)).state == f"state of {name}".encode()

    async def test_what_a_fork_needs_outlives_its_base(self, journals: Journals) -> None:
        """A deleted base keeps the entries that forks continue, and its place in their lineage, until they are deleted
        too; its session may begin anew.
        """
        base = await journals.say("a", "1", "2", "3")
        fork = await journals.create(creation_of("b", base, base=JournalRange(base, 2)))
        await journals.create(creation_of("c", fork, lineage="compress", base=None, entries=[]))
        assert list(await journals.provider.delete_journal(["a"])) == [True]
        assert await journals.texts("b") == ["1", "2"]
        await journals.say("a", "new")
        assert await journals.texts("a") == ["new"]
        assert list(await journals.provider.delete_journal(["b"])) == [True]
        assert [(ancestor.session_id, ancestor.journal_id) for ancestor in await journals.lineage("c")][1:] == [
            (None, fork),
            (None, base),
        ]
        (result,) = await journals.provider.create_journals([creation_of("d", fork)])
        assert result.outcome == "unknown"
        assert list(await journals.provider.delete_journal(["c", "a"])) == [True, True]
        (result,) = await journals.provider.create_journals([creation_of("d", base, base=None)])
        assert result.outcome == "unknown"

    async def test_the_lease_of_the_home_is_fenced(self, cluster: Cluster, journals: Journals) -> None:
        """A journal whose wakes run on another session is written under that one's epoch; the epoch of its own session
        is known to the wake, as it changes when its record is written.
        """
        base = await journals.say("a", "1")
        journal_id = await journals.create(creation_of("b", base, home="a"))
        worker = await cluster.worker("w")
        item = await cluster.give(worker, "a")
        own = await worker.own("i")
        (work,) = await journals.provider.get_pending(["b"], limit=10)
        assert work is not None
        assert (work.home, work.epoch) == ("a", 0)
        await (await cluster.states()).save(state("b"))
        (work,) = await journals.provider.get_pending(["b"], limit=10)
        assert work is not None
        assert work.epoch > (item.session_epoch or 0)
        write = JournalWrite(
            session_id="b",
            journal_id=journal_id,
            base=0,
            processed=1,
            wake_id="w1",
            home=HomeLease("a", item.session_epoch or 0),
        )
        await (await cluster.states()).save(state("a"))  # ends the epoch of a
        refused = await worker.commit_one(own, acks=[item.lock], parts=[write])
        assert (refused.committed, list(refused.conflicts)) == (False, ["b"])
        epoch = (await cluster.session("a")).epoch
        done = await worker.commit_one(own, acks=[item.lock], parts=[replace(write, home=HomeLease("a", epoch))])
        assert done.committed
