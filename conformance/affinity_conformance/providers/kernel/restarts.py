"""Restarts: an ended instance begins again as a new generation, and nothing of the former one reaches it."""

from __future__ import annotations

from functools import partial

import pytest

from affinity.errors import QuotaExceeded
from affinity.provider.contract import (
    FINISHED,
    Generation,
    InstanceUpdate,
    MessageKey,
    NewMessage,
    OrchestrationItem,
    Quotas,
    Restart,
    SessionHold,
    SessionWatch,
)
from affinity.provider.history import read_whole_history
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, payloads, timer, work_item
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.trees import child_of

ENDS = {
    "completed": InstanceUpdate(status="completed", output='"done"'),
    "failed": InstanceUpdate(status="failed", error='{"type":"E","message":"m"}'),
    "cancelled": InstanceUpdate(status="cancelled", error='{"type":"C","message":"m"}'),
}
FAILED = ENDS["failed"]


def restart_of(at: OrchestrationItem, *, start: str = "again", session_id: str | None = None) -> Restart:
    """A restart of the instance, once it has ended."""
    new = new_instance(at.instance_id, name=at.name, start=start, session_id=session_id)
    return Restart(new=new, ended=at.generation)


class RestartRules(Rules):
    """`restart_instance`."""

    async def test_an_ended_instance_begins_again(self, cluster: Cluster) -> None:
        """However it has ended, it is pending in its next execution, as a new generation; the history of the former one
        stays (contract: Restart).
        """
        a = await cluster.worker("a")
        for status, end in ENDS.items():
            at = await a.own(status)
            at = await a.go_on(at, consumed=message_ids(at), history=["1"], custom_status='"half"')
            assert (await a.commit_one(at, history=["2"], update=end)).committed
            before = await a.info(status)
            restart = restart_of(at, session_id="s")
            assert list(await a.provider.restart_instance([restart])) == [True]
            row = await a.info(status)
            assert (row.status, row.execution_id, row.event_count, row.generation) == (
                "pending",
                2,
                0,
                restart.new.generation,
            )
            assert (row.output, row.error, row.custom_status, row.session_id) == (None, None, None, "s")
            assert row.created_at == before.created_at
            (item,) = await a.take_instances()
            assert (item.execution_id, item.event_count, payloads(item)) == (2, 0, ["again"])
            done = await a.commit_one(item, consumed=message_ids(item), history=["3"], update=ENDS["completed"])
            assert done.committed
            assert await read_whole_history(a.provider, status, 1) == ["1", "2"]
            assert await read_whole_history(a.provider, status, 2) == ["3"]
            runs = await a.provider.list_executions(status, 10)
            assert [(run.execution_id, run.event_count) for run in runs] == [(2, 1), (1, 2)]
            assert None not in {time for run in runs for time in (run.started_at, run.ended_at)}

    async def test_what_has_not_ended_is_not_restarted(self, cluster: Cluster) -> None:
        """A running or suspended instance, one of another name or generation, and an id that is free are not restarted
        (contract: restart_instance).
        """
        a = await cluster.worker("a")
        running, suspended, ended = [await a.own(name) for name in ("running", "suspended", "ended")]
        assert await a.suspend(suspended)
        await a.commit_one(ended, update=FAILED)
        other = restart_of(ended)
        restarts = [
            restart_of(running),
            restart_of(suspended),
            Restart(new=new_instance("ended", name="other"), ended=ended.generation),
            Restart(new=other.new, ended=Generation("other")),
            Restart(new=new_instance("none"), ended=Generation("b")),
        ]
        assert list(await a.provider.restart_instance(restarts)) == [False] * 5
        assert list(await a.provider.restart_instance([])) == []
        assert [(await a.info(name)).execution_id for name in ("running", "suspended", "ended")] == [1, 1, 1]
        assert await a.provider.get_instance(["none"]) == [None]

    async def test_many_are_restarted_together(self, cluster: Cluster) -> None:
        """Each restart of a call has its own answer; of two for one generation the first one counts (contract:
        restart_instance).
        """
        a = await cluster.worker("a")
        at = [await a.own(name) for name in ("z", "i", "j")]
        for item in (at[0], at[2]):
            await a.commit_one(item, consumed=message_ids(item), update=FAILED)
        restarts = [restart_of(at[0], start="z1"), *map(restart_of, at), restart_of(at[2], start="late")]
        assert list(await a.provider.restart_instance(restarts)) == [True, False, False, True, False]
        assert (await a.info("z")).generation == restarts[0].new.generation

    async def test_of_two_that_race_one_restarts(self, cluster: Cluster) -> None:
        """One of several concurrent restarts counts, and there is one start message (contract: restart_instance)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        names = [f"i{n}" for n in range(8)]
        at = [await a.own(name) for name in names]
        for item in at:
            await a.commit_one(item, consumed=message_ids(item), update=FAILED)
        orders = [at, at[::-1], at, at[::-1]]
        calls = [
            partial(peer.provider.restart_instance, [restart_of(item) for item in order])
            for peer, order in zip((a, b, a, b), orders, strict=True)
        ]
        answers = await concurrently(*calls)
        counts = [sum(found) for found in zip(*(a[:: 1 - n % 2 * 2] for n, a in enumerate(answers)), strict=True)]
        assert counts == [1] * len(names)
        items = [item for peer in (a, b) for item in await peer.take_instances(100)]
        assert {item.instance_id: payloads(item) for item in items} == {name: ["again"] for name in names}
        assert {item.execution_id for item in items} == {2}

    async def test_the_work_of_the_former_generation_is_void(self, cluster: Cluster) -> None:
        """Queued and running work, turns, timers and messages of the former generation do not reach the new one; its
        holds and watches have ended (contract: Restart).
        """
        a, b = await cluster.worker("a"), await cluster.holder("b", "s")
        at = await a.own("i")
        items = [work_item(at, 2, "s"), work_item(at, 3)]
        at = await a.go_on(
            at,
            consumed=message_ids(at),
            work_items=items,
            messages=[timer(at, 4, 100)],
            holds=[SessionHold("s", 5, 50_000)],
            watches=[SessionWatch("s", "moved")],
        )
        running = await b.take()
        assert (await a.commit_one(at, update=FAILED)).committed
        assert list(await a.provider.restart_instance([restart_of(at)])) == [True]
        assert await b.ack(*running) == [False]
        assert await b.take_all() == []
        assert not (await a.commit_one(at)).committed
        old = NewMessage(instance_id="i", payload="old", generation=at.generation)
        assert list(await a.provider.send_message([old])) == ["unknown"]
        assert (await cluster.session("s")).expires_in < 1_000
        await cluster.worker("b")  # a restart, which moves the session
        await cluster.pass_time(200)
        (item,) = await a.take_instances()
        assert payloads(item) == ["again"]

    async def test_a_child_of_the_former_generation_is_none_of_the_new_one(self, cluster: Cluster) -> None:
        """A child that still runs does not answer the new generation, and does not go with it (contract: Restart)."""
        a, at = await cluster.owner("a", "parent")
        at = await a.go_on(at, consumed=message_ids(at), instances=[child_of(at, "child")])
        (child,) = await a.take_instances()
        await a.commit_one(at, update=FAILED)
        assert list(await a.provider.restart_instance([restart_of(at)])) == [True]
        answer = NewMessage(instance_id="parent", payload="answer", generation=at.generation)
        await a.commit_one(child, consumed=message_ids(child), messages=[answer], update=ENDS["completed"])
        (item,) = await a.take_instances()
        assert payloads(item) == ["again"]
        assert [member.instance_id for member in await a.provider.list_tree("parent", 10)] == ["parent"]

    async def test_a_restarted_child_has_no_parent(self, cluster: Cluster) -> None:
        """It is an instance of its own from then on: its parent gets no message of its deletion (contract: Restart)."""
        a, parent = await cluster.owner("a", "parent")
        await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, "child")])
        (child,) = await a.take_instances()
        await a.commit_one(child, consumed=message_ids(child), update=FAILED)
        assert list(await a.provider.restart_instance([restart_of(child)])) == [True]
        assert (await a.info("child")).parent_id is None
        assert list(await a.provider.delete_instance(["child"], force=True)) == ["deleted"]
        assert await a.take_instances() == []

    async def test_keys_of_messages_begin_anew(self, cluster: Cluster) -> None:
        """The new generation gets a message of a key that the former one has got (contract: send_message)."""
        a, at = await cluster.owner("a", "i")
        event = NewMessage(instance_id="i", payload="event", key="k")
        assert list(await a.provider.send_message([event])) == ["delivered"]
        await a.commit_one(at, consumed=message_ids(at), update=FAILED)
        assert list(await a.provider.send_message([event])) == ["repeated"]
        assert list(await a.provider.restart_instance([restart_of(at)])) == [True]
        (state,) = await a.provider.get_replies([MessageKey("i", "k")])
        assert state is not None
        assert not state.is_known
        assert list(await a.provider.send_message([event, event])) == ["delivered", "repeated"]

    async def test_retention_goes_by_the_new_generation(self, cluster: Cluster) -> None:
        """It is not pruned by the end of the former one. The former one's history is pruned as the history of a former
        execution (contract: prune_instances, prune_histories).
        """
        a, at = await cluster.owner("a", "i")
        await a.commit_one(at, consumed=message_ids(at), update=FAILED)
        await cluster.advance(1_000)
        assert list(await a.provider.restart_instance([restart_of(at)])) == [True]
        await cluster.advance(1_000)
        assert (await a.provider.prune_instances(FINISHED, 500)).instances == 0
        assert (await a.provider.prune_histories(500)).executions == 1
        (item,) = await a.take_instances()
        assert (await a.commit_one(item, consumed=message_ids(item))).committed
        assert [run.execution_id for run in await a.provider.list_executions("i", 10)] == [2]

    async def test_a_restart_that_is_too_large_is_refused(self, cluster: Cluster) -> None:
        """The quota of bytes applies to a restart, and the quota of instances does not (contract: restart_instance)."""
        a, at = await cluster.owner("a", "i")
        await a.commit_one(at, update=FAILED)
        await a.provider.set_quotas(Quotas(instances=1, instance_bytes=100))
        with pytest.raises(QuotaExceeded):
            await a.provider.restart_instance([restart_of(at, start="x" * 101)])
        assert (await a.info("i")).status == "failed"
        assert list(await a.provider.restart_instance([restart_of(at, start="x" * 100)])) == [True]
