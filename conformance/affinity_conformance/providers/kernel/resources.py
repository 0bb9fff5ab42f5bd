"""Resources that outlive a process: begun with an activity, used by records, destroyed when nothing uses them."""

from __future__ import annotations

import pytest

from affinity.records import ActivityKey, DurableResource, ResourceStore
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import state
from affinity_conformance.providers.cluster import Cluster

KEY: ActivityKey = ("i", 1, 1)
LABEL = "affinity.resource/box"


class ResourceRules(Rules):
    """`affinity.records.ResourceStore` (contract: WorkerProvider)."""

    @pytest.fixture
    async def store(self, cluster: Cluster) -> ResourceStore:
        """The store of the test's database."""
        return (await cluster.enqueuer()).provider

    async def test_a_resource_is_begun_created_and_found(self, store: ResourceStore) -> None:
        """It is not found until it is created (contract: begin_resource, set_resource_handle, get_resource)."""
        assert await store.begin_resource("r", "box", KEY, held=None) == DurableResource("r", "box", None)
        assert await store.get_resource("r") is None
        assert await store.set_resource_handle("r", "{}") is True
        assert await store.get_resource("r") == DurableResource("r", "box", "{}")
        assert await store.set_resource_handle("unknown", "{}") is False

    async def test_a_later_attempt_goes_on_with_it(self, store: ResourceStore) -> None:
        """A created resource belongs to all attempts of its activity; an uncreated one stays as it is. The next
        activity gets a resource that the session holds from a failed one.
        """
        await store.begin_resource("lost", "box", KEY, held=None)
        await store.begin_resource("r", "box", KEY, held=None)
        await store.set_resource_handle("r", "1")
        found = DurableResource("r", "box", "1")
        assert await store.begin_resource("new", "box", KEY, held=None) == found
        assert (await store.begin_resource("bag", "bag", KEY, held=None)).handle is None
        other = ("i", 1, 2)
        assert (await store.begin_resource("s", "box", other, held=None)).resource_id == "s"
        assert await store.begin_resource("t", "box", other, held="r") == found
        assert (await store.begin_resource("u", "box", KEY, held="unknown")).resource_id == "u"

    async def test_one_that_was_there_before_the_activity_was_queued_is_of_another(
        self, cluster: Cluster, store: ResourceStore
    ) -> None:
        """Instances of one id have the same keys; what its session holds is this activity's all the same."""
        (key,) = await cluster.enqueue("s")
        worker = await cluster.worker("w")
        item = await worker.take_one()
        await cluster.advance(1)
        await store.begin_resource("r", "box", key, held=None)
        await store.set_resource_handle("r", "1")
        await cluster.advance(1)
        assert (await store.begin_resource("new", "box", key, held=None)).resource_id == "r"
        assert await worker.ack(item) == [True]
        await cluster.advance(1)
        await cluster.enqueue("t", key=key)
        assert (await store.begin_resource("x", "box", key, held=None)).resource_id == "x"
        assert (await store.begin_resource("y", "box", key, held="r")).resource_id == "r"
        assert (await store.begin_resource("z", "box", key, held=None)).resource_id == "r"

    async def test_the_clock_does_not_tell_instances_of_one_id_apart(
        self, cluster: Cluster, store: ResourceStore
    ) -> None:
        """The clock of another server may be behind: the part of an id before its hyphen decides, if it has one."""
        (key,) = await cluster.enqueue("s")
        worker = await cluster.worker("w")
        item = await worker.take_one()
        await cluster.advance(-30)
        await store.begin_resource("first-r", "box", key, held=None)
        await store.set_resource_handle("first-r", "1")
        assert (await store.begin_resource("first-s", "box", key, held=None)).resource_id == "first-r"
        assert await worker.ack(item) == [True]
        await cluster.advance(-30)
        await cluster.enqueue("t", key=key)
        assert (await store.begin_resource("later-r", "box", key, held=None)).resource_id == "later-r"
        assert (await store.begin_resource("later-s", "box", key, held="first-r")).resource_id == "first-r"

    async def test_it_is_unused_once_its_activity_has_ended_without_a_record(
        self, cluster: Cluster, store: ResourceStore
    ) -> None:
        """It is not taken while its activity is queued, or a record has it; a taken resource is not found."""
        (key,) = await cluster.enqueue("s")
        worker = await cluster.worker("w")
        item = await worker.take_one()
        await store.begin_resource("r", "box", (key.instance_id, key.execution_id, key.activity_id), held=None)
        await store.set_resource_handle("r", "1")

        async def take(*names: str) -> list[str]:
            found = await store.take_unused_resources(names or ("box",), limit=10, seconds=60)
            return [resource.resource_id for resource in found]

        assert await take() == []
        assert await store.find_unused_resources(without=[], limit=10) == []
        states = await cluster.states()
        await states.save(state("s", labels={LABEL: "r"}))
        await states.save(state("copy", labels={LABEL: "r"}))
        assert await worker.ack(item) == [True]
        assert await take() == []
        await states.delete(["s"])
        assert await take() == []
        await states.save(state("copy", labels={LABEL: "closed"}))
        assert await take("bag") == []
        assert await store.find_unused_resources(without=["box"], limit=10) == []
        (found,) = await store.find_unused_resources(without=["bag"], limit=10)
        assert found == DurableResource("r", "box", "1")
        assert await take() == ["r"]
        assert await take() == []
        assert await store.find_unused_resources(without=[], limit=10) == []
        assert await store.get_resource("r") is None
        assert await store.set_resource_handle("r", "2") is False
        assert (await store.begin_resource("x", "box", KEY, held="r")).resource_id == "x"
        await cluster.advance(61)
        assert sorted(await take()) == ["r", "x"]
        await store.remove_resources(["r", "x"])
        await cluster.advance(61)
        assert await take() == []
