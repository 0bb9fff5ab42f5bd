"""Reading journals: pages by number, kind, wake and event id, what a wake has to do, and bounds."""

from __future__ import annotations

from affinity.conversation.journal import JournalQuery, NewEntry, StreamCursor
from affinity.provider.contract import InstanceUpdate
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import Conversation, ConversationOwner, new_input, output


async def _ten(cluster: Cluster) -> Conversation:
    """Ten entries: inputs at the odd numbers, of kinds a, b, a, b, a; notes of kind c, of wakes w2, w4, … between."""
    talk = await Conversation.open(cluster)
    batch = []
    for number in range(1, 11, 2):
        batch.append(new_input("s", str(number), entry_kind="ab"[number // 2 % 2], event_id=f"e{number}"))
        note = output(str(number + 1), f"w{number + 1}", kind="c")
        batch.append(new_input("s", entry=note, message=None))
    assert [appended.seq for appended in await talk.journals.append_journal(batch)] == list(range(1, 11))
    return talk


class JournalReadingRules(Rules):
    """`read_journal` and `get_pending` (contract: JournalQuery, PendingWork)."""

    async def test_a_session_without_a_journal_has_no_page(self, cluster: Cluster) -> None:
        """None for it; the other queries are answered, in their order (contract: read_journal)."""
        talk = await _ten(cluster)
        queries = [JournalQuery(session_id=name, limit=1) for name in ("none", "s", "none", "s")]
        pages = await talk.journals.read_journal(queries)
        assert [page is not None for page in pages] == [False, True, False, True]
        assert await talk.journals.get_pending(["none"], limit=1) == [None]

    async def test_pages_by_number(self, cluster: Cluster) -> None:
        """Pages begin after a number, before one, or between two, oldest or newest first, within the limit; they say
        whether there is more (contract: JournalQuery).
        """
        talk = await _ten(cluster)
        assert await talk.numbers() == list(range(1, 11))
        assert await talk.numbers(after=7) == [8, 9, 10]
        assert await talk.numbers(before=4) == [1, 2, 3]
        assert await talk.numbers(after=3, before=6) == [4, 5]
        assert await talk.numbers(after=3, newest_first=True) == [10, 9, 8, 7, 6, 5, 4]
        assert (
            await talk.numbers(after=10) == await talk.numbers(before=1) == await talk.numbers(after=5, before=6) == []
        )
        page = await talk.page(limit=3)
        assert ([entry.seq for entry in page.entries], page.more) == ([1, 2, 3], True)
        page = await talk.page(limit=3, newest_first=True)
        assert ([entry.seq for entry in page.entries], page.more) == ([10, 9, 8], True)
        page = await talk.page(limit=3, after=7)
        assert ([entry.seq for entry in page.entries], page.more) == ([8, 9, 10], False)
        page = await talk.page(limit=3, before=3, newest_first=True)
        assert ([entry.seq for entry in page.entries], page.more) == ([2, 1], False)

    async def test_paging_misses_nothing(self, cluster: Cluster) -> None:
        """The pages behind each other, in either direction, are the journal (contract: JournalQuery)."""
        talk = await _ten(cluster)
        forward: list[int] = []
        while found := await talk.numbers(after=forward[-1] if forward else 0, limit=4):
            forward += found
        backward: list[int] = []
        while found := await talk.numbers(before=backward[-1] if backward else None, limit=4, newest_first=True):
            backward += found
        assert forward == backward[::-1] == list(range(1, 11))

    async def test_a_page_has_the_status_of_the_instance(self, cluster: Cluster) -> None:
        """It is the status in the page's snapshot, or None (contract: JournalPage.instance_status)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        found = [(await talk.page()).instance_status]
        await owner.commit(await owner.new_write(), update=InstanceUpdate(status="running"))
        found.append((await talk.page(after=1, stream=StreamCursor())).instance_status)
        await owner.commit(await owner.new_write(), update=InstanceUpdate(status="cancelled"))
        found.append((await talk.page(limit=0)).instance_status)
        await talk.provider.delete_instance(["s"], force=True)
        found.append((await talk.page()).instance_status)
        assert found == ["pending", "running", "cancelled", None]

    async def test_around_an_event(self, cluster: Cluster) -> None:
        """An event id gives its entry, and so a place to read around; an unknown one gives none (contract:
        JournalQuery.event_id).
        """
        talk = await _ten(cluster)
        (anchor,) = await talk.entries(event_id="e5")
        assert (anchor.seq, anchor.event_id) == (5, "e5")
        assert await talk.numbers(before=anchor.seq, newest_first=True, limit=2) == [4, 3]
        assert await talk.numbers(after=anchor.seq, limit=2) == [6, 7]
        assert await talk.numbers(event_id="e6") == await talk.numbers(event_id="e5", after=5) == []
        assert await talk.numbers(event_id="e5", kinds=["b"]) == await talk.numbers(event_id="e5", wake_id="w2") == []
        assert await talk.numbers(event_id="e5", kinds=["a"], pending=True, newest_first=True) == [5]

    async def test_kinds(self, cluster: Cluster) -> None:
        """Entries of some kinds, in the order of their numbers (contract: JournalQuery.kinds)."""
        talk = await _ten(cluster)
        assert await talk.numbers(kinds=["a"]) == [1, 5, 9]
        assert await talk.numbers(kinds=["b", "a"]) == [1, 3, 5, 7, 9]
        assert await talk.numbers(kinds=["c", "b"], newest_first=True, limit=3) == [10, 8, 7]
        assert await talk.numbers(kinds=["a", "c"], after=2, before=9) == [4, 5, 6, 8]
        assert await talk.numbers(kinds=["none"]) == []
        page = await talk.page(kinds=["a", "b"], limit=2)
        assert ([entry.seq for entry in page.entries], page.more) == ([1, 3], True)
        page = await talk.page(kinds=["a", "b", "a"], after=3, limit=3)
        assert ([entry.seq for entry in page.entries], page.more) == ([5, 7, 9], False)

    async def test_wakes(self, cluster: Cluster) -> None:
        """Entries of one wake (contract: JournalQuery.wake_id)."""
        talk = await _ten(cluster)
        assert await talk.numbers(wake_id="w4") == [4]
        assert await talk.numbers(wake_id="w4", kinds=["c"]) == [4]
        assert await talk.numbers(wake_id="w4", kinds=["a"]) == await talk.numbers(wake_id="w4", after=4) == []
        assert await talk.numbers(wake_id="w4", pending=True) == await talk.numbers(wake_id="none") == []

    async def test_pending_inputs(self, cluster: Cluster) -> None:
        """Inputs behind the watermark, which moves with a commit (contract: JournalQuery.pending)."""
        await _ten(cluster)
        owner = await ConversationOwner.take(cluster)
        talk = owner.conversation
        assert await talk.numbers(pending=True) == [1, 3, 5, 7, 9]
        await owner.commit(await owner.new_write(processed=6))
        assert (await talk.page()).processed == 6
        assert await talk.numbers(pending=True) == [7, 9]
        assert await talk.numbers(pending=True, kinds=["a"], newest_first=True) == [9]
        assert await talk.numbers(pending=True, after=7) == [9]

    async def test_a_wake_finds_its_inputs(self, cluster: Cluster) -> None:
        """Inputs behind the watermark, oldest first, up to the limit, and whether there are more (contract:
        get_pending).
        """
        await _ten(cluster)
        owner = await ConversationOwner.take(cluster)
        talk = owner.conversation
        work = await talk.pending(limit=2)
        assert ([entry.seq for entry in work.inputs], work.more, work.processed, work.last_seq) == ([1, 3], True, 0, 10)
        await owner.commit(await owner.new_write(processed=3))
        work = await talk.pending(limit=3)
        assert ([entry.seq for entry in work.inputs], work.more, work.processed) == ([5, 7, 9], False, 3)
        assert work.inputs[0] == (await talk.entries(event_id="e5"))[0]
        await owner.commit_wake()
        work = await talk.pending()
        assert (work.inputs, work.more, work.processed) == ([], False, 9)

    async def test_many_sessions_are_read_together(self, cluster: Cluster) -> None:
        """Each gets its own, also with one named twice (contract: get_pending)."""
        talk = await Conversation.open(cluster)
        names = [f"s{number}" for number in range(300)]
        await talk.journals.append_journal([new_input(name, name) for name in names])
        wanted = [*reversed(names), "none", "s7"]
        found = await talk.journals.get_pending(wanted, limit=10)
        assert [None if work is None else [entry.payload for entry in work.inputs] for work in found] == [
            *([f'"{name}"'] for name in reversed(names)),
            None,
            ['"s7"'],
        ]

    async def test_pages_are_bounded_in_bytes(self, cluster: Cluster) -> None:
        """A page ends with the entry that reaches the bytes, and has at least one entry. The rest follows (contract:
        read_journal).
        """
        talk, other = await Conversation.open(cluster), await Conversation.open(cluster, "t")
        await talk.journals.append_journal([new_input("s", "é" * 49) for _ in range(40)])
        await talk.journals.append_journal([new_input("t", "x" * 98)])
        queries = [JournalQuery(session_id=name) for name in ("s", "t")]
        for most, sizes in ((1, [1, 0]), (100, [1, 0]), (101, [2, 0]), (3_901, [40, 0]), (4_001, [40, 1])):
            pages = await talk.journals.read_journal(queries, max_bytes=most)
            assert [len(page.entries) for page in pages if page is not None] == sizes, most
            assert [page.more for page in pages if page is not None] == [sizes[0] < 40, sizes[1] < 1]
        assert len(await other.numbers()) == 1
        pages = await talk.journals.read_journal([JournalQuery(session_id="s", newest_first=True)], max_bytes=101)
        assert [entry.seq for page in pages if page is not None for entry in page.entries] == [40, 39]

    async def test_what_a_wake_reads_is_bounded_in_bytes(self, cluster: Cluster) -> None:
        """Reading ends with the input that reaches the bytes. Each session gets one input at least, or none with a
        limit of 0 (contract: get_pending).
        """
        talk = await Conversation.open(cluster)
        await talk.journals.append_journal([new_input(name, "é" * 49) for name in ("s", "t", "u") for _ in range(3)])
        for most, sizes in ((1, [1, 1, 1]), (101, [2, 1, 1]), (401, [3, 2, 1]), (901, [3, 3, 3])):
            found = await talk.journals.get_pending(["s", "t", "u"], limit=10, max_bytes=most)
            assert [len(work.inputs) for work in found if work is not None] == sizes, most
            assert [work.more for work in found if work is not None] == [size < 3 for size in sizes]
        found = await talk.journals.get_pending(["s", "t"], limit=2, max_bytes=401)
        assert [len(work.inputs) for work in found if work is not None] == [2, 2]
        found = await talk.journals.get_pending(["s", "t"], limit=0)
        assert [len(work.inputs) for work in found if work is not None] == [0, 0]

    async def test_an_input_among_many_is_found_by_index(self, cluster: Cluster) -> None:
        """An input behind a thousand entries is read like an input behind none (contract: read_journal)."""
        talk = await Conversation.open(cluster)
        note = NewEntry(kind="note", payload="{}")
        for _ in range(4):
            await talk.journals.append_journal([new_input("s", entry=note, message=None) for _ in range(250)])
        await talk.append(event_id="last")
        assert await talk.numbers(pending=True) == await talk.numbers(event_id="last") == [1001]
        assert [entry.seq for entry in (await talk.pending(limit=1)).inputs] == [1001]
