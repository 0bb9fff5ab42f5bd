"""Large documents, two workers with little memory, and kills: none is lost, and no blob is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import anyio
import psutil
import pytest

import affinity
from affinity import Client
from affinity.blobs import DirectoryStore
from affinity.blobs.collection import collect_blobs
from affinity.blobs.store.contract import blobs_of
from affinity.payloads import vault_of
from tests.payloads.documents import COMPLEMENT, MEMORY, STEPS, Document, blobs_in, convert

pytestmark = pytest.mark.anyio

NOTE: Final = "note" * 6_000
MIB: Final = 1024 * 1024


@pytest.mark.slow
async def test_some_documents(any_url: str, tmp_path: Path) -> None:
    await run_documents(any_url, tmp_path, count=6, size=6 * MIB + 1, kills=3)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
async def test_many_large_documents(any_url: str) -> None:
    """20 of 50 MB, or $COUNT: six times as many bytes are written, in $DOCUMENTS or a temporary directory. Not in
    `tmp_path`, which may be in memory.
    """
    count = int(os.environ.get("COUNT", "20"))
    with tempfile.TemporaryDirectory(dir=os.environ.get("DOCUMENTS")) as folder:
        peak = await run_documents(any_url, Path(folder), count=count, size=50_000_000, kills=max(3, count // 10))
    print(f"peak memory of a worker: {peak / MIB:.0f} MiB")


async def run_documents(url: str, root: Path, *, count: int, size: int, kills: int) -> int:
    """Convert documents; return the greatest resident memory of a worker that was seen, in bytes."""
    folder = root / "blobs"
    folder.mkdir()
    peak = Peak()
    async with Fleet(url, folder) as fleet, Client(url, blobs=blobs_in(str(folder))) as client:
        fleet.start()
        handles = {}
        for number in range(count):
            data = await client.put_blob(content(number, size))
            document = Document(number=number, data=data, note=NOTE, digests=[])
            handles[number] = await client.start(convert, document, instance_id=f"document-{number}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.kill_now_and_then, kills)
            tasks.start_soon(peak.watch, fleet)
            for number, handle in handles.items():
                result = await handle.wait(timeout=3_000)
                even, odd = [await digest_of(number, size, turned=turned) for turned in (False, True)]
                assert result.digests == [even, odd] * (STEPS // 2) + [even] * (STEPS % 2)
                assert result.note == NOTE[STEPS:] + NOTE[:STEPS]
                read = sha256()
                async for part in client.open_blob(result.data):
                    read.update(part)
                assert read.hexdigest() == odd
            tasks.cancel_scope.cancel()
        for handle in handles.values():
            await client.delete(handle.instance_id)
        # A worker collects with its rights.
        vault = vault_of(client._provider)
        assert vault is not None
        provider = await affinity.provider.open_provider(url)
        try:
            while not (await collect_blobs(DirectoryStore(folder), blobs_of(provider), vault.prefix, 0.0)).is_complete:
                pass
            for path in (folder / ".incoming").iterdir():  # of puts that were killed
                os.utime(path, (0, 0))
            await collect_blobs(DirectoryStore(folder), blobs_of(provider), vault.prefix, 0.0)
        finally:
            await provider.aclose()
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert 0 < fleet.killed <= kills
    assert peak.bytes < MEMORY
    return peak.bytes


async def content(number: int, size: int, *, turned: bool = False) -> AsyncIterator[bytes]:
    """A document; no two are alike."""
    part = random.Random(number).randbytes(MIB)
    part = part.translate(COMPLEMENT) if turned else part
    for start in range(0, size, MIB):
        yield part[: size - start]


async def digest_of(number: int, size: int, *, turned: bool) -> str:
    digest = sha256()
    async for part in content(number, size, turned=turned):
        digest.update(part)
    return digest.hexdigest()


class Fleet:
    """Two workers, each a process."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed = 0

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *error: object) -> None:
        for name in self._processes:
            self._kill(name)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def start(self) -> None:
        for name in ("a", "b"):
            self._start(name)

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.payloads.documents", self._url, str(self._folder), name]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[2])
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        self._processes[name] = process

    def _kill(self, name: str) -> None:
        with self._processes[name] as process:  # closes its pipe
            process.kill()

    async def kill_now_and_then(self, kills: int) -> None:
        while self.killed < kills:
            await anyio.sleep(random.uniform(0.1, 1.0))
            name = random.choice("ab")
            self._kill(name)
            self.killed += 1
            await anyio.to_thread.run_sync(self._start, name)


class Peak:
    """The greatest resident memory of a worker."""

    def __init__(self) -> None:
        self.bytes = 0

    async def watch(self, fleet: Fleet) -> None:
        while True:
            for pid in fleet.pids:
                with suppress(psutil.Error):
                    self.bytes = max(self.bytes, psutil.Process(pid).memory_info().rss)
            await anyio.sleep(0.1)
