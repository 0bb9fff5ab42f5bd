"""The demo for real: worker processes, a database, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from affinity import Client
from affinity.demo.display import LEASE_SECONDS, RECOVERY_SLACK
from affinity.session import SessionFilter
from tests.support.extras import needs

pytestmark = needs("chitchat_dataset")

WAIT_SECONDS = 90.0
"""Seconds after which a run that did not end is broken."""

SHORT = ("--seed", "46")
"""Chooses conversations of at most a few dozen messages, which take the shortest time that a replay takes."""


class Demo:
    """A demo in a process of its own; what it says on stderr is read as it comes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "affinity", "demo", *arguments],
            env=os.environ | {"TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []

    def wait_said(self, text: str) -> str:
        """The first line on stderr, from now on, that holds ``text``."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            if text in line:
                return line
        pytest.fail(f"the demo never said {text!r}:\n{''.join(self.said)}")

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        return psutil.Process(self._process.pid).children()

    def send(self, number: signal.Signals) -> None:
        """Signal it."""
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, stdout, stderr."""
        stdout, stderr = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.returncode, stdout, "".join(self.said) + stderr

    def report(self) -> dict[str, Any]:
        """The output of a good run with ``--json``."""
        code, stdout, stderr = self.end()
        assert code == 0, stderr
        report: dict[str, Any] = json.loads(stdout)
        return report

    def close(self) -> None:
        """End it if it runs."""
        self._process.kill()
        self._process.communicate()


Start = Callable[..., Demo]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts demos with arguments; their temporary files are in ``tmp_path / "tmp"``."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(folder, *arguments))
        return started[-1]

    yield start
    for demo in started:
        demo.close()


def assert_right(report: dict[str, Any], *, sessions: int) -> None:
    assert report["sessions"] == report["transcripts_verified"] == report["states_agreed"] == sessions
    assert report["turns"] >= 2 * sessions
    for fault in ("lost_turns", "duplicated_results", "turns_off_holder"):
        assert report[fault] == 0, fault
    assert report["turns_per_second"] > 0


@pytest.mark.slow
def test_a_run_survives_a_kill_and_leaves_nothing_behind(any_url: str, start: Start, tmp_path: Path) -> None:
    report = start("--conversations", "12", *SHORT, "--json", "--url", any_url).report()
    assert_right(report, sessions=12)
    assert report["provider"] == any_url.partition(":")[0]
    assert (report["workers"], report["killed_workers"]) == (3, 1)
    assert report["migrated_sessions"] >= 1
    assert report["hydrations"] >= report["sessions"] + report["migrated_sessions"]
    assert 0 < report["recovery_seconds"] <= LEASE_SECONDS + RECOVERY_SLACK
    assert anyio.run(left_in, any_url) == []
    assert not list((tmp_path / "tmp").iterdir())


async def left_in(url: str) -> list[str]:
    async with Client(url) as client:
        instances = [instance.instance_id async for instance in client.list_instances()]
        return instances + [state.session_id for state in await client.session_store.list(SessionFilter(), 1000)]


@pytest.mark.slow
def test_the_embedded_default_without_a_kill(start: Start, tmp_path: Path) -> None:
    report = start("--conversations", "6", *SHORT, "--workers", "2", "--no-kill", "--json").report()
    assert_right(report, sessions=6)
    assert (report["provider"], report["workers"], report["killed_workers"]) == ("sqlite", 2, 0)
    assert (report["migrated_sessions"], report["recovery_seconds"]) == (0, None)
    assert (report["hydrations"], report["refused_writes"]) == (report["sessions"], 0)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
@pytest.mark.nightly_cases("new")
def test_an_interrupted_run_leaves_nothing(any_url: str, start: Start, tmp_path: Path) -> None:
    demo = start("--conversations", "30", "--url", any_url)
    demo.wait_said("turns")
    workers = demo.workers()
    assert len(workers) == 3
    demo.send(signal.SIGINT)
    assert demo.end()[0] == 128 + signal.SIGINT
    assert not any(worker.is_running() for worker in workers)
    assert anyio.run(left_in, any_url) == []
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_a_run_that_is_signalled_while_it_starts(start: Start, tmp_path: Path) -> None:
    demo = start()
    demo.wait_said("Starting 3 workers")
    demo.send(signal.SIGTERM)
    assert demo.end()[0] == 128 + signal.SIGTERM
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_workers_do_not_outlive_a_demo_that_is_killed(start: Start) -> None:
    demo = start("--conversations", "30")
    demo.wait_said("turns")
    workers = demo.workers()
    demo.send(signal.SIGKILL)
    assert psutil.wait_procs(workers, timeout=WAIT_SECONDS)[1] == []


@pytest.mark.slow
def test_a_worker_that_ends_by_itself_is_reported(start: Start, tmp_path: Path) -> None:
    demo = start("--conversations", "30")
    demo.wait_said("turns")
    crashed = demo.workers()[0]
    crashed.kill()
    code, _, stderr = demo.end()
    assert code == 1
    assert f"(pid {crashed.pid}) ended by itself, by SIGKILL" in stderr
    (kept,) = (tmp_path / "tmp").iterdir()
    assert str(kept) in stderr
    assert len(list(kept.glob("*.log"))) == 3
    assert (kept / "transcripts.jsonl").exists()
