"""Records and journals at rest, which sweeps remove, with exceptions; and journals that cannot be pruned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from affinity.conversation.journal import JournalRetention, NewRequest, NewRevisit, OpenDelegation
from affinity.limits import DRAINED_RETENTION_SECONDS
from affinity.provider.contract import InstanceUpdate, Retention
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import new_instance, state, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import (
    Conversation,
    ConversationOwner,
    new_start,
    output,
    prune,
)
from affinity_conformance.providers.kernel.trees import child_of

DAY: Final = 86_400.0
KEEP: Final = Retention(records=DAY, guests={"conversation": {"resting": DAY}})

Case = Callable[[Cluster, ConversationOwner], Awaitable[object]]


async def _request(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.commit_wake(wake_id="w2", requests=[NewRequest(request_id="r", kind="confirm", payload="1")])


async def _revisit(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.commit_wake(wake_id="w2", revisits=[NewRevisit(key="k", delay=30 * DAY)])


async def _delegation(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.commit_wake(wake_id="w2", delegations=[OpenDelegation("d", "elsewhere")])


async def _delegated(cluster: Cluster, owner: ConversationOwner) -> None:
    parent = await ConversationOwner.begin(cluster, "parent")
    await parent.commit_wake(entries=[output()], delegations=[OpenDelegation("d", "s")])


async def _input(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.conversation.append()


async def _work(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.commit(await owner.new_write(wake_id="w2"), work_items=[work_item(owner.at, 1)])


async def _child(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.commit(await owner.new_write(wake_id="w2"), instances=[child_of(owner.at, "child")])


async def _suspended(cluster: Cluster, owner: ConversationOwner) -> None:
    assert await owner.peer.suspend(owner.at)


async def _failed(cluster: Cluster, owner: ConversationOwner) -> None:
    await owner.commit(await owner.new_write(wake_id="w2"), update=InstanceUpdate(status="failed", error="{}"))


async def _queued(cluster: Cluster, owner: ConversationOwner) -> None:
    await cluster.enqueue("s")


STAYS: Final[dict[str, Case]] = {
    "a request": _request,
    "a revisit": _revisit,
    "what it has delegated": _delegation,
    "what is delegated to it": _delegated,
    "an input that waits": _input,
    "a work item": _work,
    "a child that runs": _child,
    "a suspended instance": _suspended,
    "a failed instance": _failed,
    "work of its session": _queued,
}


async def _resting(cluster: Cluster, name: str = "s") -> ConversationOwner:
    owner = await ConversationOwner.begin(cluster, name)
    write = await owner.new_write(entries=[output()])
    assert (await owner.commit(write, update=InstanceUpdate(status="running"))).committed
    await (await cluster.states()).save(state(name))
    return owner


class OldDataRules(Rules):
    """`sweep` with ``Retention.records``, and with bounds of conversations; `prune_journals` of what has to stay."""

    @pytest.mark.parametrize("end", ["running", "completed", "cancelled", "deleted"])
    async def test_a_journal_at_rest_goes_with_its_instance_and_record(self, cluster: Cluster, end: str) -> None:
        """It goes after the retention, and not before. A later input begins another journal with number 1, also under
        an event id that was used (contract: sweep).
        """
        owner = await _resting(cluster)
        talk = owner.conversation
        if end == "deleted":
            await talk.provider.delete_instance(["s"], force=True)
        elif end != "running":
            update: Any = InstanceUpdate(status=end)  # type: ignore[arg-type]
            await owner.commit(await owner.new_write(wake_id="w2"), update=update)
        old = (await talk.page()).journal_id
        assert (await cluster.sweep(retention=KEEP)).removed == {}
        await cluster.advance(2 * DAY)
        assert (await cluster.sweep()).removed == {}
        swept = await cluster.sweep(retention=KEEP)
        assert (swept.removed, swept.records_removed) == ({"journals": 1}, 0)
        assert await talk.provider.get_instance(["s"]) == [None]
        assert await (await cluster.states()).load("s") is None
        again = await talk.append()
        assert (again.outcome, again.seq, again.created, again.journal_id != old) == ("appended", 1, True, True)

    @pytest.mark.parametrize("case", list(STAYS))
    async def test_a_journal_that_is_needed_stays(self, cluster: Cluster, case: str) -> None:
        """Whatever its age; and it keeps none behind (contract: sweep)."""
        owner = await _resting(cluster)
        await STAYS[case](cluster, owner)
        await _resting(cluster, "t")
        await cluster.advance(2 * DAY)
        assert (await cluster.sweep(retention=KEEP)).removed == {"journals": 1}
        assert await (await cluster.states()).load("t") is None
        assert await (await cluster.states()).load("s") is not None
        assert (await owner.conversation.page()).entries

    async def test_what_a_fork_continues_stays_for_it(self, cluster: Cluster) -> None:
        """The fork does not keep its base, and loses nothing with it (contract: delete_journal)."""
        owner = await _resting(cluster)
        await cluster.advance(2 * DAY)
        fork = await owner.conversation.fork("fork")
        assert (await cluster.sweep(retention=KEEP)).removed == {"journals": 1}
        assert await fork.texts() == ["hello", "answer"]
        assert (await owner.conversation.append()).created

    async def test_a_child_goes_before_its_parent(self, cluster: Cluster) -> None:
        """A parent stays while a child is left (contract: sweep)."""
        parent = await _resting(cluster, "parent")
        await cluster.advance(2 * DAY)
        start = new_start("child", parent="parent")
        await Conversation(parent.conversation.provider, "child").append(start=start)
        child = await ConversationOwner.take(cluster, "child")
        await child.commit_wake(entries=[output()])
        assert (await cluster.sweep(retention=KEEP)).removed == {}
        await cluster.advance(2 * DAY)
        assert (await cluster.sweep(retention=KEEP)).removed == {"journals": 1}
        await cluster.advance(DAY)
        assert (await cluster.sweep(retention=KEEP)).removed == {"journals": 1}

    async def test_records_that_nothing_uses_go(self, cluster: Cluster) -> None:
        """A record goes. New records stay, and records that a session, a hold, queued work, an instance or a journal
        needs (contract: sweep).
        """
        store = await cluster.states()
        await cluster.holder("a", "held")
        holder, b = await cluster.worker("h"), await cluster.worker("b")
        await cluster.use(holder, "waits")
        await holder.hold("holds", "waits", 30 * DAY)
        await b.provider.create_instance([new_instance("i", session_id="named")])
        talk = Conversation(b.provider, "talk")
        await talk.append()
        for name in ("old", "queued", "named", "waits", "talk", "held"):
            await store.save(state(name))
        await cluster.advance(2 * DAY)
        await cluster.enqueue("queued")
        await store.save(state("new"))
        keep = Retention(records=DAY)
        assert (await cluster.sweep(retention=keep)).records_removed == 2
        left = [name for name in ("old", "held", "new", "queued", "named", "waits", "talk") if await store.load(name)]
        assert left == ["new", "queued", "named", "waits", "talk"]

    async def test_a_journal_of_which_nothing_can_be_removed_goes_behind(self, cluster: Cluster) -> None:
        """It is passed over for a minute, and longer each time; a caller that asks for everything still gets it
        (contract: prune_journals).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        keep = JournalRetention(age=10.0)
        await cluster.advance(20)
        for pause in (60, 120, 240):
            assert (await talk.journals.prune_journals(keep, limit=10)).entries == 0
            if pause == 240:
                await owner.commit_wake()
            await cluster.advance(pause - 1)
            assert (await talk.journals.prune_journals(keep, limit=10)).entries == 0
            assert (await talk.journals.prune_journals(keep, limit=10, dry_run=True)).entries == (pause == 240)
            await cluster.advance(2)
        assert (await talk.journals.prune_journals(keep, limit=10)).entries == 1
        await talk.append()
        await cluster.advance(20)
        assert (await talk.journals.prune_journals(keep, limit=10)).entries == 0
        await owner.commit_wake(wake_id="w2")
        assert (await talk.journals.prune_journals(keep, limit=10)).entries == 0
        assert (await talk.journals.prune_journals(keep, limit=10, everything=True)).entries == 1

    async def test_a_base_comes_again_when_its_fork_is_pruned(self, cluster: Cluster) -> None:
        """It need not wait for the end of its pause (contract: prune_journals)."""
        owner = await _resting(cluster)
        await owner.conversation.fork("fork")
        keep = JournalRetention(age=10.0)
        await cluster.advance(20)
        removed: list[int] = []
        while not removed or removed[-1]:
            removed.append((await owner.conversation.journals.prune_journals(keep, limit=10)).entries)
        assert removed == [2, 2, 0]
        assert await prune(owner.conversation, age=0.0) == 0

    async def test_a_sweep_prunes_entries(self, cluster: Cluster) -> None:
        """The retention applies whichever worker sweeps (contract: sweep)."""
        owner = await ConversationOwner.begin(cluster)
        await owner.commit_wake(entries=[output() for _ in range(4)])
        swept = await cluster.sweep(retention=Retention(guests={"conversation": {"entries": 2}}))
        assert (swept.removed, swept.backlog) == ({"entries": 3}, False)
        assert await owner.conversation.numbers() == [4, 5]

    @pytest.mark.parametrize("named", [False, True])
    async def test_the_row_of_a_drained_worker_goes(self, cluster: Cluster, named: bool) -> None:
        """It goes like that of another dead worker, or after a week if its name may return (contract: sweep)."""
        a = await cluster.worker("a", named=named)
        assert await a.provider.set_drain_wanted("a", wanted=True)
        await a.leave()

        async def is_there() -> bool:
            await cluster.sweep(worker_retention=10.0)
            return "a" in {worker.worker_id for worker in await a.provider.list_workers()}

        assert await is_there()
        await cluster.advance(11)
        assert await is_there() is named
        await cluster.advance(DRAINED_RETENTION_SECONDS)
        assert not await is_there()
