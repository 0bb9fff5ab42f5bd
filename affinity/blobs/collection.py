"""The collection of blobs that no row names: what a crash has left between a blob and its row, and what retention has
ended.

A collection deletes a blob only if all of this holds:

1. An earlier collection has found no row that names it, and has noted it as an orphan, at least the grace ago by the
   database's clock.
2. Two passes through all rows that are there now find none either: `affinity.blobs.store.tables` has the order.
3. It is condemned, in the database, and after that the store still says the same time of its last use. Writers touch a
   blob first and look whether it is condemned then (`Vault.use`), so either the writer or the collection sees the
   other.

So no clock of a worker or of the store decides: times of the store are only compared for equality. A collection that
was killed leaves condemned blobs, with which the next one begins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import uuid4

from affinity.blobs.store.contract import BlobProvider, OrphanBlob
from affinity.errors import BlobStoreFailed, StatementTimeout
from affinity.limits import MAX_COLLECTED, MAX_LISTED_BLOBS
from affinity.payloads.blobs import BlobStore, StoredBlob, is_blob_name

_STEP: Final = 1000
"""Rows that are looked at in one statement."""
_BATCH: Final = 100
"""Blobs that are condemned together."""


class Collected(NamedTuple):
    """Outcome of a collection."""

    deleted: int
    freed: int
    """Bytes of the deleted blobs."""
    found: int
    """Blobs that no row named. The next collections delete those that are not used for the grace."""
    is_complete: bool
    """False: there were more than `limits.MAX_COLLECTED` to delete."""


async def collect_blobs(
    store: BlobStore, provider: BlobProvider, prefix: str, grace: float, *, dry_run: bool = False
) -> Collected:
    """Delete the blobs with a prefix that no row names since ``grace`` seconds; note those that no row names now.

    With ``dry_run`` nothing is changed; ``deleted`` and ``freed`` are what would be.

    Raises:
        BlobStoreFailed: the store fails.
        ProviderError: the database does.
    """
    found = 0
    async for blobs in _listed(store, prefix):
        unnamed = await _find_unnamed(provider, blobs, passes=1)
        found += len(unnamed)
        if not dry_run:
            await _note(store, provider, prefix, unnamed)
    old = {orphan.digest: orphan for orphan in await provider.get_old_orphans(grace, MAX_COLLECTED)}
    left_over = set(await provider.get_condemned_blobs()) - old.keys()
    unnamed = await _find_unnamed(provider, {*old, *left_over}, passes=2)
    deleted = freed = 0
    for batch in _batches(sorted(unnamed)):
        if not dry_run:
            await provider.condemn_blobs(batch)
        for digest in batch:
            size = await _delete_unused(store, f"{prefix}/{digest}", old.get(digest), dry_run=dry_run)
            deleted += size is not None
            freed += size or 0
        if not dry_run:
            await provider.forgive_blobs(batch)
    if not dry_run:
        for batch in _batches(sorted({*old, *left_over} - unnamed)):
            await provider.forgive_blobs(batch)
        await store.remove_unfinished(await _now(store, prefix) - timedelta(seconds=grace))
    return Collected(deleted, freed, found, is_complete=len(old) < MAX_COLLECTED)


async def _listed(store: BlobStore, prefix: str) -> AsyncIterator[Collection[str]]:
    """Return the digests of all blobs, in sets that fit into memory: each costs a pass through the rows."""
    digests = set[str]()
    async for blob in store.list(prefix):
        if is_blob_name(blob.name):
            digests.add(_digest(blob))
            if len(digests) == MAX_LISTED_BLOBS:
                yield digests
                digests = set()
    if digests:
        yield digests


def _digest(blob: StoredBlob) -> str:
    return blob.name.partition("/")[2]


async def _note(store: BlobStore, provider: BlobProvider, prefix: str, unnamed: Iterable[str]) -> None:
    for batch in _batches(sorted(unnamed)):
        blobs = [await store.find(f"{prefix}/{digest}") for digest in batch]  # a listing may have an older time
        await provider.note_orphans([_orphan(blob) for blob in blobs if blob is not None])


def _orphan(blob: StoredBlob) -> OrphanBlob:
    return OrphanBlob(_digest(blob), blob.used_at.isoformat(), blob.size)


async def _now(store: BlobStore, prefix: str) -> datetime:
    """Return the time of the store's clock, by which the age of puts that never ended is judged."""
    name = f"{prefix}/{sha256(uuid4().bytes).hexdigest()}"
    await store.put(name, _nothing())
    try:
        probe = await store.find(name)
    finally:
        await store.delete(name)
    if probe is None:
        raise BlobStoreFailed(f"{store!r} does not have what was just put")
    return probe.used_at


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


async def _find_unnamed(provider: BlobProvider, digests: Collection[str], *, passes: int) -> set[str]:
    unnamed = set(digests)
    for _ in range(passes):
        if not unnamed:
            break
        async for named in _named(provider):
            unnamed.difference_update(named)
    return unnamed


async def _named(provider: BlobProvider) -> AsyncIterator[Collection[str]]:
    place: str | None = None
    limit = _STEP
    while True:
        try:
            step = await provider.find_named_blobs(place, limit)
        except StatementTimeout:
            if limit == 1:
                raise
            limit = max(1, limit // 8)
            continue
        yield step.digests
        if step.place is None:
            return
        place, limit = step.place, min(_STEP, 2 * limit)


async def _delete_unused(store: BlobStore, name: str, noted: OrphanBlob | None, *, dry_run: bool) -> int | None:
    """Delete a blob that was not used since it was noted; return its size. None: it is gone, or in use."""
    blob = await store.find(name)
    if blob is None or noted != _orphan(blob):
        return None
    if not dry_run:
        await store.delete(name)
    return blob.size


def _batches(digests: Sequence[str]) -> list[Sequence[str]]:
    return [digests[start : start + _BATCH] for start in range(0, len(digests), _BATCH)]
