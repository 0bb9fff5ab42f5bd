"""Moves of sessions: one record for each change of holder, with its reason."""

from __future__ import annotations

import json

import pytest

from affinity.limits import MAX_MOVE_QUEUED
from affinity.provider.contract import MoveFilter, MoveReport, PlannedMove, Retention, SessionMove, SessionWatch
from affinity.provider.timeline import Timeline
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    SESSION_LOCK,
    SHORT_LEASE,
    fetch_options,
    message_ids,
    payloads,
    state,
)
from affinity_conformance.providers.cluster import ENQUEUER, Cluster
from affinity_conformance.providers.kernel.timelines import lose_tail


class MoveRules(Rules):
    """`list_session_moves`, `report_session_moves`, and each `MoveReason` with the verb that causes it."""

    # -- reasons

    async def test_the_first_claim_is_new(self, cluster: Cluster) -> None:
        """A first claim has the reason "new", no former holder, and the epoch of the session; the work that waits is
        counted (contract: SessionMove).
        """
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s", "t")
        taken = await a.take_all()
        epochs = {item.session_id: item.session_epoch for item in taken}
        s, t = sorted(await _moves(cluster), key=lambda move: move.session_id)
        assert [(m.session_id, m.from_worker, m.to_worker, m.reason, m.queued) for m in (s, t)] == [
            ("s", None, "a", "new", 2),
            ("t", None, "a", "new", 1),
        ]
        assert {"s": s.epoch, "t": t.epoch} == epochs
        assert (s.hydrate_seconds, s.hydrate_bytes) == (None, None)

    async def test_a_session_that_is_used_does_not_move(self, cluster: Cluster) -> None:
        """Nothing is recorded when work is fetched, renewed, acked or given back by the holder, nor when the very
        incarnation that held the session last claims it again (contract: SessionMove).
        """
        a = await cluster.holder("a", "s", lease=SHORT_LEASE)
        item = await cluster.give(a, "s")
        assert await a.renew(item) == [True]
        await a.give_back(item)
        assert await a.ack(await a.take_one()) == [True]
        await a.provider.release_session(["s"])
        await cluster.use(a, "s")
        for seconds in (SHORT_LEASE + 1, SESSION_LOCK + 1):
            await cluster.pass_time(seconds)
            await a.register(SHORT_LEASE, resume=True)
            await cluster.use(a, "s")
        assert await _reasons(cluster) == ["new"]

    async def test_idle_expired(self, cluster: Cluster) -> None:
        """A session whose lock ended while its worker lived moves as "idle_expired", also when the worker's lease has
        ended since (contract: MoveReason).
        """
        _, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.use(b, "s")
        assert await _last_move(cluster) == ("s", "b", "idle_expired", "a")
        await cluster.holder("short", "t", lease=SESSION_LOCK + 10)
        await cluster.pass_time(SESSION_LOCK + 100)
        await cluster.use(b, "t")
        assert await _last_move(cluster) == ("t", "b", "idle_expired", "short")

    async def test_lease_expired(self, cluster: Cluster) -> None:
        """A session of a worker whose lease has ended moves as "lease_expired", also when its lock has ended since
        (contract: MoveReason).
        """
        _, b = await cluster.holder("a", "s", "t", lease=SHORT_LEASE), await cluster.worker("b")
        await cluster.pass_time(SHORT_LEASE + 1)
        await cluster.use(b, "s")
        assert await _last_move(cluster) == ("s", "b", "lease_expired", "a")
        await cluster.pass_time(SESSION_LOCK)
        await cluster.use(b, "t")
        assert await _last_move(cluster) == ("t", "b", "lease_expired", "a")

    async def test_the_gap_between_two_holders(self, cluster: Cluster) -> None:
        """It begins when the session's lock, or its holder's lease, has ended, or with its release. A planned move has
        none; before a first claim, and behind another start of the holder, it is unknown (contract: SessionMove).
        """
        _, b = await cluster.holder("a", "s", lease=SHORT_LEASE), await cluster.worker("b")
        await cluster.pass_time(SHORT_LEASE + 100)
        await cluster.use(b, "s")
        await b.provider.release_session(["s"])
        await cluster.pass_time(20)
        c = await cluster.holder("c", "s")
        assert await c.provider.move_session([PlannedMove(session_id="s", to="b", within=60.0)]) == ["planned"]
        await b.provider.take_session(b.identity, ["s"], max_sessions=10, session_lock=SESSION_LOCK)
        await cluster.use(await cluster.worker("b"), "s")
        moves = await _moves(cluster)
        assert [move.reason for move in moves] == ["new", "lease_expired", "released", "moved", "restart"]
        first, lapsed, released, moved, restarted = [move.gap_seconds for move in moves]
        assert first is restarted is None
        assert lapsed == pytest.approx(100, abs=5)
        assert released == pytest.approx(20, abs=5)
        assert moved == 0

    async def test_a_lease_that_was_given_up_has_expired(self, cluster: Cluster) -> None:
        """Sessions that a worker gives up with its lease move as "lease_expired", unless it drains (contract:
        MoveReason).
        """
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await a.leave()
        await cluster.use(b, "s")
        assert await _last_move(cluster) == ("s", "b", "lease_expired", "a")

    async def test_restart(self, cluster: Cluster) -> None:
        """A new start of the holder moves its sessions as "restart": at its registration, or at its claim (contract:
        MoveReason).
        """
        await cluster.holder("a", "s")
        await cluster.worker("a")
        assert await _last_move(cluster) == ("s", "a", "restart", "a")
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.use(await cluster.worker("a"), "s")
        assert await _reasons(cluster) == ["new", "restart", "restart"]

    async def test_drained(self, cluster: Cluster) -> None:
        """Sessions that a drain frees move as "drained": the idle ones at its beginning, the others when the worker
        leaves (contract: MoveReason).
        """
        a, b = await cluster.holder("a", "idle"), await cluster.worker("b")
        item = await cluster.give(a, "busy")
        assert await a.drain() == 1
        await cluster.use(b, "idle")
        assert await _last_move(cluster) == ("idle", "b", "drained", "a")
        await a.ack(item)
        await a.leave()
        await cluster.use(b, "busy")
        assert await _last_move(cluster) == ("busy", "b", "drained", "a")

    async def test_code_missing(self, cluster: Cluster) -> None:
        """A session that is given up with work that its holder cannot run moves as "code_missing" (contract:
        MoveReason).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.give_back(await cluster.give(a, "s"), unknown=True, count_attempt=False, release_session=True)
        await b.take_one()
        assert await _last_move(cluster) == ("s", "b", "code_missing", "a")

    async def test_room_needed(self, cluster: Cluster) -> None:
        """A session that its full holder releases for another one moves as "room_needed" (contract: MoveReason)."""
        a = await cluster.holder("a", "s")
        await cluster.enqueue("t")
        await cluster.advance(100)
        full = fetch_options(1, max_sessions=1)
        freed = await a.provider.release_idle_session(a.identity, full, order=[])
        assert list(freed) == ["s"]
        await cluster.use(await cluster.worker("b"), "s")
        assert await _last_move(cluster) == ("s", "b", "room_needed", "a")

    async def test_released(self, cluster: Cluster) -> None:
        """A session that was released by hand or by a turn moves as "released" (contract: MoveReason)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        assert await b.provider.release_session(["s"]) == ["released"]
        await cluster.use(b, "s")
        assert await _last_move(cluster) == ("s", "b", "released", "a")
        at = await a.own("i")
        await a.go_on(at, consumed=message_ids(at), release_sessions=["s"])
        await cluster.use(a, "s")
        assert await _last_move(cluster) == ("s", "a", "released", "b")

    async def test_moved(self, cluster: Cluster) -> None:
        """A session that another worker takes by a plan has the reason of the plan; one whose holder died before that
        has not (contract: PlannedMove).
        """
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        for name, reason in (("s", "moved"), ("t", "rebalanced")):
            await cluster.use(a, name)
            plan = PlannedMove(session_id=name, to="b", within=60.0, reason=reason)  # type: ignore[arg-type]
            assert await a.provider.move_session([plan]) == ["planned"]
            await b.provider.take_session(b.identity, [name], max_sessions=10, session_lock=SESSION_LOCK)
            assert await _last_move(cluster) == (name, "b", reason, "a")
        await cluster.use(a, "u")
        assert await a.provider.move_session([PlannedMove(session_id="u", to="b", within=60.0)]) == ["planned"]
        await cluster.pass_time(SHORT_LEASE + 1)
        await cluster.use(b, "u")
        assert await _last_move(cluster) == ("u", "b", "lease_expired", "a")

    async def test_the_reason_of_a_release_ends_with_the_next_claim(self, cluster: Cluster) -> None:
        """A later move does not have the reason of the release: not when the same incarnation claimed the session in
        between, nor when another one did (contract: MoveReason).
        """
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        for holder in (a, b):
            await holder.provider.release_session(["s"])
            await cluster.use(holder, "s")
            await cluster.pass_time(SESSION_LOCK + 1)
            await cluster.use(b, "s")
        assert await _reasons(cluster) == ["new", "idle_expired"]
        await b.provider.release_session(["s"])
        await cluster.use(a, "s")
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.use(b, "s")
        assert await _reasons(cluster) == ["new", "idle_expired", "released", "idle_expired"]

    async def test_foreign_write(self, cluster: Cluster) -> None:
        """A save or a deletion without the lease is recorded as "foreign_write" from the holder to itself, while the
        holder lives; the session has the epoch of the last record (contract: MoveReason).
        """
        await cluster.holder("a", "s", lease=SHORT_LEASE)
        states = await cluster.states()
        await states.save(state("s"))
        assert await _last_move(cluster) == ("s", "a", "foreign_write", "a")
        await states.delete(["s"])
        assert await _reasons(cluster) == ["new", "foreign_write", "foreign_write"]
        assert (await _moves(cluster))[-1].epoch == (await cluster.session("s")).epoch
        await cluster.pass_time(SHORT_LEASE + 1)
        await states.save(state("s"))
        assert len(await _reasons(cluster)) == 3

    async def test_a_write_by_hand_before_the_first_claim_is_no_move(self, cluster: Cluster) -> None:
        """A session that no worker has held does not move when its record is written; its first claim is "new"
        (contract: MoveReason).
        """
        states = await cluster.states()
        await states.save(state("s"))
        await states.delete(["s"])
        assert await _moves(cluster) == []
        await cluster.use(await cluster.worker("a"), "s")
        assert await _last_move(cluster) == ("s", "a", "new", None)

    async def test_a_timeline_that_begins_moves_nothing(self, cluster: Cluster) -> None:
        """A new timeline changes epochs without a move; each worker's next start is a move (contract: MoveReason)."""
        timeline = Timeline()
        a = await cluster.follower("a", timeline)
        await cluster.use(a, "s")
        await lose_tail(cluster, a)
        assert await _reasons(cluster) == ["new"]
        await cluster.follower("a", Timeline(timeline))
        assert await _reasons(cluster) == ["new", "restart"]

    async def test_queued_work_is_counted_up_to_a_bound(self, cluster: Cluster) -> None:
        """The count of queued work stops at `limits.MAX_MOVE_QUEUED` (contract: SessionMove)."""
        await cluster.enqueue(*["s"] * (MAX_MOVE_QUEUED + 5))
        await (await cluster.worker("a")).take_one()
        assert (await _moves(cluster))[-1].queued == MAX_MOVE_QUEUED

    # -- watchers

    async def test_a_watcher_learns_where_and_why(self, cluster: Cluster) -> None:
        """A watch whose payload is a JSON object gets the new holder, epoch and reason as its last member (contract:
        SessionWatch).
        """
        a, b = await cluster.holder('a"\\é', "s"), await cluster.worker('b"\\é')
        at = await a.own("i")
        await a.go_on(at, consumed=message_ids(at), watches=[SessionWatch("s", '{"a":{"b":1}}')])
        await b.provider.release_session(["s"])
        epoch = (await cluster.use(b, "s")).session_epoch
        (notified,) = await a.take_instances()
        (payload,) = payloads(notified)
        assert list(json.loads(payload).items()) == [
            ("a", {"b": 1}),
            ("move", {"worker_id": b.worker_id, "epoch": epoch, "reason": "released"}),
        ]

    # -- reports

    async def test_the_first_hydrate_of_a_move_is_kept(self, cluster: Cluster) -> None:
        """A report adds seconds and bytes of the first hydrate and returns the reason; one without a hydrate changes
        nothing; of an unknown epoch it returns None (contract: report_session_moves).
        """
        a = await cluster.worker("a")
        s, t = [(await cluster.use(a, name)).session_epoch or 0 for name in ("s", "t")]
        report = a.provider.report_session_moves
        assert await report([MoveReport(s), MoveReport(t, 0.5, 10), MoveReport(t + 1000, 1.0, 1)]) == [
            "new",
            "new",
            None,
        ]
        assert await report([MoveReport(s, 0.25), MoveReport(s, 7.0, 7), MoveReport(t, 9.0, 9)]) == ["new"] * 3
        found = {move.session_id: (move.hydrate_seconds, move.hydrate_bytes) for move in await _moves(cluster)}
        assert found == {"s": (0.25, None), "t": (0.5, 10)}
        assert await report([]) == []

    async def test_the_first_load_of_each_resource_of_a_move_is_kept(self, cluster: Cluster) -> None:
        """Loads of other resources are added, in one report or in several, before the hydrate or after it, and also of
        another move; a later load of the same resource changes nothing (contract: report_session_moves).
        """
        a = await cluster.worker("a")
        s, t = [(await cluster.use(a, name)).session_epoch or 0 for name in ("s", "t")]
        report = a.provider.report_session_moves
        first = [MoveReport(s, resource_seconds={"model": 5.0}), MoveReport(s, 0.5, 10), MoveReport(t, 0.1, 1)]
        assert await report(first) == ["new"] * 3
        later = [{"model": 1.0}, {"index": 2.0}, {"index": 3.0}, {'it\'s "é"': 0.25}]
        await report([MoveReport(s, resource_seconds=loads) for loads in later])
        assert await report([MoveReport(t + 1000, resource_seconds={"model": 1.0})]) == [None]
        found = {move.session_id: (move.hydrate_seconds, move.resource_seconds) for move in await _moves(cluster)}
        assert found == {"s": (0.5, {"model": 5.0, "index": 2.0, 'it\'s "é"': 0.25}), "t": (0.1, {})}

    # -- uses

    async def test_what_uses_a_session(self, cluster: Cluster) -> None:
        """Holds that last, work, running work first, and watches; of this session alone, and at most ``limit`` of each
        (contract: list_session_uses).
        """
        a = await cluster.holder("a", "s")
        uses = a.provider.list_session_uses
        assert await uses("s") == []
        await cluster.enqueue("s", "s", "t")
        running = await a.take_one()
        while running.session_id != "s":
            running = await a.take_one()
        at = await a.hold("holds", "s", 500.0)
        await a.commit_one(at, watches=[SessionWatch("s", "{}")])
        found = await uses("s")
        assert [(use.kind, use.worker_id, use.until is None, use.age is None) for use in found] == [
            ("hold", None, False, True),
            ("work", "a", True, False),
            ("work", None, True, False),
            ("watch", None, True, True),
        ]
        assert [use.instance_id for use in found] == ["holds", ENQUEUER, ENQUEUER, "holds"]
        assert {use.activity for use in found if use.kind == "work"} == {running.name}
        assert all(use.age is None or 0 <= use.age < 60 for use in found)
        assert [use.kind for use in await uses("s", limit=1)] == ["hold", "work", "watch"]
        assert [use.kind for use in await uses("t")] == ["work"]
        await cluster.pass_time(501)
        assert "hold" not in [use.kind for use in await uses("s")]

    # -- listing

    async def test_moves_are_listed_in_pages(self, cluster: Cluster) -> None:
        """Pages come in the order of the epochs: the last ones, the last before an epoch, or the first after one
        (contract: list_session_moves).
        """
        a = await cluster.worker("a")
        epochs = [(await cluster.use(a, f"s{n}")).session_epoch or 0 for n in range(5)]
        list_moves = a.provider.list_session_moves
        assert [m.epoch for m in await list_moves(MoveFilter(), limit=2)] == epochs[3:]
        assert [m.epoch for m in await list_moves(MoveFilter(), before=epochs[3], limit=2)] == epochs[1:3]
        assert [m.epoch for m in await list_moves(MoveFilter(), after=epochs[0], limit=2)] == epochs[1:3]
        assert [m.epoch for m in await list_moves(MoveFilter(), after=0, limit=100)] == epochs
        assert await list_moves(MoveFilter(), after=epochs[4]) == []

    async def test_moves_are_found_by_session_worker_and_reason(self, cluster: Cluster) -> None:
        """A filter by worker finds moves from it and to it, each once; filters combine, in either direction (contract:
        MoveFilter).
        """
        a, b, c = [await cluster.worker(name) for name in "abc"]
        for name in ("s", "t"):
            await cluster.use(a, name)
            await b.provider.release_session([name])
            await cluster.use(b, name)
        await cluster.use(c, "u")
        await (await cluster.states()).save(state("s"))

        async def found(where: MoveFilter) -> list[tuple[str, str]]:
            newest: list[tuple[str, str]] = [
                (m.session_id, m.reason) for m in await c.provider.list_session_moves(where)
            ]
            oldest = [(m.session_id, m.reason) for m in await c.provider.list_session_moves(where, after=0)]
            assert newest == oldest
            return newest

        s, t = [("s", "new"), ("s", "released")], [("t", "new"), ("t", "released")]
        written = ("s", "foreign_write")
        assert await found(MoveFilter(session_id="s")) == [*s, written]
        assert await found(MoveFilter(worker_id="a")) == [*s, *t]
        assert await found(MoveFilter(worker_id="b")) == [s[1], t[1], written]
        assert await found(MoveFilter(reason="released")) == [s[1], t[1]]
        assert await found(MoveFilter(worker_id="a", session_id="t", reason="released")) == [t[1]]
        assert await found(MoveFilter(worker_id="c", session_id="t")) == []
        (last,) = await c.provider.list_session_moves(MoveFilter(worker_id="a"), limit=1)
        assert (last.session_id, last.reason) == ("t", "released")

    # -- retention

    async def test_a_sweep_removes_old_moves(self, cluster: Cluster) -> None:
        """A sweep with a retention removes older moves and no others; without one, none (contract: sweep)."""
        a = await cluster.holder("a", "old", "older")
        await cluster.advance(100)
        await cluster.use(a, "young")
        assert (await cluster.sweep()).moves_removed == 0
        assert (await cluster.sweep(retention=Retention(moves=1000.0))).moves_removed == 0
        assert (await cluster.sweep(retention=Retention(moves=50.0))).moves_removed == 2
        assert [move.session_id for move in await _moves(cluster)] == ["young"]
        assert await a.provider.report_session_moves([MoveReport(1, 1.0, 1)]) == [None]


async def _moves(cluster: Cluster) -> list[SessionMove]:
    provider = (await cluster.enqueuer()).provider
    return list(await provider.list_session_moves(MoveFilter(), after=0))


async def _reasons(cluster: Cluster) -> list[str]:
    return [move.reason for move in await _moves(cluster)]


async def _last_move(cluster: Cluster) -> tuple[str, str, str, str | None]:
    """Session, new holder, reason and former holder of the last move."""
    move = (await _moves(cluster))[-1]
    assert (await cluster.session(move.session_id)).epoch == move.epoch
    return move.session_id, move.to_worker, move.reason, move.from_worker
