"""`affinity dev`: a worker that starts again when the code changes, as a process, with files that are edited."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from affinity.cli.dev import find_files
from affinity.cli.help import INTERRUPTED, MISUSED
from tests.cli.conftest import document, launch, refused, run, succeed
from tests.support.worker_processes import PATIENCE

APP = """
import pathlib
import time
import anyio
import affinity

app = affinity.App("shop")

@app.activity
async def name(ctx: affinity.ActivityContext) -> str:
    return "VERSION"

@app.activity
async def work(ctx: affinity.ActivityContext) -> str:
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        await anyio.sleep(0.01)
    return "VERSION"

@app.activity
async def block(ctx: affinity.ActivityContext) -> str:
    pathlib.Path("begun").touch()
    while "VERSION" == "one":
        time.sleep(60)
    return "VERSION"

@app.orchestration
async def blocked(ctx: affinity.OrchestrationContext) -> str:
    return await ctx.schedule_activity(block)

@app.orchestration
async def ask(ctx: affinity.OrchestrationContext) -> str:
    return await ctx.schedule_activity(name)

@app.orchestration
async def long(ctx: affinity.OrchestrationContext) -> str:
    return await ctx.schedule_activity(work)

@app.orchestration
async def patient(ctx: affinity.OrchestrationContext) -> str:
    await ctx.schedule_wait("WAIT")
    return await ctx.schedule_activity(name)
"""
STARTED = "running app"

pytestmark = pytest.mark.slow_cases("^(?!test_without_the_console)")


def write(version: str, wait: str = "go") -> None:
    Path("shop.py").write_text(APP.replace("VERSION", version).replace("WAIT", wait))


class Dev:
    """The command, and what it writes."""

    def __init__(self) -> None:
        self.process = launch("dev", "shop:app", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self._lines: IO[str] = self.process.stderr

    def until(self, *texts: str) -> str:
        """Its lines up to the first one with the last of these texts, which must come in this order."""
        seen, wanted = "", list(texts)
        while wanted:
            line = self._lines.readline()
            assert line, f"it has ended without {wanted[0]!r}: {seen}"
            seen += line
            if wanted[0] in line:
                wanted.pop(0)
        return seen

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest


@pytest.fixture
def dev(directory: Path) -> Iterator[Callable[[], Dev]]:
    """Starts it; no process of it is left at the end."""
    started: list[Dev] = []

    def start() -> Dev:
        started.append(Dev())
        return started[-1]

    yield start
    for each in started:
        children = psutil.Process(each.process.pid).children() if each.process.poll() is None else []
        for process in children:
            process.kill()
        each.process.kill()
        each.process.communicate()


def until(look: Callable[[], bool]) -> None:
    while not look():
        time.sleep(0.01)


def result_of(orchestration: str, *options: str) -> Any:
    return document("start", orchestration, "--wait", "--timeout", str(PATIENCE), *options)["output"]


def test_new_code_runs_once_it_is_written(dev: Callable[[], Dev]) -> None:
    write("one")
    running = dev()
    running.until(STARTED)
    assert result_of("ask") == "one"
    write("two")
    running.until("shop.py changed", "the running work of the old worker ends", "ended", STARTED)
    assert result_of("ask") == "two"
    Path("helpers").mkdir()
    Path("helpers", "other.py").write_text("")
    running.until("other.py changed", STARTED)


def test_running_work_ends_with_the_code_that_it_began_with(dev: Callable[[], Dev]) -> None:
    write("one")
    running = dev()
    running.until(STARTED)
    succeed("start", "long", "--id", "l")
    until(Path("begun").exists)
    write("two")
    running.until("the running work of the old worker ends")
    Path("go").touch()
    running.until(STARTED)
    assert document("wait", "l", "--timeout", str(PATIENCE))["output"] == "one"


def test_code_that_does_not_import_leaves_the_old_worker_running(dev: Callable[[], Dev]) -> None:
    write("one")
    running = dev()
    running.until(STARTED)
    Path("shop.py").write_text("def (:\n")
    assert "SyntaxError" in running.until("the old worker goes on")
    assert result_of("ask") == "one"
    write("two")
    running.until(STARTED)
    assert result_of("ask") == "two"


def test_it_says_what_the_new_code_would_suspend(dev: Callable[[], Dev]) -> None:
    """And the instance goes on once the code fits again."""
    write("one")
    running = dev()
    running.until(STARTED)
    succeed("start", "patient", "--id", "p")
    until(lambda: document("show", "p")["event_count"] > 0)
    write("two", wait="come")
    said = running.until("would suspend instances", "0 of 1 history matches; 1 not", STARTED)
    assert "p (patient), execution 1, event 2" in said
    assert "shop.py:" in said
    write("three")
    assert "would suspend" not in running.until("changed", STARTED)
    succeed("raise", "p", "go")
    assert document("wait", "p", "--timeout", str(PATIENCE))["output"] == "three"


def test_it_waits_for_code_that_starts(dev: Callable[[], Dev]) -> None:
    Path("shop.py").write_text("import nothing_of_this_name\n")
    running = dev()
    assert "nothing_of_this_name" in running.until("waiting for a change")
    write("one")
    running.until(STARTED)
    (worker,) = psutil.Process(running.process.pid).children()
    worker.terminate()
    running.until("the worker has ended: waiting for a change")
    write("two")
    running.until(STARTED)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)])
def test_a_signal_drains_the_worker_and_ends_it(dev: Callable[[], Dev], number: signal.Signals, code: int) -> None:
    write("one")
    running = dev()
    running.until(STARTED)
    (worker,) = psutil.Process(running.process.pid).children()
    returned, rest = running.end(number)
    assert returned == code
    assert "draining" in rest
    assert "not drained" not in rest
    assert "Traceback" not in rest
    assert not worker.is_running()
    assert [each["alive"] for each in document("workers")] in ([], [False])


def test_a_worker_whose_event_loop_is_blocked_is_killed(
    dev: Callable[[], Dev], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its code is mended: the new code would never start."""
    monkeypatch.setenv("AFFINITY_DRAIN_TIMEOUT", "1")
    write("one")
    running = dev()
    running.until(STARTED)
    succeed("start", "blocked", "--id", "b")
    until(Path("begun").exists)
    write("two")
    running.until("the running work of the old worker ends", "event loop is blocked: it is killed", STARTED)
    assert document("wait", "b", "--timeout", str(PATIENCE))["output"] == "two"


