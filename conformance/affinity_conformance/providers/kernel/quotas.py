"""Limits of a database: off unless they are set, the same for all, and enforced by the call that writes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from affinity.errors import QuotaExceeded
from affinity.provider.contract import Delivery, InstanceUpdate, NewMessage, Quotas
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import count_rows, message_ids, new_instance, timer
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.trees import child_of
from affinity_conformance.providers.peer import Peer

ROOMY = 1_000_000


class QuotaRules(Rules):
    """`set_quotas`, and what they do to `create_instance` and `send_message`; and the identity of the database."""

    async def test_a_database_has_a_name_and_may_be_marked_as_encoded(self, cluster: Cluster) -> None:
        """Every provider object reads the same name; a mark lasts, and changes nothing else (contract:
        read_identity, mark_encoded).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        before = await a.provider.read_identity()
        assert before.name
        assert await b.provider.read_identity() == before
        assert (before.encoded, before.check_value) == (False, None)
        assert await a.provider.mark_encoded("first", former=None)
        first = before._replace(encoded=True, check_value="first")
        assert await b.provider.read_identity() == first
        for former in (None, "second"):  # another process was faster
            assert not await a.provider.mark_encoded("second", former=former)
            assert await b.provider.read_identity() == first
        assert await b.provider.mark_encoded("second", former="first")
        assert await a.provider.read_identity() == before._replace(encoded=True, check_value="second")

    async def test_a_database_may_be_marked_as_one_with_a_blob_store(self, cluster: Cluster) -> None:
        """A mark lasts, for every provider object, and changes nothing else (contract: mark_offloaded)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        before = await a.provider.read_identity()
        assert not before.offloaded
        for _ in range(2):
            await a.provider.mark_offloaded()
            assert await b.provider.read_identity() == before._replace(offloaded=True)
        assert await a.provider.mark_encoded("value", former=None)
        marked = before._replace(offloaded=True, encoded=True, check_value="value")
        assert await b.provider.read_identity() == marked

    async def test_there_are_none_until_they_are_set(self, cluster: Cluster) -> None:
        """Every provider object reads the quotas that are set (contract: get_quotas)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        assert await a.provider.get_quotas() == Quotas()
        some = Quotas(instances=10, instance_bytes=2**40)
        await a.provider.set_quotas(some)
        assert await b.provider.get_quotas() == some
        await concurrently(*(partial(peer.provider.set_quotas, Quotas(instances=20)) for peer in (a, b)))
        await b.provider.set_quotas(Quotas())
        assert await a.provider.get_quotas() == Quotas()

    async def test_instances_are_limited(self, cluster: Cluster) -> None:
        """Existing instances count, and a batch that exceeds the limit creates none (contract: Quotas)."""
        a = await cluster.worker("a")
        there = (await count_rows(a.provider))["instances"]
        await a.provider.set_quotas(Quotas(instances=there + 3))
        assert await _create(a, "i", "j") == [True, True]
        with pytest.raises(QuotaExceeded) as caught:
            await _create(a, "k", "l")
        assert (caught.value.quota, caught.value.limit) == ("instances", there + 3)
        assert await a.provider.get_instance(["k"]) == [None]
        assert await _create(a, "k") == [True]
        assert await _create(a, "i", "k") == [False, False]
        assert list(await a.provider.delete_instance(["i", "j"], force=True)) == ["deleted"] * 2
        assert await _create(a, "l", "l", "m") == [True, False, True]
        with pytest.raises(QuotaExceeded):
            await _create(a, "n")
        await a.provider.set_quotas(Quotas())
        assert await _create(a, "n") == [True]

    async def test_children_are_counted_and_not_refused(self, cluster: Cluster) -> None:
        """A turn may create children beyond the quota, and they count (contract: set_quotas)."""
        a, parent = await cluster.owner("a", "parent")
        await a.provider.set_quotas(Quotas(instances=(await count_rows(a.provider))["instances"] + 1))
        await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, "c"), child_of(parent, "d")])
        with pytest.raises(QuotaExceeded):
            await _create(a, "i")

    async def test_unread_events_are_limited(self, cluster: Cluster) -> None:
        """The smaller of the sender's limit and the database's applies; timers and messages without a limit do not
        count (contract: send_message).
        """
        a, at = await cluster.owner("a", "i")
        await a.go_on(at, consumed=message_ids(at), messages=[timer(at, 2, 60)])
        await a.provider.set_quotas(Quotas(unread_events=2))
        assert await _send(a, 3) == ["delivered", "delivered", "full"]
        assert await _send(a, 1, limit=None) == ["delivered"]
        await a.provider.set_quotas(Quotas(unread_events=100))
        assert await _send(a, 2, limit=4) == ["delivered", "full"]

    async def test_the_bytes_of_an_instance_are_limited(self, cluster: Cluster) -> None:
        """The bytes of history and waiting messages are limited; a request to cancel still passes (contract:
        Quotas).
        """
        a, at = await cluster.owner("a", "i")
        await a.provider.set_quotas(Quotas(instance_bytes=100))
        at = await a.go_on(at, consumed=message_ids(at), history=["é" * 15])
        assert await _send(a, 3, payload="x" * 30) == ["delivered", "delivered", "over_quota"]
        assert await _send(a, 1, payload="x" * 10) == ["delivered"]
        assert await _send(a, 1, payload="x", limit=None) == ["delivered"]
        assert await _send(a, 1, payload="x") == ["over_quota"]
        (item,) = await a.take_instances()
        at = await a.go_on(at, consumed=message_ids(item), history=["é" * 30])
        assert await _send(a, 2, payload="x" * 10) == ["delivered", "over_quota"]

    async def test_a_new_execution_begins_without_the_bytes_of_the_one_before(self, cluster: Cluster) -> None:
        """The bytes of an earlier execution, or of an earlier instance of the id, do not count (contract: Quotas)."""
        a, at = await cluster.owner("a", "i")
        await a.provider.set_quotas(Quotas(instance_bytes=100))
        at = await a.go_on(at, consumed=message_ids(at), history=["x" * 95])
        assert await _send(a, 1, payload="x" * 10) == ["over_quota"]
        await a.commit_one(at, history=["on"], update=InstanceUpdate(status="running", continued=True))
        assert await _send(a, 1, payload="x" * 10) == ["delivered"]
        at = replace(at, execution_id=2, event_count=0)
        await a.go_on(at, history=["x" * 95])
        assert await _send(a, 1, payload="x" * 10) == ["over_quota"]
        await a.provider.delete_instance(["i"], force=True)
        await _create(a, "i")
        assert await _send(a, 1, payload="x" * 10) == ["delivered"]

    async def test_a_start_that_is_too_large_is_refused(self, cluster: Cluster) -> None:
        """A start message larger than ``instance_bytes`` is refused (contract: create_instance)."""
        a = await cluster.worker("a")
        await a.provider.set_quotas(Quotas(instance_bytes=100))
        with pytest.raises(QuotaExceeded) as caught:
            await a.provider.create_instance([new_instance("i"), new_instance("j", start="é" * 51)])
        assert (caught.value.quota, caught.value.limit) == ("instance_bytes", 100)
        assert await a.provider.get_instance(["i"]) == [None]


async def _create(a: Peer, *names: str) -> list[bool]:
    return list(await a.provider.create_instance([new_instance(name) for name in names]))


async def _send(a: Peer, number: int, *, payload: str = "event", limit: int | None = ROOMY) -> list[Delivery]:
    message = NewMessage(instance_id="i", payload=payload, unread_limit=limit)
    return list(await a.provider.send_message([message] * number))
