"""Session states of several turns and acks in one call: each has its own fence, and one session is written once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from affinity.provider.contract import WorkAck
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import TIMEOUTS, new_instance, state, state_write, turn
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.states import Way, each_way


class StateBatchRules(Rules):
    """`WorkAck.state` and `Turn.states` of a batch."""

    async def test_one_conflict_refuses_all_states_of_a_turn(self, cluster: Cluster) -> None:
        """A turn with one conflicting state is refused whole, and only that session is named (contract: Turn,
        TurnResult.conflicts).
        """
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("bad"))
        await cluster.enqueue("good", "bad")
        items = await a.take(10)
        at = await a.own("i")
        step = turn(at, acks=[item.lock for item in items], states=[state_write(item) for item in items])
        step = replace(step, instances=[new_instance("child")], custom_status="1")
        (result,) = await a.commit(step)
        assert (result.committed, list(result.lost_acks), list(result.conflicts)) == (False, [], ["bad"])
        assert await states.load("good") is None
        assert list(await a.provider.get_instance(["child"])) == [None]
        assert ((await a.info("i")).custom_status, await a.history(at)) == (None, [])
        assert await a.check(*items) == [True, True]

    async def test_other_turns_of_the_batch_are_not_disturbed(self, cluster: Cluster) -> None:
        """A conflict of one turn does not refuse other turns of the batch (contract: every verb)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("s1"))
        await cluster.enqueue("s0", "s1", "s2")
        items = sorted(await a.take(10), key=lambda item: item.session_id or "")
        turns = [
            turn(await a.own(f"i{n}"), acks=[item.lock], states=[state_write(item)]) for n, item in enumerate(items)
        ]
        turns.append(turn(await a.own("i3")))
        results = await a.commit(*turns)
        assert [result.committed for result in results] == [True, False, True, True]
        assert [list(result.conflicts) for result in results] == [[], ["s1"], [], []]
        assert [(await cluster.record(f"s{n}")).state for n in range(3)] == [b"by work", b"by hand", b"by work"]

    async def test_other_acks_of_the_batch_are_not_disturbed(self, cluster: Cluster) -> None:
        """A conflict of one ack does not refuse other acks of the batch (contract: every verb)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("s1"))
        await cluster.enqueue("s0", "s1", "s2", None)
        items = sorted(await a.take_all(), key=lambda item: item.session_id or "z")
        acks = [WorkAck(lock=item.lock, message=f"{n}", state=state_write(item)) for n, item in enumerate(items[:3])]
        acks.append(WorkAck(lock=items[3].lock, message="3"))
        assert list(await a.provider.ack_work_item(a.identity, acks, TIMEOUTS)) == [True, False, True, True]
        assert sorted(await cluster.results()) == ["0", "2", "3"]
        assert await a.check(*items) == [False, True, False, False]

    @pytest.mark.parametrize("second_base", [0, 1])
    async def test_of_two_turns_of_one_session_the_first_passes(self, cluster: Cluster, second_base: int) -> None:
        """Two turns of a batch write one session: the first passes and the second is refused (contract: Turn)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s")
        first, second = await a.take(10)
        writes = [(first, state_write(first, b"1")), (second, state_write(second, b"2", base=second_base))]
        turns = [turn(await a.own(f"i{n}"), acks=[item.lock], states=[write]) for n, (item, write) in enumerate(writes)]
        results = await a.commit(*turns)
        assert [(result.committed, list(result.conflicts)) for result in results] == [(True, []), (False, ["s"])]
        assert ((await cluster.record("s")).state, (await cluster.record("s")).version) == (b"1", 1)
        assert await a.check(second) == [True]

    @pytest.mark.parametrize("second_base", [0, 1])
    async def test_of_two_acks_of_one_session_the_first_passes(self, cluster: Cluster, second_base: int) -> None:
        """Two acks of a batch write one session: the first passes and the second is refused (contract: Turn)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s")
        first, second = await a.take(10)
        acks = [
            WorkAck(lock=first.lock, message="1", state=state_write(first, b"1")),
            WorkAck(lock=second.lock, message="2", state=state_write(second, b"2", base=second_base)),
        ]
        assert list(await a.provider.ack_work_item(a.identity, acks, TIMEOUTS)) == [True, False]
        assert ((await cluster.record("s")).state, await cluster.results()) == (b"1", ["1"])
        assert await a.check(second) == [True]

    async def test_a_refused_turn_is_in_no_other_turns_way(self, cluster: Cluster) -> None:
        """A turn that was refused for its state or an ack does not count as a write of the session (contract)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s", "s")
        conflict, dead, good = await a.take(10)
        await a.give_back(dead, delay=1_000)
        writes = [(conflict, state_write(conflict, base=7)), (dead, state_write(dead)), (good, state_write(good))]
        turns = [turn(await a.own(f"i{n}"), acks=[item.lock], states=[write]) for n, (item, write) in enumerate(writes)]
        results = await a.commit(*turns)
        assert [result.committed for result in results] == [False, False, True]
        assert [list(result.conflicts) for result in results] == [["s"], [], []]
        assert [list(result.lost_acks) for result in results] == [[], [dead.lock], []]

    async def test_a_refused_ack_is_in_no_other_acks_way(self, cluster: Cluster) -> None:
        """An ack that was refused does not count as a write of the session (contract: every verb)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s", "s")
        conflict, dead, good = await a.take(10)
        await a.give_back(dead, delay=1_000)
        acks = [
            WorkAck(lock=conflict.lock, message="1", state=state_write(conflict, base=7)),
            WorkAck(lock=dead.lock, message="2", state=state_write(dead)),
            WorkAck(lock=good.lock, message="3", state=state_write(good)),
        ]
        assert list(await a.provider.ack_work_item(a.identity, acks, TIMEOUTS)) == [False, False, True]
        assert (await cluster.results(), (await cluster.record("s")).version) == (["3"], 1)

    async def test_two_states_of_one_session_refuse_their_turn(self, cluster: Cluster) -> None:
        """A turn that writes one session twice is refused (contract: Turn)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        writes = [state_write(item, b"1"), state_write(item, b"2")]
        result = await a.commit_one(await a.own("i"), acks=[item.lock], states=writes)
        assert (result.committed, set(result.conflicts)) == (False, {"s"})
        assert await (await cluster.states()).load("s") is None

    @each_way
    async def test_of_two_concurrent_writers_one_passes(self, cluster: Cluster, way: Way) -> None:
        """Two concurrent writes start from one version: one passes (StateWrite)."""
        a = await cluster.worker("a")
        peers = [await cluster.same_worker(a) for _ in range(2)]
        for base in range(5):
            await cluster.enqueue("s", "s")
            items = await a.take(10)
            instances = [await a.own(f"i{base}-{n}") for n in range(2)]
            attempts = zip(peers, items, instances, strict=True)
            writes = (partial(way, peer, item, state_write(item, base=base), at) for peer, item, at in attempts)
            passed = await concurrently(*writes)
            assert sorted(passed) == [False, True]
            assert (await cluster.record("s")).version == base + 1
            assert await a.ack(*items) == [not applied for applied in passed]
