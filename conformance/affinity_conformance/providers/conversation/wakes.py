"""Ends of wakes, and the replies that are found by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from affinity.conversation.journal import (
    EndOutcome,
    JournalQuery,
    JournalRange,
    JournalWake,
    NewEntry,
    WakeEnd,
    WakeFailure,
)
from affinity.provider.contract import FailureFilter, WorkAck
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import TIMEOUTS, turn
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import (
    Conversation,
    ConversationOwner,
    creation_of,
    new_input,
    new_start,
    output,
    prune,
)

OUTCOMES: Final[Sequence[EndOutcome]] = ("retried", "failed", "failed", "retried")


async def run_wake(
    owner: ConversationOwner, wake_id: str, outcome: EndOutcome = "done", upto: int = 0, **fields: Any
) -> None:
    """Commit the end of a wake that was given the inputs up to a number, or all, and has one entry: its id."""
    work = await owner.conversation.pending()
    read = upto or max((entry.seq for entry in work.inputs), default=work.processed)
    step = {"processed": read if outcome == "done" else work.processed, "entries": [output(wake_id, wake_id)]}
    await owner.commit_wake(wake_id=wake_id, end=WakeEnd(outcome=outcome, read=read), **{**step, **fields})


async def reply(talk: Conversation, seq: int, **query: Any) -> list[str]:
    """Texts of the entries of the wake that has processed an input."""
    page = await talk.page(reply_to=seq, **query)
    assert (page.wake is not None and page.wake.processed >= seq) or not page.entries
    return [entry.payload.strip('"') for entry in page.entries]


class JournalWakeRules(Rules):
    """`JournalWrite.end`, `JournalQuery.reply_to` and `get_wakes` (contract: JournalWake)."""

    async def test_an_ended_wake_has_a_row(self, cluster: Cluster) -> None:
        """Rows come in the order of their entries, from a number on, or newest first (contract: get_wakes)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.append()
        error = '{"type":"é\\u0000"}'
        end = WakeEnd(outcome="retried", reason="é", read=2, attempt=3, error=error)
        await owner.commit_wake(processed=0, entries=[output(), output()], end=end)
        await owner.commit_wake(wake_id="w2", processed=1, entries=[output()], end=WakeEnd(read=1))
        first, second = (
            JournalWake(4, "w1", 0, 2, 0, "retried", "é", 3, error),
            JournalWake(5, "w2", 0, 1, 1, "done", "", 1, None),
        )
        assert await talk.wakes() == [first, second]
        assert await talk.wakes(after=4) == await talk.wakes(newest_first=True, limit=1) == [second]
        assert await talk.wakes(limit=1) == (await talk.wakes(newest_first=True))[1:] == [first]
        assert await talk.journals.get_wakes("none", limit=10) == []

    async def test_a_wake_that_goes_on_has_none(self, cluster: Cluster) -> None:
        """Neither a part, nor a write that is refused (contract: JournalWrite.end)."""
        owner = await ConversationOwner.begin(cluster)
        write = await owner.new_write(entries=[output()])
        assert not (await owner.commit(replace(write, base=7))).committed
        await owner.commit_wake(entries=[output()], is_part=True)
        assert await owner.conversation.wakes() == []
        assert (await owner.commit(write)).committed
        assert [wake.seq for wake in await owner.conversation.wakes()] == [3]

    async def test_of_one_batch_each_wake_has_its_own(self, cluster: Cluster) -> None:
        """The batch has turns, one of them refused and one that does not end its wake; and acks (contract:
        JournalWrite.end).
        """
        names = [f"s{number}" for number in range(4)]
        talk = await Conversation.open(cluster)
        await talk.journals.append_journal([new_input(name) for name in names])
        peer = await cluster.worker("a")
        taken = {item.instance_id: item for item in await peer.take_instances(100)}
        owners = [ConversationOwner(peer, Conversation(peer.provider, name), taken[name]) for name in names]
        writes = [await owner.new_write(entries=[output()] * n) for n, owner in enumerate(owners, 1)]
        writes[1], writes[2] = replace(writes[1], base=1), replace(writes[2], end=None)
        await peer.commit(*[turn(owner.at, parts=[write]) for owner, write in zip(owners, writes, strict=True)])
        found = [[wake.seq for wake in await owner.conversation.wakes()] for owner in owners]
        assert found == [[2], [], [], [5]]
        await cluster.enqueue("s1", "s2")
        items = await peer.take(2)
        again = [replace(writes[1], base=0), replace(writes[2], base=7)]
        acks = [
            WorkAck(lock=item.lock, message="done", parts=[write]) for item, write in zip(items, again, strict=True)
        ]
        assert await peer.provider.ack_work_item(peer.identity, acks, TIMEOUTS) == [True, False]
        assert [[wake.seq for wake in await owner.conversation.wakes()] for owner in owners[1:3]] == [[3], []]

    async def test_a_wake_that_fails_is_among_the_failures(self, cluster: Cluster) -> None:
        """Of a batch of turns and of acks, those that pass; with the activity, and whether it is tried again (contract:
        JournalWrite.failure).
        """
        names = [f"s{number}" for number in range(4)]
        talk = await Conversation.open(cluster)
        await talk.journals.append_journal([new_input(name) for name in names])
        peer = await cluster.worker("a")
        taken = {item.instance_id: item for item in await peer.take_instances(100)}
        owners = [ConversationOwner(peer, Conversation(peer.provider, name), taken[name]) for name in names]
        writes = [
            await owner.new_write(
                entries=[output()],
                end=WakeEnd(outcome=outcome, read=1),
                failure=WakeFailure(1, number, 2, "chat.wake", "ValueError", f"ValueError: é{number}"),
                processed=0,
            )
            for number, (owner, outcome) in enumerate(zip(owners, OUTCOMES, strict=True))
        ]
        late = replace(writes[1], base=7)
        turns = [turn(owner.at, parts=[write]) for owner, write in zip(owners[:2], [writes[0], late], strict=True)]
        assert [result.committed for result in await peer.commit(*turns)] == [True, False]
        await cluster.enqueue("s2", "s3")
        items = await peer.take(2)
        again = [writes[2], replace(writes[3], base=7)]
        acks = [WorkAck(lock=item.lock, message="done", parts=[one]) for item, one in zip(items, again, strict=True)]
        assert await peer.provider.ack_work_item(peer.identity, acks, TIMEOUTS) == [True, False]
        (first,) = await peer.provider.list_failed_attempts("s0", 1, 10)
        (second,) = await peer.provider.list_failed_attempts("s2", 1, 10)
        assert (first.activity_id, first.attempt, first.name, first.error) == (0, 2, "chat.wake", "ValueError: é0")
        assert (second.activity_id, second.error) == (2, "ValueError: é2")
        found = await peer.provider.list_failures(FailureFilter(seconds=3600.0), 10)
        assert {(each.instance_id, each.kind, each.is_retried) for each in found} == {
            ("s0", "activity", True),
            ("s2", "activity", False),
        }
        assert [each.count for each in (await peer.provider.group_failures(3600.0, 10, most=10)).groups] == [2]

    async def test_the_reply_is_of_the_wake_that_has_processed_the_input(self, cluster: Cluster) -> None:
        """All its entries, of earlier attempts and parts too, and no others (contract: JournalQuery.reply_to)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await run_wake(owner, "w1", "retried")
        await talk.append()
        await owner.commit_wake(is_part=True, entries=[output("part")])
        await talk.append()
        await run_wake(owner, "w1", upto=3)
        await run_wake(owner, "w2")
        await run_wake(owner, "w3")
        assert await talk.texts() == ["hello", "w1", "hello", "part", "hello", "w1", "w2", "w3"]
        assert await reply(talk, 1) == await reply(talk, 3) == ["w1", "part", "w1"]
        assert await reply(talk, 5) == ["w2"]
        page = await talk.page(reply_to=5)
        assert (page.wake, page.more, page.last_seq) == (JournalWake(7, "w2", 3, 5, 5, "done", "", 1, None), False, 8)
        assert (page.processed, page.instance_status) == (5, "pending")

    async def test_while_there_is_no_reply_the_page_has_the_last_wake(self, cluster: Cluster) -> None:
        """A page without entries has the wake that got the input, until more comes (contract: JournalPage.wake)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        page = await talk.page(reply_to=1)
        assert (page.wake, page.entries, page.more, page.is_input) == (None, [], False, True)
        await run_wake(owner, "w1", "failed")
        await run_wake(owner, "w2", "failed")
        page = await talk.page(reply_to=1)
        assert (page.wake, page.entries) == (JournalWake(3, "w2", 0, 1, 0, "failed", "", 1, None), [])
        await talk.append()
        assert [(await talk.page(reply_to=seq)).wake for seq in (1, 4)] == [None, None]
        await run_wake(owner, "w3", "retried", upto=1)
        found = [(await talk.page(reply_to=seq)).wake for seq in (1, 4)]
        assert found == [JournalWake(5, "w3", 0, 1, 0, "retried", "", 1, None), None]
        await owner.commit_wake(is_part=True, entries=[output()])
        assert (await talk.page(reply_to=1)).wake is None

    async def test_an_entry_that_is_no_input_has_no_reply(self, cluster: Cluster) -> None:
        """The page says so as long as the entry is kept (contract: JournalPage.is_input)."""
        owner = await ConversationOwner.begin(cluster)
        await run_wake(owner, "w1")
        await owner.conversation.append()
        await run_wake(owner, "w2")
        assert [(await owner.conversation.page(reply_to=seq)).is_input for seq in (1, 2, 3, 4, 5)] == [
            *(True, False, True, False, True)
        ]

    async def test_a_long_reply_is_read_by_pages(self, cluster: Cluster) -> None:
        """Pages are bounded by number of entries and by bytes, beside other queries (contract: read_journal)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await owner.commit_wake(entries=[output(str(number)) for number in range(10)])
        for limit, first, more in ((3, ["0", "1", "2"], True), (10, [str(n) for n in range(10)], False)):
            page = await talk.page(reply_to=1, limit=limit)
            assert ([entry.payload.strip('"') for entry in page.entries], page.more) == (first, more)
        assert await reply(talk, 1, after=10) == ["9"]
        asked = JournalQuery(session_id="s", reply_to=1)
        plain = JournalQuery(session_id="s", after=9)
        queries = [plain, asked, replace(asked, session_id="none"), replace(asked, after=11), plain]
        pages = await talk.journals.read_journal(queries)
        found = [None if page is None else [entry.seq for entry in page.entries] for page in pages]
        assert found == [[10, 11], [*range(2, 12)], None, [], [10, 11]]
        (part,) = await talk.journals.read_journal([asked], max_bytes=4)
        assert part is not None
        assert (len(part.entries), part.more, part.wake is not None) == (2, True, True)

    async def test_rows_go_with_their_last_entry(self, cluster: Cluster) -> None:
        """A wake of which entries are left has the row, and the rest of them (contract: JournalWake)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        for name in ("w1", "w2"):
            await owner.commit_wake(wake_id=name, entries=[output(f"{name}.{n}", name) for n in range(2)])
            await talk.append()
        assert await prune(talk, entries=3) == 4
        assert [wake.wake_id for wake in await talk.wakes()] == ["w2"]
        assert await reply(talk, 4) == ["w2.0", "w2.1"]
        assert await prune(talk, entries=2) == 1
        assert await reply(talk, 4) == ["w2.1"]
        await run_wake(owner, "w3")
        await prune(talk, entries=0)
        assert await talk.wakes() == []

    async def test_a_fork_has_the_replies_up_to_where_it_was_cut(self, cluster: Cluster) -> None:
        """It also has its own wakes; before the first of them, it has no last wake (contract: JournalPage.wake,
        get_wakes).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await run_wake(owner, "w1")
        await talk.append()
        await run_wake(owner, "w2")
        await talk.append()
        await run_wake(owner, "w3", "failed")
        whole, cut = await (await talk.fork("between")).fork("whole"), await talk.fork("cut", 3)
        for made in (whole, cut):
            assert await reply(made, 1) == ["w1"]
        assert await reply(whole, 3) == ["w2"]
        assert (await cut.page(reply_to=3)).wake is None
        assert [wake.wake_id for wake in await cut.wakes()] == ["w1"]
        assert [wake.wake_id for wake in await whole.wakes()] == ["w1", "w2", "w3"]
        assert [wake.wake_id for wake in await whole.wakes(newest_first=True, limit=2)] == ["w3", "w2"]
        assert [(await whole.page(reply_to=5)).wake, (await whole.page(reply_to=2)).is_input] == [None, False]
        mine = await ConversationOwner.of(owner.peer, "whole")
        await run_wake(mine, "w4")
        assert await reply(whole, 5) == ["w4"]
        assert [wake.wake_id for wake in await whole.wakes(after=5)] == ["w3", "w4"]
        assert (await talk.page(reply_to=5)).entries == []
        await talk.delete()
        assert [await reply(whole, seq) for seq in (1, 3, 5)] == [["w1"], ["w2"], ["w4"]]
        await prune(whole, entries=3)
        assert [wake.wake_id for wake in await whole.wakes()] == ["w3", "w4"]

    async def test_a_merge_has_no_replies_of_its_right_side(self, cluster: Cluster) -> None:
        """Inputs that were processed there are not inputs here; unprocessed ones wait for the merge's own wakes
        (contract: JournalWake).
        """
        left = await ConversationOwner.begin(cluster)
        await run_wake(left, "l")
        right = await ConversationOwner.begin(cluster, "t", text="right")
        await run_wake(right, "r")
        await right.conversation.append(text="waits")
        base, merged = [(await owner.conversation.page()).journal_id for owner in (left, right)]
        creation = creation_of("m", base, merged, lineage="merge", merged=JournalRange(merged))
        made = await left.conversation.create(creation)
        assert await made.texts() == ["hello", "l", "right", "r", "waits"]
        assert await reply(made, 1) == ["l"]
        assert (await made.page(reply_to=3)).is_input is False
        await run_wake(await ConversationOwner.of(left.peer, "m"), "m")
        assert await reply(made, 5) == ["m"]
        assert [wake.wake_id for wake in await made.wakes()] == ["l", "m"]

    async def test_an_import_has_the_wakes_that_come_with_it(self, cluster: Cluster) -> None:
        """It has the watermark, too; later inputs wait (contract: JournalCreation.wakes, JournalCreation.processed)."""
        talk = await Conversation.open(cluster)
        entries = [
            NewEntry(kind="user.message", payload='"1"', is_input=True),
            NewEntry(kind="agent.message", payload='"2"', wake_id="w1"),
            NewEntry(kind="user.message", payload='"3"', is_input=True),
        ]
        wakes = [JournalWake(2, "w1", 0, 1, 1, "done", "é", 2, '{"é":1}')]
        made = await talk.create(creation_of("i", lineage="import", entries=entries, processed=1, wakes=wakes))
        assert await made.wakes() == wakes
        assert await reply(made, 1) == ["2"]
        work = await made.pending()
        assert (work.processed, [entry.seq for entry in work.inputs]) == (1, [3])
        await run_wake(await ConversationOwner.take(cluster, "i"), "w2")
        assert await reply(made, 3) == ["w2"]

    async def test_a_deleted_journal_has_no_rows(self, cluster: Cluster) -> None:
        """Also where another one has its id (contract: delete_journal)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await run_wake(owner, "w1")
        await talk.append()
        await run_wake(owner, "w2")
        journal_id = (await talk.page()).journal_id
        made = await talk.fork("f", 2)
        assert await talk.delete()
        assert await reply(made, 1) == ["w1"]
        assert await made.delete()
        again = new_input(start=new_start(journal_id=journal_id))
        assert [appended.outcome for appended in await talk.journals.append_journal([again])] == ["appended"]
        assert await talk.wakes() == []
