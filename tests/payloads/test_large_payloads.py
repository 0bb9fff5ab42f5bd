"""Large payloads in a blob store, and the data of `affinity.Blob`: workers, clients and the collection."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity import ActivityContext, App, Blob, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.blobs import Blobs, DirectoryStore
from affinity.blobs.store.contract import blobs_of
from affinity.errors import InvalidInput, InvalidOptions, PayloadTooLarge, PayloadUnreadable
from affinity.payloads import PayloadContext, vault
from tests.payloads.collecting import age_orphans, collect

pytestmark = pytest.mark.anyio

LARGE: Final = "large " * 50_000
OVER: Final = 16 * 1024

app = App("documents")


class Work(BaseModel):
    text: str
    document: Blob | None = None


@app.activity
async def double(ctx: ActivityContext, work: Work) -> Work:
    document = None
    if work.document is not None:
        document = await ctx.put_blob(_doubled(ctx.open_blob(work.document)))
    return Work(text=work.text + work.text[: len(work.text) // 2], document=document)


async def _doubled(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part
        yield part


@app.orchestration
async def pipeline(ctx: OrchestrationContext, work: Work) -> Work:
    for _ in range(2):
        work = await ctx.schedule_activity(double, work)
    more = await ctx.schedule_wait("more", Work)
    ctx.set_custom_status("ended")
    return Work(text=work.text + more.text, document=work.document)


_XOR: Final = bytes(byte ^ 0x55 for byte in range(256))


class Xor:
    """A codec."""

    label = "xor"
    reads_plain = False

    async def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return data.translate(_XOR)

    decode = encode


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    root = tmp_path / "blobs"
    root.mkdir()
    return DirectoryStore(root)


@pytest.fixture
def url(any_url: str) -> str:
    """An empty database: SQLite, and both ages of PostgreSQL."""
    return any_url


OPTIONS: Final = RuntimeOptions(worker_node_id="w", poll_interval=0.1)


def _opened(url: str, store: DirectoryStore, **options: Any) -> tuple[Worker, Client]:
    codec = options.pop("codec", None)
    blobs = Blobs(store, over=OVER, **options)
    return Worker(app, url, OPTIONS, blobs=blobs, codec=codec), Client(url, blobs=blobs, codec=codec)


@pytest.mark.parametrize("codec", [None, Xor()], ids=["plain", "xor"])
async def test_large_payloads_go_through_the_store(url: str, store: DirectoryStore, codec: Xor | None) -> None:
    """Inputs, results, events and outputs; a blob of the application beside them. The rows are small."""
    worker, client = _opened(url, store, codec=codec)
    async with worker, client:
        document = await client.put_blob(b"0123456789" * 150_000)
        assert document.size == 1_500_000
        handle = await client.start(pipeline, Work(text=LARGE, document=document), instance_id="i")
        await handle.raise_event("more", Work(text=LARGE[::-1]))
        result = await handle.wait(timeout=60)
        doubled = LARGE + LARGE[: len(LARGE) // 2]
        assert result.text == doubled + doubled[: len(doubled) // 2] + LARGE[::-1]
        assert result.document is not None
        assert result.document.size == 4 * document.size
        content = b"".join([part async for part in client.open_blob(result.document)])
        assert content[:20] == b"01234567890123456789"
        assert len(content) == 6_000_000
        exported = await client.export_history("i")
        assert LARGE in str(exported)
    blobs = await _blobs(store)
    assert len(blobs) >= 8
    provider = await affinity.provider.open_provider(url)
    (page,) = await provider.read_history([affinity.provider.contract.HistoryCursor("i", 1)])
    await provider.aclose()
    assert sum(map(len, page.events)) < 20_000
    assert not any("large large" in event for event in page.events)


async def test_without_a_bound_only_blobs_go_there(url: str, store: DirectoryStore) -> None:
    async with Worker(app, url, OPTIONS, blobs=Blobs(store)), Client(url, blobs=Blobs(store)) as client:
        handle = await client.start(pipeline, Work(text=LARGE))
        await handle.raise_event("more", Work(text=""))
        await handle.wait(timeout=60)
    assert await _blobs(store) == []


async def test_a_lost_blob_suspends_and_one_that_is_back_resumes(
    url: str, store: DirectoryStore, tmp_path: Path
) -> None:
    """An altered one too. Never is there another value."""
    await affinity.migrate(url)
    worker, client = _opened(url, store)
    async with client:
        async with worker:
            await client.start(pipeline, Work(text=LARGE), instance_id="i")
            await _until(lambda: _waits_for_more(client, "i"))
        kept = {path: path.read_bytes() for path in (tmp_path / "blobs").rglob("*") if path.is_file()}
        for number, (path, content) in enumerate(kept.items()):
            if number % 2:
                path.unlink()
            else:
                path.write_bytes(content[:-1] + b"?")
        async with _opened(url, store)[0]:
            handle = client.handle("i", pipeline)
            await handle.raise_event("more", Work(text="!"))
            await _until(lambda: _has_status(client, "i", "suspended"))
            for path, content in kept.items():
                path.write_bytes(content)
            await client.resume("i")
            assert (await handle.wait(timeout=60)).text.endswith("!")


async def test_a_blob_that_its_store_refuses_suspends_while_the_store_answers(
    sqlite_url: str, store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on."""
    monkeypatch.setattr(vault, "SUSPECT_SECONDS", 0.3)
    await affinity.migrate(sqlite_url)
    async with _opened(sqlite_url, store)[0]:
        pass  # from now on the database has a store
    async with _opened(sqlite_url, store)[1] as client:
        await client.start(pipeline, Work(text=LARGE), instance_id="i")
        refused = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
        assert len(refused) == 1
        refused[0].unlink()
        refused[0].mkdir()
        await client.put_blob(b"of another one")  # by which the volume is seen to be mounted
    worker, client = _opened(sqlite_url, store)
    async with worker, client:
        await _until(lambda: _has_status(client, "i", "suspended"))
        other = await client.start(pipeline, Work(text="small"))
        await other.raise_event("more", Work(text="!"))
        assert (await other.wait(timeout=60)).text.endswith("!")


