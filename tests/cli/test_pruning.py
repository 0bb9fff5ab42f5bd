"""``affinity prune``."""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio
import pytest

from affinity.cli.shell import FAILED, INTERRUPTED, MISUSED
from affinity.client import Client
from tests.cli.conftest import Play, document, refused, run, succeed


@pytest.fixture
def ended(play: Play) -> None:
    """Two instances that have ended, well and badly, and one that runs."""
    for name in ("done", "broken", "on"):
        succeed("start", "brew", "--id", name)
    play(lambda puppet: puppet.end("done"))
    play(lambda puppet: puppet.end_badly("broken", "failed", '{"type":"ValueError","message":"no water"}'))


@pytest.mark.usefixtures("ended")
def test_what_ended_long_ago_is_removed() -> None:
    """Completed ones, unless others are asked for."""
    counts = {"roots": 0, "instances": 0}
    assert document("prune", "--older-than", "1h", "--yes") == counts | {"dry_run": False}
    assert run("prune", "--older-than", "0s", "--dry-run").stderr == "would remove 1 instance\n"
    succeed("show", "done")
    assert document("prune", "--older-than", "0s", "--yes") == {"roots": 1, "instances": 1, "dry_run": False}
    refused(FAILED, "show", "done")
    assert run("prune", "--older-than", "0s", "--status", "failed", "--yes").stderr == "removed 1 instance\n"
    succeed("show", "on")


@pytest.mark.usefixtures("ended")
def test_nothing_is_removed_without_confirmation() -> None:
    """At a terminal it asks; without one it wants --yes or --dry-run."""
    assert "--yes" in refused(MISUSED, "prune", "--older-than", "0s")
    succeed("show", "done")


@pytest.mark.usefixtures("ended")
def test_histories() -> None:
    assert document("prune", "--histories", "--older-than", "0s", "--yes") == {"histories": 0, "dry_run": False}
    assert "--histories" in refused(MISUSED, "prune", "--histories", "--status", "failed", "--older-than", "1d")
    refused(MISUSED, "prune", "--yes")


@pytest.mark.usefixtures("database")
def test_ctrl_c_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how far it came."""

    async def interrupted(_: Client, *, progress: Callable[[int], None], **__: object) -> None:
        progress(7)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(Client, "prune", interrupted)
    said = refused(INTERRUPTED, "prune", "--older-than", "1d", "--yes")
    assert said.startswith("removed 7 before it ended; what is removed stays removed")
    assert said.endswith("interrupted\n")
