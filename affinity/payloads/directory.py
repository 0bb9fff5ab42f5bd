"""A blob store in a directory, such as a volume that all workers and clients mount."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, ParamSpec, TypeVar

from anyio import CancelScope
from anyio.to_thread import run_sync

from affinity.errors import BlobNotFound, BlobStoreFailed
from affinity.limits import BLOB_PART_BYTES
from affinity.payloads.blobs import StoredBlob, check_blob_name, is_blob_name

P = ParamSpec("P")
T = TypeVar("T")

_INCOMING: Final = ".incoming"


class DirectoryStore:
    """Keeps each blob in a file: ``root/<database>/<two digits>/<digest>``.

    A file is written under another name, synced, and renamed, so that it is whole or not there. On a network volume the
    server's clock says when a blob was used.

    Args:
        root: an existing directory. It is not created, so that a volume that is not mounted is found.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self._has_put = False

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._root)!r})"

    async def put(self, name: str, data: AsyncIterable[bytes]) -> None:
        """See `BlobStore.put`."""
        path = self._path(name)
        incoming = self._root / _INCOMING / uuid.uuid4().hex
        file = await _run(self._create, incoming)
        try:
            async for part in data:
                await _run(file.write, part)
            await _run(_finish, file, incoming, path)
            self._has_put = True
        finally:
            await _run_shielded(_discard, file, incoming)

    async def get(self, name: str) -> AsyncIterator[bytes]:
        """See `BlobStore.get`."""
        path = self._path(name)
        file = await _run(self._open, path, name)
        try:
            while part := await _run(file.read, BLOB_PART_BYTES):
                yield part
        finally:
            file.close()

    async def touch(self, name: str) -> bool:
        """See `BlobStore.touch`."""
        return await _run(_touch, self._path(name))

    async def find(self, name: str) -> StoredBlob | None:
        """See `BlobStore.find`."""
        return await _run(_find, self._path(name), name)

    async def delete(self, name: str) -> None:
        """See `BlobStore.delete`."""
        path = self._path(name)
        await _run(path.unlink, True)

    async def list(self, prefix: str) -> AsyncIterator[StoredBlob]:
        """See `BlobStore.list`."""
        for folder in await _run(_folders, self._root, prefix):
            for blob in await _run(_blobs_in, folder, prefix):
                yield blob

    async def remove_unfinished(self, before: datetime) -> int:
        """See `BlobStore.remove_unfinished`."""
        return await _run(_remove_older, self._root / _INCOMING, before)

    def _path(self, name: str) -> Path:
        prefix, digest = check_blob_name(name).split("/")
        return self._root / prefix / digest[:2] / digest

    def _create(self, incoming: Path) -> BinaryIO:
        with suppress(FileExistsError):
            incoming.parent.mkdir()  # but not the root
        return incoming.open("xb")

    def _open(self, path: Path, name: str) -> BinaryIO:
        try:
            return path.open("rb", buffering=0)
        except FileNotFoundError as error:
            if not self._root.is_dir():
                raise BlobStoreFailed(f"the directory of blobs {str(self._root)!r} is not there") from error
            if path.parent.parent.is_dir() or _has_blobs(self._root) or self._root.is_mount():
                raise BlobNotFound(f"blob {name} is not in {self!r}") from error
            if self._has_put:
                message = f"{self!r} is empty, though this process has put blobs there: is the volume mounted?"
            else:
                message = f"{self!r} is empty: no blob was put there yet, or its volume is not mounted"
            raise BlobStoreFailed(message) from error


def _has_blobs(root: Path) -> bool:
    """Return whether blobs were put there, of whatever database."""
    return any(path.is_dir() for path in root.iterdir())


async def _run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread; errors of the file system become `BlobStoreFailed`."""
    try:
        return await run_sync(lambda: function(*args, **kwargs))
    except OSError as error:
        raise BlobStoreFailed(f"the directory of blobs: {error}") from error


async def _run_shielded(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    with CancelScope(shield=True):
        await _run(function, *args, **kwargs)


def _finish(file: BinaryIO, incoming: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    for folder in (path.parent.parent, path.parent):
        with suppress(FileExistsError):
            folder.mkdir()
            _sync_folder(folder.parent)
    os.utime(incoming)  # it counts as used from now on, not from the last write
    incoming.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # has no descriptors of folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(file: BinaryIO, incoming: Path) -> None:
    with suppress(OSError):  # a full disk fails again here, and the first error says more
        file.close()
    incoming.unlink(missing_ok=True)


def _touch(path: Path) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _find(path: Path, name: str) -> StoredBlob | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return StoredBlob(name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _folders(root: Path, prefix: str) -> list[Path]:
    if not root.is_dir():
        raise BlobStoreFailed(f"the directory of blobs {str(root)!r} is not there")
    folder = root / prefix
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _blobs_in(folder: Path, prefix: str) -> list[StoredBlob]:
    names = {f"{prefix}/{path.name}": path for path in folder.iterdir()}
    found = (_find(path, name) for name, path in names.items() if is_blob_name(name))
    return [blob for blob in found if blob is not None]


def _remove_older(folder: Path, before: datetime) -> int:
    removed = 0
    for path in _files(folder):
        with suppress(FileNotFoundError):  # another process has ended it
            if path.stat().st_mtime < before.timestamp():
                path.unlink()
                removed += 1
    return removed


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from folder.iterdir()