async def test_a_reader_without_the_store_gets_an_error(url: str, store: DirectoryStore) -> None:
    """And no worker starts without it."""
    worker, client = _opened(url, store)
    async with worker, client:
        handle = await client.start(pipeline, Work(text=LARGE), instance_id="i")
        await handle.raise_event("more", Work(text=""))
        await handle.wait(timeout=60)
    async with Client(url) as blind:
        with pytest.raises(PayloadUnreadable, match="blob store"):
            await blind.handle("i", pipeline).wait(timeout=5)
        with pytest.raises(InvalidOptions, match="no blob store"):
            await blind.put_blob(b"x")
    with pytest.raises(InvalidOptions, match="blobs="):
        async with Worker(app, url, OPTIONS):
            pass


async def test_a_text_that_looks_like_a_frame_is_a_text(url: str, store: DirectoryStore) -> None:
    """Small and large, as the input of a user may be."""
    for text in ("~afp1.e30=.AAAA", "~afp1.", "x~afp1." * 10_000):
        async with _opened(url, store)[0], _opened(url, store)[1] as client:
            handle = await client.start(pipeline, Work(text=text))
            await handle.raise_event("more", Work(text=text))
            assert (await handle.wait(timeout=60)).text.startswith(text)


async def test_collection_deletes_what_no_row_names(url: str, store: DirectoryStore, tmp_path: Path) -> None:
    """And nothing else: not what a live row names, or an export, or what was put lately."""
    worker, client = _opened(url, store)
    async with worker, client:
        document = await client.put_blob(b"document")
        await client.start(pipeline, Work(text=LARGE, document=document), instance_id="kept")
        ended = await client.start(pipeline, Work(text=LARGE), instance_id="ended")
        await ended.raise_event("more", Work(text=LARGE))
        await ended.wait(timeout=60)
        await _until(lambda: _waits_for_more(client, "kept"))
        orphan = await client.put_blob(b"orphan")
        exported = await client.put_blob(b"exported")
        await client.keep_blobs([exported, exported])
        before = set(await _blobs(store))
        assert (await collect(client, url)).deleted == 0  # it finds them
        age_orphans(url)
        fresh = await client.put_blob(b"fresh")
        first = await collect(client, url)
        assert first.deleted >= 1
        left = set(await _blobs(store))
        assert {document.digest, exported.digest, fresh.digest} <= left
        assert orphan.digest not in left
        await client.delete("ended")
        assert (await collect(client, url)).deleted == 0
        age_orphans(url)
        assert (await collect(client, url)).deleted >= 4
        assert {document.digest, exported.digest} <= set(await _blobs(store)) < before
        handle = client.handle("kept", pipeline)
        await handle.raise_event("more", Work(text=""))
        assert (await handle.wait(timeout=60)).document is not None
        await client.delete("kept")
        await collect(client, url)
        age_orphans(url)
        await collect(client, url)
        assert await _blobs(store) == [exported.digest]


