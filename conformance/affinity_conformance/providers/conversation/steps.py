"""Parts of a wake that goes on, and its steps: they are durable before the wake ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from affinity.conversation.journal import InstanceStart, JournalWrite, Step
from affinity.provider.contract import Quotas, Token, WorkAck, WorkItem, WorkLock
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import TIMEOUTS, state, state_write
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import (
    KIND,
    Conversation,
    ConversationOwner,
    creation_of,
    new_input,
    new_start,
    output,
)
from affinity_conformance.providers.conversation.requests import new_request, new_revisit
from affinity_conformance.providers.peer import Peer


def step(key: str = "k", result: str | None = "1", wake_id: str = "w1", arguments: str = "a") -> Step:
    """A step of a wake."""
    return Step(wake_id, key, arguments, result)


async def commit_part(peer: Peer, item: WorkItem, write: JournalWrite, **fields: Any) -> bool:
    """Commit a part of the activity's result."""
    ack = WorkAck(lock=item.lock, message=None, parts=[write], **fields)
    (passed,) = await peer.provider.ack_work_item(peer.identity, [ack], TIMEOUTS)
    return passed


def new_run(instance_id: str, text: str = "start") -> InstanceStart:
    """An instance that a wake starts."""
    return InstanceStart(instance_id=instance_id, name="run", start=f"{text} {instance_id}", generation="g")


class _Running:
    """A wake that runs as an activity."""

    def __init__(self, owner: ConversationOwner, item: WorkItem) -> None:
        self.owner, self.peer, self.talk, self.item = owner, owner.peer, owner.conversation, item

    @classmethod
    async def begin(cls, cluster: Cluster) -> _Running:
        owner = await ConversationOwner.begin(cluster)
        await cluster.enqueue("s")
        return cls(owner, await owner.peer.take_one())

    async def new_part(self, **fields: Any) -> JournalWrite:
        return await self.owner.new_write(**{"is_part": True, "attempt": 0, **fields})

    async def commit_part(self, **fields: Any) -> None:
        assert await commit_part(self.peer, self.item, await self.new_part(**fields))


