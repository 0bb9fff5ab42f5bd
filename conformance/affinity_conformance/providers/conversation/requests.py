"""Requests and revisits of journals: which answer resolves a request, and what a wake finds due."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from affinity.conversation.journal import Answer, Appended, NewRequest, NewRevisit
from affinity.conversation.store.contract import journals_of
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import count_rows, new_instance
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import Conversation, ConversationOwner, new_input, output


def new_request(request_id: str = "r", **fields: Any) -> NewRequest:
    """A request for a confirmation."""
    return NewRequest(**{"request_id": request_id, "kind": "confirm", "payload": '{"tool":"refund"}', **fields})


def new_revisit(key: str = "k", delay: float = 60.0, **fields: Any) -> NewRevisit:
    """A later wake."""
    return NewRevisit(key=key, delay=delay, **fields)


async def answer(talk: Conversation, request_id: str = "r", kind: str = "confirm", **fields: Any) -> Appended:
    """Answer a request."""
    wake_id = fields.pop("wake_id", None)
    return await talk.append(answers=Answer(request_id=request_id, kind=kind, wake_id=wake_id), **fields)


class JournalRequestRules(Rules):
    """Requests (contract: NewRequest, Answer) and revisits (contract: NewRevisit)."""

    async def test_a_request_is_pending_until_it_is_answered(self, cluster: Cluster) -> None:
        """It is found by readers and wakes; its answer is an input, and resolves it (contract: NewRequest)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(requests=[new_request("b"), new_request("a", kind="tool", payload="2")])
        (first, second) = await talk.requests()
        assert (first.request_id, first.kind, first.payload, first.wake_id) == (
            "b", "confirm", '{"tool":"refund"}', "w1"
        )  # fmt: skip
        assert (second.request_id, second.kind, second.expires_at, second.expired) == ("a", "tool", None, False)
        assert list((await talk.pending()).requests) == [first, second]
        assert (await answer(talk, "a", "tool")).outcome == "appended"
        assert await talk.requests() == [first]
        assert len((await talk.pending()).inputs) == 1

    async def test_an_answer_matches_a_pending_request(self, cluster: Cluster) -> None:
        """Id, kind and, if named, wake must be right; a refused answer changes nothing (contract: Answer)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        assert (await answer(talk)).outcome == "not_pending"
        await owner.commit_wake(requests=[new_request()])
        before = await talk.page()
        assert (await answer(talk, "other")).outcome == "not_pending"
        assert (await answer(talk, kind="tool")).outcome == "not_pending"
        assert (await answer(talk, wake_id="w0")).outcome == "not_pending"
        assert (await answer(Conversation(talk.provider, "t"))).outcome == "not_pending"
        assert await talk.page() == before
        assert (await answer(talk, wake_id="w1")).outcome == "appended"
        assert (await answer(talk)).outcome == "not_pending"

    async def test_a_refused_answer_takes_nothing_of_an_instance_that_was_there(self, cluster: Cluster) -> None:
        """The journal that it would begin is gone; the instance, of no conversation before, keeps its messages
        (contract: append_journal).
        """
        provider = await cluster.open()
        assert await provider.create_instance([new_instance("s")]) == [True]
        before = await count_rows(provider)
        assert before["messages"] == 1
        assert (await answer(Conversation(provider))).outcome == "not_pending"
        assert await count_rows(provider) == before
        assert await journals_of(provider).get_pending(["s"], limit=1) == [None]

    async def test_of_concurrent_answers_one_is_taken(self, cluster: Cluster) -> None:
        """One is appended, the others are refused, in one batch too (contract: Answer)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake(requests=[new_request(), new_request("q")])
        talks = [await Conversation.open(cluster) for _ in range(4)]
        found = await concurrently(*(lambda talk=talk: answer(talk) for talk in talks))
        assert sorted(appended.outcome for appended in found) == [
            "appended",
            "not_pending",
            "not_pending",
            "not_pending",
        ]
        batch = [new_input("s", answers=Answer(request_id="q", kind="confirm"))] * 2
        found = list(await talks[0].journals.append_journal(batch))
        assert [appended.outcome for appended in found] == ["appended", "not_pending"]

    async def test_a_repeated_answer_is_the_first_one(self, cluster: Cluster) -> None:
        """A sender that repeats after a lost reply learns the number of its answer (contract: JournalAppend)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake(requests=[new_request()])
        first = await answer(owner.conversation, event_id="yes")
        again = await answer(owner.conversation, event_id="yes")
        assert (again.outcome, again.seq) == ("repeated", first.seq)

    async def test_a_late_answer_reaches_no_other_request(self, cluster: Cluster) -> None:
        """A pending request keeps its id; an answer that names the wake of the request does not reach a later request
        of that id (contract: NewRequest, Answer).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(requests=[new_request()])
        await owner.commit_wake(requests=[new_request(payload="second")], wake_id="w2")
        (request,) = await talk.requests()
        assert (request.payload, request.wake_id) == ('{"tool":"refund"}', "w1")
        await owner.commit_wake(ended_requests=["r"], requests=[new_request(payload="third")], wake_id="w3")
        (request,) = await talk.requests()
        assert (request.payload, request.wake_id) == ("third", "w3")
        assert (await answer(talk, wake_id="w1")).outcome == "not_pending"
        assert (await answer(talk, wake_id="w3")).outcome == "appended"

    async def test_an_interrupt_drops_requests_and_revisits(self, cluster: Cluster) -> None:
        """They are gone with the input that drops them; a late answer is refused (contract: JournalAppend.drops)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(requests=[new_request()], revisits=[new_revisit(delay=0.0)])
        assert (await talk.append(drops=True, entry_kind="user.interrupt")).outcome == "appended"
        assert [await talk.requests(), await talk.revisits()] == [[], []]
        work = await talk.pending()
        assert [work.requests, work.due, work.next_due] == [[], [], None]
        assert (await answer(talk)).outcome == "not_pending"

    async def test_an_interrupt_in_a_batch_drops_what_it_finds(self, cluster: Cluster) -> None:
        """An answer before it in the batch is taken, one behind it refused (contract: append_journal)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake(requests=[new_request("q"), new_request("r")])
        batch = [
            new_input("s", answers=Answer(request_id="q", kind="confirm")),
            new_input("s", drops=True),
            new_input("s", answers=Answer(request_id="r", kind="confirm")),
        ]
        found = await owner.conversation.journals.append_journal(batch)
        assert [appended.outcome for appended in found] == ["appended", "appended", "not_pending"]

    async def test_a_wake_that_has_not_seen_an_interrupt_asks_for_nothing(self, cluster: Cluster) -> None:
        """Requests and revisits of a wake are left out if an input that drops them came while it ran. Requests and
        revisits of the wake that has processed the input are kept (contract: JournalWrite).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        write = await owner.new_write(entries=[output()], requests=[new_request()], revisits=[new_revisit()])
        await talk.append(drops=True)
        assert (await owner.commit(write)).committed
        assert [await talk.requests(), await talk.revisits()] == [[], []]
        assert len(await talk.numbers()) == 3
        await owner.commit_wake(requests=[new_request()], revisits=[new_revisit()], wake_id="w2")
        assert [len(await talk.requests()), len(await talk.revisits())] == [1, 1]

    async def test_a_request_expires(self, cluster: Cluster) -> None:
        """An expired request takes no answer. A wake is due, which resolves it (contract: NewRequest)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(requests=[new_request(expires_in=60.0), new_request("q")])
        work = await talk.pending()
        assert work.next_due is not None
        assert 50 < work.next_due <= 60
        await cluster.advance(61)
        assert (await answer(talk)).outcome == "not_pending"
        assert [request.request_id for request in await talk.requests()] == ["q"]
        work = await talk.pending()
        assert [(request.request_id, request.expired) for request in work.requests] == [("r", True), ("q", False)]
        assert work.next_due is None
        await owner.commit_wake(ended_requests=["r"], wake_id="w2")
        assert [request.request_id for request in (await talk.pending()).requests] == ["q"]

    async def test_revisits_are_deduplicated_by_key(self, cluster: Cluster) -> None:
        """A pending revisit keeps its key; the key is free again when a wake has processed the revisit (contract:
        NewRevisit).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(revisits=[new_revisit("k", 60, reason="first"), new_revisit("k", 1)])
        await owner.commit_wake(revisits=[new_revisit("k", 1, reason="second"), new_revisit("l", 30)], wake_id="w2")
        found = await talk.revisits()
        assert [(revisit.key, revisit.reason, revisit.wake_id) for revisit in found] == [
            ("l", "", "w2"),
            ("k", "first", "w1"),
        ]
        assert (await talk.pending()).revisits == found
        again = new_revisit("k", 90, reason="third")
        await owner.commit_wake(ended_revisits=["k", "none"], revisits=[again], wake_id="w3")
        assert [(revisit.key, revisit.reason) for revisit in await talk.revisits()] == [("l", ""), ("k", "third")]

    async def test_wakes_race_for_one_revisit(self, cluster: Cluster) -> None:
        """Two wakes of one watermark commit at the same time: one adds the revisit, and both commit (contract:
        NewRevisit).
        """
        one = await ConversationOwner.begin(cluster)
        await (await Conversation.open(cluster, "other")).append()
        other = await ConversationOwner.take(cluster, "other")
        for number in range(10):
            write = await one.new_write(processed=0, revisits=[new_revisit(f"k{number}", 60)], wake_id="w1")
            results = await concurrently(
                partial(one.commit, write), partial(other.commit, replace(write, wake_id="w2"))
            )
            assert [result.committed for result in results] == [True, True]
            assert len(await one.conversation.revisits()) == number + 1

    async def test_due_revisits_come_by_priority_and_time(self, cluster: Cluster) -> None:
        """Due revisits reach the wake, the greatest priority first, then the earliest; the next one is announced
        (contract: PendingWork).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        revisits = [
            new_revisit("late", 20),
            new_revisit("early", 10, reason="why", note='{"a": 1}'),
            new_revisit("urgent", 30, priority=2),
            new_revisit("low", 5, priority=-1),
            new_revisit("far", 1000),
        ]
        await owner.commit_wake(revisits=revisits)
        work = await talk.pending()
        by_time = ["low", "early", "late", "urgent", "far"]
        assert (work.due, [revisit.key for revisit in work.revisits]) == ([], by_time)
        assert work.next_due is not None
        assert 0 < work.next_due <= 5
        await cluster.advance(40)
        work = await talk.pending()
        assert [revisit.key for revisit in work.due] == ["urgent", "early", "late", "low"]
        assert [revisit.key for revisit in work.revisits] == by_time
        assert (work.due[1].reason, work.due[1].note, work.due[1].priority) == ("why", '{"a": 1}', 0)
        assert work.next_due is not None
        assert 900 < work.next_due <= 960
        await owner.commit_wake(ended_revisits=[revisit.key for revisit in work.due], wake_id="w2")
        work = await talk.pending()
        assert (work.due, [revisit.key for revisit in work.revisits]) == ([], ["far"])

    async def test_a_refused_wake_keeps_its_revisits(self, cluster: Cluster) -> None:
        """Revisits that were due stay when the commit is refused (contract: JournalWrite)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake(revisits=[new_revisit(delay=0.0)])
        write = await owner.new_write(base=0, ended_revisits=["k"], wake_id="w2")
        assert not (await owner.commit(write)).committed
        assert [revisit.key for revisit in (await owner.conversation.pending()).due] == ["k"]