async def test_no_clock_of_the_store_ends_the_grace(url: str, store: DirectoryStore, tmp_path: Path) -> None:
    """What was put just now stays for the grace by the database's clock, though files seem to be decades old."""
    worker, client = _opened(url, store)
    async with worker, client:
        document = await client.put_blob(b"document")
        for path in (tmp_path / "blobs").rglob("*"):
            os.utime(path, (0, 0))
        for _ in range(2):
            assert (await collect(client, url))[:3] == (0, 0, 1)
        assert await _blobs(store) == [document.digest]
        figures = await client.measure_blobs()
        assert (figures.count, figures.orphans, figures.condemned) == (1, 1, 0)
        age_orphans(url)
        oldest = (await client.measure_blobs()).oldest_orphan
        assert oldest is not None
        assert oldest >= 7_200


async def test_files_that_are_no_blobs_are_left_alone(url: str, store: DirectoryStore, tmp_path: Path) -> None:
    """As a network volume, a desktop and a copy that was broken off leave them."""
    worker, client = _opened(url, store)
    async with worker, client:
        orphan = await client.put_blob(b"orphan")
        (folder,) = (tmp_path / "blobs").glob("*/??")
        strays = [folder / ".nfs0001", folder / f".{orphan.digest}.x7Gq", folder.parent / ".DS_Store"]
        for stray in strays:
            stray.write_bytes(b"")
        await collect(client, url)
        age_orphans(url)
        assert (await collect(client, url)).deleted == 1
        assert all(stray.exists() for stray in strays)


async def test_a_blob_that_is_used_again_stays(url: str, store: DirectoryStore, tmp_path: Path) -> None:
    """Its reference was in no row, and its time was over; then a client has started an instance with it."""
    worker, client = _opened(url, store)
    async with worker, client:
        document = await client.put_blob(b"document")
        await collect(client, url)
        age_orphans(url)
    async with _opened(url, store)[1] as client:  # which has not used it
        await client.start(pipeline, Work(text="", document=document), instance_id="i")
        await client.delete("i", force=True)
        assert (await collect(client, url)).deleted == 0
        assert await _blobs(store) == [document.digest]


