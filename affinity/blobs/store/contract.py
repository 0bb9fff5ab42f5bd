"""The verbs of the collection of blobs, and of the pass that encodes payloads with another key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, cast

from affinity.provider.contract import ProviderConnection
from affinity.provider.parts import check_part, missing_verbs
from affinity.records import frozen


class NamedBlobs(NamedTuple):
    """Answer to `BlobProvider.find_named_blobs`: one step through the rows."""

    digests: Collection[str]
    place: str | None
    """Where the next step begins; None: all rows were looked at."""


@frozen()
class StoredPayload:
    """A value of a column of payloads, as it is stored."""

    column: str  # ``table.column``
    key: str  # of the row; opaque
    stored: str | bytes


class StoredPayloads(NamedTuple):
    """Answer to `BlobProvider.read_payloads`: one step through the rows."""

    payloads: Sequence[StoredPayload]
    place: str | None
    """Where the next step begins; None: all rows were read."""


@frozen()
class PayloadChange:
    """A stored payload, and what takes its place."""

    old: StoredPayload
    new: str | bytes


class OrphanBlob(NamedTuple):
    """A blob that no row named when a collection looked."""

    digest: str
    used_at: str
    """When it was used last, as its store said: only compared for equality."""
    size: int
    """Bytes."""


class OrphanFigures(NamedTuple):
    """Answer to `BlobProvider.measure_orphans`."""

    number: int
    """Blobs."""
    bytes: int
    oldest: float | None
    """Seconds since the oldest was found; None: there is none."""
    condemned: int
    """Blobs that a collection is deleting."""


class BlobProvider(ProviderConnection, Protocol):
    """The verbs on blobs: of workers, which collect them, and of clients, which write payloads that name them.

    A collection and a writer agree in this way. The collection condemns the digest of a blob that no row names; then it
    looks when the blob was used last, and deletes it only if that is long ago. A writer touches the blob; then it looks
    whether the digest is condemned, and uses it only if it is not. So one of the two sees the other.
    """

    async def begin_blob_round(self, pause: float) -> bool:
        """Return True for one call in ``pause`` seconds, over all workers: the caller may collect."""
        ...

    async def find_named_blobs(self, place: str | None, limit: int) -> NamedBlobs:
        """Return the digests of the blobs that some rows name, at most ``limit`` rows of one table. A row that is there
        for the whole of two passes through all rows is seen.
        """
        ...

    async def condemn_blobs(self, digests: Collection[str]) -> None:
        """Note that these blobs are to be deleted. Idempotent."""
        ...

    async def get_condemned_blobs(self, digests: Collection[str] | None = None) -> Collection[str]:
        """Return those of these digests that are condemned; None: those that were condemned more than an hour ago, at
        most 10,000: the collection that has condemned them was killed.
        """
        ...

    async def forgive_blobs(self, digests: Collection[str]) -> None:
        """Forget that these blobs were to be deleted, or were orphans: they were deleted, or are in use."""
        ...

    async def note_orphans(self, orphans: Sequence[OrphanBlob]) -> None:
        """Note that no row names these blobs now. One that is noted already keeps its time, unless it was used since:
        its ``used_at`` differs.
        """
        ...

    async def get_old_orphans(self, grace: float, limit: int) -> Sequence[OrphanBlob]:
        """Return orphans that were noted at least ``grace`` seconds ago, by the database's clock; at most ``limit``,
        the oldest ones first.
        """
        ...

    async def measure_orphans(self) -> OrphanFigures:
        """Return figures of the blobs that wait for their deletion."""
        ...

    async def keep_exported_blobs(self, digests: Collection[str]) -> None:
        """Note that an export names these blobs: they are kept, also without a row that names them."""
        ...

    async def forget_exported_blobs(self, older_than: float) -> int:
        """Forget exports from before so many seconds; return how many blobs they have named."""
        ...

    async def read_payloads(self, place: str | None, limit: int) -> StoredPayloads:
        """Return the payloads of at most ``limit`` rows of one table, as they are stored: of fewer rows if they have
        more than `limits.MAX_BATCH_BYTES`, but of one at least. A row that is there for the whole of a pass is read.
        """
        ...

    async def replace_payloads(self, changes: Sequence[PayloadChange]) -> Collection[int]:
        """Replace payloads that are still stored as they were read; return the places of these changes. A row that
        another transaction has locked may be left as it is. Nothing else of a row changes.

        Raises:
            InvalidInput: a column is none of payloads.
            AccessDenied: this role may not change the column.
        """
        ...


def blobs_of(provider: ProviderConnection) -> BlobProvider:
    """Return the provider as one that knows of blobs.

    Raises:
        InvalidOptions: it does not.
    """
    check_part(provider, BlobProvider)
    return cast(BlobProvider, provider)


def knows_blobs(provider: ProviderConnection) -> bool:
    """Return whether the provider has the verbs."""
    return not missing_verbs(provider, BlobProvider)
