"""Activities that wait for the inputs of conversations."""

from __future__ import annotations

from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import ConversationOwner
from affinity_conformance.providers.kernel.activity_waits import run_activity, wait_of


class JournalWaitRules(Rules):
    """Waits that end when a wake has processed an input (contract: get_waits)."""

    async def test_a_wait_is_over_with_what_is_awaited(self, cluster: Cluster) -> None:
        """An input that a wake processes, in this journal; an instance that does not run (contract: get_waits)."""
        owner = await ConversationOwner.begin(cluster)
        worker = await cluster.worker("a")
        item = await run_activity(worker, "x")
        me, journal_id = "x", (await owner.conversation.page()).journal_id
        for number, (journal, seq) in enumerate(((journal_id, 1), (journal_id, 2), (journal_id - 1, 2))):
            await worker.provider.begin_wait(wait_of(number, item, "s", journal, seq))
        await worker.provider.begin_wait(wait_of(4, item, "nobody"))
        assert [edge.seq for edge in await worker.provider.get_waits(me)] == [1, 2]
        await owner.commit_wake()
        assert [edge.seq for edge in await worker.provider.get_waits(me)] == [2]
