"""Planned moves: a session goes to a named worker while nothing of it runs; and workers that operators drain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from affinity.provider.contract import OFFER_SECONDS, PlannedMove, SessionWatch, TakenSession
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    LONG_LEASE,
    SESSION_LOCK,
    SHORT_LEASE,
    about,
    message_ids,
    state_write,
    turn,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.holds import HOLD
from affinity_conformance.providers.peer import Peer

ROUNDS: Final = 30
"""Rounds of a race."""


async def _dies(cluster: Cluster, b: Peer) -> None:
    await cluster.advance(SHORT_LEASE + 1)


async def _leaves(cluster: Cluster, b: Peer) -> None:
    await b.leave()


async def _drains(cluster: Cluster, b: Peer) -> None:
    await b.drain()


async def _is_drained(cluster: Cluster, b: Peer) -> None:
    assert await b.provider.set_drain_wanted("b", wanted=True)


async def _is_late(cluster: Cluster, b: Peer) -> None:
    await cluster.advance(61)


Ending = Callable[[Cluster, Peer], Awaitable[None]]
ENDINGS: Final[dict[str, Ending]] = {
    "its lease ends": _dies,
    "it leaves": _leaves,
    "it drains": _drains,
    "an operator drains it": _is_drained,
    "the time is over": _is_late,
}


class PlannedMoveRules(Rules):
    """`move_session` and `take_session`."""

    # -- moving

    async def test_an_idle_session_moves(self, cluster: Cluster) -> None:
        """The named worker takes an idle session at a greater epoch, without work of it (contract: PlannedMove)."""
        a, b, c = await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("c")
        before = await cluster.use(a, "s")
        assert await c.plan("s", "b") == "planned"
        assert (await a.assigned(), await b.assigned(), await c.assigned()) == ([], ["s"], [])
        assert (await cluster.session("s")).next_worker == "b"
        assert await c.take_moved("s") == []
        (taken,) = await b.provider.take_session(b.identity, ["s", "never"], max_sessions=1, session_lock=SESSION_LOCK)
        assert taken == TakenSession("s", taken.epoch, "a")
        assert taken.epoch > (before.session_epoch or 0)
        assert await cluster.holders() == {"s": "b"}
        assert (await cluster.session("s")).next_worker is None
        assert await b.assigned() == []
        await cluster.enqueue("s")
        assert await a.take() == []
        assert (await b.take_one()).session_epoch == taken.epoch

    async def test_running_work_ends_before_a_session_moves(self, cluster: Cluster) -> None:
        """No item of the session goes to any worker while the holder has an item locked (contract: PlannedMove)."""
        a, b, c = await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("c")
        await cluster.enqueue("s", "s")
        running = await a.take_one()
        assert await c.plan("s", "b") == "planned"
        await cluster.enqueue("s")
        for worker in (a, b, c):
            assert await worker.take(10) == []
        assert await b.take_moved("s") == []
        assert await a.renew(running) == [True]
        assert await cluster.holders() == {"s": "a"}
        assert await a.ack(running) == [True]
        assert (await a.take(10), await c.take(10)) == ([], [])
        assert await b.take_moved("s") == ["s"]
        assert len(await b.take(10)) == 2

    async def test_a_commit_leaves_the_next_item_to_the_named_worker(self, cluster: Cluster) -> None:
        """A commit of the holder locks no new item of the session here, and says which worker will have it (contract:
        commit_turn).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        at = await a.own("i")
        await cluster.enqueue("s", "other")
        items = {item.session_id: item for item in await a.take_all()}
        assert await b.plan("s", "b") == "planned"
        new = [replace(work_item(at, n, s), lock_here=True) for n, s in ((1, "s"), (2, "other"))]
        acks = [item.lock for item in items.values()]
        result = await a.commit_one(at, acks=acks, work_items=new)
        moving, staying = result.placed
        assert (moving.item, moving.holder) == (None, "b")
        assert staying.item is not None
        assert await a.take(10) == []
        assert await b.take_moved("s") == ["s"]
        (next_one,) = await b.take(10)
        assert (next_one.session_id, next_one.attempts) == ("s", 1)

    async def test_an_interrupted_item_goes_with_the_session(self, cluster: Cluster) -> None:
        """An item that the holder gives back is for the named worker (contract: PlannedMove)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        item = await cluster.give(a, "s")
        await b.plan("s", "b")
        assert await a.give_back(item, failed=True) == [True]
        assert await a.take() == []
        assert await b.take_moved("s") == ["s"]
        assert (await b.take_one()).failures == 1

    async def test_the_state_of_the_last_turn_is_there(self, cluster: Cluster) -> None:
        """Work on the holder writes its state before the session moves, and nothing after it (contract:
        PlannedMove).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        item = await a.take_one()
        await b.plan("s", "b")
        assert await a.ack_with(item, state_write(item))
        assert await b.take_moved("s") == ["s"]
        moved = await b.take_one()
        assert (await cluster.record("s")).version == 1
        late = turn(await a.own("i"), states=[state_write(item, base=1)])
        assert [result.committed for result in await a.commit(late)] == [False]
        assert await b.ack_with(moved, state_write(moved, base=1))

    async def test_a_move_is_reported_once(self, cluster: Cluster) -> None:
        """Watchers are notified of a move, and not of its plan (contract: SessionWatch)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        at = await a.own("i")
        await a.go_on(at, consumed=message_ids(at), watches=[SessionWatch("s", "moved")])
        await b.plan("s", "b")
        assert await a.take_instances() == []
        await b.take_moved("s")
        (notified,) = await a.take_instances()
        assert [message.payload for message in notified.messages] == ["moved"]

    async def test_a_hold_lasts_at_the_new_holder(self, cluster: Cluster) -> None:
        """A hold keeps a moved session with its new holder (contract: take_session)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await a.hold("i", "s", HOLD)
        await b.plan("s", "b")
        assert await b.take_moved("s") == ["s"]
        (seconds,) = await b.holds_for("s")
        assert seconds is not None
        assert about(seconds, HOLD)

    # -- who may

    async def test_what_cannot_be_planned(self, cluster: Cluster) -> None:
        """A plan needs a session that is held, and another worker that is alive and not draining (contract:
        move_session).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.worker("late", SHORT_LEASE)
        await cluster.use(a, "s")
        await cluster.use(a, "t")
        await b.drain()
        await cluster.advance(SHORT_LEASE + 1)
        wanted = [("s", "a"), ("t", "b"), ("s", "late"), ("s", "unknown"), ("never", "a")]
        outcomes = [await a.plan(session, to) for session, to in wanted]
        assert outcomes == ["at_target", "unavailable", "unavailable", "unavailable", "not_held"]
        assert await a.provider.move_session([]) == []
        assert len(await cluster.holders()) == 2

    async def test_a_worker_takes_only_what_it_may(self, cluster: Cluster) -> None:
        """A full, draining, dead or replaced worker takes no session (contract: take_session)."""
        a, b, late = await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("late", SHORT_LEASE)
        for session in ("s", "t", "u"):
            await cluster.use(a, session)
        moves = [PlannedMove(session_id=s, to=to, within=60.0) for s, to in (("s", "b"), ("t", "b"), ("u", "late"))]
        assert await a.provider.move_session(moves) == ["planned"] * 3
        assert await b.take_moved("s", "t", max_sessions=0) == []
        former = replace(b, identity=replace(b.identity, incarnation=a.identity.incarnation))
        assert await former.take_moved("s") == []
        assert await b.take_moved("s", "t", max_sessions=1) == ["s"]
        await cluster.advance(SHORT_LEASE + 1)
        assert await late.take_moved("u") == []
        await b.drain()
        assert await b.take_moved("t") == []
        assert (await cluster.holders())["t"] == "a"

    # -- plans that end without a move

    @pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
    async def test_a_plan_of_which_nothing_comes(self, cluster: Cluster, ending: Ending) -> None:
        """The holder keeps the session, its epoch and the waiting work when the named worker goes, or is too late
        (contract: PlannedMove).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b", SHORT_LEASE)
        before = await cluster.use(a, "s")
        await cluster.enqueue("s", "s")
        running = await a.take_one()
        assert await a.plan("s", "b") == "planned"
        assert await a.take() == []
        await ending(cluster, b)
        await cluster.sweep_all()
        await cluster.pass_time(OFFER_SECONDS + 0.1)
        assert (await cluster.session("s")).next_worker is None
        assert (await a.take_one()).session_epoch == before.session_epoch
        assert await a.ack(running) == [True] or ending is _is_late  # its own lock has ended by then
        await b.register()
        assert await b.take_moved("s") == []

    async def test_work_that_the_named_worker_does_not_take_goes_back(self, cluster: Cluster) -> None:
        """Work that is not taken goes back to the holder soon, though the plan has more time (contract:
        PlannedMove).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        running = await a.take_one()
        await a.plan("s", "b", within=3_600.0)
        await cluster.pass_time(10 * OFFER_SECONDS)
        await cluster.pass_time(10 * OFFER_SECONDS)
        assert await a.take() == []  # work runs: the named worker could not take it
        assert await a.ack(running) == [True]
        await cluster.sweep_all()
        assert await b.assigned() == ["s"]
        await cluster.pass_time(OFFER_SECONDS + 0.1)
        assert (await a.take_one()).session_epoch == running.session_epoch
        assert await b.take_moved("s") == []

    async def test_the_holder_restarts(self, cluster: Cluster) -> None:
        """A plan stays when the holder starts again, which takes no work of the session (contract: PlannedMove)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.give(a, "s")
        await b.plan("s", "b")
        again = await cluster.worker("a")
        await cluster.enqueue("s")
        assert await again.take(10) == []
        assert await b.take_moved("s") == ["s"]
        assert sorted(item.attempts for item in await b.take(10)) == [1, 2]

    async def test_the_holder_dies(self, cluster: Cluster) -> None:
        """A session whose holder died goes to any worker, and has no plan then (contract: PlannedMove)."""
        a, b, c = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b"), await cluster.worker("c")
        await cluster.use(a, "s")
        await b.plan("s", "b", within=3_600.0)
        await cluster.enqueue("s")
        await cluster.pass_time(SHORT_LEASE + 1)
        await cluster.pass_time(OFFER_SECONDS + 1)
        assert (await c.take_one()).session_id == "s"
        assert (await cluster.session("s")).next_worker is None
        assert await b.take_moved("s") == []
        assert (await cluster.give(c, "s")).session_id == "s"

    async def test_the_same_incarnation_claims_again(self, cluster: Cluster) -> None:
        """A session that was released, and claimed again by its last holder, has no plan (contract: PlannedMove)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await b.plan("s", "b", within=3_600.0)
        assert await a.provider.release_session(["s"]) == ["released"]
        await cluster.use(a, "s")
        assert (await cluster.session("s")).next_worker is None
        assert await b.take_moved("s") == []

    async def test_the_last_plan_counts(self, cluster: Cluster) -> None:
        """A second plan replaces the first, with the work that waits (contract: move_session)."""
        a, b, c = await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("c")
        await cluster.enqueue("s", "s")
        item = await a.take_one()
        assert await a.plan("s", "b") == "planned"
        assert await a.plan("s", "c") == "planned"
        await a.ack(item)
        assert await b.take_moved("s") == []
        assert await b.take() == []
        assert await c.take_moved("s") == ["s"]
        assert (await c.take_one()).session_id == "s"

    async def test_routes_that_are_stale_are_repaired(self, cluster: Cluster) -> None:
        """A sweep routes items queued for the holder, and items offered to the worker of the former plan (contract:
        sweep).
        """
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await cluster.enqueue(*["s"] * 120)
        items = await a.take(1)
        await a.plan("s", "b", within=3_600.0)
        await cluster.sweep_all()
        assert await a.take(10) == []
        await a.ack(*items)
        assert await b.take_moved("s") == ["s"]
        assert len(await b.take_all()) == 119

    # -- offers

    async def test_an_offer_is_taken_with_the_next_work(self, cluster: Cluster) -> None:
        """The session stays until work of it arrives, and moves with that work, if the plan has no bound (contract:
        PlannedMove).
        """
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        assert await a.plan("s", "b", within=None) == "planned"
        await cluster.pass_time(100 * OFFER_SECONDS)
        assert await b.assigned() == []
        assert (await cluster.session("s")).next_worker == "b"
        await cluster.enqueue("s")
        assert await a.take() == []
        assert await b.assigned() == ["s"]
        assert await b.take_moved("s") == ["s"]
        assert (await b.take_one()).session_id == "s"

    async def test_an_offer_that_is_not_taken_ends(self, cluster: Cluster) -> None:
        """Work of an offered session that is not taken goes back to the holder soon (contract: PlannedMove)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        before = await cluster.use(a, "s")
        await a.plan("s", "b", within=None)
        await cluster.enqueue("s")
        await cluster.pass_time(OFFER_SECONDS + 0.1)
        assert (await a.take_one()).session_epoch == before.session_epoch
        assert await b.take_moved("s") == []

    async def test_what_is_not_offered(self, cluster: Cluster) -> None:
        """A session with work, with a hold or with a plan cannot be offered (contract: PlannedMove)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for session in ("queued", "held", "planned"):
            await cluster.use(a, session)
        await cluster.enqueue("queued")
        await a.hold("i", "held", HOLD)
        await a.plan("planned", "b")
        for session in ("queued", "held", "planned"):
            assert await a.plan(session, "b", within=None) == "busy"
        item = await a.take_one()
        assert await a.plan("queued", "b", within=None) == "busy"
        await a.ack(item)
        assert await a.plan("queued", "b", within=None) == "planned"
        assert await a.plan("queued", "b", within=None) == "busy"
        assert await a.plan("queued", "b") == "planned"
        assert await b.take_moved("queued", "planned") == ["planned", "queued"]

    # -- races

    async def test_a_concurrent_commit_and_plan(self, cluster: Cluster) -> None:
        """Either the commit locks the next item here, and the move waits for it; or it does not (contract:
        PlannedMove).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        beside, taker = await cluster.same_worker(a), await cluster.same_worker(b)
        here = 0
        for round_ in range(ROUNDS):
            session = f"s{round_}"
            at = await a.own(f"i{round_}")
            item = await cluster.give(a, session)
            step = turn(at, acks=[item.lock], work_items=[replace(work_item(at, 1, session), lock_here=True)])

            async def commit(step: Any = step) -> Any:
                return (await a.commit(step))[0].placed[0].item

            async def move(session: str = session) -> Any:
                assert await beside.plan(session, "b") == "planned"
                return await taker.take_moved(session)

            locked, taken = await concurrently(commit, move)
            assert locked is None or taken == []
            if locked is not None:
                here += 1
                assert await b.take() == []
                assert await b.take_moved(session) == []
                assert await a.ack(locked) == [True]
                assert await b.take_moved(session) == [session]
            else:
                assert taken == [session] or await b.take_moved(session) == [session]
                await b.ack(await b.take_one())
            assert (await cluster.session(session)).worker_id == "b"

    async def test_a_concurrent_fetch_and_plan(self, cluster: Cluster) -> None:
        """Either the holder's fetch takes the item, and the move waits for it; or the named worker has it (contract:
        PlannedMove).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        beside, taker = await cluster.same_worker(a), await cluster.same_worker(b)
        for round_ in range(ROUNDS):
            session = f"s{round_}"
            await cluster.use(a, session)
            await cluster.enqueue(session)

            async def move(session: str = session) -> list[Any]:
                assert await beside.plan(session, "b") == "planned"
                return await taker.take_moved(session)

            fetched, taken = await concurrently(a.take, move)
            assert not (fetched and taken)
            if fetched:
                assert await b.take_moved(session) == []
                assert await a.ack(*fetched) == [True]
                assert await b.take_moved(session) == [session]
            else:
                assert taken or await b.take_moved(session)
                await cluster.sweep_all()  # the fetch may have had the item locked, and the plan skipped it
                assert await b.ack(await b.take_one()) == [True]

    async def test_two_concurrent_plans(self, cluster: Cluster) -> None:
        """One of two plans counts, and one worker takes the session (contract: move_session)."""
        a, b, c = await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("c")
        for round_ in range(ROUNDS):
            session = f"s{round_}"
            await cluster.use(a, session)

            async def to(worker: Peer, session: str = session) -> list[str]:
                assert await worker.plan(session, worker.worker_id) in ("planned", "at_target")
                return await worker.take_moved(session)

            taken = await concurrently(lambda: to(b), lambda: to(c))
            assert [session] in taken
            holder = (await cluster.session(session)).worker_id
            assert holder in ("b", "c")
            await cluster.enqueue(session)
            mine, theirs = (b, c) if holder == "b" else (c, b)
            assert await theirs.take() == []
            assert len([*await mine.take(), *(await theirs.take() if await theirs.take_moved(session) else [])]) == 1


class OperatorDrainRules(Rules):
    """`set_drain_wanted`, and `drain_worker` with ``if_wanted``."""

    async def test_a_drained_worker_claims_nothing(self, cluster: Cluster) -> None:
        """The worker claims no session and locks nothing at a commit from the call on, and learns it (contract:
        set_drain_wanted).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        at = await a.own("i")
        assert await b.provider.set_drain_wanted("a", wanted=True)
        await cluster.enqueue("s")
        fetched = await a.fetch()
        assert (list(fetched.items), fetched.draining) == ([], True)
        lease = await a.renew_lease(LONG_LEASE)
        assert lease is not None
        assert lease.draining
        result = await a.commit_one(at, work_items=[replace(work_item(at, 1, None), lock_here=True)])
        assert result.placed[0].item is None
        assert (await b.take_one()).session_id == "s"
        states = {w.worker_id: (w.alive, w.draining, w.drain_wanted) for w in await a.provider.list_workers()}
        assert (states["a"], states["b"]) == ((True, True, True), (True, False, False))

    async def test_a_drained_worker_frees_its_sessions_as_work_ends(self, cluster: Cluster) -> None:
        """Idle sessions are freed, busy ones when their work has ended (contract: drain_worker)."""
        a, b = await cluster.holder("a", "idle"), await cluster.worker("b")
        await cluster.enqueue("busy", "busy")
        item = await a.take_one()
        await b.provider.set_drain_wanted("a", wanted=True)
        assert await a.drain(if_wanted=True) == 1
        assert await cluster.holders() == {"busy": "a"}
        assert await a.ack(item) == [True]
        assert await a.drain(if_wanted=True) == 0
        assert (await b.take_one()).session_id == "busy"
        assert await a.renew_lease(LONG_LEASE) is not None

    async def test_a_resumed_worker_takes_work_again(self, cluster: Cluster) -> None:
        """It frees nothing more and takes work (contract: set_drain_wanted)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await b.provider.set_drain_wanted("a", wanted=True)
        assert await b.provider.set_drain_wanted("a", wanted=False)
        assert await a.drain(if_wanted=True) is None
        assert await cluster.holders() == {"s": "a"}
        assert (await cluster.give(a, "t")).session_id == "t"

    async def test_a_drain_lasts_over_a_restart(self, cluster: Cluster) -> None:
        """A worker that starts again is draining, and so is one whose row was dead for long (contract:
        set_drain_wanted).
        """
        a = await cluster.worker("a", SHORT_LEASE)
        enqueuer = await cluster.enqueuer()
        await enqueuer.provider.set_drain_wanted("a", wanted=True)
        assert await a.register(resume=True)
        assert (await a.fetch()).draining
        await cluster.advance(LONG_LEASE)
        await cluster.sweep(worker_retention=1.0)
        again = await cluster.worker("a")
        await cluster.enqueue("s")
        assert await again.take() == []
        assert await again.drain(if_wanted=True) == 0
        await enqueuer.provider.set_drain_wanted("a", wanted=False)
        assert (await again.take_one()).session_id == "s"

    async def test_a_drain_of_an_operator_and_the_worker_s_own(self, cluster: Cluster) -> None:
        """The end of an operator's drain, of a worker that has none, does not end its own (contract:
        set_drain_wanted).
        """
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        assert await a.drain() == 0
        assert await a.drain(if_wanted=True) is None
        assert await b.provider.set_drain_wanted("a", wanted=False)
        await cluster.enqueue("s")
        assert await a.take() == []
        assert not await b.provider.set_drain_wanted("unknown", wanted=True)
        assert (await b.take_one()).session_id == "s"
