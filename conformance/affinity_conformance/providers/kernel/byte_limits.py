"""Bounds in bytes of fetches and of pages of histories."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affinity.provider.contract import HistoryCursor, NewMessage, OrchestrationItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, payloads, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

SIZE: Final = 100_000
"""UTF-8 bytes of each payload: half as many characters."""

ROOM: Final = 3 * SIZE - 1
"""The third payload crosses the bound."""


class ByteLimitRules(Rules):
    """``max_bytes`` of `fetch_orchestration_item`, `fetch_work_item` and `read_history`."""

    async def test_a_fetch_brings_messages_of_so_many_bytes(self, cluster: Cluster) -> None:
        """Messages come in order over several fetches, each within its bytes, until none are left (contract:
        max_bytes).
        """
        a = await cluster.worker("a")
        await _own_with_messages(a, "i", 7)
        seen: list[str] = []
        known: list[int] = []
        sizes = []
        while items := (await a.fetch_instances(max_bytes=ROOM, exclude=known)).items:
            (item,) = items
            seen += payloads(item)
            known += message_ids(item)
            sizes.append(len(item.messages))
        assert seen == [_payload(number) for number in range(7)]
        assert sizes == [3, 3, 1]

    async def test_a_fetch_brings_at_least_one_message(self, cluster: Cluster) -> None:
        """A message larger than the bound still comes, alone (contract: max_bytes)."""
        a = await cluster.worker("a")
        at = await _own_with_messages(a, "i", 3)
        for number in range(3):
            (item,) = (await a.fetch_instances(max_bytes=1)).items
            assert payloads(item) == [_payload(number)]
            at = await a.go_on(at, consumed=message_ids(item))
        assert not (await a.fetch_instances(max_bytes=1)).items

    async def test_one_backlog_keeps_no_other_instance_waiting(self, cluster: Cluster) -> None:
        """The first message of each instance comes before the second of any (contract: max_bytes)."""
        a = await cluster.worker("a")
        await _own_with_messages(a, "i", 5)
        await _own_with_messages(a, "j", 2)
        items = (await a.fetch_instances(max_bytes=ROOM)).items
        assert {item.instance_id: len(item.messages) for item in items} == {"i": 2, "j": 1}

    async def test_an_instance_without_room_for_a_message_is_not_taken(self, cluster: Cluster) -> None:
        """An instance that gets no message is not taken: its claims are not counted and another worker may take it
        (contract: max_bytes).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.provider.create_instance([new_instance(name, start=_payload(0)) for name in ("i", "j")])
        (first,) = (await a.fetch_instances(max_bytes=1)).items
        (second,) = (await b.fetch_instances(max_bytes=1)).items
        assert {first.instance_id, second.instance_id} == {"i", "j"}
        assert (first.claims, second.claims) == (1, 1)

    async def test_a_message_left_behind_is_there_for_the_next_owner(self, cluster: Cluster) -> None:
        """The next owner gets messages that were left behind, or fetched and not consumed (contract: max_bytes)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await _own_with_messages(a, "i", 4)
        assert (await a.fetch_instances(max_bytes=ROOM)).items
        await a.leave()
        (item,) = (await b.fetch_instances()).items
        assert payloads(item) == [_payload(number) for number in range(4)]

    async def test_a_fetch_brings_work_of_so_many_bytes(self, cluster: Cluster) -> None:
        """Work comes oldest first over several fetches; each reports that it reached its limit (contract:
        FetchOptions).
        """
        a = await cluster.worker("a")
        await _queue(a, None, 7)
        for expected in ([1, 2, 3], [4, 5, 6], [7]):
            fetched = await a.fetch(100, max_bytes=ROOM)
            assert [item.lock.key.activity_id for item in fetched.items] == expected
            assert fetched.limit_reached == (7 not in expected)
            assert all(item.attempts == 1 for item in fetched.items)
        assert await a.take_all() == []

    async def test_a_fetch_brings_at_least_one_work_item(self, cluster: Cluster) -> None:
        """An item larger than the bound still comes, alone, whatever its kind (contract: FetchOptions)."""
        a = await cluster.worker("a")
        await _queue(a, None, 2)
        await _queue(a, "s", 2)
        found = [(await a.take_one(max_bytes=1)).lock.key for _ in range(4)]
        assert len(set(found)) == 4
        assert await a.take_all() == []

    async def test_a_session_without_room_for_its_work_is_not_claimed(self, cluster: Cluster) -> None:
        """A session whose items do not fit is not claimed; further items of a claimed one wait for its holder
        (contract: FetchOptions).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await _queue(a, "s", 2)
        await _queue(a, "t", 2)
        (first,) = await a.take(10, max_bytes=1)
        (second,) = await b.take(10, max_bytes=1)
        assert {first.session_id, second.session_id} == {"s", "t"}
        for worker, item in ((a, first), (b, second)):
            (rest,) = await worker.take(10)
            assert (rest.session_id, rest.session_epoch) == (item.session_id, item.session_epoch)

    async def test_work_and_new_sessions_share_the_bound(self, cluster: Cluster) -> None:
        """The oldest items come first, with as many items of a new session as fit (contract: FetchOptions)."""
        a = await cluster.worker("a")
        await _queue(a, None, 2)
        await _queue(a, "s", 3)
        fetched = await a.fetch(10, max_bytes=ROOM)
        assert [item.session_id for item in fetched.items] == [None, None, "s"]
        assert fetched.limit_reached
        assert [item.session_id for item in await a.take(10)] == ["s", "s"]

    async def test_a_history_is_read_in_pages(self, cluster: Cluster) -> None:
        """Pages from a cursor have at least one event each, and together every event once (contract: read_history)."""
        a, at = await cluster.owner("a", "i")
        events = [_payload(number) for number in range(7)]
        await a.commit_one(at, history=events)
        for max_bytes, expected in ((ROOM, [3, 3, 1]), (1, [1] * 7)):
            found: list[str] = []
            sizes = []
            more = True
            while more:
                cursor = HistoryCursor("i", 1, len(found))
                (page,) = await a.provider.read_history([cursor], max_bytes=max_bytes)
                found += page.events
                sizes.append(len(page.events))
                more = page.more
            assert found == events
            assert [size for size in sizes if size] == expected

    async def test_pages_of_several_histories_share_the_bound(self, cluster: Cluster) -> None:
        """Pages are filled in the order of the cursors; a page without room reports that there is more (contract:
        read_history).
        """
        a = await cluster.worker("a")
        for name, count in (("i", 2), ("j", 2), ("k", 1)):
            await a.commit_one(await a.own(name), history=[_payload(number) for number in range(count)])
        cursors = [HistoryCursor(name, 1) for name in ("i", "j", "k")]
        pages = await a.provider.read_history(cursors, max_bytes=ROOM)
        assert [len(page.events) for page in pages] == [2, 1, 0]
        assert [page.more for page in pages] == [False, True, True]


def _payload(number: int) -> str:
    """Numbered text of `SIZE` bytes, nearly all of them in characters of two."""
    return f"{number:06d}" + "é" * (SIZE // 2 - 3)


async def _own_with_messages(a: Peer, instance_id: str, count: int) -> OrchestrationItem:
    """An instance of the worker's, past its first turn, with messages."""
    at = await a.own(instance_id)
    at = await a.go_on(at, consumed=message_ids(at))
    messages = [NewMessage(instance_id=instance_id, payload=_payload(number)) for number in range(count)]
    await a.provider.send_message(messages)
    return at


async def _queue(a: Peer, session_id: str | None, count: int) -> None:
    """Work items with large payloads, numbered from 1."""
    at = await a.own(f"of {session_id}")
    items = [replace(work_item(at, number, session_id), payload=_payload(number)) for number in range(1, count + 1)]
    assert (await a.commit_one(at, consumed=message_ids(at), work_items=items)).committed
