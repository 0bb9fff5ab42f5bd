"""Listings for operators: work items, executions and trees of an instance, and sizes of the queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from affinity.provider.contract import EVENT_HEAD, InstanceUpdate, NewMessage, QueuePart
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, timer, work_item
from affinity_conformance.providers.cluster import ENQUEUER, Cluster
from affinity_conformance.providers.kernel.resets import reset
from affinity_conformance.providers.kernel.trees import child_of

DONE = InstanceUpdate(status="completed", output='"done"')
BEGUN = InstanceUpdate(status="running")
OVER = InstanceUpdate(status="running", continued=True)


class ManagementRules(Rules):
    """`list_work_items`, `list_queue`, `list_executions`, `list_tree`, `measure_queues`, `count_instances`."""

    async def test_work_items_of_an_instance_are_listed(self, cluster: Cluster) -> None:
        """The list has the running, waiting and delayed items of that instance only (contract: WorkItemInfo)."""
        a, at = await cluster.owner("a", "i")
        other = await a.own("j")
        await a.commit_one(other, work_items=[work_item(other, 1)])
        items = [
            replace(work_item(at, 1, "s"), lock_here=True),
            replace(work_item(at, 2), lock_here=True),
            replace(work_item(at, 3), delay=40),
        ]
        await a.commit_one(at, work_items=items)
        waiting, running, delayed = await a.provider.list_work_items("i", 10)
        assert [item.key.activity_id for item in (waiting, running, delayed)] == [1, 2, 3]
        assert (waiting.state, waiting.worker_id, waiting.session_id, waiting.name) == ("waiting", None, "s", "work")
        assert (running.state, running.worker_id, running.attempts, running.failures) == ("running", "a", 1, 0)
        assert (delayed.state, delayed.worker_id, delayed.attempts, delayed.last_error) == ("delayed", None, 0, None)
        assert running.started_at == running.queued_at
        assert waiting.started_at is delayed.started_at is None
        assert 39 < (delayed.visible_at - delayed.queued_at).total_seconds() < 50
        assert len(await a.provider.list_work_items("i", 2)) == 2
        await a.leave()
        assert {item.state for item in await a.provider.list_work_items("i", 2)} == {"waiting"}

    async def test_an_item_that_is_tried_again_says_why(self, cluster: Cluster) -> None:
        """A retried item shows its last error until it is removed (contract: WorkAbandon.error)."""
        a = await cluster.worker("a")
        await a.give_back(await cluster.give(a, None), failed=True, delay=40, error="ValueError: no")
        (item,) = await a.provider.list_work_items(ENQUEUER, 10)
        assert (item.state, item.attempts, item.failures, item.last_error) == ("delayed", 1, 1, "ValueError: no")
        await cluster.advance(40)
        again = await a.take_one()
        (item,) = await a.provider.list_work_items(ENQUEUER, 10)
        assert item.started_at is not None
        assert 40 <= (item.started_at - item.queued_at).total_seconds() < 50
        await a.give_back(again, count_attempt=False)
        (item,) = await a.provider.list_work_items(ENQUEUER, 10)
        assert (item.state, item.attempts, item.last_error) == ("waiting", 1, "ValueError: no")
        await a.give_back(await a.take_one(), failed=True, error="KeyError: 1")
        (item,) = await a.provider.list_work_items(ENQUEUER, 10)
        assert item.last_error == "KeyError: 1"

    async def test_the_parts_of_the_queue(self, cluster: Cluster) -> None:
        """What is tried again, whatever its state, what is delayed otherwise, and what is behind other ordered work; of
        all instances, what is due first (contract: list_queue).
        """
        a, at = await cluster.owner("a", "i")
        items = [
            *(replace(work_item(at, n), delay=delay) for n, delay in ((1, 50.0), (2, 40.0))),
            *(replace(work_item(at, n, "s"), ordered=True) for n in (3, 4)),
        ]
        await a.commit_one(at, work_items=items)
        ordered = await a.take_one()
        for delay in (30.0, 20.0):
            await a.give_back(await cluster.give(a, None), failed=True, delay=delay, error="ValueError: no")

        async def listed(part: QueuePart, limit: int = 10) -> list[tuple[int, str]]:
            return [(item.key.activity_id, item.state) for item in await a.provider.list_queue(part, limit)]

        retried = await a.provider.list_queue("retried", 10)
        assert [(item.failures, item.last_error, item.state) for item in retried] == [
            (1, "ValueError: no", "delayed")
        ] * 2
        assert retried[0].visible_at < retried[1].visible_at
        assert {item.key.instance_id for item in retried} == {ENQUEUER}
        assert await listed("delayed") == [(2, "delayed"), (1, "delayed")]
        assert await listed("delayed", 1) == [(2, "delayed")]
        assert (ordered.lock.key.activity_id, await listed("blocked")) == (3, [(4, "blocked")])
        assert await listed("limited") == []
        assert len(await listed("retried", 1)) == 1
        await cluster.advance(30)
        await a.take_all()
        assert [state for _, state in await listed("retried")] == ["running", "running"]

    async def test_executions_are_listed_with_their_times(self, cluster: Cluster) -> None:
        """Executions are listed newest first, page by page, also without events, and after a reset (contract:
        ExecutionInfo).
        """
        a, at = await cluster.owner("a", "i")
        await cluster.advance(60)
        await a.commit_one(at, history=["1", "x" * 100], update=OVER)
        (now, first) = await a.provider.list_executions("i", 10)
        assert (now.execution_id, now.event_count, now.ended_at, now.last_event) == (2, 0, None, None)
        assert now.started_at == first.ended_at
        assert (first.execution_id, first.event_count, first.last_event) == (1, 2, "x" * EVENT_HEAD)
        assert first.started_at == (await a.info("i")).created_at
        assert first.ended_at is not None
        assert first.started_at is not None
        assert 60 <= (first.ended_at - first.started_at).total_seconds() < 70
        await cluster.advance(60)
        await a.commit_one(replace(at, execution_id=2), history=["2", "3"], update=DONE)
        assert await reset(a, replace(at, execution_id=2, event_count=2), keep=1)
        third, second, _ = await a.provider.list_executions("i", 10)
        assert (third.execution_id, third.event_count, third.ended_at, third.last_event) == (3, 2, None, "reset")
        assert (second.event_count, second.last_event, second.ended_at) == (2, "3", third.started_at)
        assert second.ended_at is not None
        assert now.started_at is not None
        assert 60 <= (second.ended_at - now.started_at).total_seconds() < 70
        pages = [await a.provider.list_executions("i", 2), await a.provider.list_executions("i", 2, before=2)]
        assert [[execution.execution_id for execution in page] for page in pages] == [[3, 2], [1]]
        assert list(await a.provider.list_executions("i", 2, before=1)) == []
        assert list(await a.provider.list_executions("unknown", 2)) == []

    async def test_a_tree_is_an_instance_with_its_children_and_theirs(self, cluster: Cluster) -> None:
        """A tree has the children of that very parent, and theirs (contract: list_tree)."""
        a, root = await cluster.owner("a", "root")
        children = [child_of(root, name) for name in ("x", "y")]
        await a.commit_one(root, consumed=message_ids(root), instances=children)
        found = {item.instance_id: item for item in await a.take_instances()}
        x = found["x"]
        await a.commit_one(x, consumed=message_ids(x), instances=[child_of(x, "z")], update=DONE)
        await a.provider.create_instance([new_instance("stranger", parent_id="unknown")])
        members = {instance.instance_id: instance for instance in await a.provider.list_tree("root", 10)}
        assert {name: instance.parent_id for name, instance in members.items()} == {
            "root": None, "x": "root", "y": "root", "z": "x"
        }  # fmt: skip
        assert [members[name].status for name in ("x", "z")] == ["completed", "pending"]
        assert members["root"].created_at == (await a.info("root")).created_at
        assert [instance.instance_id for instance in await a.provider.list_tree("z", 10)] == ["z"]
        near = {instance.instance_id for instance in await a.provider.list_tree("root", 3)}
        assert near == {"root", "x", "y"}
        assert list(await a.provider.list_tree("unknown", 10)) == []

    async def test_what_there_is_to_do_is_counted(self, cluster: Cluster) -> None:
        """Items and messages are counted by state, up to the limit, with suspended instances (contract:
        QueueStatistics).
        """
        a = await cluster.worker("a")
        empty = await a.provider.measure_queues(100)
        assert sum(empty.work_items.values()) == sum(empty.messages.values()) == 0
        assert (empty.oldest_work_item, empty.oldest_message) == (None, None)
        await cluster.enqueue(None, "s", "s", "t")
        await cluster.enqueue(None, delay=60)
        await a.take(2)
        instance = await a.own("i")
        at = await a.go_on(instance, consumed=message_ids(instance), messages=[timer(instance, 2, 60)], update=BEGUN)
        suspended = await a.own("suspended")
        await a.suspend(suspended)
        await a.own("new")
        await a.provider.send_message([NewMessage(instance_id="i", payload="m")] * 2)
        await cluster.advance(10)
        found = await a.provider.measure_queues(100)
        assert found.work_items == {"running": 2, "waiting": 2, "delayed": 1, "blocked": 0}
        assert found.messages == {"waiting": 3, "delayed": 1, "suspended": 1}
        assert found.suspended - empty.suspended == 1
        for age in (found.oldest_work_item, found.oldest_message):
            assert age is not None
            assert 10 <= age < 20
        most = await a.provider.measure_queues(1)
        assert set(most.messages.values()) == {most.work_items["delayed"]} == {1}
        assert 1 <= most.work_items["running"] + most.work_items["waiting"] <= 2
        assert most.suspended == 1
        for item in await a.take_instances():
            await a.go_on(at if item.instance_id == "i" else item, consumed=message_ids(item))
        assert (await a.provider.measure_queues(100)).oldest_message is None

    async def test_sessions_that_wait_are_counted(self, cluster: Cluster) -> None:
        """Sessions with visible work and no holder count once each, offered ones too, with the age of the oldest item
        (contract: QueueStatistics).
        """
        a = await cluster.holder("a", "held")
        await cluster.enqueue("held", None)
        await cluster.advance(5)
        assert (await a.provider.measure_queues(100)).oldest_waiting_session is None
        await cluster.enqueue("s", "s", "t")
        await cluster.enqueue("later", delay=60)
        assert (await a.provider.measure_queues(100)).waiting_sessions == 2
        await cluster.advance(10)
        await cluster.offer(a, "offered")
        found = await a.provider.measure_queues(100)
        assert found.waiting_sessions == 3
        assert found.oldest_waiting_session is not None
        assert 10 <= found.oldest_waiting_session < 15
        await a.take_all()
        found = await a.provider.measure_queues(100)
        assert (found.waiting_sessions, found.oldest_waiting_session) == (0, None)

    async def test_work_that_waits_for_any_worker_is_sampled(self, cluster: Cluster) -> None:
        """The sample counts by kind, name and tag. It leaves out work of held sessions, running work and later work,
        and has at most ``limit`` of each route (contract: sample_waiting_work).
        """
        a = await cluster.holder("a", "held")
        await cluster.enqueue("held", name="held")
        await cluster.enqueue(None, name="later", delay=60)
        await cluster.enqueue("s", None, None, name="pay")
        await cluster.enqueue("t", name="pay", tag="gpu")
        await cluster.advance(5)
        await a.provider.create_instance([new_instance("first", name="flow", version="1"), new_instance("second")])
        sample = await a.provider.sample_waiting_work(100)
        counts = Counter[object]()
        for waiting in sample:
            counts[waiting.kind, waiting.name, waiting.tag] += waiting.count
        assert counts == {
            ("activities", "pay", None): 3,
            ("activities", "pay", "gpu"): 1,
            ("orchestrations", "flow@1", None): 1,
            ("orchestrations", new_instance("second").name, None): 1,
        }
        assert {waiting.instance_id for waiting in sample} == {ENQUEUER, "first", "second"}
        since = {waiting.kind: waiting.since for waiting in sample}
        assert None not in since.values()
        assert since["activities"] < since["orchestrations"]  # type: ignore[operator]
        assert {waiting.count for waiting in await a.provider.sample_waiting_work(1)} == {1}
        await a.take_all()
        left = [waiting for waiting in await a.provider.sample_waiting_work(100) if waiting.kind == "activities"]
        assert [(waiting.name, waiting.tag) for waiting in left] == [("pay", "gpu")]

    async def test_instances_are_counted_by_status(self, cluster: Cluster) -> None:
        """Instances are counted by status, page by page (contract: count_instances)."""
        a = await cluster.worker("a")
        empty = await a.provider.count_instances(100)
        for name in ("x", "y", "z"):
            await a.commit_one(await a.own(name), update=DONE)
        await a.commit_one(await a.own("i"), update=BEGUN)
        await a.suspend(await a.own("j"))
        await a.own("k")
        expected = Counter(empty.counts) + Counter({"completed": 3, "running": 1, "suspended": 1, "pending": 1})
        whole = await a.provider.count_instances(100)
        assert (Counter(whole.counts), whole.after) == (expected, None)
        pages = [await a.provider.count_instances(2)]
        while (after := pages[-1].after) is not None:
            pages.append(await a.provider.count_instances(2, after=after))
        assert all(sum(page.counts.values()) <= 2 for page in pages)
        assert sum((Counter(page.counts) for page in pages), Counter[str]()) == expected

    async def test_instances_of_each_status_are_counted_up_to_a_limit(self, cluster: Cluster) -> None:
        """Numbers are exact up to the limit, or say that there may be more (contract: count_statuses)."""
        a = await cluster.worker("a")
        before = Counter((await a.provider.count_statuses(100)).counts)
        ends: dict[str, InstanceUpdate] = {
            "completed": DONE,
            "failed": InstanceUpdate(status="failed", error="{}"),
            "cancelled": InstanceUpdate(status="cancelled", error="{}"),
        }
        for status, count in (("completed", 3), ("failed", 2), ("cancelled", 1)):
            for n in range(count):
                await a.commit_one(await a.own(f"{status}-{n}"), update=ends[status])
        for n in range(4):
            await a.commit_one(await a.own(f"running-{n}"), update=BEGUN)
        await a.suspend(await a.own("suspended"))
        await a.own("pending")
        expected = Counter(completed=3, failed=2, cancelled=1, running=4, suspended=1, pending=1) + before
        whole = await a.provider.count_statuses(100)
        assert (Counter(whole.counts), len(whole.counts), list(whole.at_least)) == (expected, 6, [])
        for limit in (1, 2, 3, 4):
            found = await a.provider.count_statuses(limit)
            for status, number in found.counts.items():
                assert number <= min(limit, expected[status])
                assert status in found.at_least or number == expected[status]
            assert {status for status, number in expected.items() if number > limit} <= {*found.at_least}
            if limit == 4:  # no group has more than twice of that
                assert {*found.at_least} == {status for status, number in expected.items() if number > limit}
        await a.provider.delete_instance(["failed-0"])
        expected["failed"] -= 1
        assert Counter((await a.provider.count_statuses(100)).counts) == expected
