"""``affinity stop``: workers in processes of their own, and a first process as in a container."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from affinity.cli.help import MISUSED, NO_DATABASE, REFUSED, TIMED_OUT, UNKNOWN
from affinity.cli.stop import end_process
from tests.cli.conftest import document, refused, run, succeed
from tests.support.worker_processes import PATIENCE, ROOT, open_workers

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]
"""A process in a namespace of its own, in which its id is 1."""

STARTS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: {}); print(flush=True); time.sleep(99)"
"""A program that says when its handler is there."""

TELLS = """
from affinity.cli import stop
terminate = stop._Descriptor.terminate
stop._Descriptor.terminate = lambda process: (terminate(process), print("signalled", flush=True))
assert stop.end_process(1, 60.0)
"""
"""`affinity stop 1`, which says when it has sent a signal. It ends with its namespace."""


def test_it_returns_when_the_worker_has_drained(directory: Path) -> None:
    """The sessions are left to the worker's next start, as after SIGTERM."""
    with open_workers(f"sqlite:///{directory}/affinity.db") as workers:
        worker = workers.start("one", restart_grace=60.0)
        succeed("start", "walk", "--input", "3", "--wait", "--timeout", str(PATIENCE))
        assert document("stop", str(worker.pid), "--timeout", str(PATIENCE)) == {"pid": worker.pid, "ended": True}
        assert worker.wait() == 0
    (row,) = document("workers")
    assert (row["restarting"], row["sessions"]) == (True, 1)


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Callable[[str], subprocess.Popen[str]]:
    """A program that has installed its handler of SIGTERM, which does this."""

    def start(does: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", STARTS.format(does)], stdout=subprocess.PIPE, text=True)
        request.addfinalizer(process.communicate)
        request.addfinalizer(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    return start


def test_only_a_live_worker_of_this_database_on_this_host_is_ended(
    start: Callable[[str], subprocess.Popen[str]], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says why not, and what else there is."""
    other = start("sys.exit(3)")
    pid = str(other.pid)
    assert "--force asks no database" in refused(NO_DATABASE, "stop", pid)
    with open_workers(f"sqlite:///{directory}/affinity.db") as workers:
        worker = workers.start("one")
        succeed("start", "walk", "--input", "1", "--wait", "--timeout", str(PATIENCE))
        message = f"process {pid} is no live worker of this database on this host, {socket.gethostname()}"
        assert f"{message}; those here are: {worker.pid} (one). --force" in refused(REFUSED, "stop", pid)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
            assert "those here are: none" in refused(REFUSED, "stop", str(worker.pid))
        assert other.poll() is None
        assert document("stop", str(worker.pid), "--timeout", str(PATIENCE))["ended"]
    assert other.poll() is None
    succeed("stop", pid, "--force", "--timeout", str(PATIENCE))
    assert other.wait(PATIENCE) == 3


def test_a_process_that_goes_on_after_the_timeout(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("None")
    said = run("stop", str(process.pid), "--force", "--timeout", "0.2", "--json")
    assert said.exit_code == TIMED_OUT
    assert said.stdout.split() == ["{", '"pid":', f"{process.pid},", '"ended":', "false", "}"]
    assert f"process {process.pid} has not ended after 0.2 s" in said.stderr
    assert process.poll() is None


def test_a_process_that_no_one_has_waited_for_has_ended(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("sys.exit(3)")
    succeed("stop", str(process.pid), "--force", "--timeout", str(PATIENCE))
    assert process.wait(PATIENCE) == 3


def test_a_system_without_descriptors_of_processes(
    start: Callable[[str], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    deaf, process = start("None"), start("sys.exit(3)")
    assert not end_process(deaf.pid, 0.2)
    threading.Thread(target=process.wait, args=(PATIENCE,)).start()
    assert end_process(process.pid, PATIENCE)
    assert process.wait(PATIENCE) == 3


def test_no_process_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert f"no process {ended.pid}" in refused(UNKNOWN, "stop", str(ended.pid))
    for wrong in ("0", "-5", "worker-1", str(2**31)):
        refused(MISUSED, "stop", wrong)

    def forbid(*_: object) -> None:
        raise PermissionError

    for call in ((os, "kill"), (signal, "pidfd_send_signal")):
        monkeypatch.setattr(*call, forbid, raising=False)
    with pytest.raises(click.ClickException, match="another user's"):
        end_process(os.getpid(), 0.0)


@pytest.fixture
def importing(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process 1 of its namespace that has no handler of signals until there is a file, as Python while it starts."""
    if not shutil.which("nsenter") or subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    program = (
        "import pathlib, signal, sys, time\n"
        "print('importing', flush=True)\n"
        "while not pathlib.Path('imported').exists(): time.sleep(0.01)\n"
        "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\n"
        "time.sleep(600)\n"
    )
    command = [*NAMESPACE, sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_first_process_of_a_container_is_signalled_again(directory: Path, importing: subprocess.Popen[str]) -> None:
    """While it has no handler a signal is lost."""
    assert importing.stdout is not None
    assert importing.stdout.readline() == "importing\n"
    (first,) = Path(f"/proc/{importing.pid}/task/{importing.pid}/children").read_text().split()
    command = ["nsenter", "--target", first, "--pid", sys.executable, "-c", TELLS]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as stop:
        assert stop.stdout is not None
        assert stop.stdout.readline() == b"signalled\n"
        (directory / "imported").touch()
        assert importing.wait(PATIENCE) == 128 + signal.SIGTERM
