"""Locks on work items: renewal, ack, check and release of unknown locks, by owner, token and time."""

from __future__ import annotations

from affinity.provider.contract import Timeouts, Token, WorkAck, WorkLock
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, LONG_LEASE, SESSION_LOCK, SHORT_LEASE, count_rows
from affinity_conformance.providers.cluster import Cluster

SHORT_SESSION = Timeouts(work_item_lock=LONG_LEASE, session_lock=10.0)
LONG_ITEM_LOCK = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)


class LockRules(Rules):
    """Renewal needs owner, token and time left; an ack needs a live token."""

    async def test_a_renewal_after_expiry_does_not_resurrect(self, cluster: Cluster) -> None:
        """An expired lock cannot be renewed, and another worker can fetch its item."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None, "s")
        items = await a.take_all()
        await cluster.pass_time(ITEM_LOCK + 1)
        before = (await cluster.session("s")).expires_in
        assert await a.renew(*items) == [False, False]
        assert (await cluster.session("s")).expires_in <= before
        assert [item.attempts for item in await b.take(10)] == [2]  # the free one; the session is still held by a

    async def test_a_renewal_with_a_wrong_token_fails(self, cluster: Cluster) -> None:
        """A renewal with a wrong token fails and leaves the lock unchanged."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        forged = WorkLock(item.lock.key, Token("forged"))
        await cluster.advance(20)
        assert list(await a.provider.renew_work_item_lock(a.identity, [forged], LONG_ITEM_LOCK)) == [False]
        await cluster.pass_time(11)
        assert (await a.take_one()).attempts == 2

    async def test_a_renewal_by_another_worker_fails(self, cluster: Cluster) -> None:
        """Another worker cannot renew a lock, even with its token."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        item = await cluster.give(a, None)
        await cluster.advance(20)
        assert await b.renew(item) == [False]
        await cluster.pass_time(11)
        assert (await b.take_one()).attempts == 2

    async def test_a_renewal_by_another_incarnation_fails(self, cluster: Cluster) -> None:
        """A new incarnation of the same worker cannot renew a lock of the one before."""
        old = await cluster.worker("a")
        item = await cluster.give(old, None)
        new = await cluster.worker("a")
        assert await new.renew(item) == [False]
        assert (await new.take_one()).attempts == 2

    async def test_an_ack_removes_the_item_and_sends_its_result(self, cluster: Cluster) -> None:
        """An ack removes the item and sends its result, once (contract: ack_work_item)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", None)
        assert await a.ack(*await a.take_all(), message="result") == [True, True]
        assert await cluster.results() == ["result", "result"]
        await cluster.pass_time(SESSION_LOCK + 1)
        assert await a.take(10) == []
        assert (await count_rows(a.provider))["work_items"] == 0

    async def test_an_ack_succeeds_after_the_session_moved(self, cluster: Cluster) -> None:
        """An item whose session has moved can be acked while its own lock is live."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        running = await cluster.give(a, "s", timeouts=SHORT_SESSION)
        await cluster.pass_time(11)
        await cluster.give(b, "s")
        assert await cluster.holders() == {"s": "b"}
        assert await a.renew(running) == [True]
        assert await a.ack(running, message="kept") == [True]
        assert await cluster.results() == ["kept"]

    async def test_an_ack_of_an_expired_lock_is_refused(self, cluster: Cluster) -> None:
        """An expired lock cannot be acked even if no worker has fetched the item since."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        await cluster.advance(ITEM_LOCK + 1)
        assert await a.ack(item) == [False]
        assert await cluster.results() == []
        assert (await a.take_one()).attempts == 2

    async def test_an_ack_of_a_redelivered_item_is_refused(self, cluster: Cluster) -> None:
        """The token of an earlier delivery cannot be acked, and the new delivery is unchanged."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        lost = await cluster.give(a, None)
        await cluster.pass_time(ITEM_LOCK + 1)
        running = await b.take_one()
        assert await a.ack(lost, message="late") == [False]
        assert await b.renew(running) == [True]
        assert await b.ack(running, message="right") == [True]
        assert await cluster.results() == ["right"]

    async def test_an_ack_with_a_forged_token_is_refused(self, cluster: Cluster) -> None:
        """A made-up token of an existing item cannot be acked."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        forged = WorkAck(lock=WorkLock(item.lock.key, Token("forged")), message="forged")
        assert list(await a.provider.ack_work_item(a.identity, [forged], LONG_ITEM_LOCK)) == [False]
        assert await cluster.results() == []
        assert await a.ack(item) == [True]

    async def test_the_token_of_a_dead_worker_acks_until_somebody_fetches_the_item(self, cluster: Cluster) -> None:
        """A dead worker's live token still acks until another worker fetches the item (contract: live token)."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        await cluster.enqueue(None, None)
        items = await a.take(10, timeouts=LONG_ITEM_LOCK)
        await cluster.pass_time(SHORT_LEASE + 1)
        taken = await b.take_one()
        assert await a.ack(*items, message="a") == [item.lock.key != taken.lock.key for item in items]
        assert await cluster.results() == ["a"]
        assert await b.ack(taken) == [True]

    async def test_every_delivery_has_another_token(self, cluster: Cluster) -> None:
        """Each delivery has a token of its own (contract: Token)."""
        a = await cluster.worker("a")
        await cluster.enqueue(None)
        tokens = set()
        for _ in range(5):
            item = await a.take_one()
            tokens.add(item.lock.token)
            await a.give_back(item)
        assert len(tokens) == 5

    async def test_a_lock_can_be_checked_by_its_token(self, cluster: Cluster) -> None:
        """A check is true while the item is locked under the token, and false after give-back, redelivery or ack
        (contract: check_work_item).
        """
        a = await cluster.worker("a")
        first = await cluster.give(a, "s")
        assert await a.check(first) == [True]
        await a.give_back(first)
        assert await a.check(first) == [False]
        second = await a.take_one()
        assert await a.check(first, second) == [False, True]
        await a.ack(second)
        assert await a.check(first, second) == [False, False]

    async def test_releasing_unknown_locks_frees_what_a_lost_reply_locked(self, cluster: Cluster) -> None:
        """Items under unknown tokens are freed without counting the delivery; known ones stay locked (contract:
        release_unknown_locks).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None, "s", None)
        heard, *unheard = await a.take_all()
        assert len(unheard) == 2
        assert await a.release_unknown(heard.lock) == 2
        assert await a.release_unknown(heard.lock) == 0
        assert await a.check(heard, *unheard) == [True, False, False]
        free = await b.take_one()
        held = await a.take_one()
        assert (free.session_id, free.attempts) == (None, 1)
        assert (held.session_id, held.attempts) == ("s", 1)

    async def test_releasing_unknown_locks_counts_what_was_handed_to_code(self, cluster: Cluster) -> None:
        """The delivery of items in ``delivered`` stays counted (contract: release_unknown_locks)."""
        a = await cluster.worker("a")
        await cluster.enqueue("begun", None)
        taken = {item.session_id: item for item in await a.take_all()}
        assert await a.release_unknown(delivered=[taken["begun"]]) == 2
        again = {item.session_id: item.attempts for item in await a.take_all()}
        assert again == {"begun": 2, None: 1}

    async def test_a_delivery_after_many_interruptions_is_counted_when_it_begins(self, cluster: Cluster) -> None:
        """A delivery after ``uncounted_after`` interruptions counts when `begin_work_item` says so (contract:
        FetchOptions.uncounted_after, begin_work_item).
        """
        a = await cluster.worker("a")
        await cluster.enqueue(None, "s")  # fetched; the second time, of a session that is held
        for expected in (1, 2, 3, 3, 3):
            items = await a.take_all(uncounted_after=2)
            assert [item.attempts for item in items] == [expected, expected]
            await a.release_unknown(delivered=items)
        items = await a.take_all(uncounted_after=2)
        for item in items + items:  # done twice is done once
            assert await a.begin(item)
        await a.release_unknown(delivered=items)
        assert [item.attempts for item in await a.take_all(uncounted_after=2)] == [4, 4]

    async def test_an_item_that_ends_its_worker_comes_again_behind_others(self, cluster: Cluster) -> None:
        """It waits for the pause that its worker has set, while others are delivered; given back, it no longer waits
        (contract: begin_work_item).
        """
        a = await cluster.worker("a")
        await cluster.enqueue(None)
        item = await a.take_one(uncounted_after=0)
        assert await a.begin(item, pause=60.0)
        await cluster.enqueue(None)
        again = await cluster.worker("a")
        other = await again.take_one(uncounted_after=0)
        assert other.lock.key != item.lock.key
        assert await again.take() == []
        assert await again.begin(other, pause=60.0)
        assert await again.give_back(other) == [True]
        assert await again.ack(await again.take_one(uncounted_after=0)) == [True]
        await cluster.advance(61)
        assert (await again.take_one(uncounted_after=0)).lock.key == item.lock.key

    async def test_a_claim_counts_a_delivery_as_any_fetch(self, cluster: Cluster) -> None:
        """A fetch that claims a session counts deliveries like any other fetch (contract:
        FetchOptions.uncounted_after).
        """
        a = await cluster.worker("a")
        await cluster.enqueue("s")
        for expected in (1, 2, 3, 3):
            item = await a.take_one(uncounted_after=2)
            assert item.attempts == expected
            await a.give_back(item, release_session=True)

    async def test_failures_are_no_interruptions(self, cluster: Cluster) -> None:
        """Deliveries that ended with an error of the activity are counted at their fetch, however many there are."""
        a = await cluster.worker("a")
        await cluster.enqueue(None)
        for expected in (1, 2, 3):
            item = await a.take_one(uncounted_after=1)
            assert (item.attempts, item.failures) == (expected, expected - 1)
            await a.give_back(item, failed=True)

    async def test_only_who_has_an_item_counts_its_delivery(self, cluster: Cluster) -> None:
        """`begin_work_item` needs a live token and the incarnation that took it (contract: begin_work_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        item = await cluster.give(a, None, uncounted_after=0)
        assert not await b.begin(item)
        await a.give_back(item)
        assert not await a.begin(item)
        assert (await b.take_one()).attempts == 1

    async def test_releasing_unknown_locks_changes_nothing_of_other_workers(self, cluster: Cluster) -> None:
        """Items of other workers and other incarnations stay locked (contract: release_unknown_locks)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        item = await cluster.give(a, None)
        assert await b.release_unknown() == 0
        assert await (await cluster.peer("a")).release_unknown() == 0
        assert await a.renew(item) == [True]
