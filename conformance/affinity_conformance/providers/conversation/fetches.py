"""Fetches that bring the pending work of a conversation with its item."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from affinity.conversation.journal import JournalRange, JournalWrite, NewRequest, NewRevisit, Step
from affinity.conversation.store.contract import journals_of
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import ConversationOwner, creation_of
from affinity_conformance.providers.conversation.lineage import Journals

REQUEST: Final = NewRequest(request_id="q", kind="confirm", payload="1")
REVISIT: Final = NewRevisit(key="k", delay=1_000.0, priority=0, reason="", note="null")
GUEST: Final = JournalWrite.guest
STEP: Final = Step("w0", "k")


def prefetch_of(*names: str) -> Mapping[str, Collection[str]]:
    """Activities of these names begin with the pending inputs of their journals."""
    return {GUEST: names}


class JournalFetchRules(Rules):
    """`WorkFetch.prefetched`, in a fetch with `FetchOptions.only_own`."""

    @pytest.mark.parametrize("appends", [1, 2])
    @pytest.mark.parametrize(
        "write",
        [{}, {"requests": [REQUEST]}, {"revisits": [REVISIT]}, {"steps": [STEP]}],
        ids=["plain", "request", "revisit", "step"],
    )
    async def test_what_a_fetch_says_is_pending(self, cluster: Cluster, write: Mapping[str, Any], appends: int) -> None:
        """The pending work that a fetch returns is the result of `get_pending` (contract: WorkFetch.prefetched)."""
        owner = await ConversationOwner.begin(cluster)
        await cluster.use(owner.peer, "s")
        item = work_item(owner.at, 2, "s")
        await owner.commit(await owner.new_write(**write), work_items=[replace(item, parked=True)])
        for number in range(appends):
            await owner.conversation.append(event_id=f"e{number}")
        fetched = await owner.peer.fetch(10, only_own=True, prefetch=prefetch_of("other", item.name))
        assert [fetched_item.lock.key for fetched_item in fetched.items] == [item.key]
        expected = await owner.conversation.pending()
        assert fetched.prefetched.get(GUEST, {}) in ({}, {"s": expected})
        assert await owner.peer.give_back(*fetched.items) == [True]
        fetched = await owner.peer.fetch(10, only_own=True, prefetch=prefetch_of("other"))
        assert fetched.prefetched.get(GUEST, {}) == {}

    async def test_a_fetch_marks_a_pending_input_that_a_merge_has_copied(self, cluster: Cluster) -> None:
        """It is what `get_pending` gives (contract: WorkFetch.prefetched)."""
        journals = Journals(journals_of((await cluster.enqueuer()).provider))
        processed = await ConversationOwner.begin(cluster, "left")
        await processed.commit_wake()
        left = (await processed.conversation.pending()).journal_id
        right = await journals.say("right", "copied")
        await journals.create(creation_of("s", left, right, lineage="merge", merged=JournalRange(right)))
        owner = await ConversationOwner.take(cluster)
        await cluster.use(owner.peer, "s")
        item = work_item(owner.at, 2, "s")
        await owner.peer.commit_one(owner.at, work_items=[item])
        expected = await owner.conversation.pending()
        assert [entry.is_copied for entry in expected.inputs] == [True]
        fetched = await owner.peer.fetch(10, only_own=True, prefetch=prefetch_of(item.name))
        assert [fetched_item.lock.key for fetched_item in fetched.items] == [item.key]
        assert fetched.prefetched.get(GUEST, {}) in ({}, {"s": expected})