async def test_what_a_killed_collection_has_condemned_is_warned_of(
    url: str, store: DirectoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A payload that names it is written all the same: who opens the blob gets the error, or the data."""
    worker, client = _opened(url, store)
    async with worker, client:
        document = await client.put_blob(b"document")
        provider = await affinity.provider.open_provider(url)
        await blobs_of(provider).condemn_blobs([document.digest])
        await provider.aclose()
        async with _opened(url, store)[1] as other:
            await other.start(pipeline, Work(text="", document=document), instance_id="i")
    assert "is being deleted" in caplog.text


@pytest.mark.parametrize("codec", [None, Xor()], ids=["plain", "xor"])
async def test_streams_are_checked_part_by_part(tmp_path: Path, store: DirectoryStore, codec: Xor | None) -> None:
    url = f"sqlite:///{tmp_path}/affinity.db"
    await affinity.migrate(url)
    data = bytes(range(256)) * 12_000
    (tmp_path / "file").write_bytes(data)
    async with Client(url, blobs=Blobs(store), codec=codec) as client:
        with (tmp_path / "file").open("rb") as file:
            sources: list[Any] = [data, tmp_path / "file", file, _pieces(data)]
            blobs = [await client.put_blob(source) for source in sources]
        for blob in blobs:
            assert b"".join([part async for part in client.open_blob(blob)]) == data
        await client.save_blob(blobs[0], tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes() == data
        path = next((tmp_path / "blobs").rglob(blobs[0].digest))
        whole = path.read_bytes()
        for damaged in (
            whole[:-1],
            whole + b"x",
            whole[:50],
            b"",
            whole[:-9] + b"x" + whole[-8:],
            whole[:9] + whole[10:],
        ):
            path.write_bytes(damaged)
            with pytest.raises(PayloadUnreadable, match="altered"):
                await client.save_blob(blobs[0], tmp_path / "none")
        path.unlink()
        with pytest.raises(PayloadUnreadable, match="lost"):
            await client.save_blob(blobs[0], tmp_path / "none")
        assert sorted(each.name for each in tmp_path.iterdir() if "none" in each.name) == []
        for wrong in ("text", 7, None):
            with pytest.raises(InvalidInput):
                await client.put_blob(wrong)  # type: ignore[arg-type]


async def test_a_blob_has_a_bound(tmp_path: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/affinity.db"
    await affinity.migrate(url)
    monkeypatch.setattr("affinity.payloads.streams.MAX_BLOB_BYTES", 1_000)
    async with Client(url, blobs=Blobs(store)) as client:
        await client.put_blob(b"x" * 1_000)
        with pytest.raises(PayloadTooLarge):
            await client.put_blob(b"x" * 1_001)
    assert len(await _blobs(store)) == 1


def test_options_have_bounds(store: DirectoryStore) -> None:
    for options in (
        {"over": 1},
        {"over": "x"},
        {"over": True},
        {"grace": 1.0},
        {"grace": "x"},
        {"grace": float("nan")},
    ):
        with pytest.raises(InvalidOptions):
            Blobs(store, **options)
    with pytest.raises(InvalidOptions):
        Blobs("store")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions):
        Worker(app, "sqlite:///x.db", OPTIONS, blobs=store)  # type: ignore[arg-type]


def test_a_blob_is_a_string_in_json() -> None:
    blob = Blob("a" * 64, 7)
    work = Work(text="", document=blob)
    assert Work.model_validate_json(work.model_dump_json()) == work
    assert Blob.parse(str(blob)) == blob
    for text in ("", "x", str(blob) + "x", str(blob).upper(), f"affinity-blob:1:{'a' * 63}:7", f"{str(blob)[:-1]}07"):
        with pytest.raises(InvalidInput):
            Blob.parse(text)
    for digest, size in (("A" * 64, 1), ("a" * 64, -1), ("a" * 64, 1.5), ("a" * 64, True)):
        with pytest.raises(InvalidInput):
            Blob(digest, size)  # type: ignore[arg-type]


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 77_777):
        yield data[start : start + 77_777]


async def _blobs(store: DirectoryStore) -> list[str]:
    root = Path(str(store).removeprefix("DirectoryStore('").removesuffix("')"))
    return sorted(path.name for path in root.rglob("*") if path.is_file())


async def _until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(60):
        while not await condition():
            await anyio.sleep(0.05)


async def _has_status(client: Client, instance_id: str, status: str) -> bool:
    return (await client.status(instance_id)).status == status


async def _waits_for_more(client: Client, instance_id: str) -> bool:
    events = [event.type async for event in client.history(instance_id)]  # an export would keep its blobs
    return events.count("activity_completed") == 2
