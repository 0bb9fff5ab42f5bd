"""Starts that wait for their time: nothing begins them early, and nothing that is sent to them is lost."""

from __future__ import annotations

from functools import partial
from typing import cast

from affinity.provider.contract import NewMessage, OrchestrationItem, Restart
from affinity.records import Gate
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, payloads
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.restarts import ENDS
from affinity_conformance.providers.peer import Peer


class StartRules(Rules):
    """`NewInstance.delay`, `NewInstance.not_before`, `NewMessage.ends_wait`, and priorities of starts."""

    async def test_a_delayed_start_waits_for_its_time(self, cluster: Cluster) -> None:
        """The start message is visible after ``delay``, and not before ``not_before``; a time that is over is now
        (contract: NewInstance).
        """
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("now")])
        now = (await a.info("now")).created_at.timestamp()
        waiting = [
            new_instance("delayed", delay=60.0),
            new_instance("at", not_before=now + 120.0),
            new_instance("over", not_before=now - 3_600.0),
        ]
        await a.provider.create_instance(waiting)
        begun = await a.take_instances(10)
        assert {item.instance_id for item in begun} == {"now", "over"}
        for item in begun:
            await a.commit_one(item, consumed=message_ids(item))
        assert (await a.info("over")).starts_at is None
        for instance_id, seconds in (("delayed", 60.0), ("at", 120.0)):
            info = await a.info(instance_id)
            assert info.status == "pending"
            assert info.starts_at is not None
            assert abs(info.starts_at.timestamp() - now - seconds) < 30.0
            await cluster.advance(75.0)
            assert await _next(a) == instance_id

    async def test_what_is_sent_to_a_delayed_start_waits_with_it(self, cluster: Cluster) -> None:
        """Messages to an instance that waits to start become visible with its start message, behind it, whoever sends
        them (contract: NewInstance.delay).
        """
        a, sender = await cluster.owner("a", "sender")
        await a.provider.create_instance([new_instance("i", delay=60.0)])
        sent = [
            NewMessage(instance_id="i", payload="event"),
            NewMessage(instance_id="i", payload="keyed", key="k"),
            NewMessage(instance_id="i", payload="late", delay=90.0),
        ]
        assert list(await a.provider.send_message(sent)) == ["delivered"] * 3
        assert list(await a.provider.send_message(sent[1:2])) == ["repeated"]
        from_turn = NewMessage(instance_id="i", payload="from a turn")
        await a.commit_one(sender, consumed=message_ids(sender), messages=[from_turn])
        assert await a.take_instances() == []
        assert (await a.info("i")).status == "pending"
        await cluster.advance(61.0)
        (item,) = await a.take_instances()
        assert payloads(item) == ["start", "event", "keyed", "from a turn"]
        item = await a.go_on(item, consumed=message_ids(item))
        await a.provider.send_message([NewMessage(instance_id="i", payload="later")])
        assert payloads((await a.take_instances())[0]) == ["later"]

    async def test_a_request_to_cancel_ends_the_wait(self, cluster: Cluster) -> None:
        """A message with ``ends_wait`` is visible immediately, and the start message behind it with all others. Of an
        instance that does not wait it changes nothing (contract: NewMessage.ends_wait).
        """
        a, running = await cluster.owner("a", "running")
        running = await a.go_on(running, consumed=message_ids(running))
        await a.provider.create_instance([new_instance("i", delay=3_600.0), new_instance("other", delay=3_600.0)])
        names = ("i", "other", "running")
        await a.provider.send_message([NewMessage(instance_id=name, payload="event") for name in names])
        stop = [NewMessage(instance_id=name, payload="cancel", ends_wait=True) for name in ("i", "running")]
        assert list(await a.provider.send_message(stop)) == ["delivered"] * 2
        assert (await a.info("i")).starts_at is None
        await cluster.advance(0.1)
        taken = {item.instance_id: payloads(item) for item in await a.take_instances(10)}
        assert taken == {"i": ["cancel", "start", "event"], "running": ["event", "cancel"]}

    async def test_a_message_of_another_generation_ends_no_wait(self, cluster: Cluster) -> None:
        """The generation of the receiver counts (contract: NewMessage.generation)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i", delay=60.0)])
        former = new_instance("i").generation
        stop = NewMessage(instance_id="i", payload="cancel", generation=former, ends_wait=True)
        assert list(await a.provider.send_message([stop])) == ["unknown"]
        assert await a.take_instances() == []

    async def test_a_restart_waits_for_its_time_too(self, cluster: Cluster) -> None:
        """A restart has the delay of its new instance (contract: Restart)."""
        a, at = await cluster.owner("a", "i")
        await a.commit_one(at, consumed=message_ids(at), update=ENDS["completed"])
        restart = Restart(new=new_instance("i", start="again", delay=60.0), ended=at.generation)
        assert list(await a.provider.restart_instance([restart])) == [True]
        await a.provider.send_message([NewMessage(instance_id="i", payload="event")])
        assert await a.take_instances() == []
        await cluster.advance(61.0)
        assert payloads((await a.take_instances())[0]) == ["again", "event"]

    async def test_a_start_that_waits_can_be_replaced(self, cluster: Cluster) -> None:
        """It gets the start message and the time of the new one, at most ``within`` seconds after the first, and keeps
        its generation and messages (contract: Restart.when).
        """
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i", delay=60.0)])
        first = await a.info("i")
        await a.provider.send_message([NewMessage(instance_id="i", payload="event", key="k")])
        for n in range(3):
            await cluster.advance(40.0)
            new = new_instance("i", start=f"start {n}", session_id=f"s{n}", delay=60.0)
            waiting = Restart(new=new, ended=first.generation, when="waiting", within=150.0)
            assert list(await a.provider.restart_instance([waiting])) == [True]
            info = await a.info("i")
            assert (info.status, info.generation, info.session_id) == ("pending", first.generation, f"s{n}")
            assert await a.take_instances() == []
        await cluster.advance(31.0)  # 151 s after the first
        (item,) = await a.take_instances()
        assert payloads(item) == ["start 2", "event"]
        assert list(await a.provider.restart_instance([waiting])) == [False]
        await a.go_on(item, consumed=message_ids(item))
        assert list(await a.provider.restart_instance([waiting])) == [False]

    async def test_only_a_start_that_waits_is_replaced(self, cluster: Cluster) -> None:
        """Not one without a delay, of another name or generation, or whose wait has ended (contract: Restart.when)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("now"), new_instance("i", delay=60.0)])
        generations = {name: (await a.info(name)).generation for name in ("now", "i")}
        refused = [
            Restart(new=new_instance("now", start="other"), ended=generations["now"], when="waiting"),
            Restart(new=new_instance("i", name="other"), ended=generations["i"], when="waiting"),
            Restart(new=new_instance("i"), ended=generations["now"], when="waiting"),
            Restart(new=new_instance("missing"), ended=generations["i"], when="waiting"),
        ]
        assert list(await a.provider.restart_instance(refused)) == [False] * 4
        await a.provider.send_message([NewMessage(instance_id="i", payload="cancel", ends_wait=True)])
        late = Restart(new=new_instance("i", start="late", delay=60.0), ended=generations["i"], when="waiting")
        assert list(await a.provider.restart_instance([late])) == [False]
        await cluster.advance(0.1)
        taken = {item.instance_id: payloads(item) for item in await a.take_instances(10)}
        assert taken == {"now": ["start"], "i": ["cancel", "start"]}

    async def test_of_racing_replacements_one_run_begins(self, cluster: Cluster) -> None:
        """Whatever replaces the start while a worker takes it, the message that it consumes is the one that counts
        (contract: Restart.when).
        """
        a = await cluster.worker("a")
        for n in range(10):
            await a.provider.create_instance([new_instance(f"i{n}", delay=0.001)])
            generation = (await a.info(f"i{n}")).generation
            new = new_instance(f"i{n}", start="replaced", delay=0.001)
            waiting = Restart(new=new, ended=generation, when="waiting")
            answers = await concurrently(a.take_instances, partial(a.provider.restart_instance, [waiting]))
            items, is_replaced = cast("list[OrchestrationItem]", answers[0]), answers[1] == [True]
            while not items:
                await cluster.advance(0.01)
                items = await a.take_instances()
            assert payloads(items[0]) == (["replaced"] if is_replaced else ["start"])
            await a.commit_one(items[0], consumed=message_ids(items[0]), update=ENDS["completed"])

    async def test_a_start_may_wait_for_the_end_of_an_instance(self, cluster: Cluster) -> None:
        """It begins with a sweep behind the end, as a new generation. A later one replaces it, and keeps its generation
        (contract: Restart.when).
        """
        a, at = await cluster.owner("a", "i")
        at = await a.go_on(at, consumed=message_ids(at))
        first = new_instance("i", start="first")
        for new in (first, new_instance("i", start="second", session_id="s")):
            assert list(await a.provider.restart_instance([Restart(new=new, ended=at.generation, when="next")])) == [
                True
            ]
            assert (await a.info("i")).next == first.generation
        other = Restart(new=new_instance("i", name="other"), ended=at.generation, when="next")
        assert list(await a.provider.restart_instance([other])) == [False]
        await cluster.sweep()
        assert (await a.info("i")).generation == at.generation
        await a.commit_one(at, update=ENDS["failed"])
        assert (await a.info("i")).next == first.generation
        await cluster.sweep()
        info = await a.info("i")
        assert (info.status, info.generation, info.next, info.session_id) == ("pending", first.generation, None, "s")
        (item,) = await a.take_instances()
        assert payloads(item) == ["second"]
        await a.commit_one(item, consumed=message_ids(item), update=ENDS["completed"])
        await cluster.sweep()
        assert await a.take_instances() == []
        ended = Restart(new=new_instance("i"), ended=first.generation, when="next")
        assert list(await a.provider.restart_instance([ended])) == [False]

    async def test_a_start_may_cancel_what_it_waits_for(self, cluster: Cluster) -> None:
        """The request to cancel is sent in the same transaction; it may end a wait (contract: Restart.cancel)."""
        a, at = await cluster.owner("a", "i")
        at = await a.go_on(at, consumed=message_ids(at))
        await a.provider.create_instance([new_instance("late", delay=3_600.0)])
        late = (await a.info("late")).generation
        restarts = [
            Restart(new=new_instance("i", start="again"), ended=at.generation, when="next", cancel="stop"),
            Restart(new=new_instance("late", start="again"), ended=late, when="next", cancel="stop"),
        ]
        assert list(await a.provider.restart_instance(restarts)) == [True, True]
        await cluster.advance(0.1)
        taken = {item.instance_id: item for item in await a.take_instances(10)}
        assert {name: payloads(item) for name, item in taken.items()} == {"i": ["stop"], "late": ["stop", "start"]}
        for item in taken.values():
            await a.commit_one(item, consumed=message_ids(item), update=ENDS["cancelled"])
        await cluster.sweep()
        assert {item.instance_id: payloads(item) for item in await a.take_instances(10)} == {
            "i": ["again"],
            "late": ["again"],
        }

    async def test_starts_of_a_greater_priority_come_first(self, cluster: Cluster) -> None:
        """The head start of a gate without limits moves a start before others; the delivery itself is not put off
        (contract: Gate).
        """
        a = await cluster.worker("a")
        for instance_id, priority in (("low", 0), ("high", 5), ("middle", 2)):
            gate = None if not priority else Gate(f"[{priority}]", limited=False, head_start=priority * 3_600.0)
            await a.provider.create_instance([new_instance(instance_id, gate=gate)])
        assert [(await _next(a)) for _ in range(3)] == ["high", "middle", "low"]


async def _next(a: Peer) -> str:
    (item,) = await a.take_instances(1)
    await a.commit_one(item, consumed=message_ids(item))
    return item.instance_id
