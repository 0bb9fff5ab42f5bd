"""Ids: every id that `affinity.limits.check_id` accepts is a name, of any script and length."""

from __future__ import annotations

from typing import Final

import pytest

from affinity.limits import MAX_ID_BYTES, check_id
from affinity.provider.contract import InstanceFilter, InstanceUpdate, NewMessage, Release
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, payloads, work_item
from affinity_conformance.providers.cluster import Cluster

IDS: Final = {
    "route free": "free",
    "route new": "new",
    "route worker": "w:b",
    "quotes": """it's "quoted" `so` $$ \\ ; --""",
    "patterns": "100%_[a-z]*?{}%s:x@y",
    "array": '{"a",NULL}',
    "null": "NULL",
    "spaces": "  spaced  out ",
    "unicode": "日本語 🙂 Ünïcödé",
    "case": "İıßſ",
    "longest": "x" * MAX_ID_BYTES,
    "longest in bytes": "🙂" * (MAX_ID_BYTES // 4),
}

exotic_id: pytest.MarkDecorator = pytest.mark.parametrize("exotic", IDS.values(), ids=IDS.keys())


class IdRules(Rules):
    """Workers, sessions, instances and names, called by such an id."""

    @exotic_id
    async def test_work_flows_under_any_id(self, cluster: Cluster, exotic: str) -> None:
        """Sessions under any valid id are claimed, kept, touched, released and listed (limits: check_id)."""
        check_id(exotic, "id")
        a, b = await cluster.worker(exotic), await cluster.worker("b")
        await cluster.enqueue(exotic, name=exotic)
        item = await a.take_one(names=[exotic])
        assert (item.session_id, item.name) == (exotic, exotic)
        assert await cluster.holders() == {exotic: exotic}
        await cluster.enqueue(exotic)
        assert await b.take() == []
        assert await a.renew(item) == [True]
        assert await a.ack(item) == [True]
        assert await a.drain() == 0
        assert (await b.take_one()).session_id == exotic
        assert await cluster.holders() == {exotic: "b"}

    @exotic_id
    async def test_instances_live_under_any_id(self, cluster: Cluster, exotic: str) -> None:
        """Instances under any valid id are created, owned, messaged, committed, listed, handed over and deleted
        (limits: check_id).
        """
        a, b = await cluster.worker(exotic), await cluster.worker("b")
        created = new_instance(exotic, name=exotic, version=exotic)
        assert list(await b.provider.create_instance([created])) == [True]
        (item,) = await a.take_instances(names=[f"{exotic}@{exotic}"])
        assert await b.take_instances() == []
        result = await a.commit_one(item, consumed=message_ids(item), work_items=[work_item(item, 1, exotic)])
        assert result.committed
        assert await a.history(item) == ["event"]
        found = await b.provider.list_instances(InstanceFilter(prefix=exotic, name=exotic), 10)
        assert [(row.instance_id, row.owner) for row in found] == [(exotic, exotic)]
        await b.provider.send_message([NewMessage(instance_id=exotic, payload=exotic)])
        await a.provider.release_instance(a.identity, [Release(instance_id=exotic, to="b")])
        (given,) = await b.take_instances()
        assert payloads(given) == [exotic]
        await b.commit_one(given, update=InstanceUpdate(status="completed"))
        assert list(await a.provider.delete_instance([exotic])) == ["deleted"]

    async def test_ids_that_differ_are_different(self, cluster: Cluster) -> None:
        """Ids that differ in case, spaces or composition are different (limits: check_id)."""
        a, b = await cluster.worker("a"), await cluster.worker("A")
        ids = ["s", "S", " s", "s ", "\u00e9", "e\u0301", "w:s", "w:w:s"]
        await cluster.enqueue(*ids)
        assert len(await a.take(len(ids) // 2)) + len(await b.take(len(ids))) == len(ids)
        assert set(await cluster.sessions()) == set(ids)
        assert set((await cluster.holders()).values()) == {"a", "A"}
        assert list(await a.provider.create_instance([new_instance(name) for name in ids])) == [True] * len(ids)
