"""Turns: the checks of a commit, its effects, and that it applies whole or not at all."""

from __future__ import annotations

from dataclasses import replace

from affinity.provider.contract import HistoryCursor, InstanceUpdate, NewMessage
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    ITEM_LOCK,
    count_rows,
    message_ids,
    new_instance,
    payloads,
    timer,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster

DONE = InstanceUpdate(status="completed", output='"done"')


class TurnRules(Rules):
    """`commit_turn` and `read_history`."""

    async def test_a_turn_appends_its_events_in_order(self, cluster: Cluster) -> None:
        """Events are appended after the events of earlier turns (contract: Turn.history)."""
        a, instance = await cluster.owner("a", "i")
        assert (await a.commit_one(instance, history=["1", "2", "3"])).committed
        assert (await a.commit_one(replace(instance, event_count=3), history=["4"])).committed
        assert await a.history(instance) == ["1", "2", "3", "4"]
        assert (await a.info("i")).event_count == 4

    async def test_a_turn_is_fenced_by_the_number_of_events(self, cluster: Cluster) -> None:
        """A turn with another number of events is refused: no turn commits twice or skips events (contract: Turn)."""
        a, instance = await cluster.owner("a", "i")
        assert (await a.commit_one(instance, history=["1"])).committed
        for event_count in (0, 2):
            result = await a.commit_one(replace(instance, event_count=event_count), history=["x"])
            assert (result.committed, list(result.lost_acks)) == (False, [])
        assert await a.history(instance) == ["1"]

    async def test_a_turn_is_fenced_by_the_execution(self, cluster: Cluster) -> None:
        """A turn of another execution is refused (contract: Turn)."""
        a, instance = await cluster.owner("a", "i")
        other = replace(instance, execution_id=instance.execution_id + 1)
        assert not (await a.commit_one(other)).committed
        assert await a.history(instance) == await a.history(other) == []

    async def test_a_turn_is_fenced_by_the_owner(self, cluster: Cluster) -> None:
        """Only the incarnation that owns the instance can commit its turn (contract: Turn)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        assert not (await b.commit_one(instance)).committed
        assert (await a.commit_one(instance)).committed

    async def test_a_turn_of_an_unknown_instance_is_refused(self, cluster: Cluster) -> None:
        """A turn of an unknown instance is refused and creates nothing (contract: Turn)."""
        a = await cluster.worker("a")
        instance = replace(await a.own("i"), instance_id="missing")
        assert not (await a.commit_one(instance)).committed
        assert list(await a.provider.get_instance(["missing"])) == [None]

    async def test_a_finished_instance_takes_no_turn(self, cluster: Cluster) -> None:
        """A finished instance refuses turns, whatever its status (contract: Turn)."""
        a = await cluster.worker("a")
        for number, update in enumerate((DONE, failed("failed"), failed("cancelled"))):
            instance = await a.own(f"i{number}")
            assert (await a.commit_one(instance, update=update)).committed
            assert not (await a.commit_one(replace(instance, event_count=1))).committed
            row = await a.info(f"i{number}")
            assert (row.status, row.output, row.error) == (update.status, update.output, update.error)

    async def test_a_refused_turn_changes_nothing(self, cluster: Cluster) -> None:
        """A refused turn changes neither history, queues, instances nor status (contract: Turn)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance, other = await a.own("i"), await a.own("other")
        before = await count_rows(a.provider)
        refused = await b.commit_one(
            instance,
            consumed=message_ids(instance),
            work_items=[work_item(instance, 1)],
            messages=[NewMessage(instance_id="other", payload="x")],
            instances=[new_instance("child")],
            update=DONE,
            custom_status="1",
        )
        assert not refused.committed
        assert await count_rows(a.provider) == before
        assert await a.history(instance) == []
        row = await a.info("i")
        assert (row.status in {"pending", "running"}, row.custom_status) == (True, None)
        assert payloads(other) == ["start"]

    async def test_consumed_messages_are_gone(self, cluster: Cluster) -> None:
        """A turn removes the messages that it consumed and no others (contract: Turn.consumed)."""
        a = await cluster.worker("a")
        await a.own("i")
        await a.provider.send_message([NewMessage(instance_id="i", payload=text) for text in "xyz"])
        (instance,) = await a.take_instances()
        start, x, y, z = instance.messages
        assert (await a.commit_one(instance, consumed=[start.id, y.id])).committed
        (after,) = await a.take_instances()
        assert list(after.messages) == [x, z]

    async def test_the_results_in_a_turn_are_acked_with_it(self, cluster: Cluster) -> None:
        """A turn removes its acked items and sends no message for them (contract: Turn.acks)."""
        a, instance = await cluster.owner("a", "i")
        await cluster.enqueue("s", None)
        locks = [item.lock for item in await a.take_all()]
        assert (await a.commit_one(instance, acks=locks)).committed
        assert await cluster.results() == []
        await cluster.pass_time(ITEM_LOCK + 1)
        assert await a.take_all() == []

    async def test_a_dead_ack_refuses_the_whole_turn(self, cluster: Cluster) -> None:
        """A dead ack refuses its turn and is named; a live ack of the turn stays live (contract:
        TurnResult.lost_acks).
        """
        a, instance = await cluster.owner("a", "i")
        await cluster.enqueue(None, None)
        dead, live = await a.take_all()
        await a.give_back(dead, delay=1_000)
        result = await a.commit_one(instance, acks=[dead.lock, live.lock], consumed=message_ids(instance))
        assert (result.committed, list(result.lost_acks)) == (False, [dead.lock])
        assert await a.history(instance) == []
        assert await a.check(live) == [True]
        assert payloads((await a.take_instances())[0]) == ["start"]

    async def test_an_expired_ack_refuses_the_turn(self, cluster: Cluster) -> None:
        """An ack whose lock has expired refuses its turn (contract: live token)."""
        a, instance = await cluster.owner("a", "i")
        item = await cluster.give(a, None)
        await cluster.advance(ITEM_LOCK + 1)
        result = await a.commit_one(instance, acks=[item.lock])
        assert (result.committed, list(result.lost_acks)) == (False, [item.lock])

    async def test_cancelling_an_activity_takes_it_from_the_worker_that_runs_it(self, cluster: Cluster) -> None:
        """A cancelled activity loses its lock: checks and renewals fail, and its result is refused (contract:
        Turn.cancel_activities).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await a.commit_one(instance, work_items=[work_item(instance, 1, "s"), work_item(instance, 2)])
        items = await b.take(10)
        assert (await a.commit_one(replace(instance, event_count=1), cancel_activities=[1])).committed
        assert await b.check(*items) == [item.lock.key.activity_id != 1 for item in items]
        assert await b.renew(*items) == [item.lock.key.activity_id != 1 for item in items]
        assert await b.ack(*items) == [item.lock.key.activity_id != 1 for item in items]

    async def test_cancelling_an_activity_removes_it_from_the_queue(self, cluster: Cluster) -> None:
        """Cancelling removes the items of that execution of that instance only (contract: Turn.cancel_activities)."""
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("j")
        for instance in (first, second):
            await a.commit_one(instance, work_items=[work_item(instance, 1)])
        await a.commit_one(replace(first, event_count=1), cancel_activities=[1, 99])
        assert [item.lock.key.instance_id for item in await a.take_all()] == ["j"]

    async def test_a_timer_is_a_message_that_comes_later(self, cluster: Cluster) -> None:
        """A timer arrives when it is due, and ``next_due`` reports it (contract: NewMessage.delay)."""
        a, instance = await cluster.owner("a", "i")
        await a.commit_one(instance, consumed=message_ids(instance), messages=[timer(instance, 1, 60)])
        early = await a.fetch_instances()
        assert list(early.items) == []
        assert early.next_due is not None
        assert 50 < early.next_due <= 60
        await cluster.advance(60)
        assert payloads((await a.take_instances())[0]) == ["timer 1"]

    async def test_a_cancelled_timer_does_not_come(self, cluster: Cluster) -> None:
        """A cancelled timer, named by its event, does not arrive; other timers do (contract: Turn.cancel_timers)."""
        a, instance = await cluster.owner("a", "i")
        timers = [timer(instance, number, 60) for number in (1, 2)]
        await a.commit_one(instance, consumed=message_ids(instance), messages=timers)
        await a.commit_one(replace(instance, event_count=1), cancel_timers=[1, 99])
        await cluster.advance(60)
        assert payloads((await a.take_instances())[0]) == ["timer 2"]

    async def test_messages_reach_other_instances(self, cluster: Cluster) -> None:
        """Messages of a turn reach other instances, and are dropped for unknown or finished ones (contract:
        NewMessage).
        """
        a = await cluster.worker("a")
        instance, finished = await a.own("i"), await a.own("finished")
        await a.provider.create_instance([new_instance("other", start="first")])
        await a.commit_one(finished, update=DONE)
        messages = [NewMessage(instance_id=name, payload="hello") for name in ("missing", "finished", "other")]
        assert (await a.commit_one(instance, consumed=message_ids(instance), messages=messages)).committed
        (other,) = await a.take_instances()
        assert (other.instance_id, payloads(other)) == ("other", ["first", "hello"])
        assert list(await a.provider.get_instance(["missing"])) == [None]

    async def test_a_child_is_created_with_its_turn(self, cluster: Cluster) -> None:
        """A child is created with its turn, with its parent's id and its start message (contract: NewInstance)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        child = new_instance("child", parent_id="i", start="begin", on_exists="taken")
        await a.commit_one(instance, consumed=message_ids(instance), instances=[child])
        (item,) = await b.take_instances()
        assert (item.instance_id, payloads(item), item.event_count) == ("child", ["begin"], 0)
        assert (await a.info("child")).parent_id == "i"
        assert await a.take_instances() == []

    async def test_a_child_whose_id_is_taken_is_reported_to_its_parent(self, cluster: Cluster) -> None:
        """A parent gets ``on_exists`` when the child's id is taken, and the other instance is unchanged (contract:
        NewInstance.on_exists).
        """
        a = await cluster.worker("a")
        instance, other = await a.own("i"), await a.own("other")
        child = new_instance("other", parent_id="i", start="begin", on_exists="taken")
        result = await a.commit_one(instance, consumed=message_ids(instance), instances=[child])
        assert result.committed
        found = {item.instance_id: payloads(item) for item in await a.take_instances()}
        assert found == {"i": ["taken"], "other": payloads(other)}
        assert (await a.info("other")).parent_id is None

    async def test_continuing_starts_the_next_execution(self, cluster: Cluster) -> None:
        """``continued`` starts the next execution without events, and the old history stays readable (contract:
        InstanceUpdate.continued).
        """
        a, instance = await cluster.owner("a", "i")
        again = InstanceUpdate(status="running", continued=True)
        message = NewMessage(instance_id="i", payload="again")
        await a.commit_one(
            instance, history=["1", "2"], consumed=message_ids(instance), messages=[message], update=again
        )
        (after,) = await a.take_instances()
        assert (after.execution_id, after.event_count) == (instance.execution_id + 1, 0)
        assert payloads(after) == ["again"]
        assert (await a.commit_one(after, history=["3"])).committed
        assert not (await a.commit_one(replace(instance, event_count=2))).committed
        assert await a.history(instance) == ["1", "2"]
        assert await a.history(after) == ["3"]

    async def test_finishing_removes_the_queue_rows_of_the_instance(self, cluster: Cluster) -> None:
        """A finished status removes work items, messages and timers, and keeps the history (contract: Turn.update)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance, other = await a.own("i"), await a.own("other")
        await a.commit_one(instance, work_items=[work_item(instance, 1, "s")], messages=[timer(instance, 2, 60)])
        await a.commit_one(other, work_items=[work_item(other, 1, "s")])
        items = await b.take_all()
        await a.commit_one(replace(instance, event_count=1), history=["end"], update=DONE)
        await cluster.advance(61)
        assert [item.instance_id for item in await a.take_instances()] == ["other"]
        assert await b.check(*items) == [item.lock.key.instance_id == "other" for item in items]
        assert await a.history(instance) == ["event", "end"]

    async def test_a_turn_may_set_version_and_custom_status(self, cluster: Cluster) -> None:
        """A turn sets version and custom status, or keeps them if it leaves them out (contract: InstanceUpdate,
        Turn.custom_status).
        """
        a, instance = await cluster.owner("a", "i")
        update = InstanceUpdate(status="running", version="7")
        await a.commit_one(instance, update=update, custom_status='{"step": 1}')
        await a.commit_one(replace(instance, event_count=1))
        await a.commit_one(replace(instance, event_count=2), update=InstanceUpdate(status="running"))
        row = await a.info("i")
        assert (row.status, row.version, row.custom_status) == ("running", "7", '{"step": 1}')
        assert (row.owner, row.event_count) == ("a", 3)

    async def test_a_large_turn_is_one_turn(self, cluster: Cluster) -> None:
        """One turn may queue a thousand activities, and each is fetched once (limits: MAX_BATCH)."""
        a, instance = await cluster.owner("a", "i")
        items = [work_item(instance, number, f"s{number % 7}") for number in range(1, 1_001)]
        result = await a.commit_one(instance, history=[str(number) for number in range(1_000)], work_items=items)
        assert result.committed
        assert len(result.placed) == 1_000
        assert await a.history(instance) == [str(number) for number in range(1_000)]
        assert sorted(item.lock.key for item in await a.take_all()) == [item.key for item in items]

    async def test_history_is_read_by_instance_and_execution(self, cluster: Cluster) -> None:
        """Several histories are read in one call, empty ones included (contract: read_history)."""
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("j")
        await a.commit_one(first, history=["1"])
        await a.commit_one(second, history=["2", "3"])
        names = [("j", 1), ("missing", 1), ("i", 1), ("i", 2), ("j", 1)]
        pages = await a.provider.read_history([HistoryCursor(*name) for name in names])
        assert [list(page.events) for page in pages] == [["2", "3"], [], ["1"], [], ["2", "3"]]
        assert not any(page.more for page in pages)


def failed(status: str) -> InstanceUpdate:
    """An end that is not a success."""
    return InstanceUpdate(status="failed" if status == "failed" else "cancelled", error='{"type": "Error"}')