def test_a_second_ctrl_c_kills_a_worker_whose_event_loop_is_blocked(dev: Callable[[], Dev]) -> None:
    write("one")
    running = dev()
    running.until(STARTED)
    succeed("start", "blocked", "--id", "b")
    until(Path("begun").exists)
    (worker,) = psutil.Process(running.process.pid).children()
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # two signals at one moment are one
    returned, rest = running.end(signal.SIGINT)
    assert returned == INTERRUPTED
    assert "blocked" in rest
    assert not worker.is_running()


def test_a_second_ctrl_c_stops_the_running_work(dev: Callable[[], Dev]) -> None:
    write("one")
    running = dev()
    running.until(STARTED)
    succeed("start", "long", "--id", "l")
    until(Path("begun").exists)
    running.process.send_signal(signal.SIGINT)
    running.until("draining")
    returned, rest = running.end(signal.SIGINT)
    assert (returned, "stopping now" in rest) == (INTERRUPTED, True)


def test_a_script_is_shown_how_it_ended(directory: Path) -> None:
    write("one")
    process = launch("dev", "shop:app", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stderr is not None
        assert any(STARTED in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=PATIENCE)
    assert json.loads(stdout) == {"signal": "SIGTERM", "starts": 1}


@pytest.fixture
def without_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed; the worker ends at once."""

    async def run(self: object, *, console: bool) -> signal.Signals:
        assert not console
        return signal.SIGTERM

    monkeypatch.setattr("affinity.cli.dev.find_spec", lambda name: None)
    monkeypatch.setattr("affinity.cli.dev.DevWorker.run", run)


def test_without_the_console_it_says_how_to_install_it(directory: Path, without_console: None) -> None:
    said = run("dev", "shop:app").stderr
    assert said == "dev: the console is not installed: pip install 'affinity-workflows[console]'\n"
    assert run("dev", "shop:app", "--no-console").stderr == ""


def test_without_the_console_the_wish_for_it_is_refused(directory: Path, without_console: None) -> None:
    assert "pip install 'affinity-workflows[console]'" in refused(MISUSED, "dev", "shop:app", "--console")


def test_files_of_environments_and_hidden_folders_are_not_watched(directory: Path) -> None:
    for name in ("shop.py", "parts/x.py", ".git/x.py", "venv/lib/x.py", "parts/__pycache__/x.py", "notes.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("venv/pyvenv.cfg").touch()
    assert sorted(find_files()) == ["parts/x.py", "shop.py"]


def test_a_worker_that_is_killed_is_followed_by_another_one(dev: Callable[[], Dev]) -> None:
    """Under the same name, so that it has the work without waiting for the end of a lease."""
    write("one")
    running = dev()
    running.until(STARTED)
    succeed("start", "patient", "--id", "p")
    until(lambda: document("show", "p")["event_count"] > 0)
    (worker,) = psutil.Process(running.process.pid).children()
    worker.kill()
    running.until("the worker was killed: another one starts", STARTED)
    succeed("raise", "p", "go")
    assert document("wait", "p", "--timeout", str(PATIENCE))["output"] == "one"
    assert len(document("workers")) == 1
