"""``affinity sessions moves`` and ``affinity sessions life``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from affinity.cli.help import INTERRUPTED, MISUSED, UNKNOWN
from tests.cli.conftest import Play, document, refused, run, succeed
from tests.support.worker_processes import PATIENCE, ROOT


def hold(play: Play, *sessions: str) -> None:
    for session in sessions:
        succeed("start", "brew", "--id", session)
        play(lambda puppet, name=session: puppet.hold(name, name))  # type: ignore[misc]


def test_moves_are_listed(play: Play) -> None:
    assert run("sessions", "moves").stderr == "no moves\n"
    hold(play, "kettle", "pot", "cup")
    moves = document("sessions", "moves")
    assert [(m["session_id"], m["from_worker"], m["to_worker"], m["reason"], m["queued"]) for m in moves] == [
        (name, None, "puppet", "new", 1) for name in ("kettle", "pot", "cup")
    ]
    assert [m["hydrate_seconds"] for m in moves] == [None] * 3
    assert document("sessions", "moves", "pot") == moves[1:2]
    assert document("sessions", "moves", "po") == []
    assert document("sessions", "moves", "--worker", "puppet", "--reason", "new", "--limit", "2") == moves[1:]
    assert document("sessions", "moves", "--after", str(moves[0]["epoch"]), "--limit", "1") == moves[1:2]
    assert document("sessions", "moves", "--before", str(moves[1]["epoch"])) == moves[:1]
    assert (
        document("sessions", "moves", "--worker", "other") == document("sessions", "moves", "--reason", "moved") == []
    )
    shown = run("sessions", "moves", "--limit", "2")
    rows = [line.split()[3:6] for line in shown.stdout.splitlines()[1:]]  # after "0 s ago"
    assert rows == [[name, "puppet", "new"] for name in ("pot", "cup")]
    assert shown.stderr == f"earlier ones: --before {moves[1]['epoch']}\n"


def test_the_life_of_a_session(play: Play) -> None:
    hold(play, "kettle")
    shown = run("sessions", "life", "kettle")
    epoch = document("sessions", "moves")[0]["epoch"]
    head, columns, row = shown.stdout.splitlines()
    held = f"session 'kettle' is held by worker 'puppet' under epoch {epoch}"
    assert head == f"{held}; 1 activity of it runs or waits"
    assert columns.split()[:3] == ["SINCE", "WORKER", "EPOCH"]
    assert row.split()[1:4] == ["puppet", str(epoch), "new"]
    life = document("sessions", "life", "kettle")
    assert [(one["worker_id"], one["gap_seconds"]) for one in life["holdings"]] == [("puppet", None)]
    assert "nowhere" in refused(UNKNOWN, "sessions", "life", "nowhere")


def test_what_contradicts_is_refused(play: Play) -> None:
    assert "--before contradicts" in refused(MISUSED, "sessions", "moves", "--before", "5", "--follow")
    assert "--before contradicts" in refused(MISUSED, "sessions", "moves", "--before", "5", "--after", "1")
    assert "is not one of" in refused(MISUSED, "sessions", "moves", "--reason", "boredom")


def test_moves_are_followed(play: Play) -> None:
    """Existing moves, and then each new one, as JSON or as text, until Ctrl-C."""
    hold(play, "kettle")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "affinity", "sessions", "moves", "--follow"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with (
        subprocess.Popen([*command, "--json"], **pipes) as as_json,  # type: ignore[call-overload]
        subprocess.Popen([*command, "pot"], **pipes) as as_text,  # type: ignore[call-overload]
    ):
        assert json.loads(as_json.stdout.readline())["session_id"] == "kettle"
        hold(play, "pot")
        move = json.loads(as_json.stdout.readline())
        assert (move["session_id"], move["to_worker"], move["reason"]) == ("pot", "puppet", "new")
        assert as_text.stdout.readline().split()[-3:] == ["pot", "puppet", "new"]
        for process in (as_json, as_text):
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=PATIENCE)
            assert (process.returncode, stdout) == (INTERRUPTED, "")
