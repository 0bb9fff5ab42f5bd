"""The command in processes of their own: signals, and a worker that serves the other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from affinity.cli import main
from affinity.cli.help import INTERRUPTED, MISUSED, NO_DATABASE
from affinity_workflows import STUCK
from tests.cli.conftest import document, launch, refused, succeed
from tests.support.cli_runner import new_runner
from tests.support.worker_processes import PATIENCE, ROOT, open_workers

SIGNALS = [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, INTERRUPTED)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
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


def test_a_worker_shows_a_script_how_it_ended(directory: Path) -> None:
    (directory / "kitchen_app.py").write_text("import affinity\n\napp = affinity.App('kitchen')\n")
    process = launch(
        "worker", "kitchen_app:app", "--node-id", "cook", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stderr is not None
        assert any("running app" in line for line in process.stderr)
        assert psutil.Process(process.pid).memory_info().rss < 80e6  # docs/run/options.md#memory
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert json.loads(stdout) == {"worker_id": "cook", "signal": "SIGTERM", "drained": True}


APP = """import asyncio
import gc
import logging
import affinity

app = affinity.App("kitchen")
log = logging.getLogger("kitchen")

@app.activity
async def boil(ctx: affinity.ActivityContext) -> None:
    log.info("boiling")
    log.info("loop: %s, frozen: %s", type(asyncio.get_running_loop()).__module__, gc.get_freeze_count() > 10_000)

@app.orchestration
async def brew(ctx: affinity.OrchestrationContext) -> None:
    log.info("brewing")
    await ctx.schedule_activity(boil).on_session("pot")
"""


HUNG = """import time
import affinity

app = affinity.App("kitchen")

@app.activity
async def sleep(ctx: affinity.ActivityContext) -> None:
    print("hung", flush=True)
    time.sleep(1_000)

@app.orchestration
async def activity(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_activity(sleep)

@app.orchestration
async def orchestration(ctx: affinity.OrchestrationContext) -> None:
    print("hung", flush=True)
    while True:
        pass
"""


@pytest.mark.parametrize("code", ["activity", "orchestration"])
@pytest.mark.parametrize(
    ("numbers", "ended_by"),
    [
        ([signal.SIGINT, signal.SIGINT], INTERRUPTED),
        ([signal.SIGTERM, signal.SIGINT], 128 + signal.SIGTERM),
        ([signal.SIGTERM], STUCK),
    ],
    ids=lambda given: " ".join(each.name for each in given) if isinstance(given, list) else "",
)
def test_code_that_never_yields_does_not_keep_a_worker_from_its_end(
    directory: Path, numbers: Sequence[signal.Signals], ended_by: int, code: str
) -> None:
    """A second Ctrl-C ends it; without one it ends once its lease is given up."""
    (directory / "hung_app.py").write_text(HUNG)
    times = {"AFFINITY_WORKER_LEASE_TIMEOUT": "2", "AFFINITY_STALL_TIMEOUT": "3" if ended_by == STUCK else "600"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with launch("worker", "hung_app:app", "--node-id", "cook", variables=times, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        succeed("start", code)
        assert process.stdout.readline() == "hung\n"
        seen = ""
        for number in numbers:
            time.sleep(1.1)  # a loop that moves within a second takes the signal
            process.send_signal(number)
            while "nothing can drain until it moves" not in seen:
                seen += process.stderr.readline()
        _, rest = process.communicate(timeout=PATIENCE)
    assert process.returncode == ended_by
    assert "ending without it" in rest


def log_of_a_worker(directory: Path, **environment: str) -> list[str]:
    """The lines of a worker whose environment sets the log, that has run an instance, and was ended."""
    (directory / "boil_app.py").write_text(APP)
    with launch(
        "worker", "boil_app:app", "--node-id", "cook", stderr=subprocess.PIPE, variables=environment
    ) as process:
        document("start", "brew", "--id", "t", "--wait", "--timeout", str(PATIENCE))
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    return str(stderr).splitlines()


def test_each_line_of_the_log_names_worker_instance_and_session(directory: Path) -> None:
    lines = log_of_a_worker(directory)
    assert next(line for line in lines if "brewing" in line).endswith("kitchen: brewing [worker=cook instance=t]")
    assert next(line for line in lines if "boiling" in line).endswith("boiling [worker=cook instance=t session=pot]")
    assert lines[-1].endswith("worker cook: ended [worker=cook]")
    # uvloop where it is installed; collections do not look at what was loaded at the start.
    loop = "uvloop" if find_spec("uvloop") else "asyncio.unix_events"
    assert any(f"loop: {loop}, frozen: True" in line for line in lines)


def test_the_log_as_json(directory: Path) -> None:
    records = [json.loads(line) for line in log_of_a_worker(directory, AFFINITY_LOG_FORMAT="json")]
    found = {each["message"]: each for each in records}
    assert {each["worker"] for each in records} == {"cook"}
    assert [found["boiling"][name] for name in ("logger", "level", "instance", "session")] == [
        "kitchen",
        "INFO",
        "t",
        "pot",
    ]
    assert (found["brewing"]["instance"], found["brewing"]["session"]) == ("t", None)
    assert datetime.fromisoformat(found["boiling"]["time"]).tzinfo is not None


def test_the_environment_sets_the_level_of_the_log(directory: Path) -> None:
    assert log_of_a_worker(directory, AFFINITY_LOG_LEVEL="ERROR") == []


def test_the_environment_forbids_a_migration(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "boil_app.py").write_text(APP)
    monkeypatch.setenv("AFFINITY_MIGRATE", "no")
    assert "never migrated" in refused(NO_DATABASE, "worker", "boil_app:app")
    monkeypatch.setenv("AFFINITY_MIGRATE", "perhaps")
    assert "'perhaps' is not a valid boolean" in refused(MISUSED, "worker", "boil_app:app")


def test_a_hangup_does_not_end_what_nohup_has_started(directory: Path) -> None:
    (directory / "boil_app.py").write_text(APP)
    command = ["nohup", sys.executable, "-m", "affinity", "worker", "boil_app:app"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(b"running app" in line for line in process.stderr)
        process.send_signal(signal.SIGHUP)
        assert document("start", "brew", "--wait", "--timeout", str(PATIENCE))["status"] == "completed"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell: str) -> None:
    """As docs/run/terminal.md says."""
    script = new_runner().invoke(main, env={"_AFFINITY_COMPLETE": f"{shell}_source"}, prog_name="affinity").stdout
    assert f"_AFFINITY_COMPLETE={shell}_complete" in script
    words = {"COMP_WORDS": "affinity work", "COMP_CWORD": "work" if shell == "fish" else "1"}
    variables = {"_AFFINITY_COMPLETE": f"{shell}_complete", **words}
    assert "workers" in new_runner().invoke(main, env=variables, prog_name="affinity").stdout


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
