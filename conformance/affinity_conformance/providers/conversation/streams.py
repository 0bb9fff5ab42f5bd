"""Streams of wakes, and who is notified that a journal has changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel

from affinity.conversation.journal import StreamCursor
from affinity.provider.contract import ChangeWatch
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, turn
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import Conversation, ConversationOwner, output

PATIENCE = 30.0  # seconds of real time; a wait ends when the notification comes


class JournalStreamRules(Rules):
    """`write_stream`, `retract_stream` and `watch_changes` (contract: JournalProvider)."""

    async def test_parts_are_read_in_order(self, cluster: Cluster) -> None:
        """All, or the parts behind a cursor; a number that is there is ignored (contract: write_stream)."""
        await (await Conversation.open(cluster)).append()
        talk = await Conversation.open(cluster)
        assert await talk.streamed() == []
        await talk.stream(2, 1)
        await talk.stream(2, 3)
        assert await talk.streamed() == ["w1.1.1", "w1.1.2", "w1.1.3"]
        assert await talk.streamed(StreamCursor(wake_id="w1", attempt=1, number=2)) == ["w1.1.3"]
        assert await talk.streamed(StreamCursor(wake_id="w1", attempt=1, number=3)) == []
        assert await talk.streamed(StreamCursor(wake_id="w0", attempt=1, number=2)) == await talk.streamed()
        page = await talk.page()
        assert (list(page.stream), page.streaming) == ([], None)
        page = await talk.page(stream=StreamCursor(wake_id="w1", attempt=1, number=3))
        assert page.streaming == StreamCursor(wake_id="w1", attempt=1, number=3)

    async def test_a_later_attempt_replaces_the_one_before(self, cluster: Cluster) -> None:
        """Parts of lower attempts are removed, and ignored when they come late (contract: write_stream)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        await talk.stream(1, 2)
        await talk.stream(1, attempt=2)
        await talk.stream(3)
        assert await talk.streamed(StreamCursor(wake_id="w1", attempt=1, number=2)) == ["w1.2.1"]
        parts = [await talk.part(number, attempt=attempt) for number, attempt in ((2, 2), (1, 4), (3, 2), (2, 4))]
        await talk.journals.write_stream(parts)
        assert await talk.streamed() == ["w1.4.1", "w1.4.2"]

    async def test_no_part_is_added_behind_a_gap(self, cluster: Cluster) -> None:
        """Neither when parts of an earlier attempt are there, which stay. Parts behind a commit begin anew (contract:
        write_stream).
        """
        talk, other = await Conversation.open(cluster), await Conversation.open(cluster, "other")
        for conversation in (talk, other):
            await conversation.append()
        await talk.stream(1)
        journal_id = (await talk.page()).journal_id
        late = [await talk.part(number, attempt=2) for number in (3, 4)]
        mixed = [late[0], await other.part(1), late[1]]
        assert list(await talk.journals.write_stream(mixed)) == [journal_id]
        assert (await talk.streamed(), await other.streamed()) == (["w1.1.1"], ["w1.1.1"])
        begun = [replace(part, first=3) for part in late]
        assert list(await talk.journals.write_stream(begun[1:])) == [journal_id]
        assert list(await talk.journals.write_stream(begun)) == []
        assert list(await talk.journals.write_stream([replace(await talk.part(5, attempt=2), first=3)])) == []
        assert await talk.streamed() == ["w1.2.3", "w1.2.4", "w1.2.5"]

    async def test_a_later_wake_replaces_the_one_before(self, cluster: Cluster) -> None:
        """Parts of other wakes are removed (contract: write_stream)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        await talk.stream(1, 2, attempt=3)
        await talk.stream(1, wake_id="w0")
        assert await talk.streamed() == ["w0.1.1"]

    async def test_many_journals_stream_in_one_call(self, cluster: Cluster) -> None:
        """One call serves the streams of many journals; other streams are untouched (contract: write_stream)."""
        talks = [await Conversation.open(cluster, name) for name in "abc"]
        for talk in talks:
            await talk.append()
        parts = [await talk.part(number) for number in (1, 2) for talk in talks]
        await talks[0].journals.write_stream(parts)
        await talks[0].stream(1, attempt=2)
        assert [await talk.streamed() for talk in talks] == [
            ["w1.2.1"],
            ["w1.1.1", "w1.1.2"],
            ["w1.1.1", "w1.1.2"],
        ]
        await talks[0].journals.write_stream([])

    async def test_parts_of_another_journal_are_ignored(self, cluster: Cluster) -> None:
        """Parts of a journal that was deleted, and of none (contract: write_stream)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        old = (await talk.page()).journal_id
        await talk.delete()
        await talk.journals.write_stream([await talk.part(1, journal_id=old)])
        await talk.append()
        await talk.journals.write_stream([await talk.part(1, journal_id=old)])
        assert await talk.streamed() == []
        await talk.stream(1)
        await talk.journals.retract_stream("s", old, "w1", 1)
        assert await talk.streamed() == ["w1.1.1"]

    async def test_a_commit_replaces_the_parts(self, cluster: Cluster) -> None:
        """Entries replace the parts in one snapshot if ``clear_stream`` is set; the parts stay otherwise (contract:
        JournalWrite.clear_stream).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.stream(1, 2, attempt=2)
        await owner.commit_wake(entries=[output("note", "w0")], processed=0, wake_id="w0")
        assert await talk.streamed() == ["w1.2.1", "w1.2.2"]
        begun, done = anyio.Event(), anyio.Event()
        seen: list[tuple[int, int]] = []

        async def read() -> None:
            reader = await Conversation.open(cluster)
            while not done.is_set():
                page = await reader.page(stream=StreamCursor(), wake_id="w1")
                seen.append((len(page.entries), len(page.stream)))
                begun.set()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await begun.wait()
            await owner.commit_wake(entries=[output()], attempt=2, clear_stream=True)
            assert await talk.streamed() == []
            done.set()
        assert set(seen) <= {(0, 2), (1, 0)}

    async def test_parts_that_come_late_are_ignored(self, cluster: Cluster) -> None:
        """A worker that was paused cannot bring back what a commit has replaced, and cannot disturb the wake behind it;
        the next attempt of the wake streams again (contract: write_stream).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.stream(1)
        await owner.commit_wake(entries=[output()], attempt=2, clear_stream=True)
        await talk.stream(1, 2)
        await talk.stream(1, 2, attempt=2)
        assert await talk.streamed() == []
        await talk.stream(1, attempt=3)
        assert await talk.streamed() == ["w1.3.1"]
        await owner.commit_wake(entries=[output(wake_id="w2")], wake_id="w2", clear_stream=True)
        await talk.stream(1, wake_id="w3")
        await talk.stream(9, attempt=9)
        assert await talk.streamed() == ["w3.1.1"]

    async def test_a_failed_attempt_is_retracted(self, cluster: Cluster) -> None:
        """Its parts, and parts of lower attempts, are gone and do not come back; higher ones stay (contract:
        retract_stream).
        """
        talk = await Conversation.open(cluster)
        await talk.append()
        journal_id = (await talk.page()).journal_id
        await talk.stream(1, 2, attempt=2)
        await talk.journals.retract_stream("s", journal_id, "w1", 1)
        await talk.journals.retract_stream("s", journal_id, "w0", 9)
        assert await talk.streamed() == ["w1.2.1", "w1.2.2"]
        await talk.journals.retract_stream("s", journal_id, "w1", 2)
        await talk.stream(3, attempt=2)
        assert await talk.streamed() == []
        await talk.stream(1, attempt=3)
        assert await talk.streamed() == ["w1.3.1"]

    # -- notifications

    async def test_readers_are_notified(self, cluster: Cluster) -> None:
        """Every provider object delivers reports of callers and streams (contract: watch_changes)."""
        talk, other = await Conversation.open(cluster), await Conversation.open(cluster)
        await talk.append()
        journal_id = (await talk.page()).journal_id
        part = await other.part(1)
        async with talk.journals.watch_changes() as watch:
            for change in (
                lambda: talk.journals.notify_changes(["s"]),
                lambda: other.journals.notify_changes(["s", "t"]),
                lambda: other.journals.notify_changes(["s", "t"], minor=True),
                lambda: other.journals.write_stream([part]),
                lambda: talk.journals.retract_stream("s", journal_id, "w1", 1),
            ):
                await _drain(watch)
                await self._assert_notified(watch, change)

    async def test_a_commit_is_reported_to_a_reader_that_waits(self, cluster: Cluster) -> None:
        """A reader that waits sees the entries of a wake as soon as its worker has reported them (contract:
        notify_changes).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = await Conversation.open(cluster)
        async with talk.journals.watch_changes() as watch, anyio.create_task_group() as group:

            async def wake() -> None:
                await owner.commit_wake(entries=[output()])
                await owner.conversation.journals.notify_changes(["s"])

            group.start_soon(wake)
            with anyio.fail_after(PATIENCE):
                while await talk.numbers() != [1, 2]:
                    await watch.wait(PATIENCE)

    async def test_a_commit_notifies_readers(self, cluster: Cluster) -> None:
        """Readers hear of entries once they can be read. Refused turns cause no error (contract: commit_turn)."""
        owner = await ConversationOwner.begin(cluster)
        talk = await Conversation.open(cluster)
        step = turn(owner.at, consumed=message_ids(owner.at), parts=[await owner.new_write(entries=[output()])])

        async def commit(committed: bool) -> None:
            (result,) = await owner.peer.commit(step, notify=["s"])
            assert result.committed is committed

        async with talk.journals.watch_changes() as watch:
            for committed in (True, False):
                await _drain(watch)
                await self._assert_notified(watch, partial(commit, committed))
                assert await talk.numbers() == [1, 2]

    async def test_many_readers_are_notified(self, cluster: Cluster) -> None:
        """Each subscription gets what comes after it began (contract: watch_changes)."""
        talks = [await Conversation.open(cluster) for _ in range(3)]
        await talks[0].append()
        async with (
            talks[0].journals.watch_changes() as one,
            talks[1].journals.watch_changes() as two,
            talks[1].journals.watch_changes() as three,
        ):
            await talks[2].journals.notify_changes(["s"])
            for watch in (one, two, three):
                await self._assert_comes(watch)

    async def test_notifications_are_merged(self, cluster: Cluster) -> None:
        """All changes since the last call are one answer (contract: ChangeWatch.wait)."""
        talk = await Conversation.open(cluster)
        async with talk.journals.watch_changes() as watch:
            await talk.journals.notify_changes(["s"])
            await talk.journals.notify_changes(["t", "u"])
            missing = {"s", "t", "u"}
            with anyio.fail_after(PATIENCE):
                while missing:
                    changed = await watch.wait(PATIENCE)
                    missing = set() if changed is not None and not changed else missing - set(changed or ())

    async def test_waiting_for_journals_ends_without_a_change(self, cluster: Cluster) -> None:
        """Waiting returns None after its timeout (contract: ChangeWatch.wait)."""
        talk = await Conversation.open(cluster)
        async with talk.journals.watch_changes() as watch:
            await _drain(watch)
            assert await watch.wait(0.05) is None

    async def _assert_notified(self, watch: ChangeWatch, change: Callable[[], Awaitable[object]]) -> None:
        """A reader that waits is notified of the change of journal ``s``."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._assert_comes, watch)
            await anyio.lowlevel.checkpoint()
            await change()

    @staticmethod
    async def _assert_comes(watch: ChangeWatch) -> None:
        with anyio.fail_after(PATIENCE):
            changed = None
            while changed is None or (changed and "s" not in changed):
                changed = await watch.wait(PATIENCE)


async def _drain(watch: ChangeWatch) -> None:
    """Take what earlier changes have set off."""
    while await watch.wait(0.05) is not None:
        pass
