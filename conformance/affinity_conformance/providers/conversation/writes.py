"""Journal writes of wakes: all or nothing, with the turn or the ack, behind the fence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from affinity.conversation.journal import REFUSAL_MARK, JournalAppend, JournalFilter, NewRequest, NewRevisit
from affinity.conversation.store.contract import journals_of
from affinity.provider.contract import NewMessage, Quotas, Token, WorkAck, WorkItem
from affinity.session import StateWrite
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    TIMEOUTS,
    message_ids,
    payloads,
    state,
    state_write,
    turn,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import (
    Conversation,
    ConversationOwner,
    new_input,
    new_start,
    output,
)


class JournalWriteRules(Rules):
    """`Turn.parts` and `WorkAck.parts` (contract: JournalWrite)."""

    async def test_a_wake_commits_with_its_turn(self, cluster: Cluster) -> None:
        """Entries, watermark, request, revisit, state and message are there together (contract: commit_turn)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await cluster.enqueue("s")
        item = await owner.peer.take_one()
        write = await owner.new_write(
            entries=[output("1", kind="span.started"), output("2"), output("3", event_id="mine")],
            requests=[NewRequest(request_id="r", kind="confirm", payload="1")],
            revisits=[NewRevisit(key="k", delay=0.0)],
        )
        result = await owner.commit(write, acks=[item.lock], states=[state_write(item)])
        assert result.committed
        entries = await talk.entries()
        assert [(entry.seq, entry.payload, entry.wake_id) for entry in entries[1:]] == [
            (2, '"1"', "w1"),
            (3, '"2"', "w1"),
            (4, '"3"', "w1"),
        ]
        assert await talk.numbers(wake_id="w1") == [2, 3, 4]
        page = await talk.page()
        assert (page.processed, page.last_seq) == (1, 4)
        assert [len(await talk.requests()), len(await talk.revisits())] == [1, 1]
        assert (await cluster.record("s")).state == b"by work"

    async def test_no_quota_refuses_what_a_wake_sends(self, cluster: Cluster) -> None:
        """A wake creates a child, and writes to it, though no client may (contract: JournalAppend)."""
        owner = await ConversationOwner.begin(cluster)
        provider = owner.peer.provider
        await provider.set_quotas(Quotas(instances=1, instance_bytes=1))
        child = new_input("child", start=new_start("child", parent="s"), sender="s", unread_limit=1)
        await owner.commit_wake(appends=[child, child], entries=[output()])
        talk = Conversation(provider, "child")
        assert await talk.numbers() == [1, 2]
        assert (await Conversation(provider, "t").append()).outcome == "over_quota"
        await provider.set_quotas(Quotas())
        (item,) = [item for item in await owner.peer.take_instances() if item.instance_id == "child"]
        assert payloads(item) == ["start", "[1]", "[2]"]

    async def test_a_refused_turn_writes_nothing(self, cluster: Cluster) -> None:
        """A failed fence of the turn, of a state or of an ack leaves the journal as it is; a failed fence of the
        journal leaves everything else as it is, and names the session (contract: TurnResult.conflicts).
        """
        owner = await ConversationOwner.begin(cluster)
        talk, peer = owner.conversation, owner.peer
        item = await cluster.give(peer, "s")
        before = [await talk.page(), await talk.requests()]
        good = await owner.new_write(
            entries=[output()],
            requests=[NewRequest(request_id="r", kind="confirm", payload="1")],
            appends=[new_input("child", start=new_start("child", parent="s"), sender="s")],
        )
        state = state_write(item)
        lost = item.lock._replace(token=Token("lost"))
        refused: list[dict[str, Any]] = [
            {"event_count": 7, "parts": [good]},
            {"parts": [good], "acks": [lost]},
            {"parts": [good], "states": [replace(state, base_version=3)]},
            {"parts": [replace(good, base=1)], "states": [state], "acks": [item.lock]},
            {"parts": [replace(good, journal_id=good.journal_id - 1)], "states": [state]},
            {"parts": [replace(good, session_id="none")], "states": [state]},
            {"parts": [good, good], "states": [state]},
        ]
        conflicts: list[list[str]] = []
        for step in refused:
            (result,) = await peer.commit(turn(owner.at, **step))
            assert not result.committed, step
            conflicts.append(list(result.conflicts))
        assert conflicts == [[], [], ["s"], ["s"], ["s"], ["none"], ["s"]]
        assert [await talk.page(), await talk.requests()] == before
        assert await (await cluster.states()).load("s") is None
        assert await peer.history(owner.at) == []
        assert await peer.provider.get_instance(["child"]) == [None]
        assert (await owner.commit(good)).committed

    async def test_a_record_that_may_be_there_is_not_denied(self, cluster: Cluster) -> None:
        """It may be there after the first wake, and if the session has a record (contract: PendingWork.has_record)."""
        states = await cluster.states()
        for session_id in ("s", "t"):
            await (await Conversation.open(cluster, session_id)).append()
        await states.save(state("t"))
        owner = await ConversationOwner.take(cluster)
        assert (await (await Conversation.open(cluster, "t")).pending()).has_record
        await owner.commit_wake()
        assert (await owner.conversation.pending()).has_record

    async def test_a_wake_alone_is_refused_by_each_fence(self, cluster: Cluster) -> None:
        """The turn that a worker with little to do commits: one result, one write, a later version of one state, of a
        record that was made by hand, or by a wake. With any fence failing nothing is left, and the result says which
        (contract: Turn, TurnResult).
        """
        owner = await ConversationOwner.begin(cluster)
        talk, peer, states = owner.conversation, owner.peer, await cluster.states()
        await owner.commit_wake()
        await states.save(state("s"))
        for version in (1, 2):
            item = await _wake_item(owner, version)
            lost = item.lock._replace(token=Token("lost"))
            write = await owner.new_write(
                entries=[output(text, f"w{version}") for text in "12"], wake_id=f"w{version}", clear_stream=True
            )
            saved = state_write(item, b"%d" % version, base=version)
            assert item.session_epoch
            refused: list[tuple[dict[str, Any], list[str], list[Any]]] = [
                ({"event_count": 7}, [], []),
                ({"generation": "another"}, [], []),
                ({"execution_id": 2}, [], []),
                ({"acks": [lost]}, [], [lost]),
                ({"states": [replace(saved, base_version=version - 1)]}, ["s"], []),
                ({"states": [replace(saved, base_version=version + 1)]}, ["s"], []),
                ({"states": [replace(saved, epoch=item.session_epoch - 1)]}, ["s"], []),
                ({"parts": [replace(write, base=write.base + 1)]}, ["s"], []),
                ({"parts": [replace(write, journal_id=write.journal_id - 1)]}, ["s"], []),
                ({"parts": [replace(write, session_id="none")]}, ["none"], []),
            ]
            await talk.stream(1, wake_id=write.wake_id)
            before = [await talk.page(), await states.load("s"), await peer.history(owner.at), await talk.streamed()]
            good = turn(owner.at, acks=[item.lock], states=[saved], parts=[write])
            for step, conflicts, locks in refused:
                (result,) = await peer.commit(replace(good, **step))
                assert not result.committed, step
                assert (list(result.conflicts), list(result.lost_acks)) == (conflicts, locks), step
                assert await peer.check(item) == [True]
            found = [await talk.page(), await states.load("s"), await peer.history(owner.at), await talk.streamed()]
            assert found == before
            (result,) = await peer.commit(good)
            assert (result.committed, list(result.placed)) == (True, [])
            owner.at = replace(owner.at, event_count=owner.at.event_count + 1)
            assert await peer.check(item) == [False]
            assert (await cluster.record("s")).version == version + 1
            assert await talk.texts(wake_id=write.wake_id) == ["1", "2"]
            assert await talk.streamed() == []

    async def test_a_wake_alone_may_write_the_state_of_another_session(self, cluster: Cluster) -> None:
        """It may also write no state, or have its result without a session (contract: Turn.states)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake()
        other = await _wake_item(owner, 1, "t")
        await (await cluster.states()).save(state("t"), epoch=other.session_epoch)
        first, second = state_write(other, base=1), state_write(other, base=2)
        cases: list[tuple[str | None, list[StateWrite]]] = [("s", [first]), (None, [second]), ("s", []), (None, [])]
        for number, (session_id, writes) in enumerate(cases, 2):
            item = await _wake_item(owner, number, session_id)
            write = await owner.new_write(entries=[output(wake_id=f"w{number}")], wake_id=f"w{number}")
            assert (await owner.commit(write, acks=[item.lock], states=writes)).committed, (session_id, writes)
        assert await owner.conversation.texts() == ["hello", *["answer"] * 4]
        assert (await cluster.record("t")).version == 3

    async def test_input_is_processed_once(self, cluster: Cluster) -> None:
        """One of two wakes that have read the same inputs commits (contract: JournalWrite.base)."""
        owner = await ConversationOwner.begin(cluster)
        first = await owner.new_write(entries=[output("first")])
        second = replace(first, entries=[output("second")], wake_id="w2")
        assert (await owner.commit(first)).committed
        result = await owner.commit(second)
        assert (result.committed, list(result.conflicts)) == (False, ["s"])
        assert await owner.conversation.texts() == ["hello", "first"]

    async def test_of_one_batch_the_first_write_of_a_journal_passes(self, cluster: Cluster) -> None:
        """Also when it has processed nothing (contract: Turn)."""
        owner = await ConversationOwner.begin(cluster)
        other = await owner.peer.own("other")
        write = await owner.new_write(processed=0, entries=[output("first")])
        late = replace(write, entries=[output("second")])
        results = await owner.peer.commit(turn(owner.at, parts=[write]), turn(other, parts=[late]))
        assert [(result.committed, list(result.conflicts)) for result in results] == [(True, []), (False, ["s"])]
        assert await owner.conversation.texts() == ["hello", "first"]

    async def test_a_batch_writes_to_many_journals(self, cluster: Cluster) -> None:
        """Each turn writes to its own; a refused turn does not affect the others (contract: rules for every verb)."""
        talk = await Conversation.open(cluster)
        names = [f"s{number}" for number in range(5)]
        await talk.journals.append_journal([new_input(name) for name in names])
        peer = await cluster.worker("a")
        taken = {item.instance_id: item for item in await peer.take_instances(100)}
        owners = [ConversationOwner(peer, Conversation(peer.provider, name), taken[name]) for name in names]
        writes = [await owner.new_write(entries=[output(str(n))] * (n + 1)) for n, owner in enumerate(owners)]
        writes[2] = replace(writes[2], base=1)
        turns = [turn(owner.at, parts=[write]) for owner, write in zip(owners, writes, strict=True)]
        results = await peer.commit(*turns)
        assert [result.committed for result in results] == [True, True, False, True, True]
        found = [await owner.conversation.texts(after=1) for owner in owners]
        assert found == [["0"], ["1"] * 2, [], ["3"] * 4, ["4"] * 5]

    async def test_a_deleted_journal_takes_no_write(self, cluster: Cluster) -> None:
        """Another journal of the session has another id, at the same watermark too (contract: JournalWrite)."""
        owner = await ConversationOwner.begin(cluster)
        write = await owner.new_write(entries=[output()])
        assert await owner.conversation.delete()
        assert list((await owner.commit(write)).conflicts) == ["s"]
        assert (await owner.conversation.append()).created
        assert list((await owner.commit(write)).conflicts) == ["s"]
        assert await owner.conversation.numbers() == [1]

    async def test_inputs_come_while_a_wake_commits(self, cluster: Cluster) -> None:
        """Numbers of inputs and outputs have no gaps, no input is lost, and none is processed unseen (contract:
        JournalWrite).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation

        async def wake() -> None:
            for number in range(20):
                await owner.commit_wake(entries=[output(wake_id=f"w{number}")] * 2, wake_id=f"w{number}")

        async def send() -> None:
            sender = await Conversation.open(cluster)
            for number in range(20):
                await sender.append(text=f"input {number}")

        await concurrently(wake, send)
        await owner.commit_wake(wake_id="last")
        entries = await talk.entries()
        assert [entry.seq for entry in entries] == list(range(1, 62))
        inputs = [entry.payload for entry in entries if entry.is_input]
        assert inputs == ['"hello"', *(f'"input {number}"' for number in range(20))]
        assert (await talk.pending()).inputs == []

    async def test_an_event_id_of_a_wake_is_appended_once(self, cluster: Cluster) -> None:
        """An entry of a wake whose event id is there is left out; the rest commits (contract: NewEntry.event_id)."""
        owner = await ConversationOwner.begin(cluster, event_id="e")
        entries = [output("1", event_id="e"), output("2", event_id="f"), output("3", event_id="f"), output("4")]
        await owner.commit_wake(entries=entries)
        assert await owner.conversation.texts() == ["hello", "2", "4"]
        assert (await owner.conversation.append(event_id="f")).seq == 2

    async def test_an_ack_commits_a_wake(self, cluster: Cluster) -> None:
        """The slow path: entries, watermark, state and result together, or nothing (contract: WorkAck.parts)."""
        owner = await ConversationOwner.begin(cluster)
        peer, talk = owner.peer, owner.conversation
        item = await cluster.give(peer, "s")
        good = await owner.new_write(entries=[output()])
        bad = replace(good, base=1)
        state = state_write(item)

        async def ack(**fields: Any) -> list[bool]:
            return list(await peer.provider.ack_work_item(peer.identity, [WorkAck(lock=item.lock, **fields)], TIMEOUTS))

        assert await ack(message="done", parts=[bad], state=state) == [False]
        assert await ack(message="done", parts=[good], state=replace(state, base_version=1)) == [False]
        assert await talk.numbers() == [1]
        assert await cluster.results() == []
        assert await ack(message="done", parts=[good], state=state) == [True]
        assert await cluster.results() == ["done"]
        assert await talk.texts() == ["hello", "answer"]
        assert (await talk.page()).processed == 1
        assert await ack(message="done", parts=[good], state=state) == [False]

    async def test_of_one_batch_of_acks_the_first_write_passes(self, cluster: Cluster) -> None:
        """Both acks write to one journal (contract: WorkAck.parts)."""
        owner = await ConversationOwner.begin(cluster)
        await cluster.enqueue(None, None)
        items = await owner.peer.take(2)
        write = await owner.new_write(entries=[output()])
        acks = [WorkAck(lock=item.lock, message="done", parts=[write]) for item in items]
        identity = owner.peer.identity
        assert await owner.peer.provider.ack_work_item(identity, acks, TIMEOUTS) == [True, False]
        assert len(await cluster.results()) == 1

    # -- to other journals

    async def test_a_wake_creates_a_child(self, cluster: Cluster) -> None:
        """The child's journal and instance commit with the wake; it has a parent (contract: JournalWrite.appends)."""
        owner = await ConversationOwner.begin(cluster)
        brief = new_input("child", "brief", start=new_start("child", parent="s"), sender="s", event_id="b")
        await owner.commit_wake(appends=[brief, brief])
        child = Conversation(owner.peer.provider, "child")
        assert await child.texts() == ["brief"]
        page, parent = await child.page(), await owner.conversation.page()
        assert (page.parent, page.parent_journal) == ("s", parent.journal_id)
        assert parent.parent_journal is None
        found = {item.instance_id: payloads(item) for item in await owner.peer.take_instances()}
        assert found["child"] == ["start", "[1]"]

    async def test_a_child_reports_to_its_parent(self, cluster: Cluster) -> None:
        """An input for the parent wakes it (contract: JournalWrite.appends)."""
        owner = await ConversationOwner.begin(cluster)
        await Conversation(owner.peer.provider, "child").append(start=new_start("child", parent="s"))
        child = await ConversationOwner.of(owner.peer, "child")
        await child.commit_wake(entries=[output()], appends=[new_input("s", "done", start=None)])
        assert await owner.conversation.texts() == ["hello", "done"]
        (parent,) = [item for item in await owner.peer.take_instances() if item.instance_id == "s"]
        assert "[2]" in payloads(parent)

    async def test_what_a_wake_may_not_append_is_left_out(self, cluster: Cluster) -> None:
        """Appends that are refused are left out, and the rest of the wake commits (contract: JournalWrite.appends)."""
        owner = await ConversationOwner.begin(cluster)
        other = Conversation(owner.peer.provider, "other")
        await other.append(start=new_start("other", parent="p"))
        closed = Conversation(owner.peer.provider, "closed")
        await closed.append(closes=True)
        appends = [
            new_input("other", "wrong parent", sender="s"),
            new_input("closed", "late", sender=None),
            new_input("none", "unknown", start=None),
            new_input("child", "brief", start=new_start("child", parent="s"), sender="s"),
        ]
        await owner.commit_wake(entries=[output()], appends=appends)
        assert await other.texts() == await closed.texts() == ["hello"]
        assert await Conversation(owner.peer.provider, "child").texts() == ["brief"]
        assert await owner.conversation.texts() == ["hello", "answer"]

    async def test_what_is_refused_comes_back(self, cluster: Cluster) -> None:
        """The replacement of a refused append is made, in order, with the outcome in its entry, and wakes its instance.
        An append that passes or is repeated has no replacement (contract: JournalAppend.if_refused).
        """
        owner = await ConversationOwner.begin(cluster)
        provider = owner.peer.provider
        await Conversation(provider, "other").append(start=new_start("other", parent="p"))
        await Conversation(provider, "closed").append(closes=True)
        await Conversation(provider, "kind").append(kind="of another kind")
        await Conversation(provider, "child").append(start=new_start("child", parent="s"), event_id="brief")
        appends = [
            new_input("other", sender="s", if_refused=_bounce()),
            new_input("child", "brief", sender="s", event_id="brief", if_refused=_bounce()),
            new_input("closed", if_refused=_bounce()),
            new_input("none", start=None, if_refused=_bounce("child")),
            new_input("new", start=new_start("new", parent="s"), sender="s", if_refused=_bounce()),
            new_input("kind", if_refused=_bounce()),
            new_input("closed", if_refused=_bounce("none")),
        ]
        await owner.commit_wake(entries=[output()], appends=appends)
        assert await owner.conversation.texts() == ["hello", "answer", "not_parent", "closed", "other_kind"]
        assert await Conversation(provider, "child").texts() == ["hello", "unknown"]
        assert await Conversation(provider, "new").texts() == ["hello"]
        assert [entry.is_input for entry in await owner.conversation.entries()] == [True, False, True, True, True]
        (item,) = [item for item in await owner.peer.take_instances() if item.instance_id == "s"]
        assert payloads(item) == ["[3]", "[4]", "[5]"]

    async def test_what_comes_back_has_an_event_id(self, cluster: Cluster) -> None:
        """It is there once, and what was reported under its id before stays (contract: JournalAppend.if_refused)."""
        owner = await ConversationOwner.begin(cluster)
        other = new_input("none", start=None, if_refused=_bounce(event_id="end"))
        await owner.commit_wake(appends=[other, other])
        await owner.commit_wake(appends=[other], wake_id="w2")
        assert await owner.conversation.texts() == ["hello", "unknown"]

    async def test_nothing_comes_back_to_a_closed_journal(self, cluster: Cluster) -> None:
        """It is refused as anything else, and the rest of the wake commits (contract: JournalAppend.if_refused)."""
        owner = await ConversationOwner.begin(cluster)
        write = await owner.new_write(entries=[output()], appends=[new_input("none", start=None, if_refused=_bounce())])
        await owner.conversation.append(text="bye", closes=True)
        assert (await owner.commit(write)).committed
        assert await owner.conversation.texts() == ["hello", "bye", "answer"]

    async def test_what_wakes_send_to_a_deleted_journal_creates_nothing(self, cluster: Cluster) -> None:
        """It does not reach the next journal of the session either, nor does its replacement (contract:
        JournalAppend.journal_id).
        """
        owner = await ConversationOwner.begin(cluster)
        provider = owner.peer.provider
        child, parent = Conversation(provider, "child"), Conversation(provider, "parent")
        old_child = (await child.append(start=new_start("child", parent="s"))).journal_id
        old_parent = (await parent.append()).journal_id
        for conversation in (child, parent):
            await provider.delete_instance([conversation.session_id], force=True)
            await conversation.delete()
        start = new_start("child", parent="s")
        to_child = new_input("child", start=start, sender="s", journal_id=old_child, if_refused=_bounce())
        to_parent = new_input("parent", start=None, journal_id=old_parent)
        to_parent = replace(to_parent, if_refused=replace(to_parent, message=None))
        await owner.commit_wake(appends=[to_child, to_parent])
        assert await owner.conversation.texts() == ["hello", "unknown"]
        assert await child.journals.get_pending(["child", "parent"], limit=1) == [None, None]
        assert await provider.get_instance(["child", "parent"]) == [None, None]
        await parent.append(text="new")
        await owner.commit_wake(appends=[to_parent], wake_id="w2")
        assert await parent.texts() == ["new"]

    async def test_children_belong_to_the_journal_that_has_created_them(self, cluster: Cluster) -> None:
        """Another journal of the same session has no children (contract: JournalFilter.parent_journal)."""
        owner = await ConversationOwner.begin(cluster)
        provider, journal_id = owner.peer.provider, (await owner.conversation.page()).journal_id
        await owner.commit_wake(appends=[new_input("child", start=new_start("child", parent="s"), sender="s")])
        filters = [JournalFilter(parent="s", parent_journal=parent) for parent in (journal_id, journal_id + 1)]
        found = [[row.session_id for row in await journals_of(provider).list_journals(where, 10)] for where in filters]
        assert found == [["child"], []]

    async def test_an_ack_brings_back_what_is_refused(self, cluster: Cluster) -> None:
        """The slow path: for the acks that pass, and for no other (contract: JournalAppend.if_refused)."""
        owner = await ConversationOwner.begin(cluster)
        peer = owner.peer
        other = Conversation(peer.provider, "other")
        await other.append()
        await cluster.enqueue(None, None)
        items = await peer.take(2)
        late = await (await ConversationOwner.of(peer, "other")).new_write(
            base=7, appends=[new_input("none", start=None, if_refused=_bounce("other"))]
        )
        write = await owner.new_write(appends=[new_input("none", start=None, if_refused=_bounce())])
        acks = [WorkAck(lock=items[0].lock, message="done", parts=[late])]
        acks += [WorkAck(lock=items[1].lock, message="done", parts=[write])]
        assert await peer.provider.ack_work_item(peer.identity, acks, TIMEOUTS) == [False, True]
        assert await owner.conversation.texts() == ["hello", "unknown"]
        assert await other.texts() == ["hello"]

    async def test_wakes_append_to_each_other(self, cluster: Cluster) -> None:
        """Two wakes of one batch, each with an input for the other: both commit, without a deadlock of concurrent
        batches (contract: JournalWrite.appends).
        """
        talk = await Conversation.open(cluster)
        await talk.journals.append_journal([new_input("s"), new_input("t"), new_input("u"), new_input("v")])
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.take_instances(100)
        taken = {item.instance_id: item for item in await a.take_instances(100)}
        beside = {"a": a, "b": await cluster.same_worker(a)}
        assert await b.take_instances() == []

        async def both(worker: str, pairs: list[tuple[str, str]]) -> None:
            peer = beside[worker]
            turns = []
            for name, to in pairs:
                owner = ConversationOwner(peer, Conversation(peer.provider, name), taken[name])
                write = await owner.new_write(entries=[output()], appends=[new_input(to, f"from {name}")])
                turns.append(turn(owner.at, consumed=message_ids(owner.at), parts=[write]))
            assert [result.committed for result in await peer.commit(*turns)] == [True] * len(turns)

        await concurrently(lambda: both("a", [("s", "u"), ("t", "v")]), lambda: both("b", [("v", "t"), ("u", "s")]))
        for name, sender in (("s", "u"), ("t", "v"), ("u", "s"), ("v", "t")):
            texts = await Conversation(talk.provider, name).texts()
            assert sorted(texts) == ["answer", f"from {sender}", "hello"]

    async def test_a_wake_and_a_sender_race_for_one_event_id(self, cluster: Cluster) -> None:
        """Each on a connection of its own: the journal has one entry of the id, and all else of the wake commits
        (contract: NewEntry.event_id).
        """
        owner = await ConversationOwner.begin(cluster)
        sender = await Conversation.open(cluster)
        for number in range(10):
            entries = [output("wake", event_id=f"e{number}"), output("rest")]
            write = await owner.new_write(entries=entries, wake_id=f"w{number}")
            await concurrently(
                partial(owner.commit, write), partial(sender.append, event_id=f"e{number}", text="sender")
            )
            texts = await sender.texts(after=1 + 2 * number)
            assert (len(texts), texts.count("rest")) == (2, 1)
        assert await sender.numbers() == list(range(1, 22))

    async def test_a_wake_sends_messages_too(self, cluster: Cluster) -> None:
        """Messages of the turn and inputs of the wake both arrive (contract: Turn)."""
        owner = await ConversationOwner.begin(cluster)
        other = Conversation(owner.peer.provider, "other")
        await other.append()
        message = NewMessage(instance_id="other", payload="message")
        result = await owner.commit(await owner.new_write(appends=[new_input("other")]), messages=[message])
        assert result.committed
        (item,) = [item for item in await owner.peer.take_instances() if item.instance_id == "other"]
        assert sorted(payloads(item)) == ["[1]", "[2]", "message", "start"]


async def _wake_item(owner: ConversationOwner, number: int, session_id: str | None = "s") -> WorkItem:
    """The activity of a wake, in the hands of the worker."""
    owner.at = await owner.peer.go_on(owner.at, work_items=[work_item(owner.at, number, session_id)])
    return await owner.peer.take_one()


def _bounce(session_id: str = "s", event_id: str | None = None) -> JournalAppend:
    """A fallback entry: its text is the outcome of the refused append."""
    append = new_input(session_id, start=None, event_id=event_id)
    assert append.entry is not None
    return replace(append, entry=replace(append.entry, payload=REFUSAL_MARK))
