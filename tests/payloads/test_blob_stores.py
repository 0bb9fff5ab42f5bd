"""The blob stores: a directory, and objects in S3's protocol, against a server of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import pytest

from affinity.blobs import BlobStore, DirectoryStore, ObjectStore
from affinity.errors import BlobNotFound, BlobStoreFailed
from affinity_conformance.blobs import BlobStoreConformance
from affinity_conformance.blobs.suite import content, endless, name_of, parts

TICK: Final = 1.0
"""Seconds: the resolution of the times of S3."""


class DirectoryHarness:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def open(self) -> BlobStore:
        return DirectoryStore(self._root)

    async def wait_tick(self) -> None:
        await anyio.sleep(0.02)

    async def break_off(self) -> BlobStore:
        return DirectoryStore(self._root / "unmounted")


class TestDirectory(BlobStoreConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DirectoryHarness:
        return DirectoryHarness(tmp_path)

    async def test_only_an_empty_directory_may_be_one_that_is_not_mounted(self, tmp_path: Path) -> None:
        """Where anything was put, also of another database, what is not there is lost."""
        (root := tmp_path / "volume").mkdir()
        store, name = DirectoryStore(root), f"db/{'0' * 64}"
        with pytest.raises(BlobStoreFailed, match="no blob was put there yet, or its volume is not mounted"):
            await content(store, name)
        await store.put(f"other/{'0' * 64}", parts(b"x"))
        for one in (store, DirectoryStore(root)):
            with pytest.raises(BlobNotFound):
                await content(one, name)
        root.rename(tmp_path / "away")
        with pytest.raises(BlobStoreFailed, match="not there"):
            await content(store, name)
        root.mkdir()
        with pytest.raises(BlobStoreFailed, match="is the volume mounted"):
            await content(store, name)

    async def test_what_a_killed_put_has_left_is_removed_by_its_age(self, tmp_path: Path, store: BlobStore) -> None:
        killed = tmp_path / ".incoming" / "killed"
        killed.parent.mkdir()
        killed.write_bytes(b"half")
        now = datetime.now(UTC)
        assert await store.remove_unfinished(now - timedelta(hours=1)) == 0
        assert await store.remove_unfinished(now + timedelta(hours=1)) == 1
        assert [*tmp_path.rglob("*")] == [killed.parent]

    async def test_a_put_leaves_no_file_behind(self, tmp_path: Path, store: BlobStore) -> None:
        with anyio.move_on_after(0.1):
            await store.put(name_of(b"x"), endless())
        await store.put(name_of(b"x"), parts(b"x"))
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name_of(b"x").partition("/")[2]]

    async def test_a_volume_without_the_database_is_not_mounted(self, tmp_path: Path, store: BlobStore) -> None:
        """So its blobs are not lost."""
        with pytest.raises(BlobStoreFailed, match="mounted"):
            await content(store, name_of(b"x"))
        await store.put(name_of(b"y"), parts(b"y"))
        with pytest.raises(BlobNotFound):
            await content(store, name_of(b"x"))

    @pytest.mark.skipif(not Path("/dev/full").exists() or os.geteuid() != 0, reason="needs a file system of its own")
    async def test_a_full_disk_is_a_failure(self, tmp_path: Path) -> None:
        small = tmp_path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=False)
        if mounted.returncode:
            pytest.skip("may not mount")
        try:
            store = DirectoryStore(small)
            with pytest.raises(BlobStoreFailed):
                await store.put(name_of(b"large"), parts(b"x" * 1_000_000))
            assert [*small.rglob("*")] == [small / ".incoming"]
        finally:
            subprocess.run(["umount", str(small)], check=True)


class ObjectHarness:
    def __init__(self, endpoint: str, bucket: str) -> None:
        self._endpoint = endpoint
        self._bucket = bucket

    async def open(self) -> BlobStore:
        return self._store(self._bucket)

    async def wait_tick(self) -> None:
        await anyio.sleep(TICK)

    async def break_off(self) -> BlobStore:
        return self._store("no-such-bucket")

    def _store(self, bucket: str) -> ObjectStore:
        from obstore.store import S3Store

        return ObjectStore(
            S3Store(
                bucket,
                prefix="affinity",
                endpoint=self._endpoint,
                region="us-east-1",
                access_key_id="test",
                secret_access_key="test",  # noqa: S106
                client_options={"allow_http": True},
                retry_config={"max_retries": 0},
            )
        )


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3's protocol."""
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_open(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _wait_open(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


@pytest.mark.slow
class TestObjects(BlobStoreConformance):
    @pytest.fixture
    async def harness(self, s3: str) -> ObjectHarness:
        bucket = f"bucket-{uuid4().hex}"
        await anyio.to_thread.run_sync(_create_bucket, s3, bucket)
        return ObjectHarness(s3, bucket)

    async def test_a_server_that_is_away_is_a_failure(self) -> None:
        store = ObjectHarness("http://127.0.0.1:9", "bucket")._store("bucket")
        for call in (store.find, store.touch, store.delete):
            with pytest.raises(BlobStoreFailed):
                await call(name_of(b"x"))
        with pytest.raises(BlobStoreFailed):
            await store.put(name_of(b"x"), parts(b"x"))
        with pytest.raises(BlobStoreFailed):
            await content(store, name_of(b"x"))

    async def test_no_text_has_its_credentials(self, harness: Any) -> None:
        assert "test" not in repr(await harness.open())


def _create_bucket(endpoint: str, bucket: str) -> None:
    import urllib.request

    request = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")  # noqa: S310
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request")
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
