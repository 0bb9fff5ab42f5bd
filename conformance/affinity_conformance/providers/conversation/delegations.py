"""Open delegations of journals: what wakes have given to children, until it ends."""

from __future__ import annotations

import pytest

from affinity.conversation.journal import InstanceStart, OpenDelegation
from affinity.conversation.store.postgres import journals as postgres_journals
from affinity.conversation.store.sqlite import journals as sqlite_journals
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import (
    Conversation,
    ConversationOwner,
    new_input,
    new_start,
    output,
)


def delegation(delegation_id: str = "d", child: str = "child") -> OpenDelegation:
    """Work for a child."""
    return OpenDelegation(delegation_id, child)


async def _ids(talk: Conversation) -> list[str]:
    """Ids of the open delegations."""
    return sorted(delegation.delegation_id for delegation in (await talk.pending(0)).delegations)


class JournalDelegationRules(Rules):
    """Open delegations (contract: OpenDelegation)."""

    async def test_a_delegation_is_open_until_a_wake_ends_it(self, cluster: Cluster) -> None:
        """Each once, of its own journal; an unknown id is ignored (contract: JournalWrite.delegations,
        JournalWrite.ended_delegations, PendingWork.delegations).
        """
        owner, other = [await ConversationOwner.begin(cluster, name) for name in "st"]
        await owner.commit_wake(delegations=[delegation("a"), delegation("b", "é")])
        await owner.commit_wake(delegations=[delegation("a"), delegation("c")], ended_delegations=["none"])
        await other.commit_wake(delegations=[delegation("b")])
        found = (await owner.conversation.pending()).delegations
        assert sorted(found) == [delegation("a"), delegation("b", "é"), delegation("c")]
        await owner.commit_wake(ended_delegations=["a", "b"])
        assert (await _ids(owner.conversation), await _ids(other.conversation)) == (["c"], ["b"])

    async def test_a_refused_write_begins_and_ends_none(self, cluster: Cluster) -> None:
        """(contract: JournalWrite)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake(delegations=[delegation("a")])
        write = await owner.new_write(base=7, delegations=[delegation("b")], ended_delegations=["a"])
        assert not (await owner.commit(write)).committed
        assert await _ids(owner.conversation) == ["a"]

    async def test_a_delegation_ends_with_the_journal_of_the_child(self, cluster: Cluster) -> None:
        """Whichever journals have delegated to it; of two deletions in the same moment too (contract:
        OpenDelegation).
        """
        owners = [await ConversationOwner.begin(cluster, name) for name in "st"]
        talk = owners[0].conversation
        await talk.journals.append_journal([new_input("child"), new_input("kept"), new_input("too")])
        for owner in owners:
            given = [delegation("a"), delegation("b", "kept"), delegation("c", "too")]
            await owner.commit_wake(delegations=given)
        await concurrently(*[Conversation(talk.provider, name).delete for name in ("child", "too")])
        assert [await _ids(owner.conversation) for owner in owners] == [["b"], ["b"]]

    async def test_a_delegation_to_an_instance_ends_with_it(self, cluster: Cluster) -> None:
        """A delegation to a child does not end when only the child's instance is deleted (contract: OpenDelegation)."""
        owner = await ConversationOwner.begin(cluster)
        run = InstanceStart(instance_id="run", name="run", start="start", generation="g")
        given = [delegation("run", "run"), delegation("other", "run"), delegation("a")]
        await owner.commit_wake(delegations=given, starts=[run])
        await owner.conversation.journals.append_journal([new_input("child")])
        await owner.peer.provider.delete_instance(["run", "child"], force=True)
        assert await _ids(owner.conversation) == ["a", "other"]

    async def test_a_delegation_ends_with_its_own_journal(self, cluster: Cluster) -> None:
        """Another one of this session, even of this journal id, has none (contract: delete_journal)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(delegations=[delegation()])
        journal_id = (await talk.page()).journal_id
        assert await talk.delete()
        await talk.journals.append_journal([new_input(start=new_start(journal_id=journal_id))])
        assert await _ids(talk) == []

    async def test_what_is_made_from_a_journal_has_none_of_its_delegations(self, cluster: Cluster) -> None:
        """A fork waits for no child of its base (contract: OpenDelegation)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(delegations=[delegation()], entries=[output()])
        assert (await _ids(talk), await _ids(await talk.fork("f"))) == (["d"], [])

    async def test_a_wake_reads_a_bounded_number(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """The limit applies to each journal (contract: PendingWork.delegations)."""
        for module in (sqlite_journals, postgres_journals):
            monkeypatch.setattr(module, "MAX_DELEGATIONS_READ", 2)
        owners = [await ConversationOwner.begin(cluster, name) for name in "st"]
        for owner in owners:
            await owner.commit_wake(delegations=[delegation(name) for name in "abc"])
        assert [len(await _ids(owner.conversation)) for owner in owners] == [2, 2]
