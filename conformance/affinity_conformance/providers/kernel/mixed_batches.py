"""Batches of unlike work items: an item waits for what its own fields say, whatever the other items are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Final

import pytest

from affinity.provider.contract import NewWorkItem, OrchestrationItem, WorkerTags, WorkKey
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import turn, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.kernel.resets import replace_execution, reset
from affinity_conformance.providers.peer import Peer

GPU: Final = WorkerTags(tags=("gpu",))

_DELAY: Final = 60.0
"""Seconds for which some of the items are not visible."""


def _mix(at: OrchestrationItem, seed: int, *, delays: Sequence[float] = (0.0, _DELAY)) -> list[NewWorkItem]:
    """An item of each kind, in random order: other items of the batch lack what one of them asks for."""
    kinds = [
        kind
        for kind in product((None, "s", "t"), (False, True), (None, "gpu"), (None, 1_000.0), delays, (False, True))
        if kind[0] is not None or not kind[1]
    ]
    Random(seed).shuffle(kinds)  # noqa: S311 -- no secret
    return [
        replace(
            work_item(at, number, session_id),
            ordered=ordered,
            tag=tag,
            fail_after=fail_after,
            delay=delay,
            lock_here=lock_here and (session_id is None or tag is None),
        )
        for number, (session_id, ordered, tag, fail_after, delay, lock_here) in enumerate(kinds, 1)
    ]


class _Queue:
    """Items in the order of their commits, and which of them no order holds back."""

    def __init__(self, items: Iterable[NewWorkItem]) -> None:
        self._left = {item.key: item for item in items}

    def __bool__(self) -> bool:
        return bool(self._left)

    def due(self, passed: float) -> set[WorkKey]:
        """Items that must be delivered once so many seconds have passed since all of them were queued."""
        first: dict[str, WorkKey] = {}
        for item in self._left.values():
            if item.order is not None:
                first.setdefault(item.order, item.key)
        return {
            key
            for key, item in self._left.items()
            if item.delay <= passed and (item.order is None or first[item.order] == key)
        }

    def remove(self, keys: Iterable[WorkKey]) -> None:
        """They have been acknowledged."""
        for key in keys:
            del self._left[key]


async def _work_off(cluster: Cluster, worker: Peer, queue: _Queue) -> None:
    """Take and ack until nothing is left; each fetch returns everything that is due."""
    for passed in (0.0, _DELAY + 1):
        await cluster.pass_time(passed)
        while items := await worker.take_all():
            keys = {item.lock.key for item in items}
            assert keys == queue.due(passed)
            assert all(await worker.ack(*items))
            queue.remove(keys)
        assert not queue.due(passed)
    assert not queue


class MixedBatchRules(Rules):
    """`NewWorkItem`, in batches whose items differ in every field."""

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_commit_holds_back_what_an_order_holds_back(self, cluster: Cluster, seed: int) -> None:
        """An item of a batch of turns of several instances waits for the items before it in its order, and for nothing
        else (contract: NewWorkItem.ordered).
        """
        worker = await cluster.holder("w", "s", tags=GPU)
        owned = [await worker.own(f"i{number}") for number in range(3)]
        items = [_mix(at, 10 * seed + number) for number, at in enumerate(owned)]
        results = await worker.commit(*(turn(at, work_items=of) for at, of in zip(owned, items, strict=True)))
        assert all(result.committed for result in results)
        queue = _Queue(item for of in items for item in of)
        here = [placed.item for result in results for placed in result.placed if placed.item is not None]
        keys = {item.lock.key for item in here}
        asked = {item.key for of in items for item in of if item.lock_here and item.session_id in {None, "s"}}
        assert keys == asked & queue.due(0.0)
        assert all(await worker.ack(*here))
        queue.remove(keys)
        await _work_off(cluster, worker, queue)

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_reset_holds_back_what_an_order_holds_back(self, cluster: Cluster, seed: int) -> None:
        """The same of the items of a reset (contract: Reset.work_items)."""
        worker = await cluster.worker("w", tags=GPU)
        at, other = await worker.own("i"), await worker.own("j")
        at = await worker.go_on(at, work_items=_mix(at, seed))
        before = [replace(item, lock_here=False) for item in _mix(other, seed + 1)]
        await worker.go_on(other, work_items=before)
        again = [replace(item, lock_here=False) for item in _mix(replace_execution(at), seed + 2, delays=(0.0,))]
        assert await reset(worker, at, 1, work_items=again)
        await _work_off(cluster, worker, _Queue([*before, *again]))

    async def test_an_item_that_was_to_be_failed_keeps_its_place(self, cluster: Cluster) -> None:
        """An ordered item that waits too long is locked to be failed. Given back, it waits behind the others again
        (contract: WorkAbandon).
        """
        worker, other = await cluster.worker("w"), await cluster.worker("other")
        (first,) = await cluster.enqueue("s", ordered=True)
        running = await worker.take_one()
        (second,) = await cluster.enqueue("s", ordered=True, fail_after=5.0)
        await cluster.advance(6.0)
        ((item, _),) = (await other.end_waits()).failed
        assert (running.lock.key, item.lock.key) == (first, second)
        assert await other.give_back(item, count_attempt=False) == [True]
        assert await other.take_all() == await worker.take_all() == []
        assert await worker.ack(running) == [True]
        assert [found.lock.key for found in await worker.take_all()] == [second]
