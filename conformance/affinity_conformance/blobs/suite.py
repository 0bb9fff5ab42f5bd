"""The rules of `affinity.blobs.BlobStore`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Protocol

import anyio
import pytest

from affinity.blobs import BlobStore, StoredBlob
from affinity.errors import BlobNotFound, BlobStoreFailed, InvalidId

LARGE: Final = 12 * 1024 * 1024 + 7
"""Bytes of a blob that object stores upload in several parts."""

PART: Final = 256 * 1024

BAD: Final = (
    "",
    "db",
    "db/x",
    f"../{'0' * 64}",
    f"db/{'0' * 64}/x",
    f"db/{'A' * 64}",
    f"/{'0' * 64}",
    f"DB/{'0' * 64}",
)


class BlobHarness(Protocol):
    """A place without blobs, for one test."""

    async def open(self) -> BlobStore:
        """One more store object on the same blobs, as another process would have."""
        ...

    async def wait_tick(self) -> None:
        """Return when the store's clock, as `StoredBlob.used_at` shows it, has moved on."""
        ...

    async def break_off(self) -> BlobStore:
        """A store object whose place does not answer: no directory, no bucket, no network."""
        ...


class BlobStoreConformance:
    """Every rule, as tests of a store. Needs a fixture ``harness``."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop to run on; the tests of a store for another one override it."""
        return "asyncio"

    @pytest.fixture
    async def store(self, harness: BlobHarness) -> BlobStore:
        """A store without blobs."""
        return await harness.open()

    async def test_a_blob_is_read_as_it_was_put(self, harness: BlobHarness, store: BlobStore) -> None:
        """Also by another store object, and an empty one."""
        for data in (b"", b"x", bytes(range(256)) * 64):
            name = name_of(data)
            await store.put(name, parts(data))
            assert await content(await harness.open(), name) == data

    async def test_a_large_blob_comes_in_parts(self, store: BlobStore) -> None:
        data = bytes(range(251)) * (LARGE // 251)
        name = name_of(data)
        await store.put(name, parts(data))
        received = [part async for part in store.get(name)]
        assert b"".join(received) == data
        assert len(received) > 1
        assert max(map(len, received)) <= LARGE // 2
        assert await size(store, name) == len(data)

    async def test_a_blob_that_was_never_put_is_not_found(self, store: BlobStore) -> None:
        await store.put(name_of(b"other"), parts(b"other"))
        name = name_of(b"none")
        with pytest.raises(BlobNotFound):
            await content(store, name)
        assert await store.find(name) is None
        assert not await store.touch(name)
        assert await store.find(name) is None
        assert await listed(store) == [name_of(b"other")]

    async def test_a_blob_that_is_put_again_is_replaced(self, store: BlobStore) -> None:
        name = name_of(b"right")
        await store.put(name, parts(b"altered"))
        await store.put(name, parts(b"right"))
        assert await content(store, name) == b"right"
        assert await size(store, name) == len(b"right")

    async def test_a_put_whose_data_fails_keeps_nothing(self, store: BlobStore) -> None:
        """Its exception is raised as it is; a blob that was there stays."""
        old, new = name_of(b"old"), name_of(b"new")
        await store.put(old, parts(b"old"))
        for name in (old, new):
            with pytest.raises(LookupError, match="mine"):
                await store.put(name, broken())
        assert await content(store, old) == b"old"
        assert await store.find(new) is None
        assert await listed(store) == [old]

    async def test_a_put_that_is_cancelled_keeps_nothing(self, store: BlobStore) -> None:
        name = name_of(b"never")
        with anyio.move_on_after(0.2) as scope:
            await store.put(name, endless())
        assert scope.cancelled_caught
        assert await store.find(name) is None

    async def test_puts_side_by_side_keep_a_whole_blob(self, harness: BlobHarness, store: BlobStore) -> None:
        data = b"0123456789" * 100_000
        name = name_of(data)
        others = [await harness.open() for _ in range(4)]
        async with anyio.create_task_group() as group:
            for other in others:
                group.start_soon(other.put, name, parts(data))
        assert await content(store, name) == data
        assert await listed(store) == [name]

    async def test_a_put_and_a_touch_count_as_used(self, harness: BlobHarness, store: BlobStore) -> None:
        name = name_of(b"x")
        await store.put(name, parts(b"x"))
        times = [await used(store, name)]
        for use in (store.touch(name), store.put(name, parts(b"x")), (await harness.open()).touch(name)):
            await harness.wait_tick()
            await use
            times.append(await used(store, name))
        assert times == sorted(set(times))
        assert await content(store, name) == b"x"
        assert await listed(store) == [name]

    async def test_times_have_a_zone(self, store: BlobStore) -> None:
        name = name_of(b"x")
        await store.put(name, parts(b"x"))
        assert (await used(store, name)).utcoffset() == timedelta()

    async def test_a_deleted_blob_is_gone(self, store: BlobStore) -> None:
        """Also after a touch. A second deletion does nothing."""
        name, other = name_of(b"x"), name_of(b"other")
        for data in (b"x", b"other"):
            await store.put(name_of(data), parts(data))
        await store.touch(name)
        await store.delete(name)
        await store.delete(name)
        with pytest.raises(BlobNotFound):
            await content(store, name)
        assert not await store.touch(name)
        assert await listed(store) == [other]

    async def test_a_deleted_blob_can_be_put_again(self, store: BlobStore) -> None:
        name = name_of(b"x")
        for _ in range(2):
            await store.put(name, parts(b"x"))
            assert await content(store, name) == b"x"
            await store.delete(name)
        assert await listed(store) == []

    async def test_a_listing_has_the_blobs_of_one_prefix(self, store: BlobStore) -> None:
        names = [name_of(bytes([n])) for n in range(20)]
        for n, name in enumerate(names):
            await store.put(name, parts(bytes([n])))
        await store.put(name_of(b"x", "db-2"), parts(b"x"))
        await store.put(name_of(b"x", "d"), parts(b"x"))
        found = [blob async for blob in store.list("db")]
        assert sorted(blob.name for blob in found) == sorted(names)
        assert {blob.size for blob in found} == {1}
        assert await listed(store, "none") == []
        for blob in found:
            now = await store.find(blob.name)
            assert now is not None
            assert blob.used_at <= now.used_at

    async def test_a_name_that_is_none_is_refused(self, store: BlobStore) -> None:
        for name in BAD:
            with pytest.raises(InvalidId):
                await store.put(name, parts(b"x"))
            with pytest.raises(InvalidId):
                await content(store, name)
            for call in (store.find, store.touch, store.delete):
                with pytest.raises(InvalidId):
                    await call(name)

    async def test_a_store_that_does_not_answer_fails(self, harness: BlobHarness) -> None:
        """It does not say that the blob is lost."""
        store = await harness.break_off()
        name = name_of(b"x")
        with pytest.raises(BlobStoreFailed):
            await content(store, name)
        with pytest.raises(BlobStoreFailed):
            await store.put(name, parts(b"x"))
        with pytest.raises(BlobStoreFailed):
            await listed(store)

    async def test_what_is_unfinished_is_removed_by_its_age(self, store: BlobStore) -> None:
        """A put that has ended stays."""
        name = name_of(b"x")
        await store.put(name, parts(b"x"))
        blob = await store.find(name)
        assert blob is not None
        assert await store.remove_unfinished(blob.used_at + timedelta(days=1)) == 0
        assert await content(store, name) == b"x"


def name_of(data: bytes, prefix: str = "db") -> str:
    """The name of a blob with this content."""
    return f"{prefix}/{sha256(data).hexdigest()}"


async def parts(data: bytes) -> AsyncIterator[bytes]:
    """The data in parts."""
    for start in range(0, len(data), PART):
        yield data[start : start + PART]


async def broken() -> AsyncIterator[bytes]:
    """Data that fails behind its beginning."""
    yield b"beginning"
    raise LookupError("mine")


async def endless() -> AsyncIterator[bytes]:
    """Data that never ends."""
    while True:
        yield b"more"
        await anyio.sleep(0.01)


async def content(store: BlobStore, name: str) -> bytes:
    """The content of a blob."""
    return b"".join([part async for part in store.get(name)])


async def listed(store: BlobStore, prefix: str = "db") -> Sequence[str]:
    """The names of the blobs with a prefix, sorted."""
    return sorted([blob.name async for blob in store.list(prefix)])


async def found(store: BlobStore, name: str) -> StoredBlob:
    """A blob that must be there."""
    blob = await store.find(name)
    assert blob is not None, name
    assert blob.name == name
    return blob


async def size(store: BlobStore, name: str) -> int:
    """Its bytes."""
    return (await found(store, name)).size


async def used(store: BlobStore, name: str) -> datetime:
    """When it was used."""
    return (await found(store, name)).used_at
