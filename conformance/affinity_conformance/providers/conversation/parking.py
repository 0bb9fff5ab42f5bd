"""Parked work items: kept out of the queue until an input of their journal queues them in place of a message."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from affinity.conversation.journal import PARKED_MARK, Answer, Appended, JournalAppend, NewEntry, NewRequest
from affinity.orchestration.gates import LimitUse, gate_of
from affinity.provider.contract import (
    FINISHED,
    Hint,
    HintSource,
    InstanceUpdate,
    NewWorkItem,
    OrchestrationItem,
    Placed,
    Quotas,
    WorkAck,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import TIMEOUTS, count_rows, message_ids, payloads, turn, work_item
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import (
    Conversation,
    ConversationOwner,
    new_input,
    new_start,
    output,
)
from affinity_conformance.providers.kernel.resets import reset

PARKED: Final = Placed(item=None, holder=None, parked=True)
ANSWER: Final = Answer(request_id="q", kind="confirm")
PATIENCE: Final = 30.0
"""Seconds of real time; a wait ends when the hint comes."""
QUEUED: Final = Placed(item=None, holder=None)
LIMITED: Final = gate_of([LimitUse("tenant", "acme")])
MARKED: Final[dict[str, Any]] = {"entry": None, "message": PARKED_MARK}
"""An append that unparks nothing, and whose message says whether there is a parked item."""


class ParkingRules(Rules):
    """`NewWorkItem.parked`, and the appends that unpark."""

    async def test_a_parked_item_is_no_work(self, cluster: Cluster) -> None:
        """It is not fetched, listed or counted, and holds no session (contract: NewWorkItem.parked)."""
        owner = await ConversationOwner.begin(cluster)
        before = await count_rows(owner.peer.provider)
        assert await _park(owner) == PARKED
        await cluster.pass_time(10_000)
        assert await owner.peer.take_all() == []
        assert await owner.peer.provider.list_work_items("s", 10) == []
        assert (await count_rows(owner.peer.provider))["work_items"] == before["work_items"]
        assert await cluster.sessions() == {}
        assert (await owner.peer.fetch()).next_due is None

    async def test_an_input_unparks_it(self, cluster: Cluster) -> None:
        """It is queued as if it were new, visible now, in place of the message (contract: JournalAppend.message)."""
        owner = await ConversationOwner.begin(cluster)
        item = _new_item(owner)
        assert await _park(owner, item) == PARKED
        await cluster.advance(1_000)
        appended = await owner.conversation.append()
        assert (appended.outcome, appended.seq, appended.created) == ("appended", 2, False)
        assert (appended.unparked, appended.holder) == (True, None)
        (listed,) = await owner.peer.provider.list_work_items("s", 10)
        assert (listed.key, listed.state, listed.session_id, listed.attempts) == (item.key, "waiting", "s", 0)
        other = await cluster.worker("other")
        taken = await other.take_one()
        assert (taken.lock.key, taken.name, taken.payload, taken.session_id) == (item.key, "work", "input", "s")
        assert (taken.attempts, taken.failures, taken.unknown_for, taken.ordered) == (1, 0, None, False)
        assert taken.queued_for < 500
        assert taken.session_epoch == (await cluster.session("s")).epoch
        assert await _messages(owner) == []

    async def test_it_goes_to_the_holder_of_its_session(self, cluster: Cluster) -> None:
        """It goes there like a new item, and the result names the holder (contract: Appended.holder)."""
        owner = await ConversationOwner.begin(cluster)
        b = await cluster.holder("b", "s")
        assert await _park(owner) == PARKED
        appended = await owner.conversation.append()
        assert (appended.unparked, appended.holder) == (True, "b")
        assert await owner.peer.take_all() == []
        assert (await b.take_one()).session_id == "s"

    async def test_an_append_notifies_the_worker_that_its_caller_expects(self, cluster: Cluster) -> None:
        """The worker is notified if the item is queued, also if another one holds the session now, which the result
        names (contract: append_journal).
        """
        owner = await ConversationOwner.begin(cluster)
        peers = {name: await cluster.worker(name) for name in "bc"}
        await cluster.use(peers["b"], "s")
        for expected in ("b", "c"):
            await _park(owner, wake_id=f"before {expected}")
            other = peers[expected]
            async with other.provider.hints(other.identity) as source:
                await _drain(source)
                notify: dict[str | None, Hint] = {expected: Hint(only_own=True)}
                (appended,) = await owner.conversation.journals.append_journal([new_input()], notify=notify)
                assert (appended.unparked, appended.holder) == (True, "b")
                await _assert_hinted(source)
            assert await peers["c"].take_all() == []
            item = await peers["b"].take_one()
            await _go_on(owner, acks=[item.lock])

    async def test_an_append_that_is_refused_may_notify_a_worker(self, cluster: Cluster) -> None:
        """That worker finds nothing; the outcome of the append is the same (contract: append_journal)."""
        b = await cluster.worker("b")
        talk = await Conversation.open(cluster)
        async with b.provider.hints(b.identity) as source:
            await _drain(source)
            refused = new_input(start=None)
            (appended,) = await talk.journals.append_journal([refused], notify={"b": Hint(only_own=True)})
            assert appended.outcome == "unknown"
            await _assert_hinted(source)
        assert await b.take_all() == []

    async def test_it_goes_where_its_session_will_be(self, cluster: Cluster) -> None:
        """A planned move sends it to the other worker, like a new item (contract: PlannedMove)."""
        owner = await ConversationOwner.begin(cluster)
        b, c = await cluster.holder("b", "s"), await cluster.worker("c")
        await _park(owner)
        assert await b.plan("s", "c") == "planned"
        assert (await owner.conversation.append()).holder == "c"
        assert await b.take_all() == []
        assert await c.take_moved("s") == ["s"]
        assert (await c.take_one()).session_id == "s"

    async def test_where_nothing_is_parked_a_message_is_sent(self, cluster: Cluster) -> None:
        """An item that was unparked is not unparked again, also when it is gone (contract: JournalAppend.message)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        assert (await owner.conversation.append()).unparked
        assert not (await owner.conversation.append()).unparked
        item = await owner.peer.take_one()
        await _go_on(owner, acks=[item.lock])
        later = await owner.conversation.append()
        assert (later.outcome, later.seq, later.unparked, later.holder) == ("appended", 4, False, None)
        assert await _messages(owner) == ["[3]", "[4]"]
        assert await owner.peer.take_all() == []

    async def test_what_is_no_input_unparks_nothing(self, cluster: Cluster) -> None:
        """Its message is sent, and says whether an item is parked (contract: PARKED_MARK)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.append(**MARKED)
        await _park(owner)
        note = NewEntry(kind="note", payload="null")
        appends: list[dict[str, Any]] = [
            {"entry": note, "message": f'["$SEQ", {PARKED_MARK}, {PARKED_MARK}]'},
            {"entry": note, "message": None},
            MARKED,
            {**MARKED, "closes": True},
        ]
        for fields in appends[:3]:
            assert not (await talk.append(**fields)).unparked
        assert (await talk.append(message=f"[{PARKED_MARK}]")).unparked
        assert not (await talk.append(message=f"[{PARKED_MARK}]")).unparked
        for fields in appends[2:]:
            assert (await talk.append(**fields)).outcome == "appended"
        assert await _messages(owner) == ["false", "[2, true, true]", "true", "[false]", "false", "false"]

    @pytest.mark.parametrize("fields", [{}, {"start": None}], ids=["start", "input"])
    @pytest.mark.parametrize(("limit", "refusal"), [(0, "full"), (100, "over_quota")])
    async def test_limits_of_messages_refuse_no_input_that_wakes(
        self, cluster: Cluster, fields: dict[str, Any], limit: int, refusal: str
    ) -> None:
        """Its message is not sent (contract: JournalAppend.message)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        if refusal == "over_quota":
            await owner.peer.provider.set_quotas(Quotas(instance_bytes=1))
        assert (await owner.conversation.append(unread_limit=limit, **fields)).unparked
        assert (await owner.conversation.append(unread_limit=limit, **fields)).outcome == refusal

    async def test_an_input_without_a_message_wakes_nothing(self, cluster: Cluster) -> None:
        """None means that (contract: JournalAppend.message)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        assert not (await owner.conversation.append(message=None)).unparked
        assert await owner.peer.take_all() == []

    async def test_a_start_that_finds_it_wakes_it(self, cluster: Cluster) -> None:
        """It is queued with ``start`` and without; an input that is refused or repeated does not queue it (contract:
        JournalAppend).
        """
        owner = await ConversationOwner.begin(cluster, event_id="e")
        talk = owner.conversation
        await _park(owner)
        outcomes = [
            await talk.append(event_id="e"),
            await talk.append(event_id="e", start=None),
            await talk.append(kind="of another kind"),
            await talk.append(kind="of another kind", start=None),
            await talk.append(answers=ANSWER),
        ]
        assert [appended.outcome for appended in outcomes] == ["repeated"] * 2 + ["other_kind"] * 2 + ["not_pending"]
        assert not any(appended.unparked for appended in outcomes)
        await talk.append(**MARKED)
        assert (await talk.append(event_id="f", start=None)).unparked
        repeated = await talk.append(event_id="f")
        assert (repeated.outcome, repeated.unparked) == ("repeated", False)
        assert await _messages(owner) == ["true"]

    @pytest.mark.parametrize("fields", [{"drops": True}, {"closes": True}, {"answers": ANSWER}])
    async def test_inputs_of_every_sort_wake_it(self, cluster: Cluster, fields: dict[str, Any]) -> None:
        """An input that interrupts, an input that closes, and an answer queue it (contract: JournalAppend.message)."""
        owner = await ConversationOwner.begin(cluster)
        request = NewRequest(request_id="q", kind="confirm", payload="1")
        await _park(owner, requests=[request])
        assert (await owner.conversation.append(**fields)).unparked
        assert (await owner.peer.take_one()).session_id == "s"
        assert await _messages(owner) == []

    async def test_a_suspended_instance_does_not_keep_it_parked(self, cluster: Cluster) -> None:
        """An input unparks it, and messages wait (contract: NewWorkItem.parked)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        assert await owner.peer.suspend(owner.at)
        await owner.conversation.append(**MARKED)
        assert (await owner.conversation.append()).unparked
        assert (await owner.peer.take_one()).session_id == "s"

    # -- the commit

    async def test_pending_inputs_let_nothing_park(self, cluster: Cluster) -> None:
        """An input behind the watermark after the commit, the wake's own included: the item is queued where its
        session is, unlocked (contract: NewWorkItem.parked).
        """
        owner = await ConversationOwner.begin(cluster)
        b = await cluster.holder("b", "s")
        write = await owner.new_write()
        await owner.conversation.append()
        result = await owner.commit(write, work_items=[replace(_new_item(owner), lock_here=True)])
        assert list(result.placed) == [Placed(item=None, holder="b")]
        assert await owner.peer.take_all() == []
        await b.ack(await b.take_one())
        assert await _park(owner, entries=[output(is_input=True)]) == Placed(item=None, holder="b")
        assert len(await b.take_all()) == 1
        assert not (await owner.conversation.append()).unparked

    async def test_a_turn_without_a_wake_parks(self, cluster: Cluster) -> None:
        """The item is parked only if its journal has no input behind the watermark (contract: NewWorkItem.parked)."""
        owner = await ConversationOwner.begin(cluster)
        assert await _go_on(owner, _new_item(owner)) == QUEUED
        await owner.commit_wake()
        assert await _go_on(owner, _new_item(owner)) == PARKED

    async def test_without_a_journal_nothing_is_parked(self, cluster: Cluster) -> None:
        """Nothing would unpark it (contract: NewWorkItem.parked)."""
        a, at = await cluster.owner("a", "i")
        result = await a.commit_one(at, work_items=[replace(work_item(at, 1, "s"), parked=True)])
        assert list(result.placed) == [QUEUED]
        assert (await a.take_one()).session_id == "s"

    async def test_inputs_that_a_fork_has_from_its_base_are_pending(self, cluster: Cluster) -> None:
        """They are behind its watermark, so it is not parked (contract: JournalCreation)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        await talk.fork("fork", 1, message="[]")
        owner = await ConversationOwner.take(cluster, "fork")
        assert await _go_on(owner, _new_item(owner)) == QUEUED
        await owner.commit_wake()
        assert await _go_on(owner, _new_item(owner)) == PARKED
        assert (await owner.conversation.append()).unparked

    async def test_a_refused_turn_parks_nothing(self, cluster: Cluster) -> None:
        """Neither does it where its write is refused; what was parked before stays so (contract: Turn)."""
        owner = await ConversationOwner.begin(cluster)
        write = await owner.new_write()
        item = _new_item(owner)
        assert not (await owner.commit(replace(write, base=7), work_items=[item])).committed
        assert await _go_on(owner) is None
        assert (await owner.commit(write, work_items=[item])).committed
        other = replace(item, payload="other")
        assert not (await owner.commit(write, work_items=[other])).committed
        await owner.conversation.append()
        assert (await owner.peer.take_one()).payload == "input"

    async def test_the_last_item_is_the_one(self, cluster: Cluster) -> None:
        """An instance has one such item: it replaces an item that is parked, an item that was queued, and an earlier
        item of its turn (contract: NewWorkItem.parked).
        """
        owner = await ConversationOwner.begin(cluster)
        await _park(owner, _new_item(owner, payload="first"))
        assert await _go_on(owner, _new_item(owner, payload="second")) == PARKED
        assert (await owner.conversation.append()).unparked
        item = await owner.peer.take_one()
        assert item.payload == "second"
        write = await owner.new_write()
        pair = [_new_item(owner, payload="third"), _new_item(owner, 1, payload="fourth")]
        result = await owner.commit(write, acks=[item.lock], work_items=pair)
        assert result.placed[-1] == PARKED
        assert (await owner.conversation.append()).unparked
        assert [item.payload for item in await owner.peer.take_all()] == ["fourth"]

    async def test_parked_items_are_committed_beside_others(self, cluster: Cluster) -> None:
        """The places are in the order of the items (contract: TurnResult.placed)."""
        owner = await ConversationOwner.begin(cluster)
        here = replace(work_item(owner.at, 10), lock_here=True)
        items = [here, _new_item(owner), replace(work_item(owner.at, 11, "t"), ordered=True)]
        result = await owner.commit(await owner.new_write(), work_items=items)
        first, second, third = result.placed
        assert first.item is not None
        assert (first.item.lock.key, second, third) == (here.key, PARKED, QUEUED)
        assert await owner.peer.check(first.item) == [True]

    async def test_turns_of_a_batch_park_their_items(self, cluster: Cluster) -> None:
        """Each by its own journal (contract: commit_turn)."""
        owners = await _owners(cluster, "u", "s", "t")
        await owners["t"].conversation.append()
        turns = [turn(owner.at, work_items=[_new_item(owner)]) for owner in owners.values()]
        results = await owners["s"].peer.commit(*turns)
        assert [list(result.placed) for result in results] == [[PARKED], [PARKED], [QUEUED]]
        outcomes = [await owner.conversation.append() for owner in owners.values()]
        assert [appended.unparked for appended in outcomes] == [True, True, False]

    # -- gates

    @pytest.mark.parametrize("path", ["input", "batch", "answer"])
    async def test_an_unparked_item_with_limits_waits_at_its_gate(self, cluster: Cluster, path: str) -> None:
        """No worker is named, and none gets it (contract: NewWorkItem.gate). A second input unparks nothing."""
        owner = await ConversationOwner.begin(cluster)
        await cluster.holder("b", "s")
        requests = [NewRequest(request_id="q", kind="confirm", payload="{}")]
        await _park(owner, _new_item(owner, gate=LIMITED), requests=requests if path == "answer" else [])
        append = new_input("s", answers=ANSWER if path == "answer" else None)
        batch = [append, new_input("new")] if path == "batch" else [append]
        appended = (await owner.conversation.journals.append_journal(batch))[0]
        assert appended.outcome == "appended"
        assert (appended.unparked, appended.holder, appended.is_gated) == (True, None, True)
        (listed,) = await owner.peer.provider.list_work_items("s", 10)
        assert (listed.state, listed.session_id) == ("limited", "s")
        assert await owner.peer.take_all() == []
        assert not (await owner.conversation.append()).unparked

    async def test_an_unparked_item_with_a_priority_goes_first(self, cluster: Cluster) -> None:
        """Among those that a worker may take, whichever way they were parked (contract: Gate.head_start)."""
        names = ["a", "b", "c", "d"]
        owners = await _owners(cluster, *names)
        await _go_on(owners["a"], _new_item(owners["a"]))
        await _go_on(owners["b"], _new_item(owners["b"], gate=gate_of([], 1)))
        for name, priority in (("c", 0), ("d", 2)):
            owner = owners[name]
            await owner.conversation.append()
            await _park(owner, _new_item(owner, gate=gate_of([], priority)), wake_id=f"second of {name}")
        await owners["a"].conversation.journals.append_journal([new_input("c", start=None)])
        batch = [new_input(name, start=None) for name in ("a", "b", "d")]
        outcomes = await owners["a"].conversation.journals.append_journal(batch)
        assert {(appended.unparked, appended.is_gated) for appended in outcomes} == {(True, False)}
        taken = await (await cluster.worker("other")).take_all()
        assert [item.lock.key.instance_id for item in taken] == ["d", "b", "c", "a"]

    async def test_the_next_item_has_the_gate_of_its_own_turn(self, cluster: Cluster) -> None:
        """An item takes the place of the former one in all that it has (contract: NewWorkItem.parked)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner, _new_item(owner, gate=LIMITED))
        assert (await owner.conversation.append()).unparked
        (listed,) = await owner.peer.provider.list_work_items("s", 10)
        await _go_on(owner, cancel_activities=[listed.key.activity_id])
        await _park(owner, wake_id="second")
        assert (await owner.conversation.append()).unparked
        assert (await owner.peer.take_one()).limited is False

    # -- its end

    async def test_an_item_is_cancelled(self, cluster: Cluster) -> None:
        """It is cancelled while it is parked, when it is queued, and in its own turn (contract:
        Turn.cancel_activities).
        """
        owner = await ConversationOwner.begin(cluster)
        item = _new_item(owner)
        await _park(owner, item)
        await _go_on(owner, cancel_activities=[item.key.activity_id])
        assert not (await owner.conversation.append()).unparked
        await owner.commit_wake()
        item = _new_item(owner)
        assert await _go_on(owner, item) == PARKED
        assert (await owner.conversation.append()).unparked
        await _go_on(owner, cancel_activities=[item.key.activity_id])
        await owner.commit_wake()
        item = _new_item(owner)
        assert not (await _go_on(owner, item, cancel_activities=[item.key.activity_id]) or QUEUED).parked
        assert not (await owner.conversation.append()).unparked
        assert await owner.peer.take_all() == []

    async def test_the_next_item_comes_with_the_end_of_the_last(self, cluster: Cluster) -> None:
        """A turn cancels a parked item, and parks another (contract: Turn.cancel_activities)."""
        owner = await ConversationOwner.begin(cluster)
        first = _new_item(owner)
        await _park(owner, first)
        second = _new_item(owner)
        assert await _go_on(owner, second, cancel_activities=[first.key.activity_id, 1_000]) == PARKED
        assert (await owner.conversation.append()).unparked
        assert (await owner.peer.take_one()).lock.key == second.key

    async def test_it_ends_with_its_execution(self, cluster: Cluster) -> None:
        """The next execution gets a message, and its item takes the place of the old one (contract:
        NewWorkItem.parked).
        """
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        await _go_on(owner, update=InstanceUpdate(status="running", continued=True))
        owner.at = replace(owner.at, execution_id=2, event_count=0)
        await owner.conversation.append(**MARKED)
        assert not (await owner.conversation.append()).unparked
        assert await owner.peer.take_all() == []
        await owner.commit_wake()
        assert await _messages(owner) == ["false", "[2]"]
        assert await _go_on(owner, _new_item(owner)) == PARKED
        assert (await owner.conversation.append()).unparked

    @pytest.mark.parametrize("status", sorted(FINISHED))
    async def test_it_ends_with_its_instance(self, cluster: Cluster, status: Any) -> None:
        """An instance that has ended gets no work, not even from the turn that ends it (contract: Turn.update)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        await _go_on(owner, _new_item(owner), update=InstanceUpdate(status=status))
        assert (await owner.conversation.append()).outcome == "closed"
        assert await owner.peer.take_all() == []

    async def test_an_execution_that_ends_takes_its_items_along(self, cluster: Cluster) -> None:
        """Items that its last turn would park are not queued, though inputs are pending (contract: NewWorkItem)."""
        owner = await ConversationOwner.begin(cluster)
        over = InstanceUpdate(status="running", continued=True)
        assert await _go_on(owner, _new_item(owner), update=over) == QUEUED
        assert await owner.peer.take_all() == []
        assert not (await owner.conversation.append()).unparked

    async def test_it_is_not_that_of_another_generation(self, cluster: Cluster) -> None:
        """It is gone with its instance; another one of the same id gets messages (contract: NewWorkItem.parked)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        provider = owner.peer.provider
        assert list(await provider.delete_instance(["s"], force=True)) == ["deleted"]
        again = await owner.conversation.append(start=new_start(generation="another"))
        assert (again.outcome, again.unparked) == ("appended", False)
        assert await owner.peer.take_all() == []
        owner = await ConversationOwner.of(owner.peer)
        assert "start" in payloads(owner.at)
        await _park(owner)
        assert (await owner.conversation.append()).unparked

    async def test_another_journal_does_not_queue_it(self, cluster: Cluster) -> None:
        """It goes with its instance, which the new journal does not take over (contract: JournalStart)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        assert await owner.conversation.delete()
        again = await owner.conversation.append()
        assert (again.created, again.unparked) == (True, False)
        assert await owner.peer.take_all() == []

    async def test_a_reset_ends_it(self, cluster: Cluster) -> None:
        """Its execution is over (contract: Reset)."""
        owner = await ConversationOwner.begin(cluster)
        await _park(owner)
        assert await reset(owner.peer, owner.at, 1)
        assert not (await owner.conversation.append()).unparked
        assert await owner.peer.take_all() == []

    # -- several appends

    async def test_of_one_batch_the_first_input_unparks(self, cluster: Cluster) -> None:
        """The others find it queued, and send messages (contract: append_journal)."""
        owner = await ConversationOwner.begin(cluster)
        other = (await _owners(cluster, "t"))["t"]
        await _park(owner)
        await _go_on(other, _new_item(other))
        note = new_input("s", entry=None, message=PARKED_MARK)
        batch = [note, new_input("s"), new_input("t"), new_input("s"), note, new_input("new"), new_input("t")]
        outcomes = await owner.conversation.journals.append_journal(batch)
        assert [appended.unparked for appended in outcomes] == [False, True, True, False, False, False, False]
        assert await _messages(owner) == ["true", "[3]", "false"]
        assert sorted([item.lock.key.instance_id for item in await owner.peer.take_all()]) == ["s", "t"]

    async def test_a_batch_of_inputs_unparks_in_its_order(self, cluster: Cluster) -> None:
        """Plain inputs of different journals, delivered in the order of the batch (contract: append_journal)."""
        names = ["c", "a", "d", "b"]
        owners = await _owners(cluster, *names, "e")
        for name in names:
            await _go_on(owners[name], _new_item(owners[name]))
        batch = [new_input(name, start=None) for name in ("c", "e", "a", "d", "b")]
        outcomes = await owners["a"].conversation.journals.append_journal(batch)
        assert [appended.unparked for appended in outcomes] == [True, False, True, True, True]
        taken = await (await cluster.worker("other")).take_all()
        assert [item.lock.key.instance_id for item in taken] == names

    async def test_a_wake_unparks_the_item_of_another_conversation(self, cluster: Cluster) -> None:
        """Its appends queue the item, by its turn and by its ack (contract: JournalWrite.appends)."""
        owners = await _owners(cluster, "s", "t")
        for number, name in enumerate(("turn", "ack")):
            assert await _go_on(owners["t"], _new_item(owners["t"])) == PARKED
            write = await owners["s"].new_write(appends=[new_input("t", start=None)], wake_id=name)
            if number:
                await cluster.enqueue("s")
                item = await owners["s"].peer.take_one()
                ack = WorkAck(lock=item.lock, message="done", parts=[write])
                identity = owners["s"].peer.identity
                assert await owners["s"].peer.provider.ack_work_item(identity, [ack], TIMEOUTS) == [True]
            else:
                assert (await owners["s"].commit(write)).committed
            assert (await owners["s"].peer.take_one()).lock.key.instance_id == "t"
            assert await _messages(owners["t"]) == []
            await owners["t"].commit_wake(wake_id=name)

    async def test_a_batch_unparks_what_it_parks(self, cluster: Cluster) -> None:
        """The inputs of its wakes come last, whichever turn is first; a second one is a message (contract:
        JournalWrite.appends).
        """
        owners = await _owners(cluster, "b", "a", "c")
        turns = []
        for name, to in (("b", ["a"]), ("a", ["b"]), ("c", ["b"])):
            owner = owners[name]
            write = await owner.new_write(entries=[output()], appends=[new_input(name, start=None) for name in to])
            turns.append(turn(owner.at, parts=[write], work_items=[_new_item(owner)]))
        results = await owners["a"].peer.commit(*turns)
        assert [list(result.placed) for result in results] == [[PARKED]] * 3
        taken = await owners["a"].peer.take_all()
        assert sorted([item.lock.key.instance_id for item in taken]) == ["a", "b"]
        messages = {item.instance_id: payloads(item) for item in await owners["a"].peer.take_instances(100)}
        assert messages == {"b": ["[4]"]}

    async def test_what_comes_back_unparks(self, cluster: Cluster) -> None:
        """An input that replaces a refused append queues the item, also the next item of the same wake (contract:
        JournalAppend.if_refused).
        """
        owner = (await _owners(cluster, "s"))["s"]
        refused = new_input("none", start=None, if_refused=new_input("s", "bounced", start=None))
        write = await owner.new_write(appends=[refused])
        result = await owner.commit(write, work_items=[_new_item(owner)])
        assert list(result.placed) == [PARKED]
        assert (await owner.peer.take_one()).session_id == "s"
        assert await _messages(owner) == []

    # -- races

    async def test_no_input_is_left_with_a_parked_item(self, cluster: Cluster) -> None:
        """Inputs that come while wakes commit: either the item is queued by the commit, or by the input, and each input
        is processed without a message (contract: NewWorkItem.parked).
        """
        names = [f"s{number}" for number in range(3)]
        owners = await _owners(cluster, *names)
        appended: dict[str, list[Appended]] = {name: [] for name in names}
        wakes = dict.fromkeys(names, 0)
        not_parked = dict.fromkeys(names, 0)
        done = anyio.Event()
        for name in names:
            assert await _go_on(owners[name], _new_item(owners[name])) == PARKED

        async def send(name: str) -> None:
            talk = await Conversation.open(cluster, name)
            for number in range(15):
                fields: dict[str, Any] = {"start": None} if number % 2 else {}
                appended[name].append(await talk.append(text=str(number), **fields))

        async def run() -> None:
            worker = await cluster.same_worker(owners[names[0]].peer)
            while True:
                stopping = done.is_set()
                items = await worker.take_all()
                for item in items:
                    name = item.lock.key.instance_id
                    owner = ConversationOwner(worker, Conversation(worker.provider, name), owners[name].at)
                    wakes[name] += 1
                    write = await owner.new_write(entries=[output()], wake_id=f"{name} {wakes[name]}")
                    result = await owner.commit(write, acks=[item.lock], work_items=[_new_item(owner)])
                    assert result.committed, result
                    not_parked[name] += not result.placed[0].parked
                    owners[name].at = owner.at
                if stopping and not items:
                    return
                await anyio.lowlevel.checkpoint()

        async def send_all() -> None:
            await concurrently(*[partial(send, name) for name in names])
            done.set()

        with anyio.fail_after(60):
            await concurrently(send_all, run)
        for name, owner in owners.items():
            assert (await owner.conversation.pending()).inputs == []
            assert wakes[name] == sum([append.unparked for append in appended[name]]) + not_parked[name]
            assert (await owner.conversation.append(start=None)).unparked

    async def test_an_input_races_with_the_end_of_its_item(self, cluster: Cluster) -> None:
        """A turn that cancels it leaves nothing in the queue, in either order (contract: Turn.cancel_activities)."""
        owner = (await _owners(cluster, "s"))["s"]
        sender = await Conversation.open(cluster)
        for _ in range(20):
            item = _new_item(owner)
            assert await _go_on(owner, item) == PARKED
            cancel = partial(_go_on, owner, cancel_activities=[item.key.activity_id])
            await concurrently(cancel, partial(sender.append, start=None))
            assert await owner.peer.take_all() == []
            await owner.commit_wake()

    async def test_an_input_races_with_the_end_of_its_instance(self, cluster: Cluster) -> None:
        """The queue has no work of an instance that has ended, in either order (contract: Turn.update)."""
        names = [f"s{number}" for number in range(10)]
        owners = await _owners(cluster, *names)
        sender = await cluster.open()
        for name, owner in owners.items():
            assert await _go_on(owner, _new_item(owner)) == PARKED
            end = partial(_go_on, owner, update=InstanceUpdate(status="completed"))
            await concurrently(end, partial(Conversation(sender, name).append, start=None))
        assert await next(iter(owners.values())).peer.take_all() == []


def _new_item(owner: ConversationOwner, behind: int = 0, **fields: Any) -> NewWorkItem:
    """An item of the next turn, which is to be parked."""
    number = owner.at.event_count + 1 + behind
    return replace(work_item(owner.at, number, owner.conversation.session_id), parked=True, **fields)


async def _park(owner: ConversationOwner, item: NewWorkItem | None = None, **fields: Any) -> Placed:
    """Commit a wake that has processed all inputs, and park an item with it."""
    write = await owner.new_write(**fields)
    result = await owner.commit(write, work_items=[item or _new_item(owner)])
    assert result.committed, result
    return result.placed[0]


async def _drain(source: HintSource) -> None:
    """Take what earlier changes have set off."""
    while await source.wait(0.05) is not None:
        pass


async def _assert_hinted(source: HintSource) -> None:
    with anyio.fail_after(PATIENCE):
        while (hint := await source.wait(PATIENCE)) is None or not hint.work:
            pass


async def _go_on(owner: ConversationOwner, item: NewWorkItem | None = None, **step: Any) -> Placed | None:
    """Commit a turn without a wake; the place of its item."""
    step = {"consumed": message_ids(owner.at), "work_items": [] if item is None else [item], **step}
    result = await owner.peer.commit_one(owner.at, **step)
    assert result.committed, result
    owner.at = replace(owner.at, event_count=owner.at.event_count + 1, messages=())
    return result.placed[0] if result.placed else None


async def _owners(cluster: Cluster, *names: str) -> dict[str, ConversationOwner]:
    """Conversations of one worker, whose first input is processed."""
    talk = await Conversation.open(cluster)
    await talk.journals.append_journal([_opening(name) for name in names])
    peer = await cluster.worker("worker of all")
    taken: dict[str, OrchestrationItem] = {}
    while len(taken) < len(names):  # a fetch takes its share
        taken |= {item.instance_id: item for item in await peer.take_instances(100)}
    owners = {name: ConversationOwner(peer, Conversation(peer.provider, name), taken[name]) for name in names}
    for name, owner in owners.items():
        await owner.commit_wake(wake_id=f"first of {name}")
    return owners


def _opening(name: str) -> JournalAppend:
    return new_input(name, "opening")


async def _messages(owner: ConversationOwner) -> list[str]:
    """Messages that wait for the instance, in order."""
    found = [item for item in await owner.peer.take_instances(100) if item.instance_id == owner.at.instance_id]
    return [text for item in found for text in payloads(item)]
