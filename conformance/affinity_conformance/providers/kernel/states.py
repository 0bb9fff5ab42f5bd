"""Session state with a result: both are written or neither, and only by the current holder."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

import pytest

from affinity.provider.contract import InstanceUpdate, OrchestrationItem, Timeouts, WorkItem
from affinity.session import SessionMetadata, StateWrite
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SESSION_LOCK, SHORT_LEASE, state, state_write
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

LONG_ITEM_LOCK = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)


@dataclass(frozen=True)
class Way:
    """A way for a result, and a state with it, into the database: an ack of its own, or the turn that it leads to."""

    fused: bool

    async def __call__(
        self, peer: Peer, item: WorkItem, write: StateWrite | None, at: OrchestrationItem | None = None
    ) -> bool:
        """Return True if it was applied; a turn that was refused must name the state as the reason.

        ``at`` is the instance of the turn; None: a new one of the peer's.
        """
        if not self.fused:
            return await peer.ack_with(item, write) if write else (await peer.ack(item))[0]
        states = [write] if write else []
        at = at or await peer.own(f"i-{secrets.token_hex(4)}")
        result = await peer.commit_one(at, acks=[item.lock], states=states)
        assert list(result.lost_acks) == []
        assert list(result.conflicts) == ([] if result.committed else [w.new.session_id for w in states])
        assert await peer.history(at) == (["event"] if result.committed else [])
        return result.committed


each_way: pytest.MarkDecorator = pytest.mark.parametrize(
    "way", [Way(fused=False), Way(fused=True)], ids=["ack", "turn"]
)


class StateRules(Rules):
    """`WorkAck.state` and `Turn.states`: the fence of `StateWrite`."""

    @each_way
    async def test_a_state_is_written_with_the_result(self, cluster: Cluster, way: Way) -> None:
        """A state is written with its result and the epoch of the lease, and the item is removed (contract:
        ack_work_item, Turn.states).
        """
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        about = SessionMetadata(kind="k", name="n", parent="p", labels={"x": "1"}, message_count=3, participants=["q"])
        new = replace(state("s", b"\x00\xff"), encoding="zlib", schema_version=7, metadata=about)
        assert await way(a, item, StateWrite(new=new, base_version=0, epoch=item.session_epoch or 0))
        record = await cluster.record("s")
        assert (record.state, record.encoding, record.schema_version) == (b"\x00\xff", "zlib", 7)
        assert replace(record.metadata, labels={}, participants=()) == replace(about, labels={}, participants=())
        assert (dict(record.metadata.labels), list(record.metadata.participants)) == ({"x": "1"}, ["q"])
        assert (record.version, record.epoch, record.idempotency_key) == (1, item.session_epoch, None)
        assert await a.check(item) == [False]
        assert await cluster.results() == ([] if way.fused else ["done"])

    @each_way
    async def test_writes_are_counted(self, cluster: Cluster, way: Way) -> None:
        """Each write increases the version; the creation time stays, and the idempotency key of a save goes
        (StateWrite).
        """
        a = await cluster.worker("a")
        await (await cluster.states()).save(state("s", name="old"), idempotency_key="key")
        made = (await cluster.record("s")).created_at
        await cluster.advance(10)
        await cluster.enqueue("s", "s")
        for base, item in enumerate(await a.take(10), start=1):
            assert await way(a, item, state_write(item, b"%d" % base, base=base))
            record = await cluster.record("s")
            assert (record.state, record.version, record.idempotency_key) == (b"%d" % base, base + 1, None)
            assert (record.metadata.name, record.created_at) == (None, made)
            assert record.updated_at > made

    @each_way
    @pytest.mark.parametrize(("saves", "base"), [(0, 1), (1, 0), (2, 1), (2, 3)])
    async def test_a_state_of_another_version_refuses_the_result(
        self, cluster: Cluster, way: Way, saves: int, base: int
    ) -> None:
        """A state from another version refuses its turn or ack whole, and the token stays live (contract: Turn,
        ack_work_item).
        """
        a, states = await cluster.worker("a"), await cluster.states()
        for _ in range(saves):
            await states.save(state("s"))
        before = await states.load("s")
        item = await cluster.give(a, "s")
        assert not await way(a, item, state_write(item, base=base))
        assert await states.load("s") == before
        assert await a.check(item) == [True]
        assert await cluster.results() == []
        assert await way(a, item, state_write(item, base=saves))

    @each_way
    async def test_a_paused_former_holder_is_refused(self, cluster: Cluster, way: Way) -> None:
        """A former holder's state is refused after the session and its record moved; its item can be given back."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        late, again = await a.take(10, timeouts=LONG_ITEM_LOCK)
        await cluster.pass_time(SESSION_LOCK + 1)
        item = await cluster.give(b, "s")
        assert not await way(a, late, state_write(late))
        assert await way(b, item, state_write(item, b"of b"))
        for base in (0, 1):
            assert not await way(a, late, state_write(late, base=base))
        assert (await cluster.record("s")).state == b"of b"
        assert await a.check(late, again) == [True, True]
        assert await a.give_back(late) == [True]
        assert (await b.take_one()).lock.key == late.lock.key

    @each_way
    async def test_a_moved_session_takes_a_result_without_state(self, cluster: Cluster, way: Way) -> None:
        """A result without a state is accepted after the session moved."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        late = await cluster.give(a, "s", timeouts=LONG_ITEM_LOCK)
        await cluster.pass_time(SESSION_LOCK + 1)
        item = await cluster.give(b, "s")
        assert await way(b, item, state_write(item))
        assert await way(a, late, None)
        assert (await cluster.record("s")).version == 1

    @each_way
    async def test_a_new_start_of_the_same_worker_is_another_writer(self, cluster: Cluster, way: Way) -> None:
        """A new incarnation writes under a greater epoch, and a state of the one before is refused."""
        old = await cluster.worker("a")
        await cluster.enqueue("s", "s")
        late, other = await old.take(10, timeouts=LONG_ITEM_LOCK)
        new = await cluster.worker("a")
        assert not await old.ack_with(late, state_write(late))
        (item, _) = await new.take(10)
        assert await way(new, item, state_write(item))
        assert not await old.ack_with(other, state_write(other, base=1))
        assert (await cluster.record("s")).epoch == item.session_epoch

    @each_way
    async def test_an_epoch_older_than_the_record_is_refused(self, cluster: Cluster, way: Way) -> None:
        """A state with an epoch older than the record's is refused, whatever the session's row has (StateWrite)."""
        a, states = await cluster.worker("a"), await cluster.states()
        item = await cluster.give(a, "s")
        later = (item.session_epoch or 0) + 1
        await states.save(state("s"), epoch=later)
        assert not await way(a, item, state_write(item, base=1))
        assert (await cluster.record("s")).state == b"by hand"
        assert await way(a, item, state_write(item, base=1, epoch=later))

    @each_way
    async def test_a_record_that_was_deleted_does_not_come_back(self, cluster: Cluster, way: Way) -> None:
        """A state made from a deleted record is refused (StateWrite)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await cluster.enqueue("s", "s")
        first, second = await a.take(10)
        assert await way(a, first, state_write(first))
        await states.delete(["s"])
        assert not await way(a, second, state_write(second, base=1))
        assert await states.load("s") is None

    @each_way
    async def test_a_record_that_was_recreated_is_not_overwritten(self, cluster: Cluster, way: Way) -> None:
        """A state made from a deleted record is refused although its successor has the same version (StateWrite)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await cluster.enqueue("s", "s")
        first, second = await a.take(10)
        assert await way(a, first, state_write(first))
        await states.delete(["s"])
        await states.save(state("s"))
        assert not await way(a, second, state_write(second, base=1))
        assert ((await cluster.record("s")).state, (await cluster.record("s")).version) == (b"by hand", 1)

    @each_way
    async def test_a_session_without_a_row_is_fenced_by_its_record(self, cluster: Cluster, way: Way) -> None:
        """The epoch of the record fences a state (StateWrite)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s")
        first, second = await a.take(10)
        elsewhere = replace(state_write(first), new=state("t"), epoch=5)
        assert await way(a, first, elsewhere)
        assert not await way(a, second, replace(elsewhere, base_version=1, epoch=4))
        assert set(await cluster.sessions()) == {"s"}

    @each_way
    async def test_a_dead_token_writes_no_state(self, cluster: Cluster, way: Way) -> None:
        """A state with a dead token is not written (contract: live token)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        await a.give_back(item, delay=1_000)
        if way.fused:
            at = await a.own("i")
            result = await a.commit_one(at, acks=[item.lock], states=[state_write(item)])
            assert (result.committed, list(result.lost_acks), list(result.conflicts)) == (False, [item.lock], [])
        else:
            assert not await a.ack_with(item, state_write(item))
        assert await (await cluster.states()).load("s") is None

    async def test_a_lost_ack_and_a_conflict_refuse_together(self, cluster: Cluster) -> None:
        """A turn with a dead ack and a conflict is refused, and names both or the ack alone (contract: TurnResult)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("t"))
        await cluster.enqueue("s", "t")
        items = {item.session_id: item for item in await a.take(10)}
        await a.give_back(items["s"], delay=1_000)
        acks = [item.lock for item in items.values()]
        writes = [state_write(item) for item in items.values()]
        result = await a.commit_one(await a.own("i"), acks=acks, states=writes)
        assert (result.committed, list(result.lost_acks)) == (False, [items["s"].lock])
        assert set(result.conflicts) <= {"t"}
        assert (await states.load("s"), (await cluster.record("t")).version) == (None, 1)
        assert await a.check(items["t"]) == [True]

    async def test_a_turn_that_is_refused_for_its_fence_writes_no_state(self, cluster: Cluster) -> None:
        """A turn that its own fence refuses writes no state and names no conflict (contract: Turn)."""
        a = await cluster.worker("a")
        at = replace(await a.own("i"), event_count=3)
        item = await cluster.give(a, "s")
        result = await a.commit_one(at, acks=[item.lock], states=[state_write(item)])
        assert (result.committed, list(result.lost_acks), list(result.conflicts)) == (False, [], [])
        assert await (await cluster.states()).load("s") is None

    async def test_records_outlive_everything_but_their_deletion(self, cluster: Cluster) -> None:
        """A record stays when its instance, session and worker are removed."""
        a, at = await cluster.owner("a", "i", lease=SHORT_LEASE)
        item = await cluster.give(a, "s")
        done = InstanceUpdate(status="completed", output="1")
        assert (await a.commit_one(at, acks=[item.lock], states=[state_write(item)], update=done)).committed
        before = await cluster.record("s")
        assert list(await a.provider.delete_instance(["i"])) == ["deleted"]
        await cluster.advance(SESSION_LOCK + 1_000)
        swept = await cluster.sweep(session_retention=10, worker_retention=10)
        assert (swept.sessions_removed, swept.workers_removed) == (1, 1)
        assert await cluster.record("s") == before
