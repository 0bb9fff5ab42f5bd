"""Values of instances, which turns set."""

from __future__ import annotations

from dataclasses import replace

from affinity.limits import MAX_VALUE_BYTES, MAX_VALUES
from affinity.provider.contract import (
    HistoryCursor,
    InstanceSize,
    InstanceUpdate,
    NewMessage,
    OrchestrationItem,
    ValueWrite,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, turn, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.kernel.resets import reset
from affinity_conformance.providers.kernel.restarts import restart_of
from affinity_conformance.providers.peer import Peer

DONE = InstanceUpdate(status="completed", output='"done"')


async def values_of(peer: Peer, *instance_ids: str, key: str | None = None) -> dict[str, dict[str, str]]:
    """The values of some instances."""
    found: dict[str, dict[str, str]] = {}
    for each in await peer.provider.get_values(instance_ids, key):
        found.setdefault(each.instance_id, {})[each.key] = each.value
    return found


async def value_bytes(peer: Peer, at: OrchestrationItem) -> int:
    """The bytes of the values of an instance, as a fetch tells them."""
    await peer.provider.send_message([NewMessage(instance_id=at.instance_id, payload="m")])
    (item,) = await peer.take_instances()
    return item.value_bytes


class ValueRules(Rules):
    """`Turn.values`, `get_values`."""

    async def test_turns_set_and_remove_values(self, cluster: Cluster) -> None:
        """The last change of a key counts, within a turn too (contract: Turn.values)."""
        a, at = await cluster.owner("a", "i")
        at = await a.go_on(at, values=[ValueWrite("x", "1"), ValueWrite("y", '"é"'), ValueWrite("x", "2")])
        assert await values_of(a, "i") == {"i": {"x": "2", "y": '"é"'}}
        assert await values_of(a, "i", "missing", key="y") == {"i": {"y": '"é"'}}
        at = await a.go_on(at, values=[ValueWrite("x"), ValueWrite("z", "3"), ValueWrite("z"), ValueWrite("missing")])
        assert await values_of(a, "i") == {"i": {"y": '"é"'}}
        assert await values_of(a, "i", key="x") == await values_of(a) == {}

    async def test_a_turn_may_remove_all_values(self, cluster: Cluster) -> None:
        """What follows in the same turn is set (contract: ValueWrite.key)."""
        a, at = await cluster.owner("a", "i")
        at = await a.go_on(at, values=[ValueWrite("x", "1"), ValueWrite("y", "2")])
        at = await a.go_on(at, values=[ValueWrite("z", "3"), ValueWrite(None), ValueWrite("y", "4")])
        assert await values_of(a, "i") == {"i": {"y": "4"}}
        await a.go_on(at, values=[ValueWrite(None)])
        assert await values_of(a, "i") == {}

    async def test_each_instance_has_its_own(self, cluster: Cluster) -> None:
        """Turns of one batch set the same key of several instances (contract: Turn.values)."""
        a, one = await cluster.owner("a", "i")
        other, third = await a.own("j"), await a.own("k")
        await a.go_on(third, values=[ValueWrite("x", "0")])
        batch = [turn(at, values=[ValueWrite("x", f'"{at.instance_id}"')]) for at in (one, other)]
        assert all(result.committed for result in await a.commit(*batch))
        assert await values_of(a, "i", "j") == {"i": {"x": '"i"'}, "j": {"x": '"j"'}}
        assert await values_of(a, "k") == {"k": {"x": "0"}}

    async def test_a_refused_turn_sets_none(self, cluster: Cluster) -> None:
        """Values pass with their turn, or not at all (contract: Turn)."""
        a, at = await cluster.owner("a", "i")
        other = await a.own("j")
        wrong = replace(at, event_count=7)
        refused, passed = await a.commit(
            turn(wrong, values=[ValueWrite("x", "1")]), turn(other, values=[ValueWrite("x", "2")])
        )
        assert (refused.committed, passed.committed) == (False, True)
        assert await values_of(a, "i", "j") == {"j": {"x": "2"}}

    async def test_they_stay_until_the_instance_is_restarted_or_deleted(self, cluster: Cluster) -> None:
        """`continue_as_new` and the end keep them (contract: Turn.values)."""
        a, at = await cluster.owner("a", "i")
        at = await a.go_on(at, consumed=message_ids(at), values=[ValueWrite("x", "1")])
        again = NewMessage(instance_id="i", payload="again")
        assert (
            await a.commit_one(at, update=InstanceUpdate(status="running", continued=True), messages=[again])
        ).committed
        (item,) = await a.take_instances()
        assert (item.execution_id, item.value_bytes > 0) == (2, True)
        assert (await a.commit_one(item, consumed=message_ids(item), history=["1"], update=DONE)).committed
        assert await values_of(a, "i") == {"i": {"x": "1"}}
        assert list(await a.provider.restart_instance([restart_of(at)])) == [True]
        assert await values_of(a, "i") == {}
        (item,) = await a.take_instances()
        assert item.value_bytes == 0
        await a.go_on(item, consumed=message_ids(item), values=[ValueWrite("x", "2")])
        await a.provider.delete_instance(["i"], force=True)
        await a.own("i")
        assert await values_of(a, "i") == {}

    async def test_their_bytes_come_with_the_instance(self, cluster: Cluster) -> None:
        """UTF-8 bytes of keys and values (contract: OrchestrationItem.value_bytes)."""
        a, at = await cluster.owner("a", "i")
        assert at.value_bytes == 0
        at = await a.go_on(at, consumed=message_ids(at), values=[ValueWrite("é", '"é"'), ValueWrite("x", "1")])
        assert await value_bytes(a, at) == 2 + 4 + 2
        at = await a.go_on(at, values=[ValueWrite("é")])
        assert await value_bytes(a, at) == 2
        at = await a.go_on(at, values=[ValueWrite(None)])
        assert await value_bytes(a, at) == 0

    async def test_an_instance_may_have_as_many_as_the_bounds_say(self, cluster: Cluster) -> None:
        """All in one turn, and in one answer (contract: get_values)."""
        a, at = await cluster.owner("a", "i")
        wanted = {f"{n:0256}": '"' + "x" * (MAX_VALUE_BYTES - 2) + '"' for n in range(MAX_VALUES)}
        await a.go_on(at, values=[ValueWrite(key, value) for key, value in wanted.items()])
        assert await values_of(a, "i") == {"i": wanted}

    async def test_a_reset_changes_them(self, cluster: Cluster) -> None:
        """As it says, in the same transaction (contract: Reset.values)."""
        a, at = await cluster.owner("a", "i")
        at = await a.go_on(at, history=["1"], values=[ValueWrite("x", "1"), ValueWrite("y", "1"), ValueWrite("z", "1")])
        assert not await reset(a, replace(at, event_count=9), 1, values=[ValueWrite(None)])
        assert await values_of(a, "i") == {"i": {"x": "1", "y": "1", "z": "1"}}
        assert await reset(a, at, 1, values=[ValueWrite("x", "0"), ValueWrite("y")])
        assert await values_of(a, "i") == {"i": {"x": "0", "z": "1"}}

    async def test_an_instance_is_measured(self, cluster: Cluster) -> None:
        """With all its executions, what is queued for it, and its values (contract: measure_instance)."""
        a, at = await cluster.owner("a", "i")
        assert await a.provider.measure_instance("missing") is None
        assert await a.provider.measure_instance("i") == InstanceSize(
            executions=0,
            events=0,
            history_bytes=0,
            messages=1,
            message_bytes=len("start"),
            work_items=0,
            work_item_bytes=0,
            values=0,
            value_bytes=0,
        )
        consumed, continued = message_ids(at), InstanceUpdate(status="running", continued=True)
        assert (await a.commit_one(at, history=["é", "2"], consumed=consumed, update=continued)).committed
        at = replace(at, execution_id=2)
        values = [ValueWrite("é", "1"), ValueWrite("x", "22")]
        await a.go_on(at, history=["3"], work_items=[work_item(at, 1)], values=values)
        payload = len(work_item(at, 1).payload.encode())
        assert await a.provider.measure_instance("i") == InstanceSize(
            executions=2,
            events=3,
            history_bytes=4,
            messages=0,
            message_bytes=0,
            work_items=1,
            work_item_bytes=payload,
            values=2,
            value_bytes=6,
        )

    async def test_a_finished_instance_keeps_its_history_beside_them(self, cluster: Cluster) -> None:
        """A turn that finishes may set values (contract: Turn.values)."""
        a, at = await cluster.owner("a", "i")
        assert (await a.commit_one(at, history=["1"], update=DONE, values=[ValueWrite("x", "1")])).committed
        assert await values_of(a, "i") == {"i": {"x": "1"}}
        (page,) = await a.provider.read_history([HistoryCursor("i", 1)])
        assert page.events == ["1"]
