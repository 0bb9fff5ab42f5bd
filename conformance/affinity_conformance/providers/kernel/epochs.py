"""Records and leases: a write without a lease ends the epoch, and a record in use can be kept from deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest

from affinity import SessionStore
from affinity.errors import SessionWriteConflict
from affinity.provider.contract import WorkItem
from affinity.session import SessionFilter
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    SESSION_LOCK,
    SHORT_LEASE,
    message_ids,
    state,
    state_write,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster, concurrently

Change = Callable[[SessionStore], Awaitable[object]]


async def _save(states: SessionStore) -> object:
    return await states.save(state("s", b"new"))


async def _delete(states: SessionStore) -> object:
    return await states.delete(["s"])


async def _delete_family(states: SessionStore) -> object:
    return await states.delete(["s"], families={"s": "s"})


CHANGES: Final[dict[str, Change]] = {"save": _save, "delete": _delete, "delete a family": _delete_family}


async def _wrong_version(states: SessionStore) -> object:
    with pytest.raises(SessionWriteConflict):
        await states.save(state("s"), expected_version=9)
    return None


async def _repeated(states: SessionStore) -> object:
    return await states.save(state("s"), idempotency_key="key")


async def _delete_dry(states: SessionStore) -> object:
    return await states.delete(["s"], dry_run=True)


async def _delete_idle(states: SessionStore) -> object:
    return await states.delete(["s"], idle_only=True)


async def _delete_another_version(states: SessionStore) -> object:
    return await states.delete(["s"], versions={"s": 9})


async def _save_another(states: SessionStore) -> object:
    return await states.save(state("t"))


NO_CHANGES: Final[dict[str, Change]] = {
    "a save of another version": _wrong_version,
    "a save that has happened": _repeated,
    "a dry run": _delete_dry,
    "a deletion of idle ones": _delete_idle,
    "a deletion of another version": _delete_another_version,
    "a save of another session": _save_another,
}

each_change: pytest.MarkDecorator = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
each_non_change: pytest.MarkDecorator = pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES.keys())


class EpochRules(Rules):
    """`Provider.states` next to leases."""

    @each_change
    async def test_a_change_by_hand_ends_the_epoch(self, cluster: Cluster, change: Change) -> None:
        """A write without a lease keeps holder and lock, refuses results of the old epoch, and the next fetch has a new
        one.
        """
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("s"))
        await cluster.enqueue("s", "s")
        item = await a.take_one()
        before = await cluster.session("s")
        await cluster.advance(10)
        await change(states)
        after = await cluster.session("s")
        assert after.epoch > before.epoch == item.session_epoch
        assert replace(after, epoch=before.epoch, expires_in=0, idle=0) == replace(before, expires_in=0, idle=0)
        assert before.expires_in - 20 < after.expires_in <= before.expires_in - 10
        found = await states.load("s")
        base = found.version if found else 0
        assert not await a.ack_with(item, state_write(item, base=base))
        assert await states.load("s") == found
        fresh = await a.take_one()
        assert (fresh.session_epoch or 0) >= after.epoch
        assert await a.ack_with(fresh, state_write(fresh, base=base))
        assert await a.ack(item) == [True]

    @each_change
    async def test_a_fused_item_carries_the_new_epoch(self, cluster: Cluster, change: Change) -> None:
        """An item that a turn locks here has the session's current epoch (contract: commit_turn)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("s"))
        item = await cluster.give(a, "s")
        at = await a.own("i")
        await change(states)
        here = replace(work_item(at, 1, "s"), lock_here=True)
        result = await a.commit_one(at, consumed=message_ids(at), acks=[item.lock], work_items=[here])
        placed = result.placed[0].item
        assert placed is not None
        assert placed.session_epoch == (await cluster.session("s")).epoch > (item.session_epoch or 0)
        assert await a.ack_with(placed, state_write(placed, base=await _version(states, "s")))

    @each_non_change
    async def test_what_changes_no_record_ends_no_epoch(self, cluster: Cluster, change: Change) -> None:
        """A call that writes no record keeps the epoch (records: Fences)."""
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("s"), idempotency_key="key")
        item = await cluster.give(a, "s")
        await change(states)
        assert (await cluster.session("s")).epoch == item.session_epoch
        assert await a.ack_with(item, state_write(item, base=1))

    async def test_deleting_no_record_ends_no_epoch(self, cluster: Cluster) -> None:
        """Deleting a record that does not exist keeps the epoch (records: Fences)."""
        a, states = await cluster.worker("a"), await cluster.states()
        item = await cluster.give(a, "s")
        assert list(await states.delete(["s"])) == []
        assert await a.ack_with(item, state_write(item))

    @each_change
    async def test_a_change_by_hand_of_a_session_without_a_row_makes_one(
        self, cluster: Cluster, change: Change
    ) -> None:
        """A write without a lease creates an expired session row with a new epoch, which the next claim exceeds
        (records: Fences).
        """
        a, states = await cluster.worker("a"), await cluster.states()
        await states.save(state("s"))
        old = await cluster.use(a, "s")
        await cluster.advance(SESSION_LOCK + 100)
        await cluster.sweep(session_retention=10)
        assert await cluster.sessions() == {}
        await change(states)
        made = await cluster.session("s")
        assert (made.worker_id, made.held, made.queued) == ("", False, 0)
        assert made.epoch > (old.session_epoch or 0)
        assert made.expires_in <= 0
        assert ((await cluster.use(a, "s")).session_epoch or 0) > made.epoch
        assert (await cluster.session("s")).worker_id == "a"
        await cluster.advance(SESSION_LOCK + 100)
        await cluster.sweep(session_retention=10)
        assert await cluster.sessions() == {}

    async def test_what_changes_no_record_makes_no_session(self, cluster: Cluster) -> None:
        """Dry runs, deletions of nothing, saves under a lease and reads create no session row (records: Fences)."""
        states = await cluster.states()
        await states.save(state("s"), epoch=1)
        await states.delete(["s"], dry_run=True)
        await states.delete(["t"])
        await states.load("s")
        assert await cluster.sessions() == {}

    async def test_a_save_by_hand_during_a_first_claim_is_seen_by_it(self, cluster: Cluster) -> None:
        """A save that races the first claim is either read by its holder or has ended the holder's epoch (records:
        Fences).
        """
        a, states = await cluster.worker("a"), (await cluster.open()).states
        for n in range(10):
            name = f"s{n}"
            await states.save(state(name, b"old"), epoch=1)
            await cluster.enqueue(name)

            claimed: list[tuple[WorkItem, bytes]] = []

            async def claim(name: str = name, claimed: list[tuple[WorkItem, bytes]] = claimed) -> None:
                item = await a.take_one()
                claimed.append((item, (await cluster.record(name)).state))

            async def save(name: str = name) -> None:
                await states.save(state(name, b"new" * 1_000_000))

            await concurrently(claim, save)
            ((item, hydrated),) = claimed
            if hydrated == b"old":
                assert (await cluster.session(name)).epoch > (item.session_epoch or 0)
            assert await a.ack(item) == [True]

    async def test_a_save_under_the_epoch_of_the_lease_ends_nothing(self, cluster: Cluster) -> None:
        """A save with the epoch of the lease keeps the epoch, and the record gets it (SessionStore.save)."""
        a, states = await cluster.worker("a"), await cluster.states()
        item = await cluster.give(a, "s")
        assert await states.save(state("s"), epoch=item.session_epoch, expected_version=0) == 1
        assert ((await cluster.record("s")).epoch, (await cluster.session("s")).epoch) == (item.session_epoch,) * 2
        assert await a.ack_with(item, state_write(item, base=1))

    async def test_a_save_under_an_older_epoch_than_the_session_is_refused(self, cluster: Cluster) -> None:
        """A save with an epoch older than the session's is refused even if the record is older (SessionStore.save)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        states = await cluster.states()
        old = await cluster.use(a, "s")
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.use(b, "s")
        before = await cluster.session("s")
        with pytest.raises(SessionWriteConflict) as caught:
            await states.save(state("s"), epoch=old.session_epoch)
        assert (caught.value.session_id, caught.value.version) == ("s", None)
        assert await states.load("s") is None
        assert (await cluster.session("s")).epoch == before.epoch

    async def test_a_session_that_begins_again_may_write_its_record(self, cluster: Cluster) -> None:
        """A session whose row was removed begins again with a greater epoch than its record has."""
        a = await cluster.worker("a")
        for base in range(3):
            item = await cluster.give(a, "s")
            assert await a.ack_with(item, state_write(item, base=base))
            await cluster.advance(SESSION_LOCK + 100)
            assert (await cluster.sweep(session_retention=10)).sessions_removed == 1

    async def test_a_save_by_hand_and_a_result_do_not_both_pass(self, cluster: Cluster) -> None:
        """A save without a lease races with a result: the result is refused, or the save builds on it."""
        a, states = await cluster.worker("a"), (await cluster.open()).states
        for _ in range(10):
            item, base = await cluster.give(a, "s"), await _version(states, "s")

            async def work(item: WorkItem = item, base: int = base) -> int:
                return int(await a.ack_with(item, state_write(item, base=base)))

            async def save() -> int:
                return await states.save(state("s"))

            acked, version = await concurrently(work, save)
            assert (version, (await cluster.record("s")).state) == (base + 1 + acked, b"by hand")
            assert await a.ack(item) == [not acked]

    async def test_idle_only_spares_what_is_held_or_has_work(self, cluster: Cluster) -> None:
        """``idle_only`` keeps records of sessions that are held or have queued work; dead workers hold nothing
        (SessionStore.delete).
        """
        a, states = await cluster.worker("a"), await cluster.states()
        for name in ("held", "running", "queued", "later", "left", "expired", "none"):
            await states.save(state(name))
        await cluster.use(a, "expired")
        await cluster.advance(SESSION_LOCK + 1)
        await cluster.holder("dead", "left", lease=SHORT_LEASE)
        await cluster.use(a, "held")
        await cluster.give(a, "running")
        await cluster.enqueue("queued")
        await cluster.enqueue("later", delay=1_000)
        await cluster.advance(SHORT_LEASE + 1)
        names = ["held", "running", "queued", "later", "left", "expired", "none", "unknown"]
        idle = ["left", "expired", "none"]
        assert list(await states.delete(names, idle_only=True, dry_run=True)) == idle
        assert list(await states.delete(names, idle_only=True)) == idle
        assert list(await states.delete(names)) == ["held", "running", "queued", "later"]

    async def test_a_family_in_use_is_spared_as_a_whole(self, cluster: Cluster) -> None:
        """``families`` keeps a family if any member is held or has queued work, and removes other families entirely
        (SessionStore.delete).
        """
        a, states = await cluster.worker("a"), await cluster.states()
        families: dict[str, str] = {}
        for head in ("held", "queued", "idle"):
            await states.save(state(head))
            await states.save(state(f"{head} child", parent=head))
            families |= {head: head, f"{head} child": head}
        await cluster.use(a, "held child")
        await cluster.enqueue("queued child")
        would = list(await states.delete(families, idle_only=True, families=families, dry_run=True))
        assert list(await states.delete(families, idle_only=True, families=families)) == would == ["idle", "idle child"]

    async def test_records_are_found_by_their_holder(self, cluster: Cluster) -> None:
        """The filter finds records of sessions that an alive worker holds now (SessionFilter.holder)."""
        a, b = await cluster.worker("a"), await cluster.worker("b", SHORT_LEASE)
        states = await cluster.states()
        for name in ("s1", "s2", "s3", "free"):
            await states.save(state(name))
        await cluster.use(a, "s1")
        await cluster.use(a, "s2")
        await cluster.use(a, "without a record")
        await cluster.use(b, "s3")
        assert await _found(states, "a") == {"s1": "a", "s2": "a"}
        assert await _found(states, "b") == {"s3": "b"}
        assert await _found(states, None) == {"s1": "a", "s2": "a", "s3": "b", "free": None}
        await cluster.advance(SHORT_LEASE + 1)
        assert await _found(states, "b") == {}
        assert (await _found(states, None))["s3"] is None
        await a.drain()
        assert await _found(states, "a") == {}

    async def test_the_holder_is_a_condition_among_others(self, cluster: Cluster) -> None:
        """The filter by holder combines with other conditions and with the cursor (SessionFilter)."""
        a, states = await cluster.worker("a"), await cluster.states()
        for name in ("s1", "s2", "s3", "t"):
            await states.save(state(name, kind="k" if name != "s2" else "other"))
            await cluster.advance(1)
        for name in ("s1", "s2", "s3"):
            await cluster.use(a, name)
        first = await states.list(SessionFilter(holder="a", kind="k"), 1)
        after = (first[0].updated_at, first[0].session_id)
        rest = await states.list(SessionFilter(holder="a", kind="k", after=after), 10)
        assert [row.session_id for row in (*first, *rest)] == ["s3", "s1"]


async def _version(states: SessionStore, session_id: str) -> int:
    found = await states.load(session_id)
    return found.version if found else 0


async def _found(states: SessionStore, holder: str | None) -> dict[str, str | None]:
    """Holders by session, from a listing."""
    return {row.session_id: row.holder for row in await states.list(SessionFilter(holder=holder), 100)}
