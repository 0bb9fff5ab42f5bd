"""Origins of events: when and by which worker each was recorded, and which run of an activity had the result."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from affinity.provider.contract import InstanceUpdate, Release
from affinity.records import ActivityRun
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.kernel.resets import reset
from affinity_conformance.providers.peer import Peer


async def times(peer: Peer, execution_id: int = 1) -> list[datetime]:
    """The times at which the events were recorded."""
    return [origin.recorded_at for origin in await peer.provider.read_origins("i", execution_id)]


class OriginRules(Rules):
    """`read_origins`."""

    async def test_each_event_has_the_time_and_the_worker_of_its_turn(self, cluster: Cluster) -> None:
        """Events of one turn have one origin, and turns of a batch have their own (contract: EventOrigin)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        at = await a.own("i")
        created = (await a.info("i")).created_at
        other = await a.own("j")
        assert (await a.commit_one(at, history=["1", "2", "3"])).committed
        await a.provider.release_instance(a.identity, [Release(instance_id="i")])
        await cluster.advance(60)
        (at,) = [item for item in await b.take_instances() if item.instance_id == "i"]
        assert (await b.commit_one(at, history=["4", "5"])).committed
        assert (await a.commit_one(other, history=["1"])).committed
        origins = await a.provider.read_origins("i", 1)
        assert [origin.event_id for origin in origins] == [1, 2, 3, 4, 5]
        assert [origin.worker_id for origin in origins] == ["a", "a", "a", "b", "b"]
        assert {origin.run for origin in origins} == {None}
        first, *_, last = (origin.recorded_at for origin in origins)
        assert len({origin.recorded_at for origin in origins}) == 2
        assert 0 <= (first - created).total_seconds() < 10
        assert 60 <= (last - first).total_seconds() < 70
        assert len(await a.provider.read_origins("j", 1)) == 1
        assert list(await a.provider.read_origins("i", 2)) == list(await a.provider.read_origins("k", 1)) == []

    async def test_a_result_knows_its_run(self, cluster: Cluster) -> None:
        """A run is stored for the events that ``Turn.runs`` names and for no others (contract: Turn.runs)."""
        a, at = await cluster.owner("a", "i")
        runs = {1: ActivityRun("b", 2), 3: ActivityRun("a", 7, 0.5)}
        assert (await a.commit_one(at, history=["1", "2", "3"], runs=runs)).committed
        assert (await a.commit_one(replace(at, event_count=3), history=["4"])).committed
        assert [origin.run for origin in await a.provider.read_origins("i", 1)] == [runs[1], None, runs[3], None]

    async def test_what_a_reset_takes_over_keeps_its_origin(self, cluster: Cluster) -> None:
        """Events that a reset keeps have their old origin; the event of the reset has a new one without a worker
        (contract: read_origins).
        """
        a, at = await cluster.owner("a", "i")
        run = {2: ActivityRun("b", 2, 1.5)}
        assert (await a.commit_one(at, history=["1", "2", "3"], runs=run)).committed
        former = await times(a)
        await cluster.advance(60)
        assert await reset(a, replace(at, event_count=3), keep=2)
        again = await a.provider.read_origins("i", 2)
        assert [(origin.event_id, origin.worker_id, origin.run) for origin in again] == [
            (1, "a", None),
            (2, "a", run[2]),
            (3, None, None),
        ]
        assert [origin.recorded_at for origin in again[:2]] == former[:2]
        assert 60 <= (again[2].recorded_at - former[2]).total_seconds() < 70

    async def test_each_execution_has_its_own_origins(self, cluster: Cluster) -> None:
        """Each execution has origins of its own, also when one turn ends the one before (contract: read_origins)."""
        a, at = await cluster.owner("a", "i")
        over = InstanceUpdate(status="running", continued=True)
        assert (await a.commit_one(at, history=["1", "2"], update=over)).committed
        assert (await a.commit_one(replace(at, execution_id=2), history=["3"])).committed
        assert [len(await times(a, n)) for n in (1, 2, 3)] == [2, 1, 0]
