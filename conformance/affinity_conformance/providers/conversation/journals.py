"""Journals: inputs from outside, the checks that they meet, and what they do to the instance."""

from __future__ import annotations

from functools import partial
from typing import Any

from affinity.conversation.journal import Answer, JournalAppend, NewEntry
from affinity.conversation.store.contract import journals_of
from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import InstanceUpdate, NewMessage, Quotas
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ORCHESTRATION, message_ids, new_instance, payloads
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import (
    KIND,
    Conversation,
    ConversationOwner,
    new_input,
    new_start,
    output,
)


class JournalRules(Rules):
    """`append_journal`: numbers, repeated ids, the order of the checks, creation, messages."""

    async def test_the_first_input_creates_journal_and_instance(self, cluster: Cluster) -> None:
        """One step creates both if ``start`` is given; the instance has the session (contract: JournalStart)."""
        talk = await Conversation.open(cluster)
        start = new_start(version="2", journal_id=2**63 - 1, parent="p")
        first, second = await talk.append(start=start), await talk.append()
        assert (first.outcome, first.seq, first.journal_id, first.created) == ("appended", 1, 2**63 - 1, True)
        assert (second.outcome, second.seq, second.journal_id, second.created) == ("appended", 2, 2**63 - 1, False)
        (info,) = await talk.provider.get_instance(["s"])
        assert info is not None
        assert (info.name, info.version, info.session_id, info.generation) == (
            ORCHESTRATION,
            "2",
            "s",
            "generation of s",
        )
        page = await talk.page()
        assert (page.kind, page.parent, page.closed, page.processed, page.last_seq) == (KIND, "p", False, 0, 2)
        assert (page.first_seq, page.journal_id) == (1, 2**63 - 1)

    async def test_an_input_is_what_was_sent(self, cluster: Cluster) -> None:
        """Kind, payload and event id come back as they are; the database gives number and time (contract: Entry)."""
        talk = await Conversation.open(cluster)
        entry = NewEntry(kind="user.é", payload='{"a": "\\u0041 é \\"x\\""}', event_id="e" * 256, is_input=True)
        await talk.append(entry=entry)
        await talk.append(entry=NewEntry(kind="note", payload="null", wake_id="w"), message=None)
        one, two = await talk.entries()
        assert (one.seq, one.kind, one.payload, one.event_id) == (1, entry.kind, entry.payload, entry.event_id)
        assert (one.wake_id, one.is_input, one.recorded_at.utcoffset() is not None) == (None, True, True)
        assert (two.seq, two.kind, two.payload, two.event_id, two.wake_id) == (2, "note", "null", None, "w")
        assert not two.is_input
        assert two.recorded_at >= one.recorded_at

    async def test_a_large_input_survives(self, cluster: Cluster) -> None:
        """Payloads of megabytes, with every kind of character, come back unchanged (contract: NewEntry)."""
        talk = await Conversation.open(cluster)
        payload = '"' + "é\\\\\\n" * 300_000 + '"'
        await talk.append(entry=NewEntry(kind="user.message", payload=payload, is_input=True))
        assert (await talk.entries())[0].payload == payload
        assert (await talk.pending()).inputs[0].payload == payload

    async def test_the_instance_receives_the_number(self, cluster: Cluster) -> None:
        """Messages arrive behind the start message, with the number for `SEQ_MARK`; without a message nothing arrives
        (contract: JournalAppend.message).
        """
        talk, a = await Conversation.open(cluster), await cluster.worker("a")
        await talk.append()
        await talk.append(message=None)
        await talk.append(message='{"n": "$SEQ", "again": "$SEQ"}')
        (item,) = await a.take_instances()
        assert payloads(item) == ["start", "[1]", '{"n": 3, "again": 3}']

    async def test_a_message_alone_appends_nothing(self, cluster: Cluster) -> None:
        """An append without an entry only sends the message, with the last number, to a journal that exists (contract:
        JournalAppend.entry).
        """
        talk, a = await Conversation.open(cluster), await cluster.worker("a")
        assert (await talk.append(entry=None)).outcome == "unknown"
        await talk.append()
        resumed = await talk.append(entry=None, message='{"resume": "$SEQ"}')
        assert (resumed.outcome, resumed.seq) == ("appended", 0)
        assert await talk.numbers() == [1]
        (item,) = await a.take_instances()
        assert payloads(item) == ["start", "[1]", '{"resume": 1}']

    async def test_numbers_have_no_gaps_under_concurrent_appends(self, cluster: Cluster) -> None:
        """Concurrent batches get all numbers from 1 on, each in its order; a reader that goes on from the last number
        it has seen misses none (contract: append_journal).
        """
        senders = [await Conversation.open(cluster) for _ in range(4)]
        seen: list[int] = []

        async def send(sender: Conversation, number: int) -> list[int]:
            numbers: list[int] = []
            for turn in range(10):
                batch = [new_input("s", f"{number}.{turn}.{index}") for index in range(3)]
                numbers += [appended.seq for appended in await sender.journals.append_journal(batch)]
            return numbers

        async def read() -> list[int]:
            reader = await Conversation.open(cluster)
            await reader.append()
            while len(seen) < 121:
                seen.extend(await reader.numbers(after=seen[-1] if seen else 0))
            return []

        calls = [lambda sender=sender, number=number: send(sender, number) for number, sender in enumerate(senders)]
        found = await concurrently(read, *calls)
        assert all(numbers == sorted(numbers) for numbers in found)
        assert seen == list(range(1, 122))
        texts = await senders[0].texts()
        for number in range(4):
            mine = [text for text in texts if text.startswith(f"{number}.")]
            assert mine == [f"{number}.{turn}.{index}" for turn in range(10) for index in range(3)]

    async def test_one_batch_appends_to_many_journals(self, cluster: Cluster) -> None:
        """Elements are independent; elements of one journal are numbered in their order (contract: append_journal)."""
        talk, other = await Conversation.open(cluster), await Conversation.open(cluster, "t")
        batch = [
            new_input("s", "1"),
            new_input("t", "1", event_id="e"),
            new_input("u", start=None),
            new_input("s", "2"),
            new_input("t", "1", event_id="e"),
            new_input("t", "another", event_id="e"),
            new_input("s", "3", kind="other"),
            new_input("t", "2", closes=True),
            new_input("t", "3"),
        ]
        found = await talk.journals.append_journal(batch)
        assert [(appended.outcome, appended.seq) for appended in found] == [
            ("appended", 1),
            ("appended", 1),
            ("unknown", 0),
            ("appended", 2),
            ("repeated", 1),
            ("other_event", 1),
            ("other_kind", 0),
            ("appended", 2),
            ("closed", 0),
        ]
        assert await talk.texts() == ["1", "2"]
        assert await other.texts() == ["1", "2"]
        assert await talk.journals.append_journal([]) == []

    async def test_two_senders_create_one_conversation(self, cluster: Cluster) -> None:
        """One of several concurrent first inputs creates journal and instance, and all are appended (contract:
        append_journal).
        """
        talks = [await Conversation.open(cluster) for _ in range(4)]
        found = await concurrently(*(talk.append for talk in talks))
        assert sorted(appended.seq for appended in found) == [1, 2, 3, 4]
        assert [appended.outcome for appended in found] == ["appended"] * 4
        assert sum(appended.created for appended in found) == 1
        assert len({appended.journal_id for appended in found}) == 1
        (item,) = await (await cluster.worker("a")).take_instances()
        assert sorted(payloads(item)) == ["[1]", "[2]", "[3]", "[4]", "start"]

    # -- event ids

    async def test_an_event_id_is_appended_once(self, cluster: Cluster) -> None:
        """The same id again gives the first number and wakes nothing, under concurrency too (contract:
        NewEntry.event_id).
        """
        talks = [await Conversation.open(cluster) for _ in range(4)]
        found = await concurrently(*(lambda talk=talk: talk.append(event_id="e") for talk in talks))
        assert sorted(appended.outcome for appended in found) == ["appended", "repeated", "repeated", "repeated"]
        assert {(appended.seq, appended.journal_id) for appended in found} == {(1, found[0].journal_id)}
        assert (await talks[0].append(event_id="f")).seq == 2
        assert (await talks[0].append(event_id="e")).seq == 1
        assert await talks[0].texts() == ["hello", "hello"]
        (item,) = await (await cluster.worker("a")).take_instances()
        assert payloads(item) == ["start", "[1]", "[2]"]

    async def test_senders_race_for_one_event_id(self, cluster: Cluster) -> None:
        """One sender appends to the existing journal, the others get its number, and one message wakes the instance
        (contract: NewEntry.event_id).
        """
        talks = [await Conversation.open(cluster) for _ in range(4)]
        await talks[0].append()
        for number in range(2, 12):
            found = await concurrently(*(partial(talk.append, event_id=f"e{number}") for talk in talks))
            assert sorted(appended.outcome for appended in found) == ["appended", "repeated", "repeated", "repeated"]
            assert {appended.seq for appended in found} == {number}
        assert await talks[0].numbers() == list(range(1, 12))
        (item,) = await (await cluster.worker("a")).take_instances()
        assert len(item.messages) == len(["start"]) + 11

    async def test_an_event_id_is_of_its_journal(self, cluster: Cluster) -> None:
        """Another journal may have the same event id (contract: NewEntry.event_id)."""
        talk, other = await Conversation.open(cluster), await Conversation.open(cluster, "t")
        await talk.append(event_id="x")
        assert (await other.append(event_id="e")).outcome == "appended"
        assert (await talk.append(event_id="e")).seq == 2

    async def test_another_event_under_an_event_id_is_refused(self, cluster: Cluster) -> None:
        """An entry of another kind or payload changes nothing and gets the number of the existing event; facts of the
        sending are not compared (contract: AppendOutcome).
        """
        talk = await Conversation.open(cluster)

        async def send(payload: str, kind: str = "user.message", **fields: Any) -> tuple[str, int]:
            entry = NewEntry(kind=kind, payload=payload, event_id="e", is_input=True)
            done = await talk.append(**{"entry": entry, **fields})
            return done.outcome, done.seq

        await talk.append()
        assert await send('{"a": [1, {"_": 2}], "_": {"trace": "x"}}') == ("appended", 2)
        for same in ('{"a": [1, {"_": 2}], "_": {"trace": "y"}}', '{"a":[1,{"_":2}]}', '{"_":{},"a":[1,{"_":2}]}'):
            assert await send(same) == ("repeated", 2)
            assert await send(same, start=None) == ("repeated", 2)
        for other in ('{"a": [1, {"_": 3}], "_": {"trace": "x"}}', '{"a": [1, {}]}', "{}", '"text"'):
            assert await send(other) == ("other_event", 2)
            assert await send(other, start=None, drops=True, closes=True) == ("other_event", 2)
        assert await send('{"a": [1, {"_": 2}]}', kind="user.other", answers=Answer(request_id="q", kind="k")) == (
            "other_event",
            2,
        )
        assert await talk.numbers() == [1, 2]
        assert not (await talk.page()).closed

    async def test_large_events_are_compared_too(self, cluster: Cluster) -> None:
        """All that one batch repeats, although one page has no room for it (contract: AppendOutcome)."""
        talk = await Conversation.open(cluster)
        large = "x" * (MAX_BATCH_BYTES // 8)
        for number in range(10):
            await talk.append(text=f"{number}{large}", event_id=f"e{number}")
        batch = [new_input("s", f"{number % 9}{large}", event_id=f"e{number}") for number in range(10)]
        found = await talk.journals.append_journal(batch)
        assert [appended.outcome for appended in found] == ["repeated"] * 9 + ["other_event"]

    async def test_a_repeated_event_id_passes_before_other_checks(self, cluster: Cluster) -> None:
        """The id gives its number behind the watermark, after closing, and where a new input would be refused
        (contract: JournalAppend).
        """
        owner = await ConversationOwner.begin(cluster, event_id="e")
        await owner.commit_wake()
        talk = owner.conversation
        assert (await talk.append(event_id="e")).outcome == "repeated"
        await talk.append(closes=True)
        repeated = await talk.append(event_id="e", sender="stranger", unread_limit=0, start=new_start(name="other"))
        assert (repeated.outcome, repeated.seq) == ("repeated", 1)
        assert (await talk.append(event_id="e", kind="other")).outcome == "other_kind"

    # -- refusals

    async def test_a_journal_of_another_kind_is_left_alone(self, cluster: Cluster) -> None:
        """`other_kind` changes nothing (contract: JournalAppend.kind)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        before = await talk.page()
        assert (await talk.append(kind="other", closes=True, drops=True)).outcome == "other_kind"
        assert await talk.page() == before

    async def test_a_closed_journal_refuses_inputs(self, cluster: Cluster) -> None:
        """The input that closes is appended, later ones are refused; messages alone too (contract:
        JournalAppend.closes).
        """
        talk = await Conversation.open(cluster)
        assert (await talk.append(closes=True)).seq == 1
        assert (await talk.page()).closed
        assert (await talk.pending()).closed
        assert [(await talk.append()).outcome, (await talk.append(entry=None)).outcome] == ["closed", "closed"]
        assert await talk.numbers() == [1]

    async def test_an_instance_that_has_ended_takes_no_inputs(self, cluster: Cluster) -> None:
        """An input is refused if no instance would read it (contract: JournalAppend)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit(await owner.new_write(), update=InstanceUpdate(status="completed"))
        assert (await owner.conversation.append()).outcome == "closed"
        assert await owner.conversation.numbers() == [1]

    async def test_an_instance_that_is_gone_is_created_anew(self, cluster: Cluster) -> None:
        """The journal goes on with a new instance if ``start`` is given; the input would be lost otherwise (contract:
        JournalStart).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.provider.delete_instance(["s"], force=True)
        assert (await talk.append(start=None)).outcome == "unknown"
        assert (await talk.append(start=None, message=None)).seq == 2
        again = await talk.append(start=new_start(generation="second"))
        assert (again.outcome, again.seq, again.created) == ("appended", 3, False)
        assert (await owner.peer.info("s")).generation == "second"

    async def test_an_instance_that_is_left_of_a_deleted_journal_reads_no_new_one(self, cluster: Cluster) -> None:
        """It is deleted with its messages, one of which may end it (contract: JournalStart)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.append(start=None, text="end", closes=True)
        await talk.delete()
        new = await talk.append(start=new_start(generation="second"))
        assert (new.outcome, new.seq, new.created) == ("appended", 1, True)
        assert not (await owner.peer.commit_one(owner.at, consumed=message_ids(owner.at))).committed
        again = await ConversationOwner.of(owner.peer)
        assert (again.at.generation, payloads(again.at)) == ("second", ["start", "[1]"])

    async def test_an_input_that_is_refused_leaves_the_instance_of_a_deleted_journal(self, cluster: Cluster) -> None:
        """The input comes from another sender than the parent (contract: JournalAppend)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.conversation.delete()
        assert (await owner.conversation.append(sender="p")).outcome == "not_parent"
        assert (await owner.peer.info("s")).generation == "generation of s"

    async def test_an_input_for_a_deleted_journal_creates_nothing(self, cluster: Cluster) -> None:
        """Neither journal nor instance, though it has a start, nor does it reach the next journal of the same session
        (contract: JournalAppend.journal_id).
        """
        talk = await Conversation.open(cluster)
        first = (await talk.append()).journal_id
        assert (await talk.append(journal_id=first)).outcome == "appended"
        await talk.provider.delete_instance(["s"], force=True)
        assert (await talk.append(journal_id=first + 1)).outcome == "unknown"
        assert await talk.provider.get_instance(["s"]) == [None]
        assert (await talk.append(journal_id=first, start=new_start(generation="second"))).seq == 3
        await talk.provider.delete_instance(["s"], force=True)
        await talk.delete()
        for fields in ({}, {"sender": "p", "start": new_start(parent="p")}, {"closes": True}, {"start": None}):
            assert (await talk.append(journal_id=first, **fields)).outcome == "unknown"
        assert await talk.journals.get_pending(["s"], limit=1) == [None]
        assert await talk.provider.get_instance(["s"]) == [None]
        assert (await talk.append(text="new")).created
        for fields in ({}, {"start": None}, {"drops": True, "closes": True}, {"message": None}):
            assert (await talk.append(journal_id=first, **fields)).outcome == "unknown"
        assert await talk.texts() == ["new"]
        assert not (await talk.page()).closed

    async def test_one_of_a_batch_is_for_a_deleted_journal(self, cluster: Cluster) -> None:
        """It is refused, and others of the same session are not, whatever their order (contract:
        JournalAppend.journal_id).
        """
        talk = await Conversation.open(cluster)
        gone = (await talk.append()).journal_id
        await talk.delete()
        late, new = new_input("s", "late", journal_id=gone), new_input("s", "new")
        found = await talk.journals.append_journal([late, new, late, new_input("t"), new_input("u", journal_id=gone)])
        assert [appended.outcome for appended in found] == ["unknown", "appended", "unknown", "appended", "unknown"]
        assert await talk.texts() == ["new"]
        assert await talk.provider.get_instance(["u"]) == [None]

    async def test_inputs_race_with_the_end_of_their_journal(self, cluster: Cluster) -> None:
        """None of them recreates it (contract: JournalAppend.journal_id)."""
        talks = [await Conversation.open(cluster) for _ in range(4)]
        for _ in range(10):
            found = (await talks[0].append()).journal_id
            appends = [partial(talk.append, journal_id=found) for talk in talks[1:]]
            await concurrently(talks[0].delete, *appends)
            assert await talks[0].journals.get_pending(["s"], limit=1) == [None]

    async def test_an_id_of_another_orchestration_is_taken(self, cluster: Cluster) -> None:
        """The id of an instance of another name is refused, with and without a journal (contract: AppendOutcome)."""
        talk = await Conversation.open(cluster)
        await talk.provider.create_instance([new_instance("s", name="other")])
        assert (await talk.append()).outcome == "taken"
        assert await talk.journals.read_journal([]) == []
        assert await talk.journals.get_pending(["s"], limit=1) == [None]
        await Conversation(talk.provider, "t").append()
        assert (await Conversation(talk.provider, "t").append(start=new_start(name="other"))).outcome == "taken"

    async def test_only_the_parent_and_clients_append_to_a_child(self, cluster: Cluster) -> None:
        """A sender that is not the parent is refused, also by a start with another parent (contract:
        JournalAppend.sender).
        """
        talk = await Conversation.open(cluster)
        assert (await talk.append(sender="q", start=new_start(parent="p"))).outcome == "not_parent"
        assert (await talk.append(sender="p")).outcome == "not_parent"
        assert (await talk.append(sender="p", start=new_start(parent="p"))).outcome == "appended"
        assert (await talk.append(sender="q", start=new_start(parent="q"))).outcome == "not_parent"
        assert [(await talk.append(sender=sender)).outcome for sender in ("p", None)] == ["appended"] * 2

    async def test_unread_messages_are_limited(self, cluster: Cluster) -> None:
        """An input whose message finds no room is refused and leaves nothing; the start message counts (contract:
        NewMessage.unread_limit).
        """
        talk = await Conversation.open(cluster)
        batch = [new_input("s", str(number), unread_limit=3) for number in range(3)]
        found = await talk.journals.append_journal(batch)
        assert [appended.outcome for appended in found] == ["appended", "appended", "full"]
        assert (await talk.append(unread_limit=3)).outcome == "full"
        assert (await talk.append(unread_limit=3, message=None)).outcome == "appended"
        assert (await talk.append(unread_limit=3, event_id="e")).outcome == "full"
        assert (await talk.append(event_id="e")).outcome == "appended"
        assert await talk.texts() == ["0", "1", "hello", "hello"]
        await talk.provider.set_quotas(Quotas(unread_events=2))
        assert (await talk.append(unread_limit=100)).outcome == "full"

    async def test_quotas_are_kept(self, cluster: Cluster) -> None:
        """Beyond the number of instances, or the bytes of one, inputs are refused, and the rest of the batch is not
        (contract: Quotas).
        """
        talk = await Conversation.open(cluster)
        await talk.append()
        await talk.provider.set_quotas(Quotas(instances=3))
        found = await talk.journals.append_journal([new_input(name) for name in ("t", "u", "t", "s")])
        assert [appended.outcome for appended in found] == ["appended", "over_quota", "appended", "appended"]
        assert await talk.provider.get_instance(["u"]) == [None]
        assert await talk.journals.get_pending(["u"], limit=1) == [None]
        await talk.provider.set_quotas(Quotas(instance_bytes=100))
        assert (await talk.append(unread_limit=100, message="x" * 101)).outcome == "over_quota"
        assert (await talk.append(unread_limit=100, message="x")).outcome == "appended"
        large = new_start("v", start="x" * 101)
        assert (await Conversation(talk.provider, "v").append(start=large)).outcome == "over_quota"
        await talk.provider.set_quotas(Quotas())

    async def test_the_checks_have_an_order(self, cluster: Cluster) -> None:
        """The reported reason is the first in the documented order (contract: JournalAppend)."""
        talk = await Conversation.open(cluster)
        await talk.append(event_id="e")
        wrong = {"sender": "q", "start": new_start(name="other"), "unread_limit": 0}
        assert (await talk.append(**wrong)).outcome == "not_parent"
        del wrong["sender"]
        assert (await talk.append(**wrong)).outcome == "taken"
        del wrong["start"]
        assert (await talk.append(**wrong)).outcome == "full"

    # -- beside other verbs

    async def test_an_input_ends_no_epoch(self, cluster: Cluster) -> None:
        """The rows of the session and of the record do not change (contract: append_journal)."""
        await cluster.holder("a", "s")
        before = await cluster.session("s")
        talk = await Conversation.open(cluster)
        await talk.append()
        await talk.append(closes=True, drops=True)
        after = await cluster.session("s")
        assert (after.epoch, after.worker_id, after.held) == (before.epoch, "a", True)
        assert await (await cluster.states()).load("s") is None

    async def test_an_input_waits_with_other_messages(self, cluster: Cluster) -> None:
        """Inputs and messages reach the instance in the order in which they were sent (contract: append_journal)."""
        talk, a = await Conversation.open(cluster), await cluster.worker("a")
        await talk.append()
        await talk.provider.send_message([NewMessage(instance_id="s", payload="between")])
        await talk.append()
        (item,) = await a.take_instances()
        assert payloads(item) == ["start", "[1]", "between", "[2]"]
        await a.go_on(item, consumed=message_ids(item))
        assert await a.take_instances() == []

    async def test_a_suspended_instance_takes_inputs(self, cluster: Cluster) -> None:
        """They wait until it is resumed (contract: suspended instance)."""
        owner = await ConversationOwner.begin(cluster)
        assert await owner.peer.suspend(owner.at)
        assert (await owner.conversation.append()).outcome == "appended"
        assert await owner.peer.take_instances() == []
        assert await owner.peer.provider.resume_instance(["s"]) == ["resumed"]
        (item,) = await owner.peer.take_instances()
        assert payloads(item) == ["start", "[1]", "[2]"]

    async def test_notes_are_no_inputs(self, cluster: Cluster) -> None:
        """A note does not wait for a wake (contract: NewEntry.is_input)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        note = JournalAppend(session_id="s", kind=KIND, entry=output(wake_id="w"), message=None)
        assert (await journals_of(talk.provider).append_journal([note]))[0].seq == 2
        assert [entry.seq for entry in (await talk.pending()).inputs] == [1]
