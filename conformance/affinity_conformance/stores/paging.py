"""Paging by keyset: the pages have every record once, however many were written at the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from affinity import SessionStore
from affinity.session import SessionFilter
from affinity_conformance.stores.base import EVERYTHING, StoreHarness, StoreRules, ids, state

TIED: Final = ["s10", "s2", "S", "é", "e\u0301", "z", "日本", "🙂", "a/b", "ab"]


class PageRules(StoreRules):
    """`list` with a cursor."""

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    async def test_pages_have_each_record_once(self, harness: StoreHarness, store: SessionStore, size: int) -> None:
        """Also when several records were written at the same time."""
        written = [f"s{number}" for number in range(13)]
        for name in written[:4]:
            await store.save(state(name))
        await harness.stop_clock()
        for name in written[4:10]:
            await store.save(state(name))
        await harness.advance(1)
        for name in written[10:]:
            await store.save(state(name))
        seen = await _pages(store, EVERYTHING, size)
        assert seen == await ids(store)
        assert sorted(seen) == sorted(written)

    async def test_ties_are_ordered_by_id(self, harness: StoreHarness, store: SessionStore) -> None:
        """Records of the same time are in descending order of code points, whatever the database's locale."""
        await harness.stop_clock()
        for name in TIED:
            await store.save(state(name))
        wanted = sorted(TIED, reverse=True)
        assert await ids(store) == wanted
        assert await _pages(store, EVERYTHING, 1) == wanted

    async def test_a_page_may_end_between_records_of_the_same_time(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """The next page begins after the record that the cursor names."""
        await harness.stop_clock()
        for name in "abc":
            await store.save(state(name))
        (row,) = await store.list(EVERYTHING, 1)
        rest = await ids(store, SessionFilter(after=(row.updated_at, row.session_id)))
        assert [row.session_id, *rest] == ["c", "b", "a"]

    async def test_conditions_hold_on_every_page(self, harness: StoreHarness, store: SessionStore) -> None:
        """Also on later pages, and between records of the same time."""
        where = SessionFilter(kind="chat", labels={"x": "1"}, prefix="s")
        for step in range(3):
            await harness.stop_clock()
            for name in ("s", "t"):
                await store.save(state(f"{name}{step}a", kind="chat", labels={"x": "1"}))
                await store.save(state(f"{name}{step}b", kind="chat", labels={"x": "1", "y": "2"}))
                await store.save(state(f"{name}{step}c", kind="chat", labels={"x": "2"}))
                await store.save(state(f"{name}{step}d", kind="other", labels={"x": "1"}))
            await harness.advance(1)
        assert await _pages(store, where, 1) == await ids(store, where) == ["s2b", "s2a", "s1b", "s1a", "s0b", "s0a"]

    async def test_a_cursor_remains_valid_when_its_record_is_deleted(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """It is a position in the order, not a reference to a record."""
        for name in "abcd":
            await store.save(state(name))
            await harness.advance(1)
        page = await store.list(EVERYTHING, 2)
        cursor = (page[-1].updated_at, page[-1].session_id)
        await store.delete(["c"])
        assert await ids(store, SessionFilter(after=cursor)) == ["b", "a"]

    async def test_a_record_that_is_written_meanwhile_moves_to_the_front(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """Later pages do not have it, and have all others."""
        for name in "abcd":
            await store.save(state(name))
            await harness.advance(1)
        page = await store.list(EVERYTHING, 2)
        await store.save(state("a"))
        await store.save(state("e"))
        assert await ids(store, SessionFilter(after=(page[-1].updated_at, page[-1].session_id))) == ["b"]


async def _pages(store: SessionStore, where: SessionFilter, size: int) -> list[str]:
    """All pages of this size, in order."""
    seen: list[str] = []
    while page := await store.list(where, size):
        assert len(page) <= size
        seen += [row.session_id for row in page]
        where = replace(where, after=(page[-1].updated_at, page[-1].session_id))
    return seen
