"""The commands that decide where sessions live: move, drain, resume, watch."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from affinity.cli.help import INTERRUPTED, MISUSED, REFUSED, UNKNOWN
from tests.cli.conftest import Play, document, launch, refused, run, succeed
from tests.support.worker_processes import PATIENCE, open_workers


def test_a_session_is_moved_between_processes(directory: Path) -> None:
    with open_workers(f"sqlite:///{directory}/affinity.db") as workers:
        workers.start("one", "tests.support.moved_sessions_app:app")
        plan = json.dumps({"session_id": "s", "rounds": 1})
        succeed("start", "walk", "--input", plan, "--wait", "--timeout", str(PATIENCE))
        workers.start("two", "tests.support.moved_sessions_app:app")
        assert document("sessions", "move", "s", "--to", "two", "--wait") == {"sessions": {"s": "moved"}}
        (session,) = document("sessions")
        assert (session["worker_id"], session["next_worker"]) == ("two", None)
        wanted = {"sessions": {"s": "moved", "never": "not_held"}}
        assert document("sessions", "move", "s", "never", "--to", "two", code=REFUSED) == wanted
        assert "unavailable" in run("sessions", "move", "s", "--to", "unknown", "--within", "5m").stdout
        (move,) = document("sessions", "moves", "s", "--reason", "moved")
        assert (move["from_worker"], move["to_worker"]) == ("one", "two")


def test_a_planned_move_is_shown(play: Play) -> None:
    """The worker named is alive and takes nothing: it has no code."""
    with open_workers(f"sqlite:///{Path.cwd()}/affinity.db") as workers:
        workers.start("one", "tests.support.moved_sessions_app:app")
        plan = json.dumps({"session_id": "s", "rounds": 1})
        succeed("start", "walk", "--input", plan, "--wait", "--timeout", str(PATIENCE))
        play(_nothing)
        assert document("sessions", "move", "s", "--to", "puppet") == {"sessions": {"s": "planned"}}
        assert document("sessions")[0]["next_worker"] == "puppet"
        assert "puppet" in succeed("sessions")
        given_up = document("sessions", "move", "s", "--to", "puppet", "--within", "1s", "--wait", code=REFUSED)
        assert given_up == {"sessions": {"s": "given_up"}}


async def _nothing(_: object) -> None:
    """The worker has registered, and leaves its lease."""


def test_a_worker_is_drained_and_resumed(play: Play) -> None:
    play(_nothing)
    assert "worker 'puppet' holds " in succeed("drain", "puppet", "--dry-run")
    (preview,) = document("drain", "puppet", "--dry-run")
    assert (preview["worker"]["worker_id"], preview["worker"]["draining"]) == ("puppet", False)
    assert document("drain", "puppet") == {"workers": {"puppet": "draining"}}
    (worker,) = document("workers")
    assert (worker["draining"], worker["drain_wanted"]) == (True, True)
    assert "drained" in succeed("workers")
    assert document("resume", "--worker", "puppet") == {"workers": {"puppet": "resumed"}}
    (worker,) = document("workers")
    assert (worker["draining"], worker["drain_wanted"]) == (False, False)


@pytest.mark.usefixtures("database")
def test_what_is_refused() -> None:
    assert "no worker 'unknown'" in refused(UNKNOWN, "drain", "unknown")
    assert "no worker 'unknown'" in refused(UNKNOWN, "resume", "--worker", "unknown")
    assert "contradicts" in refused(MISUSED, "resume", "i", "--worker", "w")
    assert "contradicts" in refused(MISUSED, "workers", "--watch", "--desired")
    refused(MISUSED, "sessions", "move", "s")
    assert "within" in refused(MISUSED, "sessions", "move", "s", "--to", "w", "--within", "0s")


def test_the_workers_are_watched(play: Play) -> None:
    play(_nothing)
    with launch("workers", "--watch", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):
            (worker,) = json.loads(process.stdout.readline())
            assert worker["worker_id"] == "puppet"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == INTERRUPTED


def test_rebalancing_is_shown_and_suspended(play: Play) -> None:
    """A worker that has not said how many sessions it holds has no share."""
    play(_nothing)
    shown = document("rebalance")
    assert (shown["suspended"], [(one["worker_id"], one["share"]) for one in shown["workers"]]) == (
        False,
        [("puppet", None)],
    )
    assert document("rebalance", "--suspend")["suspended"]
    assert "rebalancing: suspended" in succeed("rebalance")
    assert not document("rebalance", "--resume")["suspended"]
    assert "rebalancing: on" in succeed("rebalance")
