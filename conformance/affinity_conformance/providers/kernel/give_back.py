"""Giving work back: what counts as an attempt, what as a failure, and that no count is lost."""

from __future__ import annotations

from affinity.provider.contract import Timeouts
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, LONG_LEASE, SESSION_LOCK, SHORT_LEASE
from affinity_conformance.providers.cluster import Cluster

LONG_ITEM_LOCK = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)


class GiveBackRules(Rules):
    """`abandon_work_item`, and attempts that end without it."""

    async def test_an_item_given_back_is_free_immediately(self, cluster: Cluster) -> None:
        """Any worker can fetch an item that was given back, and its delivery counts (contract: WorkAbandon)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        assert await a.give_back(await cluster.give(a, None)) == [True]
        again = await b.take_one()
        assert (again.attempts, again.failures) == (2, 0)

    async def test_giving_back_revokes_the_token(self, cluster: Cluster) -> None:
        """The token of an item that was given back neither renews, nor acks, nor gives back."""
        a = await cluster.worker("a")
        item = await cluster.give(a, None)
        await a.give_back(item)
        assert await a.renew(item) == [False]
        assert await a.ack(item) == [False]
        assert await a.give_back(item) == [False]
        assert await cluster.results() == []
        assert (await a.take_one()).attempts == 2

    async def test_a_delivery_that_does_not_count_is_taken_out(self, cluster: Cluster) -> None:
        """A give-back with ``count_attempt=False`` takes its delivery out of ``attempts``."""
        a = await cluster.worker("a")
        await cluster.enqueue("s")
        for _ in range(5):
            item = await a.take_one()
            assert item.attempts == 1
            await a.give_back(item, count_attempt=False)

    async def test_failures_are_counted_apart_from_interruptions(self, cluster: Cluster) -> None:
        """``failures`` counts deliveries that raised; ``attempts - failures`` were interrupted or run now (contract:
        WorkItem.failures).
        """
        a = await cluster.worker("a")
        await a.give_back(await cluster.give(a, None), failed=True)
        await a.give_back(await a.take_one())
        await a.give_back(await a.take_one(), failed=True)
        item = await a.take_one()
        assert (item.attempts, item.failures) == (4, 2)

    async def test_a_delay_is_respected(self, cluster: Cluster) -> None:
        """An item that was given back with a delay is fetched after it, and ``next_due`` reports it (contract:
        WorkAbandon.delay).
        """
        a = await cluster.worker("a")
        await cluster.enqueue(None, "s")
        await a.give_back(*await a.take_all(), delay=40)
        early = await a.fetch(10)
        assert list(early.items) == []
        assert early.next_due is not None
        assert 30 < early.next_due <= 40
        await cluster.advance(40)
        assert len(await a.take_all()) == 2

    async def test_an_item_knows_how_long_ago_it_was_queued(self, cluster: Cluster) -> None:
        """``queued_for`` counts from the first queuing, through all deliveries (contract: WorkItem.queued_for)."""
        a = await cluster.worker("a")
        await cluster.enqueue(None, "s")
        await cluster.advance(40)
        for item in await a.take_all():
            assert 40 <= item.queued_for < 50
            await a.give_back(item, delay=30, failed=item.session_id is None)
        await cluster.advance(30)
        assert all(70 <= item.queued_for < 80 for item in await a.take_all())

    async def test_a_dead_token_gives_nothing_back(self, cluster: Cluster) -> None:
        """Giving back with a dead token leaves the new delivery unchanged (contract: abandon_work_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        lost = await cluster.give(a, None)
        await cluster.pass_time(ITEM_LOCK + 1)
        running = await b.take_one()
        assert await a.give_back(lost, failed=True) == [False]
        assert await b.renew(running) == [True]
        await b.give_back(running)
        again = await b.take_one()
        assert (again.attempts, again.failures) == (3, 0)

    async def test_giving_back_frees_only_a_session_that_the_caller_holds(self, cluster: Cluster) -> None:
        """``release_session`` leaves a session that another worker holds by now (contract:
        WorkAbandon.release_session).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        running = await cluster.give(a, "s", timeouts=LONG_ITEM_LOCK)
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.give(b, "s")
        assert await a.give_back(running, release_session=True) == [True]
        assert await cluster.holders() == {"s": "b"}
        assert (await b.take_one()).lock.key == running.lock.key

    async def test_attempts_survive_the_death_of_every_worker(self, cluster: Cluster) -> None:
        """Attempts are stored in the row and survive each worker's death."""
        await cluster.enqueue("s", None)
        for attempt in range(1, 5):
            killed = await cluster.worker(f"w{attempt}", SHORT_LEASE)
            assert [item.attempts for item in await killed.take_all()] == [attempt, attempt]
            await cluster.pass_time(SHORT_LEASE + 1)

    async def test_attempts_survive_restarts_under_one_name(self, cluster: Cluster) -> None:
        """Attempts grow when a worker restarts under its name and its session stays with it."""
        await cluster.enqueue("s")
        attempts = [(await (await cluster.worker("a")).take_one()).attempts for _ in range(4)]
        assert attempts == [1, 2, 3, 4]

    async def test_attempts_are_counted_while_the_lease_is_dead(self, cluster: Cluster) -> None:
        """A delivery after the lease's end counts all attempts, and its result can be recorded."""
        a = await cluster.worker("a", SHORT_LEASE)
        await cluster.enqueue("s")
        for _ in range(3):
            await a.take_one()
            await cluster.pass_time(ITEM_LOCK + 1)
            await a.register(SHORT_LEASE, resume=True)
        last = await a.take_one()
        assert last.attempts == 4
        await cluster.advance(SHORT_LEASE + 1)
        assert await a.ack(last, message="poisoned") == [True]
        assert await cluster.results() == ["poisoned"]
