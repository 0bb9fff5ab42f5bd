"""Blobs, as clients use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial

from affinity.actions import action
from affinity.batching import batches
from affinity.blob import Blob, BlobPath, BlobSource
from affinity.blobs.store.contract import PayloadChange, StoredPayload, blobs_of
from affinity.client.calls import PruneProgress, no_progress, retry
from affinity.client.registered import RegisteredCalls
from affinity.errors import InvalidOptions
from affinity.limits import MAX_REENCRYPTED, is_number
from affinity.payloads import Vault, vault_of
from affinity.payloads.blobs import BlobCollection, BlobFigures
from affinity.payloads.contract import Reencryption


class BlobCalls(RegisteredCalls):
    """The calls of a client on blobs."""

    async def put_blob(self, source: BlobSource) -> Blob:
        """Keep large data outside the database; return the small value that names it, for inputs and events.

        ::

            document = await client.put_blob(Path("contract.pdf"))
            await client.start(review, Review(document=document))

        Use it within the grace of `affinity.blobs.Blobs`, a day by default: then a blob that no row names
        is deleted.

        Args:
            source: bytes, a ``pathlib.Path``, a file that is open for reading bytes, or an async iterator of bytes. At
                most `limits.MAX_BLOB_BYTES`; a part of it is in memory, the rest in a temporary file.

        Raises:
            InvalidOptions: the client has no blob store.
            PayloadTooLarge, InvalidInput: of the source.
            BlobStoreFailed: the store fails.
        """
        return await self._vault.put(source)

    def open_blob(self, blob: Blob) -> AsyncIterator[bytes]:
        """Return the data of a blob as a stream: parts of up to 1 MiB, each of them checked.

        Raises:
            InvalidOptions: the client has no blob store.
            PayloadUnreadable: from the iterator: the blob is lost, was altered, or has no key here.
            BlobStoreFailed: from the iterator: the store fails. All parts before are right.
        """
        return self._vault.open(blob)

    async def save_blob(self, blob: Blob, path: BlobPath) -> None:
        """Write the data of a blob to a file, which is there when all of it was checked, or not at all.

        Raises:
            InvalidOptions, PayloadUnreadable, BlobStoreFailed: as `open_blob`.
            OSError: the file cannot be written.
        """
        await self._vault.save(blob, path)

    async def keep_blobs(self, blobs: Iterable[Blob]) -> None:
        """Keep blobs though no row may name them, until `forget_kept_blobs`. The exports of affinity do it themselves;
        for a copy that you make, call this.

        Raises:
            InvalidOptions: the provider knows no blobs.
        """
        for batch in batches(sorted({blob.digest for blob in blobs})):
            await retry(partial(blobs_of(self._provider).keep_exported_blobs, batch))

    @action("forget kept blobs", "", "", "older_than")
    async def forget_kept_blobs(self, *, older_than: float) -> int:
        """Forget what `keep_blobs` was given more than so many seconds ago; return how many blobs that were. Those that
        no row names are deleted. Needs the rights of a worker.

        Raises:
            InvalidOptions: ``older_than`` is no number from 0, or the provider knows no blobs.
        """
        if not is_number(older_than) or older_than < 0:
            raise InvalidOptions(f"older_than is a number of seconds from 0, not {older_than!r}")
        return await retry(partial(blobs_of(self._provider).forget_exported_blobs, float(older_than)))

    async def measure_blobs(self) -> BlobFigures:
        """Return how many blobs of this database are in the store, and how many wait for their deletion. It lists the
        store.

        Raises:
            InvalidOptions: the client has no blob store.
            BlobStoreFailed: the store fails.
        """
        vault = self._vault
        count = size = 0
        async for blob in vault.blobs.store.list(vault.prefix):
            count, size = count + 1, size + blob.size
        found = await retry(blobs_of(self._provider).measure_orphans)
        return BlobFigures(
            count=count,
            bytes=size,
            orphans=found.number,
            orphan_bytes=found.bytes,
            oldest_orphan=found.oldest,
            condemned=found.condemned,
            grace=vault.blobs.grace,
        )

    async def collect_blobs(self, *, dry_run: bool = False) -> BlobCollection:
        """Delete the blobs that no row names since the grace, and note those that no row names now, as a worker does
        from time to time. It reads all rows with payloads. Needs the rights of a worker. The audit log has the call
        when it begins.

        Args:
            dry_run: change nothing: count.

        Raises:
            InvalidOptions: the client has no blob store, or ``Blobs(collect=False)``, which keeps what others name.
            BlobStoreFailed: the store fails.
        """
        vault = self._vault
        if not vault.blobs.collect:
            raise InvalidOptions("this store is not collected here: it was given as Blobs(…, collect=False)")
        from affinity.blobs.collection import collect_blobs

        provider = blobs_of(self._provider)
        if not dry_run:
            await self._begin_collection()
        done = await collect_blobs(vault.blobs.store, provider, vault.prefix, vault.blobs.grace, dry_run=dry_run)
        return BlobCollection(deleted=done.deleted, bytes=done.freed, orphans=done.found, is_complete=done.is_complete)

    @action("collect blobs", "", "")
    async def _begin_collection(self) -> None:
        """Check that this role may collect; for the audit log, since what was deleted stays so after a failure."""
        await retry(partial(blobs_of(self._provider).forgive_blobs, []))

    async def reencrypt(
        self, *, batch: int = 100, dry_run: bool = False, progress: PruneProgress = no_progress
    ) -> Reencryption:
        """Encode all stored payloads again with the key that the client's codec writes with, beside running work.

        What has this key already is left alone: an interrupted call keeps its progress, and may be repeated. Payloads
        in the blob store are encoded again too; the data of `affinity.Blob` is not. The audit log has the call when it
        begins.

        Args:
            batch: rows that are read, and changed, together: 1 to `limits.MAX_REENCRYPTED`.
            dry_run: change nothing, and decode nothing: count.
            progress: called after each step with the number of payloads so far.

        Raises:
            InvalidOptions: the client has no codec, or ``batch`` is out of range.
            AccessDenied: this role may not change all payloads: on PostgreSQL, the role that migrated may.
            CodecFailed, BlobStoreFailed: the codec, or the blob store, fails.
        """
        if type(batch) is not int or not 1 <= batch <= MAX_REENCRYPTED:
            raise InvalidOptions(f"batch is an integer from 1 to {MAX_REENCRYPTED}, not {batch!r}")
        from affinity.blobs.reencryption import Pass  # what is encoded: the records of all guests

        provider = blobs_of(self._provider)
        one_pass = Pass(provider, dry_run=dry_run, progress=progress)
        if not dry_run:
            await self._begin_reencryption(one_pass.key)
        return await one_pass.run(batch)

    @action("reencrypt", "", "", "key")
    async def _begin_reencryption(self, key: str) -> None:
        """Check that this role may change payloads; ``key``: for the audit log."""
        nowhere = StoredPayload("suspensions.message", '[""]', "")
        await retry(partial(blobs_of(self._provider).replace_payloads, [PayloadChange(nowhere, "")]))

    @property
    def _vault(self) -> Vault:
        found = vault_of(self._provider)
        if found is None:
            raise InvalidOptions("the client has no blob store: give it one, Client(url, blobs=Blobs(store))")
        return found
