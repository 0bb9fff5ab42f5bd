"""Tags: which workers take an item, and which session it may be of."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affinity.limits import ANY_TAG, MIN_SHARE
from affinity.provider.contract import WorkerTags
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    SESSION_LOCK,
    SHORT_LEASE,
    fetch_options,
    message_ids,
    reset_of,
    state,
    state_write,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

GPU: Final = WorkerTags(tags=("gpu",))
ONLY_GPU: Final = WorkerTags(tags=("gpu",), only=True)
ANY: Final = WorkerTags(tags=(ANY_TAG,))
SEVERAL: Final = WorkerTags(tags=("gpu", "eu"))


async def _gpu_session(cluster: Cluster, worker: Peer) -> None:
    """Let the worker hold the idle session "s", which began with the tag "gpu"."""
    await cluster.enqueue("s", tag="gpu")
    assert await worker.ack(await worker.take_one()) == [True]


class TagRules(Rules):
    """`NewWorkItem.tag`, `WorkerTags`, and the tag of a session."""

    async def test_only_a_worker_with_the_tag_takes_an_item(self, cluster: Cluster) -> None:
        """A worker takes work without a tag and with one of its own (contract: fetch_work_item)."""
        plain = await cluster.worker("plain")
        gpu = await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue(None, "s", tag="gpu")
        await cluster.enqueue(None, "t", tag="eu")
        assert await plain.take_all() == []
        assert sorted([item.session_id for item in await gpu.take_all()], key=str) == [None, "s"]
        several = await cluster.worker("several", tags=SEVERAL)
        assert sorted([item.session_id for item in await several.take_all()], key=str) == [None, "t"]

    async def test_a_worker_with_tags_takes_untagged_work(self, cluster: Cluster) -> None:
        """It does unless it takes nothing else (`WorkerTags.only`)."""
        only = await cluster.worker("only", tags=ONLY_GPU)
        gpu = await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue(None, "s")
        assert await only.take_all() == []
        assert sorted([item.session_id for item in await gpu.take_all()], key=str) == [None, "s"]

    async def test_the_oldest_item_comes_first_whatever_its_tag(self, cluster: Cluster) -> None:
        """A fetch takes the oldest work over all routes (contract: fetch_work_item)."""
        worker = await cluster.holder("several", "held", tags=SEVERAL)
        kinds = (("t", None), (None, "gpu"), ("held", None), (None, "eu"), ("u", "gpu"), (None, None), ("v", "eu"))
        keys = []
        for session_id, tag in kinds:
            keys += await cluster.enqueue(session_id, tag=tag)
            await cluster.advance(0.01)
        taken = [(await worker.take_one()).lock.key for _ in kinds]
        assert taken == keys

    async def test_one_fetch_takes_items_of_all_its_tags(self, cluster: Cluster) -> None:
        """The limits of a fetch are over all routes together; the rest comes with the next fetch."""
        worker = await cluster.worker("several", tags=SEVERAL)
        for number in range(3):
            await cluster.enqueue(None, f"s{number}", tag="gpu")
            await cluster.enqueue(None, f"t{number}", tag="eu")
            await cluster.enqueue(None, f"u{number}")
        first = await worker.take(MIN_SHARE)
        assert len(first) == MIN_SHARE
        assert len(first) + len(await worker.take_all()) == 18
        assert len(await cluster.holders()) == 9

    async def test_a_burst_with_a_tag_is_shared(self, cluster: Cluster) -> None:
        """A fetch takes a share of the unclaimed items, also of items with a tag."""
        a = await cluster.worker("a", tags=GPU)
        await cluster.worker("b", tags=GPU)
        await cluster.enqueue(*[None] * 40, tag="gpu")
        await cluster.enqueue(*[f"s{number}" for number in range(40)], tag="gpu")
        fetched = await a.fetch(60)
        assert 0 < len(fetched.items) < 40
        assert fetched.unclaimed_remaining

    async def test_an_item_of_a_delay_is_announced_to_its_tag(self, cluster: Cluster) -> None:
        """``next_due`` regards the routes that the caller reads."""
        plain, gpu = await cluster.worker("plain"), await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue(None, delay=50.0, tag="gpu")
        assert (await plain.fetch()).next_due is None
        due = (await gpu.fetch()).next_due
        assert due is not None
        assert 0 < due <= 50
        await cluster.enqueue("s", delay=20.0, tag="gpu")
        due = (await gpu.fetch()).next_due
        assert due is not None
        assert 0 < due <= 20
        await cluster.advance(50.0)
        assert len(await gpu.take_all()) == 2

    async def test_a_session_has_the_tag_of_its_first_work(self, cluster: Cluster) -> None:
        """Later work without a tag goes where the session is, and after a release to a worker with that tag."""
        plain, gpu = await cluster.worker("plain"), await cluster.worker("gpu", tags=GPU)
        await _gpu_session(cluster, gpu)
        item = await cluster.give(gpu, "s")
        assert item.session_tag == "gpu"
        await cluster.enqueue("s")
        assert await gpu.give_back(item, release_session=True) == [True]
        await cluster.enqueue("s")
        await cluster.sweep_all()
        assert await plain.take_all() == []
        again = await cluster.worker("again", tags=GPU)
        assert [item.session_tag for item in await again.take_all()] == ["gpu"] * 3

    async def test_a_session_without_a_tag_keeps_none(self, cluster: Cluster) -> None:
        """Work with a tag for it goes to its holder, which learns that the session has another one."""
        plain = await cluster.holder("plain", "s")
        await cluster.enqueue("s", tag="gpu")
        item = await plain.take_one()
        assert (item.session_id, item.session_tag) == ("s", None)
        assert await plain.give_back(item, release_session=True) == [True]
        assert await (await cluster.worker("only", tags=ONLY_GPU)).take_all() == []
        gpu = await cluster.worker("gpu", tags=GPU)
        assert (await gpu.take_one()).session_tag is None

    async def test_work_of_another_tag_goes_to_the_holder(self, cluster: Cluster) -> None:
        """It is delivered with the session's tag, so that its worker fails it (`WorkItem.session_tag`)."""
        gpu = await cluster.worker("gpu", tags=GPU)
        await _gpu_session(cluster, gpu)
        await cluster.enqueue("s", tag="eu")
        assert (await gpu.take_one()).session_tag == "gpu"

    async def test_the_first_of_two_tags_decides(self, cluster: Cluster) -> None:
        """The first claimed item decides, if work with several tags was queued before any worker held the session."""
        eu, gpu = await cluster.worker("eu", tags=WorkerTags(tags=("eu",))), await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue("s", tag="gpu")
        await cluster.enqueue("s", tag="eu")
        assert (await eu.take_one()).session_tag == "eu"
        assert (await eu.take_one()).session_tag == "eu"
        assert await gpu.take_all() == []

    async def test_a_row_that_no_work_has_made_has_no_tag(self, cluster: Cluster) -> None:
        """A record that is written by hand gives the session a row, and leaves its tag to its first work."""
        gpu = await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue("s", tag="gpu")
        await (await cluster.states()).save(state("s"))
        await cluster.enqueue("s", tag="gpu")
        assert [item.session_tag for item in await gpu.take_all()] == ["gpu", "gpu"]

    async def test_the_tag_lasts_with_the_record(self, cluster: Cluster) -> None:
        """A sweep keeps the row of a session with a tag while there is a record of its state (contract: sweep)."""
        gpu = await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue("s", "gone", tag="gpu")
        for item in await gpu.take_all():
            write = state_write(item) if item.session_id == "s" else None
            assert await (gpu.ack_with(item, write) if write else gpu.ack(item))
        await cluster.advance(SESSION_LOCK + 100)
        await cluster.sweep(session_retention=50)
        assert set(await cluster.sessions()) == {"s"}
        plain = await cluster.worker("plain")
        await cluster.enqueue("s", "gone")
        assert [item.session_id for item in await plain.take_all()] == ["gone"]
        assert [item.session_tag for item in await gpu.take_all()] == ["gpu"]

    async def test_a_give_back_keeps_the_tag(self, cluster: Cluster) -> None:
        """An item that is given back, or whose worker died, waits for a worker with its tag again."""
        plain, gpu = await cluster.worker("plain"), await cluster.worker("gpu", SHORT_LEASE, tags=GPU)
        await cluster.enqueue(None, "s", tag="gpu")
        assert await gpu.give_back(*await gpu.take_all(), failed=True) == [True, True]
        assert await plain.take_all() == []
        assert len(await gpu.take_all()) == 2
        await cluster.pass_time(SHORT_LEASE + 1)
        assert await plain.take_all() == []
        other = await cluster.worker("other", tags=GPU)
        taken = await other.take_all()
        assert [(item.attempts, item.failures) for item in taken] == [(3, 1)] * 2

    async def test_a_drain_and_an_end_leave_the_tag(self, cluster: Cluster) -> None:
        """Sessions that a worker frees wait for a worker with their tag."""
        plain, first = await cluster.worker("plain"), await cluster.worker("first", tags=GPU)
        second, third = await cluster.worker("second", tags=GPU), await cluster.worker("third", tags=GPU)
        await _gpu_session(cluster, first)
        await cluster.enqueue("s", tag="gpu")
        assert await first.drain() == 0
        assert await plain.take_all() == []
        item = await second.take_one()
        assert await second.give_back(item) == [True]
        await second.leave()
        await cluster.sweep_all()
        assert await plain.take_all() == []
        assert (await third.take_one()).lock.key == item.lock.key

    async def test_a_restart_without_the_tag_leaves_its_sessions(self, cluster: Cluster) -> None:
        """A new incarnation gets the sessions of its name whose work it takes (contract: register_worker)."""
        gpu = await cluster.worker("w", tags=GPU)
        await _gpu_session(cluster, gpu)
        await cluster.use(gpu, "plain")
        assert set(await cluster.holders()) == {"s", "plain"}
        restarted = await cluster.worker("w")
        assert set(await cluster.holders()) == {"plain"}
        await cluster.enqueue("s", "plain")
        await cluster.sweep_all()
        assert [item.session_id for item in await restarted.take_all()] == ["plain"]
        other = await cluster.worker("other", tags=GPU)
        assert [item.session_id for item in await other.take_all()] == ["s"]

    async def test_a_restart_with_only_tags_leaves_untagged_sessions(self, cluster: Cluster) -> None:
        """See above; `WorkerTags.only`."""
        gpu = await cluster.worker("w", tags=GPU)
        await _gpu_session(cluster, gpu)
        await cluster.use(gpu, "plain")
        await cluster.worker("w", tags=ONLY_GPU)
        assert set(await cluster.holders()) == {"s"}

    async def test_the_tags_of_workers_are_listed(self, cluster: Cluster) -> None:
        """`WorkerInfo.tags`, as registered last, also with ``resume``."""
        worker = await cluster.worker("w", tags=ONLY_GPU)

        async def listed() -> tuple[list[str], bool]:
            (row,) = [row for row in await worker.provider.list_workers() if row.worker_id == "w"]
            return list(row.tags), row.only_tagged

        assert await listed() == (["gpu"], True)
        await replace(worker, tags=SEVERAL).register(resume=True)
        assert await listed() == (["gpu", "eu"], False)

    async def test_an_item_says_whether_a_worker_has_its_tag(self, cluster: Cluster) -> None:
        """`WorkItemInfo.tag`, its own or its session's; and ``has_worker``."""
        gpu = await cluster.worker("gpu", SHORT_LEASE, tags=GPU)
        await _gpu_session(cluster, gpu)
        at = await gpu.own("i")
        items = [replace(work_item(at, 1), tag="eu"), replace(work_item(at, 2), tag="gpu"), work_item(at, 3)]
        await gpu.commit_one(at, consumed=message_ids(at), work_items=[*items, work_item(at, 4, "s")])

        async def listed() -> list[tuple[str | None, bool]]:
            return [(row.tag, row.has_worker) for row in await gpu.provider.list_work_items("i", 10)]

        assert await listed() == [("eu", False), ("gpu", True), (None, True), (None, True)]
        await cluster.pass_time(SHORT_LEASE + 1)
        assert await listed() == [("eu", False), ("gpu", False), (None, True), ("gpu", False)]

    async def test_an_offer_to_a_worker_with_the_tag_stands(self, cluster: Cluster) -> None:
        """A tagged item may be offered to its committer; if that does not take it, to all workers with the tag."""
        gpu, other = await cluster.worker("gpu", tags=GPU), await cluster.worker("other", tags=GPU)
        plain = await cluster.worker("plain")
        at = await gpu.own("i")
        offered = [replace(work_item(at, n, f"s{n}"), claim_here=True, tag="gpu") for n in (1, 2)]
        await gpu.commit_one(at, consumed=message_ids(at), work_items=offered)
        assert await other.take_all() == []
        assert (await gpu.take_one()).session_tag == "gpu"
        await cluster.pass_time(2.0)
        assert await plain.take_all() == []
        assert [item.session_tag for item in await other.take_all()] == ["gpu"]

    async def test_an_offer_does_not_bring_a_session_to_a_worker_without_its_tag(self, cluster: Cluster) -> None:
        """An item of a session that has begun with a tag goes to workers with the tag; any worker may commit it."""
        plain, gpu = await cluster.worker("plain"), await cluster.worker("gpu", tags=GPU)
        await _gpu_session(cluster, gpu)
        await gpu.drain()
        at = await plain.own("i")
        offered = replace(work_item(at, 1, "s"), claim_here=True, lock_here=True)
        await plain.commit_one(at, consumed=message_ids(at), work_items=[offered])
        assert await plain.take_all() == []
        other = await cluster.worker("other", tags=GPU)
        assert (await other.take_one()).session_tag == "gpu"

    async def test_tagged_work_is_locked_to_its_committer(self, cluster: Cluster) -> None:
        """``lock_here`` is for tagged work too; given back, it waits for a worker with its tag."""
        plain, gpu = await cluster.worker("plain"), await cluster.worker("gpu", tags=GPU)
        await _gpu_session(cluster, gpu)
        at = await gpu.own("i")
        items = [replace(work_item(at, n, s), lock_here=True, tag="gpu") for n, s in ((1, None), (2, "s"))]
        placed = (await gpu.commit_one(at, consumed=message_ids(at), work_items=items)).placed
        locked = [place.item for place in placed if place.item is not None]
        assert [item.session_tag for item in locked if item.session_id] == ["gpu"]
        assert await gpu.give_back(*locked, release_session=True) == [True, True]
        assert await plain.take_all() == []
        assert len(await (await cluster.worker("other", tags=GPU)).take_all()) == 2

    async def test_room_is_made_for_tagged_work(self, cluster: Cluster) -> None:
        """A full worker releases an idle session for work with one of its tags (contract: release_idle_session)."""
        gpu = await cluster.holder("gpu", "old", tags=GPU)
        await cluster.advance(100.0)
        await cluster.enqueue("new", tag="gpu")
        fetched = await gpu.fetch(max_sessions=1)
        assert fetched.crowded
        assert not fetched.items
        await cluster.advance(2.0)
        options = replace(fetch_options(10, max_sessions=1), tags=GPU)
        released = await gpu.provider.release_idle_session(gpu.identity, options, order=[])
        assert released == ["old"]
        assert (await gpu.take_one(max_sessions=1)).session_tag == "gpu"

    async def test_a_worker_for_any_tag(self, cluster: Cluster) -> None:
        """It counts as one with each tag, inherits all sessions of its name, and fetches with the tags of waiting work
        (contract: list_waiting_tags).
        """
        everything = await cluster.worker("all", tags=ANY)
        await cluster.enqueue(None, "s", tag="gpu")
        await cluster.enqueue(None, tag="eu")
        await cluster.enqueue("t")
        assert sorted(await everything.provider.list_waiting_tags(10)) == ["eu", "gpu"]
        assert len(await everything.provider.list_waiting_tags(1)) == 1
        assert [item.session_id for item in await everything.take_all()] == ["t"]
        found = WorkerTags(tags=await everything.provider.list_waiting_tags(10))
        assert sorted([one.session_id for one in await replace(everything, tags=found).take_all()], key=str) == [
            None,
            None,
            "s",
        ]
        at = await everything.own("i")
        item = replace(work_item(at, 1), tag="other")
        await everything.commit_one(at, consumed=message_ids(at), work_items=[item])
        (row,) = await everything.provider.list_work_items("i", 10)
        assert (row.tag, row.has_worker) == ("other", True)
        await cluster.worker("all", tags=ANY)
        assert set(await cluster.holders()) == {"s", "t"}

    async def test_a_reset_keeps_the_tag(self, cluster: Cluster) -> None:
        """The work items of a reset have their tags (`Reset.work_items`)."""
        plain, gpu = await cluster.worker("plain"), await cluster.worker("gpu", tags=GPU)
        at = await plain.own("i")
        at = await plain.go_on(at, consumed=message_ids(at))
        key = replace(work_item(at, 1), tag="gpu").key._replace(execution_id=at.execution_id + 1)
        reset = reset_of(at, 1, work_items=[replace(work_item(at, 1), key=key, tag="gpu")])
        assert await plain.provider.reset_instance(reset)
        assert await plain.take_all() == []
        assert (await gpu.take_one()).lock.key == key
