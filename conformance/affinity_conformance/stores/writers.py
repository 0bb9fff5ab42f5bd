"""Several writers: the last write wins, unless its fences do not match the record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypedDict, Unpack

import pytest

from affinity import SessionStore
from affinity.errors import SessionWriteConflict
from affinity_conformance.stores.base import EVERYTHING, StoreHarness, StoreRules, concurrently, loaded, state

WRITERS: Final = 5
REFUSED: Final = -1


class _Fences(TypedDict, total=False):
    expected_version: int
    idempotency_key: str


class WriterRules(StoreRules):
    """The fences of `save`: version, generation, epoch, idempotency key."""

    async def test_the_last_write_wins(self, harness: StoreHarness) -> None:
        """A write without fences replaces any record."""
        one, other = await harness.open(), await harness.open()
        await one.save(state(content=b"1"))
        await other.save(state(content=b"2"))
        await one.save(state(content=b"3"))
        record = await loaded(other)
        assert (record.state, record.version) == (b"3", 3)

    async def test_a_write_from_another_version_is_refused(self, store: SessionStore) -> None:
        """Older or newer than the record's version."""
        for content in (b"1", b"2"):
            await store.save(state(content=content))
        before = await loaded(store)
        for expected in (0, 1, 3):
            with pytest.raises(SessionWriteConflict) as caught:
                await store.save(state(content=b"x"), expected_version=expected)
            error = caught.value
            assert (error.session_id, error.expected_version, error.version) == ("s", expected, 2)
        assert await loaded(store) == before

    async def test_a_write_from_the_same_version_passes(self, store: SessionStore) -> None:
        """Version 0 stands for no record."""
        versions = [await store.save(state(content=b"%d" % base), expected_version=base) for base in range(3)]
        assert versions == [1, 2, 3]
        assert (await loaded(store)).state == b"2"

    async def test_a_write_from_a_deleted_version_is_refused(self, store: SessionStore) -> None:
        """The write does not create the deleted record again."""
        await store.save(state())
        await store.delete(["s"])
        with pytest.raises(SessionWriteConflict) as caught:
            await store.save(state(), expected_version=1)
        assert (caught.value.expected_version, caught.value.version) == (1, None)
        assert await store.load("s") is None

    async def test_each_record_has_a_generation_of_its_own(self, store: SessionStore) -> None:
        """Writes keep it; a record that is created again under the same id has another."""
        for name in ("s", "other"):
            await store.save(state(name))
        first = (await loaded(store)).generation
        await store.save(state())
        assert (await loaded(store)).generation == first != (await loaded(store, "other")).generation
        assert {row.session_id: row.generation for row in await store.list(EVERYTHING, 10)}["s"] == first
        await store.delete(["s"])
        await store.save(state())
        assert (await loaded(store)).generation not in {first, "", (await loaded(store, "other")).generation}

    async def test_a_write_with_another_generation_is_refused(self, store: SessionStore) -> None:
        """Also when the versions are the same, or the writer names no version."""
        await store.save(state(content=b"former"))
        former = await loaded(store)
        await store.delete(["s"])
        await store.save(state(content=b"latter"))
        before = await loaded(store)
        assert before.version == former.version
        for expected in (former.version, None):
            with pytest.raises(SessionWriteConflict, match="created") as caught:
                await store.save(state(content=b"x"), expected_version=expected, generation=former.generation)
            error = caught.value
            assert (error.session_id, error.expected_version, error.version) == ("s", expected, 1)
        assert await loaded(store) == before
        await store.save(state(content=b"y"), expected_version=1, generation=before.generation)
        assert (await loaded(store)).state == b"y"

    async def test_a_new_record_has_the_generation_that_its_writer_names(self, store: SessionStore) -> None:
        """The writer knows it, so that its next write passes."""
        versions = [await store.save(state(), expected_version=base, generation="mine") for base in range(2)]
        assert [*versions, await store.save(state())] == [1, 2, 3]
        assert (await loaded(store)).generation == "mine"

    async def test_of_many_writers_from_one_version_one_passes(self, harness: StoreHarness) -> None:
        """Concurrently, from store objects of their own: from no record, and from a record."""
        stores = [await harness.open() for _ in range(WRITERS)]
        for base in (0, 1):
            calls = (_saving(store, b"%d" % n, expected_version=base) for n, store in enumerate(stores))
            outcomes = await concurrently(*calls)
            assert sorted(outcomes) == [REFUSED] * (WRITERS - 1) + [base + 1]
            assert (await loaded(stores[0])).state == b"%d" % outcomes.index(base + 1)

    async def test_of_many_writers_without_a_version_all_pass(self, harness: StoreHarness) -> None:
        """Each gets a version of its own."""
        stores = [await harness.open() for _ in range(WRITERS)]
        versions = await concurrently(*(_saving(store, b"x") for store in stores))
        assert sorted(versions) == list(range(1, WRITERS + 1))

    async def test_a_write_under_an_older_epoch_is_refused(self, store: SessionStore) -> None:
        """A writer with a newer lease has written since."""
        await store.save(state(content=b"1"), epoch=7)
        before = await loaded(store)
        for expected in (None, 1):
            with pytest.raises(SessionWriteConflict) as caught:
                await store.save(state(content=b"x"), epoch=6, expected_version=expected)
            assert (caught.value.session_id, caught.value.expected_version) == ("s", expected)
        assert await loaded(store) == before

    async def test_the_record_has_the_epoch_of_its_last_writer(self, store: SessionStore) -> None:
        """A writer of the same epoch may write again, and one of a greater epoch replaces it."""
        for epoch in (7, 7, 9):
            await store.save(state(), epoch=epoch)
            assert (await loaded(store)).epoch == epoch

    async def test_a_writer_without_a_lease_keeps_the_epoch(self, store: SessionStore) -> None:
        """Writers of an older epoch are still refused."""
        await store.save(state())
        assert (await loaded(store)).epoch is None
        for epoch in (7, None):
            await store.save(state(), epoch=epoch)
        record = await loaded(store)
        assert (record.version, record.epoch) == (3, 7)
        with pytest.raises(SessionWriteConflict):
            await store.save(state(), epoch=6)

    async def test_a_write_that_has_happened_is_not_repeated(self, harness: StoreHarness, store: SessionStore) -> None:
        """A second write with the same key changes nothing and returns the version, whatever its other arguments."""
        assert await store.save(state(content=b"1"), idempotency_key="i/1/2", epoch=7) == 1
        before = await loaded(store)
        await harness.advance(100)
        assert await store.save(state(content=b"2"), idempotency_key="i/1/2", epoch=7) == 1
        assert await store.save(state(content=b"2"), idempotency_key="i/1/2", epoch=8, expected_version=0) == 1
        assert await store.save(state(content=b"2"), idempotency_key="i/1/2") == 1
        assert await loaded(store) == before

    async def test_a_key_counts_for_the_last_write_only(self, store: SessionStore) -> None:
        """The key is unknown after a write with another key, or without one."""
        keys = ["t", "u", "t", None, "t"]
        assert [await store.save(state(), idempotency_key=key) for key in keys] == [1, 2, 3, 4, 5]

    async def test_writes_without_a_key_are_distinct(self, store: SessionStore) -> None:
        """Two writes without a key are two writes, and a key belongs to one session."""
        assert [await store.save(state()) for _ in range(2)] == [1, 2]
        await store.save(state("other"), idempotency_key="t")
        assert [await store.save(state(), idempotency_key="t") for _ in range(2)] == [3, 3]

    async def test_a_new_key_does_not_pass_a_fence(self, store: SessionStore) -> None:
        """A write with a new key is checked like any other."""
        await store.save(state(), idempotency_key="t", epoch=7)
        with pytest.raises(SessionWriteConflict):
            await store.save(state(), idempotency_key="u", epoch=7, expected_version=0)
        with pytest.raises(SessionWriteConflict):
            await store.save(state(), idempotency_key="u", epoch=6)
        assert (await loaded(store)).idempotency_key == "t"

    async def test_a_key_ends_with_its_record(self, store: SessionStore) -> None:
        await store.save(state(), idempotency_key="t")
        await store.delete(["s"])
        assert await store.save(state(content=b"new"), idempotency_key="t") == 1
        assert (await loaded(store)).state == b"new"

    async def test_of_many_writers_with_one_key_one_writes(self, harness: StoreHarness) -> None:
        """All get the same version."""
        stores = [await harness.open() for _ in range(WRITERS)]
        assert await concurrently(*(_saving(store, b"x", idempotency_key="t") for store in stores)) == [1] * WRITERS
        assert (await loaded(stores[0])).version == 1


def _saving(store: SessionStore, content: bytes, **fences: Unpack[_Fences]) -> Callable[[], Awaitable[int]]:
    """A function that saves, and returns the version, or `REFUSED`."""

    async def save() -> int:
        try:
            return await store.save(state(content=content), **fences)
        except SessionWriteConflict:
            return REFUSED

    return save
