"""Histories that are exported as they are stored: readable with the key alone, which a replay needs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from affinity import App, Client, OrchestrationContext, Worker, migrate
from affinity.blobs import Blobs
from affinity.cli.help import FAILED, MISUSED
from affinity.errors import InvalidOptions, PayloadUnreadable
from affinity.testing import replay
from tests.cli.conftest import document, refused, succeed
from tests.payloads.memory import MemoryStore
from tests.payloads.xor import CODEC, XorCodec
from tests.support.changed_code_app import changed, record
from tests.support.waiting import until

APPS = "tests.support.changed_code_app:"
SECRETS = ('"ann"', "hello", "bye")
"""Payloads of a visit; "ann" is the id of its session too."""

other_key = XorCodec(7)


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFFINITY_CODEC", "tests.payloads.xor:CODEC")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: None) -> str:
    """A database with an instance that has ended, "a", and one that waits, "b"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFFINITY_URL", url := f"sqlite:///{tmp_path}/affinity.db")
    anyio.run(migrate, url)
    anyio.run(partial(record, url, "a", ended=True))
    anyio.run(record, url, "b")
    return url


def payloads_of(path: Path) -> list[str]:
    """The secrets in a file, but for those that are names."""
    text = path.read_text().replace('"session_id":"ann"', "")
    return [secret for secret in SECRETS if secret in text]


async def suspend(url: str) -> None:
    """By code that has changed."""
    async with Worker(changed, url), Client(url) as client:
        await client.raise_event("b", "said", "bye")

        async def is_suspended() -> bool:
            return (await client.status("b")).status == "suspended"

        await until(is_suspended)


def test_an_export_is_as_it_is_stored(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is to be decoded; and a replay reads both, if it has the key that it needs."""
    exported, decoded = tmp_path / "a.json", tmp_path / "plain.json"
    assert document("history", "a", "--export", "a.json")["encoded"] is True
    assert document("history", "a", "--export", "plain.json", "--decode")["encoded"] is False
    assert payloads_of(exported) == []
    assert payloads_of(decoded) == [*SECRETS]
    assert json.loads(decoded.read_text()).keys() == json.loads(exported.read_text()).keys() - {"encoded_in"}
    both = document("replay", f"{APPS}recorded", "a.json", "plain.json")
    assert (both["matched"], both["events"]) == (2, 20)
    found = document("replay", f"{APPS}changed", "a.json", code=FAILED)["findings"]
    assert [each["code"] for each in found] == ["ActivityScheduled('greet', session_id='bob')"]

    monkeypatch.setenv("AFFINITY_CODEC", "tests.payloads.test_exported_histories:other_key")
    (finding,) = document("replay", f"{APPS}recorded", "a.json", code=FAILED)["findings"]
    assert finding["error"] == "PayloadUnreadable"
    assert finding["message"].startswith("event 1 cannot be read: ")

    monkeypatch.delenv("AFFINITY_CODEC")
    assert "AFFINITY_CODEC" in refused(MISUSED, "replay", f"{APPS}recorded", "a.json")
    assert document("replay", f"{APPS}recorded", "plain.json")["matched"] == 1
    assert "give the client a codec" in refused(MISUSED, "history", "a", "--export", "no.json", "--decode")
    assert not (tmp_path / "no.json").exists()
    succeed("history", "a", "--export", "keyless.json")
    assert (tmp_path / "keyless.json").read_text() == exported.read_text()
    assert "belongs to --export" in refused(MISUSED, "history", "a", "--decode")


def test_histories_of_a_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the error of a suspension, by which a finding is known, is decoded too."""
    status = ["--status", "running", "--status", "completed", "--status", "suspended"]
    assert document("replay", f"{APPS}recorded", *status)["matched"] == 2
    anyio.run(suspend, url)
    succeed("history", "b", "--export", "b.json")
    for source in (["--status", "suspended"], ["b.json"]):
        assert [each["instance_id"] for each in document("replay", f"{APPS}changed", *source)["known"]] == ["b"]
    monkeypatch.delenv("AFFINITY_CODEC")
    found = document("replay", f"{APPS}recorded", *status, code=FAILED)["findings"]
    assert ["encrypted, xor" in each["message"] for each in found] == [True, True]


@pytest.mark.parametrize("name", ["instance_id", "encoded_in"])
async def test_an_export_of_another_instance_or_database_is_refused(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/affinity.db"
    await migrate(url)
    app = App("waits")

    @app.orchestration
    async def wait(ctx: OrchestrationContext, text: str) -> str:
        return await ctx.schedule_wait("more", str)

    async with Worker(app, url, codec=CODEC), Client(url, codec=CODEC) as client:
        run = await client.start(wait, "secret", instance_id="a")
        await run.raise_event("more", "end")
        await run.wait(timeout=30)
        stored: dict[str, Any] = await client.export_history("a", decode=False)
        assert replay(app, await client.export_history("a")) == replay(app, stored, codec=CODEC) > 0
    with pytest.raises(PayloadUnreadable, match="event 1 cannot be read"):
        replay(app, {**stored, name: "other"}, codec=CODEC)
    with pytest.raises(InvalidOptions, match="give codec="):
        replay(app, stored)


async def test_large_payloads_stay_in_their_store(tmp_path: Path) -> None:
    """Without the store a replay says so; a database without a codec has them in its exports."""
    app = App("large")

    @app.orchestration
    async def wait(ctx: OrchestrationContext, text: str) -> int:
        return len(text) + len(await ctx.schedule_wait("more", str))

    for codec in (CODEC, None):
        url, blobs = f"sqlite:///{tmp_path}/{codec is None}.db", Blobs(MemoryStore(), over=8192)
        await migrate(url)
        async with Worker(app, url, codec=codec, blobs=blobs), Client(url, codec=codec, blobs=blobs) as client:
            run = await client.start(wait, "large " * 5000, instance_id="a")
            await run.raise_event("more", "end")
            await run.wait(timeout=30)
            stored = await client.export_history("a", decode=False)
            if codec is None:
                assert stored == await client.export_history("a")
                assert replay(app, stored) > 0
                continue
            assert len(json.dumps(stored)) < 8192
            assert replay(app, stored, codec=codec, blobs=blobs) > 0
            assert await client.forget_kept_blobs(older_than=0) == 1
        with pytest.raises(PayloadUnreadable, match="in a blob store, and none is given"):
            replay(app, stored, codec=codec)
