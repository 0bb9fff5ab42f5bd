"""Suspended instances: they keep all their rows, are not fetched, and continue when they are resumed."""

from __future__ import annotations

from datetime import timedelta

from affinity.provider.contract import InstanceFilter, InstanceUpdate, NewMessage, OrchestrationItem, SessionWatch
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    SHORT_LEASE,
    count_rows,
    message_ids,
    new_instance,
    payloads,
    timer,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer


class SuspensionRules(Rules):
    """`suspend_instance`, `retry_suspended` and `resume_instance`."""

    async def test_a_suspended_instance_says_why(self, cluster: Cluster) -> None:
        """A suspended instance shows reason, time, worker and code version until it continues (contract:
        InstanceInfo.suspension).
        """
        a = await cluster.worker("a")
        instance = await a.go_on(await a.own("i"))
        await cluster.advance(100)
        assert await a.suspend(instance, error_type="Nondeterminism", message="é 漢字", code="v1")
        row = await a.info("i")
        assert (row.status, row.event_count, row.error) == ("suspended", 1, None)
        assert row.suspension is not None
        assert (row.suspension.error_type, row.suspension.message) == ("Nondeterminism", "é 漢字")
        assert (row.suspension.worker_id, row.suspension.code) == ("a", "v1")
        assert row.suspension.at - row.created_at >= timedelta(seconds=100)
        await a.provider.resume_instance(["i"])
        row = await a.info("i")
        assert (row.status, row.suspension) == ("running", None)

    async def test_a_suspended_instance_is_fetched_by_no_worker(self, cluster: Cluster) -> None:
        """A suspended instance is not fetched and commits no turn; its history and messages stay (contract: suspended
        instance).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await a.go_on(instance, history=["1"], messages=[timer(instance, 1, 60)])
        (at,) = await a.take_instances()
        assert await a.suspend(at)
        assert not (await a.commit_one(at)).committed
        await cluster.pass_time(100)
        for peer in (a, b):
            fetched = await peer.fetch_instances()
            assert (list(fetched.items), fetched.claim_lost, fetched.next_due) == ([], False, None)
        assert await a.history(at) == ["1"]
        assert (await count_rows(a.provider))["messages"] == 2

    async def test_what_comes_for_a_suspended_instance_is_kept(self, cluster: Cluster) -> None:
        """Events, timers, results, answers of children and moves wait until the instance continues (contract: suspended
        instance).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b", SHORT_LEASE)
        at = await self._busy(cluster, a, b)
        assert await a.suspend(at)
        await self._everything_comes(cluster, a, b)
        assert [item.instance_id for item in await a.take_instances()] == ["parent"]
        assert list(await a.provider.resume_instance(["i"])) == ["resumed"]
        (item,) = [item for item in await a.take_instances() if item.instance_id == "i"]
        assert sorted(payloads(item)) == ["answer", "done", "event", "moved", "start", "timer 2"]

    async def test_resuming_says_what_became_of_it(self, cluster: Cluster) -> None:
        """Resuming returns resumed, unknown or not_suspended, and resumes once (contract: resume_instance)."""
        a = await cluster.worker("a")
        await a.suspend(await a.own("i"))
        await a.own("running")
        outcome = await a.provider.resume_instance(["missing", "i", "running", "i"])
        assert list(outcome) == ["unknown", "resumed", "not_suspended", "not_suspended"]
        assert (await a.info("i")).status == "pending"

    async def test_a_resumed_instance_is_for_anyone(self, cluster: Cluster) -> None:
        """Any worker may take a resumed instance, and its claims and unknown time begin anew (contract:
        resume_instance).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.suspend(await a.own("i"))
        await a.provider.resume_instance(["i"])
        (item,) = await b.take_instances()
        assert (item.claims, item.unknown_for, payloads(item)) == (1, None, ["start"])
        assert (await b.commit_one(item)).committed

    async def test_only_the_owner_suspends_and_only_at_that_point(self, cluster: Cluster) -> None:
        """A suspension has the fence of a turn (contract: Suspend)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await a.own("i")
        second = await a.go_on(first)
        assert not await a.suspend(first)
        assert not await b.suspend(second)
        assert (await a.info("i")).status != "suspended"
        await a.commit_one(second, update=InstanceUpdate(status="completed"))
        assert not await a.suspend(second)
        assert (await a.info("i")).status == "completed"

    async def test_a_worker_without_a_lease_suspends_nothing(self, cluster: Cluster) -> None:
        """A worker whose lease has ended suspends nothing (contract: owned instance)."""
        a, instance = await cluster.owner("a", "i", lease=SHORT_LEASE)
        await cluster.advance(SHORT_LEASE + 1)
        assert not await a.suspend(instance)

    async def test_other_code_takes_what_was_suspended(self, cluster: Cluster) -> None:
        """A worker with another code version resumes a suspended instance as its own, with its messages (contract:
        retry_suspended).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.suspend(await a.own("i"), code="v1")
        assert await a.retry_suspended("v1") == []
        assert await b.retry_suspended("v2") == ["i"]
        assert await a.take_instances() == []
        (item,) = await b.take_instances()
        assert (item.claims, payloads(item)) == (1, ["start"])
        assert (await b.commit_one(item)).committed

    async def test_each_code_tries_once(self, cluster: Cluster) -> None:
        """A code version resumes an instance once at one point of its history, until an operator resumes it (contract:
        retry_suspended).
        """
        a = await cluster.worker("a")
        await a.suspend(await a.own("i"), code="v1")
        assert await a.retry_suspended("v2") == ["i"]
        await a.suspend((await a.take_instances())[0], code="v2")
        assert await a.retry_suspended("v1") + await a.retry_suspended("v2") == []
        assert await a.retry_suspended("v3") == ["i"]
        await a.suspend(await a.go_on((await a.take_instances())[0]), code="v3")
        assert await a.retry_suspended("v1") == ["i"]
        await a.suspend((await a.take_instances())[0], code="v1")
        await a.provider.resume_instance(["i"])
        await a.suspend((await a.take_instances())[0], code="v1")
        assert await a.retry_suspended("v3") == ["i"]

    async def test_code_takes_only_what_it_registers_and_may_try(self, cluster: Cluster) -> None:
        """A worker resumes only instances that it registers and that were suspended with ``needs_code`` (contract:
        retry_suspended).
        """
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("pinned", version="2"), new_instance("poison")])
        pinned, poison = sorted(await a.take_instances(), key=lambda item: item.instance_id)
        await a.suspend(pinned)
        await a.suspend(poison, needs_code=False)
        assert await a.retry_suspended("v2", names=("flow", "flow@1", "other")) == []
        assert await a.retry_suspended("v2", names=("flow@2",)) == ["pinned"]
        assert (await a.info("poison")).status == "suspended"

    async def test_who_leaves_takes_nothing(self, cluster: Cluster) -> None:
        """A worker that drains or has no lease resumes nothing (contract: retry_suspended)."""
        a, b = await cluster.worker("a"), await cluster.worker("b", SHORT_LEASE)
        await a.suspend(await a.own("i"))
        await b.drain()
        assert await b.retry_suspended("v2") == []
        c = await cluster.worker("c", SHORT_LEASE)
        await cluster.advance(SHORT_LEASE + 1)
        assert await c.retry_suspended("v2") == []

    async def test_a_suspended_instance_is_deleted_only_by_force(self, cluster: Cluster) -> None:
        """A suspended instance is deleted by force only, and a successor under its id is not suspended (contract:
        delete_instance).
        """
        a = await cluster.worker("a")
        await a.suspend(await a.own("i"))
        assert list(await a.provider.delete_instance(["i"])) == ["running"]
        assert list(await a.provider.delete_instance(["i"], force=True)) == ["deleted"]
        again = await a.own("i")
        assert (await a.info("i")).suspension is None
        await a.suspend(again, code="v1")
        assert await a.retry_suspended("a") == ["i"]

    async def test_suspended_instances_are_listed_by_reason(self, cluster: Cluster) -> None:
        """Suspended instances are listed by reason, or all of them by status (contract: InstanceFilter.reason)."""
        a = await cluster.worker("a")
        for name, reason in (("i", "Nondeterminism"), ("j", "OrchestrationPoisoned"), ("k", "Nondeterminism")):
            await a.suspend(await a.own(name), error_type=reason)
        await a.own("running")
        for where, names in (
            (InstanceFilter(reason="Nondeterminism"), ["i", "k"]),
            (InstanceFilter(status=["suspended"]), ["i", "j", "k"]),
        ):
            assert sorted(row.instance_id for row in await a.provider.list_instances(where, 10)) == names

    async def _busy(self, cluster: Cluster, a: Peer, b: Peer) -> OrchestrationItem:
        """An instance of a's that waits for everything there is, with work that b has fetched."""
        await a.go_on(await a.own("parent"))
        await cluster.use(b, "s")
        instance = await a.own("i")
        at = await a.go_on(
            instance,
            work_items=[work_item(instance, 1)],
            messages=[timer(instance, 2, 60)],
            watches=[SessionWatch("s", "moved")],
        )
        return at

    async def _everything_comes(self, cluster: Cluster, a: Peer, b: Peer) -> None:
        assert await b.ack(await b.take_one()) == [True]
        sent = await a.provider.send_message([NewMessage(instance_id="i", payload="event")])
        assert list(sent) == ["delivered"]
        (parent,) = await a.take_instances()
        await a.go_on(parent, consumed=message_ids(parent), messages=[NewMessage(instance_id="i", payload="answer")])
        await cluster.worker("b")  # a restart, which moves the session
        await cluster.pass_time(100)
        await a.provider.send_message([NewMessage(instance_id="parent", payload="go")])
