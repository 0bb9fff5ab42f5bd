"""Resets: an instance continues from an earlier event, and nothing of its later events takes effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from affinity.provider.contract import InstanceUpdate, NewMessage, OrchestrationItem, Reset, SessionHold, SessionWatch
from affinity.provider.history import read_whole_history
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, payloads, reset_of, timer, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer


async def reset(peer: Peer, at: OrchestrationItem, keep: int, **more: Any) -> bool:
    """Reset at the fence that ``at`` shows."""
    return await peer.provider.reset_instance(reset_of(at, keep, **more))


class ResetRules(Rules):
    """`reset_instance`."""

    async def test_a_failed_instance_goes_on_from_an_earlier_event(self, cluster: Cluster) -> None:
        """A failed instance continues in its next execution, and the former one stays readable (contract: Reset)."""
        a = await cluster.worker("a")
        at = await self._three_events(a)
        failed = InstanceUpdate(status="failed", error='{"type":"E","message":"m"}')
        assert (await a.commit_one(at, history=["4"], update=failed)).committed
        former = await read_whole_history(a.provider, "i", 1)
        end = await a.info("i")
        assert await a.provider.reset_instance(
            Reset(
                instance_id="i",
                generation=end.generation,
                execution_id=1,
                event_count=4,
                keep=2,
                history=["reset"],
                messages=[NewMessage(instance_id="i", payload="again")],
                custom_status='"back"',
            )
        )
        row = await a.info("i")
        assert (row.status, row.execution_id, row.event_count, row.error) == ("running", 2, 3, None)
        assert row.custom_status == '"back"'
        (item,) = await a.take_instances()
        assert (item.execution_id, item.event_count, payloads(item)) == (2, 3, ["again"])
        assert await a.history(item) == ["1", "2", "reset"]
        assert await read_whole_history(a.provider, "i", 1) == former == ["1", "2", "3", "4"]
        assert (await a.commit_one(item, consumed=message_ids(item))).committed

    async def test_a_reset_without_a_custom_status_removes_it(self, cluster: Cluster) -> None:
        """The reset gives the custom status (contract: Reset.custom_status)."""
        a = await cluster.worker("a")
        later = await a.go_on(await self._three_events(a), custom_status='"set"')
        assert (await a.info("i")).custom_status == '"set"'
        assert await reset(a, later, 1)
        assert (await a.info("i")).custom_status is None

    async def test_a_reset_is_refused_elsewhere(self, cluster: Cluster) -> None:
        """A reset is refused when the history has grown or the generation is another (contract: Reset)."""
        a = await cluster.worker("a")
        at = await self._three_events(a)
        later = await a.go_on(at)
        assert not await reset(a, at, 1)
        await a.provider.delete_instance(["i"], force=True)
        await self._three_events(a)
        assert not await reset(a, later, 1)
        assert (await a.info("i")).execution_id == 1

    async def test_what_ran_is_void(self, cluster: Cluster) -> None:
        """Results and turns of the former execution are refused, and the work is queued again (contract: Reset)."""
        a, b = await cluster.worker("a"), await cluster.holder("b", "s")
        at = await self._three_events(a)
        at = await a.go_on(at, work_items=[work_item(at, 2, "s"), work_item(at, 3)])
        running = await b.take_all()
        assert len(running) == 2
        new = [work_item(replace_execution(at), 2, "s"), work_item(replace_execution(at), 3)]
        assert await reset(a, at, 3, work_items=new)
        assert await b.ack(*running) == [False, False]
        assert not (await a.commit_one(at)).committed
        keys = {item.lock.key for item in await b.take_all()}
        assert keys == {item.key for item in new}

    async def test_a_timer_keeps_its_time(self, cluster: Cluster) -> None:
        """A timer that still waits keeps its time; another one starts from the reset (contract: Reset.messages)."""
        a = await cluster.worker("a")
        at = await self._three_events(a)
        at = await a.go_on(at, messages=[timer(at, 2, 100)])
        await cluster.pass_time(60)
        again = replace_execution(at)
        assert await reset(a, at, 3, messages=[timer(again, 2, 100), timer(again, 3, 100)])
        await cluster.pass_time(45)
        (item,) = await a.take_instances()
        assert payloads(item) == ["timer 2"]
        await cluster.pass_time(60)
        (item,) = await a.take_instances()
        assert payloads(item) == ["timer 2", "timer 3"]

    async def test_what_comes_again_comes_first(self, cluster: Cluster) -> None:
        """Messages of the reset come before waiting ones, in their order, suspended or not (contract: Reset)."""
        a = await cluster.worker("a")
        at = await self._three_events(a)
        await a.suspend(at)
        await a.provider.send_message([NewMessage(instance_id="i", payload="waits")])
        again = [NewMessage(instance_id="i", payload=text) for text in ("first", "second")]
        assert await reset(a, at, 1, messages=again)
        assert (await a.info("i")).suspension is None
        (item,) = await a.take_instances()
        assert payloads(item) == ["first", "second", "waits"]

    async def test_a_timer_that_has_fired_comes_first_and_is_a_timer(self, cluster: Cluster) -> None:
        """A timer without a delay comes before waiting messages, and a second reset keeps that (contract: Reset)."""
        a = await cluster.worker("a")
        at = await self._three_events(a)
        await a.provider.send_message([NewMessage(instance_id="i", payload="waits")])
        assert await reset(a, at, 1, messages=[timer(replace_execution(at), 2, 0)])
        again = replace(replace_execution(at), event_count=2)
        assert await reset(a, again, 1, messages=[timer(replace_execution(again), 2, 100)])
        (item,) = await a.take_instances()
        assert payloads(item) == ["timer 2", "waits"]

    async def test_what_comes_again_twice_comes_first_each_time(self, cluster: Cluster) -> None:
        """Messages of a second reset come before the messages of the first (contract: Reset)."""
        a = await cluster.worker("a")
        at = await self._three_events(a)
        assert await reset(a, at, 1, messages=[NewMessage(instance_id="i", payload=text) for text in ("2", "3")])
        (item,) = await a.take_instances()
        item = await a.go_on(item, consumed=message_ids(item)[:1])
        assert await reset(a, item, 1, messages=[NewMessage(instance_id="i", payload="2")])
        (item,) = await a.take_instances()
        assert payloads(item) == ["2", "3"]

    async def test_holds_end_and_watches_go_on(self, cluster: Cluster) -> None:
        """A reset ends holds, keeps watches and begins the watches that it names (contract: Reset)."""
        a, _ = await cluster.worker("a"), await cluster.holder("b", "s")
        at = await self._three_events(a)
        at = await a.go_on(at, holds=[SessionHold("s", 2, 50_000)])
        assert await reset(a, at, 3, watches=[SessionWatch("s", "moved")])
        assert (await cluster.session("s")).expires_in < 1_000
        await cluster.worker("b")  # a restart, which moves the session
        (item,) = await a.take_instances()
        assert payloads(item) == ["moved"]

    @staticmethod
    async def _three_events(a: Peer) -> OrchestrationItem:
        at = await a.own("i")
        at = await a.go_on(at, consumed=message_ids(at), history=["1"])
        return await a.go_on(await a.go_on(at, history=["2"]), history=["3"])


def replace_execution(at: OrchestrationItem) -> OrchestrationItem:
    """The instance in its next execution."""
    return replace(at, execution_id=at.execution_id + 1)
