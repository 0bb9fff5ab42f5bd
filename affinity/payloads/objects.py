"""A blob store in S3 or a server with its protocol, or in what else obstore knows: Google's and Azure's stores."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from affinity.errors import BlobNotFound, BlobStoreFailed, InvalidOptions
from affinity.limits import BLOB_PART_BYTES
from affinity.payloads.blobs import StoredBlob, check_blob_name

if TYPE_CHECKING:
    import obstore.store

_USED: Final = ".used"


class ObjectStore:
    """Keeps each blob in an object, by `obstore`: ``pip install affinity-workflows[blobs]``.

    ::

        from obstore.store import S3Store

        store = ObjectStore(S3Store("my-bucket", prefix="affinity", region="eu-central-1"))

    It needs a store that reads what was written before, as all of these do. When a blob is used again, an empty object
    beside it says so. Uploads of more than 5 MiB have several parts; let the bucket abort those that never end, by a
    rule of its lifecycle.

    Args:
        store: an object of a class of ``obstore.store``, such as S3Store. Its options are credentials, endpoint,
            timeouts and retries.
    """

    def __init__(self, store: obstore.store.ObjectStore) -> None:
        try:
            import obstore
        except ImportError as error:
            raise InvalidOptions("ObjectStore needs obstore: pip install affinity-workflows[blobs]") from error
        self._obstore = obstore
        self._store = store

    def __repr__(self) -> str:
        return f"ObjectStore({type(self._store).__name__})"  # its own text may contain credentials

    async def put(self, name: str, data: AsyncIterable[bytes]) -> None:
        """See `BlobStore.put`."""
        check_blob_name(name)
        parts = _Parts(data)
        try:
            await self._obstore.put_async(self._store, name, parts)
        except BaseException as error:
            if parts.error is not None:
                raise parts.error from None
            raise self._failure(error) from error

    async def get(self, name: str) -> AsyncIterator[bytes]:
        """See `BlobStore.get`."""
        check_blob_name(name)
        try:
            result = await self._obstore.get_async(self._store, name)
            async for part in result.stream(BLOB_PART_BYTES):
                yield bytes(part)
        except FileNotFoundError as error:
            # A bucket that is not there is "not found" too. Only one that answers says that the blob is lost.
            await self._check_answers(name)
            raise BlobNotFound(f"blob {name} is not in {self!r}") from error
        except self._obstore.exceptions.BaseError as error:
            raise self._failure(error) from error

    async def touch(self, name: str) -> bool:
        """See `BlobStore.touch`."""
        check_blob_name(name)
        if await self._head(name) is None:
            return False
        try:
            await self._obstore.put_async(self._store, name + _USED, b"")
            if await self._head(name) is not None:
                return True
            await self._delete(name + _USED)  # the blob was deleted in between
        except self._obstore.exceptions.BaseError as error:
            raise self._failure(error) from error
        return False

    async def find(self, name: str) -> StoredBlob | None:
        """See `BlobStore.find`."""
        check_blob_name(name)
        blob = await self._head(name)
        if blob is None:
            return None
        used = await self._head(name + _USED)
        return blob if used is None else blob._replace(used_at=max(blob.used_at, used.used_at))

    async def delete(self, name: str) -> None:
        """See `BlobStore.delete`."""
        check_blob_name(name)
        # In this order: the blob is listed until both are gone.
        await self._delete(name + _USED)
        await self._delete(name)

    async def list(self, prefix: str) -> AsyncIterator[StoredBlob]:
        """See `BlobStore.list`."""
        try:
            async for page in self._obstore.list(self._store, f"{prefix}/"):
                for meta in page:
                    if not meta["path"].endswith(_USED):
                        yield StoredBlob(meta["path"], meta["size"], meta["last_modified"])
        except self._obstore.exceptions.BaseError as error:
            raise self._failure(error) from error

    async def remove_unfinished(self, before: datetime) -> int:
        """See `BlobStore.remove_unfinished`: a rule of the bucket's lifecycle does it."""
        return 0

    async def _head(self, path: str) -> StoredBlob | None:
        try:
            meta = await self._obstore.head_async(self._store, path)
        except FileNotFoundError:
            return None
        except self._obstore.exceptions.BaseError as error:
            raise self._failure(error) from error
        return StoredBlob(path, meta["size"], meta["last_modified"])

    async def _delete(self, path: str) -> None:
        try:
            await self._obstore.delete_async(self._store, path)
        except FileNotFoundError:  # of some stores; S3 says nothing
            return
        except self._obstore.exceptions.BaseError as error:
            raise self._failure(error) from error

    async def _check_answers(self, name: str) -> None:
        async for _ in self.list(name):
            pass

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, self._obstore.exceptions.BaseError | OSError):
            return BlobStoreFailed(f"the object store: {type(error).__name__}: {error}")
        return error


class _Parts:
    """The parts of a blob, as obstore reads them. It notes their exception, which obstore would turn into its own."""

    def __init__(self, data: AsyncIterable[bytes]) -> None:
        self._data = data
        self.error: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._data:
                yield part
        except BaseException as error:
            self.error = error
            raise
