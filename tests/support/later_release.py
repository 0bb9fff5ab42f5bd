"""A later release, as far as a database can tell: it has the migrations of this one, and more."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from affinity import migrate
from affinity.provider.postgres import migration as postgres
from affinity.provider.schema import Migration, Progress, log_progress
from affinity.provider.sqlite import migration as sqlite

CONTRIBUTING: Final = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
EXPANDS: Final = "ALTER TABLE instances ADD COLUMN later text"
CONTRACTS: Final = "-- oldest code: {version}\nCREATE TABLE later (a integer)"


def write_first_migrations(root: Path, *engines: str) -> None:
    """What the release does, in the tree at ``root``: the command of CONTRIBUTING.md, for these providers."""
    command = CONTRIBUTING.read_text().partition("cd affinity/provider\n")[2]
    command = command.partition("```")[0].replace("postgres sqlite", " ".join(engines))
    subprocess.run(["bash", "-euc", command], cwd=root / "affinity" / "provider", check=True)


async def upgrade(url: str, *scripts: str, progress: Progress = log_progress) -> int:
    """Migrate as a later release would, whose migrations are ours and then these; the version afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        if url.startswith("sqlite:"):
            every = _followed(sqlite.MIGRATIONS, scripts)
            path = Path(url.removeprefix("sqlite:///"))
            return sqlite.migrate(path, every, progress)[1]
        patch.setattr(postgres, "MIGRATIONS", _followed(postgres.MIGRATIONS, scripts))
        return (await migrate(url, progress))[1]


def _followed(ours: Sequence[Migration], scripts: Sequence[str]) -> list[Migration]:
    first = len(ours) + 1
    later = [
        Migration(version, f"{version:04d}_later", script.format(version=version) + ";\n")
        for version, script in enumerate(scripts, first)
    ]
    return [*ours, *later]
