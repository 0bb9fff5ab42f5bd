"""``affinity prune``, and ``affinity conversation prune``."""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio
import pytest

from affinity import Client
from affinity.cli.help import INTERRUPTED, MISUSED, UNKNOWN
from affinity.conversation.journal import JournalAppend, JournalStart, NewEntry
from affinity.conversation.store.contract import journals_of
from affinity.errors import InvalidInput
from tests.cli.conftest import Play, document, refused, run, succeed
from tests.client.conftest import Puppet


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
    refused(UNKNOWN, "show", "done")
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
    assert said.startswith("removed 7 before it ended; these stay removed")
    assert said.endswith("interrupted\n")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("call", "command"),
    [
        ("prune", ("prune", "--older-than", "1d")),
        ("prune_histories", ("prune", "--histories", "--older-than", "1d")),
        ("prune_conversations", ("conversation", "prune", "--older-than", "1d")),
    ],
)
def test_a_count_that_takes_long_says_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, call: str, command: tuple[str, ...]
) -> None:
    """Also while one of its steps takes long."""

    async def slow(_: Client, *, progress: Callable[[int], None], **__: object) -> int:
        progress(7)
        await anyio.sleep(0.5)
        raise InvalidInput("enough")

    monkeypatch.setattr(Client, call, slow)
    monkeypatch.setattr("affinity.cli.progress._FIRST_SHOWN", 0.05)
    said = run(*command, "--dry-run").stderr
    assert said.startswith("would remove 7 …\n")


@pytest.fixture
def crowded(play: Play) -> None:
    """Three entries of one conversation, and one of another, which no wake has to process."""

    async def send(puppet: Puppet) -> None:
        entry = NewEntry(kind="note", payload="{}")
        notes = [
            JournalAppend(
                session_id=name,
                kind="chat",
                entry=entry,
                message=None,
                start=JournalStart(name="chat", start="start", generation=name),
            )
            for name in ("c", "c", "c", "d")
        ]
        assert [one.outcome for one in await journals_of(puppet.provider).append_journal(notes)] == ["appended"] * 4

    play(send)


@pytest.mark.usefixtures("crowded")
def test_old_entries_of_conversations_are_removed() -> None:
    """By number, size and age; what would be removed is counted first."""
    prune = ("conversation", "prune")
    assert run(*prune, "--max-entries", "1", "--dry-run").stderr == "would remove 2 entries\n"
    assert document(*prune, "--older-than", "1h", "--yes") == {"entries": 0, "dry_run": False}
    assert "--yes" in refused(MISUSED, *prune, "--max-entries", "1")
    assert document(*prune, "--max-entries", "2", "--yes") == {"entries": 1, "dry_run": False}
    assert run(*prune, "--max-bytes", "0", "--older-than", "1h", "--yes").stderr == "removed 3 entries\n"
    assert document(*prune, "--older-than", "0s", "--dry-run") == {"entries": 0, "dry_run": True}


@pytest.mark.usefixtures("database")
def test_conversations_are_pruned_by_a_bound_only() -> None:
    assert "--max-entries" in refused(MISUSED, "conversation", "prune", "--yes")
    refused(MISUSED, "conversation", "prune", "--max-entries", "-1", "--yes")


@pytest.mark.usefixtures("database")
def test_ctrl_c_while_conversations_are_pruned_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(_: Client, *, progress: Callable[[int], None], **__: object) -> None:
        progress(7)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(Client, "prune_conversations", interrupted)
    said = refused(INTERRUPTED, "conversation", "prune", "--older-than", "1d", "--yes")
    assert said.startswith("removed 7 before it ended; these stay removed")
    assert said.endswith("interrupted\n")
