"""Providers of other distributions: they register the scheme of their URLs. The example is the one of the page."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

import affinity
from affinity import migrate
from affinity.cli import main
from affinity.errors import InvalidOptions, InvalidUrl, SchemaMismatch
from affinity.provider import CheckResult, change_rights, check_database, inspect_schema, open_provider
from affinity.provider.sqlite import SqliteProvider
from affinity.schedules.store.contract import schedules_of
from tests.examples.blocks import CONTEXTS, ROOT, blocks_of

PAGE: Final = ROOT / "docs" / "understand" / "provider-contract.md"
KNOWN: Final = "broken, mydb, other, postgres, postgresql, sqlite, twice"
OTHERS: Final = {
    "clever": {"twice": "affinity_mydb.backend"},
    "unlucky": {"twice": "affinity_mydb.backend", "broken": "affinity_mydb.missing", "other": "affinity_mydb.provider"},
}
"""Entry points of more distributions, by distribution."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on `sys.path` in which distributions with providers are installed."""
    folder = tmp_path_factory.mktemp("site")
    toml, python = (
        block.text for block in blocks_of(PAGE) if "affinity.providers" in block.text or "def open(" in block.text
    )
    points = tomllib.loads(toml)["project"]["entry-points"]["affinity.providers"]
    package = folder / "affinity_mydb"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "provider.py").write_text((CONTEXTS / "provider_contract.py").read_text())
    (package / "backend.py").write_text("from affinity_mydb.provider import MyProvider\n" + python)
    for name, registered in {"affinity-mydb": points, **OTHERS}.items():
        install(folder, name, registered)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def install(folder: Path, name: str, points: dict[str, str]) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{scheme} = {target}" for scheme, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[affinity.providers]", *lines, ""]))


async def test_a_registered_provider_opens_migrates_and_closes(site: Path, tmp_path: Path) -> None:
    url = f"mydb://{tmp_path}/third.db"
    before, after = await migrate(url)
    assert before == 0 < after
    assert (await inspect_schema(url)).is_usable
    assert await check_database(url) == [CheckResult(check="schema", level="ok", found=f"version {after}")]
    async with aclosing(await open_provider(url)) as provider:
        assert await provider.list_workers() == []
    with pytest.raises(InvalidOptions, match="MyDB has no roles"):
        await change_rights(url, clients=["web"])
    with pytest.raises(SchemaMismatch):
        await open_provider(f"mydb://{tmp_path}/empty.db")


async def test_workers_and_clients_take_its_urls(site: Path, tmp_path: Path) -> None:
    url = f"mydb://{tmp_path}/third.db"
    app = affinity.App("third")

    @app.orchestration
    async def double(ctx: affinity.OrchestrationContext, number: int) -> int:
        return 2 * number

    async with affinity.Worker(app, url), affinity.Client(url) as client:
        handle = await client.start(double, 21)
        assert await handle.wait() == 42


def test_commands_and_sync_clients_take_its_urls(site: Path, tmp_path: Path) -> None:
    url = f"mydb://{tmp_path}/third.db"
    for command in ("migrate", "list"):
        done = CliRunner().invoke(main, [command, "--url", url])
        assert done.exit_code == 0, done.output
    with affinity.sync.Client(url) as client:
        assert [*client.list_instances()] == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:secret@host/db", f"no provider serves the scheme of this URL: .*known schemes: {KNOWN}$"),
        ("u:secret@host/db", f"no provider serves the scheme of this URL: .*known schemes: {KNOWN}$"),
        ("database.db", f"no provider serves the scheme of this URL: .*known schemes: {KNOWN}$"),
        ("twice://host/db", "several packages register a provider for twice: .* one of clever, unlucky$"),
        ("broken://host/db", r"the provider for broken \(affinity_mydb.missing\) cannot be imported: Module"),
        ("other://host/db", r"the provider for other \(affinity_mydb.provider\) is not an affinity.provider.Backend$"),
    ],
)
async def test_what_cannot_be_opened_says_why(site: Path, url: str, message: str) -> None:
    for call in (open_provider, migrate, inspect_schema, change_rights, check_database):
        with pytest.raises(InvalidUrl, match=message) as refused:
            await call(url)
        assert "secret" not in str(refused.value)


async def test_a_built_in_scheme_needs_no_metadata(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    """Also not where a distribution registers it again."""

    def fail(**_: Any) -> None:
        raise AssertionError("the metadata of distributions is read")

    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    await migrate(sqlite_url)
    await (await open_provider(sqlite_url)).aclose()


async def test_a_subclass_of_a_provider_overrides_the_verbs_of_guests(tmp_path: Path) -> None:
    class Counting(SqliteProvider):
        reads = 0

        async def list_schedules(self, *args: Any, **conditions: Any) -> Any:
            self.reads += 1
            return await super().list_schedules(*args, **conditions)  # type: ignore[misc]

    path = tmp_path / "a.db"
    await migrate(f"sqlite:///{path}")
    async with aclosing(await Counting.open(path)) as provider:
        assert await schedules_of(provider).list_schedules() == []
        assert (provider.reads, type(provider).__name__) == (1, "Counting")  # type: ignore[attr-defined]
