"""``affinity blobs``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import affinity
from affinity import Blob, Client
from affinity.blobs import Blobs, DirectoryStore
from affinity.cli.help import MISUSED
from tests.cli.conftest import document, refused, run, succeed
from tests.payloads import collecting
from tests.payloads.collecting import age_orphans

Put = Callable[[bytes], Blob]


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    (tmp_path / "store").mkdir()
    found = Blobs(DirectoryStore(tmp_path / "store"), grace=3_600.0)
    monkeypatch.setattr(collecting, "BLOBS", found, raising=False)
    monkeypatch.setenv("AFFINITY_BLOBS", "tests.payloads.collecting:BLOBS")
    return found


def test_status_and_collection(any_url: str, blobs: Blobs) -> None:
    """A dry run changes nothing; a blob is deleted after the grace, and what is named stays."""

    async def put() -> None:
        await affinity.migrate(any_url)
        async with Client(any_url, blobs=blobs) as client:
            await client.keep_blobs([await client.put_blob(b"kept" * 1_000)])
            await client.put_blob(b"orphan" * 1_000)

    asyncio.run(put())
    before = document("blobs", "--url", any_url)
    assert {name: before[name] for name in ("count", "orphans", "condemned", "oldest_orphan")} == {
        "count": 2,
        "orphans": 0,
        "condemned": 0,
        "oldest_orphan": None,
    }
    assert before["bytes"] > 10_000
    collect = ("blobs", "collect", "--url", any_url)
    nothing = {"deleted": 0, "bytes": 0, "orphans": 1, "is_complete": True}
    for _ in range(2):
        assert document(*collect, "--dry-run") == {**nothing, "dry_run": True}
    assert document("blobs", "status", "--url", any_url)["orphans"] == 0
    assert document(*collect) == {**nothing, "dry_run": False}
    shown = succeed("blobs", "status", "--url", any_url)
    assert "orphans        1, " in shown
    assert "oldest orphan  found 0." in shown
    age_orphans(any_url)
    assert succeed(*collect, "--dry-run").startswith("would delete 1 blob, ")
    assert document("blobs", "--url", any_url)["count"] == 2
    assert succeed(*collect).startswith("deleted 1 blob, ")
    after = document("blobs", "--url", any_url)
    assert (after["count"], after["orphans"], after["condemned"]) == (1, 0, 0)
    entries = document("audit", "--url", any_url)["entries"]  # of both collections, and of no dry run
    assert [(entry["action"], entry["outcome"]) for entry in entries[:2]] == [("collect blobs", "done")] * 2
    assert [entry["action"] for entry in entries].count("collect blobs") == 2


def test_a_store_of_others_is_not_collected(sqlite_url: str, blobs: Blobs) -> None:
    blobs.collect = False
    assert "collect=False" in refused(MISUSED, "blobs", "collect", "--url", sqlite_url)


def test_without_a_store_it_says_what_to_give(sqlite_url: str) -> None:
    assert "no blob store" in refused(MISUSED, "blobs", "--url", sqlite_url)


def test_help_teaches() -> None:
    assert "AFFINITY_BLOBS=" in run("blobs", "--help").stdout
    assert "--dry-run" in run("blobs", "collect", "--help").stdout
