"""How far long work has come, and `--watch`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import click
import pytest

from affinity.cli.help import INTERRUPTED, UNKNOWN
from affinity.cli.progress import Progress
from tests.cli.conftest import Play, launch, refused, succeed
from tests.support.terminals import on_terminal
from tests.support.worker_processes import PATIENCE

# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "of"), [(None, ""), (9, " of 9")])
def test_long_work_reports_its_progress(monkeypatch: pytest.MonkeyPatch, total: int | None, of: str) -> None:
    now, said = 0.0, list[str]()
    monkeypatch.setattr("affinity.cli.progress.time.monotonic", lambda: now)
    monkeypatch.setattr(click, "echo", lambda text, err: said.append(text))
    progress = Progress("removed", total=total, hint="; go on")
    for count, now in enumerate((0.5, 1.0, 1.5, 2.5), 1):  # noqa: B007
        progress(count)
    assert said == [f"removed 2{of} …", f"removed 4{of} …"]
    with pytest.raises(ValueError, match="x"), progress:
        raise ValueError("x")
    assert said[2:] == ["removed 4 before it ended; go on"]


def test_other_work_is_shown_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the replays of what was listed: the first one stays silent from then on."""
    now, said = 2.0, list[str]()
    monkeypatch.setattr("affinity.cli.progress._FIRST_SHOWN", 0.0)
    monkeypatch.setattr("affinity.cli.progress.time.monotonic", lambda: now)
    monkeypatch.setattr(click, "echo", lambda text, err: said.append(text))
    listed = Progress("listed")
    listed(1)
    listed.close()
    now = 60.0
    listed(2)
    assert said == ["listed 1 …"]


WORK = """
import time
from affinity.cli.progress import Progress
with Progress("removed", total={total}) as progress:
    for count in range(1, 10):
        progress(count)
        time.sleep(0.2)
"""


@pytest.mark.parametrize(("term", "total", "shown"), [("xterm", 9, "/9"), ("xterm", None, "0:00:0"), ("dumb", 9, "…")])
def test_on_a_terminal_it_is_a_bar(term: str, total: int | None, shown: str) -> None:
    """Unless a line cannot be written again there. It is gone at the end."""
    said = on_terminal([sys.executable, "-c", WORK.format(total=total)], term)
    assert "removed" in said
    assert shown in said
    assert ("\x1b[2K" in said) == (term != "dumb")


# --- watching ---------------------------------------------------------------------------------------------------------


def watching(*arguments: str) -> Any:
    return launch(*arguments, "--watch", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("command", ["why", "show"])
def test_an_instance_is_watched_until_it_has_ended(play: Play, command: str) -> None:
    """A line for each change."""
    succeed("start", "brew", "--id", "pot")
    with watching(command, "pot") as process:
        first = json.loads(process.stdout.readline())
        play(lambda puppet: puppet.end_badly("pot", "failed", '{"type": "Spilled", "message": "tea"}'))
        rest, _ = process.communicate(timeout=PATIENCE)
    last = json.loads(rest.splitlines()[-1])
    assert [(each["status"], each["waits_for"] is None) for each in (first, last)] == [
        ("pending", False),
        ("failed", True),
    ]
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["stats", "why"])
def test_the_fleet_is_watched_until_it_is_interrupted(play: Play, command: str) -> None:
    play(_nothing)
    with watching(command) as process:
        before = process.stdout.readline()
        succeed("start", "brew", "--id", "pot")
        assert json.loads(process.stdout.readline()) != json.loads(before)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == INTERRUPTED


@pytest.mark.usefixtures("database")
def test_what_does_not_exist_is_not_watched() -> None:
    assert "nowhere" in refused(UNKNOWN, "why", "nowhere", "--watch")


async def _nothing(_: object) -> None:
    """The worker has registered, and leaves its lease."""
