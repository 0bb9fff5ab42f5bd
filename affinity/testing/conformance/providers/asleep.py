"""Work items that sleep: kept out of the queue until an input of their journal queues them in place of a message."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from affinity.journal import (
    ASLEEP_MARK,
    Answer,
    Appended,
    JournalAppend,
    JournalCreation,
    JournalRange,
    NewEntry,
    NewRequest,
)
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
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import TIMEOUTS, message_ids, payloads, turn, work_item
from affinity.testing.conformance.providers.cluster import Cluster, concurrently
from affinity.testing.conformance.providers.journal_driver import (
    KIND,
    Conversation,
    Waker,
    new_input,
    new_start,
    output,
)
from affinity.testing.conformance.providers.resets import reset

ASLEEP: Final = Placed(item=None, holder=None, asleep=True)
ANSWER: Final = Answer(request_id="q", kind="confirm")
PATIENCE: Final = 30.0
"""Seconds of real time; a wait ends when the hint comes."""
QUEUED: Final = Placed(item=None, holder=None)
MARKED: Final[dict[str, Any]] = {"entry": None, "message": ASLEEP_MARK}
"""An append that wakes nothing, and whose message says whether there is an item to be woken."""


class AsleepRules(Rules):
    """`NewWorkItem.asleep`, and the appends that wake."""

    async def test_an_item_that_sleeps_is_no_work(self, cluster: Cluster) -> None:
        """It is not fetched, listed or counted, and holds no session (contract: NewWorkItem.asleep)."""
        waker = await Waker.begin(cluster)
        before = await waker.peer.provider.count_work()
        assert await _sleep(waker) == ASLEEP
        await cluster.pass_time(10_000)
        assert await waker.peer.take_all() == []
        assert await waker.peer.provider.list_work_items("s", 10) == []
        assert (await waker.peer.provider.count_work())["work_items"] == before["work_items"]
        assert await cluster.sessions() == {}
        assert (await waker.peer.fetch()).next_due is None

    async def test_an_input_wakes_it(self, cluster: Cluster) -> None:
        """It is queued as if it were new, visible now, in place of the message (contract: JournalAppend.message)."""
        waker = await Waker.begin(cluster)
        item = _new_item(waker)
        assert await _sleep(waker, item) == ASLEEP
        await cluster.advance(1_000)
        appended = await waker.conversation.append()
        assert (appended.outcome, appended.seq, appended.created) == ("appended", 2, False)
        assert (appended.woken, appended.holder) == (True, None)
        (listed,) = await waker.peer.provider.list_work_items("s", 10)
        assert (listed.key, listed.state, listed.session_id, listed.attempts) == (item.key, "waiting", "s", 0)
        other = await cluster.worker("other")
        taken = await other.take_one()
        assert (taken.lock.key, taken.name, taken.payload, taken.session_id) == (item.key, "work", "input", "s")
        assert (taken.attempts, taken.failures, taken.unknown_for, taken.ordered) == (1, 0, None, False)
        assert taken.queued_for < 500
        assert taken.session_epoch == (await cluster.session("s")).epoch
        assert await _messages(waker) == []

    async def test_it_goes_to_the_holder_of_its_session(self, cluster: Cluster) -> None:
        """As a new item does, and the result names the holder (contract: Appended.holder)."""
        waker = await Waker.begin(cluster)
        b = await cluster.worker("b")
        await cluster.use(b, "s")
        assert await _sleep(waker) == ASLEEP
        appended = await waker.conversation.append()
        assert (appended.woken, appended.holder) == (True, "b")
        assert await waker.peer.take_all() == []
        assert (await b.take_one()).session_id == "s"

    async def test_an_append_wakes_the_worker_that_its_caller_expects(self, cluster: Cluster) -> None:
        """When the item is queued; also one that is no longer the holder, whom the result names (contract:
        append_journal).
        """
        waker = await Waker.begin(cluster)
        peers = {name: await cluster.worker(name) for name in "bc"}
        await cluster.use(peers["b"], "s")
        for expected in ("b", "c"):
            await _sleep(waker, wake_id=f"before {expected}")
            other = peers[expected]
            async with other.provider.hints(other.identity) as source:
                await _drain(source)
                wake: dict[str | None, Hint] = {expected: Hint(only_own=True)}
                (appended,) = await waker.conversation.journals.append_journal([new_input()], wake=wake)
                assert (appended.woken, appended.holder) == (True, "b")
                await _assert_woken(source)
            assert await peers["c"].take_all() == []
            item = await peers["b"].take_one()
            await _go_on(waker, acks=[item.lock])

    async def test_an_append_that_is_refused_may_wake_a_worker(self, cluster: Cluster) -> None:
        """Which finds nothing; the outcome is what it is (contract: append_journal)."""
        b = await cluster.worker("b")
        talk = await Conversation.open(cluster)
        async with b.provider.hints(b.identity) as source:
            await _drain(source)
            refused = new_input(start=None)
            (appended,) = await talk.journals.append_journal([refused], wake={"b": Hint(only_own=True)})
            assert appended.outcome == "unknown"
            await _assert_woken(source)
        assert await b.take_all() == []

    async def test_it_goes_where_its_session_will_be(self, cluster: Cluster) -> None:
        """With a planned move: to the other worker, as a new item does (contract: PlannedMove)."""
        waker = await Waker.begin(cluster)
        b, c = await cluster.worker("b"), await cluster.worker("c")
        await cluster.use(b, "s")
        await _sleep(waker)
        assert await b.plan("s", "c") == "planned"
        assert (await waker.conversation.append()).holder == "c"
        assert await b.take_all() == []
        assert await c.take_moved("s") == ["s"]
        assert (await c.take_one()).session_id == "s"

    async def test_where_nothing_sleeps_a_message_is_sent(self, cluster: Cluster) -> None:
        """What is awake is woken no more, also when it is gone (contract: JournalAppend.message)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        assert (await waker.conversation.append()).woken
        assert not (await waker.conversation.append()).woken
        item = await waker.peer.take_one()
        await _go_on(waker, acks=[item.lock])
        later = await waker.conversation.append()
        assert (later.outcome, later.seq, later.woken, later.holder) == ("appended", 4, False, None)
        assert await _messages(waker) == ["[3]", "[4]"]
        assert await waker.peer.take_all() == []

    async def test_what_is_no_input_wakes_nothing(self, cluster: Cluster) -> None:
        """Its message is sent, and tells whether an item sleeps (contract: ASLEEP_MARK)."""
        waker = await Waker.begin(cluster)
        talk = waker.conversation
        await talk.append(**MARKED)
        await _sleep(waker)
        note = NewEntry(kind="note", payload="null")
        appends: list[dict[str, Any]] = [
            {"entry": note, "message": f'["$SEQ", {ASLEEP_MARK}, {ASLEEP_MARK}]'},
            {"entry": note, "message": None},
            MARKED,
            {**MARKED, "closes": True},
        ]
        for fields in appends[:3]:
            assert not (await talk.append(**fields)).woken
        assert (await talk.append(message=f"[{ASLEEP_MARK}]")).woken
        assert not (await talk.append(message=f"[{ASLEEP_MARK}]")).woken
        for fields in appends[2:]:
            assert (await talk.append(**fields)).outcome == "appended"
        assert await _messages(waker) == ["false", "[2, true, true]", "true", "[false]", "false", "false"]

    @pytest.mark.parametrize("fields", [{}, {"start": None}], ids=["start", "input"])
    @pytest.mark.parametrize(("limit", "refusal"), [(0, "full"), (100, "over_quota")])
    async def test_limits_of_messages_refuse_no_input_that_wakes(
        self, cluster: Cluster, fields: dict[str, Any], limit: int, refusal: str
    ) -> None:
        """Its message is not sent (contract: JournalAppend.message)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        if refusal == "over_quota":
            await waker.peer.provider.set_quotas(Quotas(instance_bytes=1))
        assert (await waker.conversation.append(unread_limit=limit, **fields)).woken
        assert (await waker.conversation.append(unread_limit=limit, **fields)).outcome == refusal

    async def test_an_input_without_a_message_wakes_nothing(self, cluster: Cluster) -> None:
        """None means that (contract: JournalAppend.message)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        assert not (await waker.conversation.append(message=None)).woken
        assert await waker.peer.take_all() == []

    async def test_a_start_that_finds_it_wakes_it(self, cluster: Cluster) -> None:
        """With ``start`` and without; an input that is refused or repeated wakes nothing (contract: JournalAppend)."""
        waker = await Waker.begin(cluster, event_id="e")
        talk = waker.conversation
        await _sleep(waker)
        outcomes = [
            await talk.append(event_id="e"),
            await talk.append(event_id="e", start=None),
            await talk.append(kind="of another kind"),
            await talk.append(kind="of another kind", start=None),
            await talk.append(answers=ANSWER),
        ]
        assert [one.outcome for one in outcomes] == ["repeated"] * 2 + ["other_kind"] * 2 + ["not_pending"]
        assert not any(one.woken for one in outcomes)
        await talk.append(**MARKED)
        assert (await talk.append(event_id="f", start=None)).woken
        repeated = await talk.append(event_id="f")
        assert (repeated.outcome, repeated.woken) == ("repeated", False)
        assert await _messages(waker) == ["true"]

    @pytest.mark.parametrize("fields", [{"drops": True}, {"closes": True}, {"answers": ANSWER}])
    async def test_inputs_of_every_sort_wake_it(self, cluster: Cluster, fields: dict[str, Any]) -> None:
        """One that interrupts, one that closes, and an answer (contract: JournalAppend.message)."""
        waker = await Waker.begin(cluster)
        request = NewRequest(request_id="q", kind="confirm", payload="1")
        await _sleep(waker, requests=[request])
        assert (await waker.conversation.append(**fields)).woken
        assert (await waker.peer.take_one()).session_id == "s"
        assert await _messages(waker) == []

    async def test_a_suspended_instance_does_not_keep_it_asleep(self, cluster: Cluster) -> None:
        """An input wakes it, and messages wait (contract: NewWorkItem.asleep)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        assert await waker.peer.suspend(waker.at)
        await waker.conversation.append(**MARKED)
        assert (await waker.conversation.append()).woken
        assert (await waker.peer.take_one()).session_id == "s"

    # -- the commit

    async def test_pending_inputs_let_nothing_sleep(self, cluster: Cluster) -> None:
        """An input behind the watermark after the commit, the wake's own included: the item is queued where its
        session is, unlocked (contract: NewWorkItem.asleep).
        """
        waker = await Waker.begin(cluster)
        b = await cluster.worker("b")
        await cluster.use(b, "s")
        write = await waker.new_write()
        await waker.conversation.append()
        result = await waker.commit(write, work_items=[replace(_new_item(waker), lock_here=True)])
        assert list(result.placed) == [Placed(item=None, holder="b")]
        assert await waker.peer.take_all() == []
        await b.ack(await b.take_one())
        assert await _sleep(waker, entries=[output(is_input=True)]) == Placed(item=None, holder="b")
        assert len(await b.take_all()) == 1
        assert not (await waker.conversation.append()).woken

    async def test_a_turn_without_a_wake_puts_to_sleep(self, cluster: Cluster) -> None:
        """If its journal has no input behind the watermark, and else not (contract: NewWorkItem.asleep)."""
        waker = await Waker.begin(cluster)
        assert await _go_on(waker, _new_item(waker)) == QUEUED
        await waker.wake()
        assert await _go_on(waker, _new_item(waker)) == ASLEEP

    async def test_without_a_journal_nothing_sleeps(self, cluster: Cluster) -> None:
        """Nothing would wake it (contract: NewWorkItem.asleep)."""
        a = await cluster.worker("a")
        at = await a.own("i")
        result = await a.commit_one(at, work_items=[replace(work_item(at, 1, "s"), asleep=True)])
        assert list(result.placed) == [QUEUED]
        assert (await a.take_one()).session_id == "s"

    async def test_inputs_that_a_fork_has_from_its_base_are_pending(self, cluster: Cluster) -> None:
        """They are behind its watermark, so it does not sleep (contract: JournalCreation)."""
        talk = await Conversation.open(cluster)
        base = (await talk.append()).journal_id
        creation = JournalCreation(
            session_id="fork",
            kind=KIND,
            start=new_start("fork"),
            message="[]",
            lineage="fork",
            operator="fork",
            parents=[base],
            base=JournalRange(base, 1),
        )
        (result,) = await talk.journals.create_journals([creation])
        assert result.outcome == "created"
        waker = await Waker.take(cluster, "fork")
        assert await _go_on(waker, _new_item(waker)) == QUEUED
        await waker.wake()
        assert await _go_on(waker, _new_item(waker)) == ASLEEP
        assert (await waker.conversation.append()).woken

    async def test_a_refused_turn_puts_nothing_to_sleep(self, cluster: Cluster) -> None:
        """Neither does it where its write is refused; what slept before sleeps on (contract: Turn)."""
        waker = await Waker.begin(cluster)
        write = await waker.new_write()
        item = _new_item(waker)
        assert not (await waker.commit(replace(write, base=7), work_items=[item])).committed
        assert await _go_on(waker) is None
        assert (await waker.commit(write, work_items=[item])).committed
        other = replace(item, payload="other")
        assert not (await waker.commit(write, work_items=[other])).committed
        await waker.conversation.append()
        assert (await waker.peer.take_one()).payload == "input"

    async def test_the_last_item_is_the_one(self, cluster: Cluster) -> None:
        """An instance has one: another takes the place of one that sleeps, of one that is awake, and of the one before
        it in its turn (contract: NewWorkItem.asleep).
        """
        waker = await Waker.begin(cluster)
        await _sleep(waker, _new_item(waker, payload="first"))
        assert await _go_on(waker, _new_item(waker, payload="second")) == ASLEEP
        assert (await waker.conversation.append()).woken
        item = await waker.peer.take_one()
        assert item.payload == "second"
        write = await waker.new_write()
        pair = [_new_item(waker, payload="third"), _new_item(waker, 1, payload="fourth")]
        result = await waker.commit(write, acks=[item.lock], work_items=pair)
        assert result.placed[-1] == ASLEEP
        assert (await waker.conversation.append()).woken
        assert [one.payload for one in await waker.peer.take_all()] == ["fourth"]

    async def test_items_that_sleep_are_committed_beside_others(self, cluster: Cluster) -> None:
        """The places are in the order of the items (contract: TurnResult.placed)."""
        waker = await Waker.begin(cluster)
        here = replace(work_item(waker.at, 10), lock_here=True)
        items = [here, _new_item(waker), replace(work_item(waker.at, 11, "t"), ordered=True)]
        result = await waker.commit(await waker.new_write(), work_items=items)
        first, second, third = result.placed
        assert first.item is not None
        assert (first.item.lock.key, second, third) == (here.key, ASLEEP, QUEUED)
        assert await waker.peer.check(first.item) == [True]

    async def test_turns_of_a_batch_put_their_items_to_sleep(self, cluster: Cluster) -> None:
        """Each by its own journal (contract: commit_turn)."""
        wakers = await _wakers(cluster, "u", "s", "t")
        await wakers["t"].conversation.append()
        turns = [turn(waker.at, work_items=[_new_item(waker)]) for waker in wakers.values()]
        results = await wakers["s"].peer.commit(*turns)
        assert [list(result.placed) for result in results] == [[ASLEEP], [ASLEEP], [QUEUED]]
        outcomes = [await waker.conversation.append() for waker in wakers.values()]
        assert [one.woken for one in outcomes] == [True, True, False]

    # -- its end

    async def test_an_item_is_cancelled(self, cluster: Cluster) -> None:
        """While it sleeps, when it is awake, and in its own turn (contract: Turn.cancel_activities)."""
        waker = await Waker.begin(cluster)
        item = _new_item(waker)
        await _sleep(waker, item)
        await _go_on(waker, cancel_activities=[item.key.activity_id])
        assert not (await waker.conversation.append()).woken
        await waker.wake()
        item = _new_item(waker)
        assert await _go_on(waker, item) == ASLEEP
        assert (await waker.conversation.append()).woken
        await _go_on(waker, cancel_activities=[item.key.activity_id])
        await waker.wake()
        item = _new_item(waker)
        assert not (await _go_on(waker, item, cancel_activities=[item.key.activity_id]) or QUEUED).asleep
        assert not (await waker.conversation.append()).woken
        assert await waker.peer.take_all() == []

    async def test_the_next_item_comes_with_the_end_of_the_last(self, cluster: Cluster) -> None:
        """A turn cancels one that sleeps, and puts another to sleep (contract: Turn.cancel_activities)."""
        waker = await Waker.begin(cluster)
        first = _new_item(waker)
        await _sleep(waker, first)
        second = _new_item(waker)
        assert await _go_on(waker, second, cancel_activities=[first.key.activity_id, 1_000]) == ASLEEP
        assert (await waker.conversation.append()).woken
        assert (await waker.peer.take_one()).lock.key == second.key

    async def test_it_ends_with_its_execution(self, cluster: Cluster) -> None:
        """In another execution a message is sent, and the next item takes its place (contract: NewWorkItem.asleep)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        await _go_on(waker, update=InstanceUpdate(status="running", continued=True))
        waker.at = replace(waker.at, execution_id=2, event_count=0)
        await waker.conversation.append(**MARKED)
        assert not (await waker.conversation.append()).woken
        assert await waker.peer.take_all() == []
        await waker.wake()
        assert await _messages(waker) == ["false", "[2]"]
        assert await _go_on(waker, _new_item(waker)) == ASLEEP
        assert (await waker.conversation.append()).woken

    @pytest.mark.parametrize("status", sorted(FINISHED))
    async def test_it_ends_with_its_instance(self, cluster: Cluster, status: Any) -> None:
        """Nothing is queued for one that has ended, by the turn that ends it neither (contract: Turn.update)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        await _go_on(waker, _new_item(waker), update=InstanceUpdate(status=status))
        assert (await waker.conversation.append()).outcome == "closed"
        assert await waker.peer.take_all() == []

    async def test_an_execution_that_ends_takes_its_items_along(self, cluster: Cluster) -> None:
        """What its last turn would put to sleep is not queued, though inputs are pending (contract: NewWorkItem)."""
        waker = await Waker.begin(cluster)
        over = InstanceUpdate(status="running", continued=True)
        assert await _go_on(waker, _new_item(waker), update=over) == QUEUED
        assert await waker.peer.take_all() == []
        assert not (await waker.conversation.append()).woken

    async def test_it_is_not_that_of_another_generation(self, cluster: Cluster) -> None:
        """It is gone with its instance; another one of the same id gets messages (contract: NewWorkItem.asleep)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        provider = waker.peer.provider
        assert list(await provider.delete_instance(["s"], force=True)) == ["deleted"]
        again = await waker.conversation.append(start=new_start(generation="another"))
        assert (again.outcome, again.woken) == ("appended", False)
        assert await waker.peer.take_all() == []
        waker = await Waker.of(waker.peer)
        assert "start" in payloads(waker.at)
        await _sleep(waker)
        assert (await waker.conversation.append()).woken

    async def test_another_journal_wakes_it(self, cluster: Cluster) -> None:
        """The journal is that of its instance's id, whichever that is (contract: NewWorkItem.asleep)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        assert await waker.conversation.delete()
        again = await waker.conversation.append()
        assert (again.created, again.woken) == (True, True)
        assert (await waker.peer.take_one()).session_id == "s"

    async def test_a_reset_ends_it(self, cluster: Cluster) -> None:
        """Its execution is over (contract: Reset)."""
        waker = await Waker.begin(cluster)
        await _sleep(waker)
        assert await reset(waker.peer, waker.at, 1)
        assert not (await waker.conversation.append()).woken
        assert await waker.peer.take_all() == []

    # -- several appends

    async def test_of_one_batch_the_first_input_wakes(self, cluster: Cluster) -> None:
        """The others find it awake, and send messages (contract: append_journal)."""
        waker = await Waker.begin(cluster)
        other = (await _wakers(cluster, "t"))["t"]
        await _sleep(waker)
        await _go_on(other, _new_item(other))
        note = new_input("s", entry=None, message=ASLEEP_MARK)
        batch = [note, new_input("s"), new_input("t"), new_input("s"), note, new_input("new"), new_input("t")]
        outcomes = await waker.conversation.journals.append_journal(batch)
        assert [one.woken for one in outcomes] == [False, True, True, False, False, False, False]
        assert await _messages(waker) == ["true", "[3]", "false"]
        assert sorted([one.lock.key.instance_id for one in await waker.peer.take_all()]) == ["s", "t"]

    async def test_a_batch_of_inputs_wakes_in_its_order(self, cluster: Cluster) -> None:
        """Plain inputs of different journals, delivered in the order of the batch (contract: append_journal)."""
        names = ["c", "a", "d", "b"]
        wakers = await _wakers(cluster, *names, "e")
        for name in names:
            await _go_on(wakers[name], _new_item(wakers[name]))
        batch = [new_input(name, start=None) for name in ("c", "e", "a", "d", "b")]
        outcomes = await wakers["a"].conversation.journals.append_journal(batch)
        assert [one.woken for one in outcomes] == [True, False, True, True, True]
        taken = await (await cluster.worker("other")).take_all()
        assert [one.lock.key.instance_id for one in taken] == names

    async def test_a_wake_wakes_another_conversation(self, cluster: Cluster) -> None:
        """What it appends does, by its turn and by its ack (contract: JournalWrite.appends)."""
        wakers = await _wakers(cluster, "s", "t")
        for number, name in enumerate(("turn", "ack")):
            assert await _go_on(wakers["t"], _new_item(wakers["t"])) == ASLEEP
            write = await wakers["s"].new_write(appends=[new_input("t", start=None)], wake_id=name)
            if number:
                await cluster.enqueue("s")
                item = await wakers["s"].peer.take_one()
                ack = WorkAck(lock=item.lock, message="done", journal=write)
                identity = wakers["s"].peer.identity
                assert await wakers["s"].peer.provider.ack_work_item(identity, [ack], TIMEOUTS) == [True]
            else:
                assert (await wakers["s"].commit(write)).committed
            assert (await wakers["s"].peer.take_one()).lock.key.instance_id == "t"
            assert await _messages(wakers["t"]) == []
            await wakers["t"].wake(wake_id=name)

    async def test_a_batch_wakes_what_it_puts_to_sleep(self, cluster: Cluster) -> None:
        """The inputs of its wakes come last, whichever turn is first; a second one is a message (contract:
        JournalWrite.appends).
        """
        wakers = await _wakers(cluster, "b", "a", "c")
        turns = []
        for name, to in (("b", ["a"]), ("a", ["b"]), ("c", ["b"])):
            waker = wakers[name]
            write = await waker.new_write(entries=[output()], appends=[new_input(each, start=None) for each in to])
            turns.append(turn(waker.at, journals=[write], work_items=[_new_item(waker)]))
        results = await wakers["a"].peer.commit(*turns)
        assert [list(result.placed) for result in results] == [[ASLEEP]] * 3
        taken = await wakers["a"].peer.take_all()
        assert sorted([one.lock.key.instance_id for one in taken]) == ["a", "b"]
        messages = {item.instance_id: payloads(item) for item in await wakers["a"].peer.take_instances(100)}
        assert messages == {"b": ["[4]"]}

    async def test_what_comes_back_wakes(self, cluster: Cluster) -> None:
        """An input in place of one that was refused, also of the wake that goes to sleep (contract:
        JournalAppend.if_refused).
        """
        waker = (await _wakers(cluster, "s"))["s"]
        refused = new_input("none", start=None, if_refused=new_input("s", "bounced", start=None))
        write = await waker.new_write(appends=[refused])
        result = await waker.commit(write, work_items=[_new_item(waker)])
        assert list(result.placed) == [ASLEEP]
        assert (await waker.peer.take_one()).session_id == "s"
        assert await _messages(waker) == []

    # -- races

    async def test_no_input_is_left_with_an_item_asleep(self, cluster: Cluster) -> None:
        """Inputs that come while wakes commit: either the item is queued by the commit, or by the input, and each input
        is processed without a message (contract: NewWorkItem.asleep).
        """
        names = [f"s{number}" for number in range(3)]
        wakers = await _wakers(cluster, *names)
        appended: dict[str, list[Appended]] = {name: [] for name in names}
        wakes = dict.fromkeys(names, 0)
        awake = dict.fromkeys(names, 0)
        done = anyio.Event()
        for name in names:
            assert await _go_on(wakers[name], _new_item(wakers[name])) == ASLEEP

        async def send(name: str) -> None:
            talk = await Conversation.open(cluster, name)
            for number in range(15):
                fields: dict[str, Any] = {"start": None} if number % 2 else {}
                appended[name].append(await talk.append(text=str(number), **fields))

        async def run() -> None:
            worker = await cluster.beside(wakers[names[0]].peer)
            while True:
                stopping = done.is_set()
                items = await worker.take_all()
                for item in items:
                    name = item.lock.key.instance_id
                    waker = Waker(worker, Conversation(worker.provider, name), wakers[name].at)
                    wakes[name] += 1
                    write = await waker.new_write(entries=[output()], wake_id=f"{name} {wakes[name]}")
                    result = await waker.commit(write, acks=[item.lock], work_items=[_new_item(waker)])
                    assert result.committed, result
                    awake[name] += not result.placed[0].asleep
                    wakers[name].at = waker.at
                if stopping and not items:
                    return
                await anyio.lowlevel.checkpoint()

        async def send_all() -> None:
            await concurrently(*[partial(send, name) for name in names])
            done.set()

        with anyio.fail_after(60):
            await concurrently(send_all, run)
        for name, waker in wakers.items():
            assert (await waker.conversation.pending()).inputs == []
            assert wakes[name] == sum([one.woken for one in appended[name]]) + awake[name]
            assert (await waker.conversation.append(start=None)).woken

    async def test_an_input_races_with_the_end_of_its_item(self, cluster: Cluster) -> None:
        """A turn that cancels it leaves nothing in the queue, in either order (contract: Turn.cancel_activities)."""
        waker = (await _wakers(cluster, "s"))["s"]
        sender = await Conversation.open(cluster)
        for _ in range(20):
            item = _new_item(waker)
            assert await _go_on(waker, item) == ASLEEP
            cancel = partial(_go_on, waker, cancel_activities=[item.key.activity_id])
            await concurrently(cancel, partial(sender.append, start=None))
            assert await waker.peer.take_all() == []
            await waker.wake()

    async def test_an_input_races_with_the_end_of_its_instance(self, cluster: Cluster) -> None:
        """Nothing of one that has ended is in the queue, in either order (contract: Turn.update)."""
        names = [f"s{number}" for number in range(10)]
        wakers = await _wakers(cluster, *names)
        sender = await cluster.open()
        for name, waker in wakers.items():
            assert await _go_on(waker, _new_item(waker)) == ASLEEP
            end = partial(_go_on, waker, update=InstanceUpdate(status="completed"))
            await concurrently(end, partial(Conversation(sender, name).append, start=None))
        assert await next(iter(wakers.values())).peer.take_all() == []


def _new_item(waker: Waker, behind: int = 0, **fields: Any) -> NewWorkItem:
    """An item of the next turn, which is to sleep."""
    number = waker.at.event_count + 1 + behind
    return replace(work_item(waker.at, number, waker.conversation.session_id), asleep=True, **fields)


async def _sleep(waker: Waker, item: NewWorkItem | None = None, **fields: Any) -> Placed:
    """Commit a wake that has processed all inputs, and put an item to sleep with it."""
    write = await waker.new_write(**fields)
    result = await waker.commit(write, work_items=[item or _new_item(waker)])
    assert result.committed, result
    return result.placed[0]


async def _drain(source: HintSource) -> None:
    """Take what earlier changes have set off."""
    while await source.wait(0.05) is not None:
        pass


async def _assert_woken(source: HintSource) -> None:
    with anyio.fail_after(PATIENCE):
        while (hint := await source.wait(PATIENCE)) is None or not hint.work:
            pass


async def _go_on(waker: Waker, item: NewWorkItem | None = None, **step: Any) -> Placed | None:
    """Commit a turn without a wake; the place of its item."""
    step = {"consumed": message_ids(waker.at), "work_items": [] if item is None else [item], **step}
    result = await waker.peer.commit_one(waker.at, **step)
    assert result.committed, result
    waker.at = replace(waker.at, event_count=waker.at.event_count + 1, messages=())
    return result.placed[0] if result.placed else None


async def _wakers(cluster: Cluster, *names: str) -> dict[str, Waker]:
    """Conversations of one worker, whose first input is processed."""
    talk = await Conversation.open(cluster)
    await talk.journals.append_journal([_opening(name) for name in names])
    peer = await cluster.worker("worker of all")
    taken: dict[str, OrchestrationItem] = {}
    while len(taken) < len(names):  # a fetch takes its share
        taken |= {item.instance_id: item for item in await peer.take_instances(100)}
    wakers = {name: Waker(peer, Conversation(peer.provider, name), taken[name]) for name in names}
    for name, waker in wakers.items():
        await waker.wake(wake_id=f"first of {name}")
    return wakers


def _opening(name: str) -> JournalAppend:
    return new_input(name, "opening")


async def _messages(waker: Waker) -> list[str]:
    """Messages that wait for the instance, in order."""
    found = [item for item in await waker.peer.take_instances(100) if item.instance_id == waker.at.instance_id]
    return [text for item in found for text in payloads(item)]
