"""Labels of instances: what has them, how they change, and listings by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from affinity.provider.contract import (
    InstanceFilter,
    InstanceInfo,
    InstanceStatus,
    InstanceUpdate,
    NewMessage,
    Restart,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, reset_of, turn
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.kernel.trees import child_of
from affinity_conformance.providers.peer import Peer

ACME = {"tenant": "acme"}
GOLD = {"tenant": "acme", "tier": "gold"}


class LabelRules(Rules):
    """`NewInstance.labels`, `Turn.labels`, `InstanceFilter.labels`, `count_matching`."""

    async def test_an_instance_has_the_labels_that_it_was_created_with(self, cluster: Cluster) -> None:
        """Labels are read as they were written, whatever characters they have; without them there are none (contract:
        NewInstance.labels).
        """
        a = await cluster.worker("a")
        exotic = {'a"b\\c': "é 漢字 🙂", "$.x": "'; DROP TABLE instances; --", "%_": "{}"}
        await a.provider.create_instance(
            [new_instance("i", labels=GOLD), new_instance("j"), new_instance("k", labels=exotic)]
        )
        assert [dict((await a.info(name)).labels) for name in ("i", "j", "k")] == [GOLD, {}, exotic]
        for key, value in exotic.items():
            assert await listed(a, labels={key: value}) == ["k"]
        assert await listed(a, labels={"%_": "["}) == []

    async def test_an_id_that_is_taken_keeps_its_labels(self, cluster: Cluster) -> None:
        """A start of an id that is taken changes nothing (contract: create_instance)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i", labels=ACME)])
        assert list(await a.provider.create_instance([new_instance("i", labels=GOLD)])) == [False]
        assert (await a.info("i")).labels == ACME
        assert await listed(a, labels=GOLD) == []

    async def test_a_listing_has_the_instances_with_all_labels(self, cluster: Cluster) -> None:
        """All labels must be there, with these values (contract: InstanceFilter.labels)."""
        a = await cluster.worker("a")
        given: dict[str, Mapping[str, str]] = {"a": ACME, "b": GOLD, "c": {"tier": "gold"}, "d": {"tenant": "Acme"}}
        for name, labels in given.items():
            await a.provider.create_instance([new_instance(name, labels=labels), new_instance(f"{name} without")])
            await cluster.advance(1)
        assert await listed(a, labels=ACME) == ["b", "a"]
        assert await listed(a, labels=GOLD) == ["b"]
        assert await listed(a, labels={"tier": "gold", "tenant": "other"}) == []
        assert await listed(a, labels={"tenant": "acme", "tier": "gold"}, name="flow") == ["b"]
        assert await listed(a, labels=ACME, name="other") == []
        assert await listed(a, labels=ACME, prefix="a") == ["a"]
        last = (await a.info("b")).created_at
        assert await listed(a, labels=ACME, created_since=last) == ["b"]
        assert await listed(a, labels=ACME, created_before=last) == ["a"]
        assert await listed(a, labels=ACME, most=1, prefix="a") == []
        assert await listed(a, labels=ACME, oldest_first=True, most=1, prefix="a") == ["a"]

    async def test_a_bound_is_exact_among_instances_of_one_moment(self, cluster: Cluster) -> None:
        """A listing looks at so many of the first instances that have its labels and a status of a wanted phase, also
        where many have started at one moment, or are of several phases, and over all its pages; others of them leave no
        gap (contract: InstanceFilter.most).
        """
        a = await cluster.worker("a")
        names = [f"i{number}" for number in range(12)]
        labels = {name: {**GOLD, "half": str(number % 2)} for number, name in enumerate(names)}
        await a.provider.create_instance([new_instance(name, labels=labels[name]) for name in names])
        fetched: dict[str, Any] = {}
        while len(fetched) < len(names):
            fetched |= {at.instance_id: at for at in await a.take_instances(100)}
        ends: list[InstanceStatus] = ["completed", "failed", "cancelled"]
        for number, status in enumerate(ends * 2):
            await a.commit_one(fetched[names[number * 2 % 12 + number // 6]], update=InstanceUpdate(status=status))
        order = await listed(a, labels=GOLD)
        assert sorted(order) == sorted(names)
        assert len({(await a.info(name)).created_at for name in names}) == 1
        for oldest_first in (False, True):
            inside = order[::-1] if oldest_first else order
            for most in (1, 2, 3, 5, 8, 12, 20):
                where: dict[str, Any] = {"labels": GOLD, "most": most, "oldest_first": oldest_first}
                assert await listed(a, **where) == inside[:most]
                assert await paged(a, **where) == inside[:most]
                (first,) = inside[:1]
                assert await listed(a, **where, prefix=first) == [
                    each for each in inside[:most] if first in each[: len(first)]
                ]
                odd = [each for each in inside if labels[each]["half"] == "1"]
                assert await paged(a, **{**where, "labels": {"half": "1", "tenant": "acme"}}) == odd[:most]
                rare = [each for each in inside if (await a.info(each)).status in {"failed", "cancelled"}]
                rares: dict[str, Any] = {"status": ["cancelled", "failed"], "oldest_first": oldest_first, "most": most}
                assert await paged(a, **rares) == rare[:most]
                assert await paged(a, **rares, labels=GOLD) == rare[:most]
                every = await listed(a, oldest_first=oldest_first)
                assert await paged(a, most=most, oldest_first=oldest_first) == every[:most]
                assert await paged(a, most=most, oldest_first=oldest_first, name="none") == []
                if not oldest_first:
                    for size in (1, 3, 100):
                        counts = await counted(a, size, labels=GOLD, most=most)
                        assert sum(counts.values()) == min(most, 12), (most, size, counts)

    async def test_a_listing_by_the_end_has_what_has_ended(self, cluster: Cluster) -> None:
        """Ordered by the time of the end, page by page, also among ends of one moment; ordered by duration, of those
        that ended last; a restarted instance has not ended (contract: InstanceFilter.order).
        """
        a = await cluster.worker("a")
        owned = {}
        for name in ("slow", "quick", "other", "again", "opens"):
            owned[name] = await a.own(name, labels=ACME if name != "other" else GOLD)
            await cluster.advance(10)
        for name in ("opens", "quick", "other", "slow", "again"):
            status: InstanceStatus = "failed" if name in {"opens", "other"} else "completed"
            await a.commit_one(owned[name], update=InstanceUpdate(status=status))
            await cluster.advance(0 if name == "quick" else 5)
        new = new_instance("again")
        assert [*await a.provider.restart_instance([Restart(new=new, ended=owned["again"].generation)])] == [True]
        order = await listed(a, order="ended")
        assert (order[0], {*order[1:3]}, order[3:]) == ("slow", {"quick", "other"}, ["opens"])
        assert await paged(a, order="ended") == order
        assert await paged(a, order="ended", oldest_first=True) == order[::-1]
        for most in (1, 2, 3, 9):
            assert await paged(a, order="ended", most=most) == order[:most]
            assert await paged(a, order="ended", most=most, oldest_first=True) == order[::-1][:most]
        assert await listed(a, order="ended", most=3, status=["failed"]) == ["other"]
        assert await listed(a, order="ended", status=["failed"], labels=ACME) == ["other", "opens"]
        assert await listed(a, order="ended", status=["failed"], labels=GOLD) == ["other"]
        assert await listed(a, order="ended", status=["running", "suspended"]) == []
        assert await listed(a, order="ended", session_id="none") == []
        assert await listed(a, order="duration", most=9) == ["slow", "quick", "other", "opens"]
        assert await listed(a, order="duration", most=9, oldest_first=True) == ["opens", "other", "quick", "slow"]
        assert await listed(a, order="duration", most=1) == ["slow"]

    async def test_a_listing_by_the_ending_of_names(self, cluster: Cluster) -> None:
        """With one ending, or without any of several; counts have the same conditions (contract:
        InstanceFilter.name_suffix, InstanceFilter.without_suffix).
        """
        a = await cluster.worker("a")
        named = {"c": "chat.conversation", "f": "flow", "%": "conversation", "s": "x.chat"}
        await a.provider.create_instance([new_instance(key, name=name, labels=ACME) for key, name in named.items()])
        for labels in ({}, ACME):
            assert await listed(a, labels=labels, name_suffix=".conversation") == ["c"]
            assert await listed(a, labels=labels, name_suffix="%") == []
            assert sorted(await listed(a, labels=labels, without_suffix=[".conversation", "low"])) == ["%", "s"]
            assert await counted(a, 10, labels=labels, without_suffix=[".conversation", "low"]) == {"pending": 2}

    async def test_labels_combine_with_a_parent_and_a_session(self, cluster: Cluster) -> None:
        """All conditions must hold (contract: InstanceFilter.labels)."""
        a = await cluster.worker("a")
        parent = await a.own("parent", session_id="s", labels=GOLD)
        children = [child_of(parent, "x", labels=ACME), child_of(parent, "y")]
        await a.commit_one(parent, instances=children)
        assert await listed(a, labels=ACME, parent_id="parent") == ["x"]
        assert await listed(a, labels=ACME, session_id="s") == ["parent"]
        assert sorted(await listed(a, labels=ACME)) == ["parent", "x"]

    async def test_a_listing_by_labels_goes_with_each_change_of_status(self, cluster: Cluster) -> None:
        """By labels and any statuses, a listing has the instances that have one of these now, page by page, newest or
        oldest first (contract: InstanceFilter.labels, InstanceFilter.oldest_first).
        """
        a = await cluster.worker("a")
        ends: dict[str, InstanceStatus] = {"f": "failed", "c": "cancelled", "d": "completed"}
        owned = {}
        for name in ("f1", "s1", "c1", "f2", "d1", "r1", "f3"):
            owned[name] = await a.own(name, labels=GOLD if name == "f2" else ACME)
            await a.own(f"{name} without")
            await cluster.advance(1)
        assert await listed(a, labels=ACME, status=["running", "pending"]) == ["f3", "r1", "d1", "f2", "c1", "s1", "f1"]
        for name, at in owned.items():
            if name[0] in ends:
                await a.commit_one(at, update=InstanceUpdate(status=ends[name[0]]))
        await a.suspend(owned["s1"])
        await a.commit_one(owned["r1"], update=InstanceUpdate(status="running"))
        listings: list[tuple[list[InstanceStatus], list[str]]] = [
            (["failed"], ["f3", "f2", "f1"]),
            (["suspended", "failed", "cancelled", "failed"], ["f3", "f2", "c1", "s1", "f1"]),
            (["completed", "failed"], ["f3", "d1", "f2", "f1"]),
            (["running", "suspended"], ["r1", "s1"]),
            (["pending"], []),
            ([], ["f3", "r1", "d1", "f2", "c1", "s1", "f1"]),
        ]
        for status, names in listings:
            assert await paged(a, labels=ACME, status=status) == names
            assert await paged(a, labels=ACME, status=status, oldest_first=True) == names[::-1]
            assert await paged(a, labels=GOLD, status=status) == [name for name in names if name == "f2"]
        every = await paged(a)
        assert len(every) > len(listings[-1][1])
        assert await paged(a, oldest_first=True) == every[::-1]
        assert await paged(a, status=["failed", "suspended"], oldest_first=True) == ["f1", "s1", "f2", "f3"]
        assert await paged(a, labels=ACME, reason="Nondeterminism") == ["s1"]
        assert await a.provider.reset_instance(reset_of(replace(owned["f1"], event_count=1), 0, labels=GOLD))
        assert list(await a.provider.delete_instance(["f2"])) == ["deleted"]
        assert list(await a.provider.resume_instance(["s1"])) == ["resumed"]
        assert await paged(a, labels=ACME, status=["failed", "suspended"]) == ["f3"]
        assert await paged(a, labels=ACME, status=["running", "pending"]) == ["r1", "s1", "f1"]
        assert await paged(a, labels=GOLD) == ["f1"]

    async def test_a_turn_sets_labels(self, cluster: Cluster) -> None:
        """A turn replaces the labels of its instance, also the turn that ends it, or removes them; those of others stay
        (contract: Turn.labels).
        """
        a = await cluster.worker("a")
        first, second = await a.own("i", labels=ACME), await a.own("j", labels=ACME)
        results = await a.commit(turn(first, labels=GOLD), turn(second))
        assert [result.committed for result in results] == [True, True]
        assert (await a.info("i")).labels == GOLD
        assert await listed(a, labels={"tier": "gold"}) == ["i"]
        at = replace(first, event_count=first.event_count + 1)
        done = InstanceUpdate(status="completed", output="1")
        assert (await a.commit_one(at, labels={"tier": "new"}, update=done)).committed
        assert await listed(a, labels={"tier": "new"}, status=["completed"]) == ["i"]
        assert await listed(a, labels=ACME) == ["j"]
        later = replace(second, event_count=second.event_count + 1)
        assert (await a.commit_one(later, labels={})).committed
        assert (await a.info("j")).labels == {}
        assert await listed(a, labels=ACME) == []

    async def test_a_refused_turn_sets_no_labels(self, cluster: Cluster) -> None:
        """A turn is applied whole or not at all (contract: Turn)."""
        a = await cluster.worker("a")
        at = await a.own("i", labels=ACME)
        await a.commit_one(at, history=["1"])
        assert not (await a.commit_one(at, labels=GOLD)).committed
        assert (await a.info("i")).labels == ACME
        assert await listed(a, labels=GOLD) == []

    async def test_a_turn_creates_children_with_labels(self, cluster: Cluster) -> None:
        """A child has the labels that the turn names, and no others (contract: NewInstance.labels)."""
        a = await cluster.worker("a")
        parent = await a.own("parent", labels=GOLD)
        await a.commit_one(parent, instances=[child_of(parent, "x", labels=ACME), child_of(parent, "y")])
        assert (await a.info("x")).labels == ACME
        assert (await a.info("y")).labels == {}

    async def test_labels_stay_over_executions(self, cluster: Cluster) -> None:
        """An execution that goes on as another one keeps the labels of its instance (contract: NewInstance.labels)."""
        a = await cluster.worker("a")
        at = await a.own("i", labels=ACME)
        again = NewMessage(instance_id="i", payload="again")
        await a.commit_one(
            at,
            consumed=message_ids(at),
            update=InstanceUpdate(status="running", continued=True),
            messages=[again],
        )
        assert (await a.info("i")).labels == ACME
        assert await listed(a, labels=ACME, status=["running"]) == ["i"]

    async def test_a_restart_gives_its_labels(self, cluster: Cluster) -> None:
        """A new generation has the labels of its start, also of one that waited for the end of the former one, or that
        replaced a start which waited (contract: Restart).
        """
        a = await cluster.worker("a")
        for name, labels in (("i", GOLD), ("j", {})):
            at = await a.own(name, labels=ACME)
            await a.commit_one(at, update=InstanceUpdate(status="failed", error="{}"))
            restart = Restart(new=new_instance(name, labels=labels), ended=at.generation)
            assert list(await a.provider.restart_instance([restart])) == [True]
            assert (await a.info(name)).labels == labels
        assert await listed(a, labels=ACME) == ["i"]
        await a.provider.create_instance([new_instance("w", labels=ACME, delay=60.0)])
        waiting = await a.info("w")
        other = Restart(new=new_instance("w", labels=GOLD, delay=60.0), ended=waiting.generation, when="waiting")
        assert list(await a.provider.restart_instance([other])) == [True]
        assert sorted(await listed(a, labels=GOLD)) == ["i", "w"]

    async def test_a_start_that_waited_has_its_labels(self, cluster: Cluster) -> None:
        """A start that waits for the end of an instance begins with its own labels (contract: Restart)."""
        a = await cluster.worker("a")
        at = await a.own("i", labels=ACME)
        following = new_instance("i", labels=GOLD)
        queued = await a.provider.restart_instance([Restart(new=following, ended=at.generation, when="next")])
        assert list(queued) == [True]
        assert (await a.info("i")).labels == ACME
        await a.commit_one(at, update=InstanceUpdate(status="completed", output="1"))
        await cluster.sweep()
        assert (await a.info("i")).labels == GOLD
        assert await listed(a, labels=ACME, status=["pending"]) == ["i"]
        assert await listed(a, labels=ACME, status=["completed"]) == []

    async def test_matching_instances_are_counted(self, cluster: Cluster) -> None:
        """Instances are counted by status under the conditions of a listing, by pages (contract: count_matching)."""
        a = await cluster.worker("a")
        for number in range(5):
            at = await a.own(f"i{number}", labels=GOLD if number % 2 else ACME)
            if number < 2:
                await a.commit_one(at, update=InstanceUpdate(status="failed", error="{}"))
            elif number == 2:
                await a.commit_one(at, update=InstanceUpdate(status="completed", output="1"))
            await cluster.advance(1)
        conditions: list[tuple[dict[str, Any], dict[str, int]]] = [
            ({"labels": ACME}, {"failed": 2, "completed": 1, "pending": 2}),
            ({"labels": GOLD}, {"failed": 1, "pending": 1}),
            ({"labels": ACME, "status": ["failed"]}, {"failed": 2}),
            ({"labels": {"tenant": "none"}}, {}),
            ({"status": ["failed", "cancelled"]}, {"failed": 2}),
            ({"prefix": "i"}, {"failed": 2, "completed": 1, "pending": 2}),
        ]
        for where, counts in conditions:
            for size in (1, 2, 5, 100):
                assert await counted(a, size, **where) == counts


async def listed(peer: Peer, **where: Any) -> list[str]:
    """Ids of a listing, in its order."""
    return [row.instance_id for row in await peer.provider.list_instances(InstanceFilter(**where), 100)]


async def paged(peer: Peer, **where: Any) -> list[str]:
    """Ids of a listing that is read two at a time, in its order."""
    seen: list[InstanceInfo] = []
    after = None
    while rows := await peer.provider.list_instances(InstanceFilter(**where, after=after), 2):
        seen += rows
        at = rows[-1].updated_at if where.get("order") == "ended" else rows[-1].created_at
        after = (at, rows[-1].instance_id)
    return [row.instance_id for row in seen]


async def counted(peer: Peer, size: int, **where: Any) -> dict[str, int]:
    """Counts by status, of all pages of this size."""
    counts: dict[str, int] = {}
    after, more = None, True
    while more:
        page = await peer.provider.count_matching(InstanceFilter(**where, after=after), size)
        for status, number in page.counts.items():
            counts[status] = counts.get(status, 0) + number
        after, more = page.after, page.after is not None
    return counts