class JournalStepRules(Rules):
    """Parts (contract: WorkAck.message, JournalWrite.is_part) and steps (contract: Step)."""

    async def test_a_part_is_durable_before_the_wake_ends(self, cluster: Cluster) -> None:
        """Its entries and its state are there, the input still waits, and the item keeps its lock and sends nothing
        (contract: WorkAck.message, JournalWrite.is_part).
        """
        wake = await _Running.begin(cluster)
        state = state_write(wake.item, b"1")
        assert await commit_part(wake.peer, wake.item, await wake.new_part(entries=[output("first")]), state=state)
        assert await wake.talk.texts() == ["hello", "first"]
        work = await wake.talk.pending()
        assert (work.processed, [entry.seq for entry in work.inputs]) == (0, [1])
        assert await cluster.results() == []
        later = state_write(wake.item, b"2", base=1)
        end = await wake.owner.new_write(entries=[output("second")])
        ack = WorkAck(lock=wake.item.lock, message="done", parts=[end], state=later)
        assert await wake.peer.provider.ack_work_item(wake.peer.identity, [ack], TIMEOUTS) == [True]
        assert await cluster.results() == ["done"]
        assert await wake.talk.texts() == ["hello", "first", "second"]
        assert (await wake.talk.page()).processed == 1

    async def test_a_part_is_fenced(self, cluster: Cluster) -> None:
        """The token, the journal, its watermark and the fence of the state decide; a refused part leaves nothing
        (contract: WorkAck, JournalWrite).
        """
        wake = await _Running.begin(cluster)
        part = await wake.new_part(entries=[output()], steps=[step()])
        forged = replace(wake.item, lock=WorkLock(wake.item.lock.key, Token("forged")))
        assert not await commit_part(wake.peer, forged, part)
        assert not await commit_part(wake.peer, wake.item, replace(part, base=1))
        assert not await commit_part(wake.peer, wake.item, replace(part, journal_id=part.journal_id + 1))
        assert not await commit_part(wake.peer, wake.item, part, state=state_write(wake.item, base=1))
        assert await wake.talk.texts() == ["hello"]
        assert (await wake.talk.pending()).steps == []
        assert await commit_part(wake.peer, wake.item, part)
        await cluster.advance(TIMEOUTS.work_item_lock + 1)
        assert not await commit_part(wake.peer, wake.item, part)
        assert await wake.talk.texts() == ["hello", "answer"]

    async def test_of_one_batch_each_part_is_its_own(self, cluster: Cluster) -> None:
        """A part passes beside a result, and beside a part that is refused (contract: WorkAck.message)."""
        wake = await _Running.begin(cluster)
        await cluster.enqueue(None, None)
        items = await wake.peer.take(2)
        part = await wake.new_part(entries=[output()], steps=[step()])
        acks = [
            WorkAck(lock=items[0].lock, message="done"),
            WorkAck(lock=wake.item.lock, message=None, parts=[part]),
            WorkAck(lock=items[1].lock, message=None, parts=[replace(part, session_id="none")]),
        ]
        assert await wake.peer.provider.ack_work_item(wake.peer.identity, acks, TIMEOUTS) == [True, True, False]
        assert await cluster.results() == ["done"]
        assert (await wake.talk.pending()).steps == [step()]

    async def test_instances_start_with_what_begins_them(self, cluster: Cluster) -> None:
        """A part, a result or a turn that passes starts them, each with its start message. A refused one starts none,
        and an id in use is left alone, whatever the quotas (contract: JournalWrite.starts).
        """
        wake = await _Running.begin(cluster)
        other = await ConversationOwner.begin(cluster, "t")
        await wake.peer.provider.set_quotas(Quotas(instances=1))
        part = await wake.new_part(starts=[new_run("a"), new_run("b"), new_run("a", "again")])
        acks = [
            WorkAck(lock=wake.item.lock, message=None, parts=[part]),
            WorkAck(lock=wake.item.lock, message=None, parts=[replace(part, base=7, starts=[new_run("refused")])]),
        ]
        await wake.peer.provider.ack_work_item(wake.peer.identity, acks[:1], TIMEOUTS)
        assert await wake.peer.provider.ack_work_item(wake.peer.identity, acks[1:], TIMEOUTS) == [False]
        assert not (await other.commit(await other.new_write(base=7, starts=[new_run("refused")]))).committed
        await other.commit_wake(starts=[new_run("b", "again"), new_run("c")])
        end = await wake.owner.new_write(entries=[output()], starts=[new_run("d")])
        await wake.peer.provider.ack_work_item(
            wake.peer.identity, [WorkAck(lock=wake.item.lock, message="done", parts=[end])], TIMEOUTS
        )
        found = {item.instance_id: item for item in await wake.peer.take_instances(100)}
        names = ("a", "b", "c", "d")
        begun = [(found[name].name, [message.payload for message in found[name].messages]) for name in names]
        assert begun == [("run", [f"start {name}"]) for name in names]
        assert await wake.peer.provider.get_instance(["refused"]) == [None]

    async def test_steps_are_found_until_a_write_clears_them(self, cluster: Cluster) -> None:
        """Also steps of another wake of the journal; one of the same wake and key is replaced (contract: Step,
        JournalWrite.steps, JournalWrite.clear_steps, PendingWork.steps).
        """
        wake = await _Running.begin(cluster)
        await wake.commit_part(steps=[step("a"), step("b", result=None)])
        await wake.commit_part(steps=[step("b", result='"é"', arguments="c"), step("b", wake_id="w2")])
        work = await wake.talk.pending()
        assert sorted(work.steps) == [step("a"), step("b", '"é"', arguments="c"), step("b", wake_id="w2")]
        await wake.owner.commit_wake(wake_id="w3")
        assert len((await wake.talk.pending()).steps) == 3
        await wake.owner.commit_wake(wake_id="w3", clear_steps=True, steps=[step("z", wake_id="w3")])
        assert (await wake.talk.pending()).steps == [step("z", wake_id="w3")]

    async def test_steps_are_of_one_journal(self, cluster: Cluster) -> None:
        """Others keep theirs, and a deleted journal's are gone (contract: Step, delete_journal)."""
        wake = await _Running.begin(cluster)
        other = await ConversationOwner.begin(cluster, "t")
        await wake.commit_part(steps=[step()])
        await other.commit_wake(steps=[step("t")])
        await wake.owner.commit_wake(clear_steps=True)
        assert (await other.conversation.pending()).steps == [step("t")]
        await other.commit_wake(steps=[step("u")])
        journal_id = (await other.conversation.page()).journal_id
        assert await other.conversation.delete()
        again = new_input("t", start=new_start("t", journal_id=journal_id))
        assert [appended.outcome for appended in await other.conversation.journals.append_journal([again])] == [
            "appended"
        ]
        assert (await other.conversation.pending()).steps == []

    async def test_a_fork_goes_on_with_the_steps_of_its_base(self, cluster: Cluster) -> None:
        """It does if it has the state of the running wake; a fork that the wake makes has the state of its end
        (contract: JournalCreation.copies_state).
        """
        wake = await _Running.begin(cluster)
        await wake.commit_part(steps=[step("a"), step("b", result=None)])
        base = (await wake.talk.page()).journal_id
        given = state("given", kind=KIND)
        made = [
            creation_of("copy", base, copies_state=True),
            creation_of("given", base, copies_state=True, state=given),
            creation_of("plain", base),
        ]
        results = await wake.talk.journals.create_journals(made)
        assert [result.outcome for result in results] == ["created"] * 3
        by_wake = creation_of("by wake", base, copies_state=True)
        await wake.owner.commit_wake(clear_steps=True, creations=[by_wake])
        found = {}
        for name in ("s", "copy", "given", "plain", "by wake"):
            found[name] = sorted((await Conversation(wake.peer.provider, name).pending()).steps)
        assert found == {"s": [], "copy": [step("a"), step("b", None)], "given": [], "plain": [], "by wake": []}

    async def test_what_a_part_requests_is_pending(self, cluster: Cluster) -> None:
        """Requests and revisits too, but not behind an input that drops them and that the wake has not read (contract:
        JournalWrite.requests, JournalWrite.is_part).
        """
        wake = await _Running.begin(cluster)
        await wake.talk.append(drops=True, entry_kind="user.interrupt")
        read_one, read_all = await wake.new_part(processed=1), await wake.new_part()
        assert await commit_part(wake.peer, wake.item, replace(read_one, requests=[new_request("lost")]))
        assert await wake.talk.requests() == []
        asked = replace(read_all, requests=[new_request()], revisits=[new_revisit()])
        assert await commit_part(wake.peer, wake.item, asked)
        assert [request.request_id for request in await wake.talk.requests()] == ["r"]
        assert [revisit.key for revisit in await wake.talk.revisits()] == ["k"]

    async def test_a_part_ends_no_stream(self, cluster: Cluster) -> None:
        """It may clear the parts so far; later ones of the attempt are read (contract: JournalWrite.is_part)."""
        wake = await _Running.begin(cluster)
        await wake.talk.stream(1, 2)
        await wake.commit_part(entries=[output()], clear_stream=True)
        assert await wake.talk.streamed() == []
        await wake.talk.stream(3, first=3)
        assert await wake.talk.streamed() == ["w1.1.3"]

    async def test_a_part_is_seen_by_readers_and_by_other_journals(self, cluster: Cluster) -> None:
        """Its entries count for the size of the journal, and its appends reach others (contract: JournalWrite)."""
        wake = await _Running.begin(cluster)
        child = new_input("child", start=new_start("child", parent="s"), sender="s")
        entries = [output(), output("2", event_id="e"), output("3", event_id="e")]
        await wake.commit_part(entries=entries, appends=[child])
        assert await wake.talk.texts() == ["hello", "answer", "2"]
        assert (await wake.talk.page()).last_seq == 3
        (work,) = await wake.talk.journals.get_pending(["child"], limit=1)
        assert work is not None
        assert (work.parent, len(work.inputs)) == ("s", 1)
