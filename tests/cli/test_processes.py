"""The command in processes of their own: signals, and a worker that serves the other commands."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from affinity.cli.shell import INTERRUPTED
from tests.cli.conftest import document, launch, succeed
from tests.support.worker_processes import PATIENCE, open_workers


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, INTERRUPTED)])
def test_a_worker_runs_orchestrations_until_it_is_signalled(directory: Path, number: signal.Signals, code: int) -> None:
    url = f"sqlite:///{directory}/affinity.db"
    with open_workers(url) as workers:
        worker = workers.start("one")
        assert document("start", "walk", "--input", "3", "--wait", "--timeout", str(PATIENCE))["status"] == "completed"
        (row,) = document("workers")
        assert (row["worker_id"], row["alive"]) == ("one", True)
        worker.send(number)
        assert worker.wait() == code
    assert not any(session["held"] for session in document("sessions"))


def test_workers_are_shown_with_their_code_and_while_they_restart(directory: Path) -> None:
    with open_workers(f"sqlite:///{directory}/affinity.db") as workers:
        worker = workers.start("one", code_version="1.2.3", restart_grace=60.0)
        succeed("start", "walk", "--input", "3", "--wait", "--timeout", str(PATIENCE))
        (row,) = document("workers")
        assert (row["code_version"], row["restarting"]) == ("1.2.3", False)
        assert row["code_since"]
        assert "1.2.3" in succeed("workers")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    (row,) = document("workers")
    assert (row["alive"], row["restarting"], row["sessions"]) == (True, True, 1)
    assert "restarting" in succeed("workers")


def test_a_worker_tells_a_script_how_it_ended(directory: Path) -> None:
    (directory / "kitchen_app.py").write_text("import affinity\n\napp = affinity.App('kitchen')\n")
    process = launch(
        "worker", "kitchen_app:app", "--node-id", "cook", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stderr is not None
        assert any("running app" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert json.loads(stdout) == {"worker_id": "cook", "signal": "SIGTERM", "drained": True}


@pytest.mark.usefixtures("database")
def test_ctrl_c_ends_a_wait_with_130() -> None:
    succeed("start", "brew", "--id", "t")
    with launch("start", "brew", "--id", "t", "--wait", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert "already" in process.stderr.readline()  # so it has begun to wait
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == INTERRUPTED
    assert (stdout, stderr) == ("", "interrupted\n")
