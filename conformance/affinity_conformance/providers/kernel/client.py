"""The client's verbs: create, send, read and delete instances."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from affinity.limits import MAX_PAYLOAD_BYTES
from affinity.provider.contract import InstanceFilter, InstanceInfo, InstanceStatus, InstanceUpdate, NewMessage, Reset
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    count_rows,
    message_ids,
    new_instance,
    payloads,
    timer,
    work_item,
)
from affinity_conformance.providers.cluster import ENQUEUER, Cluster
from affinity_conformance.providers.peer import Peer

DONE = InstanceUpdate(status="completed", output='"done"')


class ClientRules(Rules):
    """`create_instance`, `send_message`, `get_instance`, `list_instances`, `delete_instance`."""

    async def test_a_new_instance_is_pending(self, cluster: Cluster) -> None:
        """A new instance is pending in execution 1, without owner, output or event (contract: InstanceInfo)."""
        a = await cluster.worker("a")
        created = new_instance("i", version="1", parent_id="p")
        assert list(await a.provider.create_instance([created])) == [True]
        row = await a.info("i")
        assert (row.instance_id, row.name, row.version, row.parent_id) == ("i", "flow", "1", "p")
        assert (row.status, row.execution_id, row.event_count, row.owner) == ("pending", 1, 0, None)
        assert (row.custom_status, row.output, row.error) == (None, None, None)
        assert row.created_at <= row.updated_at
        assert row.created_at.utcoffset() == timedelta(0)

    async def test_creating_again_changes_nothing(self, cluster: Cluster) -> None:
        """Creating an instance whose id exists changes nothing, even if it has finished (contract: create_instance)."""
        a, instance = await cluster.owner("a", "i")
        again = new_instance("i", name="other", version="9", start="again", parent_id="p")
        assert list(await a.provider.create_instance([again])) == [False]
        assert payloads((await a.take_instances())[0]) == ["start"]
        await a.commit_one(instance, update=DONE)
        before = await a.info("i")
        assert list(await a.provider.create_instance([again])) == [False]
        assert await a.info("i") == before
        assert await a.take_instances() == []

    async def test_a_message_says_what_became_of_it(self, cluster: Cluster) -> None:
        """Sending returns delivered, unknown or finished for each message (contract: send_message)."""
        a = await cluster.worker("a")
        await a.own("i")
        await a.commit_one(await a.own("ended"), update=DONE)
        messages = [NewMessage(instance_id=name, payload=name) for name in ("ended", "i", "missing", "i")]
        outcome = await a.provider.send_message(messages)
        assert list(outcome) == ["finished", "delivered", "unknown", "delivered"]
        assert payloads((await a.take_instances())[0]) == ["start", "i", "i"]
        assert (await count_rows(a.provider))["messages"] == 3

    async def test_the_time_of_a_change_is_kept(self, cluster: Cluster) -> None:
        """``updated_at`` is the time of the last change by the database's clock (contract: InstanceInfo.updated_at)."""
        a, instance = await cluster.owner("a", "i")
        await cluster.advance(1_000)
        await a.commit_one(instance)
        row = await a.info("i")
        assert timedelta(seconds=1_000) <= row.updated_at - row.created_at < timedelta(seconds=1_100)

    async def test_instances_are_listed_newest_first(self, cluster: Cluster) -> None:
        """A listing is ordered by (created_at, instance_id), newest first (contract: InstanceFilter)."""
        client = await cluster.open()
        for names in (["b", "a", "c"], ["e"], ["d"]):
            await client.create_instance([new_instance(name) for name in names])
            await cluster.advance(1)
        rows = [row for row in await client.list_instances(InstanceFilter(), 100) if row.instance_id != ENQUEUER]
        assert {row.instance_id for row in rows} == set("abcde")
        assert [row.instance_id for row in rows][:2] == ["d", "e"]
        assert _keys(rows) == sorted(_keys(rows), reverse=True)

    async def test_a_listing_is_read_page_by_page(self, cluster: Cluster) -> None:
        """Pages have each row once, in order, while instances are added (contract: InstanceFilter.after)."""
        client = await cluster.open()
        await client.create_instance([new_instance(f"i{number}") for number in range(7)])
        whole = _keys(await client.list_instances(InstanceFilter(prefix="i"), 100))
        await cluster.advance(1)
        seen: list[tuple[datetime, str]] = []
        where = InstanceFilter(after=None, prefix="i")
        while rows := await client.list_instances(where, 3):
            assert len(rows) <= 3
            seen += _keys(rows)
            await client.create_instance([new_instance(f"later {len(seen)}")])
            where = InstanceFilter(prefix="i", after=(rows[-1].created_at, rows[-1].instance_id))
        assert seen == whole

    async def test_a_listing_is_filtered_by_status(self, cluster: Cluster) -> None:
        """A listing can be restricted to one status, several, or any (contract: InstanceFilter.status)."""
        a = await cluster.worker("a")
        statuses: list[InstanceStatus] = ["running", "completed", "failed", "cancelled"]
        for status in statuses:
            await a.commit_one(await a.own(status), update=InstanceUpdate(status=status))
        await a.provider.create_instance([new_instance("pending")])
        choices: list[list[InstanceStatus]] = [["pending"], ["failed", "pending"], *([status] for status in statuses)]
        for chosen in choices:
            assert await self._list(a, InstanceFilter(status=chosen)) == sorted(chosen)
        assert await self._list(a, InstanceFilter()) == sorted([*statuses, "pending"])

    async def test_a_listing_is_filtered_by_name_prefix_and_parent(self, cluster: Cluster) -> None:
        """All conditions must hold, and a prefix is plain text, not a pattern (contract: InstanceFilter)."""
        a = await cluster.worker("a")
        ids = ["50%x", "50%y", "500", "x50%", "a_b", "axb", "Axb"]
        await a.provider.create_instance([new_instance(name) for name in ids])
        await a.provider.create_instance([new_instance("50%z", name="other", parent_id="a_b")])
        assert await self._list(a, InstanceFilter(prefix="50%")) == ["50%x", "50%y", "50%z"]
        assert await self._list(a, InstanceFilter(prefix="a_")) == ["a_b"]
        assert await self._list(a, InstanceFilter(prefix="ax")) == ["axb"]
        assert await self._list(a, InstanceFilter(prefix="50%", name="flow")) == ["50%x", "50%y"]
        assert await self._list(a, InstanceFilter(parent_id="a_b")) == ["50%z"]
        assert await self._list(a, InstanceFilter(parent_id="a_b", name="flow")) == []

    async def test_an_instance_has_the_session_that_it_was_started_with(self, cluster: Cluster) -> None:
        """An instance keeps its session id for workers and clients, through executions and a reset (contract:
        NewInstance.session_id).
        """
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i", session_id="s"), new_instance("j")])
        taken = {item.instance_id: item for item in await a.take_instances(2)}
        assert {name: item.session_id for name, item in taken.items()} == {"i": "s", "j": None}
        assert [item.session_id for item in await a.take_instances(1)] == ["s"]
        again = NewMessage(instance_id="i", payload="again")
        await a.commit_one(taken["i"], update=InstanceUpdate(status="running", continued=True), messages=[again])
        (second,) = [item for item in await a.take_instances(2) if item.instance_id == "i"]
        assert (second.execution_id, second.session_id) == (2, "s")
        await a.commit_one(second, update=DONE)
        reset = Reset(
            instance_id="i",
            generation=second.generation,
            execution_id=2,
            event_count=1,
            keep=0,
            history=[],
            messages=[again],
        )
        assert await a.provider.reset_instance(reset)
        assert [row and row.session_id for row in await a.provider.get_instance(["i", "j"])] == ["s", None]

    async def test_a_child_has_the_session_that_its_turn_names(self, cluster: Cluster) -> None:
        """A turn creates each child with a session id, or without one (contract: NewInstance.session_id)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("parent", session_id="s")])
        (parent,) = await a.take_instances()
        of_it = {"parent_id": "parent", "parent_generation": parent.generation}
        await a.commit_one(
            parent, instances=[new_instance("child", **of_it, session_id="s"), new_instance("plain", **of_it)]
        )
        items = {item.instance_id: item.session_id for item in await a.take_instances(3)}
        assert (items["child"], items["plain"]) == ("s", None)

    async def test_a_listing_is_filtered_by_session(self, cluster: Cluster) -> None:
        """A listing by session id works page by page with all other conditions (contract:
        InstanceFilter.session_id).
        """
        a = await cluster.worker("a")
        for name in ("a1", "b1", "b2"):
            await a.provider.create_instance([new_instance(name, session_id="s"), new_instance(f"{name} other")])
            await cluster.advance(1)
        await a.provider.create_instance(
            [new_instance("b3", parent_id="b2", session_id="s"), new_instance("x", session_id="S")]
        )
        assert await self._list(a, InstanceFilter(session_id="s")) == ["a1", "b1", "b2", "b3"]
        assert await self._list(a, InstanceFilter(session_id="s", prefix="b", parent_id="b2")) == ["b3"]
        assert await self._list(a, InstanceFilter(session_id="s", name="other")) == []
        first = await a.provider.list_instances(InstanceFilter(session_id="s"), 2)
        where = InstanceFilter(session_id="s", after=(first[-1].created_at, first[-1].instance_id))
        rest = await a.provider.list_instances(where, 10)
        assert [row.instance_id for row in (*first, *rest)] == ["b3", "b2", "b1", "a1"]

    async def test_a_listing_is_filtered_by_version_and_time(self, cluster: Cluster) -> None:
        """Filters combine with all other conditions, also with a rare status; the second time is excluded. The search
        is bounded (contract: InstanceFilter.created_before, InstanceFilter.most).
        """
        a = await cluster.worker("a")
        for name in ("a", "b", "c"):
            await a.commit_one(await a.own(name), update=InstanceUpdate(status="failed", version=f"{name}.1"))
            await cluster.advance(10)
        first, last = [(await a.info(name)).created_at for name in ("a", "c")]
        statuses: list[list[InstanceStatus]] = [[], ["failed"]]
        for status in statuses:
            assert await self._list(a, InstanceFilter(status=status, version="b.1")) == ["b"]
            assert await self._list(a, InstanceFilter(status=status, version="b")) == []
            between = InstanceFilter(status=status, created_since=first, created_before=last)
            assert await self._list(a, between) == ["a", "b"]
            assert await self._list(a, InstanceFilter(status=status, created_since=last)) == ["c"]
            assert await self._list(a, InstanceFilter(status=status, version="a.1", most=1)) == []
            older = InstanceFilter(status=status, version="a.1", created_before=last, most=2)
            assert await self._list(a, older) == ["a"]

    async def test_a_listing_by_status_goes_with_each_change(self, cluster: Cluster) -> None:
        """A listing has the instances that have one of the given statuses now, in its order, page by page (contract:
        InstanceFilter.status).
        """
        a = await cluster.worker("a")
        owned = {}
        for name in ("f1", "s1", "c1", "f2", "d1", "r1", "f3"):
            owned[name] = await a.own(name)
            await cluster.advance(1)
        ends: dict[str, InstanceStatus] = {"f": "failed", "c": "cancelled", "d": "completed"}
        for name, instance in owned.items():
            if name[0] in ends:
                await a.commit_one(instance, update=InstanceUpdate(status=ends[name[0]]))
        await a.suspend(owned["s1"])
        await a.commit_one(owned["r1"], update=InstanceUpdate(status="running"))
        listings: list[tuple[list[InstanceStatus], list[str]]] = [
            (["failed"], ["f3", "f2", "f1"]),
            (["suspended", "failed", "cancelled", "failed"], ["f3", "f2", "c1", "s1", "f1"]),
            (["completed", "failed"], ["f3", "d1", "f2", "f1"]),
            (["running", "suspended"], ["r1", "s1"]),
        ]
        for statuses, names in listings:
            assert await self._pages(a, statuses) == names
        for where, names in (
            (InstanceFilter(status=["failed"], prefix="f2"), ["f2"]),
            (InstanceFilter(status=["failed"], name="other"), []),
            (InstanceFilter(status=["failed"], reason="Nondeterminism"), []),
            (InstanceFilter(status=["failed"], parent_id="f1"), []),
        ):
            assert await self._list(a, where) == names
        reset = Reset(
            instance_id="f1",
            generation=owned["f1"].generation,
            execution_id=1,
            event_count=1,
            keep=0,
            history=[],
            messages=[],
        )
        assert await a.provider.reset_instance(reset)
        assert list(await a.provider.delete_instance(["f2"])) == ["deleted"]
        assert list(await a.provider.resume_instance(["s1"])) == ["resumed"]
        assert await self._pages(a, ["suspended", "failed"]) == ["f3"]

    async def _pages(self, peer: Peer, statuses: Sequence[InstanceStatus]) -> list[str]:
        """All of a listing by status, two at a time."""
        seen: list[InstanceInfo] = []
        while rows := await peer.provider.list_instances(
            InstanceFilter(status=statuses, after=_keys(seen)[-1] if seen else None), 2
        ):
            seen += rows
        return [row.instance_id for row in seen if row.instance_id != ENQUEUER]

    async def test_a_finished_instance_is_deleted_with_all_its_rows(self, cluster: Cluster) -> None:
        """Deletion removes history and all executions, and the id can be used again (contract: delete_instance)."""
        a, instance = await cluster.owner("a", "i")
        await a.commit_one(instance, history=["1"], update=DONE)
        assert list(await a.provider.delete_instance(["i"])) == ["deleted"]
        assert list(await a.provider.get_instance(["i"])) == [None]
        assert await a.history(instance) == []
        assert list(await a.provider.delete_instance(["i"])) == ["unknown"]
        assert (await a.own("i")).event_count == 0

    async def test_a_running_instance_is_deleted_only_by_force(self, cluster: Cluster) -> None:
        """A running instance is deleted by force only, with its queue rows; without ``tree`` its children stay
        (contract: delete_instance).
        """
        a = await cluster.worker("a")
        before = await count_rows(a.provider)
        instance = await a.own("i")
        child = new_instance("child", parent_id="i")
        await a.commit_one(
            instance, work_items=[work_item(instance, 1, "s")], messages=[timer(instance, 2, 60)], instances=[child]
        )
        assert list(await a.provider.delete_instance(["i"])) == ["running"]
        assert payloads((await a.take_instances(1))[0]) == ["start"]
        assert list(await a.provider.delete_instance(["i"], force=True, tree=False)) == ["deleted"]
        assert [item.instance_id for item in await a.take_instances()] == ["child"]
        after = await count_rows(a.provider)
        grown = {"work_items": 0, "messages": 1, "instances": 1}
        assert {kind: after[kind] - before[kind] for kind in grown} == grown
        assert await a.history(instance) == []

    async def test_a_payload_is_stored_as_it_is(self, cluster: Cluster) -> None:
        """A payload is stored unchanged up to its size limit (limits: MAX_PAYLOAD_BYTES)."""
        a = await cluster.worker("a")
        texts = ["", '"\\u0000"', "'; DROP TABLE instances; --", "é 漢字 🙂\n\t{}", "x" * MAX_PAYLOAD_BYTES]
        instance = await a.own("i")
        await a.commit_one(instance, consumed=message_ids(instance), history=texts)
        await a.provider.send_message([NewMessage(instance_id="i", payload=text) for text in texts])
        assert await a.history(instance) == texts
        assert payloads((await a.take_instances())[0]) == texts

    @staticmethod
    async def _list(peer: Peer, where: InstanceFilter) -> list[str]:
        found = {row.instance_id for row in await peer.provider.list_instances(where, 100)}
        return sorted(found - {ENQUEUER})


def _keys(rows: Sequence[InstanceInfo]) -> list[tuple[datetime, str]]:
    return [(row.created_at, row.instance_id) for row in rows]
